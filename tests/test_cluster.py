"""A worker alone, the budget of all workers, and the driver with fakes in place of Ray and of workers."""

from __future__ import annotations

import inspect
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from multihop import config, guard, jsonl
from multihop.environment import Environment
from multihop.errors import MultihopError
from multihop.llm.ledger import FILE, Cost, Ledger
from multihop.scaling import exchange, warming
from multihop.scaling.budget import PARTS, Budget
from multihop.scaling.cluster import TRIES, Pool, _reachable
from multihop.scaling.shards import Shard
from multihop.scaling.worker import Done, Worker
from multihop.session import Session


@pytest.fixture
def driver(three, at_home, monkeypatch):
    """A driver's session in the small project."""
    opened = []

    def make(**environ: str) -> Session:
        root = three(f"project{len(opened)}")
        monkeypatch.chdir(root)
        at_home("driver", **environ)
        opened.append(Session(config.load(), Environment.read(), root))
        return opened[-1]

    yield make
    for session in opened:
        session.meter.ledger.close()
        session.store.close()


def chunks_of(root: Path, run: str, size: int = 1) -> list[warming.Chunk]:
    session = Session(config.load(root / "params.yaml"), Environment.read(), root)
    try:
        return warming.chunks(session, [run], Shard(), size)
    finally:
        session.store.close()


# -- a worker


def test_a_worker_gives_back_what_is_new_and_asks_nothing_that_it_was_given(three, serve, at_home, tmp_path):
    server = serve()
    root = three("project")
    at_home("driver")
    todo = chunks_of(root, "executionrag")
    one = Worker(str(root), {}, str(tmp_path / "one"))
    first, second = one.answer(todo[0], {}), one.answer(todo[1], {})
    rows = [list(exchange.unpack(d.entries)) for d in (first, second)]
    assert all(rows) and first.live_calls == sum(c.calls for _, _, c in first.spent) > 3
    assert {run for run, _, _ in first.spent} == {"test: run executionrag", "test: score"}
    asked = server.counts.total()

    two = Worker(str(root), {}, str(tmp_path / "two"))
    two.take(first.entries)
    again = two.answer(todo[0], {})
    assert (again.live_calls, again.entries, again.counts) == (0, b"", first.counts)
    assert server.counts.total() == asked
    one.close(), two.close()


def test_a_worker_stops_at_its_portion_and_what_it_paid_comes_back(three, serve, at_home, tmp_path):
    server = serve()
    root = three("project")
    at_home("driver")
    todo = chunks_of(root, "executionrag")
    worker = Worker(str(root), {}, str(tmp_path / "one"))
    done = worker.answer(todo[0], {"MULTIHOP_MAX_CALLS": 3})
    assert "MULTIHOP_MAX_CALLS=3 is reached" in done.stopped and "\n" not in done.stopped and not done.fatal
    responses = [r for r in exchange.unpack(done.entries) if r["kind"] == "response"]
    assert len(responses) == done.live_calls == server.counts.total() == 3
    rest = worker.answer(todo[0], {})
    assert not rest.stopped and rest.counts == {"ok": 1}
    assert max(server.counts.values()) == 1, "the three were not asked again"
    worker.close()


def test_a_worker_has_no_coroutine_method():
    """With one, Ray would run its methods in an event loop, in which no other can be run."""
    assert not [name for name, method in vars(Worker).items() if inspect.iscoroutinefunction(method)]


def entries_of(done: Done) -> list[str]:
    return sorted(jsonl.dumps(row) for row in exchange.unpack(done.entries))


