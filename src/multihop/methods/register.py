"""The requirement register: what the question still needs, with the rules that no model can break.

Paper 1, eq. 1-2 (items and statuses), eq. 4 (initial state), eq. 5 (query), eq. 6 (update), eq. 7-8 (invariants: an
item leaves only by retirement, supporting passages only grow). What the paper leaves open: docs/deviations.md. Nothing
here calls a model: replies come in as parsed objects, and every guard that acts is returned as a note for the trace.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

ItemStatus = Literal["pending", "active", "resolved", "retired"]
OPEN = ("pending", "active")
MAX_INITIAL, MAX_ITEMS, MAX_NEW = 6, 8, 2
NOTE_CHARACTERS, BRIEF_CHARACTERS = 300, 160
NOTE_CHANGE = 0.3
"""Jaccard distance between two notes' word sets above which a note has changed materially."""
STALE_LOOPS = 3
"""Loops without a material change of the active item after which the next item gets its turn."""


def _bounded(characters: int = 0, items: int = 0) -> Any:
    """A hint for grammar-constrained decoding; replies are clipped here, not refused."""
    extra = {"maxLength": characters} if characters else {"maxItems": items}
    return Field(json_schema_extra=extra)


class _Reply(BaseModel):
    model_config = ConfigDict(extra="ignore")


class Requirement(_Reply):
    id: str = _bounded(4)
    question: str = _bounded(160)
    depends_on: list[str] = Field(default=[], json_schema_extra={"maxItems": 3})


class Initialisation(_Reply):
    """The model's answer to the initialisation prompt (A.2)."""

    requirements: list[Requirement] = _bounded(items=MAX_INITIAL)
    active_id: str = Field(default="", json_schema_extra={"maxLength": 4})


class ItemUpdate(_Reply):
    id: str = _bounded(4)
    note: str = Field(default="", json_schema_extra={"maxLength": NOTE_CHARACTERS})
    supporting_chunk_ids: list[str] = Field(default=[], json_schema_extra={"maxItems": 4})
    status: ItemStatus
    reason: str = Field(default="", json_schema_extra={"maxLength": BRIEF_CHARACTERS})


class NewRequirement(_Reply):
    question: str = _bounded(160)
    depends_on: list[str] = Field(default=[], json_schema_extra={"maxItems": 3})
    replaces: str = Field(default="", json_schema_extra={"maxLength": 4})


class Update(_Reply):
    """The model's answer to the update prompt (A.4)."""

    updates: list[ItemUpdate] = _bounded(items=4)
    new_requirements: list[NewRequirement] = Field(default=[], json_schema_extra={"maxItems": MAX_NEW})


@dataclass(frozen=True)
class Item:
    """One requirement: (d, z, e, P) of eq. 1."""

    id: str
    question: str
    depends_on: tuple[str, ...] = ()
    status: ItemStatus = "pending"
    note: str = ""
    passages: tuple[str, ...] = ()
    reason: str = ""

    @property
    def open(self) -> bool:
        return self.status in OPEN


