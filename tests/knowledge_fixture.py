"""A knowledge graph over the invented world, from triples written by hand: no model is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fake_embedder import small_retriever
from project_fixture import WORLD, tools_for
from scripted_server import Say

from multihop.methods import registry
from multihop.methods.base import Tools
from multihop.retrieval.index import Retriever
from multihop.structures.base import Builder
from multihop.structures.knowledge_graph import KnowledgeGraph, KnowledgeGraphStructure, Params
from multihop.structures.openie import Extraction
from multihop.types import Answer, Question

Triples = Sequence[tuple[str, str, str]]

TRIPLES: dict[str, Triples] = {
    "p0": [("The Lantern Ferry", "written by", "Oda Wren"), ("The Lantern Ferry", "printed in", "Skarholm")],
    "p1": [("Oda Wren", "lived in", "Skarholm"), ("Oda Wren", "sister of", "Emil Wren")],
    "p2": [("Skarholm", "lies on", "Lisse"), ("Skarholm", "has mayor", "Karla Möhn")],
    "p3": [("Karla Möhn", "studied at", "Tavik"), ("Skarholm", "has mayor", "Karla  Möhn!")],
    "p4": [("Lisse", "rises in", "Grey Hills"), ("Lisse", "ends at", "Skarholm")],
    "p5": [("Emil Wren", "buried in", "Tavik")],
    "p7": [("The Salt Choir", "sung in", "Opera House"), ("The Salt Choir", "composed by", "Jon Ekeby")],
    "p8": [("Jon Ekeby", "born in", "Norr"), ("Jon Ekeby", "taught by", "Lene Astrup")],
    "p10": [("Lene Astrup", "taught in", "Norr")],
}


def world(folder: Path, passages: Sequence[tuple[str, str]] = WORLD) -> Retriever:
    return small_retriever(folder, passages)


def statistics_of(
    retriever: Retriever, folder: Path, triples: Mapping[str, Triples] = TRIPLES, **params: Any
) -> tuple[dict[str, Any], KnowledgeGraph]:
    """(what the build says, the loaded graph)."""
    folder.mkdir(parents=True, exist_ok=True)
    over = {c.id: Extraction(c.id, (), tuple(triples.get(c.id, ()))) for c in retriever.chunks}
    structure = KnowledgeGraphStructure(Params(**params))
    said = asyncio.run(structure.build(Builder(retriever, None, {}, folder, over)))
    return said, structure.load(folder, retriever, over)


def graph_of(retriever: Retriever, folder: Path, triples: Mapping[str, Triples] = TRIPLES, **params: Any):
    return statistics_of(retriever, folder, triples, **params)[1]


def ask(graph: KnowledgeGraph, method: str, client: Any, question: str, **options: Any) -> tuple[Answer, Tools]:
    """One question through a method over the graph."""
    made = registry.METHODS.create(method, options, "test")
    tools = tools_for(graph.retriever, client, method)
    tools.structure = graph
    return asyncio.run(made.answer(Question("q", question), tools)), tools


def replies(**by_form: Any):
    """A script: for each JSON form (named, kept) its reply, for the reader two lines."""

    def script(body: Any) -> Say:
        form = (body.get("response_format") or {}).get("json_schema", {}).get("name")
        return Say(by_form[form]) if form else Say("Because: it says so.\nAnswer: Norr")

    return script
