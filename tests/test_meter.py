"""Ceilings: reserved before, settled after, over calls, processes and kills; and prices, checked before any call."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hostile_server import HostileServer, Plan
from project_fixture import REPO, URL_ENV, first_of, make_client, make_project, records_of, run_project
from scripted_server import Body, Say, body_hash, completion

from multihop import config
from multihop.environment import CEILINGS, Environment
from multihop.errors import BudgetExceeded, ConfigError, ReplayMiss
from multihop.llm.client import ChatClient, NoAnswer
from multihop.llm.ledger import Cost, Ledger
from multihop.llm.meter import Meter
from multihop.pricing import Price, Prices
from multihop.session import Session
from multihop.store import read_recording

REQUEST: dict[str, Any] = {"messages": [{"role": "user", "content": "x" * 250}], "max_tokens": 100}
USED = {"prompt_tokens": 70, "completion_tokens": 20}
PRICES = Prices({"m": Price(1e6, 5e5, 1e6, batch=0.5)})  # USD 1 a token, so that USD and tokens are the same number


def meter(ledger: Ledger | None = None, **ceilings: float) -> Meter:
    return Meter(PRICES, {f"MULTIHOP_MAX_{name}": value for name, value in ceilings.items()}, ledger)


def most() -> Cost:
    """What REQUEST reserves."""
    return meter(USD=1e9)._most(meter(USD=1e9).reserve("m", REQUEST))


# -- the ceilings


@pytest.mark.parametrize("name", CEILINGS)
def test_each_ceiling_lets_through_what_fits_and_names_itself(name):
    unit = CEILINGS[name][0]
    m = Meter(PRICES, {name: 2 * getattr(most(), unit)})
    held = [m.reserve("m", REQUEST) for _ in range(2)]
    with pytest.raises(BudgetExceeded, match=rf"{name}=.* is reached: 0 .*stored: raise it and run the same command"):
        m.reserve("m", REQUEST)
    m.settle(held[0], "m", None)  # a call that failed frees what it reserved
    m.settle(m.reserve("m", REQUEST), "m", USED)
    assert m.ledger.spent() == m.spent == Cost(1, 70, 20, 90.0)


def test_a_run_has_its_own_ceiling_and_the_pipeline_one_over_all_runs():
    m = meter(RUN_CALLS=2, CALLS=3)
    for run, fits in (("a", 2), ("b", 1)):
        m.run = run
        for _ in range(fits):
            m.settle(m.reserve("m", REQUEST), "m", USED)
        with pytest.raises(BudgetExceeded, match="RUN_CALLS=2.* 2 calls spent by a" if run == "a" else "MAX_CALLS=3"):
            m.reserve("m", REQUEST)
    assert [(run, cost.calls) for run, _, cost in m.ledger.rows()] == [("a", 2), ("b", 1)]


def test_usage_that_is_missing_estimated_or_lost_is_charged_the_reservation():
    full = most().tokens
    for usage, lost, charged in (
        (USED, 0, 90),
        (USED | {"cached_tokens": 40}, 0, 70),
        ({"prompt_tokens": 0, "completion_tokens": 0}, 0, full),
        (USED | {"estimated": True}, 0, full),
        (USED, 2, 90 + 2 * full),
        (None, 1, full),
        (None, 0, 0),
    ):
        for m in (meter(), meter(USD=1e6)):
            m.settle(m.reserve("m", REQUEST), "m", usage, lost)
            assert m.ledger.spent().usd == charged and m.reserved_usd == 0


def test_a_batch_is_reserved_and_charged_at_its_factor():
    m = meter(USD=1e6)
    m.settle(m.reserve("m", REQUEST, factor=0.5), "m", USED)
    assert m.ledger.spent() == Cost(1, 70, 20, 45.0)


def test_no_recorded_call_used_more_than_it_would_have_reserved():
    """Else a ceiling could be passed by ordinary calls."""
    m = Meter(Prices.load(REPO / "prices.yaml"), {})
    rows = [r for r in read_recording(REPO / "data/recordings/demo.jsonl.zst") if r["kind"] == "response"]
    assert len(rows) > 1000
    for row in rows:
        used, reserved = row["response"]["usage"], m._most(m.reserve(row["request"]["model"], row["request"]))
        assert used["prompt_tokens"] <= reserved.prompt and used["completion_tokens"] <= reserved.completion


# -- a ceiling in the middle of things


def test_calls_at_once_never_pass_it_and_what_was_asked_is_stored(tmp_path, serve):
    server = serve(Say("word " * 5), delay=0.05)
    client = make_client(tmp_path, ceilings={"MULTIHOP_MAX_TOKENS": 400}, reader={"max_tokens": 60})

    async def work() -> list[Any]:
        chats = (client.chat([{"role": "user", "content": f"q{n}"}], role="reader") for n in range(60))
        try:
            async with asyncio.TaskGroup() as group:
                for chat in chats:
                    group.create_task(chat)
        finally:
            await client.endpoints.close()

    with pytest.raises(BaseExceptionGroup) as error:
        asyncio.run(work())
    assert isinstance(first_of(error.value), BudgetExceeded)
    spent = client.meter.ledger.spent()
    # The first error cancels the rest, but none that was asked: it waited for all of them, and used what they freed.
    assert spent.calls == len(server.bodies) == sum(server.answered.values()) == len(list(client.store.rows()))
    assert 400 - 80 < spent.tokens <= 400


def test_a_run_stops_and_goes_on_where_it_was(tmp_path, serve, monkeypatch):
    root = make_project(tmp_path / "p")
    monkeypatch.setenv("MULTIHOP_HOME", "home")
    server = serve()
    monkeypatch.setenv("MULTIHOP_MAX_RUN_CALLS", "4")
    with pytest.raises(BudgetExceeded, match=r"MULTIHOP_MAX_RUN_CALLS=4 .* by test: run vanilla.*`multihop spending`"):
        run_project(root, "vanilla")
    assert len(server.bodies) == 4
    monkeypatch.setenv("MULTIHOP_MAX_RUN_CALLS", "6")
    run_project(root, "vanilla")
    assert len(server.bodies) == 6 and set(server.counts.values()) == {1} and len(records_of(root, "vanilla")) == 6


# -- a ceiling and an endpoint that loses answers and counts absurdly

LOSING = ("dropped during", "malformed", "truncated", "duplicated", "wrong JSON", "usage missing", "usage absurd")
CREW = 3


class Watched(Ledger):
    """Keeps its transactions as they come: ("reserve" or "settle", number, cost)."""

    def __init__(self, path: Path):
        super().__init__(path)
        self.events: list[tuple[str, int, Cost]] = []

    def reserve(self, run: str, model: str, cost: Cost, limits: Any) -> int:
        number = super().reserve(run, model, cost, limits)
        self.events.append(("reserve", number, cost))
        return number

    def settle(self, reservation: int, run: str, model: str, cost: Cost) -> None:
        super().settle(reservation, run, model, cost)
        self.events.append(("settle", reservation, cost))


def passed_by(events: list[tuple[str, int, Cost]], unit: str, ceiling: float) -> float:
    """By how much the ceiling was passed (below 0: what was left), added up anew. Checks that no call was let through
    that did not fit; so what passed the ceiling is what the calls then in flight lost beside their answers, or wrote
    beyond their ``max_tokens``."""
    spent, lost, held = 0.0, 0.0, {}
    for what, number, cost in events:
        amount = getattr(cost, unit)
        if what == "reserve":
            held[number], lost = amount, 0.0
            assert spent + sum(held.values()) <= ceiling + 1e-9 and len(held) <= CREW
        else:
            lost += max(0.0, amount - held.pop(number))
            spent += amount
    assert not held and spent - ceiling <= lost + 1e-9
    return spent - ceiling


def wordy(body: Body) -> Say:
    """Now and then far more than ``max_tokens``, as a model does whose reasoning is hidden."""
    return Say("word " * (150 if body["messages"][-1]["content"].endswith("7") else 9))


async def until_it_is_reached(client: ChatClient) -> None:
    gate = asyncio.Semaphore(CREW)

    async def one(number: int) -> None:
        async with gate:
            with contextlib.suppress(NoAnswer):
                await client.chat([{"role": "user", "content": f"question {number}"}], role="reader")

    try:
        async with asyncio.TaskGroup() as group:
            for number in range(80):
                group.create_task(one(number))
    finally:
        await client.endpoints.close()


@pytest.mark.parametrize(("unit", "ceiling"), [("calls", 30), ("tokens", 1500), ("usd", 1.5)])
def test_a_hostile_endpoint_passes_a_ceiling_by_its_calls_in_flight_at_most(
    tmp_path, monkeypatch, quick_retries, unit, ceiling
):
    passed = []
    for seed in range(6):
        ledger = Watched(tmp_path / f"{seed}.sqlite")
        with HostileServer(wordy, plan=Plan(LOSING, seed, 0.3)) as server:
            monkeypatch.setenv(URL_ENV, server.url)
            options = {"ceilings": {f"MULTIHOP_MAX_{unit.upper()}": ceiling}, "reader": {"max_tokens": 40}}
            client = make_client(tmp_path / f"home{seed}", ledger=ledger, **options)
            with pytest.raises(BaseExceptionGroup) as error:
                asyncio.run(until_it_is_reached(client))
        assert isinstance(first_of(error.value), BudgetExceeded)
        passed.append(passed_by(ledger.events, unit, ceiling))
        # What came whole is in the sum, and so is all that was lost on the way.
        bodies = {body_hash(body): body for body in server.bodies}
        whole = [completion(bodies[call], wordy(bodies[call]))["usage"] for call in Counter(server.answered).elements()]
        spent, tokens = ledger.spent(), [(u["prompt_tokens"], u["completion_tokens"]) for u in whole]
        assert len(whole) < server.counts.total() <= spent.calls and ledger.reserved() == Cost()
        assert spent.prompt >= sum(p for p, _ in tokens) and spent.completion >= sum(c for _, c in tokens)
        assert spent.usd >= sum(map(sum, tokens)) / 1000
    assert max(passed) > 0  # else this shows nothing


# -- across processes

SPENDER = """
import sys, time
sys.path.insert(0, {src!r})
from pathlib import Path
from multihop.errors import BudgetExceeded
from multihop.llm.ledger import Ledger
from multihop.llm.meter import Meter
from multihop.pricing import Price, Prices
m = Meter(Prices({{"m": Price(1e6, 5e5, 1e6)}}), {{"MULTIHOP_MAX_USD": {ceiling}}}, Ledger(Path({path!r})))
request = {{"messages": [{{"role": "user", "content": "x" * 250}}], "max_tokens": 100}}
print("ready", flush=True)
sys.stdin.readline()
made = 0
try:
    while True:
        held = m.reserve("m", request)
        print("held", flush=True) if {hold} > 1 else None
        time.sleep({hold})
        m.settle(held, "m", {{"prompt_tokens": {prompt}, "completion_tokens": 100}})
        made += 1
