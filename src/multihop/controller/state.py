"""The evidence state and the operations over it (paper 2, "Unified Evidence-Action Framework").

The state is immutable: an operation returns the next one, so that a trajectory can be branched at any point. It holds
what is observable at inference and nothing else: no gold answer, no supporting fact, no score.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of the operation table."""

    code: str
    name: str
    needs: str
    """When it is valid, in words; :mod:`multihop.controller.validity` decides."""
    cost: str
    effect: str


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "R",
        "retrieve_more",
        "unseen documents in the initial ranking",
        "1 retrieval",
        "the next documents of the ranking",
    ),
    Operation("G", "gap_query", "a known gap", "1 retrieval", "documents for the missing fact; the gap is used up"),
    Operation(
        "W", "rewrite_query", "evidence", "1 model call, 1 retrieval", "documents for the latest query, reformulated"
    ),
    Operation(
        "B", "bridge_entity_expand", "a bridge candidate", "1 retrieval", "documents around an entity of the evidence"
    ),
    Operation(
        "S",
        "sufficiency_check",
        "evidence not yet checked",
        "1 model call",
        "ends the search, or records what is missing",
    ),
    Operation("T", "stop_answer", "evidence", "none", "ends the search"),
    Operation(
        "C", "compress_answer_evidence", "once, after the search", "1 model call", "a shorter context for the answer"
    ),
)
"""The seven; the first six take part in the control loop, the first four retrieve."""
ACTIONS: tuple[str, ...] = tuple(o.code for o in OPERATIONS if o.code != "C")
RETRIEVING = ("R", "G", "W", "B")
TIES = ("R", "B", "G", "W", "S", "T")
"""Equal scores are decided in this order."""
NAMES: dict[str, str] = {o.code: o.name for o in OPERATIONS}


@dataclass(frozen=True, slots=True)
class Bridge:
    """An entity of the evidence around which a search could expand."""

    text: str
    score: float
    unseen_title: bool
    """It is the title of a document of the corpus that is not in the evidence."""
    query: str


@dataclass(frozen=True, slots=True)
class Step:
    """One executed operation."""

    action: str
    query: str | None = None
    new: tuple[str, ...] = ()
    failed: bool = False
    """It changed nothing: no new document, an unusable reply."""
    sufficient: bool | None = None
    tokens: int = 0
    """Prompt and completion tokens of its model call."""
    retrievals: int = 0
    llm_calls: int = 0


@dataclass(frozen=True, slots=True)
class EvidenceState:
    """Everything that the controller may look at. Build the first with :func:`initial`."""

    question: str
    frontier: tuple[tuple[str, float], ...]
    """The initial ranking: (chunk id, score), best first."""
    cursor: int = 0
    """How much of the frontier has been gone through."""
    docs: tuple[str, ...] = ()
    """Chunk ids, in acquisition order."""
    latest_query: str = ""
    queries: tuple[str, ...] = ()
    gap: str = ""
    """What the last negative sufficiency check said is missing; empty once it is used, or where none was said."""
    sufficient: bool | None = None
    checked_docs: int = -1
    """Number of documents at the last sufficiency check; -1: never checked."""
    bridges: tuple[Bridge, ...] = ()
    """Candidates, best first."""
    used_entities: tuple[str, ...] = ()
    rewrite_spent: bool = False
    """A rewrite brought no new query: another would not either."""
    history: tuple[Step, ...] = ()

    @property
    def step(self) -> int:
        """Control steps taken."""
        return len(self.history)

    @property
    def tokens(self) -> int:
        """Model tokens spent on control so far."""
        return sum(s.tokens for s in self.history)

    @property
    def retrievals(self) -> int:
        return sum(s.retrievals for s in self.history)

    @property
    def llm_calls(self) -> int:
        return sum(s.llm_calls for s in self.history)

    @property
    def last_new(self) -> tuple[str, ...]:
        """What the last operation added."""
        return self.history[-1].new if self.history else ()


@dataclass(frozen=True, slots=True)
class Limits:
    """The budget of one question (paper 2, implementation details)."""

    steps: int = 4
    per_search: int = 3
    docs: int = 12
    retrievals: int | None = None
    """Cap of Figure 3; None: only the steps bound them."""
    tokens: int = 6000
    """Of the control loop's model calls."""
    sufficiency: bool = True
    """False: no sufficiency check, and so no gap query (Table 2)."""


def initial(question: str, frontier: tuple[tuple[str, float], ...]) -> EvidenceState:
    return EvidenceState(question, frontier, latest_query=question)