@dataclass
class Register:
    """The items in order, and since when the active one has stood still."""

    items: dict[str, Item] = field(default_factory=dict)
    stale: int = 0

    # -- building

    @staticmethod
    def build(reply: Initialisation | None, question: str) -> Register:
        """S_0 (eq. 4): one item active, the rest pending, notes and passages empty.

        Ids are made unique, at most six items stay, an empty list becomes the question itself.
        """
        register = Register()
        for number, requirement in enumerate((reply.requirements if reply else [])[:MAX_INITIAL], 1):
            text = requirement.question.strip()
            wanted = requirement.id.strip()
            if text:
                item_id = wanted if wanted and wanted not in register.items else _fresh(register.items, number)
                register.items[item_id] = Item(item_id, text, tuple(d for d in requirement.depends_on if d != item_id))
        if not register.items:
            register.items["R1"] = Item("R1", question)
        register._drop_unknown_dependencies()
        wanted = reply.active_id if reply else ""
        first = wanted if wanted in register.items else register._next()
        register._set(first, status="active")
        return register

    def _drop_unknown_dependencies(self) -> None:
        for item in list(self.items.values()):
            self._set(item.id, depends_on=tuple(d for d in item.depends_on if d in self.items))

    # -- reading

    @property
    def active(self) -> Item | None:
        return next((i for i in self.items.values() if i.status == "active"), None)

    def open_items(self) -> list[Item]:
        return [i for i in self.items.values() if i.open]

    def ready(self) -> bool:
        """Nothing open and something resolved: time to answer (§3.4)."""
        return not self.open_items() and any(i.status == "resolved" for i in self.items.values())

    def void(self) -> bool:
        """Everything retired, nothing resolved: the register must be built anew."""
        return all(i.status == "retired" for i in self.items.values())

    def snapshot(self) -> list[dict[str, Any]]:
        return [
            {
                "id": i.id,
                "question": i.question,
                "status": i.status,
                "note": i.note,
                "passages": list(i.passages),
                "reason": i.reason,
            }
            for i in self.items.values()
        ]

    def compose(self, question: str, with_question: bool = True) -> str:
        """The query for the active item (eq. 5): sub-question with known values filled in, its note, the question."""
        item = self.active
        if item is None:
            return question
        text = item.question
        for dependency in item.depends_on:
            source = self.items[dependency]
            if source.status == "resolved" and source.note:
                value = brief(source.note, 80)
                text = re.sub(rf"(#|\b){re.escape(dependency)}\b", lambda _, value=value: value, text)
        parts = [text]
        if item.note:
            parts.append(f"Known: {brief(item.note)}")
        if with_question and question != text:
            parts.append(f"For: {question}")
        return " ".join(parts)

    # -- changing

    def apply(self, update: Update, seen: set[str]) -> tuple[list[dict[str, Any]], list[str]]:
        """Take in an update under the guards. ``seen``: chunk ids that this question's search surfaced.

        Returns (transitions ``{id, from, to, reason}``, notes on guards that acted).
        """
        before = dict(self.items)
        notes: list[str] = []
        for change in update.updates:
            self._apply_one(change, seen, notes)
        for new in update.new_requirements[:MAX_NEW]:
            self._add(new, notes)
        self._one_active()
        return self.transitions(before), notes

    def _apply_one(self, change: ItemUpdate, seen: set[str], notes: list[str]) -> None:
        item = self.items.get(change.id)
        if item is None:
            notes.append(f"unknown item {change.id!r} ignored")
            return
        if item.status == "retired":
            notes.append(f"{item.id} is retired, and stays so")
            return
        known = [c for c in dict.fromkeys(change.supporting_chunk_ids) if c in seen]
        if len(known) < len(set(change.supporting_chunk_ids)):
            notes.append(f"{item.id}: chunk ids that the search did not surface were dropped")
        passages = tuple(dict.fromkeys((*item.passages, *known)))  # eq. 8
        note = brief(change.note, NOTE_CHARACTERS) or item.note
        status, reason = change.status, change.reason.strip()
        if status == "retired" and not reason:
            notes.append(f"{item.id}: retired without a reason, reverted")
            status = item.status
        elif status == "resolved" and not passages:
            notes.append(f"{item.id}: resolved without a supporting passage, kept active")
            status = "active"
        elif item.status == "resolved" and status in OPEN and not reason:
            notes.append(f"{item.id}: reopened without a reason, reverted")
            status = "resolved"
        explained = status == "retired" or (item.status == "resolved" and status in OPEN)
        self.items[item.id] = replace(
            item, status=status, note=note, passages=passages, reason=reason if explained else item.reason
        )

    def _add(self, new: NewRequirement, notes: list[str]) -> None:
        text = new.question.strip()
        if not text or any(text.lower() == i.question.lower() for i in self.items.values()):
            return
        if len(self.items) >= MAX_ITEMS:
            notes.append("the register is full: a new requirement was dropped")
            return
        item_id = _fresh(self.items, len(self.items) + 1)
        self.items[item_id] = Item(item_id, text, tuple(d for d in new.depends_on if d in self.items))
        replaced = self.items.get(new.replaces)
        if replaced and replaced.status == "retired":
            for other in list(self.items.values()):
                if new.replaces in other.depends_on:
                    depends_on = tuple(item_id if d == new.replaces else d for d in other.depends_on)
                    text = re.sub(rf"\b{re.escape(new.replaces)}\b", item_id, other.question)
                    self._set(other.id, depends_on=depends_on, question=text)

    def _one_active(self) -> None:
        active = [i.id for i in self.items.values() if i.status == "active"]
        for item_id in active[1:]:
            self._set(item_id, status="pending")

    def select(self, progressed: bool) -> None:
        """Choose the active item: keep an open one, else the first whose dependencies are settled.

        ``progressed``: whether the active item changed materially in this loop. After three loops without, the next
        eligible item gets its turn.
        """
        current = self.active
        self.stale = 0 if progressed or current is None else self.stale + 1
        if current is not None and self.stale < STALE_LOOPS:
            return
        following = self._next(exclude=current.id if current else "")
        if following is None:
            return
        if current is not None:
            self._set(current.id, status="pending")
        self._set(following, status="active")
        self.stale = 0

    def _next(self, exclude: str = "") -> str | None:
        order = list(self.items.values())
        if exclude:  # after the current item first, so that every item gets its turn
            at = list(self.items).index(exclude) + 1
            order = order[at:] + order[:at]
        pending = [i for i in order if i.status == "pending" and i.id != exclude]
        settled = [i for i in pending if all(not self.items[d].open for d in i.depends_on if d in self.items)]
        return (settled or pending)[0].id if pending else None

    def _set(self, item_id: str, **changes: Any) -> None:
        self.items[item_id] = replace(self.items[item_id], **changes)

    def transitions(self, before: dict[str, Item]) -> list[dict[str, Any]]:
        """Status changes since ``before``; new items come from None."""
        out = []
        for item in self.items.values():
            old = before.get(item.id)
            if old is None or old.status != item.status:
                out.append(
                    {"id": item.id, "from": old.status if old else None, "to": item.status, "reason": item.reason}
                )
        return out


def material(old: Item | None, new: Item) -> bool:
    """Status changed, passages added, or the note says something else (Jaccard distance > 0.3)."""
    if old is None or old.status != new.status or len(new.passages) > len(old.passages):
        return True
    a, b = set(re.findall(r"\w+", old.note.lower())), set(re.findall(r"\w+", new.note.lower()))
    return bool(a | b) and 1 - len(a & b) / len(a | b) > NOTE_CHANGE


def brief(text: str, limit: int = BRIEF_CHARACTERS) -> str:
    """At most ``limit`` characters, cut at a word."""
    text = " ".join(text.split())
    return text if len(text) <= limit else text[:limit].rsplit(" ", 1)[0]


def _fresh(taken: dict[str, Item], number: int) -> str:
    while f"R{number}" in taken:
        number += 1
    return f"R{number}"
