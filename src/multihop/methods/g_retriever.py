"""G-Retriever (He et al. 2024) in its hard-prompt form: a subgraph near the question, found by a prize-collecting
Steiner tree, is shown as text beside the passages it came from. A controlled implementation.

The original feeds the subgraph through a graph network into the model's embeddings, which no model behind HTTP takes.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import numpy as np
from pydantic import Field

from multihop.methods.base import MethodParams, Tools
from multihop.methods.reading import read_and_answer
from multihop.retrieval.tokens import count_tokens
from multihop.structures.knowledge_graph import KnowledgeGraph
from multihop.structures.steiner import steiner
from multihop.types import Answer, Hit, Question

DROP = 0.01
"""An edge tier's prize is at most the better tier's times 1 - DROP (the code's c)."""
WIDEN = 4
"""The best edges are sought among the nearest ``WIDEN * edges`` texts: equal scores share a tier."""


class Params(MethodParams):
    k: int = Field(5, gt=0)
    """Passages, at most."""
    nodes: int = Field(10, gt=0)
    """Phrases that get a prize: nodes, nodes - 1, ... 1, best first."""
    edges: int = Field(10, gt=0)
    """Tiers of equally near edges that get a prize: edges, edges - 1, ... 1, shared by the edges of the tier. An
    edge is as near as its relation's text, as in the code."""
    edge_cost: float = Field(0.5, gt=0)
    """Cost of an edge of the subgraph."""
    context_tokens: int = Field(2000, gt=0)
    """Ceiling of the subgraph's text, o200k tokens."""
    graph_only: bool = False
    """Leave the passages out of the prompt; they are recorded as retrieved all the same."""
    max_tokens: int = Field(512, gt=0)
    """Ceiling of the answer, tokens."""


@dataclass(frozen=True)
class Prizes:
    """What the question gives to the phrases and facts of a graph."""

    nodes: np.ndarray
    """float64 (phrases,)."""
    edges: np.ndarray
    """float64 (facts,)."""


class GRetriever:
    name = "g_retriever"
    mode = "short"
    structure = "knowledge_graph"
    Params = Params

    def __init__(self, params: Params):
        self.params = params

    async def answer(self, question: Question, tools: Tools) -> Answer:
        p, graph = self.params, tools.structure
        tools.trace.loops = 1
        if not graph.facts or not question.text.strip():
            what = "no_question" if graph.facts else "no_facts"
            return await self._read(question, "", tools.fallback(question.text, p.k, what, self.name), tools)
        prizes = prizes_of(graph, tools.retriever.query_vector(question.text), p)
        nodes, edges = subgraph(graph, prizes, p.edge_cost)
        text, shown = table(graph, nodes, edges, prizes, p.context_tokens)
        hits = sources(graph, nodes, edges, prizes, p.k)
        tools.trace.event(1, "subgraph", phrases=len(nodes), facts=len(edges), shown=shown)
        if p.graph_only:  # retrieved, but read by no model
            chunk_ids, scores = [h.chunk_id for h in hits], [h.score for h in hits]
            tools.trace.search(1, self.name, question.text, chunk_ids, scores, count_tokens(text))
        else:
            tools.record_search(hits, question.text, 1, self.name)
        return await self._read(question, text, hits, tools)

    async def _read(self, question: Question, text: str, hits: Sequence[Hit], tools: Tools) -> Answer:
        ids = [h.chunk_id for h in hits]
        passages = "" if self.params.graph_only and text else tools.numbered(ids)
        context = "\n\n".join(part for part in (text, passages) if part)
        return await read_and_answer(
            question, ids, tools, max_tokens=self.params.max_tokens, prompt="graph", context=context
        )


def prizes_of(graph: KnowledgeGraph, query: np.ndarray, params: Params) -> Prizes:
    """Prizes by rank of cosine with the question; the graph has at least one fact.

    Edges of the same score are one tier: they share its prize, and none gets as much as one of a better tier.
    """
    nodes, edges = np.zeros(len(graph.phrases)), np.zeros(len(graph.facts))
    best = graph.phrase_index.search(query, params.nodes)
    nodes[[phrase for phrase, _ in best]] = np.arange(len(best), 0, -1)
    found = graph.relation_index.search(query, WIDEN * params.edges)
    tiers = [[text for text, _ in tier] for _, tier in groupby(found, key=lambda pair: pair[1])][: params.edges]
    tier_of = np.full(len(graph.relations), -1)
    for rank, texts in enumerate(tiers):
        tier_of[texts] = rank
    tier_of = tier_of[graph.fact_parts[:, 1]]
    ceiling, found_edges = np.inf, np.flatnonzero(tier_of >= 0)
    sizes, worth = np.bincount(tier_of[found_edges], minlength=len(tiers)), np.zeros(len(tiers))
    for rank in range(len(tiers)):
        worth[rank] = min((len(tiers) - rank) / sizes[rank], ceiling)
        ceiling = worth[rank] * (1 - DROP)
    edges[found_edges] = worth[tier_of[found_edges]]
    return Prizes(nodes, edges)


def subgraph(graph: KnowledgeGraph, prizes: Prizes, cost: float) -> tuple[list[int], list[int]]:
    """(phrases, facts) of a connected subgraph with many prizes and few costs, by position.

    A fact whose prize exceeds the cost becomes a node of its own, worth the rest, with free edges to its phrases. The
    cost is lowered until the best facts are such (the code's rule): where many share a relation, none else would be.
    """
    if prizes.edges.any():
        cost = min(cost, float(prizes.edges.max()) * (1 - DROP / 2))
    ends = graph.fact_parts[:, ::2]
    rich, plain = np.flatnonzero(prizes.edges > cost), np.flatnonzero(prizes.edges <= cost)
    extra = len(graph.phrases) + np.arange(len(rich))
    sides = [np.stack([ends[rich, side], extra], axis=1) for side in (0, 1)]
    nodes, chosen = steiner(
        np.concatenate([ends[plain], *sides]),
        np.concatenate([prizes.nodes, prizes.edges[rich] - cost]).tolist(),
        np.concatenate([cost - prizes.edges[plain], np.zeros(2 * len(rich))]).tolist(),
    )
    facts = {int(plain[e]) for e in chosen if e < len(plain)}
    facts |= {int(rich[n - len(graph.phrases)]) for n in nodes if n >= len(graph.phrases)}
    phrases = {n for n in nodes if n < len(graph.phrases)} | set(ends[list(facts)].ravel().tolist())
    return sorted(phrases), sorted(facts)


def table(
    graph: KnowledgeGraph, nodes: Sequence[int], edges: Sequence[int], prizes: Prizes, limit: int
) -> tuple[str, int]:
    """(CSV text of at most ``limit`` tokens, how many rows it shows): facts, best prize first; else the phrases."""
    if edges:
        header = _csv(("subject", "relation", "object"))
        subject, _, target = graph.fact_parts[list(edges)].T
        worth = prizes.edges[list(edges)] + prizes.nodes[subject] + prizes.nodes[target]
        rows = [graph.parts(f) for _, f in sorted(zip((-worth).tolist(), edges, strict=True))]
    else:
        header = _csv(("entity",))
        rows = [(graph.phrases[n],) for n in sorted(nodes, key=lambda n: (-prizes.nodes[n], n))]
    lines, used = [header], count_tokens(header)
    for row in rows:
        line, tokens = _line(row)
        used += tokens
        if used > limit:
            break
        lines.append(line)
    return "\n".join(lines), len(lines) - 1


@lru_cache(maxsize=1 << 13)
def _line(row: tuple[str, ...]) -> tuple[str, int]:
    """(CSV line, its tokens with the line break before it): a graph's facts come up in question after question."""
    line = _csv(row)
    return line, count_tokens("\n" + line)


def _csv(row: Sequence[str]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow(row)
    return out.getvalue()


def sources(graph: KnowledgeGraph, nodes: Sequence[int], edges: Sequence[int], prizes: Prizes, k: int) -> list[Hit]:
    """The k passages with the highest sum of prizes, of those that a chosen fact came from (of a subgraph without
    facts: that hold its phrases): the prizes of the chosen facts it gave, and of the chosen phrases it holds."""
    chosen = np.zeros(len(graph.phrases))
    chosen[list(nodes)] = prizes.nodes[list(nodes)]
    scores = graph.holds @ chosen
    where = np.array([chunk for fact in edges for chunk in graph.fact_chunks[fact]], dtype=np.int64)
    np.add.at(scores, where, np.repeat(prizes.edges[list(edges)], [len(graph.fact_chunks[fact]) for fact in edges]))
    given = np.bincount(where, minlength=len(scores))
    # A fact may be on the way between prizes and have none itself: the hair's breadth keeps its passages in.
    return graph.hits(np.where(given > 0, scores + 1e-3 * given, 0.0) if edges else scores, k)
