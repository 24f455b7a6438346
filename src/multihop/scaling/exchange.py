"""A store's entries as bytes, from one machine to another."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any

import zstandard

from multihop import jsonl


def pack(rows: Iterable[dict[str, Any]]) -> bytes:
    """Rows as compressed JSON lines; empty for none."""
    text = "".join(jsonl.dumps(row) + "\n" for row in rows)
    return zstandard.compress(text.encode()) if text else b""


def packs(rows: Iterable[dict[str, Any]], size: int = 20_000) -> Iterator[bytes]:
    """``pack``, ``size`` rows at a time: memory does not grow with their number."""
    rest = iter(rows)
    while data := pack(itertools.islice(rest, size)):
        yield data


def unpack(data: bytes) -> Iterator[dict[str, Any]]:
    """The rows of ``pack``."""
    if data:  # not splitlines(): texts may hold other line separators
        yield from (json.loads(line) for line in zstandard.decompress(data).decode().split("\n") if line)
