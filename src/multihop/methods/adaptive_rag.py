"""Adaptive-RAG: a router sends each question to no search, one search or IRCoT (Jeong et al. 2024).

A controlled implementation: the router is a logistic regression on the question's embedding, trained on train
questions labelled by the cheapest strategy that answers them, where the authors fine-tune a T5 on silver labels.
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field

from multihop.errors import ConfigError
from multihop.methods.base import Tools
from multihop.methods.chain import interleave
from multihop.methods.documents import DocumentParams, Documents
from multihop.methods.reading import read_and_answer
from multihop.types import Answer, Question

_LETTER = re.compile(r"^\W*([ABC])(?=\W*$|[).:])", re.IGNORECASE)
"""A lone letter, or one that a mark sets off from what follows: "A search" is no letter A."""


class Params(DocumentParams):
    router: Literal["trained", "zero_shot"] = "trained"
    """zero_shot: the answer model picks the strategy's letter."""
    strategy: Literal["A", "B", "C"] | None = None
    """Use this one for every question (training labels are made so); null: the router decides."""
    k: int = Field(6, gt=0)
    """Documents of strategy B."""
    max_steps: int = Field(4, gt=0)
    """Searches of strategy C at most."""
    sentence_tokens: int = Field(64, gt=0)
    """Of one sentence of strategy C's chain."""
    route_tokens: int = Field(4, gt=0)


class AdaptiveRag:
    name = "adaptive_rag"
    mode = "short"
    trained_as = "baselines"
    Params = Params

    def __init__(self, params: Params):
        self.params = params

    async def answer(self, question: Question, tools: Tools) -> Answer:
        """Raises ConfigError where the trained router is asked for and there is none."""
        p = self.params
        strategy, by = await self._route(question, tools)
        tools.trace.event(0, "route", strategy=strategy, by=by)
        if strategy == "A":
            return await read_and_answer(question, [], tools, max_tokens=p.max_tokens, prompt="direct")
        documents = Documents(tools, p.per_search, p.max_docs)
        stop = "answered"
        if strategy == "B":
            tools.trace.loops = 1
            documents.search(question.text, 1, k=p.k)
        else:
            stop = await interleave(
                question, tools, documents, max_steps=p.max_steps, sentence_tokens=p.sentence_tokens
            )
        return await read_and_answer(question, documents.ids, tools, max_tokens=p.max_tokens, stop=stop)

    async def _route(self, question: Question, tools: Tools) -> tuple[str, str]:
        """(strategy, who chose it)."""
        if self.params.strategy:
            return self.params.strategy, "forced"
        if self.params.router == "zero_shot":
            return await self._ask(question, tools), "zero_shot"
        if not tools.trained or "router" not in tools.trained:
            raise ConfigError(
                "adaptive_rag has no trained router: say trained: baselines for this run in params.yaml and run the "
                "tune stage, or set router: zero_shot"
            )
        return tools.trained["router"].route(tools.retriever.query_vector(question.text)), "trained"

    async def _ask(self, question: Question, tools: Tools) -> str:
        """The letter that the model picks; C, the most thorough, where it writes none."""
        messages = tools.messages("route", question=question.text)
        reply = await tools.llm("control").chat(messages, max_tokens=self.params.route_tokens)
        if found := _LETTER.match(reply.text):
            return found[1].upper()
        tools.trace.event(0, "parse_failed", what="route", error=f"no letter: {reply.text[:40]!r}")
        return "C"
