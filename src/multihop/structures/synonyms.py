"""Pairs of phrases that mean the same: cosine of their vectors, by blocks of rows, never the full matrix."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

CELLS = 1 << 23
"""Cosines held at once: 32 MiB."""
DECIMALS = 6
"""Cosines are rounded to this, from double precision, before they are compared."""
_SLACK = 1e-3
"""Single precision proposes with this margin, double precision decides."""


def synonym_pairs(
    phrases: Sequence[str], vectors: np.ndarray, threshold: float, most: int
) -> tuple[np.ndarray, np.ndarray]:
    """(pairs int32 (m, 2) with i < j, in order; their cosines float64 (m,)), each at least ``threshold``.

    ``vectors``: float16 (n, dim) of unit length. Only phrases of more than two letters or digits have synonyms; a
    pair stays where each is among the ``most`` nearest of the other (equal cosines by position), so that no phrase
    has more than ``most``. Time grows with the square of n, memory with n.
    """
    long = np.array([i for i, p in enumerate(phrases) if sum(c.isalnum() for c in p) > 2], dtype=np.int64)
    if len(long) < 2:
        return np.zeros((0, 2), dtype=np.int32), np.zeros(0)
    rows = np.asarray(vectors, dtype=np.float32)[long]
    size = max(CELLS // len(long), 1)
    found = [_block(rows, vectors, long, start, size, threshold, most) for start in range(0, len(long), size)]
    chosen, cosines = np.concatenate([f[0] for f in found]), np.concatenate([f[1] for f in found])
    # Chosen by both sides: (i, j) and (j, i) are both there.
    pairs, index, times = np.unique(np.sort(chosen, axis=1), axis=0, return_index=True, return_counts=True)
    mutual = times == 2
    return pairs[mutual].astype(np.int32), cosines[index[mutual]]


def _block(rows, vectors, long, start: int, size: int, threshold: float, most: int) -> tuple[np.ndarray, np.ndarray]:
    """(i, j) and cosine of each phrase of one block of rows with its nearest."""
    rough = rows[start : start + size] @ rows.T
    mine, other = np.nonzero(rough >= threshold - _SLACK)
    mine += start
    mine, other = mine[mine != other], other[mine != other]
    cosines = np.empty(len(mine))
    step = max(CELLS // max(rows.shape[1], 1) // 8, 1)
    for at in range(0, len(mine), step):
        part = slice(at, at + step)
        a, b = (np.asarray(vectors[long[side[part]]], dtype=np.float64) for side in (mine, other))
        cosines[part] = np.round(np.einsum("ij,ij->i", a, b), DECIMALS)
    order = np.lexsort((other, -cosines, mine))
    order = order[cosines[order] >= threshold]
    _, first, counts = np.unique(mine[order], return_index=True, return_counts=True)
    rank = np.arange(len(order)) - np.repeat(first, counts)
    order = order[rank < most]
    return np.stack([long[mine[order]], long[other[order]]], axis=1), cosines[order]
