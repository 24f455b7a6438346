"""What a method is, and the tools it is given.

A method has a ``name``, a pydantic ``Params`` and ``async answer(question, tools) -> Answer``. It opens no file,
reads no environment variable, catches no provider error, prints nothing and does not know its dataset. See
docs/adding-a-method.md.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict

from multihop.llm.client import ChatClient
from multihop.llm.model import Model, messages_of
from multihop.retrieval.index import Retriever
from multihop.retrieval.tokens import count_tokens
from multihop.trace import Trace
from multihop.types import Answer, Hit, Question


class MethodParams(BaseModel):
    """Base of every method's Params: unknown keys and wrong types are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Method(Protocol):
    name: str
    mode: Literal["short", "free"]
    """Its answer contract: a marked short answer (the default), or free text."""
    Params: type[MethodParams]
    params: Any
    # A method that is trained also says ``trained_as``: "controller", "network" or "baselines" (params.yaml:
    # ``trained``); one that searches an index of its own says ``structure``, that index's name in structures/; one
    # whose calls for a question are few and follow from no search of their own says ``single_shot = True``: an
    # endpoint with ``batch: true`` is sent them for all questions at once.

    async def answer(self, question: Question, tools: Tools) -> Answer:
        """Answer one question. Everything noteworthy goes to ``tools.trace``."""
        ...


@dataclass
class Tools:
    """Everything a method may use for one question."""

    retriever: Retriever
    client: ChatClient
    prompts: Mapping[str, str]
    """Prompt texts by file name: the method's own folder over prompts/shared."""
    trace: Trace
    seed: int
    rng: random.Random
    """Seeded by (run seed, question id): independent of order, workers and shards."""
    trained: Any = None
    """What this run's method was trained to (params.yaml: ``trained``); None for a method without training."""
    structure: Any = None
    """The index of this run's method (params.yaml: ``structure``), loaded; None for a method without one."""

    def messages(self, name: str, **fields: Any) -> list[dict[str, Any]]:
        """Prompt ``<name>_system`` as it stands, then ``<name>_user`` filled in with ``fields``."""
        return messages_of(self.prompts, name, **fields)

    def llm(self, role: str = "reader") -> Model:
        return Model(role, self.client, self.trace, self.seed, self.prompts["repair"])

    def retrieve(
        self, query: str, k: int, *, step: int = 1, lexical: bool = False, tool: str = "retrieve"
    ) -> list[Hit]:
        """Dense (or BM25) top-k chunks, recorded with their full texts as read."""
        hits = self.retriever.bm25(query, k) if lexical else self.retriever.dense(query, k)
        self.record_search(hits, query, step, tool)
        return hits

    def fallback(self, question: str, k: int, what: str, tool: str) -> list[Hit]:
        """Dense search where a structured method can't go its own way; ``what`` (snake_case) says why."""
        self.trace.event(1, "fallback", what=what, to="dense")
        return self.retrieve(question, k, tool=tool)

    def record_search(self, hits: list[Hit], query: str, step: int, tool: str) -> list[str]:
        """Record a search whose hits are shown in full; returns the chunk ids that are new to this question."""
        tokens = sum(count_tokens(self.text(h.chunk_id)) for h in hits if h.chunk_id not in self.trace.read)
        new = self.trace.search(step, tool, query, [h.chunk_id for h in hits], [h.score for h in hits], tokens)
        self.trace.read.update(dict.fromkeys(h.chunk_id for h in hits))
        return new

    def text(self, chunk_id: str) -> str:
        return self.retriever.text(chunk_id)

    def numbered(self, chunk_ids: list[str]) -> str:
        """Passages as every prompt shows them: id in brackets, then the text."""
        return "\n\n".join(f"[{c}] {self.text(c)}" for c in chunk_ids)


def split_answer(text: str) -> tuple[str, bool]:
    """(short answer, marker found): what follows the last "Answer:", else the last non-empty line."""
    if markers := list(re.finditer(r"answer:", text, re.IGNORECASE)):
        tail = text[markers[-1].end() :].strip()
        return (tail.splitlines()[0].strip() if tail else ""), True
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[-1] if lines else ""), False
