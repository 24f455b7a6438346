"""RUNNER=ray on a local cluster of two nodes, one killed midway; and the line where Ray is not installed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections import deque

import pytest
from project_fixture import REPO

from multihop import config
from multihop.environment import Environment
from multihop.errors import ConfigError, MultihopError
from multihop.scaling import cluster, warming, worker
from multihop.scaling.shards import Shard
from multihop.session import Session


def test_without_ray_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install -r requirements-ray\.txt"):
        cluster.library()
    assert (REPO / "requirements-ray.txt").is_file()


def test_an_unknown_runner_is_refused(three):
    environ = os.environ | {"PYTHONPATH": str(REPO / "src"), "RUNNER": "rays"}
    command = [sys.executable, "-m", "multihop.cli", "warm"]
    done = subprocess.run(command, cwd=three("project"), env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and done.stderr == "multihop: RUNNER='rays': allowed are local, ray\n"


def test_workers_get_addresses_and_no_key(three, monkeypatch):
    monkeypatch.setenv("MULTIHOP_SCRIPTED_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("MULTIHOP_MY_KEY", "secret-12345")
    monkeypatch.setenv("MULTIHOP_SHARD", "0/2")
    monkeypatch.setenv("MULTIHOP_MAX_USD", "5")
    root = three("project")
    text = (root / "params.yaml").read_text(encoding="utf-8")
    text = text.replace("scripted:\n", "scripted:\n    key_env: MULTIHOP_MY_KEY\n", 1)
    (root / "params.yaml").write_text(text, encoding="utf-8")
    session = Session(config.load(root / "params.yaml"), Environment.read(), root)
    assert cluster.environ(session) == {"MULTIHOP_SCRIPTED_URL": "http://127.0.0.1:9/v1"} | {
        name: os.environ[name] for name in ("HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM") if name in os.environ
    }
    session.store.close()


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs requirements-ray.txt")
def test_a_node_killed_midway_costs_the_chunks_in_flight_and_nothing_else(tmp_path):
    """As `python benchmarks/ray_cluster.py`, smaller."""
    out = tmp_path / "ray.json"
    command = [sys.executable, str(REPO / "benchmarks/ray_cluster.py"), "--quick", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["kills"] == 1 and 1 <= found["chunks_lost"] <= 2
    assert found["all_needed_asked"] and found["asked_at_most"] <= 2
    assert found["again_beyond_lost_chunks"] == 0
    assert found["replay_equal"]
    assert found["said"].startswith(f"{found['answers']} ok; ") and "1 lost and asked again" in found["said"]


# -- the driver with workers in this process, in place of Ray's


class Dead(Exception):
    """A worker that is gone."""


class Failed(Exception):
    """A worker's method that raised something."""


class Late(Exception):
    pass


class InProcess:
    """What the driver needs of Ray. ``plan``: for the n-th call of ``answer`` "die" or "fail"; else it answers."""

    class exceptions:
        RayActorError, RayTaskError = Dead, Failed
        ObjectLostError = NodeDiedError = Dead
        GetTimeoutError = Late

    def __init__(self, folder, plan: dict[int, str], nodes: int = 9):
        self.folder, self.plan, self.nodes = folder, plan, nodes
        self.answers = self.actors = 0
        self.open: list[worker.Worker] = []

    def remote(self, **options):
        assert options["max_restarts"] == 0

        class Made:
            remote = lambda made, root, environ: Actor(self, root, environ)  # noqa: E731

        return lambda worker: Made()

    def put(self, value):
        return value

    def get(self, ref, timeout=None):
        if isinstance(ref, list):
            return [self.get(r) for r in ref]
        if isinstance(ref, BaseException):
            raise ref
        return ref() if callable(ref) else ref

    def wait(self, refs, num_returns=1, timeout=None):
        return refs[:num_returns], refs[num_returns:]

    def kill(self, actor):
        actor.worker = None


class Actor:
    def __init__(self, ray: InProcess, root: str, environ: dict[str, str]):
        ray.actors += 1
        self.ray = ray
        home = str(ray.folder / f"worker{ray.actors}")
        self.worker = worker.Worker(root, environ, home) if ray.actors <= ray.nodes else None
        ray.open += [self.worker] if self.worker else []
        for name in ("ready", "take", "answer", "close"):
            setattr(self, name, Method(self, name))


class Method:
    def __init__(self, actor: Actor, name: str):
        self.actor, self.name = actor, name

    def remote(self, *given):
        actor, ray = self.actor, self.actor.ray
        if actor.worker is None:
            return Dead("gone") if self.name != "ready" else Late("no node")
        what = ""
        if self.name == "answer":
            ray.answers += 1
            what = ray.plan.get(ray.answers, "")
            if what == "fail":
                return Failed("Traceback\nOSError: disk\n")
            if what == "die":
                actor.worker.answer(*given)  # it asked, and nobody hears of it
                actor.worker = None
                return Dead("the node is gone")
        if self.name == "close":
            ray.open.remove(actor.worker)
        value = getattr(actor.worker, self.name)(*given)
        return lambda: value


@pytest.fixture
def pooled(three, at_home, tmp_path, monkeypatch):
    """Warm two shards of three questions with two workers; gives (pool, what it raised or None)."""
    used: list[InProcess] = []

    def run(plan: dict[int, str], nodes: int = 9, **environ: str):
        root = three(f"project{len(list(tmp_path.iterdir()))}")
        monkeypatch.chdir(root)
        at_home("driver", **environ)
        ray = InProcess(tmp_path, plan, nodes)
        used.append(ray)
        session, error = Session(config.load(), Environment.read(), root), None
        parts = [deque(warming.chunks(session, ["vanilla"], Shard(i, 2), 1)) for i in range(2)]
        pool = cluster.Pool(ray, session, parts)
        try:
            pool.start(2)
            pool.run()
        except MultihopError as e:
            error = e
        return pool, error, sum(1 for row in session.store.added() if row["kind"] == "response")

    yield run
    for left in (w for ray in used for w in ray.open):
        left.close()


def test_all_is_answered_once_and_merged(pooled, serve):
    server = serve()
    pool, error, stored = pooled({})
    assert error is None and pool.report.counts == {"ok": 3} and pool.report.lost == []
    assert stored == server.counts.total() == pool.report.live_calls and max(server.counts.values()) == 1


def test_a_dead_workers_chunk_and_shard_go_to_the_other(pooled, serve):
    server = serve()
    pool, error, stored = pooled({1: "die"})
    assert error is None and pool.report.counts == {"ok": 3} and len(pool.report.lost) == 1
    again = [n for n in server.counts.values() if n > 1]
    assert stored == len(server.counts) and set(again) == {2} and 0 < len(again) < stored


def test_where_all_workers_died_a_new_one_is_started(pooled, serve):
    serve()
    pool, error, _ = pooled({1: "die", 2: "die"})
    assert error is None and pool.report.counts == {"ok": 3} and pool.report.workers == 3


def test_where_no_node_is_left_the_command_ends_and_says_so(pooled, serve):
    serve()
    _, error, _ = pooled({1: "die", 2: "die"}, nodes=2)
    assert "no node had a free processor" in str(error)


def test_a_chunk_is_begun_a_bounded_number_of_times(pooled, serve):
    serve()
    pool, error, _ = pooled({n: "fail" for n in range(1, 99)})
    assert str(error).endswith("1 questions failed 4 times, at last: OSError: disk")
    assert pool.ray.answers <= 2 * cluster.TRIES


def test_a_used_up_quota_stops_all_and_keeps_what_was_answered(pooled, serve):
    from scripted_server import QUOTA, in_turn, little_model

    server = serve(in_turn([little_model, little_model, QUOTA], then=QUOTA))
    _, error, stored = pooled({}, MULTIHOP_WORKERS="1")
    assert "quota is used up" in str(error) and "\n" not in str(error)
    assert stored == 2 and server.counts.total() <= 4


def test_workers_stay_below_the_ceiling_of_all(pooled, serve):
    server = serve()
    pool, error, stored = pooled({}, MULTIHOP_MAX_CALLS="4")
    assert "a worker's share of what was left" in str(error) and "MULTIHOP_MAX_CALLS" in str(error)
    assert server.counts.total() == stored == pool.session.meter.ledger.spent().calls <= 4
