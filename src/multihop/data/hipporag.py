"""The HippoRAG protocol: a sample of questions in the benchmark's own form, and a corpus of its own.

Questions: <dataset>.json, a JSON list of rows in the official form. Corpus: <dataset>_corpus.json, a JSON
list of {title, text, idx}. The plain corpus.jsonl {id, title, text} is read by the same function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from multihop.data import hotpotqa, musique, plain, wiki2
from multihop.data.formats import LoadedSplit, Paragraph, Parsed, Row, load_rows, read_rows, sample
from multihop.errors import DataError

Parse = Callable[[Row], Parsed]

FORMATS: dict[str, tuple[frozenset[str], Parse]] = {
    "MuSiQue-Ans": (frozenset({"paragraphs", "question_decomposition"}), musique.parse),
    "2WikiMultiHopQA": (frozenset({"context", "supporting_facts", "evidences"}), wiki2.parse),
    "HotpotQA distractor": (frozenset({"context", "supporting_facts"}), hotpotqa.parse),
    "plain": (frozenset({"id", "answer", "supporting"}), plain.parse),
}
"""Format -> the fields that mark it, and its parser; the first that fits a file's first row is taken."""

ALLOWED = {
    "hotpotqa": ("HotpotQA distractor", "plain"),
    "2wikimultihopqa": ("2WikiMultiHopQA", "plain"),
    "musique": ("MuSiQue-Ans", "plain"),
}


def detect(path: Path, dataset: str) -> tuple[str, Parse]:
    """The format of a file of questions, by the fields of its first row.

    Raises DataError that says what was expected when no format of the dataset fits.
    """
    first = next(islice(read_rows(path), 1), None)
    if first is None:
        raise DataError(f"{path}: the file holds no questions")
    for name, (marks, parse) in FORMATS.items():
        if marks <= first.data.keys() and name in ALLOWED[dataset]:
            return name, parse
    expected = "; ".join(f"{n}: {', '.join(sorted(FORMATS[n][0]))}" for n in ALLOWED[dataset])
    first.fail(
        f"this is no format of {dataset}. Expected fields: {expected}. "
        f"Found: {', '.join(sorted(first.data)) or 'none'}"
    )


def load(
    path: Path, dataset: str, limit: int | None = None, sample_seed: int | None = None
) -> tuple[str, LoadedSplit]:
    """The name of the format and the first ``limit`` questions (None: all), or a sample of that size."""
    name, parse = detect(path, dataset)
    keep = None
    if limit is not None and sample_seed is not None:
        keep = sample([row.id("_id", "id") for row in read_rows(path)], limit, sample_seed)
        limit = None
    return name, load_rows(path, parse, limit, keep)


@dataclass(frozen=True, slots=True)
class Corpus:
    paragraphs: list[Paragraph]
    duplicates: int
    """Entries left out because the same (title, text) stands earlier."""


def load_corpus(path: Path) -> Corpus:
    """Entries in file order, each (title, text) once. Raises DataError for an entry without text."""
    seen: dict[Paragraph, None] = {}
    count = 0
    for row in read_rows(path):
        count += 1
        paragraph = row.paragraph(row.data.get("title"), row.data.get("text"))
        if not paragraph[1].strip():
            row.fail(f"the passage {paragraph[0]!r} has no text; correct or remove this entry")
        seen[paragraph] = None
    if not seen:
        raise DataError(f"{path}: the corpus holds no passages")
    return Corpus(list(seen), count - len(seen))


def pool(contexts: list[tuple[Paragraph, ...]]) -> Corpus:
    """The paragraphs of all questions in order of first appearance, each (title, text) once."""
    seen = dict.fromkeys(p for context in contexts for p in context)
    return Corpus(list(seen), sum(map(len, contexts)) - len(seen))
