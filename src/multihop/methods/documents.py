"""The evidence that a multi-step method gathers: few new documents per search, a ceiling in all (paper 2, setup)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pydantic import Field

from multihop.methods.base import MethodParams, Tools


class DocumentParams(MethodParams):
    """The budget that every method of paper 2 shares."""

    per_search: int = Field(3, gt=0)
    """New documents that one retrieval adds at most."""
    max_docs: int = Field(12, gt=0)
    """Documents of the final context at most."""
    max_tokens: int = Field(64, gt=0)
    """Of the reader's answer."""


class Documents:
    """What one question has gathered, in acquisition order; a search adds its best *unseen* documents."""

    def __init__(self, tools: Tools, per_search: int = 3, cap: int = 12):
        self.tools = tools
        self.per_search, self.cap = per_search, cap
        self.ids: list[str] = []

    def search(self, query: str, step: int, tool: str = "retrieve", k: int | None = None) -> list[str]:
        """Add up to ``k`` (default ``per_search``) unseen chunks; returns the new ids, best first, maybe none."""
        room = min(k or self.per_search, self.cap - len(self.ids))
        if room <= 0:
            return []
        hits = self.tools.retriever.dense(query, len(self.ids) + room)
        return self.take([h for h in hits if h.chunk_id not in self.ids][:room], query, step, tool)

    def take(self, hits: list, query: str, step: int, tool: str) -> list[str]:
        """Add the chunks of ``hits`` (unseen ones) and record the retrieval."""
        new = self.tools.record_search(hits, query, step, tool)
        self.ids += [h.chunk_id for h in hits]
        return new

    @property
    def text(self) -> str:
        """The documents as every prompt shows them, in acquisition order."""
        return self.tools.numbered(self.ids)


Sentence = tuple[str, int, str]
"""(chunk id, position in the chunk, text)."""


def numbered_sentences(offered: Sequence[Sentence], tools: Tools) -> str:
    """Sentences to choose from, numbered from 1, each document's under its title."""
    lines, last = [], None
    for number, (chunk_id, _, sentence) in enumerate(offered, 1):
        if chunk_id != last:
            lines.append(f"# {tools.retriever.title_of(chunk_id)}")
            last = chunk_id
        lines.append(f"{number}. {sentence}")
    return "\n".join(lines)


def by_document(kept: Iterable[Sentence]) -> dict[str, list[str]]:
    """Chunk id -> its sentences, both in the order given."""
    found: dict[str, list[str]] = {}
    for chunk_id, _, sentence in kept:
        found.setdefault(chunk_id, []).append(sentence)
    return found


def titled_sentences(chosen: Mapping[str, list[str]], tools: Tools) -> str:
    """Chosen sentences under their titles, as passages are shown."""
    return "\n\n".join(f"[{c}] {tools.retriever.title_of(c)}\n{' '.join(kept)}" for c, kept in chosen.items())