def test_what_a_failed_chunk_answered_comes_back_though_others_entries_were_taken_meanwhile(three, serve, tmp_path):
    server = serve()
    root = three("project")
    first, second, _ = chunks_of(root, "executionrag")
    one, two = (Worker(str(root), {}, str(tmp_path / name)) for name in ("one", "two"))
    expected = one.answer(first, {})
    foreign = one.answer(second, {})

    ask, failing = two.warmer.ask, [True]

    async def failed_at_first(chunk):
        counts = await ask(chunk)
        if failing.pop() if failing else False:
            raise OSError("the network is gone")
        return counts

    two.warmer.ask = failed_at_first
    with pytest.raises(RuntimeError, match=r"^OSError: the network is gone$"):
        two.answer(first, {})
    asked = server.counts.total()
    two.take(foreign.entries)
    done = two.answer(first, {})
    assert entries_of(done) == entries_of(expected) and done.counts == {"ok": 1}
    assert done.spent == expected.spent and server.counts.total() == asked
    assert entries_of(two.answer(second, {})) == [], "these the driver had"
    one.close(), two.close()


def test_what_is_on_the_wire_at_a_fatal_error_comes_back_with_its_cost(three, serve, at_home, tmp_path):
    from scripted_server import QUOTA, in_turn, little_model

    def slow(body):
        time.sleep(0.4)
        return little_model(body)

    serve(in_turn([slow], then=QUOTA))
    root = three("project")
    at_home("one", MULTIHOP_WORKERS="3")
    [chunk] = chunks_of(root, "vanilla", 3)
    worker = Worker(str(root), {}, str(tmp_path / "one"))
    done = worker.answer(chunk, {})
    assert "quota is used up" in done.fatal and not done.stopped
    responses = [row for row in exchange.unpack(done.entries) if row["kind"] == "response"]
    assert len(responses) == sum(cost.calls for _, _, cost in done.spent) == 1
    worker.close()


def test_a_judge_that_does_not_answer_is_told_apart_from_fatal_errors(three, serve, at_home, tmp_path, quick_retries):
    from scripted_server import Fail, for_kind

    serve(for_kind(judge=Fail(503)))
    root = three("project")
    at_home("one")
    worker = Worker(str(root), {}, str(tmp_path / "one"))
    done = worker.answer(chunks_of(root, "vanilla")[0], {})
    assert "got no answer" in done.unanswered and not done.fatal and not done.stopped
    assert done.entries and done.spent, "what was answered before it"
    worker.close()


