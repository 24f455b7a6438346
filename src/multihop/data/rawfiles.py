"""Which file of a raw folder plays which part, by name."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from multihop.errors import DataError

EXPECTED = """\
  evaluation questions: a name with "dev", "questions.jsonl" or "<dataset>.json"
  corpus (optional): a name with "corpus"; training questions and corpus (optional): a name with "train"
  2WikiMultiHopQA's aliases (optional): "id_aliases.json"
as .json or .jsonl"""

IGNORED = ("test", "singlehop", "musique_full", "fullwiki")
"""Marks of official files that play no part: test sets without answers, other settings of a benchmark."""


@dataclass(frozen=True, slots=True)
class RawFiles:
    questions: Path | None = None
    corpus: Path | None = None
    train: Path | None = None
    train_corpus: Path | None = None
    aliases: Path | None = None

    def present(self) -> list[Path]:
        return [path for f in fields(self) if (path := getattr(self, f.name)) is not None]


def part_of(path: Path, dataset: str) -> str | None:
    """questions, corpus, train, train_corpus, aliases, or None for a file that plays no part."""
    stem = path.stem.lower()
    if path.suffix not in (".json", ".jsonl") or stem.startswith("."):
        return None
    if any(mark in stem for mark in IGNORED):
        return None
    if stem == "id_aliases":
        return "aliases"
    if "corpus" in stem:
        return "train_corpus" if "train" in stem else "corpus"
    if "train" in stem:
        return "train"
    return "questions" if "dev" in stem or stem in ("questions", dataset) else None


def find(folder: Path, dataset: str) -> RawFiles:
    """Raises DataError when the folder or the questions are missing, or two files claim one part."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; run the download stage first")
    parts: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        part = part_of(path, dataset) if path.is_file() else None
        if part and part in parts:
            pair = f"{parts[part].name} and {path.name}"
            raise DataError(f"{folder}: {pair} could both be the {part}; keep one")
        if part:
            parts[part] = path
    if "questions" not in parts:
        names = ", ".join(sorted(p.name for p in folder.iterdir())) or "nothing"
        raise DataError(f"{folder}: no questions of {dataset}. Found: {names}. Expected:\n{EXPECTED}")
    return RawFiles(**parts)
