"""The agent's three tools over one retriever, for one question (A-RAG's tools, paper 1 App. B's dedup).

Differences from A-RAG as coded: no similarity is shown, every call records its chunk ids and scores, empty
keywords don't count, lists and texts have an upper bound, and bad arguments are answered in words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from multihop.retrieval import arguments as args
from multihop.retrieval.index import Retriever
from multihop.retrieval.tokens import count_tokens, truncate_tokens
from multihop.types import Hit

_TOP_K = {
    "type": "integer",
    "minimum": 1,
    "maximum": 20,
    "description": "How many passages to return; 5 if left out.",
}


def _spec(name: str, description: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


TOOL_SPECS: list[dict[str, Any]] = [
    _spec(
        "keyword_search",
        "Find passages in which the given words occur literally. Best for names, titles and dates. "
        "Returns passage ids with the sentences that hold a keyword.",
        {
            "keywords": {
                "type": "array",
                "items": {"type": "string"},
                "description": "One or more names or terms of one to three words each.",
            },
            "top_k": _TOP_K,
        },
        ["keywords"],
    ),
    _spec(
        "semantic_search",
        "Find passages whose sentences are close in meaning to a query. Best if the wording is unknown. "
        "Returns passage ids with the matching sentences.",
        {
            "query": {"type": "string", "description": "What to look for, as a question or phrase."},
            "top_k": _TOP_K,
        },
        ["query"],
    ),
    _spec(
        "read_chunk",
        "Read the whole text of passages by id. Read promising search results before relying on them.",
        {
            "chunk_ids": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Ids as the searches return them.",
            }
        },
        ["chunk_ids"],
    ),
]
"""OpenAI function schemas, in the order in which a model sees them."""
JOIN = " … "
"""Between the matched sentences of a chunk."""
TOOL_NAMES: tuple[str, ...] = tuple(spec["function"]["name"] for spec in TOOL_SPECS)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call gave: ``text`` is for the model, the rest for the record."""

    tool: str
    step: int
    kind: Literal["retrieve", "read", "tool_error"]
    text: str
    query: str | list[str] | None = None
    chunk_ids: tuple[str, ...] = ()
    """Search: every hit, best first (a repeat: the earlier call's). Read: the ids asked for that exist."""
    scores: tuple[float, ...] = ()
    new: tuple[str, ...] = ()
    """Read: the chunks whose text is shown now for the first time."""
    unknown: tuple[str, ...] = ()
    new_tokens: int = 0
    """What the call adds to A-RAG's retrieved-tokens counter."""
    repeat: bool = False
    error: str | None = None
    evidence: tuple[tuple[str, str], ...] = ()
    """(chunk id, text) that the call brought: matched sentences of a search, whole texts newly read."""


