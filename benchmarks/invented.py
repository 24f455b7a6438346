"""Invented passages, sentences, questions and vectors for the benchmarks: seeded, of any size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from multihop.types import Chunk, Span

VOCABULARY, DIM = 300_000, 384


class Words:
    """Words of 2 to 10 letters, drawn by the law of Zipf and Mandelbrot: the n-th as often as 1 / (n + 2.7)."""

    def __init__(self, seed: int = 0):
        self.rng = np.random.default_rng(seed)
        letters = self.rng.choice(list("aeioulnrstdmkpbg"), size=(VOCABULARY, 10))
        ends = self.rng.integers(2, 11, VOCABULARY)
        self.words = ["".join(row[:end]) for row, end in zip(letters.tolist(), ends.tolist(), strict=True)]
        self._sum = np.cumsum(1 / (np.arange(VOCABULARY) + 3.7))

    def draw(self, count: int, first: int = 0) -> list[str]:
        """``count`` words; ``first``: leave out so many of the most frequent ones."""
        low = self._sum[first - 1] if first else 0.0
        places = np.searchsorted(self._sum, self.rng.uniform(low, self._sum[-1], count))
        return [self.words[i] for i in places.tolist()]

    def passages(self, count: int) -> list[tuple[str, str]]:
        """(title, text), the text of 4 sentences with 22 words on average."""
        lengths = self.rng.integers(10, 35, (count, 4))
        stream = iter(self.draw(int(lengths.sum())))
        titles = self.draw(2 * count, first=100)
        made = []
        for i, row in enumerate(lengths.tolist()):
            sentences = [" ".join(next(stream) for _ in range(n)).capitalize() for n in row]
            made.append((f"{titles[2 * i]} {titles[2 * i + 1]}".title(), ". ".join(sentences) + "."))
        return made

    def questions(self, count: int) -> list[str]:
        """Of 5 to 20 words, function words among them."""
        return [" ".join(self.draw(int(n))) for n in self.rng.integers(5, 21, count)]

    def keywords(self, count: int) -> list[list[str]]:
        """For each question three words and one pair of words; none of the 100 most frequent ones."""
        return [[*self.draw(3, first=100), " ".join(self.draw(2, first=100))] for _ in range(count)]


def chunks(passages: Sequence[tuple[str, str]]) -> list[Chunk]:
    texts = [f"{title}\n{text}" for title, text in passages]
    return [Chunk(f"p{i}", text, (Span(f"p{i}", 0, len(text)),)) for i, text in enumerate(texts)]


def halves(count: int, rng: np.random.Generator) -> np.ndarray:
    """float16 (count, DIM): vectors of length one."""
    vectors = rng.standard_normal((count, DIM), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors.astype("<f2")


class Given:
    """An embedder that draws its vectors instead of computing them: seeded by the text, at next to no cost."""

    space = "given/384"

    def space_of(self, kind: str) -> str:
        return self.space

    def encode(self, texts: Sequence[str], kind: str) -> np.ndarray:
        return halves(len(texts), np.random.default_rng(len(texts[0])))

    def truncated(self, texts: Sequence[str], kind: str) -> list[bool]:
        return [False] * len(texts)
