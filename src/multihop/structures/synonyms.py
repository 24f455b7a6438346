"""Pairs of phrases that mean the same: cosine of their vectors, by blocks of rows, never the full matrix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

EXACT = 2048
"""Up to so many phrases each is compared with all: time grows with the square, memory with the number. Above it only
within neighbourhoods, so that time grows as the number does; docs/deviations.md says what that misses."""
SIZE = 128
"""Phrases of a neighbourhood, on average."""
PROBES = 16
"""Neighbourhoods that a phrase is compared with: those of the centres nearest to it."""
CELLS = 1 << 23
"""Cosines held at once: 32 MiB."""
DECIMALS = 6
"""Cosines are rounded to this, from double precision, before they are compared."""
_SLACK = 1e-3
"""Single precision proposes with this margin, double precision decides."""
_STEPS = 2048
"""Neighbourhoods are found with coordinates in whole steps of 1/2048: sums of their products stay below 2^24, which
single precision adds up without rounding, so that every processor finds the same."""
_SEED = 0


def synonym_pairs(
    phrases: Sequence[str], vectors: np.ndarray, threshold: float, most: int
) -> tuple[np.ndarray, np.ndarray]:
    """(pairs int32 (m, 2) with i < j, in order; their cosines float64 (m,)), each at least ``threshold``.

    ``vectors``: float16 (n, dim) of unit length. Only phrases of more than two letters or digits have synonyms; a
    pair stays where each is among the ``most`` nearest of the other (equal cosines by position), so that no phrase
    has more than ``most``. Above ``EXACT`` phrases a pair is found where one is in a neighbourhood near the other.
    """
    long = np.array([i for i, p in enumerate(phrases) if sum(c.isalnum() for c in p) > 2], dtype=np.int64)
    if len(long) < 2:
        return np.zeros((0, 2), dtype=np.int32), np.zeros(0)
    vectors = np.asarray(vectors)[long]
    found = [_block(vectors, mine, others, threshold, most) for mine, others in _compared(vectors)]
    # Found from one side is found: the bound is for each side by itself.
    ends, cosines = np.concatenate([f[0] for f in found]), np.concatenate([f[1] for f in found])
    ends, index = np.unique(np.concatenate([ends, ends[:, ::-1]]), axis=0, return_index=True)
    cosines = np.concatenate([cosines, cosines])[index]
    kept = _nearest(ends, cosines, most)
    pairs, index, times = np.unique(np.sort(ends[kept], axis=1), axis=0, return_index=True, return_counts=True)
    mutual = times == 2
    return long[pairs[mutual]].astype(np.int32), cosines[kept][index[mutual]]


def _compared(vectors: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Positions (rows, columns): each row is compared with each column, at most ``CELLS`` pairs at once."""
    n = len(vectors)
    every = np.arange(n)
    blocks = [(every, every)] if n <= EXACT else _neighbourhoods(vectors)
    for rows, columns in blocks:
        size = max(CELLS // max(len(columns), 1), 1)
        for start in range(0, len(rows), size):
            yield rows[start : start + size], columns


def _neighbourhoods(vectors: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(phrases near a centre, phrases whose nearest centre it is) of each centre; centres are phrases, drawn."""
    n = len(vectors)
    count = -(-n // SIZE)
    grid = np.round(vectors.astype(np.float32) * _STEPS)
    centres = grid[np.sort(np.random.default_rng(_SEED).choice(n, count, replace=False))]
    home, near, who = np.empty(n, dtype=np.int64), [], []
    size = max(CELLS // count, 1)
    for start in range(0, n, size):
        scores = grid[start : start + size] @ centres.T
        home[start : start + size] = scores.argmax(axis=1)
        bar = np.partition(scores, -min(PROBES, count), axis=1)[:, -min(PROBES, count)]
        rows, columns = np.nonzero(scores >= bar[:, None])
        near.append(columns.astype(np.int32))
        who.append(rows + start)
    centre, phrase = np.concatenate(near), np.concatenate(who)
    order, members = np.argsort(centre, kind="stable"), np.argsort(home, kind="stable")
    at = np.searchsorted(centre[order], np.arange(count + 1))
    of = np.searchsorted(home[members], np.arange(count + 1))
    for i in range(count):
        yield phrase[order[at[i] : at[i + 1]]], members[of[i] : of[i + 1]]


def _block(vectors, mine: np.ndarray, others: np.ndarray, threshold: float, most: int):
    """((i, j) (m, 2), cosine (m,)) of each phrase of ``mine`` with its nearest of ``others``."""
    rough = vectors[mine].astype(np.float32) @ vectors[others].astype(np.float32).T
    rows, columns = np.nonzero(rough >= threshold - _SLACK)
    ends = np.stack([mine[rows], others[columns]], axis=1)
    ends = ends[ends[:, 0] != ends[:, 1]]
    cosines = np.empty(len(ends))
    step = max(CELLS // max(vectors.shape[1], 1) // 8, 1)
    for at in range(0, len(ends), step):
        part = slice(at, at + step)
        a, b = (vectors[ends[part, side]].astype(np.float64) for side in (0, 1))
        cosines[part] = np.round(np.einsum("ij,ij->i", a, b), DECIMALS)
    ends, cosines = ends[cosines >= threshold], cosines[cosines >= threshold]
    kept = _nearest(ends, cosines, most)
    return ends[kept], cosines[kept]


def _nearest(ends: np.ndarray, cosines: np.ndarray, most: int) -> np.ndarray:
    """Which pairs (i, j) have j among the ``most`` nearest of i; equal ones by position."""
    order = np.lexsort((ends[:, 1], -cosines, ends[:, 0]))
    _, first, counts = np.unique(ends[order, 0], return_index=True, return_counts=True)
    return order[np.arange(len(order)) - np.repeat(first, counts) < most]
