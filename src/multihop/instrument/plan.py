"""What the simulated reader does wrong with one question, drawn before anything runs.

Every draw is a hash of (seed, question, place, kind): it depends on no order of calls and on no other draw, so that
two methods face the same faults on the same question.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from multihop.blocks import Faults
from multihop.types import Gold, Question

ASKED, DROPPED, SWAPPED, EARLY = "asked", "dropped", "swapped", "early"
"""What becomes of a hop: searched for; missing from the plan; another thing searched in its place; believed known
without its passage (with a register: resolved)."""


def drawn(seed: int, *key: object) -> float:
    """A uniform number in [0, 1) that belongs to ``key``."""
    text = "\x1f".join(map(str, (seed, *key)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big") / 2**56


@dataclass(frozen=True)
class Case:
    """A question with its gold chain and with what is drawn for it."""

    question: Question
    gold: Gold
    fates: tuple[str, ...]
    """Per hop: ASKED, DROPPED, SWAPPED or EARLY."""
    swaps: tuple[str, ...]
    """Sub-questions of other questions, for what is searched in a hop's place."""
    wrong: str
    """The answer it gives where it does not know: another question's."""
    stalls: bool
    """Searches on and on when it could answer."""
    misreads: bool
    """Wrong though it has seen all gold passages."""
    abstains: bool
    """Says that it can't answer though it has seen all gold passages."""
    abstains_missing: bool
    """The same where it has not."""
    guesses: bool
    """Right without having seen all gold passages."""

    @property
    def passages(self) -> tuple[str, ...]:
        """The gold passage of each hop."""
        return tuple(hop.passage_id or "" for hop in self.gold.decomposition)

    def kind(self, complete: bool) -> str:
        """What its answer is, where it has seen all gold passages and where it has not."""
        if self.abstains if complete else self.abstains_missing:
            return "abstained"
        if complete:
            return "misread" if self.misreads else "right"
        return "guess" if self.guesses else "wrong"

    @property
    def planned(self) -> tuple[int, ...]:
        """The hops that the reader knows of."""
        return tuple(h for h, fate in enumerate(self.fates) if fate != DROPPED)


def fate_of(faults: Faults, seed: int, qid: str, hop: int) -> str:
    u = drawn(seed, qid, hop, "fate")
    if u < faults.drift:
        return DROPPED if drawn(seed, qid, hop, "dropped") < faults.dropped else SWAPPED
    return EARLY if u < faults.drift + faults.early else ASKED


def fates_of(faults: Faults, seed: int, qid: str, hops: int) -> tuple[str, ...]:
    """A reader that knows of no hop at all knows at least that something is to be searched: the first is SWAPPED."""
    fates = tuple(fate_of(faults, seed, qid, hop) for hop in range(hops))
    return (SWAPPED, *fates[1:]) if set(fates) == {DROPPED} else fates


def draw(questions: Sequence[Question], gold: Sequence[Gold], faults: Faults, seed: int) -> dict[str, Case]:
    """Cases by question text. ``questions`` and ``gold``: in the same order, with decompositions."""
    return {q.text: _case(q, g, gold, faults, seed) for q, g in zip(questions, gold, strict=True)}


def _case(question: Question, gold: Gold, everything: Sequence[Gold], faults: Faults, seed: int) -> Case:
    def happens(kind: str) -> bool:
        return drawn(seed, question.id, "", kind) < getattr(faults, kind)

    others = _others(gold, everything, seed)
    return Case(
        question,
        gold,
        fates_of(faults, seed, question.id, len(gold.decomposition)),
        tuple(dict.fromkeys(hop.question for other in others for hop in other.decomposition)),
        next(o.answers[0] for o in others if _different(o.answers[0], gold.answers)),
        happens("stall"),
        happens("misread"),
        happens("abstain"),
        happens("abstain_missing"),
        happens("guess"),
    )


_OTHERS = 12
"""Other questions that a reader strays to."""


def _others(gold: Gold, everything: Sequence[Gold], seed: int) -> list[Gold]:
    """Questions that share no gold passage with this one, in a drawn order."""
    start = int(drawn(seed, gold.id, "", "others") * len(everything))
    found = []
    for i in range(len(everything)):
        other = everything[(start + i * 7) % len(everything)]
        if set(gold.supporting).isdisjoint(other.supporting):
            found.append(other)
            if len(found) == _OTHERS:
                break
    return found


def _different(answer: str, right: Iterable[str]) -> bool:
    """No part of one is the other: a wrong answer must be wrong for every metric."""
    a = answer.lower()
    return all(a not in r.lower() and r.lower() not in a for r in right)


def unreachable(cases: Mapping[str, Case], faults: Faults, seed: int) -> list[str]:
    """Ids of the gold passages that no search will return, sorted; drawn once a passage."""
    ids = sorted({p for case in cases.values() for p in case.gold.supporting})
    return [p for p in ids if drawn(seed, p, "", "unreachable") < faults.unreachable]
