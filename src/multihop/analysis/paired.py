"""Two runs on the same questions: who moved where, and whether the difference is more than chance.

A failure table shows two bars; it does not show which of the first run's failures the second turned into right answers
(paper 1, §4.3 and App. E compare counts alone). Here every question of one run meets itself in the other. Everything is
a pure function of score rows and failure rows; several datasets are pooled by giving a pair for each.

A difference is always second minus first. Seeds stay inside their question: a question's value is the mean over its
seeds, resampling draws questions, and the test flips the sign of a question's whole sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from multihop import messages
from multihop.analysis.failures import CATEGORIES, JUDGES, Row
from multihop.analysis.pairing import Key, Pair, Side, check_pool, pair
from multihop.errors import ConfigError, DataError
from multihop.evaluation.statistics import Interval, McNemar, bootstrap_difference, bootstrap_mean, mcnemar

__all__ = [
    "Comparison", "Conversion", "Move", "Pair", "Side", "check_pool", "compare", "conversion", "matrix", "moves",
    "outcomes", "pair", "values",
]  # fmt: skip
RIGHT = "right"
OUTCOMES = (RIGHT, *CATEGORIES)
CORRECT, UNRETRIEVED, WRONG_AND_MISSING = "correct", "gold_unretrieved", "wrong_and_missing"
MEASURES = (CORRECT, UNRETRIEVED, WRONG_AND_MISSING, *OUTCOMES)
"""Measures that are 0 or 1 for each question and seed; any numeric column of the score rows is a measure too."""


@dataclass(frozen=True, slots=True)
class Move:
    """One question and seed: what came of it in the first run, and in the second."""

    dataset: str
    qid: str
    seed: int
    first: str
    second: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """A measure of both sides over the questions that have it in both."""

    first: float | None
    second: float | None
    """Means, 0..1 for a measure of ``MEASURES``; None with n = 0."""
    difference: Interval
    """Second minus first."""
    test: McNemar | None
    """Of a measure that is 0 or 1: how many (question, seed) pairs have it on one side alone, and the exact p; None for
    other measures, and with n = 0."""
    left_out: int
    """Questions without a value: an error never searched to the end, or no gold passage is in the corpus."""

    @property
    def n(self) -> int:
        return self.difference.n


@dataclass(frozen=True, slots=True)
class Conversion:
    """What became of the first run's failures of one cause; numbers of questions (means over seeds)."""

    had: float
    """The first run's failures of the cause: the sum of the next four."""
    right: float
    other_found: float
    """Another failure, with no gold passage missing; or an error."""
    other_missing: float
    """Another label while a gold passage is still missing: relabelled, not mended."""
    same: float
    new: float
    """The second run's failures of the cause that the first did not have."""
    converted: Interval
    """Share of ``had`` that became right; n questions."""


# -- outcomes and moves


def outcomes(side: Side, judge: str = "llm", *, symmetric: bool = False) -> dict[Key, str]:
    """(question, seed) -> one of ``OUTCOMES``. ``symmetric``: Appendix E without its rule 3b, which knows one system.

    Raises ConfigError for an unknown judge, DataError for a wrong answer without a cause.
    """
    causes = {(f["qid"], f["seed"]): f for f in side.failures if f["judge"] == judge}
    column = "category_symmetric" if symmetric else "category"
    found = {}
    for s in side.scores:
        key = s["qid"], s["seed"]
        if s[_score_column(judge)] == 1:
            found[key] = RIGHT
        elif key in causes:
            found[key] = causes[key][column]
        else:
            raise DataError(f"paired: {side.where}: the wrong answer to {key[0]!r} has no cause; score the cell again")
    return found


def moves(pairs: Sequence[Pair], judge: str = "llm", *, symmetric: bool = False) -> list[Move]:
    """One per question and seed of the pairs (datasets), in their order; DataError for pairs that do not pool."""
    check_pool(pairs)
    found = []
    for p in pairs:
        first, second = (outcomes(side, judge, symmetric=symmetric) for side in (p.first, p.second))
        found += [Move(p.first.dataset, *key, first[key], second[key]) for key in p.keys]
    return found


def matrix(found: Sequence[Move]) -> dict[tuple[str, str], float]:
    """(outcome in the first run, in the second) -> questions, the mean over seeds; every pair of ``OUTCOMES``."""
    seeds = len({m.seed for m in found}) or 1
    counts = {(a, b): 0 for a in OUTCOMES for b in OUTCOMES}
    for m in found:
        counts[m.first, m.second] += 1
    return {key: count / seeds for key, count in counts.items()}


