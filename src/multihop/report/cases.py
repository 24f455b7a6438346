"""Three traces of our own that stand beside the paper's case studies (App. F, Tables 16 to 18).

The paper chose its cases by hand; ours are picked by rule, so that nobody picks the flattering ones:

1. anchoring: the question where ExecutionRAG retrieved the larger share of the gold passages by the widest margin over
   A-RAG; those first where A-RAG also met a namesake (a passage whose title shares a word with a gold passage's).
2. completing a chain: the most hops among the registers that resolved two items or more; then the most resolved.
3. dropping a wrong item: a register in which an item was retired; else one in which a guard stopped the model or an
   item was resolved on passages of which none is gold; else the first trace. ``Case.why`` says which it is.

Of traces that show an effect those of MuSiQue, the paper's dataset, go first. Ties go to the right answers, then to the
order of datasets, settings, question ids, seeds. The three are different questions where enough of them show anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pandas as pd

from multihop.report.frames import Table, note
from multihop.report.load import Report
from multihop.report.traces import BASELINE, METHOD, QUERY_CHARACTERS, Trace, shorten, traces
from multihop.types import Event, RunRecord

EFFECTS = (
    "Anchoring on the right entity",
    "Completing a long dependency chain",
    "Dropping a wrong item",
)
"""What Tables 16, 17 and 18 of the paper show, in this order."""
TABLE_CHARACTERS = 110


@dataclass(frozen=True)
class Case:
    number: int
    """1, 2, 3: beside the paper's Tables 16, 17, 18."""
    effect: str
    why: str
    """Which rule chose the trace, and whether it shows the effect at all."""
    trace: Trace


# -- choosing


@lru_cache(maxsize=4)
def choose_cases(report: Report) -> tuple[Case, ...]:
    """The three cases, or fewer where fewer traces qualify; empty before ExecutionRAG ran."""
    best: dict[int, dict[tuple[str, str], tuple[tuple, Trace]]] = {number: {} for number in _RULES}
    for trace in traces(report):
        for number, (rank, _) in _RULES.items():
            _keep(best[number], rank(trace), trace)
    chosen: dict[int, Trace] = {}
    # What shows its effect chooses first; of those the rarer.
    for number in sorted((3, 2, 1), key=lambda n: not _shown(best[n], n)):
        taken = {(t.dataset, t.record.qid) for t in chosen.values()}
        ranked = [trace for _, trace in best[number].values()]
        fresh = [t for question, (rank, t) in best[number].items() if question not in taken and rank[0]]
        if ranked:
            chosen[number] = (fresh or ranked)[0]
    return tuple(Case(n, EFFECTS[n - 1], _RULES[n][1](chosen[n]), chosen[n]) for n in sorted(chosen))


def _shown(best: Mapping[Any, tuple[tuple, Trace]], number: int) -> bool:
    """Whether the highest rank of a case is one that shows its effect."""
    return any(rank[0] >= _SHOWN[number] for rank, _ in best.values())


def case(report: Report, number: int) -> Case | None:
    return next((c for c in choose_cases(report) if c.number == number), None)


def _keep(best: dict[tuple[str, str], tuple[tuple, Trace]], rank: tuple | None, trace: Trace, limit: int = 3) -> None:
    """Keep the ``limit`` questions of the highest rank, best first; of equals the earlier."""
    question = (trace.dataset, trace.record.qid)
    if rank is None or (question in best and best[question][0] >= rank):
        return
    best[question] = (rank, trace)
    ordered = sorted(best.items(), key=lambda entry: entry[1][0], reverse=True)
    best.clear()
    best.update(ordered[:limit])


def _rank_1(t: Trace) -> tuple | None:
    if t.gain is None:
        return None
    level = (t.gain > 0) + (t.gain > 0 and bool(t.namesakes))
    return (level, t.musique, t.gain, t.right)


def _why_1(t: Trace) -> str:
    found, other, total = t.score["support_found"], t.baseline_score["support_found"], t.score["support_total"]
    facts = f"ExecutionRAG retrieved {found} of {total} gold passages, A-RAG {other}"
    if t.gain <= 0:
        return f"In no question of these runs did ExecutionRAG retrieve more gold passages than A-RAG; here: {facts}."
    if not t.namesakes:
        return f"{facts}. A-RAG met no namesake of a gold passage here."
    return f"{facts}. A-RAG also met {len(t.namesakes)} namesake(s), such as “{t.namesakes[0]}”."


def _rank_2(t: Trace) -> tuple | None:
    return (t.resolved >= 2, t.musique, t.gold.hops, t.resolved, t.right, t.guided) if t.items else None


def _why_2(t: Trace) -> str:
    deltas = sum(e.data["inject"] == "delta" for e in t.record.events if e.kind == "inject")
    facts = (
        f"{t.gold.hops} hops; {t.resolved} of {len(t.items)} register items were resolved in {t.record.loops} loops, "
        f"with {deltas} progress delta(s) shown to the agent"
    )
    return f"{facts}." if t.resolved >= 2 else f"No register of these runs resolved two items; here: {facts}."


def _rank_3(t: Trace) -> tuple | None:
    if not t.items:
        return None
    level = 2 if t.retirements else 1 if t.count("guards") or t.premature else 0
    return (level, t.musique, t.right, t.gold.hops)


