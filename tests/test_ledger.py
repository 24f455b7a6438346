"""The ledger: whose reservations live, what a reset leaves, a disk that is full, ledgers of before."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from project_fixture import REPO, make_client
from scripted_server import Say
from typer.testing import CliRunner

from multihop.cli.app import app
from multihop.errors import DataError
from multihop.llm import ledger as module
from multihop.llm.ledger import Cost, Ledger

COST = Cost(1, 2, 3, 4.0)
HOLD = """
import sys
sys.path.insert(0, {src!r})
from pathlib import Path
from multihop.llm.ledger import Cost, Ledger
ledger = Ledger(Path({path!r}))
ledger.reserve("r", "m", Cost(1, 2, 3, 4.0), {{}})
ledger.reserve_batch("mark " + sys.argv[1], "r", "m", Cost(10, 20, 30, 40.0), {{}})
print("held", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "home/spending.sqlite"


def holder(path: Path, name: str = "1") -> subprocess.Popen[str]:
    """A process that has reserved a call and a batch, and lives."""
    code = HOLD.format(src=str(REPO / "src"), path=str(path))
    process = subprocess.Popen(
        [sys.executable, "-c", code, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout and process.stdout.readline() == "held\n"
    return process


def killed(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def machine(monkeypatch, node: str = "", started: str = "", container: str = "") -> None:
    """From now on a ledger is opened on another machine, or after another start of it, or in another container."""
    mine = module._machine().split(" ")
    monkeypatch.setattr(
        module, "_machine", lambda: " ".join([node or mine[0], started or mine[1], container or mine[2]])
    )


# -- who lives


def test_a_machine_is_known_by_its_name_its_start_and_its_container():
    started = Path("/proc/sys/kernel/random/boot_id")
    if not started.exists():
        pytest.skip("a system without /proc")
    assert module._machine().split()[1:] == [started.read_text().strip(), os.readlink("/proc/self/ns/pid")]


@pytest.mark.parametrize("other", [{"node": "other"}, {"started": "later"}, {"container": "pid:[1]"}])
def test_a_living_process_elsewhere_is_not_swept_though_nobody_here_has_its_number(path, monkeypatch, other):
    """A second container of the same name, on the same volume, sees none of the first one's processes."""
    process = holder(path)
    try:
        machine(monkeypatch, **other)
        monkeypatch.setattr(module, "_born", lambda pid: "")
        elsewhere = Ledger(path)
        assert (elsewhere.spent(), elsewhere.reserved().calls) == (Cost(), 11)
    finally:
        killed(process)


def test_a_killed_process_is_swept_but_for_its_batch(path):
    killed(holder(path))
    ledger = Ledger(path)
    assert ledger.spent() == COST and ledger.reserved() == Cost(10, 20, 30, 40.0)


def test_a_number_used_again_is_another_process(path):
    ledger = Ledger(path)
    ledger.reserve("r", "m", COST, {})
    assert Ledger(path).reserved() == COST
    ledger._db.execute("UPDATE reserved SET born='earlier'")
    assert (Ledger(path).reserved(), Ledger(path).spent()) == (Cost(), COST)


# -- a reset


def test_a_reset_frees_what_no_living_process_here_holds(path, monkeypatch):
    here, gone = holder(path, "here"), holder(path, "gone")
    try:
        killed(gone)
        with monkeypatch.context() as patch:
            machine(patch, node="other")
            other = Ledger(path)
            other.reserve("r", "m", Cost(100, 0, 0, 0.0), {})
            other.reserve_batch("mark other", "r", "m", Cost(1000, 0, 0, 0.0), {})
        ledger = Ledger(path)  # what the killed process's call had reserved is swept
        assert ledger.spent().calls == 1 and ledger.reserved().calls == 11 + 10 + 1100
        assert ledger.reset() == 3
        assert ledger.spent() == Cost() and ledger.reserved().calls == 11
        assert ledger.reset() == 0
    finally:
        killed(here)


def test_what_was_settled_and_not_written_is_forgotten_by_a_reset(path):
    ledger = Ledger(path)
    number = ledger.reserve("r", "m", COST, {})
    full(ledger)
    with pytest.raises(DataError):
        ledger.settle(number, "r", "m", COST)
    ledger._db.execute("DROP TRIGGER full")
    ledger.reset()
    ledger.close()
    assert (Ledger(path).spent(), Ledger(path).reserved()) == (Cost(), Cost())


def test_a_batch_whose_reservation_was_reset_is_charged_when_its_answers_come(path):
    ledger = Ledger(path)
    assert ledger.reserved() == Cost()  # opened before the other process is gone, so that nothing is swept
    killed(holder(path))
    assert ledger.reserved().calls == 11 and ledger.reset() == 2 and ledger.reserved() == Cost()
    assert ledger.settle_batch("mark 1", "r", "m", COST) and not ledger.settle_batch("mark 1", "r", "m", COST)
    assert ledger.spent() == COST


def test_the_command_says_how_many_it_freed(tmp_path, path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MULTIHOP_HOME", "home")
    killed(holder(path))
    with monkeypatch.context() as patch:
        machine(patch, started="before")
        Ledger(path).reserve("r", "m", COST, {})
    shown = CliRunner().invoke(app, ["spending"]).output
    assert "reserved, in flight" in shown and Ledger(path).reserved().calls == 11
    said = CliRunner().invoke(app, ["spending", "--reset", "--yes"]).output
    assert "2 reservations freed, of processes that don't run on this machine" in said
    assert (Ledger(path).spent(), Ledger(path).reserved()) == (Cost(), Cost())
    assert "freed" not in CliRunner().invoke(app, ["spending", "--reset", "--yes"]).output


# -- batches


def test_a_batch_is_charged_once_to_the_run_that_sent_it(path):
    first, second = Ledger(path), Ledger(path)
    first.reserve_batch("mark", "sent", "m", Cost(10, 20, 30, 40.0), {})
    assert second.settle_batch("mark", "found", "m", COST)
    assert not first.settle_batch("mark", "sent", "m", COST)
    assert first.rows() == [("sent", "m", COST)] and first.reserved() == Cost()


def test_a_request_stays_in_the_batch_that_it_is_in(path):
    ledger = Ledger(path)
    ledger.mark(["a", "b"], "first")
    Ledger(path).mark(["b", "c"], "second")
    assert ledger.marks(["a", "b", "c", "d"]) == {"a": "first", "b": "first", "c": "second"}
    ledger.unmark(["b", "c"], "first")
    assert ledger.marks(["a", "b", "c"]) == {"a": "first", "c": "second"}


# -- a full disk, a ledger of before


def full(ledger: Ledger) -> None:
    """From now on nothing can be added to what is spent."""
    error = "SELECT RAISE(ABORT, 'database or disk is full')"
    ledger._db.execute(f"CREATE TRIGGER full BEFORE INSERT ON spent BEGIN {error}; END")


@pytest.mark.parametrize("ceilings", [None, {"MULTIHOP_MAX_CALLS": 9}])
def test_an_answer_is_stored_though_the_ledger_is_full_and_nothing_more_is_asked(tmp_path, path, serve, ceilings):
    server, ledger = serve(Say("word")), Ledger(path)
    client = make_client(tmp_path, ceilings=ceilings, ledger=ledger)

    async def asked(*questions: str) -> list[Any]:
        chats = (client.chat([{"role": "user", "content": q}], role="reader") for q in questions)
        return await asyncio.gather(*chats, return_exceptions=True)

    async def work() -> None:
        full(ledger)
        assert [reply.text for reply in await asked("a", "b")] == ["word", "word"]
        assert len(list(client.store.rows())) == 2
        [error] = await asked("c")
        assert isinstance(error, DataError) and "disk is full; make room on the disk" in str(error)
        assert len(server.bodies) == 2 and ledger.reserved().calls == (2 if ceilings else 0)
        ledger._db.execute("DROP TRIGGER full")
        assert [reply.text for reply in await asked("c")] == ["word"]
        await client.endpoints.close()

    asyncio.run(work())
    assert (ledger.spent(), ledger.reserved()) == (client.meter.spent, Cost()) and ledger.spent().calls == 3


def test_a_ledger_that_stays_full_is_an_error_at_the_close(path):
    ledger = Ledger(path)
    number = ledger.reserve("r", "m", COST, {})
    full(ledger)
    with pytest.raises(DataError, match="disk is full"):
        ledger.settle(number, "r", "m", COST)
    with pytest.raises(DataError, match="disk is full"):
        ledger.close()
    assert Ledger(path).reserved() == COST  # not lost to the ceilings


def test_a_ledger_from_before_batches_were_in_it_is_read_on(path):
    path.parent.mkdir()
    with sqlite3.connect(path) as db:
        db.executescript(
            """CREATE TABLE spent (run TEXT, model TEXT, calls INTEGER, prompt INTEGER, completion INTEGER, usd REAL,
                                   PRIMARY KEY (run, model));
            CREATE TABLE reserved (id INTEGER PRIMARY KEY, run TEXT, model TEXT, calls INTEGER, prompt INTEGER,
                                   completion INTEGER, usd REAL, host TEXT, pid INTEGER, born TEXT);
            INSERT INTO spent VALUES ('r', 'm', 1, 2, 3, 4.0);
            INSERT INTO reserved VALUES (1, 'r', 'm', 1, 2, 3, 4.0, 'host', 1, 'x');"""
        )
    db.close()
    ledger = Ledger(path)
    ledger.reserve_batch("mark", "r", "m", COST, {})
    assert ledger.spent() == COST and ledger.reserved() == COST + COST
