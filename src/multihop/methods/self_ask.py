"""Self-Ask + Search: follow-up questions, each searched and answered, then the answer (Press et al. 2023).

A controlled implementation: the turn is a JSON object, since chat models break the original's free format.
"""

from __future__ import annotations

from pydantic import BaseModel, Field

from multihop.methods.base import Tools, split_answer
from multihop.methods.documents import DocumentParams
from multihop.methods.reading import read_and_answer
from multihop.types import Answer, Question

NOT_FOUND = "not found"


class Params(DocumentParams):
    max_followups: int = Field(4, gt=0)
    turn_tokens: int = Field(96, gt=0)
    """Of one turn's JSON object."""
    intermediate_tokens: int = Field(64, gt=0)
    """Of the answer to one follow-up."""


class Turn(BaseModel):
    need_followup: bool
    followup: str = Field("", max_length=200)
    final: str = Field("", max_length=80)


class SelfAsk:
    name = "self_ask"
    mode = "short"
    Params = Params

    def __init__(self, params: Params):
        self.params = params

    async def answer(self, question: Question, tools: Tools) -> Answer:
        ids, chain = [], {}
        stop = await self._ask(question, tools, ids, chain)
        if not ids:  # no follow-up was searched: the reader answers from passages, so the question itself is
            ids = self._search(question.text, tools)
        return await read_and_answer(
            question, ids, tools, max_tokens=self.params.max_tokens, stop=stop, notes=_lines(chain)
        )

    async def _ask(self, question: Question, tools: Tools, ids: list[str], chain: dict[str, str]) -> str:
        """Fill ``ids`` (documents, in acquisition order) and ``chain`` (follow-up: its answer); why it stopped."""
        for step in range(1, self.params.max_followups + 1):
            tools.trace.loops = step
            turn = await self._turn(question, tools, chain)
            if turn is None:
                return "invalid"
            tools.trace.event(step, "ask", **turn.model_dump())
            if not turn.need_followup:
                return "answered"
            followup = " ".join(turn.followup.split())
            if _key(followup) in {"", *map(_key, chain)}:
                return "repeat"
            chain[followup] = await self._intermediate(followup, tools, ids)
            tools.trace.event(step, "intermediate", question=followup, answer=chain[followup])
        return "limit"

    async def _turn(self, question: Question, tools: Tools, chain: dict[str, str]) -> Turn | None:
        messages = tools.messages("turn", question=question.text, chain=_lines(chain) or "(no follow-up yet)")
        reply = await tools.llm("control").json(messages, Turn, max_tokens=self.params.turn_tokens)
        if reply.value is None:
            tools.trace.event(tools.trace.loops, "parse_failed", what="turn", error=reply.error)
        return reply.value

    async def _intermediate(self, followup: str, tools: Tools, ids: list[str]) -> str:
        """The answer to one follow-up, from its own documents alone; those that are new are added to ``ids``."""
        shown = self._search(followup, tools)
        ids += [c for c in shown if c not in ids][: self.params.max_docs - len(ids)]
        if not shown:
            return NOT_FOUND
        messages = tools.messages("intermediate", passages=tools.numbered(shown), question=followup)
        reply = await tools.llm("control").chat(messages, max_tokens=self.params.intermediate_tokens)
        marked, found = split_answer(reply.text)
        lines = [marked] if found else reply.text.split("\n")
        return next((line.strip() for line in lines if line.strip()), NOT_FOUND)

    def _search(self, query: str, tools: Tools) -> list[str]:
        """The best documents for a query, seen ones too: what one follow-up found may answer the next."""
        hits = tools.retrieve(query, min(self.params.per_search, self.params.max_docs), step=tools.trace.loops)
        return [h.chunk_id for h in hits]


def _lines(chain: dict[str, str]) -> str:
    return "\n".join(f"Follow-up: {q}\nIntermediate answer: {a}" for q, a in chain.items())


def _key(text: str) -> str:
    return "".join(c for c in text.casefold() if c.isalnum())
