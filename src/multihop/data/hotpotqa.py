"""HotpotQA, distractor setting: hotpot_dev_distractor_v1.json, hotpot_train_v1.1.json (a JSON list)."""

from __future__ import annotations

from pathlib import Path

from multihop.data.formats import LoadedSplit, Paragraph, Parsed, RawGold, Row, load_rows, sentences_of_facts
from multihop.types import Question


def context_of(row: Row, joint: str) -> tuple[tuple[Paragraph, ...], list[list[str]]]:
    """Paragraphs [title, [sentence, …]] with the sentences joined by ``joint``, and the sentences."""
    paragraphs, sentences = [], []
    for entry in row.items("context"):
        if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[1], list)):
            row.fail("each entry of 'context' should be [title, [sentence, …]]")
        lines = [row.clean(s, "a sentence") for s in entry[1]]
        paragraphs.append(row.paragraph(entry[0], joint.join(lines)))
        sentences.append(lines)
    return tuple(paragraphs), sentences


def parse(row: Row) -> Parsed:
    # HotpotQA's sentences carry their leading space: anything but the empty joint breaks exact matching.
    context, sentences = context_of(row, "")
    supporting, found, unresolved = sentences_of_facts(row, context, sentences)
    question = Question(row.id("_id", "id"), row.text("question"))
    gold = RawGold(
        id=question.id,
        answers=row.answers(),
        supporting=supporting,
        type=row.text("type"),
        hops=len(supporting),
        supporting_sentences=found,
        unresolved_sentences=unresolved,
    )
    return question, gold, context


def load(path: Path, limit: int | None = None) -> LoadedSplit:
    """Raises DataError with file and line for rows that don't have the format."""
    return load_rows(path, parse, limit)
