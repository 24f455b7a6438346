"""The tables of a store: their entries as rows of a recording, and rows taken into them."""

from __future__ import annotations

import base64
import hashlib
import heapq
import itertools
import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from multihop import jsonl
from multihop.entries import canonical, response_row, value_row, vector_row
from multihop.errors import DataError

SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (key TEXT PRIMARY KEY, request TEXT NOT NULL, response TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS vectors (space TEXT NOT NULL, text TEXT NOT NULL, vector BLOB NOT NULL,
                                    PRIMARY KEY (space, text));
CREATE TABLE IF NOT EXISTS kept (space TEXT NOT NULL, text TEXT NOT NULL, value TEXT NOT NULL,
                                 PRIMARY KEY (space, text));
"""

TABLES = {"responses": "request, response", "kept": "space, text, value", "vectors": "space, text, vector"}
SORTED = {"response": ("responses", "key"), "value": ("kept", "space, text"), "vector": ("vectors", "space, text")}
"""Kind of row -> its table, and what it is sorted by; in the order of a recording."""
_SEEN = ("content", "refusal", "tool_calls", "finish_reason")
"""What a method sees of a response; another fingerprint, or cached token more, is no other answer."""


@dataclass
class Merged:
    """What became of entries that were to be taken into a store."""

    read: int = 0
    new: int = 0
    conflicts: int = 0
    """Another answer, vector or value was here already, and stayed."""

    def __add__(self, other: Merged) -> Merged:
        return Merged(self.read + other.read, self.new + other.new, self.conflicts + other.conflicts)

    def said(self) -> str:
        line = f"{self.read} entries read, {self.new} new, {self.conflicts} conflicts"
        if self.conflicts:
            line += " (the first answer stayed; `multihop warm` once more, here, asks what rests on the other one)"
        return line


def stored(db: sqlite3.Connection, kind: str) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """(key, row) of every entry of a kind, by key."""
    table, order = SORTED[kind]
    width = order.count(",") + 1
    for found in db.execute(f"SELECT {order}, {TABLES[table]} FROM {table} ORDER BY {order}"):
        yield found[:width], as_row(table, *found[width:])


def first_of(streams: list[Iterator[tuple[tuple[str, ...], Any]]]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Sorted streams of (key, row) as one; of equal keys the first stream's."""

    def numbered(n: int) -> Iterator[tuple[tuple[str, ...], int, Any]]:
        return ((key, n, row) for key, row in streams[n])

    merged = heapq.merge(*map(numbered, range(len(streams))))
    for key, group in itertools.groupby(merged, key=lambda each: each[0]):
        yield key, next(group)[2]


def take(db: sqlite3.Connection, row: dict[str, Any]) -> Merged:
    """Put a row where nothing is."""
    if row["kind"] == "response":
        table, entry = "responses", (jsonl.dumps(canonical(row["request"])), jsonl.dumps(row["response"]))
        key, where = (hashlib.sha256(entry[0].encode()).hexdigest(),), "key=?"
    else:
        key, where = (row["space"], row["text"]), "space=? AND text=?"
        vector = row["kind"] == "vector"
        table, entry = "vectors" if vector else "kept", (
            base64.b64decode(row["vector"]) if vector else jsonl.dumps(row["value"]),
        )
    values = (*key, *entry)
    if db.execute(f"INSERT OR IGNORE INTO {table} VALUES ({','.join('?' * len(values))})", values).rowcount:
        return Merged(1, 1)
    column = TABLES[table].rsplit(", ", 1)[1]
    [before] = db.execute(f"SELECT {column} FROM {table} WHERE {where}", key).fetchone()
    same = before == entry[-1] or (table == "responses" and _seen(before) == _seen(entry[-1]))
    return Merged(1, 0, int(not same))


def _seen(response: str) -> list[Any]:
    said = json.loads(response)
    usage = said["usage"]
    return [*(said.get(name) for name in _SEEN), usage["prompt_tokens"], usage["completion_tokens"]]


def as_row(table: str, *entry: Any) -> dict[str, Any]:
    """One entry of a table as a row of a recording."""
    if table == "responses":
        return response_row(*map(json.loads, entry))
    if table == "kept":
        return value_row(entry[0], entry[1], json.loads(entry[2]))
    return vector_row(*entry)


def check(db: sqlite3.Connection, path: object) -> int:
    """The number of entries. Raises DataError where SQLite or a request's key says that the file is damaged."""
    said = [row[0] for row in db.execute("PRAGMA integrity_check(3)")]
    for key, request in db.execute("SELECT key, CAST(request AS BLOB) FROM responses") if said == ["ok"] else ():
        if hashlib.sha256(request).hexdigest() != key:
            said = [f"key {key[:12]} holds another request"]
    if said != ["ok"]:
        raise DataError(f"{path}: damaged ({said[0]}); move it away and run again: recordings still replay")
    return sum(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in TABLES)
