"""What the world is made of: entities, facts, and pages that state facts."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Entity:
    """Anything with a name. ``kind`` is person, novel, film, album, newspaper, firm, town, …"""

    id: int
    kind: str
    name: str
    title: str = ""
    """The title of its passages: the name, with a bracket where the name has two bearers."""
    female: bool = False
    occupation: str = ""
    born: int = 0
    """Year of birth (person) or of founding (firm); 0 where there is none."""
    noun: str = ""
    """"bridge", "chess tournament", "press", …: what sort of building, event, firm."""
    ambiguous: bool = False
    """Another entity has the same name, so that every mention says what tells them apart."""


@dataclass(slots=True, eq=False)
class Fact:
    """subject –relation→ object. A literal has no object entity, only a value."""

    id: int
    subject: int
    relation: str
    object: int | None
    value: str
    """The object's name, or the literal as it is printed."""
    number: int = 0
    """What comparisons compare: a year, a count, a date as yyyymmdd."""
    years: tuple[int, int] | None = None
    """First and last year in office, for holders of an office."""
    passage: int | None = None
    """The one passage that states it; None for facts that no passage states."""
    sentence: int | None = None


@dataclass(slots=True)
class Page:
    """What a passage is about: its own entity and the facts that it may state."""

    entity: Entity
    facts: list[Fact] = field(default_factory=list)


def mention(e: Entity, trade: bool = False) -> str:
    """How another passage, or a question, names the entity; namesakes always with their trade."""
    if e.kind in ("novel", "film", "album"):
        return f"the {e.kind} {e.name}"
    if e.kind == "person":
        return f"the {e.occupation} {e.name}" if e.ambiguous or trade else e.name
    return f"the {e.name}" if e.kind in ("newspaper", "building", "event", "prize", "office") else e.name
