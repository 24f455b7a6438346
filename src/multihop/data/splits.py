"""Reading the prepared layout, data/prepared/<dataset>:

questions.jsonl {id, text} and gold.jsonl (:class:`Gold`), both sorted by id; passages.jsonl
{id, title, text} in corpus order; chunks/<variant>.jsonl {id, text, spans}; train_questions.jsonl,
train_gold.jsonl, train_passages.jsonl (empty files where the source has no training split); ids.txt, the
evaluation ids one a line; card.json, the data card.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, TypeVar

from multihop import jsonl
from multihop.errors import DataError
from multihop.types import Chunk, Gold, Hop, Passage, Question, Span

T = TypeVar("T")
Split = Literal["dev", "train"]


def _read(path: Path, make: Callable[[dict[str, Any]], T]) -> list[T]:
    items = []
    for number, row in enumerate(jsonl.read(path), 1):
        try:
            items.append(make(row))
        except (KeyError, TypeError, ValueError) as e:
            raise DataError(f"{path}, row {number}: not a prepared row ({e}); run `prepare` again") from e
    return items


def _file(folder: Path, split: Split, name: str) -> Path:
    return folder / (name if split == "dev" else f"train_{name}")


def questions(folder: Path, split: Split = "dev") -> list[Question]:
    """Sorted by id. Raises DataError for a missing file, a bad row or an id that occurs twice."""
    found = _read(_file(folder, split, "questions.jsonl"), lambda row: Question(**row))
    same_ids(folder, [q.id for q in found], [q.id for q in found])
    return found


def gold(folder: Path, split: Split = "dev") -> list[Gold]:
    """Sorted by id: the same ids as :func:`questions`. For evaluation, analysis and training only."""
    path = _file(folder, split, "gold.jsonl")
    found = _read(path, gold_from_row)
    same_ids(path, [q.id for q in questions(folder, split)], [g.id for g in found])
    return found


def gold_from_row(row: dict[str, Any]) -> Gold:
    row = dict(row)
    for name in ("answers", "supporting"):
        row[name] = tuple(row[name])
    for name in ("evidences", "supporting_sentences"):
        row[name] = tuple(tuple(part) for part in row[name])
    row["decomposition"] = tuple(Hop(**hop) for hop in row["decomposition"])
    return Gold(**row)


def passages(folder: Path, split: Split = "dev") -> list[Passage]:
    """In corpus order: the passage "p<n>" of the evaluation corpus is item n."""
    return _read(_file(folder, split, "passages.jsonl"), lambda row: Passage(**row))


def chunks(folder: Path, variant: str) -> list[Chunk]:
    path = folder / "chunks" / f"{variant}.jsonl"
    if not path.is_file():
        there = ", ".join(sorted(p.stem for p in path.parent.glob("*.jsonl"))) or "none"
        raise DataError(f"{path}: the corpus variant {variant!r} was not prepared (there: {there})")
    return _read(path, lambda r: Chunk(r["id"], r["text"], tuple(Span(**s) for s in r["spans"])))


def card(folder: Path) -> dict[str, Any]:
    path = folder / "card.json"
    if not path.is_file():
        raise DataError(f"{path}: no such file; run `prepare` first")
    return json.loads(path.read_text(encoding="utf-8"))


def corpus_hash(folder: Path) -> str:
    """sha256 of passages.jsonl: what RunRecord.corpus_hash holds and the card repeats."""
    return jsonl.file_sha256(folder / "passages.jsonl")


def same_ids(where: object, expected: Iterable[str], found: Iterable[str]) -> None:
    """Raises DataError naming ids that are missing, foreign or repeated in ``found``."""
    wanted, counts = set(expected), Counter(found)
    problems = {
        "missing": sorted(wanted - counts.keys()),
        "foreign": sorted(counts.keys() - wanted),
        "repeated": sorted(i for i, n in counts.items() if n > 1),
    }
    said = [f"{len(ids)} {what} ({name_some(ids)})" for what, ids in problems.items() if ids]
    if said:
        raise DataError(f"{where}: question ids don't match: {'; '.join(said)}")


def name_some(ids: list[str], limit: int = 5) -> str:
    return ", ".join(map(repr, ids[:limit])) + (", …" if len(ids) > limit else "")
