"""Exact dense search: FAISS's flat index proposes, double precision decides, position breaks ties."""

from __future__ import annotations

from typing import Any

import numpy as np

from multihop.errors import DataError

DECIMALS = 9
"""Scores are rounded to this before they are compared, so that another processor ranks alike."""
_MARGIN = 32


class DenseIndex:
    """Inner product over unit vectors.

    ``vectors``: float16 (n, dim), n >= 1, row i being the i-th unit in corpus order. Raises DataError for an
    empty or non-finite array.
    """

    def __init__(self, vectors: np.ndarray):
        vectors = np.asarray(vectors)
        if vectors.ndim != 2 or 0 in vectors.shape:
            raise DataError(f"dense index: no vectors (shape {vectors.shape}); the corpus is empty")
        if not np.isfinite(vectors).all():
            row = int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
            raise DataError(f"dense index: the vector at position {row} is not finite; rebuild the index")
        self.vectors = vectors
        self.longest = float(np.sqrt((vectors.astype(np.float32) ** 2).sum(axis=1).max()))
        self._faiss: Any = None

    def __len__(self) -> int:
        return len(self.vectors)

    def search(self, query: np.ndarray, k: int) -> list[tuple[int, float]]:
        """The ``min(k, n)`` best (position, score), best first; equal scores in corpus order.

        ``query``: (dim,). Raises DataError for a non-finite query or another dimension.
        """
        query = np.asarray(query)
        if query.shape != self.vectors.shape[1:] or not np.isfinite(query).all():
            raise DataError(
                f"dense index: query of shape {query.shape}, or not finite, over {self.vectors.shape}"
            )
        n = len(self)
        k = min(k, n)
        if k <= 0:
            return []
        # Single precision can't tell scores apart that are closer than this.
        error = 2.0**-23 * query.size * float(np.linalg.norm(query.astype(np.float64))) * self.longest + 1e-8
        count = min(n, k + _MARGIN)
        while True:
            rough, positions = self._propose(query, count)
            exact = np.round(self.vectors[positions].astype(np.float64) @ query.astype(np.float64), DECIMALS)
            order = np.lexsort((positions, -exact))[:k]
            if count == n or rough.min() + error < exact[order[-1]]:
                break
            count = min(n, count * 8)
        return [(int(positions[i]), float(exact[i]) + 0.0) for i in order]

    def _propose(self, query: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        if count == len(self):
            return np.zeros(1), np.arange(count)
        if self._faiss is None:
            import faiss

            faiss.omp_set_num_threads(1)
            self._faiss = faiss.IndexFlatIP(self.vectors.shape[1])
            self._faiss.add(np.ascontiguousarray(self.vectors, dtype=np.float32))
        rough, positions = self._faiss.search(query.astype(np.float32)[None, :], count)
        return rough[0], positions[0]
