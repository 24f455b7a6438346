"""Warming: all that runs need for some questions is asked, judge and extraction included; no result is written.

Afterwards the store answers the stages: `dvc repro` replays. Training, search indexes and structures come before, on
one machine: what they give decides what is asked here.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from multihop import running, stages
from multihop.errors import MultihopError, first_error
from multihop.evaluation.score import Unjudged
from multihop.scaling.shards import Shard, dealt
from multihop.session import Session
from multihop.types import RunRecord

CHUNK = 512
"""Questions asked before the next ones are begun, on one machine; bounds memory."""
EVERY_S = 15.0
"""Seconds between two lines of progress."""


@dataclass(frozen=True)
class Chunk:
    """Questions of one cell that are asked together."""

    run: str
    dataset: str
    setting: str
    ids: tuple[str, ...]


def chunks(session: Session, runs: Sequence[str], shard: Shard, size: int) -> list[Chunk]:
    """A shard's questions of the named runs (default: all), cell after cell. Raises ConfigError for an unknown run."""
    return divided(session, runs, [shard], size)[0]


def divided(session: Session, runs: Sequence[str], shards: Sequence[Shard], size: int) -> list[list[Chunk]]:
    """The chunks of each shard. A run's questions are read once for all shards and settings."""
    parts: list[list[Chunk]] = [[] for _ in shards]
    for run in runs or session.params.runs:
        ids: dict[str, list[list[str]]] = {}
        for dataset, setting in session.params.cells(run):
            if dataset not in ids:
                ids[dataset] = dealt((q.id for q in stages.questions_of(session, run, dataset)), shards)
            for part, own in zip(parts, ids[dataset], strict=True):
                starts = range(0, len(own), size)
                part += (Chunk(run, dataset, setting, tuple(own[start : start + size])) for start in starts)
    return parts


class Warmer:
    """Asks chunks; keeps the cell that it asked last open."""

    def __init__(self, session: Session):
        self.session = session
        self._key: tuple[str, str, str] | None = None

    async def ask(self, chunk: Chunk) -> Counter[str]:
        """How many records have which status. Errors that concern the whole run pass through."""
        key = (chunk.run, chunk.dataset, chunk.setting)
        if key != self._key:
            self._slice = stages.Slice.open(self.session, *key)
            self._questions = {q.id: q for q in stages.questions_of(self.session, chunk.run, chunk.dataset)}
            self._key = key
        workers = self.session.workers(self.session.params.settings[chunk.setting].reader)
        try:
            records = await self._slice.ask([self._questions[i] for i in chunk.ids], workers)
        finally:
            self.session.side_log("warm")
        _refuse_nothing_but_errors(records)
        return Counter(r.status for r in records)


def _refuse_nothing_but_errors(records: Sequence[RunRecord]) -> None:
    if len(records) >= running.FIRST_ERRORS and all(r.status == "error" for r in records):
        raise MultihopError(f"all {len(records)} questions of a chunk failed, the first: {records[0].error}")


async def warm(session: Session, runs: Sequence[str], shards: Sequence[Shard], size: int = CHUNK) -> Counter[str]:
    """Ask the shards, one after another, in this process; records by status.

    What a chunk's judge did not answer is left for the next warming, and the other chunks are still asked. Raises
    MultihopError where that happened (early, where it happens again and again), or where more than max_error_share of
    the records are errors; what was answered stays stored.
    """
    warmer, counts = Warmer(session), Counter[str]()
    unjudged: list[BaseException] = []
    said_at = time.monotonic()
    for shard, todo in zip(shards, divided(session, runs, shards, size), strict=True):
        for n, chunk in enumerate(todo, 1):
            try:
                counts += await warmer.ask(chunk)
            except* Unjudged as group:
                unjudged.append(first_error(group))
                if len(unjudged) == running.FIRST_ERRORS:
                    _refuse_unjudged(unjudged)
            if time.monotonic() - said_at >= EVERY_S or n == len(todo):
                said_at = time.monotonic()
                where = f"{n}/{len(todo)} chunks, at {chunk.run} {chunk.dataset} {chunk.setting}"
                live = session.meter.live_calls
                print(f"  shard {shard.index}/{shard.count}: {where}, {live} live calls", file=sys.stderr)
    _refuse_unjudged(unjudged)
    refuse_errors(session, counts)
    return counts


def _refuse_unjudged(errors: Sequence[BaseException]) -> None:
    if errors:
        raise MultihopError(f"{len(errors)} chunks lack judgements; the first: {errors[0]}")


def said(counts: Counter[str]) -> str:
    return ", ".join(f"{n} {status}" for status, n in sorted(counts.items())) or "nothing to ask"


def refuse_errors(session: Session, counts: Counter[str]) -> None:
    errors, total = counts["error"], counts.total()
    if total and errors / total > session.params.max_error_share:
        raise MultihopError(
            f"{errors} of {total} answers ended in an error (max_error_share is {session.params.max_error_share}); "
            "what was answered is stored: the same command asks only those again"
        )
