"""Reading and writing JSON lines: the one place, so that bytes are the same everywhere."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from multihop.errors import DataError
from multihop.types import RunRecord


def dumps(value: Any) -> str:
    """Canonical JSON: sorted keys, no spaces, UTF-8 kept as it is."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def digest(value: Any) -> str:
    """sha256 (hex) of the canonical JSON of ``value``."""
    return hashlib.sha256(dumps(value).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    h = hashlib.sha256()
    with path.open("rb") as f:
        while block := f.read(1 << 20):
            h.update(block)
    return h.hexdigest()


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield each row. Raises DataError with file and line for a missing file or a bad row."""
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    with path.open("rb") as f:
        for number, line in enumerate(f, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except UnicodeDecodeError as e:
                raise DataError(f"{path}, line {number}: not UTF-8 (byte {e.start})") from e
            except json.JSONDecodeError as e:
                raise DataError(f"{path}, line {number}: not JSON ({e.msg} at column {e.colno})") from e
            if not isinstance(row, dict):
                raise DataError(f"{path}, line {number}: expected a JSON object, found {type(row).__name__}")
            yield row


def read_json(path: Path, what_to_do: str = "run `dvc repro`", needed: Iterable[str] = ()) -> dict[str, Any]:
    """One JSON document. Raises DataError, with what to do, for a file that is missing, damaged or lacks a key."""
    if not path.is_file():
        raise DataError(f"{path}: not there yet; {what_to_do}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as e:
        raise DataError(f"{path}: not JSON, or damaged ({e}); {what_to_do}") from e
    if not isinstance(content, dict) or (missing := [key for key in needed if key not in content]):
        raise DataError(f"{path}: {'no object' if not isinstance(content, dict) else f'no {missing[0]}'}; {what_to_do}")
    return content


def read_records(path: Path) -> list[RunRecord]:
    """Run records. Raises DataError with the row that is none."""
    records = []
    for number, row in enumerate(read(path), 1):
        try:
            records.append(RunRecord.from_json(row))
        except (TypeError, KeyError, AttributeError) as e:
            raise DataError(f"{path}, row {number}: not a run record ({e}); run the stage again") from e
    return records


def write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows in the order given, atomically: the file is either whole or as it was before."""
    write_text(path, "".join(dumps(row) + "\n" for row in rows))


def write_json(path: Path, value: Any) -> None:
    """Write one indented, key-sorted JSON document, atomically."""
    write_text(path, json.dumps(value, ensure_ascii=False, sort_keys=True, indent=1) + "\n")


def write_wide(path: Path, value: Any) -> None:
    """As ``write_json``, but what fits on a line stands on one: tables of numbers stay readable."""
    write_text(path, _wide(value) + "\n")


def _wide(value: Any, indent: str = "") -> str:
    flat = json.dumps(value, ensure_ascii=False, sort_keys=True)
    if not isinstance(value, dict) or len(indent + flat) <= 110:
        return flat
    inner = indent + " "
    lines = [f"{inner}{json.dumps(key, ensure_ascii=False)}: {_wide(value[key], inner)}" for key in sorted(value)]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
