"""PAR2-RAG: a broad anchor from planned sub-queries, then a gated chain in depth (Li et al. 2026).

A controlled implementation from the paper's description: no code of the authors is public and no number is given,
hence the depths and the gate's form are ours; there is no reranker.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field

from multihop.methods.base import Tools
from multihop.methods.documents import DocumentParams, Documents
from multihop.methods.reading import read_and_answer
from multihop.retrieval.arguments import normalise
from multihop.types import Answer, Question


class Params(DocumentParams):
    max_steps: int = Field(4, gt=0)
    """Control steps at most; the anchor is the first."""
    sub_queries: int = Field(3, gt=0, le=3)
    """Of the plan at most; each adds one document to the anchor."""
    plan_tokens: int = Field(100, gt=0)
    gate_tokens: int = Field(64, gt=0)


class Plan(BaseModel):
    sub_queries: list[Annotated[str, Field(json_schema_extra={"maxLength": 120})]] = Field(
        json_schema_extra={"maxItems": 3}
    )


def _lower(value: Any) -> Any:
    return value.strip().lower() if isinstance(value, str) else value


class Gate(BaseModel):
    decision: Annotated[Literal["answer", "continue", "refine"], BeforeValidator(_lower)]
    query: str = Field("", json_schema_extra={"maxLength": 120})


class Par2Rag:
    name = "par2_rag"
    mode = "short"
    Params = Params

    def __init__(self, params: Params):
        self.params = params

    async def answer(self, question: Question, tools: Tools) -> Answer:
        p = self.params
        documents = Documents(tools, p.per_search, p.max_docs)
        tools.trace.loops = 1
        plan = await self._plan(question, tools)
        documents.search(question.text, 1)
        for sub_query in plan:
            documents.search(sub_query, 1, k=1)
        stop = await self._chain(question, tools, documents, plan) if documents.ids else "no_documents"
        return await read_and_answer(question, documents.ids, tools, max_tokens=p.max_tokens, stop=stop)

    async def _plan(self, question: Question, tools: Tools) -> list[str]:
        """Distinct sub-queries other than the question, maybe none."""
        messages = tools.messages("plan", question=question.text)
        reply = await tools.llm("control").json(messages, Plan, max_tokens=self.params.plan_tokens)
        if reply.value is None:
            tools.trace.event(1, "parse_failed", what="plan", error=reply.error)
        planned = {normalise(q): " ".join(q.split()) for q in reply.value.sub_queries} if reply.value else {}
        plan = [q for key, q in planned.items() if key not in ("", normalise(question.text))][: self.params.sub_queries]
        tools.trace.event(1, "plan", sub_queries=plan)
        return plan

    async def _chain(self, question: Question, tools: Tools, documents: Documents, plan: list[str]) -> str:
        """The depth-first part: a gate, then a search, until the gate answers; why it stopped."""
        last, ahead, searched = self.params.max_steps, list(plan), set()
        for step in range(2, last + 1):
            if len(documents.ids) >= documents.cap:
                break  # the gate could lead to no search
            tools.trace.loops = step
            sub_question = ahead[0] if ahead else ""
            gate = await self._gate(question, tools, documents, sub_question)
            if gate is None and step == last:
                break
            if gate and gate.decision == "answer":
                return "answer"
            query = _query(gate, sub_question, question)
            if gate:
                ahead = ahead[1:]  # searched for as it stands, or replaced
            if normalise(query) in searched:
                return "repeat"
            searched.add(normalise(query))
            if not documents.search(query, step):
                return "no_documents"
        return "limit"

    async def _gate(self, question: Question, tools: Tools, documents: Documents, sub_question: str) -> Gate | None:
        """What to do with the evidence so far; None where the reply can't be read."""
        messages = tools.messages(
            "gate", passages=documents.text, question=question.text, sub_question=sub_question or "(none planned)"
        )
        reply = await tools.llm("control").json(messages, Gate, max_tokens=self.params.gate_tokens)
        step = tools.trace.loops
        if reply.value is None:
            tools.trace.event(step, "parse_failed", what="gate", error=reply.error)
        else:
            tools.trace.event(step, "gate", sub_question=sub_question, **reply.value.model_dump())
        return reply.value


def _query(gate: Gate | None, sub_question: str, question: Question) -> str:
    """The next search: the rewritten query (refine), the planned sub-question (continue), or the question itself."""
    if gate is None:
        return question.text
    written = " ".join(gate.query.split())
    choices = (written, sub_question) if gate.decision == "refine" else (sub_question, written)
    return next((q for q in choices if q), question.text)
