"""Reading and writing JSON lines: the one place, so that bytes are the same everywhere."""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from multihop.errors import DataError
from multihop.types import RunRecord


def dumps(value: Any) -> str:
    """Canonical JSON: sorted keys, no spaces, UTF-8 kept as it is."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def digest(value: Any) -> str:
    """sha256 (hex) of the canonical JSON of ``value``."""
    return hashlib.sha256(dumps(value).encode()).hexdigest()


def digest_each(items: Iterable[Any]) -> str:
    """``digest`` of the list of ``items``, which as text is never held whole."""
    h = hashlib.sha256(b"[")
    for number, item in enumerate(items):
        h.update((dumps(item) if number == 0 else f",{dumps(item)}").encode())
    h.update(b"]")
    return h.hexdigest()


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


def read_records(path: Path, events: Collection[str] | None = None) -> list[RunRecord]:
    """Run records; ``events``: with events of these kinds alone. Raises DataError with the row that is none."""
    records = []
    for number, row in enumerate(read(path), 1):
        try:
            if events is not None:
                row["events"] = [event for event in row["events"] if event["kind"] in events]
            records.append(RunRecord.from_json(row))
        except (TypeError, KeyError, AttributeError) as e:
            raise DataError(f"{path}, row {number}: not a run record ({e}); run the stage again") from e
    return records


def write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows in the order given, as they come, atomically: the file is either whole or as it was before."""
    with replacing(path) as f:
        f.writelines(f"{dumps(row)}\n".encode() for row in rows)


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
    with replacing(path) as f:
        f.write(text.encode())


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes ``path``'s place when the block ends; where the block fails, ``path`` stays as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as f:
            yield f
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _sweep(path: Path) -> None:
    """Remove what killed processes have left of ``path``: in an output folder it would count as a result."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        number = left.name.rsplit(".", 2)[1]
        if number.isdecimal() and not _alive(int(number)):
            left.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    """Whether a process of this number runs; where the system can't tell without harm, yes."""
    if os.name != "posix" or process == os.getpid():
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True
