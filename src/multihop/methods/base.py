"""What a method is, and the tools it is given.

A method has a ``name``, a pydantic ``Params`` and ``async answer(question, tools) -> Answer``. It opens no file,
reads no environment variable, catches no provider error, prints nothing and does not know its dataset. See
docs/adding-a-method.md.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict

from multihop.llm import structured
from multihop.llm.client import ChatClient, Reply
from multihop.llm.structured import Structured
from multihop.llm.tool_calling import Action, Turn, action_schema, action_turn, native_turn
from multihop.retrieval.index import Retriever
from multihop.retrieval.tokens import count_tokens
from multihop.types import Answer, Event, Hit, Question, Retrieved, Usage


class MethodParams(BaseModel):
    """Base of every method's Params: unknown keys and wrong types are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Method(Protocol):
    name: str
    mode: Literal["short", "free"]
    """Its answer contract: a marked short answer (the default), or free text."""
    Params: type[MethodParams]
    params: Any
    # A method that is trained also says ``trained_as``: "controller", or "baselines" (params.yaml: ``trained``).

    async def answer(self, question: Question, tools: Tools) -> Answer:
        """Answer one question. Everything noteworthy goes to ``tools.trace``."""
        ...


@dataclass
class Trace:
    """What happened to one question, in order; becomes the run record."""

    events: list[Event] = field(default_factory=list)
    retrieved: dict[str, Retrieved] = field(default_factory=dict)
    read: dict[str, None] = field(default_factory=dict)
    usage: dict[str, Usage] = field(default_factory=dict)
    retrieved_tokens: int = 0
    seed_tokens: int = 0
    retrieval_calls: int = 0
    loops: int = 0
    forced: bool = False

    def event(self, step: int, kind: str, **data: Any) -> None:
        self.events.append(Event(step, kind, data))

    def surface(self, chunk_ids: list[str] | tuple[str, ...], step: int, tool: str) -> list[str]:
        """Record chunks as retrieved; returns those that are new."""
        new = [c for c in dict.fromkeys(chunk_ids) if c not in self.retrieved]
        for chunk_id in new:
            self.retrieved[chunk_id] = Retrieved(chunk_id, step, tool)
        return new

    def search(
        self,
        step: int,
        tool: str,
        query: Any,
        chunk_ids: list[str],
        scores: list[float],
        tokens: int,
        repeat: bool = False,
    ) -> list[str]:
        """Record one retrieval call; returns the newly surfaced chunk ids."""
        self.retrieval_calls += 1
        self.retrieved_tokens += tokens
        if tool == "seed":
            self.seed_tokens += tokens
        self.event(step, "retrieve", tool=tool, query=query, chunk_ids=chunk_ids, scores=scores, repeat=repeat)
        return self.surface(chunk_ids, step, tool)

    def used(self, role: str, usage: Usage) -> None:
        self.usage[role] = self.usage.get(role, Usage()) + usage


