"""The best of blocks of scores: everything is scored by a matrix product, what can be among the best is picked out, and
that alone is scored exactly and sorted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from multihop.errors import DataError
from multihop.retrieval.dense import DECIMALS

BLOCK_BYTES = 1 << 26
"""What the scores of a block of queries may take."""
_GROUPS = 16
_PAIRS = 1 << 10
Scorer = Callable[[np.ndarray], np.ndarray]
"""Rows of queries -> their scores (rows, n) against everything; what is not above 0 is no hit."""


def best(count: int, scorer: Scorer, width: int, k: int, n: int, fold: Scorer = lambda scores: scores) -> np.ndarray:
    """int64 (count, k): positions of the best ``k`` of ``n`` scores above 0, equal ones by position; behind them -1.

    ``scorer`` gives ``width`` exact scores of a query, ``fold`` makes ``n`` of them.
    """
    out = np.full((count, k), -1, dtype=np.int64)
    if not n or k < 1:
        return out
    step = max(1, BLOCK_BYTES // (8 * max(width, 1)))
    for start in range(0, count, step):
        rows = np.arange(start, min(start + step, count))
        scores = fold(scorer(rows))
        query, position = _candidates(scores, min(k, n), 0.0, 0.0)
        _place(out, rows, query, position, scores[query, position])
    return out


def _candidates(scores: np.ndarray, k: int, margin: float, floor: float) -> tuple[np.ndarray, np.ndarray]:
    """(rows, positions) of all above ``floor`` that can be among a row's best ``k`` where scores are wrong by
    ``margin`` / 2. ``scores``: (rows, n).

    The k-th largest of the maxima of groups of columns is no larger than the k-th largest score. The last columns, too
    few for a group each, are looked at one by one.
    """
    columns = scores.shape[1] // _GROUPS
    whole = columns * _GROUPS
    highest = scores[:, :whole].reshape(len(scores), _GROUPS, columns).max(axis=1)
    least = np.full(len(scores), -np.inf)
    if columns > k:
        least = np.partition(highest, columns - k, axis=1)[:, columns - k] - margin
    query, column = np.nonzero((highest >= least[:, None]) & (highest > floor))
    position = column[:, None] + columns * np.arange(_GROUPS)
    values = scores[query[:, None], position]
    keep = (values >= least[query][:, None]) & (values > floor)
    last = scores[:, whole:]
    rows, tail = np.nonzero((last >= least[:, None]) & (last > floor))
    query = np.concatenate([np.broadcast_to(query[:, None], keep.shape)[keep], rows])
    return query, np.concatenate([position[keep], whole + tail])


def leading(scores: np.ndarray, k: int, margin: float = 0.0, floor: float = 0.0) -> np.ndarray:
    """Positions, ascending, of all of one query's scores (n,) above ``floor`` that can be among the best ``k`` >= 1
    where scores are wrong by ``margin`` / 2: as ``_candidates`` finds them, without its costs for many rows."""
    columns = len(scores) // _GROUPS
    if columns > k:
        highest = scores[: columns * _GROUPS].reshape(_GROUPS, columns).max(axis=0)
        least = np.partition(highest, columns - k)[columns - k] - margin
        if least > floor:
            return (scores >= least).nonzero()[0]
    return (scores > floor).nonzero()[0]


def _place(out: np.ndarray, rows: np.ndarray, query: np.ndarray, position: np.ndarray, exact: np.ndarray) -> None:
    """Write the best candidates of each row of a block into ``out``, best first, equal ones by position."""
    order = np.lexsort((position, -exact, query))
    query, position = query[order], position[order]
    rank = np.arange(len(query)) - np.searchsorted(query, query)
    keep = rank < out.shape[1]
    out[rows[query[keep]], rank[keep]] = position[keep]


def nearest(queries: np.ndarray, units: np.ndarray, k: int) -> np.ndarray:
    """Positions of the ``k`` best inner products, equal ones by position, as ``DenseIndex.search`` gives them.

    ``queries``: float16 (q, dim), a row that is not finite finds nothing; ``units``: float32 (n, dim), from half
    precision as well. Their products are multiples of 2^-48, so that double precision adds them up without rounding in
    any order: here and there come the same scores.
    """
    out = np.full((len(queries), k), -1, dtype=np.int64)
    asked = np.flatnonzero(np.isfinite(queries).all(axis=1))
    if not len(units) or k < 1 or not len(asked):
        return out
    wide = queries[asked].astype(np.float32)
    longest = float(np.sqrt(np.einsum("ij,ij->i", units, units).max() * np.einsum("ij,ij->i", wide, wide).max()))
    margin = 2 * (2.0**-23 * wide.shape[1] * longest + 1e-8)
    step = max(1, BLOCK_BYTES // (4 * len(units)))
    for start in range(0, len(asked), step):
        block = wide[start : start + step]
        query, position = _candidates(block @ units.T, min(k, len(units)), margin, -np.inf)
        exact = _products(block, units, query, position)
        _place(out, asked[start : start + step], query, position, np.round(exact, DECIMALS))
    return out


def _products(queries: np.ndarray, units: np.ndarray, query: np.ndarray, position: np.ndarray) -> np.ndarray:
    """float64: the inner product of each pair of rows; few at a time, so that they stay in the processor's cache."""
    out = np.empty(len(query))
    queries = queries.astype(np.float64)
    for start in range(0, len(query), _PAIRS):
        part = slice(start, start + _PAIRS)
        out[part] = np.einsum("ij,ij->i", queries[query[part]], units[position[part]].astype(np.float64))
    return out


def single_precision(vectors: np.ndarray) -> np.ndarray:
    """float32 of half-precision vectors. Raises DataError for one that is not finite."""
    if not np.isfinite(vectors).all():
        raise DataError("batched search: a vector of the index is not finite; rebuild the index")
    return vectors.astype(np.float32)
