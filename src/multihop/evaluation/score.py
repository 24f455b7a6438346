"""From run records to one row of scores per (question, seed): the score stage's first half.

Every question of the question file counts for every seed. Missing, duplicated or foreign ids are
refused; an error is a row with status "error" that scores 0. What judging and extracting cost is
kept apart from what the method cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from multihop.errors import DataError, MultihopError
from multihop.evaluation.answers import contain, contain_strict, contain_word, gold_answers, score_answer
from multihop.evaluation.judge import ChatClient, Prompts, Verdict, extract, judge, rule_verdict
from multihop.evaluation.support import ChunkMap
from multihop.gathering import gathered
from multihop.pricing import Prices
from multihop.types import Gold, RunRecord, Usage

Failures = tuple[type[Exception], ...]
MOST_MISSED = 5
"""Calls without an answer that a cell gets past to ask the others; with one more, the endpoint is taken to be down."""
EVENTS = ("final",)
"""The kinds of a record's events that a score row looks at."""
ANSWER_METRICS = (
    "em", "f1", "em_aliases", "f1_aliases", "contain", "contain_strict", "contain_word", "llm_acc", "rule_acc"
)  # fmt: skip


class Unjudged(MultihopError):
    """Extractions or judgements that got no answer. ``count``: how many."""

    def __init__(self, message: str, count: int):
        super().__init__(message)
        self.count = count


@dataclass(frozen=True, slots=True)
class Cell:
    """What the rows of one cell are scored against."""

    dataset: str
    setting: str
    run: str
    ids: tuple[str, ...]
    """Every question of the question file; with ``seeds`` the denominator."""
    seeds: tuple[int, ...]
    gold: Mapping[str, Gold]
    chunks: ChunkMap
    reader_model: str
    prices: Prices


async def score_cell(
    records: Iterable[RunRecord],
    cell: Cell,
    judge_client: ChatClient,
    prompts: Prompts,
    *,
    extract_client: ChatClient | None = None,
    concurrency: int = 8,
    recordable: Failures = (),
    unanswered: Failures = (),
) -> list[dict[str, Any]]:
    """Rows sorted by (qid, seed). All extractions are asked before the first judgement, so that a
    local server keeps one prompt prefix at a time. Without ``extract_client`` the judge's model extracts.

    ``recordable``: the client's per-request failures (a refusal, a context overflow) that become
    an unparsed verdict or an empty short answer. ``unanswered``: those after which the others are
    still asked, and then Unjudged is raised; every other error passes through, in an ExceptionGroup.
    Raises DataError for wrong ids or records of another cell, ConfigError for a model without price.
    """
    ordered = check_records(records, cell)
    live = [r for r in ordered if r.status != "error"]
    free = [r for r in live if r.mode == "free"]
    extracting, missed = extract_client or judge_client, _Missed(f"run {cell.run!r} on {cell.dataset}", unanswered)
    spans = await gathered(free, lambda r: missed.but(_extract(extracting, prompts, r, recordable)), concurrency)
    shorts: dict[tuple[str, int], tuple[str, Usage]] = {_key(r): (short_answer(r), Usage()) for r in live}
    shorts.update(zip(map(_key, free), spans, strict=True))
    judging = judge_client, prompts
    verdicts = await gathered(live, lambda r: missed.but(_judge(*judging, r, cell, recordable)), concurrency)
    missed.refuse()
    judged = dict(zip(map(_key, live), verdicts, strict=True))
    nothing = ("", Usage()), Verdict(correct=False, strict=False, reply="")
    return [row(r, cell, *shorts.get(_key(r), nothing[0]), judged.get(_key(r), nothing[1])) for r in ordered]


@dataclass
class _Missed:
    """What got no answer, so far."""

    where: str
    failures: Failures
    errors: list[Exception] = field(default_factory=list)

    async def but(self, job: Awaitable[Any]) -> Any:
        """The job's result, or None where it failed so."""
        try:
            return await job
        except self.failures as e:
            self.errors.append(e)
            if len(self.errors) > MOST_MISSED:
                self.refuse()
            return None

    def refuse(self) -> None:
        if count := len(self.errors):
            raise Unjudged(
                f"{self.where}: {count} calls of the judge got no answer, the first: {self.errors[0]}; "
                "what is answered is stored: run the same command again",
                count,
            )


def check_records(records: Iterable[RunRecord], cell: Cell) -> list[RunRecord]:
    """The records sorted by (qid, seed). Raises DataError unless they are exactly ids x seeds."""
    ordered = sorted(records, key=_key)
    where = f"run {cell.run!r} on {cell.dataset} / {cell.setting}"
    for r in ordered:
        if (r.dataset, r.setting, r.run) != (cell.dataset, cell.setting, cell.run):
            other = f"run {r.run!r} on {r.dataset} / {r.setting}"
            raise DataError(
                f"{where}: question {r.qid!r} belongs to {other}; score each file as its own cell"
            )
    if len({r.corpus_hash for r in ordered}) > 1:
        raise DataError(f"{where}: records of more than one corpus; delete the file and run the cell again")
    expected = {(q, s) for q in cell.ids for s in cell.seeds}
    counts = Counter(map(_key, ordered))
    problems = {
        "duplicated": [k for k, n in counts.items() if n > 1],
        "foreign": [k for k in counts if k not in expected],
        "missing": [k for k in expected if k not in counts],
        "without gold": [(q, s) for q, s in expected if q not in cell.gold],
    }
    for what, keys in problems.items():
        if keys:
            shown = ", ".join(f"{q!r} (seed {s})" for q, s in sorted(keys)[:3])
            raise DataError(
                f"{where}: {len(keys)} of {len(expected)} ids {what}, such as {shown}; "
                "the run and the question file must agree: run the cell again"
            )
    return ordered


