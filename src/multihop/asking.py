"""One question by hand: answered live with its register shown as it changes, or its prompts shown as they were sent."""

from __future__ import annotations

from typing import Any

from multihop import running
from multihop.controller.state import NAMES
from multihop.data import splits
from multihop.errors import ConfigError, DataError
from multihop.methods.base import Tools, Trace
from multihop.session import Session
from multihop.types import Question


def _setting(session: Session, run: str, dataset: str | None, setting: str) -> str:
    params = session.params
    params.run(run)
    if dataset is not None and dataset not in params.datasets:
        raise ConfigError(f"unknown dataset {dataset!r}; params.yaml has: {', '.join(params.datasets)}")
    chosen = setting or next(iter(params.settings))
    if chosen not in params.settings:
        raise ConfigError(f"unknown setting {chosen!r}; params.yaml has: {', '.join(params.settings)}")
    return chosen


class PrintingTrace(Trace):
    """A trace that says what happens while it happens."""

    def event(self, step: int, kind: str, **data: Any) -> None:
        super().event(step, kind, **data)
        if line := describe(step, kind, data):
            print(line, flush=True)


def describe(step: int, kind: str, data: dict[str, Any]) -> str:
    """One event for a person; empty for what a person does not need."""
    if kind == "retrieve":
        query = data["query"] if isinstance(data["query"], str) else ", ".join(data["query"])
        found = " (asked before)" if data["repeat"] else f" -> {', '.join(data['chunk_ids']) or 'nothing'}"
        return f"[{step}] {data['tool']}: {query}{found}"
    if kind == "read":
        return f"[{step}] read_chunk: {', '.join(data['chunk_ids'])}"
    if kind in ("register", "final_register"):
        rows = [
            f"      {i['id']} {i['status']:<9}{i['question']}" + (f" -> {i['note']}" if i["note"] else "")
            for i in data["items"]
        ]
        return f"[{step}] register" + (" at the end" if kind == "final_register" else "") + "\n" + "\n".join(rows)
    if kind == "decision":
        return f"[{step}] can: {' '.join(data['valid'])}; does {NAMES[data['chosen']]}"
    if kind == "operation" and data.get("sufficient") is not None:
        missing = data["missing"] or "(not said)"
        return f"[{step}] enough: yes" if data["sufficient"] else f"[{step}] enough: no, missing: {missing}"
    if kind == "compress":
        return f"[{step}] compress: {data['before_tokens']} -> {data['after_tokens']} tokens"
    if kind == "fallback":
        return f"[{step}] {data['what']}: {data['to']} instead"
    if kind in ("nudge", "reminder", "forced", "update_failed", "tool_error"):
        detail = data.get("why") or data.get("message") or data.get("open") or ""
        return f"[{step}] {kind} {detail}".rstrip()
    return ""


async def ask(session: Session, text: str, dataset: str, run: str, setting: str) -> None:
    """Raises DataError for an empty question, ConfigError for unknown names, ReplayMiss without a model."""
    if not text.strip():
        raise DataError("the question is empty")
    chosen = _setting(session, run, dataset, setting)
    session.begin("ask", session.params.readers_of([(dataset, chosen)]))
    cell = running.open_cell(session, run, dataset, chosen)
    import random

    trace = PrintingTrace()
    question = Question("ask", " ".join(text.split()))
    rng = random.Random("0:ask")
    tools = Tools(cell.retriever, cell.client, cell.prompts, trace, 0, rng, cell.trained(0), cell.structure)
    print(f"run {run}, {dataset}, setting {chosen}: reader {cell.client.reader.model}")
    answer = await cell.method.answer(question, tools)
    used = sum(u.prompt_tokens + u.completion_tokens for u in trace.usage.values())
    calls = sum(u.calls for u in trace.usage.values())
    print(f"\nAnswer ({answer.stop_reason}): {answer.text}")
    print(f"{calls} calls, {used} tokens, {trace.retrieval_calls} searches, {session.meter.live_calls} live")


async def show_prompts(session: Session, run: str, qid: str, setting: str, call: int) -> None:
    """Replay a question and print each request's messages. Raises DataError for an unknown question."""
    chosen = _setting(session, run, None, setting)
    for dataset, cell_setting in session.params.cells(run):
        if cell_setting != chosen:
            continue
        for question in splits.questions(session.prepared(dataset)):
            if question.id == qid:
                await _show(session, run, dataset, chosen, question, call)
                return
    raise DataError(f"run {run} has no question {qid!r}; ids stand in data/prepared/<dataset>/ids.txt")


async def _show(session: Session, run: str, dataset: str, setting: str, question: Question, call: int) -> None:
    cell = running.open_cell(session, run, dataset, setting)
    requests: list[dict[str, Any]] = []
    get = session.store.get

    def spy(request: dict[str, Any], key: str | None = None) -> dict[str, Any] | None:
        requests.append(request)
        return get(request, key)

    session.store.get = spy  # type: ignore[method-assign]
    await cell.answer(question, session.params.seeds_of(run)[0])
    for number, request in enumerate(requests, 1):
        if call and number != call:
            continue
        print(f"===== call {number} of {len(requests)}: {request['model']}, temperature {request['temperature']}")
        for message in request["messages"]:
            print(f"--- {message['role']}\n{message.get('content') or message.get('tool_calls')}")
