"""Shards: questions by a stable hash of their id, so that many machines can be given the same command."""

from __future__ import annotations

import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from multihop.errors import ConfigError


@dataclass(frozen=True)
class Shard:
    """Part ``index`` (from 0) of ``count``. All runs of a question lie in one: what they ask alike is asked once."""

    index: int = 0
    count: int = 1

    def holds(self, qid: str) -> bool:
        return number(qid) % self.count == self.index


def dealt(ids: Iterable[str], shards: Sequence[Shard]) -> list[list[str]]:
    """The ids that each of ``shards`` holds, in their order; each id is hashed once for each number of shards."""
    ids, parts = list(ids), {}
    for count in {shard.count for shard in shards}:
        parts[count] = defaultdict[int, list[str]](list)
        for qid in ids:
            parts[count][number(qid) % count].append(qid)
    return [parts[shard.count][shard.index] for shard in shards]


def number(qid: str) -> int:
    """The same on every machine and in every Python (whose own hash is seeded)."""
    return int.from_bytes(hashlib.sha256(qid.encode()).digest()[:8], "big")


def chosen(count: int | None, environ: Mapping[str, str] | None = None) -> list[Shard]:
    """The shards that this command is for: MULTIHOP_SHARD's one, else all ``count`` (default 1) of them.

    Raises ConfigError for a value that can't be, or where the two disagree.
    """
    said = (os.environ if environ is None else environ).get("MULTIHOP_SHARD")
    if not said:
        return [Shard(i, count or 1) for i in range(count or 1)]
    found = re.fullmatch(r"(\d+)/(\d+)", said)
    if not found or not int(found[1]) < int(found[2]):
        raise ConfigError(f"MULTIHOP_SHARD={said!r}: expected i/n with i from 0 to n - 1, such as 0/8")
    if count not in (None, int(found[2])):
        raise ConfigError(f"MULTIHOP_SHARD={said!r} and --shards {count} disagree: leave one of them out")
    return [Shard(int(found[1]), int(found[2]))]
