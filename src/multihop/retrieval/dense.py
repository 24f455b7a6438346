"""Exact dense search: FAISS's flat index proposes, double precision decides, position breaks ties."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from multihop.errors import DataError

DECIMALS = 9
"""Scores are rounded to this before they are compared, so that another processor ranks alike."""
_BLOCK = 1 << 13
_FEW = 64
_SMALL = 1 << 23
"""Numbers (rows times dimensions) up to which an index is held in single precision: 32 MiB."""
_MARGIN = 8
"""Proposals beyond the k asked for; eight times as many, and so on, where they lie too near to each other."""


class DenseIndex:
    """Inner product over unit vectors.

    ``vectors``: float16 (n, dim), n >= 1, row i being the i-th unit in corpus order. Raises DataError for an
    empty or non-finite array.
    """

    def __init__(self, vectors: np.ndarray):
        vectors = np.asarray(vectors)
        if vectors.ndim != 2 or 0 in vectors.shape:
            raise DataError(f"dense index: no vectors (shape {vectors.shape}); the corpus is empty")
        squares = np.concatenate([np.einsum("ij,ij->i", block, block) for block in _blocks(vectors)])
        if not np.isfinite(squares).all():
            row = int(np.flatnonzero(~np.isfinite(squares))[0])
            raise DataError(f"dense index: the vector at position {row} is not finite; rebuild the index")
        self.vectors = vectors
        self.longest = float(np.sqrt(squares.max()))

    def __len__(self) -> int:
        return len(self.vectors)

    def search(self, query: np.ndarray, k: int) -> list[tuple[int, float]]:
        """The ``min(k, n)`` best (position, score), best first; equal scores in corpus order.

        ``query``: (dim,). Raises DataError for a non-finite query or another dimension.
        """
        wide = np.asarray(query, dtype=np.float64)
        length = math.sqrt(wide @ wide) if wide.shape == self.vectors.shape[1:] else math.nan
        if not math.isfinite(length):
            raise DataError(f"dense index: query of shape {wide.shape}, or not finite, over {self.vectors.shape}")
        n = len(self)
        k = min(k, n)
        if k <= 0:
            return []
        # Single precision can't tell scores apart that are closer than this.
        error = 2.0**-23 * wide.size * length * self.longest + 1e-8
        count = min(n, k + _MARGIN)
        while count < n:
            rough, positions = self._propose(wide, count)
            least = rough[k - 1] - 2 * error
            if rough[-1] < least:  # nothing further down can be among the best k
                positions = positions[: sum(score >= least for score in rough)]
                return _ranked(positions, self._scores(positions, wide), k)
            count = min(n, count * 8)
        return _ranked(np.arange(n), self._scores(slice(None), wide), k)

    def _scores(self, rows: Any, query: np.ndarray) -> np.ndarray:
        """float64: the exact inner products of some rows with the query, rounded."""
        return (self.vectors[rows].astype(np.float64) @ query).round(DECIMALS) + 0.0

    def _propose(self, query: np.ndarray, count: int) -> tuple[list[float], np.ndarray]:
        """(scores in single precision, positions) of the ``count`` best, best first."""
        rough, positions = self._faiss.search(query.astype(np.float32)[None, :], count)
        return rough[0].tolist(), positions[0]

    @cached_property
    def _faiss(self) -> Any:
        """A flat index. A large one keeps half precision as it is: the numbers of IndexFlatIP in half the memory to
        scan; what the processor's cache holds is scanned faster in single precision."""
        import faiss

        faiss.omp_set_num_threads(1)
        dim, half = self.vectors.shape[1], faiss.ScalarQuantizer.QT_fp16
        if self.vectors.size <= _SMALL:
            index = faiss.IndexFlatIP(dim)
        else:
            index = faiss.IndexScalarQuantizer(dim, half, faiss.METRIC_INNER_PRODUCT)
        for block in _blocks(self.vectors):
            index.add(block)
        return index


def _ranked(positions: np.ndarray, scores: np.ndarray, k: int) -> list[tuple[int, float]]:
    """The best ``k`` pairs, equal scores by position; a few are sorted faster without numpy."""
    if len(positions) > _FEW:
        order = np.lexsort((positions, -scores))[:k]
        return list(zip(positions[order].tolist(), scores[order].tolist(), strict=True))
    return sorted(zip(positions.tolist(), scores.tolist(), strict=True), key=lambda found: (-found[1], found[0]))[:k]


def _blocks(vectors: np.ndarray) -> Iterator[np.ndarray]:
    """float32 rows, some at a time, so that no second copy is held whole."""
    for start in range(0, len(vectors), _BLOCK):
        yield np.ascontiguousarray(vectors[start : start + _BLOCK], dtype=np.float32)
