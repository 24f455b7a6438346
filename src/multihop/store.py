"""The response store: every answer a model gave, every vector an embedder made, every value that steers a prompt.

A store is one SQLite file (WAL) outside the pipeline's outputs, over read-only *layers*: recordings
(``data/recordings/*.jsonl.zst``) that replay a run without a key, a model or torch. A killed run loses
only the calls in flight; the store exports to, and merges from, sorted JSON lines.
"""

from __future__ import annotations

import base64
import json
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from multihop import jsonl
from multihop.errors import DataError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (key TEXT PRIMARY KEY, request TEXT NOT NULL, response TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS vectors (space TEXT NOT NULL, text TEXT NOT NULL, vector BLOB NOT NULL,
                                    PRIMARY KEY (space, text));
CREATE TABLE IF NOT EXISTS kept (space TEXT NOT NULL, text TEXT NOT NULL, value TEXT NOT NULL,
                                 PRIMARY KEY (space, text));
"""


_ORDERED = ("response_format", "tools")
"""Request fields in which the order of keys reaches the model: it writes a schema's fields in their order."""


def canonical(request: dict[str, Any]) -> dict[str, Any]:
    """The request as it is stored: sorted, but for the fields whose order counts, which become JSON text."""
    return {
        key: json.dumps(value, ensure_ascii=False) if key in _ORDERED and not isinstance(value, str) else value
        for key, value in request.items()
    }


def as_sent(stored: dict[str, Any]) -> dict[str, Any]:
    """A stored request as it went to the endpoint: the reverse of :func:`canonical`."""
    return {key: json.loads(value) if key in _ORDERED else value for key, value in stored.items()}


def request_key(request: dict[str, Any]) -> str:
    """sha256 of the canonical request: everything that changes the answer, nothing that does not."""
    return jsonl.digest(canonical(request))


class Layer:
    """A recording, read into memory: responses by key; half-precision vectors and JSON values by (space, text)."""

    def __init__(self, path: Path):
        self.path = path
        self.responses: dict[str, dict[str, Any]] = {}
        self.vectors: dict[tuple[str, str], np.ndarray] = {}
        self.values: dict[tuple[str, str], Any] = {}
        for row in read_recording(path):
            if row["kind"] == "response":
                self.responses[request_key(row["request"])] = row
            elif row["kind"] == "value":
                self.values[row["space"], row["text"]] = row["value"]
            else:
                self.vectors[row["space"], row["text"]] = _decode(base64.b64decode(row["vector"]))


class Store:
    """Responses and vectors by content. Thread-safe; several processes may share one file."""

    def __init__(self, path: Path, layers: Iterable[Path] = ()):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.layers = [Layer(p) for p in layers if p.is_file()]
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, timeout=60, check_same_thread=False, isolation_level=None)
        try:
            _write_ahead(self._db)
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript(_SCHEMA)
        except sqlite3.OperationalError:
            raise  # locked, disk full: the message says it
        except sqlite3.DatabaseError as e:
            raise DataError(
                f"{path}: not a response store, or damaged ({e}); move it away and run again: recordings still replay"
            ) from e
        self.touched: set[tuple[str, ...]] = set()
        """What this process has read or written: what a recording of it must hold."""
        self.written = 0
        """Entries that this process computed or asked for, rather than found."""

    def close(self) -> None:
        self._db.close()

    # -- responses

    def get(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """The stored response, or None. Raises DataError where a key's stored request differs."""
        key = request_key(request)
        self.touched.add(("response", key))
        for layer in self.layers:
            if row := layer.responses.get(key):
                return row["response"]
        with self._lock:
            row = self._db.execute("SELECT request, response FROM responses WHERE key=?", (key,)).fetchone()
        if row is None:
            return None
        if row[0] != jsonl.dumps(canonical(request)):
            raise DataError(f"{self.path}: key {key[:12]} holds another request; delete the file and run again")
        return json.loads(row[1])

    def put(self, request: dict[str, Any], response: dict[str, Any]) -> None:
        """Store a response; the first one stays where two processes asked the same."""
        key = request_key(request)
        self.touched.add(("response", key))
        self.written += 1
        with self._lock:
            self._db.execute(
                "INSERT OR IGNORE INTO responses VALUES (?,?,?)",
                (key, jsonl.dumps(canonical(request)), jsonl.dumps(response)),
            )

    # -- vectors

    def get_vectors(self, space: str, texts: Iterable[str]) -> dict[str, np.ndarray]:
        """The stored vectors (float16, shape (dim,)) of those ``texts`` that have one in ``space``."""
        found: dict[str, np.ndarray] = {}
        missing = []
        for text in dict.fromkeys(texts):
            self.touched.add(("vector", space, text))
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
            with self._lock:
                rows = self._db.execute(
                    f"SELECT text, vector FROM vectors WHERE space=? AND text IN ({marks})", (space, *block)
                ).fetchall()
            found.update((text, _decode(blob)) for text, blob in rows)
        return found

    def put_vectors(self, space: str, vectors: dict[str, np.ndarray]) -> None:
        """Store vectors, rounded to half precision; the first one stays."""
        rows = [(space, text, _encode(v)) for text, v in vectors.items()]
        self.touched.update(("vector", space, text) for text in vectors)
        self._insert("vectors", rows)

    # -- values: what a library computed that decides later prompts (entities, clusters), as JSON

    def get_values(self, space: str, texts: Iterable[str]) -> dict[str, Any]:
        """The stored values of those ``texts`` that have one in ``space``."""
        found: dict[str, Any] = {}
        for text in dict.fromkeys(texts):
            self.touched.add(("value", space, text))
            layer = next((layer for layer in self.layers if (space, text) in layer.values), None)
            if layer is not None:
                found[text] = layer.values[space, text]
                continue
            with self._lock:
                row = self._db.execute("SELECT value FROM kept WHERE space=? AND text=?", (space, text)).fetchone()
            if row is not None:
                found[text] = json.loads(row[0])
        return found

    def put_values(self, space: str, values: dict[str, Any]) -> None:
        """Store values; the first one stays."""
        self.touched.update(("value", space, text) for text in values)
        self._insert("kept", [(space, text, jsonl.dumps(value)) for text, value in values.items()])

    def _insert(self, table: str, rows: list[tuple[str, str, Any]]) -> None:
        self.written += len(rows)
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._db.executemany(f"INSERT OR IGNORE INTO {table} VALUES (?,?,?)", rows)
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    # -- recordings

    def rows(self, keep: set[tuple[str, ...]] | None = None) -> Iterator[dict[str, Any]]:
        """Every entry of the layers and the file as recording rows, sorted; ``keep`` restricts them."""
        responses: dict[str, dict[str, Any]] = {}
        vectors: dict[tuple[str, str], np.ndarray] = {}
        values: dict[tuple[str, str], Any] = {}
        with self._lock:
            for space, text, value in self._db.execute("SELECT space, text, value FROM kept"):
                values[space, text] = json.loads(value)
            for key, request, response in self._db.execute("SELECT key, request, response FROM responses"):
                responses[key] = {"request": json.loads(request), "response": json.loads(response)}
            for space, text, blob in self._db.execute("SELECT space, text, vector FROM vectors"):
                vectors[space, text] = _decode(blob)
        for layer in reversed(self.layers):
            responses.update(layer.responses)
            vectors.update(layer.vectors)
            values.update(layer.values)
        for key in sorted(responses):
            if keep is None or ("response", key) in keep:
                row = responses[key]
                yield {"kind": "response", "request": row["request"], "response": row["response"]}
        for space, text in sorted(values):
            if keep is None or ("value", space, text) in keep:
                yield {"kind": "value", "space": space, "text": text, "value": values[space, text]}
        for space, text in sorted(vectors):
            if keep is None or ("vector", space, text) in keep:
                blob = base64.b64encode(_encode(vectors[space, text])).decode()
                yield {"kind": "vector", "space": space, "text": text, "vector": blob}

    def export(self, path: Path, keep: set[tuple[str, ...]] | None = None) -> int:
        """Write a recording (sorted JSON lines, zstd); returns the number of entries."""
        rows = [jsonl.dumps(row) for row in self.rows(keep)]
        path.parent.mkdir(parents=True, exist_ok=True)
        data = zstandard.ZstdCompressor(level=19).compress("".join(r + "\n" for r in rows).encode())
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(data)
        temporary.replace(path)
        return len(rows)

    def merge(self, path: Path) -> int:
        """Take the entries of a recording into this store; entries already here stay. Returns how many it had."""
        count = 0
        for row in read_recording(path):
            count += 1
            if row["kind"] == "response":
                self.put(row["request"], row["response"])
            elif row["kind"] == "value":
                self.put_values(row["space"], {row["text"]: row["value"]})
            else:
                vector = _decode(base64.b64decode(row["vector"]))
                self.put_vectors(row["space"], {row["text"]: vector})
        return count


def _write_ahead(db: sqlite3.Connection, tries: int = 200) -> None:
    """WAL mode. SQLite does not wait for this switch: of two processes that open a new file one would be refused."""
    for attempt in range(1, tries + 1):
        try:
            db.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as e:
            if "locked" not in str(e) or attempt == tries:
                raise
            time.sleep(0.05)


def read_recording(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a recording. Raises DataError where the file is cut off, damaged or no recording."""
    try:
        decoder = zstandard.ZstdDecompressor().decompressobj()
        data = decoder.decompress(path.read_bytes())
        if not decoder.eof:
            raise ValueError("the file is cut off")
        # Not splitlines(): texts may hold other line separators.
        rows = [json.loads(line) for line in data.decode("utf-8").split("\n") if line]
        for row in rows:
            if row["kind"] == "response":
                row["request"], row["response"]["usage"]
            elif row["kind"] == "value":
                row["space"], row["text"], row["value"]
            else:
                row["space"], row["text"], base64.b64decode(row["vector"], validate=True)
    except (zstandard.ZstdError, ValueError, KeyError, TypeError, OSError) as e:
        raise DataError(f"{path}: not a recording, or damaged ({e}); restore it with git checkout") from e
    yield from rows


def _encode(vector: np.ndarray) -> bytes:
    return np.asarray(vector, dtype="<f2").tobytes()


def _decode(blob: bytes) -> np.ndarray:
    return np.frombuffer(blob, dtype="<f2")
