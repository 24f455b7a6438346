"""RAPTOR's tree (Sarthi et al. 2024): passages below, above them summaries of clusters, summaries of those.

A controlled implementation: UMAP and mixtures are seeded, clusters come through the store, and a cluster whose summary
fails is left out and recorded (the authors' code takes the error's text for the summary). A passage without a summary
above it stays in the tree as a root: retrieval looks at all nodes alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from multihop import jsonl
from multihop.retrieval.dense import DenseIndex
from multihop.retrieval.index import Retriever
from multihop.retrieval.sentences import simple_spans
from multihop.retrieval.tokens import count_tokens, truncate_tokens
from multihop.structures import arrays
from multihop.structures.base import Builder, Cost, StructureParams, kept
from multihop.structures.clustering import Cluster, Clustering, check_libraries

CLUSTER_SIZE = 4
"""Nodes a cluster adds to the tree's width, for the estimate before anything is clustered (the paper's trees have
about 6.7 children a node, some of them shared)."""


class Params(StructureParams):
    leaf_tokens: int = Field(150, gt=0)
    """A chunk of at most so many o200k tokens is one leaf."""
    piece_tokens: int = Field(100, gt=0)
    """A longer one becomes leaves of whole sentences of about this size (RAPTOR: 100)."""
    layers: int = Field(3, ge=0)
    """Of summaries at most (RAPTOR's code: 5)."""
    components: int = Field(10, gt=1)
    """Dimensions after UMAP; so many nodes + 1 are not clustered any more (RAPTOR: 10, 11)."""
    neighbours: int = Field(15, gt=1)
    """Largest n_neighbors of UMAP over all nodes of a layer."""
    threshold: float = Field(0.1, gt=0, lt=1)
    """Soft membership of a node in a cluster (RAPTOR: 0.1)."""
    max_clusters: int = Field(50, gt=0)
    cluster_tokens: int = Field(3500, gt=0)
    """A cluster with more is clustered again (RAPTOR: 3,500)."""
    seed: int = 42
    input_tokens: int = Field(3500, gt=0)
    """Of a cluster's texts at most so many are summarised; what is cut off is counted."""
    summary_tokens: int = Field(150, gt=0)
    """Ceiling of a summary (RAPTOR: 100)."""
    umap_version: str = "0.5.12"
    sklearn_version: str = "1.9.1"
    """Of the libraries that cluster: part of what is stored, checked where they run."""


@dataclass(frozen=True)
class Node:
    """A leaf (layer 0: a chunk or a piece of one) or a summary of ``children``, nodes of the layer below."""

    id: int
    layer: int
    text: str
    chunk_id: str | None = None
    """The chunk a leaf is (of); None for a summary."""
    children: tuple[int, ...] = ()


@dataclass(frozen=True)
class LoadedTree:
    """All nodes, position = id, children before parents; ``vectors``: float16 (nodes, dim)."""

    nodes: tuple[Node, ...]
    vectors: np.ndarray

    @cached_property
    def _index(self) -> DenseIndex:
        return DenseIndex(self.vectors)

    def search(self, query: np.ndarray, k: int) -> list[tuple[Node, float]]:
        """The k nodes of any layer nearest to ``query`` (dim,) by cosine, best first (collapsed tree)."""
        return [(self.nodes[i], score) for i, score in self._index.search(query, k)]

    def descendants(self, node: Node) -> list[str]:
        """Ids of the chunks below a node (its own, for a leaf), each once, in corpus order."""
        leaves, ahead, seen = set(), [node], set()
        while ahead:
            at = ahead.pop()
            if at.chunk_id is not None:
                leaves.add(at.id)
            ahead += [self.nodes[c] for c in at.children if c not in seen]
            seen.update(at.children)
        return list(dict.fromkeys(str(self.nodes[i].chunk_id) for i in sorted(leaves)))


@dataclass
class _Growing:
    """The tree while it is built."""

    nodes: list[Node]
    vectors: list[np.ndarray]
    layer: list[int]
    """Ids of the newest layer's nodes."""
    failed: list[dict[str, Any]] = field(default_factory=list)
    truncated: int = 0
    cut: int = 0
    """Summaries that reached their ceiling."""


class Tree:
    name = "tree"
    Params = Params

    def __init__(self, params: Params):
        self.params = params

    def estimate(self, retriever: Retriever, prompts: Mapping[str, str]) -> Cost:
        """A summary for every four nodes of a layer, each as long as it may be."""
        p = self.params
        fixed = count_tokens(prompts["summary_system"]) + count_tokens(prompts["summary_user"])
        leaves = _leaves(retriever, p)
        nodes, read = len(leaves), sum(count_tokens(text) for _, text in leaves)
        calls = prompt = 0
        for _ in range(p.layers):
            if nodes <= p.components + 1:
                break
            clusters = math.ceil(nodes / CLUSTER_SIZE)
            calls += clusters
            prompt += clusters * fixed + min(read, clusters * p.input_tokens)
            nodes, read = clusters, clusters * p.summary_tokens
        return Cost(calls, prompt, calls * p.summary_tokens)

    async def build(self, builder: Builder) -> dict[str, Any]:
        retriever = builder.retriever
        leaves = [Node(i, 0, text, chunk) for i, (chunk, text) in enumerate(_leaves(retriever, self.params))]
        tree = _Growing(leaves, _leaf_vectors(builder, leaves), list(range(len(leaves))))
        sizes = [len(leaves)]
        while len(sizes) <= self.params.layers and len(tree.layer) > self.params.components + 1:
            clusters = self._clusters(retriever, tree)
            if len(clusters) >= len(tree.layer):
                break  # summaries would be no fewer than what they summarise
            await self._summarise(builder, tree, clusters, len(sizes))
            if not tree.layer:
                break  # all failed
            sizes.append(len(tree.layer))
        jsonl.write(builder.folder / "nodes.jsonl", map(_row, tree.nodes))
        jsonl.write(builder.folder / "failed.jsonl", tree.failed)
        arrays.save(builder.folder, vectors=np.stack(tree.vectors))
        return _statistics(tree, sizes)

    def _clusters(self, retriever: Retriever, tree: _Growing) -> list[Cluster]:
        """Clusters of the newest layer, as node ids, through the store."""
        p, ids = self.params, tree.layer
        method = Clustering(p.components, p.neighbours, p.threshold, p.max_clusters, p.cluster_tokens, p.seed)
        texts = [tree.nodes[i].text for i in ids]

        def make(_: list[str]) -> list[Any]:
            check_libraries(p.umap_version, p.sklearn_version)
            vectors = np.stack([tree.vectors[i] for i in ids])
            return [[list(c) for c in method.clusters(vectors, [count_tokens(t) for t in texts])]]

        space = (
            f"raptor-clusters/umap@{p.umap_version},sklearn@{p.sklearn_version}/{retriever.embedder.space}/"
            + jsonl.dumps(vars(method))
        )
        [found] = kept(retriever, space, [jsonl.digest(texts)], make)
        return [tuple(ids[i] for i in cluster) for cluster in found]

    async def _summarise(self, builder: Builder, tree: _Growing, clusters: list[Cluster], layer: int) -> None:
        """One call a cluster; what came of it becomes the newest layer."""
        p = self.params
        words = p.summary_tokens * 2 // 3
        whole = ["\n\n".join(tree.nodes[i].text for i in cluster) for cluster in clusters]
        given = [truncate_tokens(text, p.input_tokens) for text in whole]
        tree.truncated += sum(a != b for a, b in zip(whole, given, strict=True))
        replies = await builder.each(
            given,
            lambda text: builder.llm().chat(
                builder.messages("summary", texts=text, words=words), max_tokens=p.summary_tokens
            ),
        )
        new = []
        for cluster, reply in zip(clusters, replies, strict=True):
            failure = f"{type(reply).__name__}: {reply}" if isinstance(reply, Exception) else None
            text = "" if failure else " ".join(reply.text.strip().removeprefix("Summary:").split())
            if not text:
                tree.failed.append({"layer": layer, "children": list(cluster), "error": failure or "empty reply"})
                continue
            tree.cut += reply.finish_reason == "length"
            new.append(Node(len(tree.nodes) + len(new), layer, text, None, cluster))
        if new:
            tree.vectors += list(builder.vectors([node.text for node in new]))
        tree.nodes = [*tree.nodes, *new]
        tree.layer = [node.id for node in new]

    def load(self, folder: Path, retriever: Retriever, over: Any) -> LoadedTree:
        """Raises DataError for missing or damaged files."""
        [vectors] = arrays.read(folder, "vectors")
        try:
            rows = jsonl.read(folder / "nodes.jsonl")
            nodes = tuple(Node(**row | {"children": tuple(row["children"])}) for row in rows)
        except (TypeError, KeyError) as e:
            raise arrays.damaged(folder) from e
        if len(nodes) != len(vectors) or any(node.id != i for i, node in enumerate(nodes)):
            raise arrays.damaged(folder)
        return LoadedTree(nodes, vectors)


def _leaves(retriever: Retriever, p: Params) -> list[tuple[str, str]]:
    """(chunk id, text) of every leaf, in corpus order: a chunk, or its pieces where it is long."""
    leaves = []
    for chunk in retriever.chunks:
        long = count_tokens(chunk.text) > p.leaf_tokens
        leaves += [(chunk.id, text) for text in (_pieces(chunk.text, p.piece_tokens) if long else [chunk.text])]
    return leaves


def _pieces(text: str, limit: int) -> list[str]:
    """Runs of whole sentences of ``text``, as they stand, within ``limit`` tokens; a longer sentence stands alone."""
    spans: list[tuple[int, int]] = []
    for start, end in simple_spans(text):
        if spans and count_tokens(text[spans[-1][0] : end]) <= limit:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return [text[start:end] for start, end in spans] or [text]


def _leaf_vectors(builder: Builder, leaves: Sequence[Node]) -> list[np.ndarray]:
    """A chunk's own vector; pieces are encoded."""
    retriever = builder.retriever
    pieces = {leaf.text: None for leaf in leaves if leaf.text != retriever.text(str(leaf.chunk_id))}
    encoded = dict(zip(pieces, builder.vectors(list(pieces)), strict=True)) if pieces else {}
    return [encoded[x.text] if x.text in encoded else retriever.chunk_vector(str(x.chunk_id)) for x in leaves]


def _row(node: Node) -> dict[str, Any]:
    return vars(node) | {"children": list(node.children)}


def _statistics(tree: _Growing, sizes: list[int]) -> dict[str, Any]:
    return {
        "leaves": sizes[0],
        "summaries": len(tree.nodes) - sizes[0],
        "layers": len(sizes) - 1,
        **{f"nodes_layer_{layer}": size for layer, size in enumerate(sizes)},
        "children": sum(len(node.children) for node in tree.nodes),
        "failed": len(tree.failed),
        "truncated_inputs": tree.truncated,
        "cut_summaries": tree.cut,
    }
