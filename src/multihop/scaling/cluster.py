"""Shards on a Ray cluster (RUNNER=ray): workers with stores of their own answer chunks; the driver merges what is new.

Each shard belongs to one worker, so that what a question's runs ask alike is asked once. With every chunk its new
entries come back and are merged: where a node dies, the chunks in flight on it are lost, nothing else. Its shards go to
the living worker with the least to do, which is handed what was answered meanwhile before its next chunk.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from multihop import guard, jsonl
from multihop.errors import ConfigError, MultihopError
from multihop.scaling import exchange, warming
from multihop.scaling.budget import Budget
from multihop.scaling.shards import Shard
from multihop.scaling.warming import Chunk
from multihop.scaling.worker import Done, Worker, environ
from multihop.session import Session
from multihop.store import Marks
from multihop.tables import Merged

CHUNK = 128
"""Questions asked together: what a dead worker can lose."""
TRIES = 4
"""Times that a chunk is begun before its failing ends the command."""
PAUSES = (5.0, 20.0, 60.0)
"""Seconds before a chunk is begun again that failed because the endpoint did not answer: outages pass."""
START_S = 600
"""Seconds that workers have to start: the first one on a node reads the recordings."""
CONNECT_S = 10.0
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
    behind: bool = False
    """It is to know all of the store before its next chunk."""
    packs: Iterator[bytes] | None = None
    """What it is being handed, up to ``until``."""
    until: Marks = (0, 0, 0)
    rests_until: float = 0.0
    """Until then (``time.monotonic()``) no chunk is given to it; 0: it does not rest."""


def warm(session: Session, runs: Sequence[str], shards: Sequence[Shard], size: int = CHUNK) -> Report:
    """Ask the shards on the cluster at RAY_ADDRESS, else on this machine.

    Raises MultihopError for what concerns the whole run (key, quota, ceiling), for a chunk that fails ``TRIES`` times
    and where no node is left; what was answered is in the store by then.
    """
    ray = library()
    parts = [deque(part) for part in warming.divided(session, runs, shards, size)]
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
    _reachable(os.environ.get("RAY_ADDRESS", ""))
    ray.init(log_to_driver=False, logging_level="error", **local)
    try:
        yield
    finally:
        ray.shutdown()


def _reachable(address: str) -> None:
    """Ray itself tries for half a minute and names no variable. Raises MultihopError."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "://" not in address:
        try:
            socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
        except OSError as e:
            raise MultihopError(
                f"RAY_ADDRESS={address}: nothing answers there ({e}); `ray start --head` on that node, or unset it"
            ) from e


