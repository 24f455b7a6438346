"""Measured figures that are no column of the scores: counted in run records, traces and data cards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from multihop.controller.state import ACTIONS, NAMES
from multihop.report.expected import Cell
from multihop.report.load import Report
from multihop.report.values import Measured, ratio, run_of, score_rows
from multihop.types import RunRecord


def records_of(report: Report, cell: Cell) -> list[RunRecord]:
    """The run records of the cell's group, of all its seeds."""
    ids = {r["qid"] for r in score_rows(report, cell)}
    records = report.records(run_of(report, cell.system), cell.dataset, report.setting(cell.role))
    return [r for r in records if r.qid in ids]


def _injection_saving(report: Report, cell: Cell) -> Measured:
    """How much shorter the injected register texts were than the whole register before every turn after the warm-up,
    in percent (App. B)."""
    shown: dict[str, float] = {}
    full: dict[str, float] = {}
    for record in records_of(report, cell):
        for event in record.events:
            if event.kind == "inject":
                shown[record.qid] = shown.get(record.qid, 0) + event.data["tokens"]
                full[record.qid] = full.get(record.qid, 0) + event.data["full_tokens"]
    if not full:
        return Measured(missing=f"no {cell.group} question whose register was injected")
    kept = ratio(report, shown, full)
    remark = "against replaying the whole register before every turn"
    return replace(kept, value=100 - kept.value, low=100 - kept.high, high=100 - kept.low, remark=remark)


def _fingerprint_match(report: Report, cell: Cell) -> Measured:
    """Share of gold paragraphs whose first 40 characters are found literally in a chunk, from the data card."""
    card, setting = report.cards.get(cell.dataset), report.setting(cell.role)
    if card is None:
        return _no_card(cell)
    if setting is None:
        return Measured(missing=f"no setting of params.yaml stands for {report.expected.own.label(cell.role)}")
    mapping = card["gold_mapping"][report.params.settings[setting].corpus]["all"]
    share = mapping["fingerprint"]["literal"]["found"]
    remark = f"of {mapping['gold_passages']} gold paragraphs; a count over the whole set, no interval"
    return Measured(100 * share, n=card["evaluation"]["questions"], remark=remark)


def _question_count(report: Report, cell: Cell) -> Measured:
    """How many evaluation questions the group has, from the data card."""
    card = report.cards.get(cell.dataset)
    if card is None:
        return _no_card(cell)
    hops = cell.group.endswith("-hop")
    counts = card["evaluation"]["by_hops" if hops else "by_type"]
    n = counts.get(cell.group.removesuffix("-hop") if hops else cell.group, 0)
    return Measured(float(n), n=n, remark="a count over the whole set")


def _no_card(cell: Cell) -> Measured:
    return Measured(missing=f"data/prepared/{cell.dataset}/card.json is not there yet")


def _questions_where(holds: Callable[[RunRecord], bool]) -> Callable[[Report, Cell], Measured]:
    """How many questions have such a record (with seeds: at least one)."""

    def count(report: Report, cell: Cell) -> Measured:
        records = records_of(report, cell)
        held = {r.qid for r in records if holds(r)}
        return Measured(float(len(held)), n=len({r.qid for r in records}), remark="questions whose record holds it")

    return count


def _has(*kinds: str) -> Callable[[Report, Cell], Measured]:
    return _questions_where(lambda record: any(e.kind in kinds for e in record.events))


def _chose(action: str) -> Callable[[Report, Cell], Measured]:
    return _questions_where(
        lambda record: any(e.kind == "decision" and e.data["chosen"] == action for e in record.events)
    )


def _decided(by: str) -> Callable[[Report, Cell], Measured]:
    """Decisions in which the gate was asked, or the candidates were scored."""
    return _questions_where(
        lambda record: any(e.kind == "decision" and e.data.get(by) is not None for e in record.events)
    )


def _ended(reason: str) -> Callable[[Report, Cell], Measured]:
    return _questions_where(lambda record: record.stop_reason == reason)


def _of_case(what: str) -> Callable[[Report, Cell], Measured]:
    """Tables 16 to 18: the trace of ours that stands beside the paper's case."""

    def read(report: Report, cell: Cell) -> Measured:
        from multihop.report.cases import METHOD, case

        found = case(report, int(cell.group.removeprefix("case ")))
        record = found and (found.trace.record if cell.system == METHOD else found.trace.baseline)
        if record is None:
            return Measured(missing=f"no trace of {cell.system} to show")
        value = 1.0 if what == "trace" else float(record.loops)
        trace = found.trace
        return Measured(value, n=1, remark=f"our own question {record.qid} of {trace.dataset} / {trace.setting}")

    return read


Count = Callable[[Report, Cell], Measured]
OF_DATA: dict[str, Count] = {"fingerprint_match": _fingerprint_match, "questions": _question_count}
"""Metrics that need no run."""
OF_RECORDS: dict[str, Count] = {
    "injection_saving": _injection_saving,
    "stage_register": _has("register"),
    "stage_search": _has("retrieve"),
    "stage_answer": _has("final_register"),
    **{NAMES[code]: _chose(code) for code in ACTIONS},
    NAMES["C"]: _has("compress"),
    "gate": _decided("gate"),
    "ranking": _decided("scores"),
    **{f"ended_{reason}": _ended(reason) for reason in ("stop", "sufficient", "steps", "budget")},
}
"""Metrics of one cell's run records."""
OF_CASES: dict[str, Count] = {"trace": _of_case("trace"), "loops": _of_case("loops")}
"""Metrics of the groups case 1, 2, 3."""
