"""Lexical search: Okapi BM25 from a matrix built once, and A-RAG's count-times-length keyword score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from scipy import sparse

from multihop.retrieval.dense import DECIMALS
from multihop.retrieval.ranking import leading
from multihop.retrieval.substrings import Substrings
from multihop.retrieval.words import WORD, count_words

_DENSE_SHARE = 8
"""A word in more than one text of so many is added up as a whole row: faster, and few words are that frequent."""


def tokenize(text: str) -> list[str]:
    """Lower-case words: runs of letters, digits and underscores."""
    return WORD.findall(text.lower())


class BM25:
    """Okapi BM25 exactly as ``rank_bm25.BM25Okapi`` scores, from a sparse (n, vocabulary) matrix.

    A word in more than half of the texts has a negative idf: it gets ``epsilon`` times the mean idf.
    """

    def __init__(self, texts: Sequence[str], k1: float = 1.5, b: float = 0.75, epsilon: float = 0.25):
        self.vocabulary, counts = count_words([text.lower() for text in texts])
        self.size = len(texts)
        length = counts.sum(axis=1)
        average = length.mean() if self.size and length.any() else 1.0
        norm = k1 * (1 - b + b * length / average)
        m = self.matrix = sparse.csc_matrix(counts)
        idf = _idf(np.diff(m.indptr), self.size, epsilon)
        m.data = np.repeat(idf, np.diff(m.indptr)) * (m.data * (k1 + 1) / (m.data + norm[m.indices]))
        self._positive = idf > 0

    def scores(self, query: str) -> np.ndarray:
        """float64 (n,): the score of every text; a word that the query repeats counts each time."""
        return self._sum(self._columns(query))

    def search(self, query: str, k: int) -> list[tuple[int, float]]:
        """The best ``k`` (position, score) of texts that share a word with the query, ties by position."""
        positions, scores = self.best(query, k)
        return list(zip(positions.tolist(), scores.tolist(), strict=True))

    def best(self, query: str, k: int, starts: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """(positions, scores) of ``search``; ``starts``, where each group of texts begins: of groups by their best."""
        columns = self._columns(query)
        if k < 1 or not columns:
            return np.zeros(0, dtype=np.int64), np.zeros(0)
        scores, floor = self._sum(columns), 0.0
        if not self._positive[columns].all():  # a word of no weight, or less, is a word shared, too
            scores[~self._shared(columns)] = floor = -np.inf
        if starts is not None:
            scores = np.maximum.reduceat(scores, starts)
        positions = leading(scores, k, 2 * 10.0**-DECIMALS, floor)
        scores = scores[positions].round(DECIMALS) + 0.0
        order = np.lexsort((positions, -scores))[:k]
        return positions[order], scores[order]

    def scores_and_shared(self, query: str) -> tuple[np.ndarray, np.ndarray]:
        """(float64 (n,) scores, bool (n,): whether the text has a word of the query)."""
        columns = self._columns(query)
        return self._sum(columns), self._shared(columns)

    def _columns(self, query: str) -> list[int]:
        return [c for word in tokenize(query) if (c := self.vocabulary.get(word)) is not None]

    def _sum(self, columns: list[int]) -> np.ndarray:
        """The words' weights, added up in the order of the query whichever way: so they round alike."""
        scores = np.zeros(self.size)
        indptr, indices, data = self.matrix.indptr, self.matrix.indices, self.matrix.data
        for column in columns:
            row = self._rows.get(column)
            if row is not None:
                scores += row
            else:
                part = slice(indptr[column], indptr[column + 1])
                np.add.at(scores, indices[part], data[part])
        return scores

    def _shared(self, columns: list[int]) -> np.ndarray:
        shared = np.zeros(self.size, dtype=bool)
        for column in columns:
            shared[self.matrix.indices[self.matrix.indptr[column] : self.matrix.indptr[column + 1]]] = True
        return shared

    @cached_property
    def _rows(self) -> dict[int, np.ndarray]:
        """The frequent words' weights in all texts, by column."""
        frequent = np.flatnonzero(np.diff(self.matrix.indptr) * _DENSE_SHARE > self.size).tolist()
        return {c: self.matrix[:, [c]].toarray().ravel() for c in frequent}


def _idf(document_frequency: np.ndarray, size: int, epsilon: float) -> np.ndarray:
    found, which = np.unique(document_frequency, return_inverse=True)
    idf = np.asarray([math.log(size - f + 0.5) - math.log(f + 0.5) for f in found.tolist()])[which]
    return np.where(idf < 0, epsilon * idf.mean(), idf) if idf.size else idf


class KeywordIndex:
    """A-RAG's keyword score: the sum over keywords of (occurrences in the text x the keyword's characters).

    Occurrences are case-insensitive substrings: "art" is found in "party". No idf, no length normalisation.
    """

    def __init__(self, texts: Sequence[str]):
        self._substrings = Substrings(texts)

    def search(self, keywords: Sequence[str], k: int) -> list[tuple[int, int]]:
        """The best ``k`` (position, score) above 0; ties in corpus order. Blank keywords count 0."""
        scores = np.zeros(len(self._substrings.texts))
        if k < 1:
            return []
        for keyword in keywords:
            if keyword.strip():
                texts, counts = self._substrings.count(keyword.lower())
                scores[texts] += counts * len(keyword)
        positions = leading(scores, k)
        order = np.lexsort((positions, -scores[positions]))[:k]
        return [(int(i), int(scores[i])) for i in positions[order]]


def contains_any(text: str, keywords: Sequence[str]) -> bool:
    """Whether a non-empty keyword occurs in ``text``, case-insensitively and anywhere in a word."""
    lower = text.lower()
    return any(k.strip() and k.lower() in lower for k in keywords)
