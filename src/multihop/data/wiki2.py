"""2WikiMultiHopQA: dev.json, train.json (JSON lists) and the optional id_aliases.json (JSON lines)."""

from __future__ import annotations

from pathlib import Path

from multihop.data.formats import (
    LoadedSplit,
    Parsed,
    RawGold,
    Row,
    load_rows,
    read_rows,
    sentences_of_facts,
)
from multihop.data.hotpotqa import context_of
from multihop.types import Question


def triples(row: Row) -> tuple[tuple[str, str, str], ...]:
    """The evidence triples (subject, relation, object) of a row."""
    found = []
    for entry in row.items("evidences", []):
        if not (isinstance(entry, list) and len(entry) == 3):
            row.fail("each entry of 'evidences' should be [subject, relation, object]")
        found.append(tuple(row.clean(part, "a part of an evidence triple") for part in entry))
    return tuple(found)


def answer_id(row: Row) -> str | None:
    value = row.data.get("answer_id")
    return None if value is None else row.clean(value, "field 'answer_id'")


def parse(row: Row) -> Parsed:
    context, sentences = context_of(row, " ")
    supporting, found, unresolved = sentences_of_facts(row, context, sentences)
    question = Question(row.id("_id", "id"), row.text("question"))
    gold = RawGold(
        id=question.id,
        answers=row.answers(),
        supporting=supporting,
        type=row.text("type"),
        hops=len(supporting),
        evidences=triples(row),
        supporting_sentences=found,
        unresolved_sentences=unresolved,
        answer_id=answer_id(row),
    )
    return question, gold, context


def load(path: Path, limit: int | None = None) -> LoadedSplit:
    """Raises DataError with file and line for rows that don't have the format."""
    return load_rows(path, parse, limit)


def load_aliases(path: Path) -> dict[str, tuple[str, ...]]:
    """Entity id -> aliases, then demonyms (the official v1.1 metric accepts both)."""
    names: dict[str, tuple[str, ...]] = {}
    for row in read_rows(path):
        values = row.items("aliases", []) + row.items("demonyms", [])
        names[row.id("Q_id")] = tuple(dict.fromkeys(row.clean(v, "an alias") for v in values))
    return names
