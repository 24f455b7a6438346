"""HippoRAG 2 (Gutiérrez et al. 2025): facts near the question, filtered by the model, start a walk over phrases and
passages; the passages' own similarity takes part in it. A controlled implementation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from multihop.methods.base import MethodParams, Tools
from multihop.methods.reading import read_and_answer
from multihop.structures import ppr
from multihop.structures.knowledge_graph import KnowledgeGraph
from multihop.types import Answer, Hit, Question

ScoredFact = tuple[int, float]
"""(position of the fact, its score in [0, 1])."""


class Params(MethodParams):
    k: int = Field(5, gt=0)
    """Passages shown to the reader."""
    facts: int = Field(5, gt=0, le=10)
    """Facts nearest to the question that the model filters."""
    phrases: int = Field(5, gt=0)
    """Phrases of the kept facts that the walk restarts at, at most."""
    passage_weight: float = Field(0.05, ge=0)
    """Restart weight of a passage, times its min-max scaled similarity."""
    damping: float = Field(0.5, gt=0, lt=1)
    """Probability to follow an edge."""
    filter_tokens: int = Field(40, gt=0)
    """Ceiling of the filter's reply, tokens."""
    max_tokens: int = Field(512, gt=0)
    """Ceiling of the answer, tokens."""


class Kept(BaseModel):
    """The filter's reply: numbers of facts, not their texts, which a small model would have to copy."""

    model_config = ConfigDict(extra="ignore")

    kept: list[Any] = Field(json_schema_extra={"items": {"type": "integer"}, "maxItems": 10})


class HippoRAG2:
    name = "hipporag2"
    mode = "short"
    structure = "knowledge_graph"
    Params = Params

    def __init__(self, params: Params):
        self.params = params

    async def answer(self, question: Question, tools: Tools) -> Answer:
        hits = await self._retrieve(question.text, tools)
        tools.trace.loops = 1
        return await read_and_answer(question, [h.chunk_id for h in hits], tools, max_tokens=self.params.max_tokens)

    async def _retrieve(self, question: str, tools: Tools) -> list[Hit]:
        p, graph = self.params, tools.structure
        found = graph.nearest_facts(tools.retriever.query_vector(question), p.facts) if question.strip() else []
        kept = await self._filter(question, found, tools) if found else []
        if kept:
            dense = tools.retriever.dense(question, len(tools.retriever.chunks))
            hits = rank(graph, kept, dense, p)
            tools.record_search(hits, question, 1, self.name)
            return hits
        return tools.fallback(question, p.k, "no_fact_kept" if found else "no_facts", self.name)

    async def _filter(self, question: str, found: list[ScoredFact], tools: Tools) -> list[ScoredFact]:
        """Those that the model keeps (recognition memory); all where its reply is of no use."""
        texts = [" | ".join(tools.structure.parts(fact)) for fact, _ in found]
        numbered = "\n".join(f"{number}. {text}" for number, text in enumerate(texts, 1))
        messages = tools.messages("filter", facts=numbered, question=question)
        reply = await tools.llm("control").json(messages, Kept, max_tokens=self.params.filter_tokens)
        given = reply.value.kept if reply.value else []
        numbers = sorted({n for n in given if type(n) is int and 1 <= n <= len(found)})
        if reply.value is None or (given and not numbers):
            tools.trace.event(1, "parse_failed", what="filter", error=reply.error or "no number of a fact")
            numbers = list(range(1, len(found) + 1))
        tools.trace.event(1, "facts", found=texts, kept=numbers)
        return [found[n - 1] for n in numbers]


def rank(graph: KnowledgeGraph, kept: Sequence[ScoredFact], dense: Sequence[Hit], params: Params) -> list[Hit]:
    """The k best passages by personalised PageRank; ``dense``: all passages with their similarity to the question.

    A phrase restarts with the mean, over the kept facts it is in, of the fact's score / passages of the phrase; the
    best few phrases count.
    """
    weights, times = np.zeros(len(graph.phrases)), np.zeros(len(graph.phrases))
    for fact, score in kept:
        for phrase in (graph.facts[fact][0], graph.facts[fact][2]):
            weights[phrase] += score / graph.chunk_counts[phrase]
            times[phrase] += 1
    weights /= np.maximum(times, 1)
    reset = np.zeros(graph.full_graph.nodes)
    seeds = [i for i in ppr.best(np.where(times > 0, weights, -1.0), params.phrases) if times[i]]
    reset[seeds] = weights[seeds]
    position = {chunk.id: i for i, chunk in enumerate(graph.retriever.chunks)}
    places = [len(graph.phrases) + position[hit.chunk_id] for hit in dense]
    reset[places] = params.passage_weight * ppr.minmax(np.array([hit.score for hit in dense]))
    if not reset.any():  # one kept fact that scored lowest of all, and a question without similarities
        reset[seeds] = 1.0
    scores = graph.full_graph.pagerank(reset, params.damping)
    return graph.hits(scores[len(graph.phrases) :], params.k)
