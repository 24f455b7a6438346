"""Personalised PageRank at the size of a benchmark's graph: seconds of processor time a query, beside networkx.

    python benchmarks/ppr.py [nodes] [edges] [queries]

By default 100,000 nodes, 360,000 edges and 10 queries with 5 seeds each, then twice as many nodes and edges: the growth
in processor time, and in memory by the peak of a child that opens the graph and asks. networkx is given a tenth of the
first, and the same queries; the ratio compares both on that tenth.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable

import networkx
import numpy as np

from multihop.structures import ppr

DAMPING, SEEDS = 0.5, 5


def edges_of(nodes: int, edges: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sources, targets and weights, without loops: targets follow a power law, as entities in passages do."""
    sources = rng.integers(nodes, size=edges)
    targets = (nodes * rng.random(edges) ** 3).astype(np.int64)
    targets = np.where(targets == sources, (targets + 1) % nodes, targets)
    return sources, targets, rng.choice([0.5, 1.0, 2.0], size=edges)


def resets(nodes: int, queries: int, rng: np.random.Generator) -> list[np.ndarray]:
    found = []
    for _ in range(queries):
        reset = np.zeros(nodes)
        reset[rng.choice(nodes, SEEDS, replace=False)] = rng.random(SEEDS) + 0.1
        found.append(reset)
    return found


def seconds(rank: Callable[[np.ndarray], np.ndarray], queries: list[np.ndarray]) -> tuple[float, list[np.ndarray]]:
    """(mean seconds of processor time a query, the scores); the first query is asked once before."""
    rank(queries[0])
    started = time.process_time()
    scores = [rank(q) for q in queries]
    return (time.process_time() - started) / len(queries), scores


def networkx_of(nodes: int, edges: tuple[np.ndarray, np.ndarray, np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    graph = networkx.Graph()
    graph.add_nodes_from(range(nodes))
    for a, b, weight in zip(*(column.tolist() for column in edges), strict=True):
        before = graph.get_edge_data(a, b, {"weight": 0.0})["weight"]
        graph.add_edge(a, b, weight=before + weight)

    def rank(reset: np.ndarray) -> np.ndarray:
        seeds = {int(i): float(reset[i]) for i in np.flatnonzero(reset)}
        found = networkx.pagerank(graph, alpha=DAMPING, personalization=seeds, tol=1e-10, max_iter=500)
        return np.array([found[i] for i in range(nodes)])

    return rank


def measure(nodes: int, edges: int, queries: int) -> dict[str, float]:
    """In a child: {query, open: seconds of processor time, mib: peak over what was held before}."""
    reader, writer = os.pipe()
    if child := os.fork():
        os.close(writer)
        with os.fdopen(reader) as said:
            found = said.read()
        if os.waitpid(child, 0)[1]:
            raise SystemExit("the measurement failed, see above")
        return json.loads(found)
    rng = np.random.default_rng(0)
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    graph = ppr.Graph(nodes, *edges_of(nodes, edges, rng))
    opened = time.process_time() - started
    query, _ = seconds(lambda reset: graph.pagerank(reset, DAMPING), resets(nodes, queries, rng))
    mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held) / 1024
    os.write(writer, json.dumps({"query": query, "open": opened, "mib": mib}).encode())
    os._exit(0)


def main(nodes: int = 100_000, edges: int = 360_000, queries: int = 10) -> None:
    one, two = (measure(nodes * times, edges * times, queries) for times in (1, 2))
    for times, found in ((1, one), (2, two)):
        print(f"{nodes * times} nodes, {edges * times} edges: {found['query']:.3f} s a query, ", end="")
        print(f"{found['open']:.1f} s to open the graph, {found['mib']:.0f} MiB")
    print("growth: " + ", ".join(f"{name} {two[name] / one[name]:.2f}" for name in one))

    rng = np.random.default_rng(0)
    nodes, edges = nodes // 10, edges // 10
    small, asked = edges_of(nodes, edges, rng), resets(nodes, queries, rng)
    graph = ppr.Graph(nodes, *small)
    ours, scores = seconds(lambda reset: graph.pagerank(reset, DAMPING), asked)
    theirs, expected = seconds(networkx_of(nodes, small), asked)
    difference = max(float(np.abs(a - b).max()) for a, b in zip(scores, expected, strict=True))
    print(f"{nodes} nodes, {edges} edges: {ours:.4f} s a query, networkx {theirs:.4f} s", end="")
    print(f": {theirs / ours:.1f} times; largest difference {difference:.1e}")


if __name__ == "__main__":
    main(*(int(a) for a in sys.argv[1:]))
