"""The plain form: questions.jsonl with the gold passages written out, corpus.jsonl {id, title, text}.

Fields: id, question, answer, answer_aliases, type, hops, supporting [{title, text}], contexts
[{title, text}]; optional decomposition [{question, answer, title}], gold_exact, evidences, answer_id.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from multihop.data import musique, wiki2
from multihop.data.formats import LoadedSplit, Paragraph, Parsed, RawGold, RawHop, Row, load_rows
from multihop.types import Question


def _paragraphs(row: Row, key: str, default: list[Any] | None = None) -> tuple[Paragraph, ...]:
    entries = (row.child(value, f"an entry of {key!r}") for value in row.items(key, default))
    return tuple(entry.paragraph(entry.data.get("title"), entry.data.get("text")) for entry in entries)


def _hops(row: Row, supporting: tuple[Paragraph, ...]) -> tuple[RawHop, ...]:
    steps = [row.child(value, "a step") for value in row.items("decomposition", [])]
    answers = [step.text("answer") for step in steps]
    texts = musique.resolve([step.text("question") for step in steps], answers)
    # Where the steps carry titles that run along the supporting passages, the two lists are parallel.
    # Without titles the order of the passages is the file's, which need not be the hops': say nothing.
    parallel = [step.data.get("title") for step in steps] == [title for title, _ in supporting]
    passages = supporting if parallel else (None,) * len(steps)
    return tuple(map(RawHop, texts, answers, passages))


def parse(row: Row) -> Parsed:
    question = Question(row.id("id"), row.text("question"))
    supporting = _paragraphs(row, "supporting")
    gold = RawGold(
        id=question.id,
        answers=row.answers(),
        supporting=tuple(dict.fromkeys(supporting)),
        type=row.text("type"),
        hops=row.get("hops", int, "a whole number"),
        decomposition=_hops(row, supporting),
        evidences=wiki2.triples(row),
        exact=row.get("gold_exact", bool, "true or false") if "gold_exact" in row.data else True,
        answer_id=wiki2.answer_id(row),
    )
    return question, gold, _paragraphs(row, "contexts", [])


def load(path: Path, limit: int | None = None) -> LoadedSplit:
    """Raises DataError with file and line for rows that don't have the format."""
    return load_rows(path, parse, limit)
