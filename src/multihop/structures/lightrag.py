"""LightRAG's graph (Guo et al. 2024): entities and relations with descriptions, extracted passage by passage.

The package extracts and merges; what querying needs is written in our own files, because the package's hold times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
from pydantic import Field

from multihop import jsonl
from multihop.errors import MultihopError
from multihop.llm.client import ContextOverflow, Refused
from multihop.retrieval.index import Retriever
from multihop.retrieval.tokens import count_tokens
from multihop.structures import arrays
from multihop.structures import lightrag_adapter as adapter
from multihop.structures.base import Builder, Cost, StructureParams
from multihop.structures.lightrag_graph import Entity, LightRagIndex, Relation

_PACKAGE_PROMPT = 1640
"""o200k tokens of the package's own extraction prompt, without the passage."""


class Params(StructureParams):
    prompt: Literal["short", "package"] = "package"
    """``package``: its own extraction prompt (1,640 tokens); ``short``: ours, for a small model on a CPU."""
    max_entities: int = Field(40, gt=0)
    """Entities that a prompt asks for at most, of one passage (package: 40)."""
    max_records: int = Field(100, gt=0)
    """Entities and relations that it asks for at most (package: 100)."""
    extract_tokens: int = Field(1024, gt=0)
    """Ceiling of a reply, tokens."""
    gleaning: int = Field(0, ge=0, le=1)
    """Rounds that ask again for what was missed (package: 1)."""
    summary_from: int = Field(8, ge=0)
    """Descriptions of one entity or relation from which the model merges them (package: 8); 0: never."""
    description_tokens: int = Field(1200, gt=0)
    """Of an unmerged list of descriptions, the first that fit are kept (package: merged from 1,200 tokens on)."""
    batch: int = Field(100, gt=0)
    """Passages inserted as one document: each document rewrites the files of all documents."""


