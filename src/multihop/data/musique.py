"""MuSiQue-Ans: musique_ans_v1.0_dev.jsonl, musique_ans_v1.0_train.jsonl (HippoRAG: the same as a list)."""

from __future__ import annotations

import re
from pathlib import Path

from multihop.data.formats import LoadedSplit, Parsed, RawGold, RawHop, Row, load_rows
from multihop.types import Question

REFERENCE = re.compile(r"#(\d+)")


def resolve(questions: list[str], answers: list[str]) -> list[str]:
    """Fill "#k" with the answer of step k.

    Only a reference to an *earlier* step is one: in "Who had the #1 hit?" as a first step it is text.
    """

    def filled(step: int) -> str:
        def answer(match: re.Match[str]) -> str:
            k = int(match.group(1))
            return answers[k - 1] if 1 <= k <= step else match.group()

        return REFERENCE.sub(answer, questions[step])

    return [filled(step) for step in range(len(questions))]


def question_type(qid: str) -> str:
    """The shape of the reasoning graph, which the id opens with: 2hop, 3hop1, 3hop2, 4hop1, ..."""
    return qid.split("__")[0]


def parse(row: Row) -> Parsed:
    question = Question(row.id("id"), row.text("question"))
    if row.data.get("answerable") is False:
        row.fail(f"question {question.id!r} is unanswerable: use the MuSiQue-Ans file, not MuSiQue-Full")
    context, marked, by_idx = [], [], {}
    for value in row.items("paragraphs"):
        entry = row.child(value, "a paragraph")
        paragraph = entry.paragraph(entry.data.get("title"), entry.text("paragraph_text"))
        context.append(paragraph)
        by_idx[entry.get("idx", int, "a paragraph's number")] = paragraph
        if entry.get("is_supporting", bool, "true or false"):
            marked.append(paragraph)
    steps = [row.child(v, "a step") for v in row.items("question_decomposition")]
    answers = [step.text("answer") for step in steps]
    texts = resolve([step.text("question") for step in steps], answers)
    passages = []
    for step in steps:
        index = step.get("paragraph_support_idx", int, "a paragraph's number")
        if index not in by_idx:
            step.fail(f"paragraph_support_idx {index} is not the idx of a paragraph")
        passages.append(by_idx[index])
    gold = RawGold(
        id=question.id,
        answers=row.answers(),
        supporting=tuple(dict.fromkeys([*passages, *marked])),
        type=question_type(question.id),
        hops=len(steps),
        decomposition=tuple(map(RawHop, texts, answers, passages)),
    )
    return question, gold, tuple(context)


def load(path: Path, limit: int | None = None) -> LoadedSplit:
    """Raises DataError with file and line for rows that don't have the format."""
    return load_rows(path, parse, limit)
