"""What compares two systems over the same questions: differences, relative savings, the strongest baseline, ranks, and
who dominates whom.

A difference may be one of differences (the interaction of a factorial): first minus second, question by question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from multihop.evaluation import aggregate
from multihop.evaluation.statistics import bootstrap_difference
from multihop.report.expected import VERDICTS, Cell
from multihop.report.load import Report
from multihop.report.values import (
    PERCENT,
    Measured,
    bounds,
    failure_counts,
    measure,
    percent,
    ratio,
    resampled_sums,
    scaled,
    score_rows,
    statistics,
)

STRONGEST = "strongest"
"""The system whose ``best_of`` names the paper's baselines."""
EQUAL = 1e-9
"""Means that are closer are equal: they are sums of floats."""


def contrast(report: Report, cell: Cell, pair: Sequence[str], **options: Any) -> Measured:
    """First against second: ``<metric>_delta`` first minus second, ``<metric>_cut`` by how many percent the first has
    less, ``pareto_<cost>`` who dominates whom in F1 and that cost. Paired over the questions that both have."""
    if cell.metric.startswith("pareto_"):
        return dominance(report, cell)
    base = cell.metric.removesuffix("_delta").removesuffix("_cut")
    first, second = (cell._replace(system=s, metric=base) for s in pair)
    both = [measure(report, c, **options) for c in (first, second)]
    missing = [m.missing for m in both if m.missing]
    if missing:
        return Measured(missing="; ".join(dict.fromkeys(missing)))
    if base.endswith("_share"):
        return _share_difference(report, first, second, both, **options)
    a, b = by_question(report, first), by_question(report, second)
    shared = sorted(a.keys() & b.keys())
    if not shared:
        return Measured(remark="undefined: no question has a value in both")
    remark = "; ".join(m.remark for m in both if m.remark)
    if cell.metric.endswith("_cut"):
        return replace(_saving(report, {q: a[q] for q in shared}, {q: b[q] for q in shared}), remark=remark)
    interval = bootstrap_difference([a[q] for q in shared], [b[q] for q in shared], **statistics(report))
    return scaled(interval, 100 if base in PERCENT else 1, remark)


def by_question(report: Report, cell: Cell) -> dict[str, float]:
    """Question -> our value, the mean over its seeds; of a difference over the questions that both have."""
    system = report.expected.systems.get(cell.system)
    if system and system.best_of:
        return by_question(report, cell._replace(system=best(report, cell)[0]))
    if system and system.minus:
        first, second = (by_question(report, cell._replace(system=s)) for s in system.minus)
        return {q: value - second[q] for q, value in first.items() if q in second}
    return aggregate.per_question(score_rows(report, cell), cell.metric)


def _saving(report: Report, less: dict[str, float], more: dict[str, float]) -> Measured:
    """100 x (1 - sum(less) / sum(more))."""
    kept = ratio(report, less, more)
    if kept.value is None:
        return Measured(remark="undefined: nothing to save on")
    return Measured(100 - kept.value, 100 - kept.high, 100 - kept.low, kept.n)


def _share_difference(report: Report, first: Cell, second: Cell, both: Sequence[Measured], **options: Any) -> Measured:
    if any(m.value is None for m in both):
        return Measured(remark="undefined: one of the two has no failure to share out")
    columns = []
    for cell in (first, second):
        category = cell.metric.removesuffix("_share")
        columns += [failure_counts(report, cell, c, **options) for c in (category, None)]
    a, b, c, d = resampled_sums(report, *columns)
    draws = percent(a, b) - percent(c, d)
    # As of a share: the questions that it is made of, which are those that failed (on the side with fewer of them).
    failed = min(sum(v > 0 for v in column.values()) for column in columns[1::2])
    return Measured(both[0].value - both[1].value, *bounds(report, draws), n=failed)


# -- the strongest of several, ranks


