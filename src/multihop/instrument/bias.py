"""What the paper's rules do to counts of causes when two methods search and answer alike.

Two methods see the same passages and give the same answers (or answer alike but for one habit); only what Appendix E
looks at beside them differs. Every difference in "missing evidence" is then a difference of labels. Records are made in
process and classified by analysis/failures.py itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

from multihop.analysis import failures
from multihop.blocks import Faults
from multihop.evaluation.statistics import bootstrap_difference
from multihop.evaluation.support import ChunkMap
from multihop.instrument.plan import ASKED, EARLY, Case, draw
from multihop.types import Chunk, Event, Gold, Hop, Question, Retrieved, RunRecord, Span

Row = dict[str, Any]
EARLY_RATES = (0.0, 0.05, 0.1, 0.2, 0.3)
DRIFT_RATES = (0.05, 0.1, 0.2)
DROPPED_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
HABITS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
PAPER = {"first": 382, "second": 234, "questions": 1000}
"""Paper 1's primary claim: MuSiQue, MiniLM, A-RAG and ExecutionRAG."""


def grids(questions: int, *, seed: int, resamples: int) -> list[Row]:
    """Points of four grids, counts of ``questions`` questions; every interval is of the paired difference in counts."""
    options = {"questions": questions, "seed": seed, "resamples": resamples}
    quiet = {"unreachable": 0.0, "judge_error": 0.0, "judge_accept": 0.0, "stall": 0.0}
    points = []
    for drift in DRIFT_RATES:
        for early in EARLY_RATES:
            faults = Faults(drift=drift, early=early, dropped=0.0, **quiet)
            points.append({"grid": "early", "drift": drift, "rate": early} | _point(faults, faults, True, options))
    for dropped in DROPPED_SHARES:
        faults = Faults(drift=0.1, early=0.0, dropped=dropped, **quiet)
        points.append({"grid": "dropped", "drift": 0.1, "rate": dropped} | _point(faults, faults, True, options))
    first = Faults(drift=0.1, early=0.0, dropped=0.0, abstain_missing=0.0, guess=0.0, **quiet)
    for habit in ("abstain_missing", "stall"):
        for rate in HABITS:
            second = first.model_copy(update={habit: rate})
            points.append({"grid": habit, "drift": 0.1, "rate": rate} | _point(first, second, False, options))
    return points


def _point(first: Faults, second: Faults, register: bool, options: Row) -> Row:
    """Missing evidence by both methods, under both rules, beside ``injected``: wrong for want of a passage.

    ``gave_up``: the questions of ``injected`` that rule 2 takes first. ``register``: whether the second method has one.
    """
    seed, resamples = options["seed"], options["resamples"]
    questions, gold, chunks = _benchmark(options["questions"])
    rows = [
        _classified(draw(questions, gold, faults, seed), chunks, with_register)
        for faults, with_register in ((first, False), (second, register))
    ]
    truth = [_injected(draw(questions, gold, faults, seed)) for faults in (first, second)]
    ids = [q.id for q in questions]

    def counted(key: str, wanted: Any) -> tuple[list[int], list[int]]:
        return tuple([int(q in side and side[q][key] == wanted) for q in ids] for side in rows)

    paper = counted("category", "missing_evidence")
    hidden = [
        sum(row["wrong_and_missing"] and row["category"] == "gave_up" for row in side.values()) for side in rows
    ]
    drop = bootstrap_difference(*paper, seed=seed, resamples=resamples)
    symmetric = counted("category_symmetric", "missing_evidence")
    n = len(ids)
    return {
        "questions": n,
        "injected": truth,
        "missing": [sum(side) for side in paper],
        "symmetric": [sum(side) for side in symmetric],
        "gave_up": hidden,
        "wrong_and_missing": [sum(side) for side in counted("wrong_and_missing", True)],
        "drop": sum(paper[0]) - sum(paper[1]),
        "low": round(n * drop.low, 3),
        "high": round(n * drop.high, 3),
        "drop_share": round((sum(paper[0]) - sum(paper[1])) / sum(paper[0]), 6) if sum(paper[0]) else None,
    }


