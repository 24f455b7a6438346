"""Intervals and tests over per-question scores. Percentile bootstrap: BCa is undefined on the
all-equal columns that small or perfect cells give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest

from multihop.errors import DataError

RESAMPLES = 9_999
_CELLS = 4_000_000
"""Most numbers drawn at once: 32 MB of indices, whatever n is."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and its 95 % (or ``level``) percentile bootstrap interval, in the scores' own unit."""

    mean: float | None
    low: float | None
    high: float | None
    n: int
    """Values (questions, or question clusters when seeds repeat them). With n = 0 all else is None."""


@dataclass(frozen=True, slots=True)
class McNemar:
    """Exact McNemar on paired 0/1 scores."""

    only_first: int
    only_second: int
    p: float

    @property
    def discordant(self) -> int:
        return self.only_first + self.only_second


def bootstrap_mean(
    values: Sequence[float], *, seed: int = 0, resamples: int = RESAMPLES, level: float = 0.95
) -> Interval:
    """Interval of the mean of ``values`` (n,). With n = 1 or equal values it is that one value.

    Raises DataError for a value that is not finite.
    """
    x = np.asarray(values, dtype=float)
    if not np.isfinite(x).all():
        raise DataError("bootstrap: a score is not a finite number; score the cell again")
    if x.size == 0:
        return Interval(None, None, None, 0)
    if x.size == 1 or (x == x[0]).all():
        return Interval(float(x[0]), float(x[0]), float(x[0]), int(x.size))
    means = np.concatenate([x[index].mean(axis=1) for index in _draws(x.size, seed, resamples)])
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(x.mean()), float(low), float(high), int(x.size))


def bootstrap_difference(
    first: Sequence[float],
    second: Sequence[float],
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    level: float = 0.95,
) -> Interval:
    """Interval of mean(first - second) over paired questions, in the same order on both sides.

    Raises DataError when the lengths differ.
    """
    if len(first) != len(second):
        raise DataError(f"paired comparison of {len(first)} with {len(second)} scores: the cells must match")
    difference = np.asarray(first, dtype=float) - np.asarray(second, dtype=float)
    return bootstrap_mean(difference, seed=seed, resamples=resamples, level=level)


def _draws(n: int, seed: int, resamples: int) -> Iterator[np.ndarray]:
    """Index arrays (batch, n), ``resamples`` rows in all; the same for a given n, seed, resamples."""
    rng = np.random.default_rng(seed)
    batch = max(1, _CELLS // n)
    for start in range(0, resamples, batch):
        yield rng.integers(0, n, size=(min(batch, resamples - start), n))


def mcnemar(first: Sequence[float], second: Sequence[float]) -> McNemar:
    """Exact two-sided p of paired right/wrong scores; 1.0 when no pair is discordant.

    Raises DataError when the lengths differ or a score is neither 0 nor 1.
    """
    a, b = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if a.shape != b.shape:
        raise DataError(f"McNemar of {a.size} with {b.size} scores: the cells must match")
    if not (np.isin(a, (0, 1)).all() and np.isin(b, (0, 1)).all()):
        raise DataError("McNemar needs scores of 0 or 1; use the paired bootstrap for F1")
    only_first, only_second = int((a > b).sum()), int((b > a).sum())
    n = only_first + only_second
    p = float(binomtest(only_first, n, 0.5).pvalue) if n else 1.0
    return McNemar(only_first, only_second, p)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p values, in the order given. Raises DataError outside 0..1."""
    if any(not 0 <= p <= 1 for p in p_values):
        raise DataError(f"Holm: a p value lies outside 0..1: {list(p_values)}")
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted
