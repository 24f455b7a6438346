"""Batch mode: the same records as one by one; paid once whatever is killed; ceilings; endpoints without batches."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from batch_server import BatchServer
from project_fixture import URL_ENV, make_project, records_file, run_project
from scripted_server import ScriptedServer, body_hash, kind_of

from multihop import config, jsonl, stages
from multihop.errors import BudgetExceeded, ConfigError, EndpointError
from multihop.llm import batching
from multihop.llm.ledger import Ledger
from multihop.session import opened

BATCHED = {"endpoints": {"scripted": {"url_env": URL_ENV, "batch": True}}}
pytestmark = pytest.mark.usefixtures("quick_retries")


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    monkeypatch.setattr(batching, "POLL_S", (0.01, 0.02))
    monkeypatch.setenv("MULTIHOP_HOME", "home")


@pytest.fixture
def project(tmp_path) -> Path:
    return make_project(tmp_path / "batched", **BATCHED)


@pytest.fixture
def batches(monkeypatch):
    with BatchServer() as server:
        monkeypatch.setenv(URL_ENV, server.url)
        yield server


def scored(root: Path, run: str) -> list[dict[str, Any]]:
    """The score rows of a run, as the stage makes them."""

    async def work() -> list[dict[str, Any]]:
        async with opened(config.load(root / "params.yaml"), root) as session:
            cell = stages.score_cell_of(session, "musique", "small", run)
            return await stages.score_records(session, cell, stages.read_records(records_file(root, run)))

    return asyncio.run(work())


def entries(root: Path) -> list[dict[str, Any]]:
    """The responses of the store."""

    async def work() -> list[dict[str, Any]]:
        async with opened(config.load(root / "params.yaml"), root) as session:
            return [row for row in session.store.rows() if row["kind"] == "response"]

    return asyncio.run(work())


@pytest.mark.parametrize("run", ["direct", "vanilla", "cot_rag"])
def test_records_scores_and_store_are_those_of_a_run_without_batches(tmp_path, project, batches, run):
    run_project(project, run)
    rows = scored(project, run)
    assert len(batches.bodies) == 0 and len(batches.in_batches) >= 12  # not one call by itself
    assert len(set(map(body_hash, batches.in_batches))) == len(batches.in_batches)
    plain = make_project(tmp_path / "plain")
    run_project(plain, run)
    assert records_file(plain, run).read_bytes() == records_file(project, run).read_bytes()
    assert scored(plain, run) == rows and entries(plain) == entries(project)
    assert len(batches.bodies) == len(batches.in_batches)


def test_a_method_of_two_calls_takes_two_batches(tmp_path, batches):
    runs = {"cot_rag": {"method": "cot_rag", "variant": "query", "k": 3}}
    root = make_project(tmp_path / "p", runs=runs, **BATCHED)
    run_project(root, "cot_rag")
    assert len(batches.batches) == 2 and len(batches.in_batches) == 12 and batches.bodies == []


def test_an_agent_is_asked_one_by_one(project, batches):
    run_project(project, "arag")
    assert batches.batches == {} and batches.bodies


def test_free_answers_are_shortened_and_judged_in_batches(project, batches):
    run_project(project, "arag")
    one_by_one = len(batches.bodies)
    scored(project, "arag")
    assert len(batches.bodies) == one_by_one and {kind_of(b) for b in batches.in_batches} == {"extract", "judge"}


def test_what_a_batch_leaves_out_is_asked_one_by_one(project, batches):
    batches.skip = lambda body: "Salt Choir" in body["messages"][-1]["content"]
    run_project(project, "direct")
    assert len(batches.batches) == 1 and len(batches.in_batches) == 4 and len(batches.bodies) == 2
    assert len(list(jsonl.read(records_file(project, "direct")))) == 6


def test_with_replay_only_nothing_is_sent(project, batches, monkeypatch):
    run_project(project, "direct")
    records_file(project, "direct").unlink()
    monkeypatch.setenv("MULTIHOP_LIVE", "never")
    run_project(project, "direct")
    assert len(batches.batches) == 1 and records_file(project, "direct").is_file()


# -- killed, lost, failed


class Killed(BaseException):
    """In place of a signal: nothing after it runs but ``finally`` blocks."""


@pytest.mark.parametrize("place", ["_finished", "_outputs", "_stored"])
@pytest.mark.parametrize("ceiling", [None, "1000000"])
def test_a_killed_command_finds_its_batch_again(project, batches, monkeypatch, place, ceiling):
    if ceiling:
        monkeypatch.setenv("MULTIHOP_MAX_TOKENS", ceiling)

    def killed(*args: Any, **options: Any) -> Any:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(batching._Batch, place, killed)
        with pytest.raises(Killed):
            run_project(project, "vanilla")
    run_project(project, "vanilla")
    assert len(batches.batches) == 1 and len(batches.in_batches) == 6 and batches.bodies == []
    spent = Ledger(project / "home/spending.sqlite")
    assert spent.spent().calls == 6 and spent.reserved().calls == 0


def test_killed_between_two_answers_the_rest_is_found_again(project, batches, monkeypatch):
    from multihop.store import Store

    put, stored = Store.put, []

    def third(self: Store, *args: Any) -> None:
        if len(stored) == 2:
            raise Killed
        stored.append(args)
        put(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "put", third)
        with pytest.raises(Killed):
            run_project(project, "vanilla")
    run_project(project, "vanilla")
    assert len(batches.batches) == 1 and len(batches.in_batches) == 6 and batches.bodies == []


def test_a_batch_whose_making_was_not_answered_is_not_made_twice(project, batches):
    batches.lose_creations = 1
    run_project(project, "vanilla")
    assert len(batches.batches) == 1 and len(batches.in_batches) == 6 and batches.bodies == []


def test_a_failed_batch_is_an_error_and_the_same_command_sends_a_new_one(project, batches):
    batches.ends_as = "failed"
    with pytest.raises(EndpointError, match=r"batch_\d+ ended as failed.*run the same command again.*batch: false"):
        run_project(project, "vanilla")
    assert Ledger(project / "home/spending.sqlite").spent().calls == 0
    batches.ends_as = "completed"
    run_project(project, "vanilla")
    assert len(batches.batches) == 2 and len(batches.in_batches) == 6


def test_of_an_expired_batch_the_answers_are_kept(project, batches):
    batches.ends_as, batches.skip = "expired", lambda body: "Salt Choir" in body["messages"][-1]["content"]
    with pytest.raises(EndpointError, match="ended as expired"):
        run_project(project, "direct")
    assert len(entries(project)) == 4
    batches.ends_as, batches.skip = "completed", lambda body: False
    run_project(project, "direct")
    assert len(batches.in_batches) == 6 and batches.bodies == []


def test_an_endpoint_without_batches_names_the_param(project, monkeypatch):
    class Without(ScriptedServer):
        def handler(self) -> Any:
            class Plain(super().handler()):
                def do_POST(self) -> None:
                    self.rfile.read(int(self.headers["Content-Length"]))
                    self._send(404, {"error": {"message": "no such path"}})

                def do_GET(self) -> None:
                    self._send(404, {"error": {"message": "no such path"}})

            return Plain

    with Without() as server:
        monkeypatch.setenv(URL_ENV, server.url)
        match = r"'scripted' offers no batches \(HTTP 404 at /v1/batches\): set endpoints\.scripted\.batch: false"
        with pytest.raises(EndpointError, match=match):
            run_project(project, "vanilla")


# -- money


def test_a_batch_that_could_pass_a_ceiling_is_not_sent(project, batches, monkeypatch):
    monkeypatch.setenv("MULTIHOP_MAX_RUN_CALLS", "5")
    with pytest.raises(BudgetExceeded, match=r"a batch of 6 calls does not fit: .*MULTIHOP_MAX_RUN_CALLS=5"):
        run_project(project, "vanilla")
    assert batches.batches == {} and batches.files == {}
    assert Ledger(project / "home/spending.sqlite").reserved().calls == 0
    monkeypatch.setenv("MULTIHOP_MAX_RUN_CALLS", "6")
    run_project(project, "vanilla")
    assert len(batches.in_batches) == 6


def test_a_batch_costs_its_factor(project, batches):
    (project / "prices.yaml").unlink()
    (project / "prices.yaml").write_text("models:\n  scripted: {input: 1, cached: 1, output: 1, batch: 0.5}\n")
    run_project(project, "vanilla")
    spent = Ledger(project / "home/spending.sqlite").spent()
    assert spent.calls == 6 and spent.usd == pytest.approx(spent.tokens / 1e6 / 2)


# -- the param


def test_the_param_is_in_no_hash_and_no_resolved_file(tmp_path, project):
    plain = make_project(tmp_path / "plain")
    for root in (plain, project):
        stages.resolve(config.load(root / "params.yaml"), root)
    for name in ("all", "shared"):
        assert (plain / f"results/params/{name}.json").read_bytes() == (
            project / f"results/params/{name}.json"
        ).read_bytes()


def test_the_embedded_server_takes_no_batches(tmp_path):
    with pytest.raises(ConfigError, match="embedded server takes none"):
        make_project(tmp_path / "p", endpoints={"scripted": {"kind": "embedded", "batch": True}})


def test_a_large_cell_is_several_batches(project, batches, monkeypatch):
    monkeypatch.setattr(batching, "MOST_REQUESTS", 4)
    run_project(project, "vanilla")
    assert len(batches.batches) == 2 and len(batches.in_batches) == 6
