"""Why each wrong answer is wrong: paper 1's Appendix E to the letter, and what it leaves out.

Appendix E gives every wrong answer the first category that fits:

1. judge error       Contain-Match holds, the judge says no
2. gave up           an abstention phrase, or an answer forced by the budget (App. B)
3. reasoning error   (a) every supporting passage was retrieved, or
                     (b) only where there is a register: it was closed while one was missing
4. missing evidence  a supporting passage was never retrieved, and no false resolution

Rule 3b can only move the register method's cases out of "missing evidence". ``category_symmetric``
is the same without 3b, and ``wrong_and_missing`` counts the missing passage whatever the label.
Errors ("system_error") and questions none of whose gold passages is in the corpus ("unmappable")
stand beside the four.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from multihop.analysis.abstention import find_abstention
from multihop.errors import DataError
from multihop.evaluation.support import ChunkMap, Support
from multihop.types import Gold, RunRecord

Row = Mapping[str, Any]
CATEGORIES = ("judge_error", "gave_up", "reasoning_error", "missing_evidence", "unmappable", "system_error")
PAPER_CATEGORIES = CATEGORIES[:4]
JUDGES = {"llm": "llm_acc", "rule": "rule_acc"}
"""Judge -> the score column in which 0 means wrong."""
_OPEN = ("pending", "active")
EVENTS = ("register", "final_register")
"""The kinds of a record's events that a category looks at: snapshots of the register."""


def register_closed(record: RunRecord) -> bool | None:
    """At answer time no item is pending or active and at least one is resolved; None without a register."""
    snapshots = [e.data["items"] for e in record.events if e.kind in EVENTS]
    if not snapshots:
        return None
    statuses = [item["status"] for item in snapshots[-1]]
    return "resolved" in statuses and not any(s in _OPEN for s in statuses)


def premature_resolutions(record: RunRecord, gold: Gold, chunks: ChunkMap) -> int:
    """How often an item became resolved while its listed passages held no gold passage.

    Read off consecutive register snapshots, independent of the final category; an item that is
    opened and resolved again counts again. 0 where the corpus holds none of the gold passages.
    """
    gold_chunks = frozenset().union(*(chunks.chunks_of(p) for p in gold.supporting))
    if not gold_chunks:
        return 0
    before: dict[Any, str] = {}
    count = 0
    for event in record.events:
        if event.kind not in EVENTS:
            continue
        for item in event.data["items"]:
            resolved_now = item["status"] == "resolved" and before.get(item["id"]) != "resolved"
            count += resolved_now and not gold_chunks.intersection(item.get("passages") or ())
            before[item["id"]] = item["status"]
    return count


def classify(
    *, status: str, contains: bool, phrase: str | None, forced: bool, support: Support, closed: bool | None
) -> tuple[str, str]:
    """(category, reason) of one wrong answer, the first rule that fits.

    ``closed`` is None where the run has no register, and passing None always turns rule 3b off.
    """
    if status == "error":
        return "system_error", "error"
    if contains:
        return "judge_error", "contain"
    if phrase is not None:
        return "gave_up", "phrase"
    if forced:
        return "gave_up", "forced"
    if support.mapped == 0:
        return "unmappable", "unmapped"
    if support.missing == 0:
        return "reasoning_error", "3a"
    if closed:
        return "reasoning_error", "3b"
    return "missing_evidence", "missing"


def classify_cell(
    records: Iterable[RunRecord], scores: Sequence[Row], gold: Mapping[str, Gold], chunks: ChunkMap
) -> list[dict[str, Any]]:
    """One row per wrong (qid, seed, judge), sorted, from the very predictions that were scored.

    Raises DataError when records and score rows are not of the same questions, or when the
    categories of a judge do not add up to its wrong answers.
    """
    by_key = {(r.qid, r.seed): r for r in records}
    if by_key.keys() != {(s["qid"], s["seed"]) for s in scores}:
        raise DataError("failures: records and scores hold different questions; score the cell again")
    rows = []
    for score in sorted(scores, key=lambda s: (s["qid"], s["seed"])):
        record = by_key[score["qid"], score["seed"]]
        if record.answer != score["answer"]:
            raise DataError(f"failures: question {record.qid!r} was scored on another answer; score it again")
        wrong = [judge for judge, column in JUDGES.items() if score[column] == 0]
        rows += [{"judge": judge, **_failure(record, score, gold[record.qid], chunks)} for judge in wrong]
    check_totals(rows, scores)
    return rows


