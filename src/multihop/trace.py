"""What happened to one question (or one index), in order: events, retrievals, usage. Becomes the run record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from multihop.types import Event, Retrieved, Usage


@dataclass
class Trace:
    """What happened to one question, in order; becomes the run record."""

    events: list[Event] = field(default_factory=list)
    retrieved: dict[str, Retrieved] = field(default_factory=dict)
    read: dict[str, None] = field(default_factory=dict)
    usage: dict[str, Usage] = field(default_factory=dict)
    retrieved_tokens: int = 0
    seed_tokens: int = 0
    retrieval_calls: int = 0
    loops: int = 0
    forced: bool = False

    def event(self, step: int, kind: str, **data: Any) -> None:
        self.events.append(Event(step, kind, data))

    def surface(self, chunk_ids: list[str] | tuple[str, ...], step: int, tool: str) -> list[str]:
        """Record chunks as retrieved; returns those that are new."""
        new = [c for c in dict.fromkeys(chunk_ids) if c not in self.retrieved]
        for chunk_id in new:
            self.retrieved[chunk_id] = Retrieved(chunk_id, step, tool)
        return new

    def search(
        self,
        step: int,
        tool: str,
        query: Any,
        chunk_ids: list[str],
        scores: list[float],
        tokens: int,
        repeat: bool = False,
    ) -> list[str]:
        """Record one retrieval call; returns the newly surfaced chunk ids."""
        self.retrieval_calls += 1
        self.retrieved_tokens += tokens
        if tool == "seed":
            self.seed_tokens += tokens
        self.event(step, "retrieve", tool=tool, query=query, chunk_ids=chunk_ids, scores=scores, repeat=repeat)
        return self.surface(chunk_ids, step, tool)

    def used(self, role: str, usage: Usage) -> None:
        self.usage[role] = self.usage.get(role, Usage()) + usage
