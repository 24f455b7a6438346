"""DynaKRAG's operations, executed: each takes an evidence state and returns the next one (paper 2, "Unified
Evidence-Action Framework"). What is valid is decided in :mod:`multihop.controller.validity`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pydantic import BaseModel, Field

from multihop.controller import bridge, features
from multihop.controller.state import NAMES, EvidenceState, Limits, Step, initial
from multihop.llm.structured import Structured
from multihop.methods.base import Tools
from multihop.methods.documents import Sentence, by_document, numbered_sentences, titled_sentences
from multihop.retrieval.sentences import simple_spans
from multihop.retrieval.tokens import count_tokens
from multihop.types import Hit, Usage

FRONTIER = 50
"""Length of the initial ranking."""


class Sufficiency(BaseModel):
    """What the answer model says about the evidence."""

    found: str = Field("", max_length=120)
    """The facts that the passages give; this and what is missing come first, so that the verdict rests on them."""
    missing: str = Field("", max_length=120)
    sufficient: bool


class Snippets(BaseModel):
    """Which numbered sentences the answer rests on."""

    keep: list[int] = Field(max_length=8)


@dataclass(frozen=True)
class Workspace:
    """What an operation works with, for one question."""

    tools: Tools
    limits: Limits
    check_tokens: int = 128
    rewrite_tokens: int = 32

    async def run(self, action: str, state: EvidenceState) -> EvidenceState:
        """The state after ``action`` (any code but T and C), recorded as an ``operation`` event."""
        after = await _EXECUTE[action](self, state)
        step = after.history[-1]
        data = {"action": action, "new": list(step.new), "failed": step.failed}
        if step.query is not None:
            data["query"] = step.query
        if step.sufficient is not None:
            data |= {"sufficient": step.sufficient, "missing": after.gap}
        self.tools.trace.event(after.step, "operation", **data)
        return after

    # -- the four that retrieve

    async def retrieve_more(self, state: EvidenceState) -> EvidenceState:
        """Advance the initial ranking by the next unseen documents."""
        room = self._room(state)
        chosen, cursor = [], state.cursor
        for rank, (chunk_id, score) in enumerate(state.frontier[state.cursor :], state.cursor + 1):
            if len(chosen) == room:
                break
            cursor = rank
            if chunk_id not in state.docs:
                chosen.append(Hit(chunk_id, rank, score))
        return self._merge(state, "R", state.question, chosen, cursor=cursor)

    async def gap_query(self, state: EvidenceState) -> EvidenceState:
        """Search for what the last check said is missing; the gap is used up."""
        query = features.gap_text(state)
        return self._merge(state, "G", query, self._unseen(state, query), gap="", latest_query=query)

    async def rewrite_query(self, state: EvidenceState) -> EvidenceState:
        """Reformulate the latest query with the evidence; nothing is searched where it comes back the same."""
        messages = self.tools.messages(
            "rewrite", evidence=self._openings(state), query=state.latest_query, question=state.question
        )
        reply = await self.tools.llm("control").chat(messages, max_tokens=self.rewrite_tokens)
        query = _one_line(reply.text)
        known = {_key(q) for q in (*state.queries, state.question)}
        if not query or _key(query) in known:
            why = "empty" if not query else "repeat"
            self.tools.trace.event(state.step + 1, "parse_failed", what="rewrite", error=why)
            failed = Step("W", query or None, failed=True, tokens=_tokens(reply.usage), llm_calls=1)
            return replace(state, rewrite_spent=True, history=(*state.history, failed))
        return self._merge(state, "W", query, self._unseen(state, query), latest_query=query, usage=reply.usage)

    async def bridge_entity_expand(self, state: EvidenceState) -> EvidenceState:
        """Search around the best bridge candidate."""
        best = state.bridges[0]
        return self._merge(
            state,
            "B",
            best.query,
            self._unseen(state, best.query),
            latest_query=best.query,
            used_entities=(*state.used_entities, best.text),
        )

    # -- the check

    async def sufficiency_check(self, state: EvidenceState) -> EvidenceState:
        """Ask the answer model whether the evidence supports an answer; unusable replies count as negative."""
        passages = self.tools.numbered(list(state.docs))
        messages = self.tools.messages("check", passages=passages, question=state.question)
        reply = await self.tools.llm("control").json(messages, Sufficiency, max_tokens=self.check_tokens)
        self._note_failure(state.step + 1, "sufficiency", reply)
        verdict = reply.value or Sufficiency(sufficient=False)
        gap = "" if verdict.sufficient else _one_line(verdict.missing)
        if not verdict.sufficient and not gap and reply.value is not None:
            self.tools.trace.event(state.step + 1, "parse_failed", what="gap", error="negative without a gap")
        step = Step(
            "S",
            failed=reply.value is None,
            sufficient=verdict.sufficient,
            tokens=_tokens(reply.usage),
            llm_calls=reply.usage.calls,
        )
        return replace(
            state,
            gap=gap,
            sufficient=verdict.sufficient,
            checked_docs=len(state.docs),
            history=(*state.history, step),
        )

    # -- after the search

    async def compress(self, question: str, docs: tuple[str, ...], step: int) -> str | None:
        """A few mutually supporting sentences with their titles as the reader's context; None: keep everything.

        An unusable reply keeps the documents whole and says so (``compress`` event, fallback).
        """
        numbered = [(c, n, s) for c in docs for n, s in enumerate(self._body(c))]
        sentences = numbered_sentences(numbered, self.tools)
        messages = self.tools.messages("compress", sentences=sentences, question=question)
        reply = await self.tools.llm("control").json(messages, Snippets, max_tokens=64)
        self._note_failure(step, "compress", reply)
        wanted = reply.value.keep if reply.value else []
        kept = [numbered[n - 1] for n in sorted(set(wanted)) if 1 <= n <= len(numbered)][:8]
        context = titled_sentences(by_document(kept), self.tools) if kept else None
        self._note_compression(step, docs, kept, context)
        return context

    def _note_compression(self, step: int, docs: tuple[str, ...], kept: list[Sentence], context: str | None) -> None:
        before = count_tokens(self.tools.numbered(list(docs)))
        self.tools.trace.event(
            step,
            "compress",
            kept=[[chunk_id, n] for chunk_id, n, _ in kept],
            fallback=context is None,
            before_tokens=before,
            after_tokens=before if context is None else count_tokens(context),
        )

    # -- inside

    def _room(self, state: EvidenceState) -> int:
        return max(0, min(self.limits.per_search, self.limits.docs - len(state.docs)))

    def _unseen(self, state: EvidenceState, query: str) -> list[Hit]:
        room = self._room(state)
        hits = self.tools.retriever.dense(query, len(state.docs) + room)
        return [h for h in hits if h.chunk_id not in state.docs][:room]

    def _merge(
        self, state: EvidenceState, action: str, query: str, hits: list[Hit], usage: Usage | None = None, **changes
    ) -> EvidenceState:
        """The state with the documents of ``hits`` and one step more; bridge candidates are found anew."""
        self.tools.record_search(hits, query, state.step + 1, NAMES[action])
        new = tuple(h.chunk_id for h in hits)
        step = Step(
            action,
            query,
            new,
            failed=not new,
            tokens=_tokens(usage) if usage else 0,
            retrievals=1,
            llm_calls=usage.calls if usage else 0,
        )
        docs = state.docs + new
        used = changes.pop("used_entities", state.used_entities)
        found = bridge.candidates(state.question, docs, used, self.tools.retriever)
        return replace(
            state,
            docs=docs,
            queries=(*state.queries, query),
            bridges=found,
            used_entities=used,
            history=(*state.history, step),
            **changes,
        )

    def _openings(self, state: EvidenceState) -> str:
        """Title and first two sentences of each document: what a rewrite is shown."""
        lines = []
        for chunk_id in state.docs:
            lines.append(f"{self.tools.retriever.title_of(chunk_id)}: {' '.join(self._body(chunk_id)[:2])}")
        return "\n".join(lines)

    def _body(self, chunk_id: str) -> list[str]:
        """The sentences of a chunk as they stand in it, without the title line."""
        text = self.tools.text(chunk_id)
        body = text.partition("\n")[2] if self.tools.retriever.title_of(chunk_id) else text
        return [body[a:b] for a, b in simple_spans(body)]

    def _note_failure(self, step: int, what: str, reply: Structured) -> None:
        if reply.value is None:
            self.tools.trace.event(step, "parse_failed", what=what, error=reply.error)


def start(question: str, tools: Tools) -> EvidenceState:
    """The first state: the question and its ranking, no evidence. The ranking is no retrieval call yet."""
    ranking = tuple((h.chunk_id, h.score) for h in tools.retriever.dense(question, FRONTIER))
    return initial(question, ranking)


def _one_line(text: str) -> str:
    """The first non-empty line, without quotation marks around it."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    line = line.removeprefix("Query:")
    return " ".join(line.strip(" \"'“”").split())


def _key(query: str) -> str:
    return " ".join(query.casefold().split()).rstrip("?.! ")


def _tokens(usage: Usage) -> int:
    return usage.prompt_tokens + usage.completion_tokens


_EXECUTE = {
    "R": Workspace.retrieve_more,
    "G": Workspace.gap_query,
    "W": Workspace.rewrite_query,
    "B": Workspace.bridge_entity_expand,
    "S": Workspace.sufficiency_check,
}
