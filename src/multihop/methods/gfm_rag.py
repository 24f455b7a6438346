"""GFM-RAG: a graph network scores the entities of a knowledge graph for the question (Luo et al. 2025).

The question's entities are linked to phrases of the graph; where it names none, the whole question is linked as one.
The network scores every phrase; the best ``top_entities`` vote for their passages, each with 1 / its passages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from multihop.methods.base import MethodParams, Tools
from multihop.methods.query_entities import query_entities
from multihop.methods.reading import read_and_answer
from multihop.structures import ppr
from multihop.structures.knowledge_graph import KnowledgeGraph
from multihop.types import Answer, Hit, Question

if TYPE_CHECKING:
    from multihop.structures.gnn import Network


class Params(MethodParams):
    k: int = Field(5, gt=0)
    """Chunks shown to the reader, best first."""
    top_entities: int = Field(20, gt=0)
    """Phrases that vote for passages."""
    entity_tokens: int = Field(80, gt=0)
    """Ceiling of the reply with the question's entities, tokens."""
    max_tokens: int = Field(512, gt=0)


class GFMRag:
    name = "gfm_rag"
    mode = "short"
    structure = "knowledge_graph"
    trained_as = "network"
    Params = Params

    def __init__(self, params: Params):
        self.params = params

    async def answer(self, question: Question, tools: Tools) -> Answer:
        p = self.params
        network, graph = tools.trained, tools.structure
        network.check(len(tools.retriever.chunk_vector(tools.retriever.chunks[0].id)))
        tools.trace.loops = 1
        linked = await self.linked(question.text, tools)
        hits = self.hits(network, graph, question.text, linked) if linked else []
        if hits:
            tools.record_search(hits, question.text, 1, self.name)
        else:
            what = "equal_scores" if linked else "no_entity" if graph.facts else "no_facts"
            hits = tools.fallback(question.text, p.k, what, self.name)
        return await read_and_answer(question, [h.chunk_id for h in hits], tools, max_tokens=p.max_tokens)

    async def linked(self, question: str, tools: Tools) -> list[int]:
        """The phrases that the question is placed on, each once; [] for a graph without facts, which asks nothing."""
        graph: KnowledgeGraph = tools.structure
        if not graph.facts:
            return []
        found = graph.link(await query_entities(question, tools, self.params.entity_tokens))
        if not found:
            tools.trace.event(1, "fallback", what="no_entity", to="the whole question as one")
            found = graph.link([question])
        tools.trace.event(1, "linked", phrases=[graph.phrases[i] for i in found])
        return found

    def hits(self, network: Network, graph: KnowledgeGraph, question: str, linked: list[int]) -> list[Hit]:
        """The k best passages; none where the network's scores are all equal."""
        return self.ranked(network.scores(graph, graph.retriever.query_vector(question), linked), graph)

    def ranked(self, scores: np.ndarray, graph: KnowledgeGraph) -> list[Hit]:
        """The same from a score for each phrase."""
        from multihop.structures.gnn import passage_scores

        if len(scores) > 1 and np.ptp(ppr.rounded(scores)) == 0:
            return []
        entities = ppr.best(scores, self.params.top_entities)
        return graph.hits(passage_scores(graph, entities), self.params.k)
