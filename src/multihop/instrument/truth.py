"""What really went wrong with each question of a simulated run, in the reader's and the judge's own words.

Nothing here reads a run record, a score or a failure row: the truth must not come from what it tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from multihop.instrument.plan import ASKED, Case
from multihop.instrument.reader import Log
from multihop.instrument.simulate import Simulation

UNREACHABLE, UNFOUND = "unreachable", "not found"
NO_FAILURE = "no failure"
MECHANISMS = {
    "right": NO_FAILURE,
    "wrong, judge accepts": NO_FAILURE,
    "right, judge rejects": "judge_error",
    "abstained": "gave_up",
    "abstained, evidence missing": "gave_up",
    "out of budget": "gave_up",
    "out of budget, evidence missing": "gave_up",
    "misread": "reasoning_error",
    "missing: dropped": "missing_evidence",
    "missing: swapped": "missing_evidence",
    "missing: early": "missing_evidence",
    "missing: unreachable": "missing_evidence",
    "missing: not found": "missing_evidence",
}
"""What happened -> the category that Appendix E's rules 1 to 4 without 3b give it."""


@dataclass(frozen=True)
class Truth:
    """One question under one method."""

    qid: str
    mechanism: str
    category: str
    """By the paper's rule, 3b included: what the analysis should say; NO_FAILURE where it should say nothing."""
    symmetric: str
    """The same without 3b."""
    hops: tuple[str, ...]
    """Per hop: "seen", or why not: dropped, swapped, early, unreachable or not found."""
    early: int
    """Register items that were resolved on another passage than their own."""


def truths(simulation: Simulation, method: str) -> list[Truth]:
    """Sorted by question id. ``method``: only executionrag has a register."""
    return [
        _truth(case, simulation.logs[method][qid], simulation, method == "executionrag")
        for qid, case in sorted(simulation.cases.items())
    ]


def _truth(case: Case, log: Log, simulation: Simulation, register: bool) -> Truth:
    hops = tuple(_hop(case, log, hop, simulation.unreachable) for hop in range(len(case.fates)))
    mechanism = _mechanism(log, hops, simulation.verdicts, case.gold.answers[0])
    symmetric = MECHANISMS[mechanism]
    closed = register and set(case.planned) == set(log.resolved)
    category = "reasoning_error" if closed and symmetric == "missing_evidence" else symmetric
    return Truth(case.question.id, mechanism, category, symmetric, hops, len(log.early) if register else 0)


def _hop(case: Case, log: Log, hop: int, unreachable: frozenset[str]) -> str:
    if case.passages[hop] in log.seen:
        return "seen"
    if case.fates[hop] != ASKED:
        return case.fates[hop]
    return UNREACHABLE if case.passages[hop] in unreachable else UNFOUND


def _mechanism(log: Log, hops: tuple[str, ...], verdicts: Mapping[tuple[str, str], bool], gold: str) -> str:
    accepted, right = verdicts[gold, log.answer], log.kind in ("right", "guess")
    if accepted:
        return "right" if right else "wrong, judge accepts"
    if right:
        return "right, judge rejects"
    reasons = [reason for reason in hops if reason != "seen"]
    if log.kind == "abstained" or log.forced:
        said = "abstained" if log.kind == "abstained" else "out of budget"
        return f"{said}, evidence missing" if reasons else said
    return f"missing: {reasons[0]}" if reasons else "misread"
