"""Shards on a Ray cluster (RUNNER=ray): workers with stores of their own answer chunks; the driver merges what is new.

Each shard belongs to one worker, so that what a question's runs ask alike is asked once. With every chunk its new
entries come back and are merged: where a node dies, the chunks in flight on it are lost, nothing else. Its shards go to
the living worker with the least to do, which is first handed what was answered meanwhile.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from multihop import jsonl
from multihop.errors import ConfigError, MultihopError
from multihop.scaling import exchange, warming
from multihop.scaling.shards import Shard
from multihop.scaling.shares import Shares
from multihop.scaling.warming import Chunk
from multihop.scaling.worker import Done, Worker, environ
from multihop.session import Session
from multihop.store import Marks
from multihop.tables import Merged

CHUNK = 128
"""Questions asked together: what a dead worker can lose."""
TRIES = 4
"""Times that a chunk is begun before its failing ends the command."""
START_S = 600
"""Seconds that workers have to start: the first one on a node reads the recordings."""
OBJECT_STORE = 100 * 2**20
"""Bytes of a local cluster's shared memory; only chunks' entries pass through it."""


def library() -> Any:
    """Ray. Raises ConfigError where it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise ConfigError(
            "RUNNER=ray needs Ray: .venv/bin/pip install -r requirements-ray.txt (without RUNNER one machine does it)"
        ) from None
    return ray


@dataclass
class Report:
    shards: int = 0
    workers: int = 0
    chunks: int = 0
    lost: list[Chunk] = field(default_factory=list)
    """Chunks that were begun and whose entries never came back."""
    counts: Counter[str] = field(default_factory=Counter)
    merged: Merged = field(default_factory=Merged)
    live_calls: int = 0
    seconds: float = 0.0

    def said(self) -> str:
        return (
            f"{warming.said(self.counts)}; {self.live_calls} live calls; {self.shards} shards, {self.workers} workers, "
            f"{self.chunks} chunks, {len(self.lost)} lost and asked again, {self.seconds:.0f} s; {self.merged.said()}"
        )


@dataclass(eq=False)
class Member:
    """A worker as the driver sees it."""

    actor: Any
    queue: deque[Chunk] = field(default_factory=deque)
    has: Marks = (0, 0, 0)
    """Up to where it knows the driver's store."""
    busy: bool = False


def warm(session: Session, runs: Sequence[str], shards: Sequence[Shard], size: int = CHUNK) -> Report:
    """Ask the shards on the cluster at RAY_ADDRESS, else on this machine.

    Raises MultihopError for what concerns the whole run (key, quota, ceiling), for a chunk that fails ``TRIES`` times
    and where no node is left; what was answered is in the store by then.
    """
    ray = library()
    parts = [deque(warming.chunks(session, runs, shard, size)) for shard in shards]
    with _connected(ray):
        pool = Pool(ray, session, parts)
        started = time.monotonic()
        try:
            pool.start(min(len(parts), int(ray.cluster_resources().get("CPU", 1))))
            pool.run()
        finally:
            pool.report.seconds = time.monotonic() - started
            pool.close()
    warming.refuse_errors(session, pool.report.counts)
    return pool.report


@contextmanager
def _connected(ray: Any) -> Iterator[None]:
    local = {} if os.environ.get("RAY_ADDRESS") else {
        "num_cpus": os.cpu_count(),
        "object_store_memory": OBJECT_STORE,
        "include_dashboard": False,
        "_node_ip_address": "127.0.0.1",
    }  # fmt: skip
    ray.init(log_to_driver=False, logging_level="error", **local)
    try:
        yield
    finally:
        ray.shutdown()


