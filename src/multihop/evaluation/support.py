"""Which gold passages a run surfaced: supporting recall per question and per hop.

A gold passage maps to the chunks that hold the larger part of it, by the exact offsets that the
corpus variant keeps; it counts as retrieved when any one of them turned up in any tool's result
(paper 1, App. E: "at least one matching chunk"). A sliver of a passage at the edge of a window
(less than half of its longest piece) maps to nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from multihop.types import Chunk, Gold, RunRecord

MAJOR = 0.5
"""A chunk holds a passage if its piece has at least this share of the passage's longest piece."""


@dataclass(frozen=True, slots=True)
class Support:
    """What one record surfaced of its question's gold passages; lists are in hop order."""

    passages: tuple[str, ...]
    found: tuple[bool | None, ...]
    """Per gold passage: a mapped chunk was surfaced; None where no chunk holds the passage."""
    read: tuple[bool | None, ...]
    """Per gold passage: a mapped chunk's full text was shown to the model."""

    @property
    def mapped(self) -> int:
        return sum(f is not None for f in self.found)

    @property
    def retrieved(self) -> int:
        return sum(f is True for f in self.found)

    @property
    def missing(self) -> int:
        """Mapped gold passages that were never retrieved."""
        return self.mapped - self.retrieved

    @property
    def recall(self) -> float | None:
        """Retrieved share of the mapped gold passages, None where none is mapped."""
        return self.retrieved / self.mapped if self.mapped else None


class ChunkMap:
    """From passages to the chunks that hold them, for one corpus variant."""

    def __init__(self, chunks: Iterable[Chunk]):
        pieces: dict[str, dict[str, int]] = defaultdict(dict)
        for chunk in chunks:
            for span in chunk.spans:
                length = pieces[span.passage_id].get(chunk.id, 0) + span.end - span.start
                pieces[span.passage_id][chunk.id] = length
        self._chunks: dict[str, frozenset[str]] = {}
        self._passages: dict[str, set[str]] = defaultdict(set)
        for passage, lengths in pieces.items():
            enough = MAJOR * max(lengths.values())
            held = frozenset(c for c, n in lengths.items() if n > 0 and n >= enough)
            self._chunks[passage] = held
            for chunk in held:
                self._passages[chunk].add(passage)

    def chunks_of(self, passage_id: str) -> frozenset[str]:
        """The chunks that hold the passage; empty when the corpus variant lost it."""
        return self._chunks.get(passage_id, frozenset())

    def passages_of(self, chunk_id: str) -> frozenset[str]:
        """The passages that a chunk holds the larger part of."""
        return frozenset(self._passages.get(chunk_id, ()))

    def support(self, record: RunRecord, gold: Gold) -> Support:
        """What ``record`` surfaced and read of ``gold``'s passages."""
        surfaced = {r.chunk_id for r in record.retrieved}
        read = set(record.read)
        mapped = [self.chunks_of(p) for p in gold.supporting]
        return Support(
            passages=tuple(gold.supporting),
            found=tuple(bool(c & (surfaced | read)) if c else None for c in mapped),
            read=tuple(bool(c & read) if c else None for c in mapped),
        )