class LightRag:
    name = "lightrag"
    Params = Params

    def __init__(self, params: Params):
        self.params = params

    def estimate(self, retriever: Retriever, prompts: Mapping[str, str]) -> Cost:
        """A call a passage (two with gleaning, which repeats the first); merging summaries come on top."""
        short = count_tokens(prompts["extract_system"]) + count_tokens(prompts["extract_user"])
        fixed = short if self.params.prompt == "short" else _PACKAGE_PROMPT
        calls = len(retriever.chunks) * (1 + self.params.gleaning)
        read = write = 0
        for chunk in retriever.chunks:
            tokens = count_tokens(chunk.text)
            reply = min(2 * tokens, self.params.extract_tokens)
            read += (fixed + tokens) * (1 + self.params.gleaning) + reply * self.params.gleaning
            write += reply * (1 + self.params.gleaning)
        return Cost(calls, read, write)

    async def build(self, builder: Builder) -> dict[str, Any]:
        """Raises ConfigError without the package, MultihopError where a batch failed."""
        adapter.require()
        ids_of: dict[str, list[str]] = {}
        for chunk in builder.retriever.chunks:
            # Identical passages are inserted once and stand for each other: a second one tells the package nothing.
            ids_of.setdefault(adapter.clean(chunk.text), []).append(chunk.id)
        ids_of.pop("", None)
        asking = _Asking(builder, self.params.extract_tokens, ids_of)
        async with adapter.turn():
            with TemporaryDirectory(dir=builder.folder) as scratch:
                entities, relations = await self._extracted(builder, Path(scratch), ids_of, asking)
        _write(builder, "entities", entities)
        _write(builder, "relations", relations)
        jsonl.write(builder.folder / "failed.jsonl", sorted(asking.failures, key=jsonl.dumps))
        found = {i for e in entities for i in e.chunks}  # the package keeps 200 chunks of an entity
        return {
            "chunks": len(builder.retriever.chunks),
            "inserted": len(ids_of),
            "entities": len(entities),
            "relations": len(relations),
            "chunks_without_entities": sum(c.id not in found for c in builder.retriever.chunks),
            "failed_calls": len(asking.failures),
            "summary_calls": asking.summaries,
        }

    async def _extracted(
        self, builder: Builder, scratch: Path, ids_of: Mapping[str, Sequence[str]], asking: _Asking
    ) -> tuple[list[Entity], list[Relation]]:
        p = self.params
        ours = {k: builder.prompts[f"extract_{k}"] for k in ("system", "user")}
        # Its own vectors, of descriptions still growing, serve nothing here.
        rag = await adapter.open_rag(
            scratch,
            "build",
            asking,
            lambda texts, context: np.ones((len(texts), 1)),
            1,
            llm_model_max_async=builder.workers,
            entity_extract_max_gleaning=p.gleaning,
            entity_extract_max_records=p.max_records,
            entity_extract_max_entities=p.max_entities,
            chunk_token_size=1 + max([1200, *map(count_tokens, ids_of)]),
            chunk_overlap_token_size=0,
            **adapter.merging(p.summary_from),
        )
        adapter.keep_in_memory(rag)
        of: dict[str, Sequence[str]] = {}
        texts = list(ids_of)
        with adapter.steady(), adapter.prompts(**ours) if p.prompt == "short" else nullcontext():
            for start in range(0, len(texts), p.batch):
                block = texts[start : start + p.batch]
                try:
                    inserted = await adapter.insert(rag, f"batch-{start // p.batch:04d}", block)
                except MultihopError as e:
                    raise asking.error or e from None  # the package reports what our client raised as a failed batch
                of |= {key: ids_of[text] for key, text in zip(inserted, block, strict=True)}
        return await self._exported(rag, of, {c.id: i for i, c in enumerate(builder.retriever.chunks)})

    async def _exported(
        self, rag: Any, of: Mapping[str, Sequence[str]], place: Mapping[str, int]
    ) -> tuple[list[Entity], list[Relation]]:
        def corpus(keys: Sequence[str]) -> tuple[str, ...]:
            return tuple(sorted({i for key in keys for i in of[key]}, key=place.__getitem__))

        def parts(row: Mapping[str, Any]) -> dict[str, Any]:
            chunks = corpus(row["source_id"].split(adapter.SEPARATOR))
            return {"description": self._cut(row["description"]), "chunks": chunks}

        nodes = await rag.chunk_entity_relation_graph.get_all_nodes()
        edges = await rag.chunk_entity_relation_graph.get_all_edges()
        entities = [Entity(n["id"], n["entity_type"], **parts(n)) for n in nodes]
        relations = [
            Relation(*sorted((e["source"], e["target"])), e["keywords"], weight=float(e["weight"]), **parts(e))
            for e in edges
        ]
        return sorted(entities, key=lambda e: e.name), sorted(relations, key=lambda r: (r.source, r.target))

    def _cut(self, description: str) -> str:
        pieces, left = [], self.params.description_tokens
        for piece in description.split(adapter.SEPARATOR):
            left -= count_tokens(piece)
            if pieces and left < 0:
                break
            pieces.append(piece)
        return adapter.SEPARATOR.join(pieces)

    def load(self, folder: Path, retriever: Retriever, over: Any) -> LightRagIndex:
        """Reads the files alone; the package is needed by the first search that is not stored."""
        entities = [Entity(**row | {"chunks": tuple(row["chunks"])}) for row in jsonl.read(folder / "entities.jsonl")]
        relations = [
            Relation(**row | {"chunks": tuple(row["chunks"])}) for row in jsonl.read(folder / "relations.jsonl")
        ]
        vectors = arrays.read(folder, "entities", "relations")
        if [len(v) for v in vectors] != [len(entities), len(relations)]:
            raise arrays.damaged(folder)
        return LightRagIndex(retriever, entities, relations, *vectors)


def _write(builder: Builder, name: str, rows: Sequence[Entity | Relation]) -> None:
    jsonl.write(builder.folder / f"{name}.jsonl", map(asdict, rows))
    arrays.save(builder.folder, **{name: builder.vectors([r.content for r in rows])})


class _Asking:
    """The package's calls, through our client. What concerns one passage alone fails that passage; a summary that fails
    leaves the descriptions as they are, where the package would store nothing in their place."""

    def __init__(self, builder: Builder, max_tokens: int, ids_of: Mapping[str, Sequence[str]]):
        self.builder, self.max_tokens, self.ids_of = builder, max_tokens, ids_of
        self.summaries = 0
        self.failures: list[dict[str, Any]] = []
        """Rows of failed.jsonl: ``step``, ``of`` (chunk ids, or the entity or relation), ``error``."""
        self.error: Exception | None = None

    async def __call__(self, messages: list[dict[str, str]]) -> str:
        summary = messages[0]["role"] != "system"
        self.summaries += summary
        try:
            reply = (await self.builder.llm().chat(messages, max_tokens=self.max_tokens)).text
            error = "empty reply"
        except (Refused, ContextOverflow) as e:
            reply, error = "", f"{type(e).__name__}: {e}"
        except Exception as e:
            self.error = self.error or e
            raise
        if reply.strip():
            return reply
        if summary:
            name, instead = adapter.described(messages[-1]["content"])
            self.failures.append({"step": "summary", "of": name, "error": error})
            return instead
        # A round of gleaning repeats the first request: the passage is in the second message of both.
        passage = max((text for text in self.ids_of if text in messages[1]["content"]), key=len, default="")
        self.failures.append({"step": "extraction", "of": list(self.ids_of.get(passage, ())), "error": error})
        return adapter.NOTHING
