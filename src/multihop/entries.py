"""Entries of the response store as rows: what a request's key is made of, and recordings (sorted JSON lines, zstd)."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from multihop import jsonl
from multihop.errors import DataError

_ORDERED = ("response_format", "tools")
"""Request fields in which the order of keys reaches the model: it writes a schema's fields in their order."""
HELD = 64 << 20
"""Bytes of JSON lines up to which a recording is compressed in one go, at the level for files in git."""
LEVEL, LARGE_LEVEL = 19, 9
"""Of zstd; the second for recordings above HELD: five times faster, about a tenth larger."""


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


def response_row(request: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "response", "request": request, "response": response}


def value_row(space: str, text: str, value: Any) -> dict[str, Any]:
    return {"kind": "value", "space": space, "text": text, "value": value}


def vector_row(space: str, text: str, vector: bytes) -> dict[str, Any]:
    return {"kind": "vector", "space": space, "text": text, "vector": base64.b64encode(vector).decode()}


def encode(vector: np.ndarray) -> bytes:
    return np.asarray(vector, dtype="<f2").tobytes()


def decode(blob: bytes) -> np.ndarray:
    return np.frombuffer(blob, dtype="<f2")


class Layer:
    """A recording, read into memory: responses by key; half-precision vectors and JSON values by (space, text).

    Twice to three times the size of its JSON lines: for recordings in git. Larger ones are merged into the store.
    """

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
                self.vectors[row["space"], row["text"]] = decode(base64.b64decode(row["vector"]))

    def sorted(self, kind: str) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
        """(key, row) of every entry of a kind, by key."""
        if kind == "response":
            yield from (((key,), self.responses[key]) for key in sorted(self.responses))
        elif kind == "value":
            yield from ((key, value_row(*key, self.values[key])) for key in sorted(self.values))
        else:
            yield from ((key, vector_row(*key, encode(self.vectors[key]))) for key in sorted(self.vectors))


def read_recording(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a recording, as they are read: memory does not grow with the file.

    Raises DataError where the file is cut off, damaged or no recording; rows before that place have come by then.
    """
    try:
        for line in _lines(path):
            row = json.loads(line.decode("utf-8"))
            if row["kind"] == "response":
                row["request"], row["response"]["usage"]
            elif row["kind"] == "value":
                row["space"], row["text"], row["value"]
            else:
                row["space"], row["text"], base64.b64decode(row["vector"], validate=True)
            yield row
    except (zstandard.ZstdError, ValueError, KeyError, TypeError, OSError) as e:
        again = "restore it (the demo's: git checkout) or export it again"
        raise DataError(f"{path}: not a recording, or damaged ({e}); {again}") from e


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of a zstd file. Not splitlines(): texts may hold other line separators."""
    decoder, rest = zstandard.ZstdDecompressor().decompressobj(), b""
    with path.open("rb") as f:
        while not decoder.eof:
            if not (block := f.read(1 << 14)):
                raise ValueError("the file is cut off")
            *whole, rest = (rest + decoder.decompress(block)).split(b"\n")
            yield from filter(None, whole)
        if decoder.unused_data or f.read(1):
            raise ValueError("more follows its end")
    if rest:
        yield rest


def write_recording(path: Path, rows: Iterable[dict[str, Any]]) -> int:
    """Write rows in the order given, atomically; returns how many. Holds at most HELD bytes of them."""
    count, size, held = 0, 0, []
    with jsonl.replacing(path) as f:
        large = None
        for row in rows:
            count += 1
            held.append((jsonl.dumps(row) + "\n").encode())
            size += len(held[-1])
            if size > HELD or large:
                large = large or zstandard.ZstdCompressor(level=LARGE_LEVEL).stream_writer(f, closefd=False)
                large.write(b"".join(held))
                held.clear()
        if large:
            large.close()
        else:
            f.write(zstandard.ZstdCompressor(level=LEVEL).compress(b"".join(held)))
    return count
