"""How often each of many keywords occurs in each of many texts, as ``str.count`` counts: exact, without a scan of all.

A keyword that is one run of word characters can only lie inside a word of the corpus: it is counted in the vocabulary,
and the words' postings give the texts. Any other keyword is counted in the texts that hold all of its runs. A text is
cut at the same characters as the keyword, so that nothing is missed.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from scipy import sparse

from multihop.retrieval.words import WORD, count_words

_GRAM = 3
_KEPT = 1 << 22
"""Occurrences (a text and its count) that are kept: 64 MiB."""
_FEW = 64
"""Texts that are counted in without looking for a rarer part of the keyword first."""


class Substrings:
    """Over ``texts``, lower-cased as A-RAG's keyword search does."""

    def __init__(self, texts: Sequence[str]):
        self.texts = [text.lower() for text in texts]
        self._vocabulary, counts = count_words(self.texts)
        self.words = list(self._vocabulary)
        self._postings = sparse.csr_matrix(counts.T)
        self._known: OrderedDict[str, tuple[np.ndarray, np.ndarray]] = OrderedDict()
        self._held = 0
        self._joined = "".join(f"\n{word}" for word in self.words)
        self._starts = np.cumsum([1 + len(word) for word in self.words]) - [len(word) for word in self.words]

    def counts(self, needles: Sequence[str]) -> sparse.csr_matrix:
        """float64 (needles, texts), whole numbers: occurrences of each needle, lower-cased, in each text."""
        found = [self.count(needle) for needle in needles]
        indptr = np.concatenate([[0], np.cumsum([len(texts) for texts, _ in found])]).astype(np.int64)
        indices = np.concatenate([t for t, _ in found]) if found else np.zeros(0, dtype=np.int64)
        data = np.concatenate([c for _, c in found]) if found else np.zeros(0)
        return sparse.csr_matrix((data, indices, indptr), shape=(len(found), len(self.texts)))

    def count(self, needle: str) -> tuple[np.ndarray, np.ndarray]:
        """(texts that hold the lower-case needle, ascending; how often), the latest ones kept for the next time."""
        if needle in self._known:
            self._known.move_to_end(needle)
            return self._known[needle]
        found = self._inside_words(needle) if WORD.fullmatch(needle) else self._across(needle)
        self._known[needle] = found
        self._held += len(found[0]) + 1
        while self._held > _KEPT and len(self._known) > 1:
            self._held -= len(self._known.popitem(last=False)[1][0]) + 1
        return found

    def _inside_words(self, run: str) -> tuple[np.ndarray, np.ndarray]:
        words, hits = np.unique(np.searchsorted(self._starts, self._places(run), "right") - 1, return_counts=True)
        times = [self.words[w].count(run) if h > 1 else 1 for w, h in zip(words.tolist(), hits.tolist(), strict=True)]
        return self._texts_with(words, np.asarray(times, dtype=np.float64))

    def _places(self, run: str) -> np.ndarray:
        """Where the run stands in the joined words: every one that holds it is hit, once where it holds it once."""
        if len(run) < _GRAM:
            return np.asarray([m.start() for m in re.finditer(run, self._joined)], dtype=np.int64)
        codes, grams, order = self._grams
        wanted = _codes(run)
        ranges = [np.searchsorted(grams, gram, side) for gram in _trigrams(wanted) for side in ("left", "right")]
        first, last = np.reshape(ranges, (-1, 2)).T
        rarest = int(np.argmin(last - first))
        places = order[first[rarest] : last[rarest]] - rarest
        places = places[(places > 0) & (places + len(run) <= len(codes))]
        for at, code in enumerate(wanted):
            places = places[codes[places + at] == code]
        return places

    @cached_property
    def _grams(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(codes of the joined words' characters, their runs of three, sorted, and where each of those stands)."""
        codes = _codes(self._joined)
        grams = _trigrams(codes)
        order = np.argsort(grams)
        return codes, grams[order], order.astype(np.int32)

    def _texts_with(self, words: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(texts that hold one of the words, ascending; how often, an occurrence of a word counting ``times``)."""
        p = self._postings
        lengths = p.indptr[words + 1] - p.indptr[words]
        places = np.arange(lengths.sum()) + np.repeat(p.indptr[words] - np.cumsum(lengths) + lengths, lengths)
        texts, which = np.unique(p.indices[places], return_inverse=True)
        return texts, np.bincount(which, weights=p.data[places] * np.repeat(times, lengths), minlength=len(texts))

    def _across(self, needle: str) -> tuple[np.ndarray, np.ndarray]:
        candidates: np.ndarray | None = None
        for run, whole in _runs(needle):
            if candidates is not None and (len(candidates) <= _FEW or len(run) < _GRAM):
                break
            texts = self._texts_of_word(run) if whole else self.count(run)[0]
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
    found = {(m[0], 0 < m.start() and m.end() < len(needle)) for m in WORD.finditer(needle)}
    return sorted(found, key=lambda r: (-len(r[0]), r))


def _codes(text: str) -> np.ndarray:
    """int64: the code point of each character."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.int64)


def _trigrams(codes: np.ndarray) -> np.ndarray:
    """int64: each three characters that follow each other, as one number; a code point has 21 bits."""
    return (codes[:-2] << 42) | (codes[1:-1] << 21) | codes[2:]