# -- measures


def values(side: Side, measure: str, judge: str = "llm", *, symmetric: bool = False) -> dict[Key, float | None]:
    """(question, seed) -> the measure: one of ``MEASURES``, or a column of the score rows.

    ``gold_unretrieved``: some gold passage that the corpus holds never surfaced; None for an error, which never
    searched to the end, and where the corpus holds none. Raises ConfigError for an unknown measure.
    """
    if measure == CORRECT:
        measure = RIGHT
    if measure in OUTCOMES:
        return {k: float(o == measure) for k, o in outcomes(side, judge, symmetric=symmetric).items()}
    if measure == WRONG_AND_MISSING:
        _score_column(judge)
        lacking = {(f["qid"], f["seed"]) for f in side.failures if f["judge"] == judge and f["wrong_and_missing"]}
        return {(s["qid"], s["seed"]): float((s["qid"], s["seed"]) in lacking) for s in side.scores}
    of: Callable[[Row], float | None] = _unretrieved if measure == UNRETRIEVED else lambda s: s[measure]
    if measure != UNRETRIEVED and any(measure not in s for s in side.scores):
        raise ConfigError(f"paired: {messages.unknown('measure', measure, MEASURES)}, or a column of the score rows")
    return {(s["qid"], s["seed"]): of(s) for s in side.scores}


def _unretrieved(score: Row) -> float | None:
    mapped = score["support_total"] - score["support_unmapped"]
    if score["status"] == "error" or mapped == 0:
        return None
    return float(score["support_found"] < mapped)


def compare(
    pairs: Sequence[Pair], measure: str = CORRECT, judge: str = "llm", *, symmetric: bool = False, **options: Any
) -> Comparison:
    """A measure of both sides over all questions of the pairs: means, the paired bootstrap interval of their
    difference, and McNemar. ``options`` are the bootstrap's (seed, resamples, level).

    With n = 1, or where all differences are equal, the interval is that one value.
    """
    check_pool(pairs)
    rows: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for p in pairs:
        first, second = (values(side, measure, judge, symmetric=symmetric) for side in (p.first, p.second))
        for key in p.keys:
            own = rows.setdefault((p.first.dataset, key[0]), [])
            if first[key] is not None and second[key] is not None:
                own.append((float(first[key]), float(second[key])))
    kept = {question: own for question, own in rows.items() if own}
    sides = [[math.fsum(v[i] for v in own) / len(own) for own in kept.values()] for i in (0, 1)]
    difference = bootstrap_difference(sides[1], sides[0], **options)
    means = [math.fsum(side) / len(side) if side else None for side in sides]
    test = None
    if kept and measure in MEASURES:
        flat = [(question, *v) for question, own in kept.items() for v in own]
        test = mcnemar([f[1] for f in flat], [f[2] for f in flat], [f[0] for f in flat])
    return Comparison(means[0], means[1], difference, test, len(rows) - len(kept))


def conversion(
    pairs: Sequence[Pair],
    judge: str = "llm",
    *,
    category: str = "missing_evidence",
    symmetric: bool = False,
    **options: Any,
) -> Conversion:
    """What became of the first run's failures of ``category``, question by question."""
    check_pool(pairs)
    seeds = len({seed for p in pairs for seed in p.seeds}) or 1
    tally = dict.fromkeys(("right", "other_found", "other_missing", "same", "new"), 0)
    mended: dict[tuple[str, str], list[float]] = {}
    for p in pairs:
        lacking = values(p.second, WRONG_AND_MISSING, judge)
        for m in moves([p], judge, symmetric=symmetric):
            if m.first == category:
                still = "other_missing" if lacking[m.qid, m.seed] else "other_found"
                tally[{RIGHT: "right", category: "same"}.get(m.second, still)] += 1
                mended.setdefault((m.dataset, m.qid), []).append(float(m.second == RIGHT))
            elif m.second == category:
                tally["new"] += 1
    counts = {name: count / seeds for name, count in tally.items()}
    shares = [math.fsum(v) / len(v) for v in mended.values()]
    had = sum(count for name, count in counts.items() if name != "new")
    return Conversion(had, **counts, converted=bootstrap_mean(shares, **options))


def _score_column(judge: str) -> str:
    if judge not in JUDGES:
        raise ConfigError(f"paired: {messages.unknown('judge', judge, JUDGES)}")
    return JUDGES[judge]