@dataclass
class Model:
    """One role's access to the language model, on behalf of one question."""

    role: str
    client: ChatClient
    trace: Trace
    sample: int
    repair_prompt: str

    async def chat(
        self, messages: list[dict[str, Any]], *, max_tokens: int | None = None, agent: bool = False
    ) -> Reply:
        """A plain reply. ``agent``: at the reader's agent temperature instead of its own."""
        temperature = self.client.reader.agent_temperature if agent else None
        reply = await self.client.chat(
            messages, role=self.role, max_tokens=max_tokens, temperature=temperature, sample=self.sample
        )
        self.trace.used(self.role, reply.usage)
        return reply

    async def json(
        self, messages: list[dict[str, Any]], model: type[BaseModel], *, max_tokens: int | None = None
    ) -> Structured:
        """A reply of the given shape, at temperature 0 (App. B); ``value`` is None where none came."""
        schema = structured.strict_schema(model, bounded=self.client.endpoint.kind == "embedded")
        form = structured.response_format(schema, model.__name__.lower(), self.client.endpoint.structured)

        async def ask(history: list[dict[str, Any]]) -> Reply:
            return await self.client.chat(
                history,
                role=self.role,
                max_tokens=max_tokens,
                temperature=0.0,
                sample=self.sample,
                response_format=form,
            )

        result = await structured.complete(ask, messages, model, self.repair_prompt)
        self.trace.used(self.role, result.usage)
        return result

    @property
    def tool_mode(self) -> str:
        return self.client.endpoint.tool_calling

    async def act(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], *, max_tokens: int | None = None
    ) -> Turn:
        """One turn of an agent: tool calls, or the final answer (no calls)."""
        temperature = self.client.reader.agent_temperature
        if self.tool_mode == "native":
            reply = await self.client.chat(
                messages,
                role=self.role,
                max_tokens=max_tokens,
                temperature=temperature,
                sample=self.sample,
                tools=tools,
            )
            self.trace.used(self.role, reply.usage)
            return native_turn(reply)
        form = structured.response_format(action_schema(tools), "action", self.client.endpoint.structured)

        async def ask(history: list[dict[str, Any]]) -> Reply:
            return await self.client.chat(
                history,
                role=self.role,
                max_tokens=max_tokens,
                temperature=temperature,
                sample=self.sample,
                response_format=form,
            )

        result = await structured.complete(ask, messages, Action, self.repair_prompt)
        self.trace.used(self.role, result.usage)
        if result.value is None:
            # Prose where an action was due is an answer, as it is with native tool calling; broken JSON is none.
            self.trace.event(self.trace.loops + 1, "format_fallback", error=result.error)
            text = "" if result.raw.lstrip().startswith(("{", "[")) else result.raw
            return Turn(text, (), result.usage, raw=result.raw)
        return action_turn(result.value, result.raw, result.usage)


@dataclass
class Tools:
    """Everything a method may use for one question."""

    retriever: Retriever
    client: ChatClient
    prompts: Mapping[str, str]
    """Prompt texts by file name: the method's own folder over prompts/shared."""
    trace: Trace
    seed: int
    rng: random.Random
    """Seeded by (run seed, question id): independent of order, workers and shards."""
    trained: Any = None
    """What this run's method was trained to (params.yaml: ``trained``); None for a method without training."""

    def llm(self, role: str = "reader") -> Model:
        return Model(role, self.client, self.trace, self.seed, self.prompts["repair"])

    def retrieve(
        self, query: str, k: int, *, step: int = 1, lexical: bool = False, tool: str = "retrieve"
    ) -> list[Hit]:
        """Dense (or BM25) top-k chunks, recorded with their full texts as read."""
        hits = self.retriever.bm25(query, k) if lexical else self.retriever.dense(query, k)
        self.record_search(hits, query, step, tool)
        return hits

    def record_search(self, hits: list[Hit], query: str, step: int, tool: str) -> list[str]:
        """Record a search whose hits are shown in full; returns the chunk ids that are new to this question."""
        tokens = sum(count_tokens(self.text(h.chunk_id)) for h in hits if h.chunk_id not in self.trace.read)
        new = self.trace.search(step, tool, query, [h.chunk_id for h in hits], [h.score for h in hits], tokens)
        self.trace.read.update(dict.fromkeys(h.chunk_id for h in hits))
        return new

    def text(self, chunk_id: str) -> str:
        return self.retriever.text(chunk_id)

    def numbered(self, chunk_ids: list[str]) -> str:
        """Passages as every prompt shows them: id in brackets, then the text."""
        return "\n\n".join(f"[{c}] {self.text(c)}" for c in chunk_ids)


def split_answer(text: str) -> tuple[str, bool]:
    """(short answer, marker found): what follows the last "Answer:", else the last non-empty line."""
    if markers := list(re.finditer(r"answer:", text, re.IGNORECASE)):
        tail = text[markers[-1].end() :].strip()
        return (tail.splitlines()[0].strip() if tail else ""), True
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[-1] if lines else ""), False
