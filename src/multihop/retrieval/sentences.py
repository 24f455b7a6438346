"""Cutting chunks into the sentences that the agent's two search tools look at (A-RAG's index)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from multihop.errors import ConfigError
from multihop.types import Chunk

ARAG_MIN_CHARACTERS = 11
"""A-RAG drops pieces of ten characters or fewer."""

_ARAG_PIECE = re.compile(r"[^.!?\n]+")
_BOUNDARY = re.compile(r"\n+|[.!?]+[\"'”’)\]]*(?=\s)")
_NO_CUT_AFTER = frozenset(
    (
        "adm al apr approx aug ave bros c ca capt cf cmdr co col corp dec dept dr ed est feb fig fr gen gov"
        " hon inc jan jr lt ltd maj mar messrs mgr mr mrs ms mt no nov nr oct op pp prof pvt rep rev sen sept"
        " sep sgt sr st vol vs"
    ).split()
)
"""Abbreviations (lower case, without the full stop) that a sentence goes on after."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """One searchable piece of a chunk. A chunk's sentences follow each other in document order."""

    chunk_id: str
    text: str


def arag_spans(text: str) -> list[tuple[int, int]]:
    """Pieces between runs of ``. ! ?`` and newlines, as A-RAG's code cuts: "U.S." and decimals break."""
    spans = (_strip(text, *m.span()) for m in _ARAG_PIECE.finditer(text))
    return [(a, b) for a, b in spans if b - a >= ARAG_MIN_CHARACTERS]


def simple_spans(text: str) -> list[tuple[int, int]]:
    """Cuts at newlines and at ``. ! ?`` before a space, but not after abbreviations and initials
    nor before a lower-case letter; only pieces without a letter or digit are dropped."""
    spans, start = [], 0
    for match in _BOUNDARY.finditer(text):
        if text[match.start()] == "\n" or _ends_sentence(text, start, match):
            spans.append((start, match.end()))
            start = match.end()
    spans.append((start, len(text)))
    spans = [_strip(text, a, b) for a, b in spans]
    return [(a, b) for a, b in spans if any(c.isalnum() for c in text[a:b])]


def _ends_sentence(text: str, start: int, match: re.Match[str]) -> bool:
    following = text[match.end() :].lstrip()[:1] if match.end() < len(text) else ""
    if following.islower():
        return False
    if match.group() != ".":
        return True
    words = text[max(start, match.start() - 24) : match.start()].split()
    word = words[-1].lstrip("(\"'“‘[") if words else ""
    initial = len(word) == 1 and word.isalpha() and word.isupper()
    return not (initial or "." in word or word.lower() in _NO_CUT_AFTER)


def _strip(text: str, a: int, b: int) -> tuple[int, int]:
    while a < b and text[a].isspace():
        a += 1
    while b > a and text[b - 1].isspace():
        b -= 1
    return a, b


SPLITTERS: Mapping[str, Callable[[str], list[tuple[int, int]]]] = {"arag": arag_spans, "simple": simple_spans}


def split_chunks(
    chunks: Iterable[Chunk],
    splitter: str = "arag",
    title_in_sentences: bool = False,
    titles: Mapping[str, str] | None = None,
) -> list[Sentence]:
    """All sentences of ``chunks``, in corpus order.

    ``title_in_sentences`` writes "title: " before each sentence (a third of MuSiQue's gold paragraphs never
    name their subject outside the title) and drops the title line itself; it needs ``titles``, by passage id.
    Raises ConfigError for an unknown splitter.
    """
    if splitter not in SPLITTERS:
        raise ConfigError(
            f"retrieval.splitter: {splitter!r} is unknown; allowed: {', '.join(sorted(SPLITTERS))}"
        )
    cut = SPLITTERS[splitter]
    sentences = []
    for chunk in chunks:
        for a, b in cut(chunk.text):
            text = chunk.text[a:b]
            if title_in_sentences:
                text = _with_title(chunk, a, text, titles or {})
            if text:
                sentences.append(Sentence(chunk.id, text))
    return sentences


def _with_title(chunk: Chunk, offset: int, text: str, titles: Mapping[str, str]) -> str:
    """ "title: text", or "" for the title line of a passage (its sentences carry it already)."""
    for span in chunk.spans:
        if span.start <= offset < span.end:
            title = titles.get(span.passage_id, "").strip()
            in_title_line = "\n" not in chunk.text[span.start : offset] and title.find(text) >= 0
            if in_title_line and "\n" in chunk.text[span.start : span.end].strip():
                return ""
            return f"{title}: {text}" if title else text
    return text
