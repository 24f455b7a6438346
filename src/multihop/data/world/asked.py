"""A question of the world, with the chain of facts that answers it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from multihop.data.world.entities import Fact


@dataclass(slots=True)
class Step:
    """One hop: a sub-question (with #1, #2 for earlier answers), its answer and the fact behind it."""

    question: str
    answer: str
    fact: Fact
    inverse: bool = False
    """The answer is the fact's subject."""


@dataclass(slots=True)
class Asked:
    """A question of the world. ``kind`` is 2hop, 3hop1, …, bridge, compositional, comparison, …"""

    kind: str
    text: str
    answer: str
    steps: list[Step] = field(default_factory=list)
    entity: int | None = None
    """The entity that is the answer; None for literals and yes/no."""
    open: bool = True
    """False where the question itself names the two possible answers."""
    rule: str = ""
    """How a comparison is decided: "least", "greatest" or "same"."""

    @property
    def passages(self) -> list[int]:
        """The gold passages in hop order, each once."""
        return list(dict.fromkeys(s.fact.passage for s in self.steps))


def words(text: str) -> list[str]:
    """Lower-case words and numbers of a text."""
    return re.findall(r"[a-z0-9]+", text.lower().replace(",", ""))
