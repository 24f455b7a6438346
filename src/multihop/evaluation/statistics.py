"""Intervals and tests over per-question scores. Percentile bootstrap: BCa is undefined on the
all-equal columns that small or perfect cells give."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom, binomtest, norm

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


def bootstrap_sums(columns: np.ndarray, *, seed: int = 0, resamples: int = RESAMPLES) -> np.ndarray:
    """The sum of each of ``columns`` (questions, columns) in each resample of questions: (resamples, columns)."""
    sums = []
    for index in _draws(len(columns), seed, resamples):
        places = index + len(columns) * np.arange(len(index))[:, None]
        times = np.bincount(places.ravel(), minlength=index.size).reshape(index.shape)
        sums.append(times.astype(float) @ columns)
    return np.concatenate(sums)


def ratio_intervals(
    parts: np.ndarray, wholes: np.ndarray, *, seed: int = 0, resamples: int = RESAMPLES, level: float = 0.95
) -> tuple[np.ndarray, np.ndarray]:
    """Percentile bootstrap of sum(part) / sum(whole) for each column of ``parts`` (questions, columns), resampling
    questions; ``wholes`` (questions,). A resample whose whole is 0 has no share and is left out.

    One question gives an interval without width; no question, or wholes of 0 alone, NaN.
    """
    if not wholes.any():
        return np.full(parts.shape[1], np.nan), np.full(parts.shape[1], np.nan)
    sums = bootstrap_sums(np.column_stack([parts, wholes]), seed=seed, resamples=resamples)
    sums = sums[sums[:, -1] > 0]
    low, high = np.quantile(sums[:, :-1] / sums[:, -1:], [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def _draws(n: int, seed: int, resamples: int) -> Iterator[np.ndarray]:
    """Index arrays (batch, n), ``resamples`` rows in all; the same for a given n, seed, resamples."""
    rng = np.random.default_rng(seed)
    batch = max(1, _CELLS // n)
    for start in range(0, resamples, batch):
        yield rng.integers(0, n, size=(min(batch, resamples - start), n))


def mcnemar(
    first: Sequence[float], second: Sequence[float], questions: Sequence[Hashable] | None = None
) -> McNemar:
    """Exact two-sided p of paired right/wrong scores; 1.0 when no pair is discordant.

    ``questions``: whose pair each is, where several seeds give a question several; its pairs are then one unit
    (``sign_flip`` over questions). With one pair a question that is the same test.
    Raises DataError when the lengths differ or a score is neither 0 nor 1.
    """
    a, b = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if a.shape != b.shape:
        raise DataError(f"McNemar of {a.size} with {b.size} scores: the cells must match")
    if not (np.isin(a, (0, 1)).all() and np.isin(b, (0, 1)).all()):
        raise DataError("McNemar needs scores of 0 or 1; use the paired bootstrap for F1")
    only_first, only_second = int((a > b).sum()), int((b > a).sum())
    if questions is not None and len(set(questions)) < len(questions):
        sums: dict[Hashable, int] = {}
        for question, difference in zip(questions, (a - b).astype(int).tolist(), strict=True):
            sums[question] = sums.get(question, 0) + difference
        return McNemar(only_first, only_second, sign_flip(list(sums.values())))
    n = only_first + only_second
    p = float(binomtest(only_first, n, 0.5).pvalue) if n else 1.0
    return McNemar(only_first, only_second, p)


def sign_flip(differences: Sequence[int]) -> float:
    """Exact two-sided p of whole-number differences, one a question: the share of all ways to set their signs whose sum
    lies at least as far from 0 (Fisher's randomisation test for pairs). Raises DataError for a fraction."""
    d = np.asarray(differences)
    if d.size and not (d == np.floor(d)).all():
        raise DataError("the sign-flip test needs whole numbers: sums over a question's seeds")
    sizes = np.abs(d[d != 0]).astype(int)
    chances = np.ones(1)
    for size, count in zip(*np.unique(sizes, return_counts=True), strict=True):
        own = np.zeros(size * count + 1)
        own[::size] = binom.pmf(np.arange(count + 1), count, 0.5)
        chances = np.convolve(chances, own)
    sums = 2 * np.arange(chances.size) - sizes.sum()
    return float(min(1.0, chances[np.abs(sums) >= abs(int(d.sum()))].sum()))


# -- what a number of questions can show


def mcnemar_power(n: int, difference: float, discordance: float, *, alpha: float = 0.05) -> float:
    """Exact power of the exact McNemar test at ``n`` pairs (Duffy 1984, Biometrics 40).

    ``difference``: of the two shares of right answers; ``discordance``: share of pairs in which one alone is right, at
    least the difference. The number of discordant pairs is binomial, and so is, given it, how many favour the first.
    Raises DataError for an impossible pair of the two.
    """
    _possible(difference, discordance)
    if n < 1 or discordance == 0:
        return 0.0
    low, high = binom.ppf([1e-12, 1 - 1e-12], n, discordance)
    discordant = np.arange(max(low, 1), high + 1)
    # The largest minority whose two-sided p is at most alpha; -1 where none is.
    critical = binom.ppf(alpha / 2, discordant, 0.5)
    critical = np.where(2 * binom.cdf(critical, discordant, 0.5) > alpha, critical - 1, critical)
    favour = (1 + difference / discordance) / 2
    rejected = binom.cdf(critical, discordant, favour) + binom.cdf(critical, discordant, 1 - favour)
    return float((binom.pmf(discordant, n, discordance) * np.minimum(rejected, 1)).sum())


def detectable_difference(
    n: int, discordance: float | None = None, *, alpha: float = 0.05, power: float = 0.8
) -> float | None:
    """The smallest difference that the exact McNemar test finds with ``power`` at ``n`` pairs; None where none does.

    ``discordance`` as in ``mcnemar_power``; None: the best case, in which all discordant pairs favour one side.
    """
    largest = 1.0 if discordance is None else discordance

    def enough(difference: float) -> bool:
        return mcnemar_power(n, difference, discordance or difference, alpha=alpha) >= power

    if not largest or not enough(largest):
        return None
    low, high = 0.0, largest
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def questions_needed(difference: float, discordance: float, *, alpha: float = 0.05, power: float = 0.8) -> int | None:
    """Pairs that a McNemar test needs to find ``difference`` with ``power``, by Connor's formula (1987, Biometrics 43):
    (z_alpha/2 sqrt(d) + z_power sqrt(d - difference^2))^2 / difference^2, d the discordance. None for no difference.

    A normal approximation, meant for tens of pairs and more. Raises DataError for an impossible pair of the two.
    """
    _possible(difference, discordance)
    if difference == 0:
        return None
    root = norm.ppf(1 - alpha / 2) * discordance**0.5 + norm.ppf(power) * (discordance - difference**2) ** 0.5
    return int(np.ceil((root / difference) ** 2))


def _possible(difference: float, discordance: float) -> None:
    if not abs(difference) <= discordance <= 1:
        said = f"a difference of {difference:g} needs a discordance from {abs(difference):g} to 1"
        raise DataError(f"power: {said}, not {discordance:g}")


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
