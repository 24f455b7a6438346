"""The records of a run while they come: kept on the disk, counted, reported."""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from multihop import jsonl
from multihop.errors import MultihopError
from multihop.types import RunRecord


@dataclass
class Tally:
    """Records by status, and the first error."""

    counts: Counter[str] = field(default_factory=Counter)
    said: str = ""

    def add(self, record: RunRecord) -> None:
        self.counts[record.status] += 1
        self.said = self.said or record.error or ""


class Spool:
    """The records of a cell as they come, in a nameless file beside their target; at the end the target, sorted.

    A killed run leaves nothing of it. Memory holds where each record lies: some 200 bytes.
    """

    def __init__(self, target: Path):
        target.parent.mkdir(parents=True, exist_ok=True)
        self._target = target
        self._file = tempfile.TemporaryFile(dir=target.parent)
        self._places: list[tuple[str, int, int]] = []
        self._end = 0

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def add(self, record: RunRecord) -> None:
        """Raises MultihopError where it can't be written."""
        line = f"{jsonl.dumps(record.to_json())}\n".encode()
        self._places.append((record.qid, record.seed, self._end))
        self._end += len(line)
        try:
            self._file.write(line)
        except OSError as e:
            raise MultihopError(f"{self._target}: {e.strerror}; make room and run the same command again") from e

    def finish(self) -> None:
        """Write the target, sorted by (qid, seed), atomically."""
        with jsonl.replacing(self._target) as f:
            for _, _, place in sorted(self._places):
                self._file.seek(place)
                f.write(self._file.readline())


class Progress:
    """A line now and then: how far, how fast, how long still. On standard error; never in a result."""

    def __init__(self, label: str, total: int, every_s: float = 15.0):
        self.label, self.total, self.every_s = label, total, every_s
        self.done = self.errors = 0
        self.started = self.last = time.monotonic()

    def step(self, record: RunRecord) -> None:
        self.done += 1
        self.errors += record.status == "error"
        now = time.monotonic()
        if now - self.last >= self.every_s:
            self.last = now
            left = (now - self.started) / self.done * (self.total - self.done)
            note = f", {self.errors} errors" if self.errors else ""
            print(f"  {self.label}: {self.done}/{self.total}{note}, about {left / 60:.0f} min left", file=sys.stderr)
