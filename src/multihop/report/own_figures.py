"""A claim held against the figures that its own paper prints: no interval, so only which side they lie on.

Where the text does not print what a part needs, the part is "not printed"; one printed part on the wrong side is enough
for a no.
"""

from __future__ import annotations

import math
from typing import Any

from multihop.report.deciding import NO, NOT_RUN, YES, joined, quorum
from multihop.report.expected import Expected, Printed
from multihop.report.leaves import Leaf, Operand, leaves
from multihop.report.ledger import Claim, Ledger
from multihop.report.load import Report
from multihop.report.predicates import Combination, Cut, Difference, Level
from multihop.report.values import PERCENT
from multihop.report.wording import figure, quantity

NOT_PRINTED = "not printed"
BINARY = ("em", "contain", "llm_acc")
Span = tuple[float, float]


def check(report: Report, ledger: Ledger, claim: Claim) -> dict[str, str]:
    """``answer`` yes, no or not printed; ``why`` names the printed numbers of a part that says no.

    ``too_few``: a printed difference that so few questions make up that no pairing of them could exclude chance.
    """
    found = _check(report, ledger, claim.tree)
    counts = [(n, i) for i, leaf in enumerate(leaves(claim.tree)) if (n := _questions(report, leaf))]
    if counts and min(counts)[0] < quorum(1 - report.params.statistics.confidence):
        count, i = min(counts)
        found["too_few"] = _too_few(report, ledger, count, leaves(claim.tree)[i])
    return found


def _questions(report: Report, leaf: Leaf) -> int | None:
    """How many questions a printed difference of right or wrong answers comes to; None for other quantities.

    A mean over trainings may come of one training's answer each, so it counts as so many questions more.
    """
    o = leaf.operand
    paired = type(o.of) is Difference and leaf.minus is None and o.group == "all" and leaf.range.edges == [0]
    if not paired or not (o.of.metric in BINARY or o.of.metric.endswith("_rate")):
        return None
    value = printed(report.expected, o)
    if value is None or value[0] != value[1]:
        return None
    own = report.expected.own
    trainings = own.training.trainings if own.training else 1
    return round(abs(value[0]) / 100 * own.questions[o.dataset] * trainings)


def _too_few(report: Report, ledger: Ledger, count: int, leaf: Leaf) -> str:
    n = report.expected.own.questions[leaf.operand.dataset]
    value = printed(report.expected, leaf.operand)[0]
    return (
        f"The paper's own difference is too small to be told from chance: {_where(report, ledger, leaf)}, {value:+.2f} "
        f"points, is {count} of {n:,} questions; even had no question gone the other way, p = {2 * 0.5**count:.2f}."
    )


def _check(report: Report, ledger: Ledger, node: Any) -> dict[str, str]:
    if not isinstance(node, Leaf):
        found = [_check(report, ledger, part) for part in node.parts]
        answer = joined(node.how, [NOT_RUN if f["answer"] == NOT_PRINTED else f["answer"] for f in found])
        answer = NOT_PRINTED if answer == NOT_RUN else answer
        return {"answer": answer, "why": next((f["why"] for f in found if f["answer"] == answer == NO), "")}
    value = printed(report.expected, node.operand)
    if node.minus and value is not None:
        other = printed(report.expected, node.minus)
        value = other and (value[0] - other[1], value[1] - other[0])
    if value is None:
        return {"answer": NOT_PRINTED, "why": ""}
    if node.range.holds(*value):
        return {"answer": YES, "why": ""}
    if not node.range.excludes(*value):
        return {"answer": NOT_PRINTED, "why": ""}
    shown = "–".join(dict.fromkeys(figure(report, node.operand.of, v) for v in value))
    return {"answer": NO, "why": f"{_where(report, ledger, node)}: {shown}, wanted {node.range}"}


def _where(report: Report, ledger: Ledger, leaf: Leaf) -> str:
    o = leaf.operand
    group = "" if o.group == "all" else f", {o.group}"
    against = f" less {leaf.minus.group if leaf.minus.group != o.group else leaf.minus.dataset}" if leaf.minus else ""
    what = quantity(report, ledger, o.of)
    return f"{what} on {report.label_dataset(o.dataset)} ({report.expected.own.label(o.role)}){group}{against}"


def printed(expected: Expected, o: Operand) -> Span | None:
    """What the paper's text prints for an operand, low to high; None where it prints nothing."""
    match o.of:
        case Level():
            return _level(expected, o, o.of.system, o.of.metric)
        case Cut():
            return _of_pair(expected, o, "_cut") or _cut(expected, o)
        case Difference():
            terms = [(1.0, o.of.first, o.of.metric), (-1.0, o.of.second, o.of.metric)]
            return _of_pair(expected, o, "_delta") or _sum(expected, o, terms)
        case Combination():
            return _sum(expected, o, [(t.weight, t.system, t.metric) for t in o.of.terms])
    return None


def _level(expected: Expected, o: Operand, system: str, metric: str) -> Span | None:
    """A rate is its count (or its share of all failures) per hundred of the paper's questions."""
    factor = 1.0
    if metric.endswith("_rate"):
        factor = 100 / expected.own.questions[o.dataset]
        metric, cause = "total_failures", metric.removesuffix("_rate")
        share = expected.lookup(o.dataset, system, o.role, f"{cause}_share", o.group)
        if expected.lookup(o.dataset, system, o.role, f"{cause}_count", o.group):
            metric = f"{cause}_count"
        elif cause != "wrong":
            factor *= share.value / 100 if share and share.number is not None else math.nan
    found = expected.lookup(o.dataset, system, o.role, metric, o.group)
    return _span(found, factor) if found and math.isfinite(factor) else None


def _span(p: Printed, factor: float = 1.0) -> Span | None:
    if isinstance(p.value, list):
        return None
    low, high = p.value * factor, p.value * factor
    if p.exactness == "above":
        return math.nextafter(low, math.inf), math.inf
    if p.exactness == "below":
        return -math.inf, math.nextafter(high, -math.inf)
    return low, high


def _of_pair(expected: Expected, o: Operand, suffix: str) -> Span | None:
    """A difference that the text prints as one; a range over several cells says where each of them lies."""
    pair = [o.of.first, o.of.second]
    name = next((name for name, s in expected.systems.items() if s.minus == pair), None)
    found = name and expected.lookup(o.dataset, name, o.role, o.of.metric + suffix, o.group)
    if not found:
        return None
    return (min(found.value), max(found.value)) if isinstance(found.value, list) else _span(found)


def _cut(expected: Expected, o: Operand) -> Span | None:
    less, more = (_level(expected, o, s, o.of.metric) for s in (o.of.first, o.of.second))
    if less is None or more is None or not more[0]:
        return None
    return tuple(sorted(100 * (1 - a / b) for a, b in zip(less, more, strict=True)))


def _sum(expected: Expected, o: Operand, terms: list[tuple[float, str, str]]) -> Span | None:
    low = high = 0.0
    for weight, system, metric in terms:
        value = _level(expected, o, system, metric)
        if value is None:
            return None
        points = 100 if metric in PERCENT and expected.shares == "fraction" else 1
        ends = sorted(weight * points * v for v in value)
        low, high = low + ends[0], high + ends[1]
    # Printed decimals are exact; their float differences are not.
    return round(low, 9), round(high, 9)
