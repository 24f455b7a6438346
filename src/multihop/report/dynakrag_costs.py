"""What paper 2's systems cost, who dominates whom, and what terminal compression does.

Every function takes a Report of this paper and returns a Table ready to display.
"""

from __future__ import annotations

from typing import Any

from multihop.report.contrasts import verdict as words
from multihop.report.counted import records_of
from multihop.report.dynakrag_tables import (
    FACTORIAL,
    FIRST,
    FIXED_K,
    FULL,
    OURS,
    backbone,
    both,
    label,
    questions,
    say_once,
    shown,
    systems,
)
from multihop.report.expected import Cell
from multihop.report.frames import NOT_PRINTED, Table, answered, caption, frame, note, paper
from multihop.report.load import Report
from multihop.report.values import Measured, measure, ratio

__all__ = ["accounting", "compression", "pareto"]
ACCOUNTS = (
    "em", "f1", "total_tokens", "prompt_tokens", "retrieval_calls", "llm_calls", "final_prompt_tokens",
    "support_recall",
)  # fmt: skip
COSTS = ("total_tokens", "retrieval_calls")


def accounting(report: Report) -> Table:
    """What a question costs: every system of Tables 1 and 2 that ran, under each backbone."""
    rows, left_out = {}, dict[str, None]()
    for role in report.roles:
        names = [*systems(report), *(s for s in FACTORIAL if s != FULL and role == FIRST)]
        for dataset in report.datasets:
            for system in names:
                cell = Cell("Table 1", dataset, system, role, "f1", "all")
                if not measure(report, cell).ran:
                    left_out[f"{label(report, system)} ({backbone(report, role)})"] = None
                    continue
                row = {"n_ok / n": answered(report, cell)}
                for metric in ACCOUNTS:
                    heading = {"em": "EM", "f1": "F1"}.get(metric, metric.replace("_", " "))
                    row[heading] = shown(report, measure(report, cell._replace(metric=metric)), metric)
                rows[backbone(report, role), report.label_dataset(dataset), label(report, system)] = row
    text = (
        "Means per question with their intervals. Total tokens: prompt and completion over all calls; final prompt "
        "tokens: the evidence that the last call is shown; support recall: the share of the gold passages that the "
        f"method retrieved. {questions(report)}"
    )
    last = f"Not run, or not on every dataset: {', '.join(left_out)}. " if left_out else ""
    return Table(text, frame(rows, ["backbone", "dataset", "system"]), last + note(report))


# -- Pareto


def pareto(report: Report) -> Table:
    """The controller against every baseline: F1 against tokens and against retrieval calls, paired; who dominates."""
    rows = {}
    for role in report.roles:
        for dataset in report.datasets:
            for system in systems(report)[:-1]:
                cell = Cell("Against S2G-RAG", dataset, f"dynakrag_minus_{system}", role, "f1_delta", "all")
                key = (backbone(report, role), report.label_dataset(dataset), label(report, system))
                rows[key] = say_once(_against(report, cell))
    title = caption(
        report,
        "Against S2G-RAG",
        text="The controller against every baseline. It dominates where, by the means, it has more F1 at no higher "
        "cost; where F1 is equal, the cell only says who is cheaper. The paper claims dominance over S2G-RAG in both "
        "costs; its other verdicts on tokens are computed from Table 1, which has no total for Fixed-K.",
    )
    return Table(title, frame(rows, ["backbone", "dataset", "baseline"]), note(report))


def _against(report: Report, cell: Cell) -> dict[tuple[str, str], str]:
    gain = measure(report, cell)
    row = {("n", "pairs"): str(gain.n) if gain.ran else "", ("F1, points", OURS): shown(report, gain, cell.metric)}
    for cost in COSTS:
        name = cost.replace("_", " ")
        saved = cell._replace(metric=f"{cost}_cut")
        verdict = cell._replace(metric=f"pareto_{cost}")
        row |= {(k, part): text if gain.ran or part == "paper" else "" for (k, part), text in
                both(report, saved, f"{name} saved, %").items()}  # fmt: skip
        row[f"F1 and {name}", "ours"] = _verdict(measure(report, verdict))
        row[f"F1 and {name}", "paper"] = _paper_verdict(report, verdict, cost)
    return row


def _verdict(measured: Measured) -> str:
    return measured.remark if measured.ran else ""


def _paper_verdict(report: Report, cell: Cell, cost: str) -> str:
    """The paper's claim, else what its Table 1 gives."""
    if report.expected.lookup(*cell.key):
        return f"{paper(report, cell)} (claimed)"
    own, other = report.expected.systems[cell.system].minus or ("", "")
    values = [
        report.expected.lookup(*cell._replace(system=s, metric=metric).key)
        for metric in ("f1", cost)
        for s in (own, other)
    ]
    if other == FIXED_K or any(v is None for v in values):
        return NOT_PRINTED
    f1, other_f1, spent, other_spent = (v.number for v in values)
    return f"{words(f1 - other_f1, spent - other_spent)} (Table 1)"


# -- compression


def compression(report: Report) -> Table:
    """Evidence tokens before and after, within the run; against the run without, the final prompt and F1, paired."""
    rows = {}
    for role in report.roles:
        for dataset in report.datasets:
            cell = Cell("Compression", dataset, FULL, role, "f1", "all")
            row: dict[tuple[str, str], str] = _within(report, cell)
            row |= both(report, cell, "F1 with")
            row |= both(report, cell._replace(system="dynakrag_no_compression"), "F1 without")
            against = cell._replace(system="dynakrag_minus_no_compression", metric="f1_delta")
            row |= both(report, against, "F1 gain, points")
            row |= both(report, against._replace(metric="final_prompt_tokens_cut"), "final prompt smaller by, %")
            rows[backbone(report, role), report.label_dataset(dataset)] = say_once(row)
    text = (
        "Evidence tokens before and after: of the compressed run itself, over its questions with evidence. Final "
        "prompt: against the run without compression, over the same questions. Fallback: an unusable reply, all kept."
    )
    return Table(caption(report, "Compression", text=text), frame(rows, ["backbone", "dataset"]), note(report))


def _within(report: Report, cell: Cell) -> dict[tuple[str, Any], str]:
    """From the run's own ``compress`` events."""
    records = records_of(report, cell) if measure(report, cell).ran else []
    events = [(r.qid, e.data) for r in records for e in r.events if e.kind == "compress"]
    before: dict[str, float] = {}
    after: dict[str, float] = {}
    for qid, data in events:
        before[qid] = before.get(qid, 0) + data["before_tokens"]
        after[qid] = after.get(qid, 0) + data["after_tokens"]
    headings = ("questions", "before", "after", "smaller by, %", "fallbacks")
    if not events:
        return {("evidence tokens", h): "" for h in headings}
    kept = ratio(report, after, before)
    cut = Measured(remark="no evidence") if kept.value is None else Measured(
        100 - kept.value, 100 - kept.high, 100 - kept.low, kept.n
    )  # fmt: skip
    n = len(events)
    shown_values = (
        str(len(before)),
        f"{sum(before.values()) / n:,.1f}",
        f"{sum(after.values()) / n:,.1f}",
        shown(report, cut, "evidence_cut"),
        f"{sum(d['fallback'] for _, d in events)} of {n}",
    )
    return {("evidence tokens", h): v for h, v in zip(headings, shown_values, strict=True)}
