"""The response store: every answer a model gave, every vector an embedder made, every value that steers a prompt.

A store is one SQLite file (WAL) outside the pipeline's outputs, over read-only *layers*: recordings
(``data/recordings/*.jsonl.zst``) that replay a run without a key, a model or torch. A killed run loses
only the calls in flight; the store exports to, and merges from, sorted JSON lines.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from multihop import jsonl
from multihop.entries import Layer, canonical, decode, encode, read_recording, request_key, write_recording
from multihop.entries import as_sent as as_sent  # for those who know the store alone
from multihop.errors import DataError
from multihop.tables import SCHEMA, SORTED, TABLES, Merged, as_row, check, first_of, stored, take

_ANSWER = "SELECT CAST(request AS BLOB), response FROM responses WHERE key=?"

Marks = tuple[int, ...]
"""For each of the tables, an entry's number: entries are never deleted, so what is added later has a higher one."""

BATCH = 500
"""Entries per transaction when many are taken in."""


class Store:
    """Responses and vectors by content. Thread-safe; several processes may share one file."""

    def __init__(self, path: Path, layers: Iterable[Path] = ()):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.layers = [Layer(p) for p in layers if p.is_file()]
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, timeout=60, check_same_thread=False, isolation_level=None)
        try:
            write_ahead(self._db)
            self._db.execute("PRAGMA synchronous=NORMAL")
            # Keys come in any order: a block of vectors dirties as many pages, which are best copied back seldom.
            self._db.execute("PRAGMA wal_autocheckpoint=16000")
            self._db.execute("PRAGMA cache_size=-16384")  # KiB
            self._db.executescript(SCHEMA)
        except sqlite3.OperationalError as e:
            raise DataError(f"{path}: {e}; {what_to_do(e)} and run the same command again") from e
        except sqlite3.DatabaseError as e:
            raise DataError(
                f"{path}: not a response store, or damaged ({e}); move it away and run again: recordings still replay"
            ) from e
        self.touched: set[tuple[str, ...]] | None = None
        """What was read or written since :meth:`track`; None where nobody asked, for it grows with every entry."""
        self.written = 0
        """Entries that this process computed or asked for, rather than found."""

    def close(self) -> None:
        self._db.close()

    def track(self) -> None:
        """From now on note what is read and written in ``touched``: what a recording of this process must hold."""
        self.touched = set()

    def _touch(self, kind: str, *names: str) -> None:
        if self.touched is not None:
            self.touched.add((kind, *names))

    # -- responses

    def get(self, request: dict[str, Any], key: str | None = None) -> dict[str, Any] | None:
        """The stored response, or None. ``key``: the request's, where it is known. Raises DataError where a key's
        stored request is another one."""
        key = key or request_key(request)
        self._touch("response", key)
        for layer in self.layers:
            if row := layer.responses.get(key):
                return row["response"]
        with self._using() as db:
            row = db.execute(_ANSWER, (key,)).fetchone()
        if row is None:
            return None
        if hashlib.sha256(row[0]).hexdigest() != key:
            raise DataError(f"{self.path}: key {key[:12]} holds another request; delete the file and run again")
        return json.loads(row[1])

    def put(self, request: dict[str, Any], response: dict[str, Any], key: str | None = None) -> None:
        """Store a response; the first one stays where two processes asked the same."""
        text = jsonl.dumps(canonical(request))
        key = key or hashlib.sha256(text.encode()).hexdigest()
        self._touch("response", key)
        self.written += 1
        with self._using() as db:
            db.execute("INSERT OR IGNORE INTO responses VALUES (?,?,?)", (key, text, jsonl.dumps(response)))

    # -- vectors

    def get_vectors(self, space: str, texts: Iterable[str]) -> dict[str, np.ndarray]:
        """The stored vectors (float16, shape (dim,)) of those ``texts`` that have one in ``space``."""
        found: dict[str, np.ndarray] = {}
        missing = []
        for text in dict.fromkeys(texts):
            self._touch("vector", space, text)
            for layer in self.layers:
                vector = layer.vectors.get((space, text))
                if vector is not None:
                    found[text] = vector
                    break
            else:
                missing.append(text)
        for start in range(0, len(missing), 500):
            block = missing[start : start + 500]
            marks = ",".join("?" * len(block))
            with self._using() as db:
                rows = db.execute(
                    f"SELECT text, vector FROM vectors WHERE space=? AND text IN ({marks})", (space, *block)
                ).fetchall()
            found.update((text, decode(blob)) for text, blob in rows)
        return found

    def put_vectors(self, space: str, vectors: dict[str, np.ndarray]) -> None:
        """Store vectors, rounded to half precision; the first one stays."""
        rows = [(space, text, encode(v)) for text, v in vectors.items()]
        for text in vectors:
            self._touch("vector", space, text)
        self._insert("vectors", rows)

    # -- values: what a library computed that decides later prompts (entities, clusters), as JSON

    def get_values(self, space: str, texts: Iterable[str]) -> dict[str, Any]:
        """The stored values of those ``texts`` that have one in ``space``."""
        found: dict[str, Any] = {}
        for text in dict.fromkeys(texts):
            self._touch("value", space, text)
            layer = next((layer for layer in self.layers if (space, text) in layer.values), None)
            if layer is not None:
                found[text] = layer.values[space, text]
                continue
            with self._using() as db:
                row = db.execute("SELECT value FROM kept WHERE space=? AND text=?", (space, text)).fetchone()
            if row is not None:
                found[text] = json.loads(row[0])
        return found

    def put_values(self, space: str, values: dict[str, Any]) -> None:
        """Store values; the first one stays."""
        for text in values:
            self._touch("value", space, text)
        self._insert("kept", [(space, text, jsonl.dumps(value)) for text, value in values.items()])

    def _insert(self, table: str, rows: list[tuple[str, str, Any]]) -> None:
        self.written += len(rows)
        with self._writing() as db:
            db.executemany(f"INSERT OR IGNORE INTO {table} VALUES (?,?,?)", rows)

    # -- recordings

    def rows(self, keep: set[tuple[str, ...]] | None = None) -> Iterator[dict[str, Any]]:
        """Every entry of the layers and the file as recording rows, sorted; ``keep`` restricts them.

        They are read as they are drawn, as of the first one: memory does not grow with the file.
        """
        db = sqlite3.connect(self.path, timeout=60, isolation_level=None)
        try:
            db.execute("BEGIN")
            for kind in SORTED:
                found = first_of([*(layer.sorted(kind) for layer in self.layers), stored(db, kind)])
                yield from (row for key, row in found if keep is None or (kind, *key) in keep)
        finally:
            db.close()

    def marks(self) -> Marks:
        """Where each table of the file ends now."""
        with self._using() as db:
            ends = [db.execute(f"SELECT coalesce(max(rowid), 0) FROM {t}").fetchone()[0] for t in TABLES]
        return tuple(ends)

    def added(self, since: Marks = (0, 0, 0), until: Marks | None = None) -> Iterator[dict[str, Any]]:
        """The entries of the file alone as recording rows, in the order in which they came; ``since`` and ``until``
        are earlier ``marks()``. A few at a time: memory does not grow with the file."""
        for (table, columns), start, end in zip(TABLES.items(), since, until or self.marks(), strict=True):
            while start < end:
                with self._using() as db:
                    block = db.execute(
                        f"SELECT rowid, {columns} FROM {table} WHERE rowid > ? AND rowid <= ? ORDER BY rowid LIMIT 500",
                        (start, end),
                    ).fetchall()
                if not block:
                    break
                start = block[-1][0]
                yield from (as_row(table, *entry[1:]) for entry in block)

    def export(self, path: Path, keep: set[tuple[str, ...]] | None = None) -> int:
        """Write a recording (sorted JSON lines, zstd); returns the number of entries."""
        return write_recording(path, self.rows(keep))

    def merge(self, path: Path) -> Merged:
        """Take the entries of a recording into the file; a damaged one is refused before any is taken."""
        for _ in read_recording(path):
            pass
        return self.take(read_recording(path))

    def take(self, rows: Iterable[dict[str, Any]]) -> Merged:
        """Take entries into the file; what is there already stays. Killed, the same call goes on where it was."""
        done, source = Merged(), iter(rows)
        while batch := list(itertools.islice(source, BATCH)):
            with self._writing() as db:
                for row in batch:
                    done += take(db, row)
        return done

    def check(self) -> int:
        """The number of entries of the file. Raises DataError where SQLite or a request's key says it is damaged."""
        with self._using() as db:
            return check(db, self.path)

    # -- the file

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        """The file, for one thread at a time. Raises DataError where the disk is full or the file damaged: that
        concerns the whole command, not one question."""
        with self._lock:
            try:
                yield self._db
            except sqlite3.DatabaseError as e:
                again = f"{what_to_do(e)} and run the same command again: what is stored is not asked again"
                raise DataError(f"{self.path}: {e}; {again}") from e

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all of it or nothing."""
        with self._using() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:  # a full disk has rolled back already
                    db.execute("ROLLBACK")
                raise


def what_to_do(error: sqlite3.DatabaseError) -> str:
    """The first half of the advice, by what SQLite says."""
    said = str(error)
    if "locked" in said:
        return "another process holds it: wait for that one"
    if "unable to open" in said or "readonly" in said:
        return "see that its folder is there and may be written"
    if "malformed" in said or "not a database" in said:
        return "move the damaged file away (recordings still replay)"
    return "make room on the disk"


def write_ahead(db: sqlite3.Connection, tries: int = 200) -> None:
    """WAL mode. SQLite does not wait for this switch: of two processes that open a new file one would be refused."""
    for attempt in range(1, tries + 1):
        try:
            db.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as e:
            if "locked" not in str(e) or attempt == tries:
                raise
            time.sleep(0.05)
