"""Personalised PageRank and rankings that another processor repeats."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from multihop.types import Chunk, Hit

DIGITS = 6
"""Scores are rounded to this many digits of the largest one before they are compared: the last bits of a power
iteration differ between processors, and equal scores are then ordered by position everywhere."""


class Graph:
    """An undirected weighted graph, open for PageRank. Parallel edges count by the sum of their weights."""

    def __init__(self, nodes: int, sources: Sequence[int], targets: Sequence[int], weights: Sequence[float]):
        import igraph

        edges = np.stack([np.asarray(sources, dtype=np.int64), np.asarray(targets, dtype=np.int64)], axis=1)
        self.nodes = nodes
        self._graph = igraph.Graph(n=nodes, edges=edges.tolist(), directed=False)
        self._graph.es["weight"] = np.asarray(weights, dtype=np.float64).tolist()

    def pagerank(self, reset: np.ndarray, damping: float) -> np.ndarray:
        """Stationary distribution (nodes,), sums to 1. ``damping``: the probability to follow an edge.

        A walk that ends in a node without edges restarts by ``reset``. Raises ValueError for a reset that is
        negative, not finite or zero everywhere: the caller decides what a question without seeds gets.
        """
        reset = np.asarray(reset, dtype=np.float64)
        if reset.shape != (self.nodes,) or not np.isfinite(reset).all() or (reset < 0).any() or not reset.any():
            raise ValueError("reset: expected one finite weight >= 0 for each node, not all zero")
        scores = self._graph.personalized_pagerank(
            directed=False,
            damping=damping,
            reset=reset.tolist(),
            weights="weight" if self._graph.ecount() else None,
            implementation="prpack",
        )
        return np.asarray(scores)

    def statistics(self) -> dict[str, int]:
        """Nodes, edges, connected components, the largest one's nodes, nodes without edges."""
        sizes = self._graph.connected_components().sizes()
        return {
            "nodes": self.nodes,
            "edges": self._graph.ecount(),
            "components": len(sizes),
            "largest_component": max(sizes, default=0),
            "isolated": sum(degree == 0 for degree in self._graph.degree()),
        }


def rounded(scores: np.ndarray) -> np.ndarray:
    """Scores rounded relative to the largest; all zeros stay."""
    scores = np.asarray(scores, dtype=np.float64)
    top = np.abs(scores).max(initial=0.0)
    return scores if top == 0 else np.round(scores / top, DIGITS) * top


def best(scores: np.ndarray, k: int) -> list[int]:
    """Positions of the k best scores, best first; equal ones (after rounding) by position."""
    order = np.argsort(-rounded(scores), kind="stable")
    return order[: max(k, 0)].tolist()


def hits(chunks: Sequence[Chunk], scores: np.ndarray, k: int) -> list[Hit]:
    """The k chunks of the best scores (chunks,), equal ones by position, those with 0 left out.

    Scores are relative to the best and rounded, so that records are the same on every processor.
    """
    scores = np.asarray(scores, dtype=np.float64)
    scores = np.round(scores / max(scores.max(initial=0.0), np.finfo(float).tiny), DIGITS)
    chosen = [i for i in best(scores, k) if scores[i] > 0]
    return [Hit(chunks[i].id, rank, float(scores[i])) for rank, i in enumerate(chosen, 1)]


def minmax(scores: np.ndarray) -> np.ndarray:
    """Scaled to [0, 1]; where all are equal, all become 1 (as HippoRAG's code has it)."""
    scores = np.asarray(scores, dtype=np.float64)
    if scores.size == 0:
        return scores
    low, high = scores.min(), scores.max()
    return np.ones_like(scores) if high == low else (scores - low) / (high - low)
