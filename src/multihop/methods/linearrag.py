"""LinearRAG (Zhuang et al. 2025): entities of the question, scores passed on through sentences, PageRank; no model
call before the reader's.

The authors' values: MuSiQue ``max_iterations`` 5, ``passage_ratio`` 2, ``threshold`` 0.1, ``top_k_sentence`` 4;
HotpotQA and 2WikiMultiHopQA 3, 0.05, 0.4 and 1; their command line, and the defaults here, 3, 2, 0.4 and 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from multihop.methods.base import MethodParams, Tools
from multihop.methods.reading import read_and_answer
from multihop.structures import ppr
from multihop.types import Answer, Hit, Question

if TYPE_CHECKING:
    from scipy import sparse

    from multihop.structures.tri_graph import TriGraph

Cosines = Callable[[np.ndarray], np.ndarray]
"""Similarities of sentences, given by position, with the question."""


class Params(MethodParams):
    k: int = Field(5, gt=0)
    """Passages shown to the reader."""
    max_iterations: int = Field(3, gt=0)
    """Tiers of entities at most, the seeds being the first."""
    threshold: float = Field(0.4, ge=0)
    """An entity that gets less neither counts nor passes anything on."""
    top_k_sentence: int = Field(3, gt=0)
    """Sentences that an entity passes its score on through, the most similar to the question."""
    passage_ratio: float = Field(2.0, ge=0)
    """Weight of a passage's own similarity, scaled to [0, 1], against its entities'."""
    passage_node_weight: float = Field(0.05, gt=0)
    """Weight of passages against entities in PageRank's reset."""
    damping: float = Field(0.5, ge=0, lt=1)
    """Probability to follow an edge."""
    max_tokens: int = Field(512, gt=0)


@dataclass
class Activation:
    """What propagation gives each entity, arrays (entities,)."""

    weights: np.ndarray
    """Sum of everything it got: its part of PageRank's reset."""
    scores: np.ndarray
    """The best it got in the tier that reached it first; 0 where none did."""
    tiers: np.ndarray
    """That tier, 1 for seeds; 0 where none did."""


class LinearRag:
    name = "linearrag"
    mode = "short"
    Params = Params
    structure = "tri_graph"

    def __init__(self, params: Params):
        self.params = params

    async def answer(self, question: Question, tools: Tools) -> Answer:
        p, graph = self.params, tools.structure
        tools.trace.loops = 1
        seeds = graph.seeds(question.text)
        if seeds:
            hits = self._search(question.text, graph, seeds, tools)
            tools.record_search(hits, question.text, 1, self.name)
        else:
            hits = tools.fallback(question.text, p.k, "no_seeds", self.name)
        return await read_and_answer(question, [h.chunk_id for h in hits], tools, max_tokens=p.max_tokens)

    def _search(self, question: str, graph: TriGraph, seeds: Mapping[int, float], tools: Tools) -> list[Hit]:
        p = self.params
        active = propagate(graph, seeds, lambda rows: graph.sentence_cosines(question, rows), p)
        tools.trace.event(1, "propagation", seeds=len(seeds), entities=int((active.tiers > 0).sum()))
        reset = np.concatenate(
            [active.weights, passage_weights(graph.mention_logs, active, graph.passage_cosines(question), p)]
        )
        scores = graph.graph.pagerank(reset, p.damping)
        return ppr.hits(tools.retriever.chunks, scores[len(graph.entities) :], p.k)


def passage_weights(logs: sparse.sparray, active: Activation, cosines: np.ndarray, p: Params) -> np.ndarray:
    """(passages,): (ratio · scaled cosine + log(1 + Σ score · log(1 + mentions) / tier)) · passage_node_weight.

    ``logs``: (passages, entities), log(1 + mentions).
    """
    bonus = logs @ (active.scores / np.maximum(active.tiers, 1))
    return (p.passage_ratio * ppr.minmax(cosines) + np.log1p(bonus)) * p.passage_node_weight


def propagate(graph: TriGraph, seeds: Mapping[int, float], cosines: Cosines, p: Params) -> Activation:
    """The authors' breadth-first walk, one tier at a time by arrays (tests/test_linearrag.py has it entity by entity).

    Each entity of the present tier, in order, takes its ``top_k_sentence`` best sentences that none took before; every
    entity in such a sentence gets score x similarity where that reaches the threshold, and is in the next tier.
    """
    count, used = len(graph.entities), np.zeros(graph.entity_sentences.shape[1], dtype=bool)
    active = _seeded(count, seeds)
    frontier = np.flatnonzero(active.tiers)
    values = active.scores[frontier]
    for tier in range(2, p.max_iterations + 1):
        strong = values >= p.threshold
        frontier, values = frontier[strong], values[strong]
        owner, sentence = _entries(graph.entity_sentences, frontier)
        free = ~used[sentence]
        owner, sentence = owner[free], sentence[free]
        similar = cosines(sentence)
        order = np.lexsort((sentence, -similar, owner))
        taken = order[_taken(owner[order], sentence[order], p.top_k_sentence)]
        used[sentence[taken]] = True
        passed = values[owner[taken]] * similar[taken]
        kept = passed >= p.threshold
        place, entity = _entries(graph.sentence_entities, sentence[taken[kept]])
        if not len(entity):
            break
        gained = passed[kept][place]
        active.weights += np.bincount(entity, gained, minlength=count)
        best = np.zeros(count)
        np.maximum.at(best, entity, gained)
        frontier = np.unique(entity)
        values = best[frontier]
        new = frontier[active.tiers[frontier] == 0]
        active.scores[new], active.tiers[new] = best[new], tier
    return active


def _entries(matrix: sparse.csr_array, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(place in ``rows``, column) of each entry of these rows; what scipy makes two matrices for."""
    starts = matrix.indptr[rows]
    counts = matrix.indptr[rows + 1] - starts
    ends = np.cumsum(counts)
    first = np.repeat(starts - ends + counts, counts)
    return np.repeat(np.arange(len(rows)), counts), matrix.indices[first + np.arange(len(first))]


def _taken(owner: np.ndarray, sentence: np.ndarray, k: int) -> np.ndarray:
    """Places of the pairs taken if each owner in turn takes its first k sentences that none before it took.

    The pairs are sorted by owner, each one's best sentence first. All choose at once; who chose a sentence that an
    earlier one chose too gives it up and chooses again. What the earlier one has chosen it never gives back, unless
    to a still earlier one, so the outcome is that of taking turns.
    """
    open_ = np.ones(len(owner), dtype=bool)
    while True:
        places = np.flatnonzero(open_)
        rank = np.arange(len(places)) - np.searchsorted(owner[places], owner[places])
        chosen = places[rank < k]
        _, first = np.unique(sentence[chosen], return_index=True)
        if len(first) == len(chosen):
            return chosen
        open_[np.delete(chosen, first)] = False


def _seeded(count: int, seeds: Mapping[int, float]) -> Activation:
    active = Activation(np.zeros(count), np.zeros(count), np.zeros(count, dtype=int))
    for entity, value in seeds.items():
        active.weights[entity] = active.scores[entity] = value
        active.tiers[entity] = 1
    return active