except BudgetExceeded:
    print(made, flush=True)
"""


def spender(path: Path, ceiling: float, hold: float = 0.0) -> subprocess.Popen[str]:
    code = SPENDER.format(src=str(REPO / "src"), path=str(path), ceiling=ceiling, hold=hold, prompt=most().prompt)
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "ready\n"
    return process


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.write("go\n")
    process.stdin.flush()


def test_two_processes_share_one_ceiling_to_the_call(tmp_path):
    path, ceiling = tmp_path / "spending.sqlite", 200 * most().usd
    both = [spender(path, ceiling, hold=0.003) for _ in range(2)]  # each call costs all that it reserved
    for process in both:
        go(process)
    made = [int(process.communicate(timeout=60)[0]) for process in both]
    spent = Ledger(path).spent()
    # Both were at it together, no call was lost or counted twice, and what one had reserved the other did not have.
    assert min(made) > 20 and spent.calls == sum(made) and spent.usd <= ceiling and sum(made) >= 199


def test_what_a_killed_process_had_reserved_counts_as_spent(tmp_path):
    path = tmp_path / "spending.sqlite"
    holder = spender(path, 1e9, hold=60.0)
    go(holder)
    assert holder.stdout and holder.stdout.readline() == "held\n"
    assert Ledger(path).reserved() == most() and Ledger(path).spent() == Cost()  # alive: still reserved
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    ledger = Ledger(path)
    assert ledger.spent() == most() and ledger.reserved() == Cost()
    with pytest.raises(BudgetExceeded, match="MULTIHOP_MAX_USD"):
        meter(ledger, USD=1.5 * most().usd).reserve("m", REQUEST)


def test_another_machines_reservation_stays(tmp_path):
    ledger = Ledger(tmp_path / "spending.sqlite")
    ledger.reserve("r", "m", Cost(1, 2, 3, 4.0), {})
    ledger._db.execute("UPDATE reserved SET host='elsewhere', pid=1, born='x'")
    ledger.sweep()
    assert (ledger.reserved(), ledger.spent()) == (Cost(1, 2, 3, 4.0), Cost())


# -- without a ceiling


def test_a_ceiling_set_later_knows_what_was_spent(tmp_path):
    path = tmp_path / "spending.sqlite"
    m = meter(Ledger(path))
    for _ in range(50):
        m.settle(m.reserve("m", REQUEST), "m", USED)
    m.ledger.close()
    assert Ledger(path).spent() == Cost(50, 3500, 1000, 4500.0)
    with pytest.raises(BudgetExceeded, match="50 calls spent"):
        meter(Ledger(path), CALLS=50).reserve("m", REQUEST)


def test_a_replay_writes_no_ledger(tmp_path):
    Session(config.load(make_project(tmp_path / "p") / "params.yaml"), Environment.read({}), tmp_path / "p")
    Ledger(tmp_path / "none.sqlite").close()
    assert not list(tmp_path.rglob("spending.sqlite")) and not (tmp_path / "none.sqlite").exists()


def test_reset_forgets_what_was_spent(tmp_path):
    ledger = Ledger(tmp_path / "spending.sqlite")
    ledger.note("r", "m", Cost(1, 2, 3, 4.0))
    ledger.reset()
    assert ledger.spent() == Cost() and ledger.rows() == []


# -- prices


def test_a_run_whose_reader_has_no_price_stops_before_any_call(tmp_path, serve, monkeypatch):
    changes = {"settings": {"small": {"reader": "mine", "embedder": "lsa"}}, "judge": {"reader": "mine"}}
    readers = {"mine": {"endpoint": "scripted", "model": "org/mine:7b"}}
    root = make_project(tmp_path / "p", readers=readers, **changes)
    monkeypatch.setenv("MULTIHOP_HOME", "home")
    server = serve()
    with pytest.raises(ConfigError, match=r'readers\.mine: .*prices\.yaml: no price for model .*`  "org/mine:7b": \{'):
        run_project(root, "direct")
    monkeypatch.setenv("MULTIHOP_LIVE", "never")
    with pytest.raises(ReplayMiss, match="not in the recording"):  # a replay needs no price
        run_project(root, "direct")
    assert server.bodies == []


def test_prices_refuse_what_they_do_not_know(tmp_path):
    path = tmp_path / "prices.yaml"
    for field, said in (("batch: 2", "from 0 to 1"), ("bacth: 1", "known are input, cached, output and batch")):
        path.write_text(f"models:\n  m: {{input: 1, cached: 1, output: 1, {field}}}\n")
        with pytest.raises(ConfigError, match=said):
            Prices.load(path)


# -- the environment


@pytest.mark.parametrize("name", CEILINGS)
@pytest.mark.parametrize("value", ["0", "-1", "much", "nan"])
def test_a_ceiling_is_a_number_above_0(name, value):
    with pytest.raises(ConfigError, match=f"{name}='{value}': expected a number"):
        Environment.read({name: value})


# -- the command line


def invoked(*arguments: str) -> Any:
    from typer.testing import CliRunner

    from multihop.cli.app import app

    return CliRunner().invoke(app, arguments)


def test_spending_is_shown_and_forgotten_only_with_yes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MULTIHOP_HOME", "home")
    monkeypatch.setenv("MULTIHOP_MAX_USD", "5")
    assert "nothing was spent yet" in invoked("spending").output
    ledger = Ledger(tmp_path / "home/spending.sqlite")
    ledger.note("demo: run a", "gpt", Cost(3, 200, 10, 1.5))
    ledger.close()
    shown = invoked("spending").output
    assert re.search(r"demo: run a +3 +200 +10 +1\.5000  gpt\ntotal +3 +200 +10 +1\.5000\n", shown)
    assert "ceilings: MULTIHOP_MAX_USD=5" in shown
    assert invoked("spending", "--reset").exit_code != 0 and Ledger(ledger.path).spent().calls == 3
    assert invoked("spending", "--reset", "--yes").exit_code == 0 and Ledger(ledger.path).spent() == Cost()


def test_validate_checks_every_price(tmp_path, monkeypatch):
    import multihop.cli  # the commands

    monkeypatch.chdir(make_project(tmp_path / "p"))
    assert multihop.cli and invoked("validate").exit_code == 0
    readers = config.load().model_dump()["readers"] | {"mine": {"endpoint": "scripted", "model": "nobody/knows"}}
    monkeypatch.chdir(make_project(tmp_path / "q", judge={"reader": "mine"}, readers=readers))
    assert "readers.mine" in str(invoked("validate").exception)
