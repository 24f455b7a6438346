"""A hostile endpoint: each kind of fault alone, then whole small pipelines with 30 % of the responses faulty."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import importlib
import json
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import every_method
import fault_cases as cases
import pytest
from hostile_server import ALTERED, FATAL, HANGING, HARMLESS, PASSING, HostileServer, Plan
from project_fixture import REPO, URL_ENV, make_client, records_file, records_of, run_project
from scripted_server import Fail, Say, little_model, question_of

from multihop import jsonl
from multihop.errors import EndpointError, MultihopError
from multihop.llm.client import NoAnswer, Refused

pytestmark = pytest.mark.usefixtures("quick_retries")
HI = Say("hi there, and more than eight letters")
TROUBLE = tuple(kind for kind in PASSING if kind not in HARMLESS)
RUNS = ("vanilla", "arag", "executionrag")


@pytest.fixture
def hostile(monkeypatch):
    servers = []

    def start(plan: Plan, script: Any = little_model, **options: Any) -> HostileServer:
        servers.append(HostileServer(script, plan=plan, pause_s=0.02, **options).__enter__())
        monkeypatch.setenv(URL_ENV, servers[-1].url)
        return servers[-1]

    yield start
    for server in servers:
        server.__exit__()


def ask(client, *texts: str) -> list[Any]:
    """Replies, or exceptions, one after the other."""

    async def work() -> list[Any]:
        found = []
        for text in texts or ("hello",):
            try:
                found.append(await client.chat([{"role": "user", "content": text}], role="reader"))
            except Exception as e:
                found.append(e)
        await client.endpoints.close()
        return found

    return asyncio.run(work())


def kept(client) -> list[Any]:
    return [row["response"] for row in client.store.rows()]


# -- each kind alone


@pytest.mark.parametrize("kind", PASSING + HANGING)
def test_what_passes_is_recovered_from_and_stored_as_if_nothing_had_been(tmp_path, hostile, kind):
    env = {"MULTIHOP_TIMEOUT_S": "0.2"} if kind in HANGING else {}
    texts = ("hello", "hello again", "and once more")
    hostile(Plan(share=0), lambda body: HI)
    expected = make_client(tmp_path / "good")
    said = ask(expected, *texts)
    server = hostile(Plan((kind,), share=1.0, attempts=2), lambda body: HI, hang_s=1.0)
    client = make_client(tmp_path / "bad", env)
    assert ask(client, *texts) == said and kept(client) == kept(expected)
    attempts = 1 if kind in HARMLESS else 3
    assert sorted(server.answered.values()) == [1, 1, 1] and server.tried[kind] == 3 * min(attempts, 2)
    # A connection that was closed after an answer costs the next request an attempt at most.
    assert set(server.counts.values()) <= ({1, 2} if kind in HARMLESS else {3})


@pytest.mark.parametrize("kind", TROUBLE)
def test_what_lasts_is_an_error_and_never_an_answer(tmp_path, hostile, kind):
    server = hostile(Plan((kind,), share=1.0), lambda body: HI)
    client = make_client(tmp_path)
    [error] = ask(client)
    assert isinstance(error, NoAnswer) and not isinstance(error, MultihopError)
    assert kept(client) == [] and server.counts.total() == 7
    assert "no answer in 7 attempts" in str(error)
    assert not kind.startswith("status") or f"Error code: {kind[7:10]}" in str(error)


@pytest.mark.parametrize(("kind", "lost"), [("malformed", 7), ("dropped during", 7), ("status 500", 0)])
def test_answers_that_were_lost_are_counted_as_spent(tmp_path, hostile, kind, lost):
    hostile(Plan((kind,), share=1.0), lambda body: HI)
    client = make_client(tmp_path)
    ask(client)
    assert client.meter.spent.calls == lost


def test_altered_answers_are_kept_as_they_came(tmp_path, hostile):
    found = {}
    for kind in ALTERED:
        hostile(Plan((kind,), share=1.0), lambda body: HI)
        client = make_client(tmp_path / kind.replace(" ", "-"))
        [reply] = ask(client)
        [response] = kept(client)
        found[kind] = (reply, response["usage"].get("estimated", False))
    assert found["content null"][0].text == "" and isinstance(found["content-filter stop"][0], Refused)
    assert (found["length stop"][0].text, found["length stop"][0].finish_reason) == ("hi there", "length")
    for kind in ("usage missing", "usage absurd"):
        reply, estimated = found[kind]
        assert (reply.text, reply.usage.prompt_tokens, estimated) == (HI.content, 5, True)
        assert 5 < reply.usage.completion_tokens < 12
    assert not any(estimated for kind, (_, estimated) in found.items() if "usage" not in kind)


# -- whole runs


def counted(root: Path, run: str) -> Counter[str]:
    return Counter(record.status for record in records_of(root, run))


@pytest.mark.parametrize("kind", FATAL)
def test_a_key_or_quota_that_ends_midway_stops_the_run_and_loses_nothing(project, hostile, at_home, kind):
    whole, root = project("whole"), project("stopped")
    hostile(Plan(share=0))
    at_home("whole")
    run_project(whole, "arag")
    at_home("stopped", MULTIHOP_WORKERS="2")
    server = hostile(Plan((kind,), seed=4, share=0.1))
    with pytest.raises(EndpointError, match=r"quota|refuses the key") as error:
        run_project(root, "arag")
    answered = set(server.answered)
    assert "\n" not in str(error.value) and answered and not records_file(root, "arag").exists()
    server = hostile(Plan(share=0))
    run_project(root, "arag")
    assert not answered & set(server.counts)  # what was on the wire at that moment was heard out, too
    assert records_file(root, "arag").read_bytes() == records_file(whole, "arag").read_bytes()


def test_a_question_whose_calls_all_fail_is_an_error_and_is_asked_again(project, hostile, at_home):
    whole, root = project("whole"), project("partly")
    hostile(Plan(share=0))
    at_home("whole")
    run_project(whole, "vanilla")
    at_home("partly")
    bad = "Where was the composer"
    server = hostile(Plan(share=0), lambda body: Fail(drop=True) if bad in question_of(body) else little_model(body))
    with pytest.raises(MultihopError, match=r"1 of 6 questions.*no answer in 7 attempts"):
        run_project(root, "vanilla")
    assert counted(root, "vanilla") == {"ok": 5, "error": 1}
    server = hostile(Plan(share=0))
    assert run_project(root, "vanilla") == {"ok": 6} and server.counts.total() == 1
    assert records_file(root, "vanilla").read_bytes() == records_file(whole, "vanilla").read_bytes()


# -- whole pipelines


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Three runs and their scores without a fault."""
    return cases.play(tmp_path_factory.mktemp("good"), cases.three_runs(9), Plan(share=0))