def _why_3(t: Trace) -> str:
    if t.retirements:
        return "Retired: " + ", ".join(f"{e.data['id']} in loop {e.step}" for e in t.retirements) + "."
    plain = "No item was retired in any of these runs, so the paper's effect is not to be seen."
    notes = [n for e in t.record.events if e.kind == "guards" for n in e.data["notes"]]
    if notes:
        return f"{plain} Shown instead: a guard outside the model acted ({t.clean(notes[0])})."
    if t.premature:
        return f"{plain} Shown instead: {t.premature} item(s) resolved on passages of which none is gold."
    return f"{plain} Nor did a guard act, or an item close early."


_Rule = tuple[Callable[[Trace], "tuple | None"], Callable[[Trace], str]]
_RULES: dict[int, _Rule] = {1: (_rank_1, _why_1), 2: (_rank_2, _why_2), 3: (_rank_3, _why_3)}
_SHOWN = {1: 1, 2: True, 3: 2}
"""The first number of a rank from which on the effect is there: a gain; two items resolved; an item retired."""


# -- the table beside each picture


def case_table(report: Report, number: int) -> pd.DataFrame:
    """Rows: loops (0 is the seed retrieval), then the answer. Columns: what A-RAG and ExecutionRAG did."""
    found = case(report, number)
    columns = ["step", report.label_run(BASELINE), report.label_run(METHOD)]
    if found is None:
        return pd.DataFrame([["not run", "", ""]], columns=columns)
    trace = found.trace
    steps = range(max(r.loops for r in (trace.record, trace.baseline) if r) + 1)
    pair = (trace.baseline, trace.record)
    rows = [[f"loop {step}" if step else "seed", *(actions(trace, r, step) for r in pair)] for step in steps]
    rows.append(["answer", *(verdict(trace, which) for which in (BASELINE, METHOD))])
    return pd.DataFrame(rows, columns=columns)


def step_table(report: Report, number: int) -> Table:
    """``case_table`` as a notebook shows it, with its caption."""
    found = case(report, number)
    text = f"Case {number} step by step, beside the paper's Table {15 + number}."
    if found:
        where = f"{report.label_dataset(found.trace.dataset)}, {report.label_setting(found.trace.setting)}"
        text = f"{text} {where}, one question (n = 1). Why this trace: {found.why}"
    return Table(text, case_table(report, number).set_index("step"), note(report))


def actions(trace: Trace, record: RunRecord | None, step: int) -> str:
    """One loop in a line: searches with the gold passages they brought, reads, changes of the register."""
    if record is None:
        return "not run"
    found = [_action(trace, record, e) for e in record.events if e.step == step]
    return "; ".join(shorten(text, TABLE_CHARACTERS) for text in found if text)


def _action(trace: Trace, record: RunRecord, event: Event) -> str:
    data = event.data
    if event.kind == "retrieve":
        first = {r.chunk_id for r in record.retrieved if r.step == event.step}
        gold = [hop for hop, p in enumerate(trace.gold.supporting, 1) if trace.world.chunks.chunks_of(p) & first
                & set(data["chunk_ids"])]  # fmt: skip
        brought = f" (gold passage {', '.join(map(str, gold))})" if gold else ""
        repeat = " (a repeat)" if data["repeat"] else ""
        return f"{data['tool'].removesuffix('_search')} “{trace.query(data['query'])}”{repeat}{brought}"
    if event.kind == "read":
        return "read " + ", ".join(trace.title(c) for c in data["new"]) if data["new"] else "read nothing new"
    if event.kind == "register" and data["source"] == "init":
        return "register: " + ", ".join(f"{i['id']} {i['status']}" for i in data["items"])
    if event.kind == "turn":
        return "answers" if data["answer"] else ""
    if event.kind == "transition":
        note = _note(trace, record, event)
        return f"{data['id']} → {data['to']}" + (f" ({note})" if note else "")
    plain = {"update_failed": "update failed", "nudge": "nudged", "reminder": "sent back to open items",
             "forced": "forced to answer", "tool_error": "call refused", "guards": "a guard acted"}  # fmt: skip
    return plain.get(event.kind, "")


def _note(trace: Trace, record: RunRecord, event: Event) -> str:
    """What the register noted at a resolution or retirement; only in the demo world."""
    if not trace.report.is_demo or event.data["to"] not in ("resolved", "retired"):
        return ""
    after = [e for e in record.events if e.kind == "register" and e.step == event.step]
    item = next((i for e in after for i in e.data["items"] if i["id"] == event.data["id"]), None)
    return shorten((item or {}).get("note") or event.data["reason"], QUERY_CHARACTERS)


def verdict(trace: Trace, run: str) -> str:
    """The answer and what both judges say of it."""
    record, score = (trace.record, trace.score) if run == METHOD else (trace.baseline, trace.baseline_score)
    if record is None:
        return "not run"
    return f"{answer(trace, record, score)} [{judged(score)}{', forced' if record.forced else ''}]"


def judged(score: dict[str, Any]) -> str:
    words = {1.0: "right", 0.0: "wrong"}
    return f"model judge: {words[score['llm_acc']]}, rule: {words[score['rule_acc']]}"


def answer(trace: Trace, record: RunRecord, score: dict[str, Any]) -> str:
    """The whole answer in the demo; of a benchmark the extracted short one."""
    if record.status == "error":
        return "(error)"
    return trace.clean(shorten(record.answer if trace.report.is_demo else str(score["short"]), 160)) or "(empty)"
