"""Corpus variants: ``passages`` (one chunk a passage) and ``chunk1000`` (facts: the peers' re-cut corpus).

``chunk1000``: all passages as "title\\ntext", joined by an empty line in corpus order, cut into windows of
1,000 o200k tokens that overlap by at most 100 and end where a sentence ends. Case, spacing and titles are
kept, and each chunk says which part of it comes from which passage, so gold maps exactly. Tokens are
counted in each passage as a whole; a chunk encoded by itself may come to one or two more, since the word at
its start stands without its space.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from multihop.data import tokens
from multihop.errors import DataError
from multihop.types import Chunk, Passage, Span

JOINT = "\n\n"
VARIANTS = ("passages", "chunk1000")
SENTENCE_END = re.compile(r"[.!?][\"'”’»)\]]*\s+|[。！？]+")
"""Closing punctuation with the white space after it; the next sentence starts where the match ends."""


def build_chunks(
    passages: Sequence[Passage], variant: str, *, window: int = 1000, overlap: int = 100
) -> list[Chunk]:
    """Chunks of a variant in corpus order. ``window`` and ``overlap`` are o200k tokens (chunk1000 only).

    Raises DataError for an unknown variant, a window below 5 or an overlap not below half the window.
    """
    if variant == "passages":
        return [Chunk(p.id, p.full, (Span(p.id, 0, len(p.full)),)) for p in passages]
    if variant != "chunk1000":
        raise DataError(f"unknown corpus variant {variant!r}; known: {', '.join(VARIANTS)}")
    if window < 5:
        raise DataError(f"chunk window {window}: at least 5 tokens are needed")
    if not 0 <= overlap < window / 2:
        raise DataError(f"chunk overlap {overlap}: allowed are 0 to below half the window of {window} tokens")
    stream = Stream.of(passages)
    return [stream.chunk(f"c{n}", a, b) for n, (a, b) in enumerate(stream.windows(window, overlap))]


@dataclass(frozen=True, slots=True)
class Stream:
    """The whole corpus as one text, with the places that matter, all as character offsets."""

    text: str
    passages: Sequence[Passage]
    starts: array[int]
    """Where each passage starts; it ends ``len(passage.full)`` later."""
    token_ends: array[int]
    sentence_starts: array[int]
    """Where a sentence or a passage starts, and the end of the text."""

    @staticmethod
    def of(passages: Sequence[Passage]) -> Stream:
        # Arrays: a list of as many numbers takes five times the memory, and a corpus has millions of tokens.
        starts, token_ends, sentence_starts, at = array("q"), array("q"), array("q"), 0
        for passage in passages:
            full = passage.full + JOINT
            starts.append(at)
            # Tokenised passage by passage: no token spans two, and no text is too long to encode.
            token_ends.extend(at + end for end in tokens.token_ends(full))
            sentence_starts.extend([at, *(at + s for s in _sentence_starts(passage))])
            at += len(full)
        sentence_starts.append(at)
        text = JOINT.join(p.full for p in passages)
        return Stream(text + JOINT, passages, starts, token_ends, sentence_starts)

    def windows(self, window: int, overlap: int) -> list[tuple[int, int]]:
        """(start, end) of each chunk. Linear in the text: the start always moves on by half a window."""
        found, start, total = [], 0, len(self.text) - len(JOINT)
        while start < total:
            first = bisect_right(self.token_ends, start)
            if first + window >= len(self.token_ends):
                found.append((start, total))
                break
            # A window ends where the last sentence that fits ends. A sentence longer than half a window
            # is cut between two tokens instead, and then the overlap is exact.
            limit = self.token_ends[first + window - 1]
            end = self.sentence_starts[bisect_right(self.sentence_starts, limit) - 1]
            snapped = end > self.token_ends[first + window // 2]
            end = end if snapped else limit
            found.append((start, end))
            back = self.token_ends[bisect_left(self.token_ends, end) - overlap]
            start = self.sentence_starts[bisect_left(self.sentence_starts, back)] if snapped else back
        return found

    def chunk(self, chunk_id: str, start: int, end: int) -> Chunk:
        """The text from ``start`` to ``end``, without joints at its ends, and its spans."""
        parts = []
        for n in range(max(bisect_right(self.starts, start) - 1, 0), bisect_left(self.starts, end)):
            a = max(start, self.starts[n])
            b = min(end, self.starts[n] + len(self.passages[n].full))
            if a < b:
                parts.append((self.passages[n].id, a, b))
        origin = parts[0][1]
        spans = tuple(Span(pid, a - origin, b - origin) for pid, a, b in parts)
        return Chunk(chunk_id, self.text[origin : parts[-1][2]], spans)


def _sentence_starts(passage: Passage) -> list[int]:
    """Offsets in ``passage.full`` where a sentence of the text starts, except the first."""
    shift = len(passage.title) + 1
    text = passage.text
    return [
        shift + m.end()
        for m in SENTENCE_END.finditer(text)
        if m.end() < len(text) and not text[m.end()].islower()
    ]
