"""LightRAG (Guo et al. 2024): keywords of the question, then entities, relations and their passages from a graph.

The package retrieves (structures/lightrag_graph.py); the answer is the shared reader's, in the short contract,
because the package's own prompt asks for several paragraphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from multihop.methods.base import MethodParams, Tools
from multihop.methods.reading import read_and_answer
from multihop.structures.lightrag_graph import Found
from multihop.types import Answer, Hit, Question

_KEYWORD = {"type": "string", "maxLength": 60}


class Params(MethodParams):
    mode: Literal["hybrid", "mix", "local", "global"] = "hybrid"
    """``local``: entities by low-level keywords; ``global``: relations by high-level ones; ``hybrid``: both;
    ``mix``: and passages by the question (the package's default)."""
    top_k: int = Field(40, gt=0)
    """Entities, and relations, that a search finds at most."""
    chunk_top_k: int = Field(20, gt=0)
    """Passages at most."""
    entity_tokens: int = Field(2000, gt=0)
    """Of the entities shown, as the package counts them (JSON)."""
    relation_tokens: int = Field(2000, gt=0)
    chunk_tokens: int = Field(4000, gt=0)
    """Of the passages shown; the best one is always shown."""
    keyword_tokens: int = Field(256, gt=0)
    """Ceiling of the reply with the keywords."""
    k: int = Field(5, gt=0)
    """Passages of a dense search, where the graph holds nothing for the question."""
    max_tokens: int = Field(512, gt=0)


class Keywords(BaseModel):
    model_config = ConfigDict(extra="ignore")

    high_level: list[Any] = Field(json_schema_extra={"items": _KEYWORD, "maxItems": 4})
    low_level: list[Any] = Field(json_schema_extra={"items": _KEYWORD, "maxItems": 6})


class LightRag:
    name = "lightrag"
    mode = "short"
    Params = Params
    structure = "lightrag"

    def __init__(self, params: Params):
        self.params = params

    async def answer(self, question: Question, tools: Tools) -> Answer:
        p = self.params
        high, low = await self._keywords(question.text, tools)
        found = await tools.structure.search(
            question.text,
            high,
            low,
            mode=p.mode,
            top_k=p.top_k,
            chunk_top_k=p.chunk_top_k,
            max_entity_tokens=p.entity_tokens,
            max_relation_tokens=p.relation_tokens,
        )
        tools.trace.loops = 1
        if not found.chunk_ids:
            hits = tools.fallback(question.text, p.k, "no_passages", self.name)
            return await read_and_answer(question, [h.chunk_id for h in hits], tools, max_tokens=p.max_tokens)
        shown = self._packed(found.chunk_ids, tools)
        # The package gives no scores: a passage's place stands for one.
        hits = [Hit(chunk_id, rank, 1.0 / rank) for rank, chunk_id in enumerate(shown, 1)]
        tools.record_search(hits, question.text, 1, self.name)
        tools.trace.event(
            1,
            "graph",
            entities=[e.name for e in found.entities],
            relations=[[r.source, r.target] for r in found.relations],
            chunks_found=len(found.chunk_ids),
        )
        context = "\n\n".join(part for part in (_graph(found), tools.numbered(shown)) if part)
        return await read_and_answer(question, shown, tools, max_tokens=p.max_tokens, context=context)

    async def _keywords(self, question: str, tools: Tools) -> tuple[list[str], list[str]]:
        """High-level and low-level ones; the question stands for a list that is empty."""
        messages = tools.messages("keywords", question=question)
        reply = await tools.llm("control").json(messages, Keywords, max_tokens=self.params.keyword_tokens)
        if reply.value is None:
            tools.trace.event(1, "parse_failed", what="keywords", error=reply.error)
        lists = {"high_level": [], "low_level": []} if reply.value is None else reply.value.model_dump()
        found = {name: _distinct(given) for name, given in lists.items()}
        tools.trace.event(1, "keywords", **found)
        for name in (name for name, words in found.items() if not words):
            tools.trace.event(1, "fallback", what=name, to="question")
            found[name] = [question]
        return found["high_level"], found["low_level"]

    def _packed(self, chunk_ids: Sequence[str], tools: Tools) -> list[str]:
        """The first passages that fit together."""
        packed, left = [], self.params.chunk_tokens
        for chunk_id in chunk_ids:
            left -= tools.retriever.tokens(chunk_id)
            if packed and left < 0:
                break
            packed.append(chunk_id)
        return packed


def _distinct(given: Sequence[Any]) -> list[str]:
    words = (word.strip() for word in given if isinstance(word, str))
    return list(dict.fromkeys(word for word in words if word))


def _graph(found: Found) -> str:
    """Entities and relations as the reader sees them, best first."""
    parts = []
    if found.entities:
        parts.append("Entities:\n" + "\n".join(f"- {e.name} ({e.type}): {e.said}" for e in found.entities))
    if found.relations:
        lines = (f"- {r.source} -- {r.target} ({r.keywords}): {r.said}" for r in found.relations)
        parts.append("Relations:\n" + "\n".join(lines))
    return "\n\n".join(parts)
