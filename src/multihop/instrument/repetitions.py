"""Do the intervals cover and the tests keep their level? Outcomes drawn many times, the truth of each draw known.

The functions under test are evaluation/statistics.py's own. The first seed is a param: it was written down before the
first run, and no other was tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy.stats import binomtest

from multihop.evaluation import statistics

Row = dict[str, Any]
LEVEL = 0.95
BAND = (0.935, 0.965)
"""What 95 % intervals should cover in many repetitions."""
DISCORDANCE = 0.2
"""Share of pairs of which one alone is right: as large as between two agents of the papers."""
DIFFERENCE = 0.06
FAMILY = 6
"""Comparisons that Holm's procedure holds together."""


def repeat(repetitions: int, sizes: Sequence[int], shares: Sequence[float], *, seed: int, resamples: int) -> Row:
    """Coverage and level at every n of ``sizes``; ``shares``: true shares of right answers."""
    coverage, levels = [], []
    for n in sizes:
        for kind, truth, values in _kinds(n, shares, repetitions, seed):
            found = [_covers(v, truth, resamples) for v in values]
            coverage.append({"n": n, "of": kind, "truth": round(truth, 6)} | _share("covered", sum(found), repetitions))
        levels += _levels(n, repetitions, seed, resamples)
    for row in coverage:
        row["in_band"] = BAND[0] <= row["covered"] <= BAND[1]
    return {
        "repetitions": repetitions,
        "first_seed": seed,
        "resamples": resamples,
        "band": list(BAND),
        "coverage": coverage,
        "levels": levels,
    }


def _kinds(n: int, shares: Sequence[float], repetitions: int, seed: int) -> Iterator[tuple[str, float, np.ndarray]]:
    """(what, true mean, values (repetitions, n)): shares of right answers, an F1 column, a paired difference."""
    for share in shares:
        rng = np.random.default_rng([seed, n, round(1000 * share)])
        yield f"share {share:g}", share, (rng.random((repetitions, n)) < share).astype(float)
    rng = np.random.default_rng([seed, n, 2000])
    yield "F1", _F1_MEAN, _f1(rng, (repetitions, n))
    rng = np.random.default_rng([seed, n, 3000])
    first, second = _pairs(rng, (repetitions, n), DIFFERENCE)
    yield "paired difference", DIFFERENCE, first - second


_F1_MEAN = 0.35 * 1 + 0.25 * 0.5


def _f1(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """As F1 columns look: 40 % zeros, 35 % ones, the rest anywhere between."""
    u = rng.random(shape)
    return np.where(u < 0.4, 0.0, np.where(u < 0.75, 1.0, rng.random(shape)))


def _pairs(rng: np.random.Generator, shape: tuple[int, int], difference: float) -> tuple[np.ndarray, np.ndarray]:
    """Two systems' right answers: in DISCORDANCE of the pairs one alone is right, ``difference`` apart."""
    u = rng.random(shape)
    only_first, only_second = (DISCORDANCE + difference) / 2, (DISCORDANCE - difference) / 2
    both = 0.4
    first = (u < only_first) | ((u >= DISCORDANCE) & (u < DISCORDANCE + both))
    second = (u >= only_first) & (u < only_first + only_second + both)
    return first.astype(float), second.astype(float)


def _covers(values: np.ndarray, truth: float, resamples: int) -> bool:
    interval = statistics.bootstrap_mean(values, resamples=resamples, level=LEVEL)
    # Means of 0/1 values are sums of floats: the truth may lie on an interval's end.
    return interval.low - 1e-9 <= truth <= interval.high + 1e-9


def _levels(n: int, repetitions: int, seed: int, resamples: int) -> list[Row]:
    """How often what should say nothing says something; and how often McNemar sees a true difference."""
    rng = np.random.default_rng([seed, n, 4000])
    p_values = np.empty((repetitions, FAMILY))
    excludes = 0
    for r in range(repetitions):
        first, second = _pairs(rng, (FAMILY, n), 0.0)
        p_values[r] = [statistics.mcnemar(a, b).p for a, b in zip(first, second, strict=True)]
        interval = statistics.bootstrap_difference(first[0], second[0], resamples=resamples, level=LEVEL)
        excludes += not interval.low <= 0 <= interval.high
    alone = int((p_values[:, 0] <= 1 - LEVEL).sum())
    family = sum(min(statistics.holm(list(row))) <= 1 - LEVEL for row in p_values)
    first, second = _pairs(np.random.default_rng([seed, n, 5000]), (repetitions, n), DIFFERENCE)
    seen = sum(statistics.mcnemar(a, b).p <= 1 - LEVEL for a, b in zip(first, second, strict=True))
    power = statistics.mcnemar_power(n, DIFFERENCE, DISCORDANCE, alpha=1 - LEVEL)
    rows = [
        {"test": "McNemar, no difference", "at_most": 0.05} | _share("rejected", alone, repetitions),
        {"test": f"Holm over {FAMILY}, no difference", "at_most": 0.05} | _share("rejected", family, repetitions),
        {"test": "interval of the difference without 0", "about": 0.05} | _share("rejected", excludes, repetitions),
        {"test": f"McNemar, true difference {DIFFERENCE:g}", "about": round(power, 6)}
        | _share("rejected", seen, repetitions),
    ]
    return [{"n": n} | row for row in rows]


def _share(name: str, count: int, n: int) -> Row:
    interval = binomtest(int(count), n).proportion_ci(0.95, method="wilson")
    low, high = (round(float(end), 6) for end in (interval.low, interval.high))
    return {name: round(int(count) / n, 6), "low": low, "high": high}