@pytest.mark.parametrize("variable", ["MULTIHOP_ACCESS", "OTHER_KEY"])  # the endpoint's own; one that is named so
def test_what_a_worker_prints_and_raises_holds_no_key(three, monkeypatch, tmp_path, capsys, variable):
    key = f"sk-marked-{variable.lower()}"
    root = three("project")
    text = (root / "params.yaml").read_text(encoding="utf-8")
    text = text.replace("scripted:\n", "scripted:\n    key_env: MULTIHOP_ACCESS\n", 1)
    (root / "params.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setenv(variable, key)
    worker = Worker(str(root), {}, str(tmp_path / "one"))

    async def failing(chunk):
        print(f"sent {key}")
        raise OSError(f"refused {key}\nwhatever")

    worker.warmer.ask = failing
    with pytest.raises(RuntimeError) as raised:
        worker.answer(warming.Chunk("vanilla", "musique", "small", ("q1",)), {})
    assert str(raised.value) == f"OSError: refused {guard.HIDDEN} whatever"
    assert raised.value.__cause__ is raised.value.__context__ is None, "Ray would show these"
    said = capsys.readouterr()
    assert said.out == f"sent {guard.HIDDEN}\n" and f"OSError: refused {guard.HIDDEN}" in said.err
    assert key not in said.err
    worker.close()


# -- the budget

A, B, C = (warming.Chunk("direct", "musique", "small", (q,)) for q in "abc")
CALLS, USD = "MULTIHOP_MAX_CALLS", "MULTIHOP_MAX_RUN_USD"


def seen_by_others(session: Session) -> Ledger:
    """The ledger as another process of this MULTIHOP_HOME sees it."""
    return Ledger(session.env.home / FILE)


def test_portions_are_reserved_and_what_was_spent_takes_their_place(driver):
    session = driver(MULTIHOP_MAX_CALLS="800", MULTIHOP_MAX_RUN_USD="4")
    budget, other = Budget(session), seen_by_others(session)
    assert budget.hold(A, 2) == {CALLS: 800 / PARTS / 2, USD: 4 / PARTS / 2}
    assert budget.hold(B, 2)[CALLS] == 88 < 700 / PARTS / 2 + 1
    assert other.reserved().calls == 188 and other.reserved("test: score").usd > 0.5
    budget.settle(A, [("test: run direct", "scripted", Cost(10, 1, 1, 0.5)), ("test: score", "m", Cost(2))])
    assert other.reserved().calls == 88 and other.spent() == Cost(12, 1, 1, 0.5)
    assert other.rows() == [("test: run direct", "scripted", Cost(10, 1, 1, 0.5)), ("test: score", "m", Cost(2))]


def test_what_other_processes_reserved_is_not_held_again(driver):
    session = driver(MULTIHOP_MAX_CALLS="10")
    limits, other = session.meter.limits, seen_by_others(session)
    number = other.reserve("another command", "m", Cost(10), limits)
    budget = Budget(session)
    assert budget.hold(A, 1) == {CALLS: 0}
    other.settle(number, "another command", "m", Cost(2))
    assert budget.hold(B, 1) == {CALLS: 2}


def test_a_lost_chunks_portion_is_spent_and_a_failed_ones_is_kept(driver):
    session = driver(MULTIHOP_MAX_CALLS="80", MULTIHOP_MAX_RUN_USD="4")
    budget = Budget(session)
    portion = budget.hold(A, 1)
    assert budget.hold(A, 1) == portion and session.meter.ledger.reserved().calls == 20, "held once"
    budget.lost(A), budget.lost(A)
    assert session.meter.ledger.spent() == Cost(20, usd=2.0) and session.meter.ledger.reserved() == Cost()
    assert budget.hold(A, 1)[CALLS] == 15


def test_the_portions_of_a_driver_that_was_killed_are_spent(driver):
    session = driver(MULTIHOP_MAX_CALLS="80")
    session.meter.ledger._me = (session.meter.ledger._me[0], 2**22 + 1, "long ago")
    Budget(session).hold(A, 1)
    assert seen_by_others(session).spent().calls == 20 and session.meter.ledger.reserved() == Cost()


def test_a_chunk_that_stopped_gets_more_as_long_as_there_is_more(driver):
    session = driver(MULTIHOP_MAX_CALLS="40")
    budget = Budget(session)
    assert budget.hold(A, 2) == {CALLS: 5} and budget.hold(B, 2) == {CALLS: 5}
    budget.stopped(A, [("test: run direct", "m", Cost(5))])
    assert budget.hold(A, 2) == {CALLS: 10}
    budget.stopped(A, [("test: run direct", "m", Cost(9))])
    assert budget.hold(A, 2) == {CALLS: 20}
    budget.stopped(A, [("test: run direct", "m", Cost(20))])
    assert budget.hold(A, 2) == {CALLS: 1}, "all that neither is spent nor B's"
    budget.stopped(A, [])
    assert budget.hold(A, 2) is None and budget.hold(C, 2) == {CALLS: 1}, "for C it may do"
    budget.settle(C, [])
    budget.settle(B, [("test: run direct", "m", Cost(2))])
    assert budget.hold(A, 2) == {CALLS: 2}
    budget.stopped(A, [])
    assert budget.hold(A, 2) == {CALLS: 4}


@pytest.mark.parametrize(
    "limits", [{CALLS: "7", "MULTIHOP_MAX_RUN_CALLS": "5"}, {"MULTIHOP_MAX_USD": "0.3", USD: "0.1"}]
)
def test_what_all_portions_allow_together_is_below_every_ceiling(driver, limits):
    session = driver(**limits)
    budget, ledger = Budget(session), session.meter.ledger
    given = [budget.hold(warming.Chunk("direct", "musique", "small", (str(n),)), 1) for n in range(20)]
    for name, (unit, of_run, most) in session.meter.limits.items():
        assert 0 < sum(g[name] for g in given) <= most
        for run in ("test: run direct", "test: score") if of_run else (None,):
            assert sum(g[name] for g in given) <= getattr(ledger.reserved(run), unit) + 20 * 1e-12 <= most + 1e-9


# -- the driver


class Dead(Exception):
    """A worker that is gone."""


class Failed(Exception):
    """What a worker's method raised."""


@dataclass(eq=False)
class Ref:
    actor: Actor
    name: str
    given: tuple[Any, ...]


@dataclass(eq=False)
class Actor:
    """``answers`` may return or raise what a worker's ``answer`` does; ``takes`` likewise."""

    ray: Fakes
    number: int
    taken: list[dict[str, Any]] = field(default_factory=list)
    queue: list[Ref] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return Method(self, name)


@dataclass
class Method:
    actor: Actor
    name: str

    def remote(self, *given: Any) -> Ref:
        ref = Ref(self.actor, self.name, given)
        self.actor.queue.append(ref)
        self.actor.ray.asked.append((self.actor.number, self.name))
        return ref


@dataclass
class Fakes:
    """What the driver needs of Ray. Calls of an actor end in their order; which actor's ends next, ``wait`` decides:
    the one with the lowest number that is not ``slow``."""

    answers: Callable[[Actor, warming.Chunk, dict[str, float]], Done]
    takes: Callable[[Actor], None] = lambda actor: None
    slow: set[int] = field(default_factory=set)
    actors: list[Actor] = field(default_factory=list)
    asked: list[tuple[int, str]] = field(default_factory=list)

    class exceptions:
        RayActorError = ObjectLostError = NodeDiedError = Dead
        RayTaskError = Failed
        GetTimeoutError = TimeoutError

    def remote(self, **options: Any) -> Any:
        class Made:
            def remote(made, *given: Any) -> Actor:
                assert len(self.actors) < 9, "the driver starts workers without end"
                self.actors.append(Actor(self, len(self.actors)))
                return self.actors[-1]

        return lambda worker: Made()

    def put(self, value: Any) -> Any:
        return value

    def get(self, ref: Any, timeout: float | None = None) -> Any:
        if isinstance(ref, list):
            return [self.get(each) for each in ref]
        assert ref is ref.actor.queue[0], "the driver waits for a worker that is busy"
        ref.actor.queue.pop(0)
        if ref.name == "take":
            self.takes(ref.actor)
            ref.actor.taken += exchange.unpack(*ref.given)
        return self.answers(ref.actor, *ref.given) if ref.name == "answer" else None

    def wait(self, refs: list[Ref], num_returns: int = 1, timeout: float | None = None) -> tuple[list[Ref], list[Ref]]:
        ended = min(refs, key=lambda ref: (ref.actor.number in self.slow, ref.actor.number))
        return [ended], [ref for ref in refs if ref is not ended]

    def kill(self, actor: Actor) -> None:
        pass


def pool_of(session: Session, ray: Fakes, parts: list[str], workers: int, **options: Any) -> Pool:
    """``parts``: for each shard its chunks, a letter each."""
    made = [deque(warming.Chunk("direct", "musique", "small", (q,)) for q in part) for part in parts]
    pool = Pool(ray, session, made, **options)
    pool.start(workers)
    return pool


def fine(actor: Actor, chunk: warming.Chunk, ceilings: dict[str, float]) -> Done:
    return Done(counts=Counter(ok=1))


def fill(session: Session, start: int, count: int) -> None:
    for n in range(start, start + count):
        session.store.put_values("space", {f"entry {n}": n})


@pytest.fixture
def small_packs(monkeypatch):
    monkeypatch.setattr(exchange, "packs", partial(exchange.packs, size=2))


def test_where_a_worker_dies_while_all_are_handed_the_store_the_others_get_everything(driver, small_packs):
    session, takes = driver(), Counter()
    fill(session, 0, 7)

    def dies_at_the_second_pack(actor):
        takes[actor.number] += 1
        if actor.number == 1 and takes[1] == 2:
            raise Dead("gone")

    pool = pool_of(session, Fakes(fine, dies_at_the_second_pack), ["a", "b", "c"], 3)
    assert [len(actor.taken) for actor in pool.ray.actors] == [7, 2, 7] and takes == {0: 4, 1: 2, 2: 4}
    assert [m.has == session.store.marks() for m in pool.members] == [True, False, True]


def test_a_worker_that_cannot_store_what_is_known_ends_the_command_in_one_line(driver):
    def full(actor):
        raise Failed("Traceback\nDataError: disk is full")

    session = driver()
    fill(session, 0, 1)
    with pytest.raises(MultihopError, match=r"^a worker can't store what is known: DataError: disk is full; is there"):
        pool_of(session, Fakes(fine, full), ["a"], 1)


def after_which_worker_1_dies(session):
    """Answers: worker 1 fills the driver's store and is gone, the others are fine."""

    def answers(actor, chunk, ceilings):
        if actor.number == 1:
            fill(session, 0, 3)
            raise Dead("gone")
        return fine(actor, chunk, ceilings)

    return answers


def test_an_heir_is_handed_the_store_when_it_is_idle_and_nobody_waits_for_it(driver, small_packs):
    """Worker 1 dies; worker 0 inherits while it is busy, for long; worker 2 goes on meanwhile."""
    session = driver()

    ray = Fakes(after_which_worker_1_dies(session), slow={0})
    pool = pool_of(session, ray, ["a", "bc", "defg"], 3)
    pool.run()
    assert pool.report.counts == {"ok": 7} and [c.ids for c in pool.report.lost] == [("b",)]
    assert ray.asked[6:] == [(2, "answer")] * 3 + [(0, "take"), (0, "take"), (0, "answer"), (0, "answer")]
    assert len(ray.actors[0].taken) == 3 and not ray.actors[2].taken
    assert pool.members[0].has == session.store.marks()


def test_an_heir_that_dies_while_it_is_handed_the_store_has_an_heir(driver, small_packs):
    session = driver()

    def takes(actor):
        if actor.number == 0:
            raise Dead("gone, too")

    pool = pool_of(session, Fakes(after_which_worker_1_dies(session), takes), ["a", "b"], 2)
    pool.run()
    assert pool.report.counts == {"ok": 2} and pool.report.workers == 3 and len(pool.report.lost) == 1


def test_after_a_fatal_error_no_chunk_is_given_and_no_worker_started(driver):
    def answers(actor, chunk, ceilings):
        if actor.number == 1:
            raise Dead("gone")
        return Done(fatal="the account's quota is used up")

    ray = Fakes(answers, slow={1})
    pool = pool_of(driver(), ray, ["ab", "cd"], 2)
    with pytest.raises(MultihopError, match=r"^the account's quota is used up$"):
        pool.run()
    assert ray.asked[2:] == [(0, "answer"), (1, "answer")] and len(pool.report.lost) == 1


def test_where_all_died_and_one_was_tried_too_often_no_worker_is_started(driver):
    def answers(actor, chunk, ceilings):
        raise Dead("gone")

    ray = Fakes(answers)
    with pytest.raises(MultihopError, match=f"1 questions failed {TRIES} times, at last: gone"):
        pool_of(driver(), ray, ["a"], 1).run()
    assert len(ray.actors) == TRIES


def test_a_chunk_without_an_answer_is_begun_again_after_pauses_that_grow(driver):
    times: list[float] = []

    def answers(actor, chunk, ceilings):
        times.append(time.monotonic())
        return Done(unanswered="no answer in 7 attempts") if len(times) < TRIES else fine(actor, chunk, ceilings)

    pool = pool_of(driver(), Fakes(answers), ["a"], 1, pauses=(0.02, 0.06, 0.12))
    pool.run()
    assert pool.report.counts == {"ok": 1}
    for pause, before, after in zip((0.02, 0.06, 0.12), times, times[1:], strict=False):
        assert pause <= after - before


def test_an_outage_that_does_not_end_ends_the_command(driver):
    ray = Fakes(lambda *given: Done(unanswered="no answer in 7 attempts"))
    pool = pool_of(driver(), ray, ["a", "b"], 2, pauses=(0.001,))
    with pytest.raises(MultihopError, match=f"1 questions failed {TRIES} times, at last: no answer in 7 attempts"):
        pool.run()
    assert len(ray.asked) <= 2 + 2 * TRIES


def test_the_log_of_the_driver_holds_no_key(driver):
    guard.keep_secret("sk-marked-driver")

    def answers(actor, chunk, ceilings):
        raise Failed("Traceback\nOSError: refused sk-marked-driver")

    session = driver()
    with pytest.raises(MultihopError) as raised:
        pool_of(session, Fakes(answers), ["a"], 1).run()
    [log] = (session.env.home / "logs").iterdir()
    text = log.read_text(encoding="utf-8")
    assert str(raised.value).endswith(f"OSError: refused {guard.HIDDEN}")
    assert f"OSError: refused {guard.HIDDEN}" in text and "sk-marked" not in text


@pytest.mark.parametrize("ceiling", [24, 23, 3, 1])
def test_a_ceiling_that_is_enough_lets_all_be_answered_and_any_other_is_reached_and_not_passed(driver, ceiling):
    """Six chunks of four calls each, over two workers."""
    missing = dict.fromkeys("abcdef", 4)

    def answers(actor, chunk, ceilings):
        [name] = chunk.ids
        calls = min(missing[name], int(ceilings[CALLS]))
        missing[name] -= calls
        spent = [("test: run direct", "m", Cost(calls))] if calls else []
        if missing[name]:
            return Done(spent=spent, live_calls=calls, stopped=f"{CALLS}={ceilings[CALLS]} is reached")
        return Done(spent=spent, live_calls=calls, counts=Counter(ok=1))

    session = driver(MULTIHOP_MAX_CALLS=str(ceiling))
    pool, error = pool_of(session, Fakes(answers), ["abc", "def"], 2), ""
    try:
        pool.run()
    except MultihopError as e:
        error = str(e)
    assert session.meter.ledger.spent().calls == ceiling and session.meter.ledger.reserved() == Cost()
    assert bool(error) == (ceiling < 24) and pool.report.counts["ok"] == 6 - sum(map(bool, missing.values()))
    assert not error or f"{CALLS}=" in error


def test_stops_at_a_portion_are_no_failures(driver):
    ended = iter(["stopped"] * 2 * TRIES + ["failed", "fine"])

    def answers(actor, chunk, ceilings):
        what = next(ended)
        if what == "failed":
            raise Failed("OSError: odd")
        spent = [("test: run direct", "m", Cost(1))]
        return Done(spent=spent, stopped="is reached") if what == "stopped" else fine(actor, chunk, ceilings)

    session = driver(MULTIHOP_MAX_CALLS="100")
    pool = pool_of(session, Fakes(answers), ["a"], 1)
    pool.run()
    assert pool.report.counts == {"ok": 1} and session.meter.ledger.spent().calls == 2 * TRIES


def test_an_address_where_nothing_answers_is_one_line():
    with pytest.raises(MultihopError, match=r"RAY_ADDRESS=127\.0\.0\.1:1: nothing answers there .*ray start --head"):
        _reachable("127.0.0.1:1")
    for other in ("", "auto", "ray://127.0.0.1:1"):  # Ray's own business
        _reachable(other)