class AgentTools:
    """The tools' state over one question: what was shown, read and asked before.

    ``dedup``: an exact repeat of a query brings a notice instead of a result. ``dedup_step``: a chunk that a
    second search of the same step finds is shown by id only. ``snippet_tokens`` and ``read_tokens`` bound the
    text of a search and of a chunk that is read (o200k tokens; None: no bound, as A-RAG).

    Step 0 is the seed retrieval (eq. 3): the agent has not seen it, so asking the same later is no repeat.
    """

    def __init__(
        self,
        retriever: Retriever,
        k_default: int = 5,
        k_max: int = 20,
        dedup: bool = False,
        dedup_step: bool = True,
        keyword_scoring: Literal["arag", "bm25"] = "arag",
        snippet_tokens: int | None = 4000,
        read_tokens: int | None = 16000,
    ):
        self.retriever = retriever
        self.k_default, self.k_max = k_default, k_max
        self.dedup, self.dedup_step = dedup, dedup_step
        self.keyword_scoring = keyword_scoring
        self.snippet_tokens, self.read_tokens = snippet_tokens, read_tokens
        self.retrieved_tokens = 0
        """A-RAG's counter: shown sentences, and text read for the first time; the seed included."""
        self.read: list[str] = []
        """Chunk ids whose full text was shown, in order."""
        self._shown: tuple[int, set[str]] = (-1, set())
        self._asked: dict[tuple[str, ...], tuple[str, ...]] = {}

    def call(self, name: str, arguments: Any, step: int) -> ToolResult:
        """Run one call. A model's mistakes come back as text; only broken retrieval raises MultihopError."""
        try:
            if name not in TOOL_NAMES:
                names = ", ".join(TOOL_NAMES)
                raise args.BadArgument(f"there is no tool {args.clean(name)[:60]!r}; the tools are: {names}")
            if not isinstance(arguments, dict):
                raise args.BadArgument(f"{name} needs a JSON object of arguments")
            if name == "read_chunk":
                return self._read(args.strings(arguments, "chunk_ids", name), step)
            k = args.top_k(arguments.get("top_k"), self.k_default, self.k_max)
            if name == "semantic_search":
                return self._semantic(args.string(arguments, "query", name), k, step)
            return self._keyword(args.strings(arguments, "keywords", name), k, step)
        except args.BadArgument as e:
            return ToolResult(args.clean(name)[:60], step, "tool_error", f"Error: {e}.", error=str(e))

    # -- searches

    def _semantic(self, query: str, k: int, step: int) -> ToolResult:
        key = ("semantic_search", args.normalise(query))
        if repeat := self._repeat(key, query, step):
            return repeat
        return self._result(query, self.retriever.semantic_search(query, k), step, key)

    def _keyword(self, keywords: list[str], k: int, step: int) -> ToolResult:
        key = ("keyword_search", *sorted(args.normalise(k) for k in keywords))
        if repeat := self._repeat(key, keywords, step):
            return repeat
        hits = self.retriever.keyword_search(keywords, k, self.keyword_scoring)
        return self._result(keywords, hits, step, key)

    def _repeat(self, key: tuple[str, ...], query: str | list[str], step: int) -> ToolResult | None:
        if not self.dedup or key not in self._asked:
            return None
        ids = self._asked[key]
        found = f"It returned {', '.join(ids)}; read those, or search" if ids else "It found nothing; search"
        text = f"This search was made before. {found} with other words."
        return ToolResult(key[0], step, "retrieve", text, query, ids, repeat=True)

    def _result(self, query: str | list[str], hits: list[Hit], step: int, key: tuple[str, ...]) -> ToolResult:
        ids = tuple(hit.chunk_id for hit in hits)
        if step > 0:
            self._asked[key] = ids
        text, shown = self._render(hits, step)
        tokens = count_tokens("\n".join(s for sentences in shown.values() for s in sentences))
        self.retrieved_tokens += tokens
        return ToolResult(
            key[0],
            step,
            "retrieve",
            text or "Nothing found.",
            query=query,
            chunk_ids=ids,
            scores=tuple(hit.score for hit in hits),
            new_tokens=tokens,
            evidence=tuple((i, JOIN.join(sentences)) for i, sentences in shown.items() if sentences),
        )

    def _render(self, hits: list[Hit], step: int) -> tuple[str, dict[str, list[str]]]:
        """A line per chunk, and the sentences shown. No score: a rounding must not change a prompt."""
        lines: list[str] = []
        shown: dict[str, list[str]] = {}
        room = self.snippet_tokens
        for hit in hits:
            if self.dedup_step and hit.chunk_id in self._shown_in(step):
                lines.append(f"[{hit.chunk_id}] (shown above)")
                continue
            sentences = shown.setdefault(hit.chunk_id, [])
            for sentence in hit.sentences:
                if room is not None:
                    sentence = truncate_tokens(sentence, room)
                    room -= count_tokens(sentence)
                if sentence:
                    sentences.append(sentence)
            lines.append(f"[{hit.chunk_id}] {JOIN.join(sentences)}".rstrip())
        self._shown_in(step).update(hit.chunk_id for hit in hits)
        return "\n".join(lines), shown

    # -- reading

    def _read(self, asked: list[str], step: int) -> ToolResult:
        ids = list(dict.fromkeys(i.strip("[]()\"' ") for i in asked))
        ids, left_out = ids[: self.k_max], ids[self.k_max :]
        parts: list[str] = []
        new: dict[str, str] = {}
        for chunk_id in ids:
            if not self.retriever.has(chunk_id):
                parts.append(f"[{chunk_id[:60]}] not found; ids look like {self.retriever.chunks[0].id}")
            elif chunk_id in self.read:
                parts.append(f"[{chunk_id}] already read, see above")
            else:
                new[chunk_id], note = self._bounded(self.retriever.text(chunk_id))
                parts.append(f"[{chunk_id}] {new[chunk_id]}{note}")
                self.read.append(chunk_id)
        if left_out:
            parts.append(f"Only {self.k_max} passages are read at once; {len(left_out)} were left out.")
        tokens = sum(count_tokens(text) for text in new.values())
        self.retrieved_tokens += tokens
        known = tuple(i for i in ids if self.retriever.has(i))
        self._shown_in(step).update(known)
        return ToolResult(
            "read_chunk",
            step,
            "read",
            "\n\n".join(parts),
            chunk_ids=known,
            new=tuple(new),
            unknown=tuple(i for i in ids if i not in known),
            new_tokens=tokens,
            evidence=tuple(new.items()),
        )

    def _bounded(self, text: str) -> tuple[str, str]:
        if self.read_tokens is None or count_tokens(text) <= self.read_tokens:
            return text, ""
        return truncate_tokens(text, self.read_tokens), " … (the passage is longer; the rest is left out)"

    def _shown_in(self, step: int) -> set[str]:
        if self._shown[0] != step:
            self._shown = (step, set())
        return self._shown[1]
