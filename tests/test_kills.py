"""Kills at seeded points: the same command finishes, asks for nothing that is stored, and leaves the same bytes.

All of them, DVC's, and their table: ``python benchmarks/kills.py``.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time

import pytest
from kill_cases import CASES, RUN, WORKERS, Case, Outcome, Stage, as_row, differing, two_at_once
from killing import Point
from project_fixture import REPO

from multihop import jsonl

QUICK = (
    "store: in the middle of a response's INSERT",
    "store: vectors, between INSERT and COMMIT",
    "spending: before its COMMIT",
    "ceiling: in a reservation, before its COMMIT",
    "ceiling: in a settlement, before its COMMIT",
    "run: after a record, before it is kept",
    "run: before the records' replace",
    "build: values, between INSERT and COMMIT",
    "build: before the facts' replace",
    "index: an old index, between the .npy files",
    "merge: in the middle of an INSERT",
    "score: between scores and failures",
    "full disk: SQLite",
    "full disk: the records' file",
)


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    made = Stage(tmp_path_factory.mktemp("kills"), seed=6)
    yield made
    made.close()


@pytest.mark.parametrize("name", QUICK)
def test_a_kill_loses_only_what_was_in_flight(stage, name):
    [case] = [case for case in CASES if case.name == name]
    outcome = stage.play(case)
    assert outcome.ok, outcome


def test_a_point_that_is_not_passed_is_no_kill(stage):
    with pytest.raises(AssertionError, match="does not pass there"):
        stage.play(Case("none", "resolve", Point("sql", "INTO responses")))


def test_what_is_asked_again_would_be_seen(stage):
    """A store that forgets an answer: the comparison says so."""
    place = stage.start("answered")
    held = place.stored()
    (place.home / "store.sqlite").unlink()
    stage.clear()
    assert stage.run(RUN, place).code == 0
    assert set(stage.clear()) & held
    assert differing(place, stage.start("answered")) == []


def test_two_processes_at_once_pay_once(stage):
    """The same run twice at the same time on one store: each request is asked once, both write the same records."""
    found = two_at_once(stage)
    assert found["codes"] == [0, 0, 0] and found["equal"] and found["integrity"]
    assert found["asked_twice"] == 0 and found["asked"] == found["needed"] == sum(found["asked_by_each"])


def test_a_claim_dies_with_its_process(stage):
    """One of two is killed while it asks: the other does not wait for ever for its answer."""
    alone, place = stage.start("indexed"), stage.start("indexed")
    assert stage.run(RUN, alone).code == 0
    stage.clear()
    stage.server.delay = 0.5
    first = stage.zygote.start(RUN.split(), place.root, place.environment(stage.server.url))
    while not stage.server.bodies:
        time.sleep(0.005)
    second = stage.zygote.start(RUN.split(), place.root, place.environment(stage.server.url))
    time.sleep(0.3)
    os.kill(first[0], signal.SIGKILL)
    stage.server.delay = 0.0
    assert [stage.zygote.wait(*p).code for p in (first, second)] == [-signal.SIGKILL, 0]
    again = [key for key, times in stage.clear().items() if times > 1]
    assert 1 <= len(again) <= WORKERS and differing(place, alone) == []


def test_left_over_temporary_files_go_with_the_next_write(tmp_path):
    gone, mine = tmp_path / ".a.json.4194399.tmp", tmp_path / ".a.json.1.tmp"
    for path in (gone, mine, tmp_path / ".b.json.4194399.tmp", tmp_path / ".a.json.x.tmp"):
        path.write_text("half")
    jsonl.write_json(tmp_path / "a.json", {"a": 1})
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"a.json", ".a.json.1.tmp", ".b.json.4194399.tmp", ".a.json.x.tmp"}  # process 1 lives
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": 1}


def test_an_index_that_was_killed_over_an_old_one_is_no_index(stage):
    place = stage.start("indexed")
    ended = stage.run("index musique", place, Point("call", "numpy:save", "after", 1))
    assert ended.code == -9
    said = stage.run(RUN, place)
    assert said.code == 1 and "run the index stage" in said.said and "Traceback" not in said.said


# -- the table


@pytest.fixture
def table(monkeypatch):
    monkeypatch.syspath_prepend(str(REPO / "benchmarks"))
    return importlib.import_module("kills")


def test_the_table_counts_apart_what_the_same_command_did_not_finish(table):
    def row(name: str, first: str = "", **changes):
        made = Outcome(name, "now", 1, 1, 0, 0, **{"equal": True, "integrity": True} | changes)
        return as_row(made) | {"first": first}

    rows = [row("a"), row("b", charged=3), row("c", "rm dvc.lock"), {"case": "d", "skipped": "needs root"}]
    twice = {"needed": 4, "asked": 4, "asked_by_each": [1, 3], "asked_twice": 0, "entries": 5}
    twice |= {"equal": True, "integrity": True}
    text = table.table(rows, twice, 0)
    assert "2 of 3 go on by the same command, 1 after `rm dvc.lock`. " in text and "not as it" not in text
    assert "| 4 | 4 | 1 + 3 | 0 | 5 | yes | yes |" in text and "| b | now | 1 + 1 | 0 | 0 | yes | yes | 3 |" in text
    text = table.table([*rows, row("e", equal=False)], twice, 0)
    assert "2 of 4 go on by the same command, 1 after `rm dvc.lock`; 1 **not as it should be**" in text


def test_a_case_that_is_not_there_is_an_error(table, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["kills.py", "--only", "no such point"])
    with pytest.raises(SystemExit) as error:
        table.main()
    assert error.value.code == 2 and "no case has that in its name" in capsys.readouterr().err