def best(report: Report, cell: Cell) -> tuple[str, Measured]:
    """The system of ``best_of`` with the highest value of the metric, the first of equals, and its value."""
    names = report.expected.systems[cell.system].best_of or []
    measured = {name: measure(report, cell._replace(system=name)) for name in names}
    ran = {name: m for name, m in measured.items() if m.value is not None}
    if not ran:
        return cell.system, next(iter(measured.values()))
    name = max(ran, key=lambda n: ran[n].value)
    return name, replace(ran[name], remark=_strongest(report, name, {n: m.value for n, m in ran.items()}))


def _strongest(report: Report, name: str, values: dict[str, float]) -> str:
    """Names the strongest, or all that are equally strong; where it matters, also whose questions are paired."""
    top, among = values[name], f"of the {len(values)} that ran"
    labels = [report.expected.systems[n].label for n, value in values.items() if top - value <= EQUAL]
    if len(labels) == 1:
        return f"{labels[0]}, the strongest {among}"
    tied = "all" if len(labels) == len(values) else f"{', '.join(labels[:-1])} and {labels[-1]}"
    paired = "" if abs(top) <= EQUAL else f"; paired with {report.expected.systems[name].label}"
    return f"{tied} tied at {top:.4g} ({among}{paired})"


def rank(report: Report, cell: Cell) -> Measured:
    """``<metric>_rank``: 1 where no baseline that ran has a higher value; the remark says how many have the same."""
    metric = cell.metric.removesuffix("_rank")
    own = measure(report, cell._replace(metric=metric))
    peers = report.expected.systems[STRONGEST].best_of or []
    others = [measure(report, cell._replace(metric=metric, system=s)) for s in peers if s != cell.system]
    values = [m.value for m in others if m.value is not None]
    if own.value is None or not values:
        return Measured(missing="no baseline ran beside it")
    above = sum(value > own.value + EQUAL for value in values)
    equal = tied(sum(abs(value - own.value) <= EQUAL for value in values))
    return Measured(float(1 + above), n=own.n, remark=f"{equal} of {1 + len(values)} that ran".strip())


def tied(others: int) -> str:
    """What stands behind a rank that ``others`` share."""
    return f"(tied with {others})" if others else ""


# -- Pareto


def dominance(report: Report, cell: Cell) -> Measured:
    """``pareto_<cost>`` of a difference: 1 the first dominates, -1 the second does, 0 neither, by the means of F1 and
    the cost over the same questions; the remark is the ``verdict`` and whether the intervals exclude 0."""
    quality = measure(report, cell._replace(metric="f1_delta"))
    cost = measure(report, cell._replace(metric=f"{cell.metric.removeprefix('pareto_')}_delta"))
    for m in (quality, cost):
        if m.value is None:
            return m
    value = dominates(quality.value, cost.value)
    clear = [m.low > 0 or m.high < 0 for m in (quality, cost)]
    said = "both intervals exclude 0" if all(clear) else "an interval holds 0"
    if abs(quality.value) <= EQUAL:
        said = f"the cost's interval {'excludes' if clear[1] else 'holds'} 0"
    return Measured(float(value), n=min(quality.n, cost.n), remark=f"{verdict(quality.value, cost.value)} ({said})")


def verdict(gain: float, extra: float) -> str:
    """``dominates`` in words; with equal quality it is about the cost alone, and says so."""
    if abs(gain) > EQUAL:
        return VERDICTS[dominates(gain, extra)]
    if abs(extra) <= EQUAL:
        return "F1 and cost tied"
    return f"{'cheaper' if extra < 0 else 'dearer'}, F1 tied"


def dominates(gain: float, extra: float) -> int:
    """1 where a ``gain`` in quality at so much ``extra`` cost dominates (no loss in either, better in one), -1 where
    it is dominated, else 0."""
    better, dearer = (0 if abs(d) <= EQUAL else 1 if d > 0 else -1 for d in (gain, extra))
    if better == dearer == 0:
        return 0
    return 1 if better >= 0 >= dearer else -1 if better <= 0 <= dearer else 0