class Pool:
    """The workers and what is still to be asked."""

    def __init__(self, ray: Any, session: Session, parts: list[deque[Chunk]], pauses: Sequence[float] = PAUSES):
        self.ray, self.session, self.parts, self.pauses = ray, session, parts, pauses
        self.report = Report(shards=len(parts))
        self.members: list[Member] = []
        self.budget = Budget(session)
        self._flying: dict[Any, tuple[Member, Chunk | None]] = {}
        """A chunk that is being answered; None: entries that are being taken."""
        self._begun: Counter[Chunk] = Counter()
        self._fatal = self._stopped = ""
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
        self._hand_to_all(new)
        self.members += new
        for i, part in enumerate(self.parts):
            new[i % len(new)].queue += part
        self.parts = []

    def _actor(self) -> Any:
        remote = self.ray.remote(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")(Worker)
        return remote.remote(os.getcwd(), environ(self.session))

    def _hand_to_all(self, members: Sequence[Member]) -> None:
        """Give new ``members`` what the store has, each pack at once to all. One that dies meanwhile gets no more (it
        is missed where its first chunk is); the others get everything."""
        until, living = self.session.store.marks(), list(members)
        for entries in exchange.packs(self.session.store.added((0, 0, 0), until)):
            pack = self.ray.put(entries)
            for member, taken in [(m, m.actor.take.remote(pack)) for m in living]:
                try:
                    self.ray.get(taken)
                except self._gone:
                    living.remove(member)
                except self.ray.exceptions.RayTaskError as e:
                    raise MultihopError(_cannot_take(e)) from e
        for member in living:
            member.has = until

    def _hand(self, member: Member) -> None:
        """Give ``member`` the next pack of what it lacks; it is up to date after the last one. Others go on."""
        if member.behind:
            member.until, member.behind = self.session.store.marks(), False
            member.packs = exchange.packs(self.session.store.added(member.has, member.until))
        if entries := next(member.packs, b"") if member.packs else b"":
            member.busy = True
            self._flying[member.actor.take.remote(self.ray.put(entries))] = member, None
        elif member.packs:
            member.has, member.packs = member.until, None

    def close(self) -> None:
        """Workers remove their folders."""
        closing = [m.actor.close.remote() for m in self.members]
        self.ray.wait(closing, num_returns=len(closing), timeout=10) if closing else None

    # -- chunks

    def run(self) -> None:
        while True:
            if not self._fatal:
                self._give()
            if self._flying:
                ready, _ = self.ray.wait(list(self._flying), num_returns=1, timeout=1)
                for ref in ready:
                    self._collect(ref)
            elif resting := [m.rests_until for m in self.members if m.rests_until and m.queue and not self._fatal]:
                time.sleep(max(0.0, min(resting) - time.monotonic()))
            else:
                break
        if not self._fatal and any(m.queue for m in self.members):
            self._fatal = f"{self._stopped} (a worker's share of what was left)"
        if self._fatal:
            raise MultihopError(self._fatal)

    def _give(self) -> None:
        """A chunk for each idle worker that has one, and may spend something on it."""
        for member in self.members:
            if member.busy or not member.queue or member.rests_until > time.monotonic():
                continue
            member.rests_until = 0.0
            self._hand(member)
            if member.busy:
                continue
            ceilings = self.budget.hold(member.queue[0], len(self.members))
            if ceilings is None:  # others hold what is left: it waits for what they do not use
                continue
            chunk = member.queue.popleft()
            self._begun[chunk] += 1
            member.busy = True
            self._flying[member.actor.answer.remote(chunk, ceilings)] = member, chunk

    def _collect(self, ref: Any) -> None:
        member, chunk = self._flying.pop(ref)
        member.busy = False
        try:
            done: Done | None = self.ray.get(ref)
        except self._gone as e:
            self._lost(member, chunk, _reason(e))
            return
        except self.ray.exceptions.RayTaskError as e:
            if chunk is None:
                self._fatal = self._fatal or _cannot_take(e)
            else:  # what it spent comes with the worker's next chunk, this one: its portion stays held
                self._again(member, chunk, "failed", _reason(e))
            return
        if chunk is not None and done is not None:
            self._merge(member, chunk, done)

    def _merge(self, member: Member, chunk: Chunk, done: Done) -> None:
        (self.budget.stopped if done.stopped else self.budget.settle)(chunk, done.spent)
        self.report.live_calls += done.live_calls
        self.report.merged += self.session.store.take(exchange.unpack(done.entries))
        if done.unanswered:
            member.rests_until = time.monotonic() + self.pauses[min(self._begun[chunk], len(self.pauses)) - 1]
            self._again(member, chunk, "unanswered", done.unanswered)
        elif done.stopped:  # goes on with more, as long as there is more
            self._stopped = done.stopped
            self._begun[chunk] -= 1
            member.queue.appendleft(chunk)
        elif done.fatal:
            self._note("stopped", chunk, done.fatal)
            self._fatal = self._fatal or done.fatal
        else:
            self.report.chunks += 1
            self.report.counts += done.counts
            self._note("done", chunk, f"{done.live_calls} live calls")

    def _lost(self, member: Member, chunk: Chunk | None, why: str) -> None:
        """A dead worker's chunk and queue go to another one."""
        self.members.remove(member)
        self.ray.kill(member.actor)
        left = deque(member.queue)
        if chunk is not None:
            self.report.lost.append(chunk)
            left.appendleft(chunk)
            self._note("lost", chunk, why)
            self._refuse(chunk, why)
        for each in left:  # one that failed before may wait in the queue with its portion
            self.budget.lost(each)
        if self._fatal:
            return
        if not self.members:
            self.parts = [left]
            self.start(1)
        else:
            heir = min(self.members, key=lambda m: len(m.queue) + m.busy)
            heir.behind = True
            heir.queue += left

    def _again(self, member: Member, chunk: Chunk, what: str, why: str) -> None:
        self._note(what, chunk, why)
        member.queue.appendleft(chunk)
        self._refuse(chunk, why)

    def _refuse(self, chunk: Chunk, why: str) -> None:
        if self._begun[chunk] >= TRIES:
            where = f"{chunk.run} {chunk.dataset} {chunk.setting}"
            self._fatal = self._fatal or f"{where}: {len(chunk.ids)} questions failed {TRIES} times, at last: {why}"

    def _note(self, what: str, chunk: Chunk, more: str) -> None:
        """A line on standard error, a row in a log that no hash sees."""
        row = {"event": what, **asdict(chunk), "note": guard.told(more)}
        folder = self.session.root / self.session.env.home / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "warm-ray.jsonl").open("a", encoding="utf-8") as f:
            f.write(jsonl.dumps(row) + "\n")
        left = sum(len(m.queue) for m in self.members) + len(self._flying)
        where = f"{chunk.run} {chunk.dataset} {chunk.setting}, {len(chunk.ids)} questions"
        print(f"  {what}: {where}: {row['note']}; {left} chunks left", file=sys.stderr)


def _cannot_take(error: Exception) -> str:
    return f"a worker can't store what is known: {_reason(error)}; is there room in its node's temporary folder?"


def _reason(error: Exception) -> str:
    """Ray's errors hold whole tracebacks: their last line, without a key."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return guard.told(lines[-1] if lines else type(error).__name__)[:300]
