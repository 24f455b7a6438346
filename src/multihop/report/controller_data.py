"""What the controller left behind: its model cards, and the decisions in the run records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from multihop.controller.state import ACTIONS
from multihop.report.load import Report
from multihop.types import Event, RunRecord

RUN, ROLE = "dynakrag", "first"
MODELS = {
    "advantage": "advantage",
    "continuation": "continuation",
    "gain": "answer gain",
    "premature": "premature stop",
}
"""Forest -> name."""
TRAINED_NOTE = (
    "Skill is out of fold: 1 is perfect, 0 is a constant, below 0 is worse than a constant. With few train questions "
    "every number here is uncertain; the trainings differ in their split and forests."
)


@dataclass(frozen=True)
class Decision:
    """One control step of one question."""

    dataset: str
    qid: str
    step: int
    valid: tuple[str, ...]
    gate: dict[str, Any] | None
    scores: dict[str, float] | None
    chosen: str
    outcome: Event | None
    """The ``operation`` event; None for stopping."""


def controller_name(report: Report) -> str | None:
    """The training behind the run ``dynakrag``."""
    run = report.params.runs.get(RUN)
    return run.trained if run else None


def cards(report: Report) -> dict[str, dict[str, Any]]:
    """Train dataset -> model card of the controller behind ``dynakrag``, those that are trained."""
    files = report.trained.get(controller_name(report) or "", {})
    order = [d for d in report.datasets if d in files] + [d for d in files if d not in report.datasets]
    return {d: files[d]["card"] for d in order if "card" in files[d]}


def serves(report: Report, trained_on: str) -> list[str]:
    """The evaluation datasets that the controller trained on this one answers for."""
    return [d for d in report.datasets if report.served_by(controller_name(report) or "", d) == trained_on]


def all_cards(report: Report) -> dict[tuple[str, str], dict[str, Any]]:
    """(training, train dataset) -> card; that of ``dynakrag`` first, then its variants."""
    first = controller_name(report)
    names = sorted(report.trained, key=lambda n: (n != first, n))
    return {(n, d): files["card"] for n in names for d, files in report.trained[n].items() if "card" in files}


def records(report: Report, dataset: str) -> list[RunRecord]:
    """The run ``dynakrag`` on one dataset with the first backbone, without errors; read once."""
    key = ("records", RUN, dataset)
    if key not in report.memo:
        setting = report.setting(ROLE)
        found = report.records(RUN, dataset, setting) if setting else []
        report.memo[key] = [r for r in found if r.status != "error"]
    return report.memo[key]


def decisions(record: RunRecord) -> Iterator[Decision]:
    """The control steps of a record, in order."""
    outcomes = {e.step: e for e in record.events if e.kind == "operation"}
    for e in record.events:
        if e.kind == "decision":
            d = e.data
            yield Decision(
                record.dataset,
                record.qid,
                e.step,
                tuple(a for a in ACTIONS if a in d["valid"]),
                d.get("gate"),
                d.get("scores"),
                d["chosen"],
                outcomes.get(e.step) if d["chosen"] != "T" else None,
            )


def all_decisions(report: Report, dataset: str) -> list[Decision]:
    return [d for record in records(report, dataset) for d in decisions(record)]
