"""LAG: sub-questions in logical order, each answered with retrieval, until a logical terminator (Xiao et al. 2025).

A controlled implementation from the paper: no code of the authors and no number is public. One JSON call stands for
the cognitive-load formula; depths and thresholds are ours. Where the chain ends early the question is answered from
its own search instead (the paper's alternative generation).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from multihop.controller.bridge import cosine
from multihop.methods.base import MethodParams, Tools
from multihop.methods.reading import read_and_answer
from multihop.types import Answer, Question

MOST = 5
"""Sub-questions of a plan at most."""
_PLACE = re.compile(r"#(\d{1,2})")


class Params(MethodParams):
    k: int = Field(5, gt=0)
    """Chunks per sub-question, and of the question's own search."""
    max_docs: int = Field(10, gt=0)
    """Chunks that the final call is shown, the sub-questions' best first."""
    t_max: int = Field(5, gt=0)
    """Sub-questions answered at most."""
    min_confidence: float = Field(0.3, ge=0, le=1)
    """A sub-answer below is weak, as an unsupported one is; ``weak_streak`` in a row end the chain."""
    weak_streak: int = Field(2, gt=0)
    max_similarity: float = Field(0.9, gt=0, le=1)
    """A sub-answer whose statement is nearer (cosine) to an earlier one is redundant and ends the chain."""
    plan_tokens: int = Field(200, gt=0)
    step_tokens: int = Field(60, gt=0)
    max_tokens: int = Field(512, gt=0)


class SubQuestion(BaseModel):
    model_config = ConfigDict(extra="ignore")

    question: str = Field(json_schema_extra={"maxLength": 120})
    depends_on: list[int] = Field(json_schema_extra={"maxItems": 4})


class Plan(BaseModel):
    model_config = ConfigDict(extra="ignore")

    needs_decomposition: bool
    sub_questions: list[SubQuestion] = Field(json_schema_extra={"maxItems": MOST})


class Step(BaseModel):
    model_config = ConfigDict(extra="ignore")

    answer: str = Field(json_schema_extra={"maxLength": 80})
    confidence: float
    supported: bool


@dataclass
class Chain:
    """What has been asked and found so far."""

    answers: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Number in the plan -> (question as asked, answer or "")."""
    found: list[list[str]] = field(default_factory=list)
    """Chunk ids of each search, best first."""
    statements: list[np.ndarray] = field(default_factory=list)
    weak: int = 0
    """Weak sub-answers in a row."""

    def notes(self) -> str:
        """Answered sub-questions, in the order asked."""
        return "\n".join(f"- {question} {answer}" for question, answer in self.answers.values() if answer)

    def chunks(self, most: int) -> list[str]:
        """Every search's best, then every second best, ...; each once."""
        depth = max(map(len, self.found), default=0)
        return list(dict.fromkeys(ids[rank] for rank in range(depth) for ids in self.found if rank < len(ids)))[:most]


