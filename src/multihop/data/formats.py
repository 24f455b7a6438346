"""What every benchmark format is read into, and the checked reading of rows.

A loader turns one official file into a :class:`LoadedSplit`. Gold passages are still (title, text) pairs
there; ``prepare`` maps them to passage ids. Rows are read one by one, so that the 500 MB training files
are never held whole, and every complaint names the file and the line.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn, TextIO

from multihop.errors import DataError
from multihop.types import Question

Paragraph = tuple[str, str]
"""(title, text): the identity of a passage."""


@dataclass(frozen=True, slots=True)
class RawHop:
    """A step of a decomposition; ``passage`` is None where the file does not say which one answers it."""

    question: str
    answer: str
    passage: Paragraph | None


@dataclass(frozen=True, slots=True)
class RawGold:
    """As :class:`multihop.types.Gold`, with (title, text) pairs in place of passage ids."""

    id: str
    answers: tuple[str, ...]
    supporting: tuple[Paragraph, ...]
    type: str
    hops: int
    decomposition: tuple[RawHop, ...] = ()
    evidences: tuple[tuple[str, str, str], ...] = ()
    exact: bool = True
    supporting_sentences: tuple[tuple[Paragraph, str], ...] = ()
    unresolved_sentences: int = 0
    """Supporting facts whose sentence number is beyond the paragraph (the official files hold a few)."""
    answer_id: str | None = None


@dataclass(frozen=True, slots=True)
class LoadedSplit:
    """One file of questions: parallel lists in file order."""

    questions: list[Question] = field(default_factory=list)
    gold: list[RawGold] = field(default_factory=list)
    contexts: list[tuple[Paragraph, ...]] = field(default_factory=list)
    """The paragraphs given with each question (supporting and distracting); empty where there are none."""
    where: list[str] = field(default_factory=list)
    """File and line of each question, for complaints."""


@dataclass(frozen=True, slots=True)
class Row:
    """A JSON object with its place, read key by key with checks. Every failure is a DataError."""

    data: dict[str, Any]
    where: str

    def fail(self, problem: str) -> NoReturn:
        raise DataError(f"{self.where}: {problem}")

    def get(self, key: str, kind: type, what: str) -> Any:
        if key not in self.data:
            self.fail(f"no field {key!r}; the row has {', '.join(map(repr, self.data)) or 'no fields'}")
        value = self.data[key]
        if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
            self.fail(f"field {key!r} should be {what}, found {_short(value)}")
        return value

    def text(self, key: str) -> str:
        return self.clean(self.get(key, str, "a text"), f"field {key!r}")

    def items(self, key: str, default: list[Any] | None = None) -> list[Any]:
        if default is not None and key not in self.data:
            return default
        return self.get(key, list, "a list")

    def child(self, value: Any, what: str) -> Row:
        """An object inside this row, as a row of its own."""
        if not isinstance(value, dict):
            self.fail(f"{what} should be an object, found {_short(value)}")
        return Row(value, f"{self.where}, {what}")

    def id(self, *keys: str) -> str:
        """The question's id as a string; the number 0 is the id "0"."""
        for key in keys:
            value = self.data.get(key)
            if isinstance(value, int) and not isinstance(value, bool):
                return str(value)
            if isinstance(value, str) and value and value == value.strip() and value.isprintable():
                return value
            if value is not None:
                self.fail(f"field {key!r} can't be an id: {_short(value)}")
        self.fail(f"no id (looked for {', '.join(map(repr, keys))})")

    def answers(self) -> tuple[str, ...]:
        """The gold answer, then the aliases, without repetition. HippoRAG's files may hold a list."""
        first = self.data.get("answer")
        values = [*(first if isinstance(first, list) else [self.text("answer")])]
        values += self.items("answer_aliases", [])
        if not values:
            self.fail("field 'answer' is an empty list")
        return tuple(dict.fromkeys(self.clean(v, "an answer") for v in values))

    def paragraph(self, title: Any, text: Any) -> Paragraph:
        return self.clean(title, "a passage's title"), self.clean(text, "a passage's text")

    def clean(self, value: Any, what: str) -> str:
        """``value`` if it is text that can be written as UTF-8."""
        if not isinstance(value, str):
            self.fail(f"{what} should be a text, found {_short(value)}")
        try:
            value.encode()
        except UnicodeEncodeError:
            self.fail(f"{what} holds half of a surrogate pair, which is no character")
        return value


def _short(value: Any) -> str:
    shown = json.dumps(value, ensure_ascii=False, default=str)
    return f"{type(value).__name__} {shown[:60]}{'…' if len(shown) > 60 else ''}"


