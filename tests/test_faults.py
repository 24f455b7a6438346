"""A hostile endpoint: each kind of fault alone, then whole small pipelines with 30 % of the responses faulty."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hostile_server import ALTERED, FATAL, HANGING, HARMLESS, PASSING, HostileServer, Plan
from project_fixture import URL_ENV, make_client, records_file, records_of, run_project
from scripted_server import Fail, Say, little_model, question_of

from multihop import config, stages
from multihop.errors import EndpointError, MultihopError
from multihop.llm.client import NoAnswer, Refused
from multihop.session import opened

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


def through(root: Path) -> dict[str, bytes]:
    """All runs, scored: the bytes of every record and score."""
    for run in RUNS:
        run_project(root, run)

    async def scored() -> None:
        async with opened(config.load(root / "params.yaml"), root) as session:
            await stages.score_all(session)

    asyncio.run(scored())
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted((root / "results").rglob("*.json*"))}


@pytest.mark.parametrize("seed", [1, 2])
def test_whole_pipelines_at_30_percent_faults_end_as_without_any(project, hostile, at_home, seed):
    chosen = {"runs": {run: config_of(run) for run in RUNS}}
    hostile(Plan(share=0))
    at_home("good")
    expected = through(project("good", **chosen))
    server = hostile(Plan(seed=seed, share=0.3))
    at_home("bad")
    root = project("bad", **chosen)
    assert through(root) == expected
    for run in RUNS:
        records = records_of(root, run)
        assert len({r.qid for r in records}) == len(records) == 6 and counted(root, run) == {"ok": 6}
    faults = sum(n for kind, n in server.tried.items() if kind != "none")
    assert 0.15 < faults / server.tried.total() < 0.45 and len(server.tried) > 12
    assert set(server.answered.values()) == {1}  # none lost, none doubled


def config_of(run: str) -> dict[str, Any]:
    from project_fixture import params_for

    return params_for()["runs"][run]


def test_altered_answers_at_30_percent_leave_a_record_of_every_question(project, hostile, at_home):
    """Refusals, empty and cut answers, usage of no sense: each question has one record, and none is an error."""
    at_home("altered")
    server = hostile(Plan((*PASSING, *ALTERED), seed=3, share=0.3))
    root = project("altered")
    for run in RUNS:
        run_project(root, run)
        statuses = counted(root, run)
        assert statuses.total() == 6 and not statuses["error"]
    assert any(server.tried[kind] for kind in ALTERED)
    first = {run: records_file(root, run).read_bytes() for run in RUNS}
    shutil.rmtree(root / "results")
    at_home("altered", MULTIHOP_LIVE="never")
    for run in RUNS:
        run_project(root, run)
    assert first == {run: records_file(root, run).read_bytes() for run in RUNS}
