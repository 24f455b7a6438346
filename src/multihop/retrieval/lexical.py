"""Lexical search: Okapi BM25 from a matrix built once, and A-RAG's count-times-length keyword score."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from scipy import sparse

_WORD = re.compile(r"\w+")


def tokenize(text: str) -> list[str]:
    """Lower-case words: runs of letters, digits and underscores."""
    return _WORD.findall(text.lower())


class BM25:
    """Okapi BM25 exactly as ``rank_bm25.BM25Okapi`` scores, from a sparse (n, vocabulary) matrix.

    A word in more than half of the texts has a negative idf: it gets ``epsilon`` times the mean idf.
    """

    def __init__(self, texts: Sequence[str], k1: float = 1.5, b: float = 0.75, epsilon: float = 0.25):
        vocabulary: dict[str, int] = {}
        rows, columns, counts, lengths = [], [], [], []
        for row, text in enumerate(texts):
            words = tokenize(text)
            lengths.append(len(words))
            for word, count in Counter(words).items():
                rows.append(row)
                columns.append(vocabulary.setdefault(word, len(vocabulary)))
                counts.append(count)
        self.vocabulary = vocabulary
        self.size = len(lengths)
        frequency = np.asarray(counts, dtype=np.float64)
        length = np.asarray(lengths, dtype=np.float64)
        idf = _idf(
            np.bincount(columns, minlength=len(vocabulary)) if columns else np.zeros(0), self.size, epsilon
        )
        average = length.mean() if self.size and length.any() else 1.0
        norm = k1 * (1 - b + b * length / average)
        weights = idf[columns] * (frequency * (k1 + 1) / (frequency + norm[rows])) if columns else frequency
        self.matrix = sparse.csc_matrix((weights, (rows, columns)), shape=(self.size, len(vocabulary)))

    def scores(self, query: str) -> np.ndarray:
        """float64 (n,): the score of every text; a word that the query repeats counts each time."""
        return self.scores_and_shared(query)[0]

    def search(self, query: str, k: int) -> list[tuple[int, float]]:
        """The best ``k`` (position, score) of texts that share a word with the query, ties by position."""
        scores, shared = self.scores_and_shared(query)
        scores = np.round(scores, 9)
        positions = np.flatnonzero(shared)
        order = np.lexsort((positions, -scores[positions]))[: max(k, 0)]
        return [(int(positions[i]), float(scores[positions[i]]) + 0.0) for i in order]

    def scores_and_shared(self, query: str) -> tuple[np.ndarray, np.ndarray]:
        """(float64 (n,) scores, bool (n,): whether the text has a word of the query)."""
        scores = np.zeros(self.size)
        shared = np.zeros(self.size, dtype=bool)
        m = self.matrix
        for word in tokenize(query):
            column = self.vocabulary.get(word)
            if column is not None:
                part = slice(m.indptr[column], m.indptr[column + 1])
                scores[m.indices[part]] += m.data[part]
                shared[m.indices[part]] = True
        return scores, shared


def _idf(document_frequency: np.ndarray, size: int, epsilon: float) -> np.ndarray:
    idf = np.asarray([math.log(size - f + 0.5) - math.log(f + 0.5) for f in document_frequency])
    if idf.size:
        idf = np.where(idf < 0, epsilon * idf.mean(), idf)
    return idf


class KeywordIndex:
    """A-RAG's keyword score: the sum over keywords of (occurrences in the text x the keyword's characters).

    Occurrences are case-insensitive substrings: "art" is found in "party". No idf, no length normalisation.
    """

    def __init__(self, texts: Sequence[str]):
        self._texts = [text.lower() for text in texts]

    def search(self, keywords: Sequence[str], k: int) -> list[tuple[int, int]]:
        """The best ``k`` (position, score) above 0; ties in corpus order. Blank keywords count 0."""
        scores = [0] * len(self._texts)
        for keyword in keywords:
            needle = keyword.lower()
            if not needle.strip():
                continue
            for i, text in enumerate(self._texts):
                if count := text.count(needle):
                    scores[i] += count * len(keyword)
        hits = [i for i, score in enumerate(scores) if score > 0]
        hits.sort(key=lambda i: (-scores[i], i))
        return [(i, scores[i]) for i in hits[: max(k, 0)]]


def contains_any(text: str, keywords: Sequence[str]) -> bool:
    """Whether a non-empty keyword occurs in ``text``, case-insensitively and anywhere in a word."""
    lower = text.lower()
    return any(k.strip() and k.lower() in lower for k in keywords)