def read_rows(path: Path) -> Iterator[Row]:
    """Rows of a JSON list or of JSON lines, told apart by the first character, one at a time.

    Raises DataError with file and line for a missing, empty, truncated or malformed file.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    with path.open(encoding="utf-8-sig", newline="\n") as f:
        try:
            start = f.read(1024).lstrip()[:1]
            f.seek(0)
            if not start:
                raise DataError(f"{path}: the file is empty")
            for value, where in _list_items(f, path) if start == "[" else _lines(f, path):
                if not isinstance(value, dict):
                    raise DataError(f"{where}: expected a JSON object, found {_short(value)}")
                yield Row(value, where)
        except UnicodeDecodeError as e:
            raise DataError(f"{path}: not UTF-8 text (byte {e.start} of a block): {e.reason}") from e


def _lines(f: TextIO, path: Path) -> Iterator[tuple[Any, str]]:
    for number, line in enumerate(f, 1):
        if line.strip():
            where = f"{path}, line {number}"
            try:
                yield json.loads(line), where
            except (json.JSONDecodeError, RecursionError) as e:
                raise DataError(f"{where}: not JSON ({e})") from e


class _Reader:
    """A window onto a long file. It doubles while a value does not fit, so reading stays linear."""

    BLOCK = 1 << 20
    SPACE = re.compile(r"\s*")

    def __init__(self, f: TextIO):
        self.f, self.buffer, self.at, self.line = f, "", 0, 1

    def move(self, to: int) -> None:
        self.line += self.buffer.count("\n", self.at, to)
        self.at = to

    def more(self) -> bool:
        self.buffer = self.buffer[self.at :]
        self.at = 0
        new = self.f.read(max(self.BLOCK, len(self.buffer)))
        self.buffer += new
        return bool(new)

    def peek(self) -> str:
        """The next character that is not white space; "" at the end of the file."""
        while True:
            self.move(self.SPACE.match(self.buffer, self.at).end())
            if self.at < len(self.buffer):
                return self.buffer[self.at]
            if not self.more():
                return ""


def _list_items(f: TextIO, path: Path) -> Iterator[tuple[Any, str]]:
    """The items of one JSON list, decoded one by one."""
    reader, decoder, number = _Reader(f), json.JSONDecoder(), 0
    reader.peek()
    reader.move(reader.at + 1)  # the opening bracket
    while (character := reader.peek()) != "]":
        if number and character != ",":
            where = f"{path}, line {reader.line}"
            raise DataError(f"{where}: the list breaks off, or a comma is missing, after item {number}")
        if number:
            reader.move(reader.at + 1)
            reader.peek()
        number += 1
        while True:
            try:
                value, end = decoder.raw_decode(reader.buffer, reader.at)
                break
            except (json.JSONDecodeError, RecursionError) as e:
                if not reader.more():
                    problem = e.msg if isinstance(e, json.JSONDecodeError) else "nested too deeply"
                    where = f"{path}, item {number} (starts in line {reader.line})"
                    raise DataError(f"{where}: not JSON, or the file breaks off ({problem})") from e
        yield value, f"{path}, item {number} (line {reader.line})"
        reader.move(end)
    reader.move(reader.at + 1)
    if reader.peek():
        raise DataError(f"{path}, line {reader.line}: something follows the end of the list")


Parsed = tuple[Question, RawGold, tuple[Paragraph, ...]]


def sample(ids: list[str], limit: int | None, seed: int | None) -> set[str]:
    """The first ``limit`` ids (None: all); with a seed, the ``limit`` ids whose salted hash is smallest.

    Some official files are sorted by question type, and the first rows of such a file are of one kind. The
    hash makes a sample that grows with the limit and depends on nothing but seed and ids.
    """
    if seed is not None:
        ids = sorted(ids, key=lambda i: hashlib.sha256(f"{seed}:{i}".encode()).digest())
    return set(ids[:limit])


def load_rows(
    path: Path, parse: Callable[[Row], Parsed], limit: int | None = None, keep: set[str] | None = None
) -> LoadedSplit:
    """Parse the first ``limit`` rows (None: all), or those whose id is in ``keep``.

    Raises DataError for malformed rows and for an id that occurs twice.
    """
    split, places = LoadedSplit(), {}
    for row in islice(read_rows(path), limit):
        if keep is not None and row.id("_id", "id") not in keep:
            continue
        question, gold, context = parse(row)
        if question.id in places:
            row.fail(f"the id {question.id!r} occurs twice (first in {places[question.id]})")
        places[question.id] = row.where
        if not question.text.strip():
            row.fail(f"question {question.id!r} has no text")
        split.questions.append(question)
        split.gold.append(gold)
        split.contexts.append(context)
        split.where.append(row.where)
    return split


def sentences_of_facts(
    row: Row, context: tuple[Paragraph, ...], sentences: list[list[str]]
) -> tuple[tuple[Paragraph, ...], tuple[tuple[Paragraph, str], ...], int]:
    """``supporting_facts`` (title, sentence number) of HotpotQA and 2Wiki, looked up in the context.

    Returns the supporting paragraphs in the order of the facts, the supporting sentences with their
    paragraph, and the number of facts that point beyond their paragraph. A title may stand twice in a
    context (2Wiki repeats some paragraphs): every paragraph under it then supports.
    """
    by_title: dict[str, dict[Paragraph, list[str]]] = {}
    for paragraph, lines in zip(context, sentences, strict=True):
        by_title.setdefault(paragraph[0], {})[paragraph] = lines
    supporting: dict[Paragraph, None] = {}
    found, unresolved = [], 0
    for fact in row.items("supporting_facts"):
        if not (isinstance(fact, list) and [type(part) for part in fact] == [str, int]):
            row.fail(f"a supporting fact should be [title, sentence number], found {_short(fact)}")
        if fact[0] not in by_title:
            row.fail(f"the supporting fact {_short(fact)} names a title that is not in the context")
        for paragraph, lines in by_title[fact[0]].items():
            supporting[paragraph] = None
            if 0 <= fact[1] < len(lines):
                found.append((paragraph, lines[fact[1]].strip()))
            else:
                unresolved += 1
    return tuple(supporting), tuple(dict.fromkeys(found)), unresolved
