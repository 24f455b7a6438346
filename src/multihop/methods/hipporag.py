"""HippoRAG (Gutiérrez et al. 2024): a walk over the phrases of a knowledge graph from those that the question names.

A controlled implementation of the single-step form, with the run's embedder in place of ColBERTv2 or Contriever.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from multihop.methods.base import MethodParams, Tools
from multihop.methods.query_entities import query_entities
from multihop.methods.reading import read_and_answer
from multihop.structures.knowledge_graph import KnowledgeGraph
from multihop.types import Answer, Hit, Question


class Params(MethodParams):
    k: int = Field(5, gt=0)
    """Passages shown to the reader."""
    damping: float = Field(0.5, gt=0, lt=1)
    """Probability to follow an edge (the paper's and main runs' 0.5; the released function's default is 0.1)."""
    entity_tokens: int = Field(80, gt=0)
    """Ceiling of the reply with the question's entities, tokens."""
    max_tokens: int = Field(512, gt=0)
    """Ceiling of the answer, tokens."""


class HippoRAG:
    name = "hipporag"
    mode = "short"
    structure = "knowledge_graph"
    Params = Params

    def __init__(self, params: Params):
        self.params = params

    async def answer(self, question: Question, tools: Tools) -> Answer:
        p = self.params
        ask = bool(tools.structure.phrases and question.text.strip())
        seeds = tools.structure.link(await query_entities(question.text, tools, p.entity_tokens)) if ask else []
        if seeds:
            tools.trace.event(1, "linked", phrases=[tools.structure.phrases[i] for i in seeds])
            hits = walk(tools.structure, seeds, p.damping, p.k)
            tools.record_search(hits, question.text, 1, self.name)
        else:
            hits = tools.fallback(question.text, p.k, "no_phrase", self.name)
        tools.trace.loops = 1
        return await read_and_answer(question, [h.chunk_id for h in hits], tools, max_tokens=p.max_tokens)


def walk(graph: KnowledgeGraph, seeds: list[int], damping: float, k: int) -> list[Hit]:
    """The k best passages of a walk that restarts at ``seeds``, each weighted by its specificity (1 / passages that
    hold it); a passage's score is the sum of its phrases' probabilities, by their counts."""
    reset = np.zeros(len(graph.phrases))
    reset[seeds] = 1.0 / graph.chunk_counts[seeds]
    return graph.hits(graph.mentions @ graph.phrase_graph.pagerank(reset, damping), k)
