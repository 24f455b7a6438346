"""What these results answer to the test of a claim, part by part.

A test over several datasets or roles holds where all its parts do, each at the confidence of params.yaml; it is
contradicted by one part, and so that one of many is no accident each is asked at 1 - alpha / parts (Bonferroni). Of a
test that any part may satisfy, the same the other way round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from multihop.report.contrasts import EQUAL
from multihop.report.deciding import NO, NOT_RUN, OPEN, YES, Estimate, decides, joined, less, needed, widened
from multihop.report.estimates import at_level, estimate
from multihop.report.leaves import Branch, Leaf
from multihop.report.load import Report


@dataclass(frozen=True, slots=True)
class Part:
    """A leaf of the test and what these results say to it."""

    leaf: Leaf
    outcome: str
    estimate: Estimate
    needed: int | None = None
    """Questions that would decide, where it is inconclusive; None: no number would, or it can't be told."""


def judged(report: Report, tree: Leaf | Branch, options: Mapping[str, Any]) -> tuple[str, list[Part]]:
    """What these results answer, whoever read them, and the parts behind it. ``options``: of values.measure."""
    return _judged(report, tree, _alpha(report), _alpha(report), options)


def _alpha(report: Report) -> float:
    return 1 - report.params.statistics.confidence


def _judged(report: Report, node: Any, yes: float, no: float, options: Any) -> tuple[str, list[Part]]:
    """``yes`` and ``no``: the levels at which a part may say so."""
    if isinstance(node, Leaf):
        part = _part(report, node, yes, no, options)
        return part.outcome, [part]
    count = len(node.parts)
    levels = (yes, no / count) if node.how == "all" else (yes / count, no)
    found = [_judged(report, part, *levels, options) for part in node.parts]
    return joined(node.how, [outcome for outcome, _ in found]), [p for _, parts in found for p in parts]


def _part(report: Report, leaf: Leaf, yes: float, no: float, options: Any) -> Part:
    shown = _measured(at_level(report, max(yes, no)), leaf, max(yes, no), options)
    if shown.missing:
        return Part(leaf, NOT_RUN, shown)
    inside = decides(shown, leaf.range, max(yes, no))
    if inside is None:
        return Part(leaf, OPEN, shown, needed(shown, leaf.range, max(yes, no)))
    # A stricter level only where it matters: its interval is the wider one.
    level = yes if inside else no
    asked = shown if level == max(yes, no) else _measured(at_level(report, level), leaf, level, options)
    if decides(asked, leaf.range, level) is inside:
        return Part(leaf, YES if inside else NO, shown)
    return Part(leaf, OPEN, shown, needed(asked, leaf.range, level))


def _measured(report: Report, leaf: Leaf, alpha: float, options: Any) -> Estimate:
    found = estimate(report, leaf.operand, options)
    if leaf.minus is None:
        return widened(found, alpha)
    return less(found, estimate(report, leaf.minus, options), alpha)


def deciding(outcome: str, parts: list[Part]) -> Part:
    """The part behind the answer: of open ones that which needs most questions (unknown is most), of those that hold
    the one nearest to its boundary, of the rest the first."""
    own = [p for p in parts if p.outcome == outcome]
    if outcome == OPEN:
        return max(own, key=lambda p: float("inf") if p.needed is None else p.needed)
    return min(own, key=_margin) if outcome == YES else own[0]


def _margin(part: Part) -> float:
    e = part.estimate
    room = min(abs(e.value - edge) for edge in part.leaf.range.edges)
    return room / max(e.high - e.low, EQUAL)