@pytest.mark.parametrize("seed", [1, 2])
def test_whole_pipelines_at_30_percent_faults_end_as_without_any(tmp_path, good, seed):
    chain = cases.play(tmp_path, cases.three_runs(9), Plan(seed=seed, share=0.3))
    tried = chain.server.tried
    assert 0.15 < 1 - tried["none"] / tried.total() < 0.45 and len(tried) > 12
    ends_as(chain, good)
    assert cases.statuses(chain) == {"ok": 3 * 9}


def ends_as(chain: cases.Chain, good: cases.Chain) -> None:
    """None lost, none doubled, nothing else stored, and every byte as without faults."""
    assert chain.ended and chain.given == 0
    assert set(chain.server.answered.values()) == {1} and not cases.wrongly_stored(chain)
    assert cases.wrong_records(chain, good) == {} and chain.entries == good.entries
    assert sorted(chain.files) == sorted(good.files)
    assert [name for name, content in chain.files.items() if content != good.files[name]] == []


def test_structures_trainings_and_their_runs_at_30_percent_faults_end_as_without_any(tmp_path):
    """As the last line of the fault table, without the methods whose packages take long to load."""
    methods = tuple(name for name in cases.METHODS if name not in every_method.SLOW)
    project = cases.Project(lambda root: every_method.make(root, methods), every_method.model)
    good = cases.play(tmp_path / "good", project, Plan(share=0))
    assert len(good.records()) == 6 * len(methods) and not cases.wrongly_stored(good)
    written = {name.split("/")[1] for name in good.files}
    assert {"trained", "structures", "trajectories", "scores", "failures", "runs", "metrics.json"} <= written
    ends_as(cases.play(tmp_path / "bad", project, Plan(seed=5, share=0.3)), good)


