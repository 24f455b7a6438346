"""An invented knowledge graph for tests of GFM-RAG: built from written triples over a small corpus, no model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from fake_embedder import HashEmbedder, small_retriever

from multihop.structures import gnn, gnn_fit
from multihop.structures.base import Builder
from multihop.structures.knowledge_graph import KnowledgeGraph, KnowledgeGraphStructure, Params
from multihop.structures.openie import Extraction

PASSAGES = [
    ("The Salt Road", "The Salt Road is a novel by Ines Havel."),
    ("Ines Havel", "Ines Havel was born in Dorvik."),
    ("Dorvik", "Dorvik lies on the river Arle."),
    ("Arle", "The Arle rises in the Kemp Hills."),
    ("Mern", "Mern is a village of potters."),
    ("Nothing", "It rained all day and nobody came."),
]
TRIPLES = {
    0: [("The Salt Road", "novel by", "Ines Havel")],
    1: [("Ines Havel", "born in", "Dorvik")],
    2: [("Dorvik", "lies on", "Arle")],
    3: [("Arle", "rises in", "Kemp Hills")],
    4: [("Mern", "village of", "potters")],
}


def small_graph(folder: Path, passages=PASSAGES, triples=None, embedder: HashEmbedder | None = None) -> KnowledgeGraph:
    """The loaded graph of ``triples`` (by position of the passage)."""
    import asyncio

    retriever = small_retriever(folder, passages, embedder)
    triples = TRIPLES if triples is None else triples
    over = {c.id: Extraction(c.id, (), tuple(triples.get(i, ()))) for i, c in enumerate(retriever.chunks)}
    structure = KnowledgeGraphStructure(Params())
    place = folder / "graph"
    place.mkdir()
    asyncio.run(structure.build(Builder(retriever, None, {}, place, over)))
    return structure.load(place, retriever, over)


def network_of(features: int = 24, hidden: int = 8, layers: int = 2, seed: int = 0, label: str = "test") -> gnn.Network:
    """An untrained network."""
    sizes = gnn.Sizes(features, hidden, layers)
    weights = gnn_fit.initial(sizes, np.random.default_rng(seed))
    return gnn.Network(sizes, {n: w.round(6).astype(np.float32) for n, w in weights.items()}, label)


def constant(network: gnn.Network) -> gnn.Network:
    """The same, but every entity gets the same score."""
    last = {
        f"entity_model.mlp.2.{p}": np.zeros_like(network.weights[f"entity_model.mlp.2.{p}"]) for p in ("weight", "bias")
    }
    return gnn.Network(network.sizes, dict(network.weights) | last, network.label)
