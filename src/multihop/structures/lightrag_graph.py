"""LightRAG's graph as our files hold it, and the package's retrieval over it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from multihop import jsonl
from multihop.retrieval.index import Retriever
from multihop.structures import lightrag_adapter as adapter
from multihop.structures.base import kept

_SHORTEST = 3
"""Characters of a question, below which the package refuses to search."""


@dataclass(frozen=True)
class Entity:
    """A node of the graph."""

    name: str
    type: str
    description: str
    chunks: tuple[str, ...]
    """Ids of the corpus chunks that it was found in, corpus order."""

    @property
    def content(self) -> str:
        """What its vector is of, as the package has it."""
        return f"{self.name}\n{self.description}"

    @property
    def said(self) -> str:
        return _joined(self.description)


@dataclass(frozen=True)
class Relation:
    """An undirected edge; ``source`` < ``target``."""

    source: str
    target: str
    keywords: str
    description: str
    weight: float
    chunks: tuple[str, ...]

    @property
    def content(self) -> str:
        return f"{self.keywords}\t{self.source}\n{self.target}\n{self.description}"

    @property
    def said(self) -> str:
        return _joined(self.description)


@dataclass(frozen=True)
class Found:
    """What one search retrieved, best first."""

    entities: list[Entity]
    relations: list[Relation]
    chunk_ids: list[str]


@dataclass
class LightRagIndex:
    """The graph, and the package's retrieval over it."""

    retriever: Retriever
    entities: list[Entity]
    relations: list[Relation]
    entity_vectors: np.ndarray
    """float16 (entities, dim)."""
    relation_vectors: np.ndarray
    """float16 (relations, dim)."""
    _rag: Any = None
    _loop: Any = None

    async def search(self, question: str, high: Sequence[str], low: Sequence[str], **options: Any) -> Found:
        """The package's ``aquery_data``, without model and reranking. ``options``: mode and ceilings (QueryParam).

        Through the store, so that another processor finds the same. Raises ReplayMiss, ConfigError.
        """
        space = f"lightrag-hku/{adapter.VERSION}/{self._digest}/{jsonl.dumps(options)}"
        key = jsonl.dumps([question, list(high), list(low)])
        new = None
        if self.retriever.allow and key not in self.retriever.store.get_values(space, [key]):
            new = await self._searched(question, high, low, options)
        rows = kept(self.retriever, space, [key], lambda keys: [new])[0]
        return Found(
            [self.entities[i] for i in rows["entities"]],
            [self.relations[i] for i in rows["relations"]],
            [self.retriever.chunks[i].id for i in rows["chunks"]],
        )

    @cached_property
    def _digest(self) -> str:
        """Of everything that decides a search, but for its options."""
        graph = [[asdict(row) for row in rows] for rows in (self.entities, self.relations)]
        corpus = [[c.id, c.text] for c in self.retriever.chunks]
        embedder = self.retriever.embedder
        return jsonl.digest([graph, corpus, embedder.space, embedder.space_of("query")])[:16]

    @cached_property
    def _rows(self) -> tuple[dict[str, int], dict[tuple[str, str], int], dict[str, int]]:
        """Where entities, relations and chunks stand."""
        return (
            {e.name: i for i, e in enumerate(self.entities)},
            {(r.source, r.target): i for i, r in enumerate(self.relations)},
            {c.id: i for i, c in enumerate(self.retriever.chunks)},
        )

    async def _searched(self, question: str, high: Sequence[str], low: Sequence[str], options: Any) -> dict[str, Any]:
        if not self.entities or len(question.strip()) < _SHORTEST:
            return {"entities": [], "relations": [], "chunks": []}
        for text in (question, ", ".join(high), ", ".join(low)):
            self.retriever.query_vector(text)  # the package would swallow what this raises
        param = adapter.require().QueryParam(
            hl_keywords=list(high), ll_keywords=list(low), enable_rerank=False, max_total_tokens=10**6, **options
        )
        async with adapter.turn():
            rag = await self._opened()
            with adapter.steady(self._similar):
                data = (await rag.aquery_data(question, param)).get("data") or {}
        entity, relation, chunk = self._rows
        return {
            "entities": [entity[e["entity_name"]] for e in data.get("entities", ())],
            "relations": [relation[min(p), max(p)] for p in map(_ends, data.get("relationships", ()))],
            "chunks": [chunk[c["chunk_id"]] for c in data.get("chunks", ())],
        }

    def _similar(self, query: str, ids: Sequence[str]) -> list[str]:
        """The chunks in order of their cosine with the query; equal ones in corpus order."""
        ids = sorted(ids, key=self._rows[2].__getitem__)
        return [hit.chunk_id for hit in self.retriever.nearest(query, ids, len(ids))]

    async def _opened(self) -> Any:
        """The package over this graph, filled once for an event loop: its locks belong to one."""
        if self._loop is not asyncio.get_running_loop():
            self._rag, self._loop = await self._filled(), asyncio.get_running_loop()
        return self._rag

    async def _filled(self) -> Any:
        known = {e.content: v for e, v in zip(self.entities, self.entity_vectors, strict=True)}
        known |= {r.content: v for r, v in zip(self.relations, self.relation_vectors, strict=True)}
        known |= {c.text: self.retriever.chunk_vector(c.id) for c in self.retriever.chunks}

        def embed(texts: Sequence[str], context: str) -> np.ndarray:
            query = context == "query"
            return np.stack([self.retriever.query_vector(t) if query else known[t] for t in texts]).astype(np.float32)

        async def ask(messages: Any) -> str:
            raise AssertionError("a search asks no model: its keywords are given")

        with TemporaryDirectory() as scratch:  # once written, everything is in memory
            rag = await adapter.open_rag(Path(scratch), "search", ask, embed, self.entity_vectors.shape[1])
            await adapter.fill(rag, self.entities, self.relations, self.retriever.chunks)
        await adapter.freeze(rag, [c.id for c in self.retriever.chunks])
        return rag


def _joined(description: str) -> str:
    return description.replace(adapter.SEPARATOR, "; ")


def _ends(relation: Mapping[str, Any]) -> tuple[str, str]:
    return relation["src_id"], relation["tgt_id"]