@pytest.fixture(scope="module")
def altered(tmp_path_factory):
    """Refusals, empty and cut answers, usage of no sense, and faults that pass."""
    plan = Plan((*PASSING, *ALTERED, *ALTERED), 7, 0.3)
    return cases.play(tmp_path_factory.mktemp("altered"), cases.three_runs(9), plan)


def test_altered_answers_at_30_percent_leave_each_question_the_record_that_they_demand(altered, good):
    assert altered.ended and {*ALTERED, "malformed", "truncated"} <= set(altered.server.tried)
    assert cases.wrong_records(altered, good) == {} and not cases.wrongly_stored(altered)
    assert len(altered.records()) == 27 and all(len(lines) == 1 for lines in altered.records().values())
    assert {"refused", "invalid_output", "ok"} == set(cases.statuses(altered))


def test_altered_answers_are_replayed_as_they_were_recorded(altered, tmp_path, monkeypatch):
    root = tmp_path / "project"
    shutil.copytree(altered.root, root, symlinks=True)
    shutil.rmtree(root / "results/runs")
    monkeypatch.setenv("MULTIHOP_HOME", str(altered.home))
    monkeypatch.setenv("MULTIHOP_LIVE", "never")
    for run in RUNS:
        run_project(root, run)
        name = f"results/runs/{run}/musique/small.jsonl"
        assert (root / name).read_bytes() == altered.files[name]


@pytest.mark.parametrize("status", ["ok", "refused", "invalid_output", "error"])
def test_a_status_that_the_faults_do_not_demand_would_be_seen(altered, good, status):
    """All records with one status: those that had another are named, and no other."""
    found, changed = _with(altered, status=status)
    assert changed and set(cases.wrong_records(found, good)) == changed


def test_a_record_that_a_passing_fault_changed_would_be_seen(altered, good):
    found, changed = _with(altered, loops=9)
    only_passing = set(cases.wrong_records(found, good))
    assert only_passing < changed and only_passing == {k for k in changed if altered.records()[k] == good.records()[k]}


def _with(chain: cases.Chain, **change: Any) -> tuple[cases.Chain, set[cases.Line]]:
    """``chain`` with ``change`` in every record, and which records that changed."""
    files, changed = dict(chain.files), set()
    for name in [n for n in files if n.startswith("results/runs/")]:
        records = [json.loads(line) for line in files[name].splitlines()]
        changed |= {(r["run"], r["qid"]) for r in records if r | change != r}
        files[name] = "".join(jsonl.dumps(r | change) + "\n" for r in records).encode()
    return dataclasses.replace(chain, files=files), changed


def test_a_passing_fault_that_is_stored_as_an_answer_would_be_seen(altered):
    for row in [r for r in altered.entries if r["kind"] == "response"]:
        wrong = row | {"response": row["response"] | {"content": "what a proxy said"}}
        found = dataclasses.replace(altered, entries=[wrong])
        [call] = found.answers()
        assert cases.wrongly_stored(found) == (set() if cases.last_fault(altered, call) else {call})


# -- the table


@pytest.fixture
def table(monkeypatch):
    monkeypatch.syspath_prepend(str(REPO / "benchmarks"))
    return importlib.import_module("faults")


def test_the_table_counts_what_was_found_and_says_what_is_wrong(altered, good, table):
    row, wrong = table.Row("mixed"), table.Row("changed")
    row.add(altered, good)
    wrong.add(_with(altered, status="ok")[0], good)
    assert row.ok and not wrong.ok and row.altered and row.recovered and not row.wrong
    assert (row.recorded, row.right, row.due) == (27, 27, 27) and wrong.recorded == 27 and wrong.right < 27
    options = argparse.Namespace(seeds=1, questions=9, share=0.3)
    text = table.table(options, [row, wrong], len(cases.METHODS))
    assert "1 of 2 lines as they should be" in text and "| changed **(not as it should be)** |" in text
    assert f"| 27 of 27 | {row.given} | 0 of 1 |" in text and f"| {wrong.right} of 27 |" in text


def test_a_line_that_is_not_there_is_an_error(table, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["faults.py", "--only", "no such fault"])
    with pytest.raises(SystemExit) as error:
        table.main()
    assert error.value.code == 2 and "status 503, Retry-After" in capsys.readouterr().err
