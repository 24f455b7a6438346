"""The records that flow through the pipeline, frozen and documented field by field.

Questions and passages flow in, methods turn them into run records, and everything
after that is a pure function of the records. ``Question`` and ``Gold`` are two types
in two files: a method only ever sees the first.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["ok", "budget", "refused", "invalid_output", "error"]
STATUSES: tuple[str, ...] = ("ok", "budget", "refused", "invalid_output", "error")


@dataclass(frozen=True, slots=True)
class Question:
    """What a method is given: nothing else about the question reaches it."""

    id: str
    """The benchmark's own id, always a string (an id 0 is the string "0")."""
    text: str


@dataclass(frozen=True, slots=True)
class Passage:
    """One paragraph of a corpus. Its identity is (title, text), never the title alone."""

    id: str
    """"p<n>", n being the position in the corpus file; stable for a given corpus."""
    title: str
    text: str

    @property
    def full(self) -> str:
        """Title, newline, text: the string that is indexed and shown."""
        return f"{self.title}\n{self.text}"


@dataclass(frozen=True, slots=True)
class Span:
    """The part of a chunk that comes from one passage: chunk.text[start:end]."""

    passage_id: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """The unit of retrieval. Variant ``passages``: one passage; ``chunk1000``: a window."""

    id: str
    """The passage's id in variant ``passages``, "c<n>" in ``chunk1000``."""
    text: str
    spans: tuple[Span, ...]
    """Which passages the text is made of, with exact character offsets."""


@dataclass(frozen=True, slots=True)
class Hop:
    """One step of a gold decomposition."""

    question: str
    """The sub-question, with the true intermediate answers filled in."""
    answer: str
    passage_id: str | None
    """The gold passage that answers it; None where the benchmark does not say."""


@dataclass(frozen=True, slots=True)
class Gold:
    """What evaluation, analysis and controller training know about a question."""

    id: str
    answers: tuple[str, ...]
    """The gold answer first, then its aliases."""
    supporting: tuple[str, ...]
    """Ids of the gold passages, in hop order where the benchmark gives one."""
    type: str
    """The benchmark's question type: "bridge", "compositional", "3hop", ..."""
    hops: int
    decomposition: tuple[Hop, ...] = ()
    evidences: tuple[tuple[str, str, str], ...] = ()
    """2WikiMultiHopQA's evidence triples (subject, relation, object)."""
    exact: bool = True
    """False where the gold passages were matched by title and answer rather than labelled."""
    supporting_sentences: tuple[tuple[str, str], ...] = ()
    """HotpotQA / 2Wiki: (passage id, supporting sentence)."""
    answer_id: str | None = None
    """2WikiMultiHopQA's entity id of the answer, the key into id_aliases.json."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One chunk that a search surfaced. Scores are recorded and never shown to a model."""

    chunk_id: str
    rank: int
    """1 is best."""
    score: float
    sentences: tuple[str, ...] = ()
    """The matched sentences, in document order, for the agent's two search tools."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Logical use of one role over one question: the same live and replayed."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    repairs: int = 0
    """Structured-output repairs that were needed (each is also a call)."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.calls + other.calls,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.repairs + other.repairs,
        )


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened while a question was answered, in order."""

    step: int
    """The loop it happened in; 0 is before the first loop (the seed retrieval)."""
    kind: str
    """retrieve, read, register, update_failed, premature_resolution, nudge, reminder, forced, ..."""
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Retrieved:
    """A chunk that reached the method, at its first surfacing."""

    chunk_id: str
    step: int
    tool: str
    """seed, retrieve, semantic_search, keyword_search, bm25 or read_chunk."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a method returns."""

    text: str
    """The whole final message, as the model wrote it."""
    stop_reason: str
    """answered, ready, forced_loops, forced_tokens, ..."""
    status: Status = "ok"
    short: str | None = None
    """The short answer where the method's contract is "Answer: ..." and the marker was found."""
    mode: Literal["short", "free"] = "short"
    """The answer contract: short (marked) or free text (A-RAG, ExecutionRAG)."""
    cited: tuple[str, ...] = ()
    """Chunk ids that the final call was shown or that the answer cites."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One line of results/runs/<run>/<dataset>/<setting>.jsonl; byte-deterministic under replay."""

    qid: str
    dataset: str
    setting: str
    run: str
    seed: int
    params_hash: str
    """Hash of everything in params.yaml (and the prompts) that changes this record."""
    corpus_hash: str
    question: str
    answer: str
    short: str | None
    mode: str
    status: Status
    stop_reason: str
    retrieved: tuple[Retrieved, ...] = ()
    read: tuple[str, ...] = ()
    """Chunk ids whose full text was shown to the model."""
    cited: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    usage: dict[str, Usage] = field(default_factory=dict)
    """Per role: reader, register (the JSON calls of the register), ..."""
    retrieved_tokens: int = 0
    """A-RAG's counter, o200k tokens: matched sentences + newly read text (+ seed)."""
    seed_tokens: int = 0
    """The part of retrieved_tokens that the seed retrieval brought."""
    retrieval_calls: int = 0
    loops: int = 0
    forced: bool = False
    error: str | None = None
    """"Class: message" where status is error; such a question is retried by the next run."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(row: dict[str, Any]) -> RunRecord:
        """Raises TypeError for unknown or missing fields."""
        row = dict(row)
        row["retrieved"] = tuple(Retrieved(**r) for r in row["retrieved"])
        row["events"] = tuple(Event(**e) for e in row["events"])
        row["usage"] = {role: Usage(**u) for role, u in row["usage"].items()}
        row["read"] = tuple(row["read"])
        row["cited"] = tuple(row["cited"])
        return RunRecord(**row)