class Pool:
    """The workers and what is still to be asked."""

    def __init__(self, ray: Any, session: Session, parts: list[deque[Chunk]]):
        self.ray, self.session, self.parts = ray, session, parts
        self.report = Report(shards=len(parts))
        self.members: list[Member] = []
        self.shares = Shares(session)
        self._flying: dict[Any, tuple[Member, Chunk]] = {}
        self._begun: Counter[Chunk] = Counter()
        self._fatal = ""
        self._gone = (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError, ray.exceptions.NodeDiedError)

    # -- workers

    def start(self, count: int) -> None:
        """``count`` workers, each with what the store has; the shards are dealt to them in turn."""
        new = [Member(self._actor()) for _ in range(max(1, count))]
        try:
            self.ray.get([m.actor.ready.remote() for m in new], timeout=START_S)
        except self._gone as e:
            raise MultihopError(
                f"a worker can't start: {_reason(e)}; every node needs this checkout at {os.getcwd()} and its packages"
            ) from e
        except self.ray.exceptions.GetTimeoutError as e:
            raise MultihopError(f"no node had a free processor for a worker within {START_S} s") from e
        self.report.workers += len(new)
        self._hand_along(*new)
        self.members += new
        for i, part in enumerate(self.parts):
            new[i % len(new)].queue += part
        self.parts = []

    def _actor(self) -> Any:
        remote = self.ray.remote(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")(Worker)
        return remote.remote(os.getcwd(), environ(self.session))

    def _hand_along(self, *members: Member) -> None:
        """Give ``members`` what the store got since they last knew it."""
        store = self.session.store
        until, since = store.marks(), min(m.has for m in members)
        for entries in exchange.packs(store.added(since, until)):
            ref = self.ray.put(entries)
            try:
                self.ray.get([m.actor.take.remote(ref) for m in members])
            except self._gone:
                break  # a dead one is noticed where its chunk is
        for m in members:
            m.has = until

    def close(self) -> None:
        """Workers remove their folders."""
        closing = [m.actor.close.remote() for m in self.members]
        self.ray.wait(closing, num_returns=len(closing), timeout=10) if closing else None

    # -- chunks

    def run(self) -> None:
        while True:
            if not self._fatal:
                self._give()
            if not self._flying:
                break
            ready, _ = self.ray.wait(list(self._flying), num_returns=1, timeout=5)
            for ref in ready:
                self._collect(ref)
        if self._fatal:
            raise MultihopError(self._fatal)

    def _give(self) -> None:
        idle = [m for m in self.members if m.queue and not m.busy]
        for n, member in enumerate(idle):
            chunk = member.queue.popleft()
            self._begun[chunk] += 1
            ceilings = self.shares.hold(chunk, among=len(idle) - n)
            member.busy = True
            self._flying[member.actor.answer.remote(chunk, ceilings)] = member, chunk

    def _collect(self, ref: Any) -> None:
        member, chunk = self._flying.pop(ref)
        member.busy = False
        try:
            done: Done = self.ray.get(ref)
        except self._gone as e:
            self._lost(member, chunk, _reason(e))
            return
        except self.ray.exceptions.RayTaskError as e:
            self.shares.free(chunk)
            self._again(member, chunk, _reason(e))
            return
        self.shares.free(chunk, done.spent)
        self.report.chunks += 1
        self.report.counts += done.counts
        self.report.live_calls += done.live_calls
        self.report.merged += self.session.store.take(exchange.unpack(done.entries))
        self._note("done", chunk, f"{done.live_calls} live calls")
        if done.fatal:
            shared = " (a worker's share of what was left)" if self.session.meter.limits else ""
            self._fatal = self._fatal or done.fatal + shared

    def _lost(self, member: Member, chunk: Chunk, why: str) -> None:
        """A dead worker's chunk and queue go to another one. Its share of a ceiling stays held: nobody knows."""
        self.report.lost.append(chunk)
        self.members.remove(member)
        self.ray.kill(member.actor)
        self._note("lost", chunk, why)
        left = deque([chunk, *member.queue])
        if not self.members:
            self.parts = [left]
            self.start(1)
        else:
            heir = min(self.members, key=lambda m: len(m.queue) + m.busy)
            self._hand_along(heir)
            heir.queue += left
        self._refuse(chunk, why)

    def _again(self, member: Member, chunk: Chunk, why: str) -> None:
        self._note("failed", chunk, why)
        member.queue.appendleft(chunk)
        self._refuse(chunk, why)

    def _refuse(self, chunk: Chunk, why: str) -> None:
        if self._begun[chunk] >= TRIES:
            where = f"{chunk.run} {chunk.dataset} {chunk.setting}"
            self._fatal = self._fatal or f"{where}: {len(chunk.ids)} questions failed {TRIES} times, at last: {why}"

    def _note(self, what: str, chunk: Chunk, more: str) -> None:
        """A line on standard error, a row in a log that no hash sees."""
        row = {"event": what, **asdict(chunk), "note": more}
        folder = self.session.root / self.session.env.home / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "warm-ray.jsonl").open("a", encoding="utf-8") as f:
            f.write(jsonl.dumps(row) + "\n")
        left = sum(len(m.queue) for m in self.members) + len(self._flying)
        where = f"{chunk.run} {chunk.dataset} {chunk.setting}, {len(chunk.ids)} questions"
        print(f"  {what}: {where}: {more}; {left} chunks left", file=sys.stderr)


def _reason(error: Exception) -> str:
    """Ray's errors hold whole tracebacks: their last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]