def _failure(record: RunRecord, score: Row, gold: Gold, chunks: ChunkMap) -> dict[str, Any]:
    support = chunks.support(record, gold)
    found = find_abstention(record.answer)
    closed = register_closed(record)
    facts = {
        "status": record.status,
        "contains": score["contain"] == 1,
        "phrase": found.phrase if found else None,
        "forced": record.forced,
        "support": support,
    }
    category, reason = classify(**facts, closed=closed)
    return {
        "qid": record.qid,
        "seed": record.seed,
        "type": gold.type,
        "hops": gold.hops,
        "gold_exact": gold.exact,
        "forced": record.forced,
        "gold_total": len(support.passages),
        "gold_mapped": support.mapped,
        "gold_missing": support.missing,
        "category": category,
        "reason": reason,
        "category_symmetric": classify(**facts, closed=None)[0],
        # An error never searched to the end, so its unretrieved passages say nothing.
        "wrong_and_missing": record.status != "error" and support.missing > 0,
        "register_closed": closed,
        "premature_resolutions": premature_resolutions(record, gold, chunks),
        "phrase": facts["phrase"],
        "phrase_but_answer": bool(found and found.phrase_but_answer),
    }


def check_totals(failures: Iterable[Row], scores: Sequence[Row]) -> None:
    """Raises DataError unless each judge's categories sum to its wrong answers."""
    counted = Counter(f["judge"] for f in failures if f["category"] in CATEGORIES)
    for judge, column in JUDGES.items():
        wrong = sum(s[column] == 0 for s in scores)
        if counted[judge] != wrong:
            raise DataError(f"failures: {counted[judge]} categorised, {wrong} wrong by the {judge} judge")


def table(
    failures: Iterable[Row], judge: str, *, symmetric: bool = False, forced: bool = True
) -> dict[str, Any]:
    """The failure table of one run (Tables 12 and 14): counts, shares of its own failures, extras.

    ``symmetric``: rule 3b off. ``forced=False``: forced answers left out, their share of the
    failures beside the rest. Shares are 0..1, None where there is no failure.
    """
    own = [f for f in failures if f["judge"] == judge]
    kept = [f for f in own if forced or not f["forced"]]
    counts = Counter(f["category_symmetric" if symmetric else "category"] for f in kept)
    reasons = Counter(f["reason"] for f in kept)
    return {
        "failures": len(kept),
        "counts": {c: counts[c] for c in CATEGORIES},
        "shares": {c: _share(counts[c], len(kept)) for c in CATEGORIES},
        "reasoning_3a": reasons["3a"],
        "reasoning_3b": 0 if symmetric else reasons["3b"],
        "wrong_and_missing": sum(f["wrong_and_missing"] for f in kept),
        "premature_resolutions": sum(f["premature_resolutions"] for f in kept),
        "with_premature_resolution": sum(f["premature_resolutions"] > 0 for f in kept),
        "phrase_but_answer": sum(f["phrase_but_answer"] for f in kept),
        "forced": sum(f["forced"] for f in own),
        "forced_share": _share(sum(f["forced"] for f in own), len(own)),
    }


def by_hops(failures: Iterable[Row], judge: str, **options: bool) -> dict[int, dict[str, Any]]:
    """``table`` per hop count, ascending (Tables 13 and 15)."""
    return _split(failures, lambda f: f["hops"], judge, **options)


def by_type(failures: Iterable[Row], judge: str, **options: bool) -> dict[str, dict[str, Any]]:
    """``table`` per question type, in alphabetical order."""
    return _split(failures, lambda f: f["type"], judge, **options)


def both_forced(failures: Sequence[Row], judge: str, **options: bool) -> dict[str, dict[str, Any]]:
    """``table`` with every failure and without the forced answers."""
    return {
        "all": table(failures, judge, **options),
        "without_forced": table(failures, judge, forced=False, **options),
    }


def by_setting(cells: Mapping[str, Sequence[Row]], judge: str, **options: bool) -> dict[str, dict[str, Any]]:
    """``table`` per setting (embedder), from setting -> failure rows of one run and dataset."""
    return {setting: table(rows, judge, **options) for setting, rows in sorted(cells.items())}


def exact_only(failures: Iterable[Row]) -> list[Row]:
    """The rows whose gold passages are labelled rather than matched (``gold_exact``)."""
    return [f for f in failures if f["gold_exact"]]


def _split(
    failures: Iterable[Row], key: Callable[[Row], Hashable], judge: str, **options: bool
) -> dict[Any, dict[str, Any]]:
    groups: dict[Any, list[Row]] = {}
    for f in failures:
        if f["judge"] == judge:
            groups.setdefault(key(f), []).append(f)
    return {k: table(groups[k], judge, **options) for k in sorted(groups)}


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
