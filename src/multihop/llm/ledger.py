"""The ledger: what live calls cost, in one small SQLite file that all processes of a MULTIHOP_HOME share.

Spent sums stand per (run, model). A call that could pass a ceiling is *reserved* first, in the same transaction that
checks the ceilings, so that two processes never reserve the same money. A reservation names its process: where that
is gone, what it had reserved counts as spent, since the provider may have billed it. What a batch has reserved outlives
its process: it is held under the batch's mark until somebody sees how the batch ended.
"""

from __future__ import annotations

import os
import platform
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from multihop.errors import DataError
from multihop.store import what_to_do, write_ahead

FILE = "spending.sqlite"
"""In MULTIHOP_HOME."""
FLUSH_S = 1.0
"""Without ceilings spending is noted at most this often; a killed process forgets what came since."""
_TABLE, _SUMMED = "CREATE TABLE IF NOT EXISTS", "calls INTEGER, prompt INTEGER, completion INTEGER, usd REAL"
_SCHEMA = f"""
{_TABLE} spent (run TEXT, model TEXT, {_SUMMED}, PRIMARY KEY (run, model));
{_TABLE} reserved (id INTEGER PRIMARY KEY, run TEXT, model TEXT, {_SUMMED}, host TEXT, pid INTEGER, born TEXT);
{_TABLE} batches (mark TEXT PRIMARY KEY, run TEXT, model TEXT, {_SUMMED}, host TEXT, pid INTEGER, born TEXT);
{_TABLE} in_batches (key TEXT PRIMARY KEY, mark TEXT) WITHOUT ROWID;
CREATE VIEW IF NOT EXISTS held AS SELECT run, calls, prompt, completion, usd FROM reserved
    UNION ALL SELECT run, calls, prompt, completion, usd FROM batches;
"""
"""``batches``: what a batch has reserved; nothing, once what it cost is among the spent. ``in_batches``: the batch that
a request (by its key in the response store) went into; it stands here since the store is exported and merged."""
_ADDED = ", ".join(f"{name}={name}+excluded.{name}" for name in ("calls", "prompt", "completion", "usd"))
_SUMS = "SELECT total(calls), total(prompt), total(completion), total(usd) FROM"


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one call or of many; ``usd`` in US dollars."""

    calls: int = 0
    prompt: int = 0
    completion: int = 0
    usd: float = 0.0

    @property
    def tokens(self) -> int:
        return self.prompt + self.completion

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.calls + other.calls,
            self.prompt + other.prompt,
            self.completion + other.completion,
            self.usd + other.usd,
        )

    def times(self, n: int) -> Cost:
        return Cost(self.calls * n, self.prompt * n, self.completion * n, self.usd * n)


class Passed(Exception):
    """A call does not fit under a ceiling: its name, and what is spent and reserved of what it counts."""

    def __init__(self, ceiling: str, spent: Cost, reserved: Cost):
        super().__init__(ceiling)
        self.ceiling, self.spent, self.reserved = ceiling, spent, reserved


Limits = dict[str, tuple[str, bool, float]]
"""Ceiling -> (what it counts: usd, calls or tokens; whether of one run; how much)."""


class Ledger:
    """Opened when first needed, so that a replay leaves no file. ``path`` None: in memory, of this process alone."""

    def __init__(self, path: Path | None = None):
        self.path = path
        self._open: sqlite3.Connection | None = None
        self._noted: dict[tuple[str, str], Cost] = {}
        self._settled: list[tuple[int, str, str, Cost]] = []
        self._flushed = 0.0
        self._me = (_machine(), os.getpid(), _born(os.getpid()))

    @property
    def _db(self) -> sqlite3.Connection:
        if self._open is None:
            if self.path:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._open = sqlite3.connect(self.path or ":memory:", timeout=60, isolation_level=None)
                write_ahead(self._open)
                self._open.execute("PRAGMA synchronous=NORMAL")
                self._open.executescript(_SCHEMA)
            except sqlite3.OperationalError as e:
                raise _unwritten(self.path, e) from e
            except sqlite3.DatabaseError as e:
                raise DataError(
                    f"{self.path}: not a ledger of spending, or damaged ({e}); move it away: ceilings then count anew"
                ) from e
            self.sweep()
        return self._open

    def close(self) -> None:
        """What was noted is written. Harmless where nothing was spent."""
        try:
            self.flush()
        finally:
            if self._open is not None:
                self._open.close()
                self._open = None

    # -- under ceilings

    def reserve(self, run: str, model: str, cost: Cost, limits: Limits) -> int:
        """The number of the reservation. Raises Passed where spent, reserved and ``cost`` pass one of ``limits``."""
        with self._changing() as db:
            self._check(db, run, cost, limits)
            row = (run, model, cost.calls, cost.prompt, cost.completion, cost.usd, *self._me)
            added = db.execute("INSERT INTO reserved VALUES (NULL,?,?,?,?,?,?,?,?,?)", row)
            return int(added.lastrowid or 0)

    def settle(self, reservation: int, run: str, model: str, cost: Cost) -> None:
        """What a reserved call really cost, in place of its reservation. Where that can't be written now (DataError),
        the next settle, flush or close tries again; until then it stays reserved."""
        self._settled.append((reservation, run, model, cost))
        self._write_settled()

    def _write_settled(self) -> None:
        if self._settled:
            with self._changing() as db:
                for reservation, run, model, cost in self._settled:
                    db.execute("DELETE FROM reserved WHERE id=?", (reservation,))
                    _add(db, run, model, cost)
            self._settled.clear()

    def _check(self, db: sqlite3.Connection, run: str, cost: Cost, limits: Limits) -> None:
        for name, (unit, of_run, most) in limits.items():
            whose = run if of_run else None
            spent, held = self._sum(db, "spent", whose), self._sum(db, "held", whose)
            if getattr(spent, unit) + getattr(held, unit) + getattr(cost, unit) > most:
                raise Passed(name, spent, held)

    # -- batches

    def mark(self, keys: Iterable[str], mark: str) -> None:
        """These requests go into the batch of this mark; one that is in a batch already stays there."""
        with self._changing() as db:
            db.executemany("INSERT OR IGNORE INTO in_batches VALUES (?,?)", ((key, mark) for key in keys))

    def marks(self, keys: Iterable[str]) -> dict[str, str]:
        """The mark of each request that is in a batch."""
        found = (self._db.execute("SELECT * FROM in_batches WHERE key=?", (key,)).fetchone() for key in keys)
        return dict(row for row in found if row)

    def unmark(self, keys: Iterable[str], mark: str) -> None:
        """A batch's end was seen: what it left out of these requests may go into another."""
        with self._changing() as db:
            db.executemany("DELETE FROM in_batches WHERE key=? AND mark=?", ((key, mark) for key in keys))

    def reserve_batch(self, mark: str, run: str, model: str, cost: Cost, limits: Limits) -> None:
        """As ``reserve``, for all calls of a batch together."""
        with self._changing() as db:
            self._check(db, run, cost, limits)
            row = (mark, run, model, cost.calls, cost.prompt, cost.completion, cost.usd, *self._me)
            db.execute("INSERT INTO batches VALUES (?,?,?,?,?,?,?,?,?,?)", row)

    def free_batch(self, mark: str) -> None:
        """No batch of this mark was made."""
        with self._changing() as db:
            db.execute("DELETE FROM batches WHERE mark=?", (mark,))

    def settle_batch(self, mark: str, run: str, model: str, cost: Cost) -> bool:
        """What a batch that has ended cost, in place of its reservation. False where it was charged before: an end may
        be seen twice, by two processes, or again after a kill."""
        with self._changing() as db:
            found = db.execute("SELECT run, calls, prompt, completion, usd FROM batches WHERE mark=?", (mark,))
            before = found.fetchone()
            if before and Cost(*before[1:]) == Cost():
                return False
            run = before[0] if before else run
            db.execute("REPLACE INTO batches VALUES (?,?,?,0,0,0,0,?,?,?)", (mark, run, model, *self._me))
            _add(db, run, model, cost)
            return True

    # -- without ceilings

    def note(self, run: str, model: str, cost: Cost) -> None:
        """Spent, to be written within FLUSH_S of the next note, or at the close."""
        self._noted[run, model] = self._noted.get((run, model), Cost()) + cost
        if time.monotonic() - self._flushed >= FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Write what is known and not written yet."""
        self._write_settled()
        if self._noted:
            with self._changing() as db:
                for (run, model), cost in self._noted.items():
                    _add(db, run, model, cost)
            self._noted.clear()
        self._flushed = time.monotonic()

    # -- looking

    def spent(self, run: str | None = None) -> Cost:
        """Of one run, or of all."""
        self.flush()
        return self._sum(self._db, "spent", run)

    def reserved(self, run: str | None = None) -> Cost:
        """Of calls in flight, in all processes, and of batches whose end nobody has seen."""
        return self._sum(self._db, "held", run)

    def rows(self) -> list[tuple[str, str, Cost]]:
        """(run, model, spent), by name."""
        self.flush()
        found = self._db.execute("SELECT * FROM spent ORDER BY run, model")
        return [(run, model, Cost(*cost)) for run, model, *cost in found]

    def reset(self) -> int:
        """Forget what was spent, and all reservations but those of living processes of this machine; returns how many
        reservations. A batch that is still under way is charged when its answers come."""
        self.flush()
        with self._changing() as db:
            db.execute("DELETE FROM spent")
            dropped = 0
            for table in ("reserved", "batches"):
                for number, *cost, host, pid, born in db.execute(
                    f"SELECT rowid, calls, prompt, completion, usd, host, pid, born FROM {table}"
                ).fetchall():
                    if Cost(*cost) != Cost() and not (host == self._me[0] and _born(pid) == born):
                        db.execute(f"DELETE FROM {table} WHERE rowid=?", (number,))
                        dropped += 1
        return dropped

    def sweep(self) -> None:
        """Reservations of processes that are gone become spent. Those of another machine, container or start of this
        machine stay reserved: nobody here can tell whether their process lives."""
        with self._changing() as db:
            for row in db.execute("SELECT * FROM reserved").fetchall():
                number, run, model, *cost, host, pid, born = row
                if host == self._me[0] and _born(pid) != born:
                    db.execute("DELETE FROM reserved WHERE id=?", (number,))
                    _add(db, run, model, Cost(*cost))

    def _sum(self, db: sqlite3.Connection, table: str, run: str | None) -> Cost:
        where, values = (" WHERE run=?", (run,)) if run is not None else ("", ())
        calls, prompt, completion, usd = db.execute(f"{_SUMS} {table}{where}", values).fetchone()
        return Cost(int(calls), int(prompt), int(completion), usd)

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that holds the write lock from its first read on."""
        db = self._db
        try:
            db.execute("BEGIN IMMEDIATE")
            yield db
            db.execute("COMMIT")
        except BaseException as e:
            if db.in_transaction:  # a full disk has rolled back already
                db.execute("ROLLBACK")
            if isinstance(e, sqlite3.DatabaseError):
                raise _unwritten(self.path, e) from e
            raise