class Lag:
    name = "lag"
    mode = "short"
    Params = Params

    def __init__(self, params: Params):
        self.params = params

    async def answer(self, question: Question, tools: Tools) -> Answer:
        tools.trace.loops = 1
        plan = await self._plan(question, tools)
        if not plan:
            return await self._directly(question, tools, "not_decomposed")
        chain = Chain()
        stop = await self._follow(plan, chain, tools)
        if stop in ("weak", "redundant"):
            tools.trace.event(tools.trace.loops, "fallback", what=f"terminated_{stop}", to="question")
            return await self._directly(question, tools, f"terminated_{stop}")
        known = chain.notes()
        notes = tools.prompts["notes"].format(notes=known) if known else ""
        chunks = chain.chunks(self.params.max_docs)
        return await read_and_answer(question, chunks, tools, max_tokens=self.params.max_tokens, stop=stop, notes=notes)

    async def _directly(self, question: Question, tools: Tools, stop: str) -> Answer:
        """As vanilla RAG: the question's own search, one call."""
        hits = tools.retrieve(question.text, self.params.k, step=tools.trace.loops, tool=self.name)
        chunks = [h.chunk_id for h in hits]
        if not chunks:
            tools.trace.event(tools.trace.loops, "fallback", what="no_passages", to="the question alone")
        return await read_and_answer(question, chunks, tools, max_tokens=self.params.max_tokens, stop=stop)

    async def _plan(self, question: Question, tools: Tools) -> list[tuple[int, str]]:
        """(number, sub-question) in the order in which they are asked; empty: the question needs none."""
        messages = tools.messages("plan", question=question.text)
        reply = await tools.llm("control").json(messages, Plan, max_tokens=self.params.plan_tokens)
        if reply.value is None:
            tools.trace.event(1, "parse_failed", what="plan", error=reply.error)
            tools.trace.event(1, "fallback", what="plan", to="question")
            return []
        planned = [(" ".join(s.question.split()), s.depends_on) for s in reply.value.sub_questions][:MOST]
        order = _order(planned)
        if order is None:
            tools.trace.event(1, "fallback", what="dependencies", to="given order")
            order = list(range(1, len(planned) + 1))
        needed, sub_questions = reply.value.needs_decomposition, [text for text, _ in planned]
        tools.trace.event(1, "plan", needs_decomposition=needed, sub_questions=sub_questions, order=order)
        return [(n, sub_questions[n - 1]) for n in order if sub_questions[n - 1]] if needed else []

    async def _follow(self, plan: list[tuple[int, str]], chain: Chain, tools: Tools) -> str:
        """Ask one sub-question after the other; why it stopped: answered, limit, or the terminator's reason."""
        for done, (number, text) in enumerate(plan, 1):
            if done > self.params.t_max:
                tools.trace.event(tools.trace.loops, "limit", left=len(plan) - self.params.t_max)
                return "limit"
            tools.trace.loops = done
            asked = _filled(text, chain)
            hits = tools.retrieve(asked, self.params.k, step=done, tool=self.name)
            chunks = [h.chunk_id for h in hits]
            chain.found.append(chunks)
            step = await self._ask(asked, chunks, chain, tools)
            ended = self._terminator(asked, step, chain, tools)
            chain.answers[number] = (asked, step.answer)
            if ended == "weak" or (ended and done < len(plan)):
                return ended  # a redundant last sub-answer ends nothing early
        return "answered"

    async def _ask(self, asked: str, chunks: list[str], chain: Chain, tools: Tools) -> Step:
        """The sub-answer; an unreadable reply is an unsupported, empty one."""
        if not chunks:
            tools.trace.event(tools.trace.loops, "fallback", what="no_passages", to="unsupported")
            return Step(answer="", confidence=0.0, supported=False)
        known = chain.notes()
        messages = tools.messages(
            "step", passages=tools.numbered(chunks), known=f"\n{known}" if known else "nothing", question=asked
        )
        reply = await tools.llm("control").json(messages, Step, max_tokens=self.params.step_tokens)
        if reply.value is None:
            tools.trace.event(tools.trace.loops, "parse_failed", what="step", error=reply.error)
            tools.trace.event(tools.trace.loops, "fallback", what="step", to="unsupported")
            return Step(answer="", confidence=0.0, supported=False)
        said = reply.value
        confidence = min(max(said.confidence, 0.0), 1.0) if math.isfinite(said.confidence) else 0.0
        return Step(answer=" ".join(said.answer.split()), confidence=confidence, supported=said.supported)

    def _terminator(self, asked: str, step: Step, chain: Chain, tools: Tools) -> str:
        """Why the chain ends: weak, redundant, or "" (it goes on); records the sub-answer."""
        weak = not step.supported or not step.answer or step.confidence < self.params.min_confidence
        chain.weak = chain.weak + 1 if weak else 0
        similar = 0.0
        if step.answer:
            vector = tools.retriever.query_vector(f"{asked} {step.answer}")
            similar = max((cosine(vector, earlier) for earlier in chain.statements), default=0.0)
            chain.statements.append(vector)
        redundant = similar > self.params.max_similarity
        tools.trace.event(
            tools.trace.loops, "sub_answer", question=asked, **step.model_dump(), weak=weak, redundant=redundant
        )
        if chain.weak >= self.params.weak_streak:
            return "weak"
        return "redundant" if redundant else ""


def _order(planned: Sequence[tuple[str, list[int]]]) -> list[int] | None:
    """Numbers (from 1) so that each comes after those it depends on, else as given; None: a cycle or unknown one.

    A placeholder in the text counts as a dependency.
    """
    needs = [set(depends) | set(map(int, _PLACE.findall(text))) for text, depends in planned]
    left, order = list(range(1, len(planned) + 1)), []
    while left:
        ready = next((n for n in left if needs[n - 1] <= set(order)), None)
        if ready is None:
            return None
        order.append(ready)
        left.remove(ready)
    return order


def _filled(text: str, chain: Chain) -> str:
    """``text`` with #i replaced by that answer, or by the sub-question where there is none; one not asked yet stays."""

    def of(match: re.Match[str]) -> str:
        asked, answer = chain.answers.get(int(match[1]), (match[0], ""))
        return answer or asked.rstrip("?")

    return _PLACE.sub(of, text)
