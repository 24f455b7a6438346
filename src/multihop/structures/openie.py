"""Open information extraction: entities of a passage, then triples about them (HippoRAG's two steps).

One pass feeds HippoRAG, HippoRAG 2, G-Retriever and GFM-RAG. Each passage costs two calls; what came of them is
recorded per passage: a reply that is no JSON even after one repair fails that passage's step and no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from multihop import jsonl
from multihop.retrieval.index import Retriever
from multihop.retrieval.tokens import count_tokens
from multihop.structures.base import Builder, Cost, StructureParams

Triple = tuple[str, str, str]
"""(subject, relation, object), as the model wrote them, outer white space gone."""
_TEXT = {"type": "string", "maxLength": 80}
_TRIPLE = {"type": "array", "items": _TEXT, "minItems": 3, "maxItems": 3}


class Params(StructureParams):
    entity_tokens: int = Field(256, gt=0)
    """Ceiling of the reply with a passage's entities, tokens."""
    triple_tokens: int = Field(1024, gt=0)
    """Ceiling of the reply with its triples, tokens."""


class Named(BaseModel):
    model_config = ConfigDict(extra="ignore")

    entities: list[Any] = Field(json_schema_extra={"items": _TEXT, "maxItems": 12})


class Triples(BaseModel):
    model_config = ConfigDict(extra="ignore")

    triples: list[Any] = Field(json_schema_extra={"items": _TRIPLE, "maxItems": 10})


@dataclass(frozen=True)
class Extraction:
    """What was extracted from one chunk."""

    chunk_id: str
    entities: tuple[str, ...]
    triples: tuple[Triple, ...]


class OpenIE:
    name = "openie"
    Params = Params

    def __init__(self, params: Params):
        self.params = params

    def estimate(self, retriever: Retriever, prompts: Mapping[str, str]) -> Cost:
        """Two calls a passage; replies are taken as half as long as the passage, and as long."""
        fixed = count_tokens(prompts["entities_system"]) + count_tokens(prompts["triples_system"])
        read = write = 0
        for chunk in retriever.chunks:
            tokens = count_tokens(chunk.text)
            read += fixed + 2 * tokens + tokens // 2
            write += min(tokens // 2, self.params.entity_tokens) + min(tokens, self.params.triple_tokens)
        return Cost(2 * len(retriever.chunks), read, write)

    async def build(self, builder: Builder) -> dict[str, Any]:
        # Step by step over all passages, not passage by passage: a server then keeps each step's fixed prompt.
        named = await builder.each(builder.retriever.chunks, lambda chunk: self._entities(builder, chunk.text))
        pairs = list(zip(builder.retriever.chunks, named, strict=True))
        tripled = await builder.each(pairs, lambda pair: self._triples(builder, pair[0].text, pair[1]))
        rows = [_row(chunk.id, e, t) for (chunk, e), t in zip(pairs, tripled, strict=True)]
        jsonl.write(builder.folder / "openie.jsonl", rows)
        return _statistics(rows)

    async def _entities(self, builder: Builder, text: str) -> dict[str, Any]:
        messages = builder.messages("entities", passage=text)
        reply = await builder.llm().json(messages, Named, max_tokens=self.params.entity_tokens)
        if reply.value is None:
            return {"found": [], "malformed": 0, "error": reply.error}
        return _step(_whole(reply.raw, reply.value.entities), _entity_of)

    async def _triples(self, builder: Builder, text: str, named: Any) -> dict[str, Any]:
        entities = "; ".join(named["found"]) if isinstance(named, dict) else ""
        messages = builder.messages("triples", passage=text, entities=entities or "(none)")
        reply = await builder.llm().json(messages, Triples, max_tokens=self.params.triple_tokens)
        if reply.value is None:
            return {"found": [], "malformed": 0, "error": reply.error}
        return _step(_whole(reply.raw, reply.value.triples), _triple_of)

    def load(self, folder: Path, retriever: Retriever, over: Any) -> dict[str, Extraction]:
        """Extractions by chunk id, in corpus order."""
        rows = jsonl.read(folder / "openie.jsonl")
        return {
            row["chunk_id"]: Extraction(row["chunk_id"], tuple(row["entities"]), tuple(map(tuple, row["triples"])))
            for row in rows
        }


def _whole(raw: str, items: list[Any]) -> list[Any]:
    """A reply that ran into its ceiling ends in half a name: the last item goes, and counts as malformed."""
    return items if "}" in raw or raw.endswith("]") else [*items[:-1], None]


def _entity_of(given: Any) -> str | None:
    return (given.strip() or None) if isinstance(given, str) else None


def _triple_of(given: Any) -> Triple | None:
    """Three non-empty strings, else None."""
    if not isinstance(given, list) or len(given) != 3:
        return None
    parts = [_entity_of(part) for part in given]
    return None if None in parts else tuple(parts)


def _step(given: list[Any], read: Callable[[Any], Any]) -> dict[str, Any]:
    """What one reply gave: the well-formed items, each once; what is malformed is left out and counted."""
    found = [value for value in map(read, given) if value is not None]
    return {"found": list(dict.fromkeys(found)), "malformed": len(given) - len(found), "error": None}


def _row(chunk_id: str, entities: Any, triples: Any) -> dict[str, Any]:
    """One line of openie.jsonl; an exception (refused, too long) is that step's error."""
    steps = [
        step if isinstance(step, dict) else {"found": [], "malformed": 0, "error": f"{type(step).__name__}: {step}"}
        for step in (entities, triples)
    ]
    return {
        "chunk_id": chunk_id,
        "entities": steps[0]["found"],
        "triples": [list(t) for t in steps[1]["found"]],
        "malformed": steps[0]["malformed"] + steps[1]["malformed"],
        "errors": [step["error"] for step in steps if step["error"]],
    }


def _statistics(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "passages": len(rows),
        "entities": len({e for row in rows for e in row["entities"]}),
        "mentions": sum(len(row["entities"]) for row in rows),
        "triples": sum(len(row["triples"]) for row in rows),
        "distinct_triples": len({tuple(t) for row in rows for t in row["triples"]}),
        "malformed": sum(row["malformed"] for row in rows),
        "failed_steps": sum(len(row["errors"]) for row in rows),
        "passages_without_triples": sum(not row["triples"] for row in rows),
    }