def short_answer(record: RunRecord) -> str:
    """The marked short answer, or the last line with text where the marker is missing."""
    if record.short is not None:
        return record.short
    lines = [line.strip() for line in record.answer.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def message(record: RunRecord) -> str:
    """What Contain and the model judge read: the whole message of a free answer; what follows the marker of a
    short one, so that a reader's rationale is not taken for its answer."""
    return record.answer if record.mode == "free" else short_answer(record)


def row(record: RunRecord, cell: Cell, short: str, extracted: Usage, verdict: Verdict) -> dict[str, Any]:
    """One score row; the field list is the one of docs and of the report's CSV export."""
    gold = cell.gold[record.qid]
    identity = {
        "qid": record.qid,
        "seed": record.seed,
        "dataset": cell.dataset,
        "setting": cell.setting,
        "run": cell.run,
        "type": gold.type,
        "hops": gold.hops,
        "gold_exact": gold.exact,
        "status": record.status,
        "stop_reason": record.stop_reason,
        "forced": record.forced,
        "mode": record.mode,
        "answer": record.answer,
        "short": short,
        "answer_words": len(record.answer.split()),
    }
    judged = {
        "judge_reply": verdict.reply,
        "judge_strict": float(verdict.strict),
        "judge_unparsed": verdict.unparsed,
        "judge_calls": verdict.usage.calls,
        "judge_tokens": _tokens(verdict.usage),
        "extract_tokens": _tokens(extracted),
    }
    metrics = _answers(record, cell, gold, short, verdict)
    return {**identity, **metrics, **judged, **_support(record, cell, gold), **_efficiency(record, cell)}


def _answers(record: RunRecord, cell: Cell, gold: Gold, short: str, verdict: Verdict) -> dict[str, float]:
    """Contain and the model judge read the message; EM, F1 and the rule judge the short answer."""
    if record.status == "error":
        return dict.fromkeys(ANSWER_METRICS, 0.0)
    answers = gold_answers(gold)
    return {
        **score_answer(cell.dataset, short, gold),
        "contain": contain(message(record), answers[0]),
        "contain_strict": contain_strict(message(record), answers[0]),
        "contain_word": contain_word(message(record), answers[0]),
        "llm_acc": float(verdict.correct),
        "rule_acc": float(rule_verdict(short, answers)),
    }


def _support(record: RunRecord, cell: Cell, gold: Gold) -> dict[str, Any]:
    support = cell.chunks.support(record, gold)
    return {
        "support_recall": support.recall,
        "support_found": support.retrieved,
        "support_total": len(support.passages),
        "support_unmapped": len(support.passages) - support.mapped,
        "support_read": sum(r is True for r in support.read),
        "hop_found": list(support.found),
    }


def _efficiency(record: RunRecord, cell: Cell) -> dict[str, float | None]:
    """The method's own use, over all its roles; USD is logical (no provider-cache discount)."""
    used = sum(record.usage.values(), Usage())
    return {
        "retrieved_tokens": record.retrieved_tokens,
        "seed_tokens": record.seed_tokens,
        "prompt_tokens": used.prompt_tokens,
        "completion_tokens": used.completion_tokens,
        "total_tokens": _tokens(used),
        "final_prompt_tokens": _final_prompt_tokens(record),
        "llm_calls": used.calls,
        "repairs": used.repairs,
        "retrieval_calls": record.retrieval_calls,
        "loops": record.loops,
        "usd": cell.prices.usd(used, cell.reader_model),
    }


def _final_prompt_tokens(record: RunRecord) -> int | None:
    """Tokens of the evidence that the last final answer call was shown (paper 2, Metrics); None where there was no
    such call: an agent's answer, an error."""
    shown = [event.data["evidence_tokens"] for event in record.events if event.kind in EVENTS]
    return shown[-1] if shown else None


async def _extract(
    client: ChatClient, prompts: Prompts, record: RunRecord, recordable: Failures
) -> tuple[str, Usage]:
    try:
        return await extract(client, prompts, record.question, record.answer)
    except recordable:
        return "", Usage(calls=1)


async def _judge(
    client: ChatClient, prompts: Prompts, record: RunRecord, cell: Cell, recordable: Failures
) -> Verdict:
    gold = gold_answers(cell.gold[record.qid])[0]
    try:
        return await judge(client, prompts, message(record), gold)
    except recordable as e:
        reply = f"[{type(e).__name__}: {e}]"
        return Verdict(correct=False, strict=False, reply=reply, unparsed=True, usage=Usage(calls=1))


def _tokens(usage: Usage) -> int:
    return usage.prompt_tokens + usage.completion_tokens


def _key(record: RunRecord) -> tuple[str, int]:
    return record.qid, record.seed