def _unwritten(path: Path | None, error: sqlite3.DatabaseError) -> DataError:
    return DataError(f"{path}: {error}; {what_to_do(error)} and run the same command again")


def report(path: Path, ceilings: Mapping[str, float]) -> str:
    """What `multihop spending` prints; ``ceilings`` by their variable."""
    said = [f"{name}={most:.15g}" for name, most in ceilings.items()]
    foot = f"ceilings: {', '.join(said) or 'none (MULTIHOP_MAX_USD, _CALLS, _TOKENS; MULTIHOP_MAX_RUN_USD, …)'}"
    if not path.is_file():
        return f"nothing was spent yet: {path} is not there\n{foot}"
    ledger = Ledger(path)
    rows = [*ledger.rows(), ("total", "", ledger.spent()), ("reserved, in flight", "", ledger.reserved())]
    ledger.close()
    width = max(len(run) for run, *_ in rows) + 2
    lines = [f"{'run':<{width}}{'calls':>9}{'prompt tok':>13}{'output tok':>12}{'USD':>11}  model"]
    lines += [
        f"{run:<{width}}{cost.calls:>9}{cost.prompt:>13}{cost.completion:>12}{cost.usd:>11.4f}  {model}".rstrip()
        for run, model, cost in rows
    ]
    return "\n".join([*lines, foot])


def _add(db: sqlite3.Connection, run: str, model: str, cost: Cost) -> None:
    if cost != Cost():
        db.execute(
            f"INSERT INTO spent VALUES (?,?,?,?,?,?) ON CONFLICT DO UPDATE SET {_ADDED}",
            (run, model, cost.calls, cost.prompt, cost.completion, cost.usd),
        )


def _machine() -> str:
    """Where a process's number means something: the machine by name, this start of it, and the container. Two machines
    or containers of one name that share a volume differ in the latter two."""
    try:
        started = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{platform.node()} {started} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # a system without /proc
        return platform.node()


def _born(pid: int) -> str:
    """When a process began, as the system counts it, so that a number used again is not taken for it; "" for none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        after_name = stat.rpartition(")")[2].split()
        # A zombie is dead: it only waits to be noticed.
        return "" if after_name[0] == "Z" else after_name[19]
    except OSError:
        pass
    if Path("/proc/self/stat").exists():
        return ""
    try:  # a system without /proc: alive or not is all that can be asked
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "alive"
