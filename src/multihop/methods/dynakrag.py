"""DynaKRAG: a learned, state-conditioned policy over evidence operations (paper 2, Algorithm 1).

Each step: the validity layer says what can be done, the continuation gate whether to go on, the advantage scorer which
operation comes next. After the search the evidence is compressed once and read. The ablations of Table 2 are params.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from multihop.controller import features
from multihop.controller.model import ControllerModel
from multihop.controller.state import TIES, EvidenceState, Limits
from multihop.controller.validity import affordable, valid
from multihop.methods.base import Tools
from multihop.methods.documents import DocumentParams
from multihop.methods.operations import Workspace, start
from multihop.methods.reading import read_and_answer
from multihop.types import Answer, Question


class Params(DocumentParams):
    steps: int = Field(4, gt=0)
    """Control steps at most."""
    retrieval_cap: int | None = Field(None, gt=0)
    """Retrieval calls at most (Figure 3); null: only the steps bound them."""
    token_budget: int = Field(6000, gt=0)
    """Tokens of the control loop's model calls."""
    ranking: Literal["learned", "uniform"] = "learned"
    """uniform: a uniform choice among the candidates in place of the scorer (Table 2)."""
    continuation: Literal["learned", "fixed", "none"] = "learned"
    """fixed: no early stop while something else is valid (Table 2); none: no gate, stop is a candidate like others."""
    vote: Literal["majority", "any", "all"] = "majority"
    """How many of the gate's three models must say "continue"."""
    sufficiency: bool = True
    compression: bool = True
    check_tokens: int = Field(128, gt=0)
    rewrite_tokens: int = Field(32, gt=0)

    @property
    def limits(self) -> Limits:
        return Limits(
            self.steps, self.per_search, self.max_docs, self.retrieval_cap, self.token_budget, self.sufficiency
        )


@dataclass
class Policy:
    """The choice of the next action: validity and budget, then the gate, then the ranking."""

    params: Params
    model: ControllerModel
    tools: Tools

    def choose(self, state: EvidenceState) -> tuple[str, dict[str, Any]]:
        """(action, what the ``decision`` event records). "T" where nothing else is left."""
        p, limits = self.params, self.params.limits
        allowed = valid(state, limits)
        candidates = affordable(allowed, state, limits, self.model.expected_tokens)
        record: dict[str, Any] = {"valid": list(allowed), "candidates": list(candidates), "gate": None, "scores": None}
        others = [a for a in candidates if a != "T"]
        if others and "T" in candidates and p.continuation != "none":
            candidates = tuple(others) if self._go_on(state, record) else ("T",)
        chosen = candidates[0] if len(candidates) == 1 else self._rank(state, candidates, record)
        return chosen, record | {"chosen": chosen}

    def _go_on(self, state: EvidenceState, record: dict[str, Any]) -> bool:
        if self.params.continuation == "fixed":
            return True
        vector = features.state_vector(state, self.params.limits, self.tools.retriever)
        gate = self.model.gate(vector, self.params.vote)
        record["gate"] = {
            "continue": gate.cont,
            "p_continue": gate.p_continue,
            "gain": gate.gain,
            "p_premature": gate.p_premature,
            "votes": gate.votes,
        }
        return gate.cont

    def _rank(self, state: EvidenceState, candidates: tuple[str, ...], record: dict[str, Any]) -> str:
        if self.params.ranking == "uniform":
            return self.tools.rng.choice(sorted(candidates))
        retriever = self.tools.retriever
        vector = features.state_vector(state, self.params.limits, retriever)
        each = [features.action_vector(a, state, retriever) for a in candidates]
        scores = self.model.advantage(vector, list(candidates), each)
        record["scores"] = scores
        return max(candidates, key=lambda a: (scores[a], -TIES.index(a)))


class Dynakrag:
    name = "dynakrag"
    mode = "short"
    trained_as = "controller"
    Params = Params

    def __init__(self, params: Params):
        self.params = params

    async def answer(self, question: Question, tools: Tools) -> Answer:
        p = self.params
        policy = Policy(p, tools.trained["controller"], tools)
        work = Workspace(tools, p.limits, p.check_tokens, p.rewrite_tokens)
        state, stop = start(question.text, tools), "steps"
        while state.step < p.steps:
            action, record = policy.choose(state)
            tools.trace.event(state.step + 1, "decision", **record)
            if action == "T":
                stop = "stop" if len(record["candidates"]) > 1 else "budget"
                break
            state = await work.run(action, state)
            tools.trace.loops = state.step
            if state.sufficient:
                stop = "sufficient"
                break
        context = await work.compress(question.text, state.docs, state.step) if p.compression and state.docs else None
        return await read_and_answer(
            question, list(state.docs), tools, max_tokens=p.max_tokens, stop=stop, context=context
        )
