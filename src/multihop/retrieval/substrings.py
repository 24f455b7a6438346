"""How often each of many keywords occurs in each of many texts, as ``str.count`` counts: exact, without a scan of all.

A keyword that is one run of word characters can only lie inside a word of the corpus: it is counted in the vocabulary,
and the words' postings give the texts. Any other keyword is counted in the texts that hold all of its runs. A text is
cut at the same characters as the keyword, so that nothing is missed.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from scipy import sparse

_RUN = re.compile(r"\w+")
_GRAM = 3
_FEW = 64
"""Texts that are counted in without looking for a rarer part of the keyword first."""


class Substrings:
    """Over ``texts``, lower-cased as A-RAG's keyword search does."""

    def __init__(self, texts: Sequence[str]):
        self.texts = [text.lower() for text in texts]
        vocabulary: dict[str, int] = {}
        rows, columns, counts = [], [], []
        for row, text in enumerate(self.texts):
            for word, count in Counter(_RUN.findall(text)).items():
                rows.append(row)
                columns.append(vocabulary.setdefault(word, len(vocabulary)))
                counts.append(count)
        self._vocabulary, self.words = vocabulary, list(vocabulary)
        shape = (len(vocabulary), len(self.texts))
        self._postings = sparse.csr_matrix((np.asarray(counts, dtype=np.float64), (columns, rows)), shape=shape)
        self._grams: dict[str, list[int]] = defaultdict(list)
        for number, word in enumerate(self.words):
            for gram in {word[i : i + _GRAM] for i in range(len(word) - _GRAM + 1)}:
                self._grams[gram].append(number)
        self._known: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def counts(self, needles: Sequence[str]) -> sparse.csr_matrix:
        """float64 (needles, texts), whole numbers: occurrences of each needle, lower-cased, in each text."""
        found = [self._count(needle) for needle in needles]
        indptr = np.concatenate([[0], np.cumsum([len(texts) for texts, _ in found])]).astype(np.int64)
        indices = np.concatenate([t for t, _ in found]) if found else np.zeros(0, dtype=np.int64)
        data = np.concatenate([c for _, c in found]) if found else np.zeros(0)
        return sparse.csr_matrix((data, indices, indptr), shape=(len(found), len(self.texts)))

    def _count(self, needle: str) -> tuple[np.ndarray, np.ndarray]:
        """(texts that hold the needle, ascending; how often), kept for the next time."""
        if needle not in self._known:
            self._known[needle] = self._inside_words(needle) if _RUN.fullmatch(needle) else self._across(needle)
        return self._known[needle]

    def _inside_words(self, run: str) -> tuple[np.ndarray, np.ndarray]:
        words = [w for w in self._words_with(run) if run in self.words[w]]
        times = [self.words[w].count(run) if len(self.words[w]) >= 2 * len(run) else 1 for w in words]
        return self._texts_with(np.asarray(words, dtype=np.int64), np.asarray(times, dtype=np.float64))

    def _texts_with(self, words: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(texts that hold one of the words, ascending; how often, an occurrence of a word counting ``times``)."""
        p = self._postings
        lengths = p.indptr[words + 1] - p.indptr[words]
        places = np.arange(lengths.sum()) + np.repeat(p.indptr[words] - np.cumsum(lengths) + lengths, lengths)
        texts, which = np.unique(p.indices[places], return_inverse=True)
        return texts, np.bincount(which, weights=p.data[places] * np.repeat(times, lengths), minlength=len(texts))

    def _words_with(self, run: str) -> Iterable[int]:
        """Words that may hold the run, at least all that do."""
        grams = [run[i : i + _GRAM] for i in range(len(run) - _GRAM + 1)]
        if not grams:
            return range(len(self.words))
        return min((self._grams.get(gram, []) for gram in grams), key=len)

    def _across(self, needle: str) -> tuple[np.ndarray, np.ndarray]:
        candidates: np.ndarray | None = None
        for run, whole in _runs(needle):
            if candidates is not None and (len(candidates) <= _FEW or len(run) < _GRAM):
                break
            texts = self._texts_of_word(run) if whole else self._count(run)[0]
            candidates = texts if candidates is None else np.intersect1d(candidates, texts, assume_unique=True)
        if candidates is None:
            candidates = np.arange(len(self.texts))
        counts = np.asarray([self.texts[t].count(needle) for t in candidates.tolist()], dtype=np.float64)
        held = counts > 0
        return candidates[held], counts[held]

    def _texts_of_word(self, word: str) -> np.ndarray:
        number = self._vocabulary.get(word)
        return np.zeros(0, dtype=np.int64) if number is None else self._texts_with(np.array([number]), np.ones(1))[0]


def _runs(needle: str) -> list[tuple[str, bool]]:
    """The needle's runs, the longest first, each with whether it must be a whole word wherever the needle occurs."""
    found = {(m[0], 0 < m.start() and m.end() < len(needle)) for m in _RUN.finditer(needle)}
    return sorted(found, key=lambda r: (-len(r[0]), r))
