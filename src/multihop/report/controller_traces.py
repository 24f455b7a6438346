"""Up to ten questions step by step: what the controller knew, could do, decided and got.

A rule picks them, not a person. One question of every sequence of operations comes first, the rarer sequences before
the commoner; then the others, in the order of datasets, question ids and seeds.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from multihop.controller.state import NAMES
from multihop.report.controller_data import ROLE, RUN, Decision, decisions, records
from multihop.report.frames import Table, frame, note
from multihop.report.load import Report
from multihop.report.traces import Trace, World, shorten
from multihop.types import Event

MOST = 10
ENDINGS = {
    "stop": "the controller stopped",
    "sufficient": "a check was positive",
    "steps": "the steps were used up",
    "budget": "nothing affordable was left",
}


def ten_traces(report: Report) -> list[Table]:
    """At most ten tables, one a question; a single one that says so where nothing ran."""
    report = report.of("dynakrag")
    found = _choose(report)
    if not found:
        return [Table("Traces of the run dynakrag.", frame({("not run",): {"state": ""}}, ["step"]), note(report))]
    counts = Counter(_sequence(t) for t in _all(report))
    return [_table(report, i, t, counts, len(found)) for i, t in enumerate(found, 1)]


def _all(report: Report) -> list[Trace]:
    """Every record of the run with the first backbone, in the order that breaks ties."""
    setting = report.setting(ROLE)
    found = []
    for dataset in report.datasets if setting else ():
        own = records(report, dataset)
        scores = {(r["qid"], r["seed"]): r for r in report.score_rows(dataset, setting, RUN)}
        world = World.load(report, dataset, report.params.settings[setting].corpus) if own else None
        found += [
            Trace(report, dataset, setting, r, None, scores[r.qid, r.seed], None, world)
            for r in own
            if (r.qid, r.seed) in scores and any(decisions(r))
        ]
    return found


def _sequence(trace: Trace) -> str:
    return " ".join(d.chosen for d in decisions(trace.record))


def _choose(report: Report) -> list[Trace]:
    found = _all(report)
    counts = Counter(map(_sequence, found))
    first: dict[str, Trace] = {}
    for trace in found:
        first.setdefault(_sequence(trace), trace)
    ranked = sorted(first.values(), key=lambda t: counts[_sequence(t)])
    taken = {id(t) for t in ranked}
    return [*ranked, *(t for t in found if id(t) not in taken)][:MOST]


def _table(report: Report, number: int, trace: Trace, counts: Counter[str], of: int) -> Table:
    record, sequence = trace.record, _sequence(trace)
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    held: list[str] = []
    gap, calls = "", 0
    for d in decisions(record):
        known = f"; missing: {trace.clean(shorten(gap, 80))}" if gap else ""
        rows[f"step {d.step}",] = {
            "state": f"{len(held)} documents, {calls} retrieval calls{known}",
            "valid": " ".join(d.valid),
            "gate": _gate(d),
            "scores": ", ".join(f"{c} {v:.3f}" for c, v in sorted((d.scores or {}).items(), key=lambda kv: -kv[1])),
            "chosen": f"{d.chosen} {NAMES[d.chosen]}",
            "what came of it": _outcome(trace, d.outcome),
        }
        new = d.outcome.data["new"] if d.outcome else []
        held, calls = [*held, *new], calls + (d.chosen in "RGWB" and bool(d.outcome))
        gap = _gap(gap, d)
    rows["answer",] = {"state": f"{len(held)} documents, {calls} retrieval calls", "what came of it": _answer(trace)}
    where = f"{report.label_dataset(trace.dataset)}, {report.label_setting(trace.setting)}, question {record.qid}"
    fewer = f" (up to ten; here all {of})" if of < MOST else ""
    text = (
        f"Trace {number} of {of}{fewer} (n = 1): {where}, seed {record.seed}. {record.question} Operations: {sequence} "
        f"({counts[sequence]} of {sum(counts.values())} questions went so). ● a gold passage, which the controller "
        "cannot see."
    )
    return Table(text, frame(rows, ["step"]), note(report))


def _gate(d: Decision) -> str:
    """What the three models say; nothing where the gate was not asked."""
    if d.gate is None:
        return "not asked"
    g = d.gate
    said = "go on" if g["continue"] else "stop"
    models = f"continuation {g['p_continue']:.2f}, gain {g['gain']:+.2f}, premature {g['p_premature']:.2f}"
    return f"{said} ({g['votes']} of 3: {models})"


def _gap(gap: str, d: Decision) -> str:
    """What is known to be missing after a step."""
    if d.outcome and d.chosen == "S":
        return d.outcome.data.get("missing") or ""
    return "" if d.chosen == "G" else gap


def _outcome(trace: Trace, outcome: Event | None) -> str:
    if outcome is None:
        return "the search ends"
    data = outcome.data
    if data["action"] == "S":
        missing = trace.clean(shorten(data.get("missing") or "nothing named", 80))
        verdict = "sufficient: the search ends" if data.get("sufficient") else f"not sufficient; missing: {missing}"
        return verdict if not data["failed"] else "an unusable reply, taken as not sufficient"
    query = f"“{trace.clean(shorten(data['query'], 80))}” → " if data.get("query") and data["action"] != "R" else ""
    new = ", ".join(f"{_mark(trace, c)} {trace.title(c)}" for c in data["new"])
    return f"{query}{new or 'nothing new'}"


def _mark(trace: Trace, chunk_id: str) -> str:
    return "●" if trace.world.chunks.passages_of(chunk_id) & set(trace.gold.supporting) else "○"


def _answer(trace: Trace) -> str:
    record, score = trace.record, trace.score
    end = ENDINGS.get(record.stop_reason, record.stop_reason)
    parts = [end[0].upper() + end[1:], *(_compressed(e.data) for e in record.events if e.kind == "compress")]
    parts.append(f"answer: {trace.clean(shorten(str(score['short']), 120)) or '(empty)'}")
    parts.append(f"gold: {trace.gold.answers[0]}, F1 {score['f1']:.2f}")
    if score["support_total"]:
        parts.append(f"gold passages found: {score['support_found']} of {score['support_total']}")
    return "; ".join(parts)


def _compressed(data: dict[str, Any]) -> str:
    if data["fallback"]:
        return f"compression unusable, {data['before_tokens']} tokens kept"
    return f"compressed to {len(data['kept'])} sentences, {data['before_tokens']} → {data['after_tokens']} tokens"
