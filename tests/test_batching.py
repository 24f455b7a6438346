"""Batch mode: the same records as one by one; paid once whatever is killed; ceilings; endpoints without batches."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from batch_server import BatchServer
from project_fixture import URL_ENV, make_client, make_project, records_file, run_project
from scripted_server import ScriptedServer, body_hash, kind_of

from multihop import config, jsonl, stages
from multihop.errors import BudgetExceeded, ConfigError, EndpointError
from multihop.llm import batching
from multihop.llm.ledger import Cost, Ledger
from multihop.llm.meter import Meter
from multihop.pricing import Price, Prices
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


def money(root: Path) -> tuple[Cost, Cost]:
    """(spent, reserved) as the next command finds them."""
    ledger = Ledger(root / "home/spending.sqlite")
    try:
        return ledger.spent(), ledger.reserved()
    finally:
        ledger.close()


def paid(root: Path) -> int:
    """The tokens of all answers that are stored."""
    used = [row["response"]["usage"] for row in entries(root)]
    return sum(usage["prompt_tokens"] + usage["completion_tokens"] for usage in used)


def of_salt_choir(body: dict[str, Any]) -> bool:
    return "Salt Choir" in body["messages"][-1]["content"]


def rows(root: Path) -> list[dict[str, Any]]:
    """All that is stored."""

    async def work() -> list[dict[str, Any]]:
        async with opened(config.load(root / "params.yaml"), root) as session:
            return list(session.store.rows())

    return asyncio.run(work())


def entries(root: Path) -> list[dict[str, Any]]:
    """The responses of the store."""
    return [row for row in rows(root) if row["kind"] == "response"]


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
    batches.skip = of_salt_choir
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


def started(root: Path, run: str) -> subprocess.Popen[str]:
    """The run in a process of its own, which prints "sends" before it looks for its batch or makes it."""
    paths = [str(Path(__file__).parent), str(Path(batching.__file__).parents[2])]
    code = f"import sys; sys.path[:0] = {paths}\nfrom pathlib import Path; from project_fixture import run_project\n"
    code += "from multihop.llm import batching; batching.POLL_S = (0.01, 0.02)\n"
    code += "sent = batching._Batches._sent\n"
    code += "batching._Batches._sent = lambda *given: print('sends', flush=True) or sent(*given)\n"
    code += f"run_project(Path({str(root)!r}), {run!r})"
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("place", ["_ended", "_outputs", "_taken_in"])
@pytest.mark.parametrize("ceiling", [None, "1000000"])
def test_a_killed_command_finds_its_batch_again(project, batches, monkeypatch, place, ceiling):
    if ceiling:
        monkeypatch.setenv("MULTIHOP_MAX_TOKENS", ceiling)

    def killed(*args: Any, **options: Any) -> Any:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(batching._Batches, place, killed)
        with pytest.raises(Killed):
            run_project(project, "vanilla")
    run_project(project, "vanilla")
    assert len(batches.batches) == 1 and len(batches.in_batches) == 6 and batches.bodies == []
    spent, reserved = money(project)
    assert (spent.calls, spent.tokens, reserved) == (6, paid(project), Cost())


@pytest.mark.parametrize("ceiling", [None, "1000000"])
def test_killed_with_signal_9_while_its_batch_is_under_way(tmp_path, project, batches, monkeypatch, ceiling):
    """Until the same command finds the batch again, all that it can cost is reserved; then it cost what it cost."""
    if ceiling:
        monkeypatch.setenv("MULTIHOP_MAX_TOKENS", ceiling)
    batches.polls = 10**9
    process = started(project, "vanilla")
    while not (batches.batches and next(iter(batches.batches.values()))["left"] < 10**9):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.kill()
    process.communicate()
    spent, reserved = money(project)
    assert spent == Cost() and reserved.calls == 6
    next(iter(batches.batches.values()))["left"] = 0
    run_project(project, "vanilla")
    assert len(batches.batches) == 1 and len(batches.in_batches) == 6 and batches.bodies == []
    spent, after = money(project)
    assert (spent.calls, spent.tokens, after) == (6, paid(project), Cost()) and spent.tokens < reserved.tokens


@pytest.mark.parametrize("broken", ["poll", "content"])
@pytest.mark.parametrize("ceiling", [None, "1000000"])
def test_where_a_batch_cannot_be_looked_at_its_money_stays_reserved(project, batches, monkeypatch, broken, ceiling):
    if ceiling:
        monkeypatch.setenv("MULTIHOP_MAX_TOKENS", ceiling)
    batches.broken = broken
    for _ in range(2):
        with pytest.raises(EndpointError, match=r"batches can't be used now .*run the same command again"):
            run_project(project, "vanilla")
        spent, reserved = money(project)
        assert spent == Cost() and reserved.calls == 6
    batches.broken = ""
    run_project(project, "vanilla")
    assert len(batches.batches) == 1 and len(batches.in_batches) == 6 and batches.bodies == []
    spent, reserved = money(project)
    assert (spent.calls, spent.tokens, reserved) == (6, paid(project), Cost())


def test_money_of_a_batch_under_way_is_not_there_for_others(project, batches, monkeypatch):
    monkeypatch.setenv("MULTIHOP_MAX_CALLS", "11")
    batches.broken = "poll"
    with pytest.raises(EndpointError):
        run_project(project, "vanilla")
    with pytest.raises(BudgetExceeded, match=r"batch of 6 calls does not fit: .*=11 is reached: 0 .*, 6 reserved"):
        run_project(project, "direct")


@pytest.mark.parametrize(("what", "again"), [("upload", 0), ("create", 6)])
def test_a_batch_that_cannot_be_made(project, batches, what, again):
    """Where an error hides whether it was made, its money stays reserved; the next command sees that it was not."""
    batches.broken = what
    with pytest.raises(EndpointError, match="can't be used now"):
        run_project(project, "vanilla")
    assert money(project)[1].calls == again
    batches.broken, batches.refuses = "", what
    with pytest.raises(EndpointError, match="can't be used now"):
        run_project(project, "vanilla")
    assert money(project) == (Cost(), Cost())
    batches.refuses = ""
    run_project(project, "vanilla")
    assert len(batches.batches) == 1 and money(project)[0].calls == 6 and money(project)[1] == Cost()


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
    assert len(entries(project)) == 2
    run_project(project, "vanilla")
    assert len(batches.batches) == 1 and len(batches.in_batches) == 6 and batches.bodies == []
    spent, reserved = money(project)
    assert (spent.calls, spent.tokens, reserved) == (6, paid(project), Cost())


def test_a_batch_that_another_cell_finds_is_charged_whole_and_kept_for_the_first(project, batches):
    """Runs share requests: a second one may find the batch of the first, which was killed, in need of a part of it."""
    batches.broken = "poll"
    with pytest.raises(EndpointError):
        run_project(project, "vanilla")
    batches.broken = ""
    questions = project / "data/prepared/musique/questions.jsonl"
    whole = questions.read_text()
    questions.write_text("".join(whole.splitlines(keepends=True)[:2]))
    run_project(project, "vanilla")
    spent, reserved = money(project)
    assert (spent.calls, reserved, len(entries(project))) == (6, Cost(), 2) and spent.tokens > paid(project)
    questions.write_text(whole)
    run_project(project, "vanilla")
    assert len(batches.batches) == 1 and len(batches.in_batches) == 6 and batches.bodies == []
    assert money(project)[0] == spent and spent.tokens == paid(project)


def test_two_commands_at_once_make_one_batch(project, batches):
    """Each in a process of its own, on one home; the later one waits while the first makes the batch."""
    batches.may_create.clear()
    both = [started(project, "vanilla")]
    assert batches.creating.wait(timeout=60)
    both.append(started(project, "vanilla"))
    assert both[1].stdout and both[1].stdout.readline() == "sends\n"
    time.sleep(0.3)  # it looks for the batch now, or would if it might
    assert batches.lists == 1
    batches.may_create.set()
    said = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert len(batches.batches) == 1 and len(batches.in_batches) == 6 and batches.bodies == []
    spent, reserved = money(project)
    assert (spent.calls, spent.tokens, reserved) == (6, paid(project), Cost())


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


@pytest.mark.parametrize("found", [False, True])
@pytest.mark.parametrize("ends_as", ["expired", "cancelled", "failed"])
def test_a_batch_that_did_not_complete_is_taken_in_and_an_error(project, batches, monkeypatch, ends_as, found):
    """Whether the command that made it sees its end, or a later one does: the same error, the same money."""
    batches.ends_as, batches.skip = ends_as, of_salt_choir
    if found:
        batches.broken = "poll"
        with pytest.raises(EndpointError, match="can't be used now"):
            run_project(project, "direct")
        batches.broken = ""
        [name] = batches.batches
        while batches.look(name)["status"] != ends_as:
            pass
    with pytest.raises(EndpointError, match=rf"batch_\d+ ended as {ends_as}; what it answered is stored: run the same"):
        run_project(project, "direct")
    answered = 0 if ends_as == "failed" else 4
    assert len(batches.batches) == 1 and len(entries(project)) == len(batches.in_batches) == answered
    spent, reserved = money(project)
    assert (spent.calls, spent.tokens, reserved) == (answered, paid(project), Cost())
    batches.ends_as, batches.skip = "completed", lambda body: False
    run_project(project, "direct")
    assert len(batches.batches) == 2 and len(batches.in_batches) == 6 and batches.bodies == []
    spent, reserved = money(project)
    assert (spent.calls, spent.tokens, reserved) == (6, paid(project), Cost())


def test_a_batch_that_is_being_cancelled_is_waited_for(project, batches, monkeypatch):
    look, seen = batches.look, []

    def cancelling(name: str) -> dict[str, Any]:
        seen.append(name)
        return look(name) | ({"status": "cancelling", "output_file_id": None} if len(seen) < 4 else {})

    batches.ends_as = "cancelled"
    monkeypatch.setattr(batches, "look", cancelling)
    with pytest.raises(EndpointError, match="ended as cancelled"):
        run_project(project, "direct")
    assert len(seen) == 4 and len(entries(project)) == 6 and money(project)[1] == Cost()


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


def test_20000_calls_are_reserved_and_settled_in_a_moment(tmp_path):
    """Once for all of them: call by call it was quadratic, and took 20 s."""
    ledger = Ledger(tmp_path / "spending.sqlite")
    meter = Meter(Prices({"m": Price(1.0, 0.5, 1.0)}), {"MULTIHOP_MAX_CALLS": 20_000}, ledger)
    requests = {
        f"{n:064x}": {"messages": [{"role": "user", "content": f"{n} {'word ' * 200}"}], "max_tokens": 100}
        for n in range(20_000)
    }
    usage = {"prompt_tokens": 200, "completion_tokens": 10}
    started = time.process_time()
    ledger.mark(requests, "mark")
    meter.reserve_batch("mark", "m", requests.values(), 0.5)
    assert ledger.reserved().calls == 20_000
    meter.settle_batch("mark", "m", ((request, usage) for request in requests.values()), 0.5)
    ledger.unmark(requests, "mark")
    assert time.process_time() - started < 3
    assert (ledger.spent(), ledger.reserved()) == (Cost(20_000, 4_000_000, 200_000, pytest.approx(2.1)), Cost())
    with pytest.raises(BudgetExceeded, match="20000 calls spent"):
        meter.reserve("m", next(iter(requests.values())))


def test_a_ceiling_that_a_batch_fits_exactly_lets_it_through_and_not_one_less(tmp_path):
    requests = [{"messages": [{"role": "user", "content": "x" * n}], "max_tokens": 10} for n in range(50)]
    prices = Prices({"m": Price(1.0, 0.5, 1.0)})
    for unit in ("CALLS", "TOKENS"):
        one_by_one = Meter(prices, {"MULTIHOP_MAX_CALLS": 1e9})
        for request in requests:
            one_by_one.reserve("m", request)
        whole = getattr(one_by_one.ledger.reserved(), unit.lower())
        Meter(prices, {f"MULTIHOP_MAX_{unit}": whole}).reserve_batch("mark", "m", requests, 1.0)
        with pytest.raises(BudgetExceeded, match="for the next 50 calls, one batch"):
            Meter(prices, {f"MULTIHOP_MAX_{unit}": whole - 1}).reserve_batch("mark", "m", requests, 1.0)


def test_no_mark_of_a_batch_is_in_the_store(project, batches):
    run_project(project, "vanilla")
    assert {row["kind"] for row in rows(project)} == {"response", "vector"}


def test_a_ledger_in_memory_takes_no_batches(tmp_path, batches):
    """A worker of a cluster: what it forgets would be paid twice."""
    client = make_client(tmp_path, endpoint={"batch": True})
    assert not batching.offered(client)
    client.meter.ledger = Ledger(tmp_path / "spending.sqlite")
    assert batching.offered(client)


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