@lru_cache(maxsize=2)
def _benchmark(n: int) -> tuple[list[Question], list[Gold], ChunkMap]:
    """``n`` questions of 2 to 4 hops, each with passages of its own."""
    questions, gold, chunks = [], [], []
    for i in range(n):
        hops = 2 + i % 3
        passages = [f"p{4 * i + h}" for h in range(hops)]
        chain = tuple(Hop(f"Fact {h} of question {i}?", f"value {i} {h}", p) for h, p in enumerate(passages))
        questions.append(Question(f"q{i:05}", f"What is asked in question {i}?"))
        gold.append(Gold(f"q{i:05}", (f"value {i} end",), tuple(passages), f"{hops}hop", hops, chain))
        chunks += [Chunk(p, "text", (Span(p, 0, 4),)) for p in passages]
    return questions, gold, ChunkMap(chunks)


def _classified(cases: dict[str, Case], chunks: ChunkMap, register: bool) -> dict[str, Row]:
    """Question id -> failure row, by classify_cell over records made from the cases' fates."""
    made = [_record(case, register) for case in cases.values()]
    scores = [_score(record, case) for record, case in zip(made, cases.values(), strict=True)]
    gold = {case.question.id: case.gold for case in cases.values()}
    rows = failures.classify_cell(made, scores, gold, chunks)
    return {row["qid"]: row for row in rows if row["judge"] == "llm"}


def _record(case: Case, register: bool) -> RunRecord:
    seen = _seen(case)
    kind = case.kind(len(seen) == len(case.fates))
    text = {"abstained": "I could not determine this.", "misread": case.wrong, "wrong": case.wrong}
    items = [
        {"id": f"R{h + 1}", "status": "resolved" if case.fates[h] in (ASKED, EARLY) else "active", "passages": []}
        for h in case.planned
    ]
    return RunRecord(
        qid=case.question.id,
        dataset="musique",
        setting="in process",
        run="executionrag" if register else "arag",
        seed=0,
        params_hash="",
        corpus_hash="",
        question=case.question.text,
        answer=text.get(kind, case.gold.answers[0]),
        short=None,
        mode="free",
        status="ok",
        stop_reason="",
        retrieved=tuple(Retrieved(p, 1, "semantic_search") for p in seen),
        events=(Event(1, "final_register", {"items": items}),) if register else (),
        forced=case.stalls,
    )


def _injected(cases: dict[str, Case]) -> int:
    """Questions not answered rightly for want of a passage, by the draws alone: wrong, abstained or out of budget."""
    return sum(len(_seen(case)) < len(case.fates) and case.kind(False) != "guess" for case in cases.values())


def _seen(case: Case) -> Sequence[str]:
    return [p for p, fate in zip(case.passages, case.fates, strict=True) if fate == ASKED]


def _score(record: RunRecord, case: Case) -> Row:
    right = float(record.answer == case.gold.answers[0])
    measures = dict.fromkeys(("contain", "llm_acc", "rule_acc"), right)
    return {"qid": record.qid, "seed": 0, "answer": record.answer, **measures}


def labels_alone(points: Sequence[Row]) -> dict[str, float | None]:
    """Drift rate -> the rate of early resolutions at which labels alone make the paper's drop; None where the grid
    does not reach it. Between two points of the grid by a straight line."""
    wanted = (PAPER["first"] - PAPER["second"]) / PAPER["first"]
    out = {}
    for drift in DRIFT_RATES:
        line = [(p["drop_share"], p["rate"]) for p in points if p["grid"] == "early" and p["drift"] == drift]
        pairs = [(a, b) for a, b in pairwise(line) if a[0] <= wanted <= b[0]]
        (x0, y0), (x1, y1) = pairs[0] if pairs else ((0, 0), (0, 0))
        out[f"{drift:g}"] = round(y0 + (wanted - x0) / (x1 - x0) * (y1 - y0), 4) if pairs else None
    return out
