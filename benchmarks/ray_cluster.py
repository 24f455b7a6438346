"""Two Ray nodes on this machine, one killed midway: what is asked, what is asked again, is the replay the same.

    python benchmarks/ray_cluster.py            # benchmarks/results/ray.json and ray.md; needs requirements-ray.txt
    python benchmarks/ray_cluster.py --quick --out F

The model is the tests' scripted server. The runs of a small project are answered (a) alone, (b) by `RUNNER=ray multihop
warm` on two nodes, the second of which is killed (SIGKILL, its raylet and all its processes) once half of the requests
are answered; what (b) merged is then replayed by `dvc repro` with MULTIHOP_LIVE=never: a stage for each run, and the
scores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

REPO = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPO / "tests"), str(REPO / "src")]

import yaml  # noqa: E402
from project_fixture import QUESTIONS, URL_ENV, gold_row, make_project, records_file  # noqa: E402
from rows import machine  # noqa: E402
from scripted_server import ScriptedServer, body_hash  # noqa: E402

from multihop import config, jsonl, running, stages  # noqa: E402
from multihop.scaling import warming  # noqa: E402
from multihop.scaling.shards import Shard  # noqa: E402
from multihop.session import Session, opened  # noqa: E402
from multihop.store import as_sent  # noqa: E402

SHARDS, CHUNK, DELAY_S, LIMIT_S = 4, 2, 0.05, 300
NODE = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80 * 2**20, "node_ip_address": "127.0.0.2"}
"""Loopback, but not 127.0.0.1, which Ray replaces by the machine's address (Linux has all of 127.0.0.0/8)."""
T = TypeVar("T")
DVC = [sys.executable, "-m", "dvc"]
QUICK_DEATH = {  # a node counts as dead after some seconds without a sign of life, not after half a minute
    "health_check_initial_delay_ms": 5000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 3000,
    "health_check_failure_threshold": 4,
}


def project(root: Path, questions: int) -> Path:
    """The tests' small project with more questions: the same ones in other words, each with a gold answer of its own,
    so that no two ask the same of the judge."""
    make_project(root)
    times = range(1, questions // len(QUESTIONS) + 1)
    made = [(f"{q}-{i}", f"{text} (asked for the {i}. time)", a) for i in times for q, (text, a) in QUESTIONS.items()]
    folder = root / "data/prepared/musique"
    jsonl.write(folder / "questions.jsonl", ({"id": q, "text": t} for q, t, _ in made))
    jsonl.write(folder / "gold.jsonl", (gold_row(q, f"{a} {q}") for q, _, a in made))
    return root


def in_session(root: Path, work: Callable[[Session], Awaitable[T]], **environ: str) -> T:
    async def main() -> T:
        async with opened(config.load(root / "params.yaml"), root) as session:
            return await work(session)

    os.environ |= environ
    try:
        return asyncio.run(main())
    finally:
        for name in environ:
            del os.environ[name]


def answered(root: Path, **environ: str) -> dict[str, bytes]:
    """The records and scores of all runs, by file."""

    async def work(session: Session) -> None:
        for run in session.params.runs:
            await running.run(session, run)
        await stages.score_all(session)

    in_session(root, work, **environ)
    return results(root)


def results(root: Path) -> dict[str, bytes]:
    """The records and scores of all runs, by file; they are taken away."""
    files = [records_file(root, run) for run in config.load(root / "params.yaml").runs]
    files += [*sorted((root / "results/scores").rglob("*.jsonl")), root / "results/metrics.json"]
    found = {str(f.relative_to(root)): f.read_bytes() for f in files}
    shutil.rmtree(root / "results")
    return found


def reproduced(root: Path, **environ: str) -> dict[str, bytes]:
    """As ``answered``, by `dvc repro` over the stages of dvc.yaml that a store can replay. Raises RuntimeError."""
    multihop = f"{sys.executable} -m multihop.cli"
    made = {"deps": ["params.yaml", "data/index"], "outs": ["results/runs/${item}"]}
    scores = {"deps": ["results/runs"], "outs": ["results/scores", {"results/metrics.json": {"cache": False}}]}
    runs = list(config.load(root / "params.yaml").runs)
    stages_of = {
        "run": {"foreach": runs, "do": {"cmd": f"{multihop} run ${{item}}", **made}},
        "score": {"cmd": f"{multihop} score", **scores},
    }
    jsonl.write_text(root / "dvc.yaml", yaml.safe_dump({"stages": stages_of}))
    env = os.environ | {"DVC_NO_ANALYTICS": "1", "DVC_SITE_CACHE_DIR": str(root / ".dvc/site")} | environ
    for command in (["init", "--no-scm", "--quiet"], ["repro"]):
        done = subprocess.run([*DVC, *command], cwd=root, env=env, text=True, capture_output=True, timeout=LIMIT_S)
        if done.returncode:
            raise RuntimeError(f"dvc {command[0]} ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
    return results(root)


def asked_by(root: Path, chunks: list[warming.Chunk], **environ: str) -> set[str]:
    """The bodies of the requests that ``chunks`` need, from the store that answers them."""

    async def work(session: Session) -> set[str]:
        session.store.track()
        warmer = warming.Warmer(session)
        for chunk in chunks:
            await warmer.ask(chunk)
        rows = [as_sent(r["request"]) for r in session.store.rows(session.store.touched) if r["kind"] == "response"]
        return {body_hash({k: v for k, v in r.items() if k != "sample"} | {"seed": r["sample"]}) for r in rows}

    return in_session(root, work, **environ)


def chunks_of(root: Path) -> int:
    """How many chunks all shards have."""

    async def work(session: Session) -> int:
        return sum(len(list(warming.chunks(session, [], Shard(i, SHARDS), CHUNK))) for i in range(SHARDS))

    return in_session(root, work, MULTIHOP_HOME=str(root / "nothing"))


def with_a_killed_node(root: Path, home: Path, server: ScriptedServer, needed: int) -> str:
    """`RUNNER=ray multihop warm` on two nodes, the second killed at half of ``needed``; what it printed.

    Raises RuntimeError where it failed or did not end.
    """
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args=NODE | {"_system_config": QUICK_DEATH})
    warm = None
    try:
        second = cluster.add_node(**NODE)
        environ = {"RUNNER": "ray", "RAY_ADDRESS": cluster.address, "MULTIHOP_HOME": str(home), "MULTIHOP_WORKERS": "2"}
        warm = subprocess.Popen(
            [sys.executable, "-m", "multihop.cli", "warm", "--shards", str(SHARDS), "--chunk", str(CHUNK)],
            cwd=root, env=os.environ | environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        begun = time.monotonic()
        while server.answered.total() < needed // 2 and warm.poll() is None and time.monotonic() - begun < LIMIT_S:
            time.sleep(0.01)
        print(f"killing a node after {server.answered.total()} of {needed} requests", file=sys.stderr)
        cluster.remove_node(second, allow_graceful=False)
        out, err = warm.communicate(timeout=LIMIT_S)
        if warm.returncode:
            raise RuntimeError(f"multihop warm ended with {warm.returncode}: {err[-2000:]}")
        return out.strip().splitlines()[-1]  # Ray prints what it has to say of a dead node above it
    finally:
        if warm and warm.poll() is None:
            warm.kill()
        cluster.shutdown()


def measure(folder: Path, questions: int) -> dict[str, Any]:
    root, home = project(folder / "project", questions), folder / "driver"
    with ScriptedServer(delay=DELAY_S) as server:
        os.environ[URL_ENV] = server.url
        expected = answered(root, MULTIHOP_HOME=str(folder / "alone"))
        needed = server.counts.copy()
        server.counts.clear(), server.answered.clear()
        started = time.monotonic()
        said = with_a_killed_node(root, home, server, needed.total())
        seconds, counts = time.monotonic() - started, server.counts.copy()
        log = list(jsonl.read(home / "logs/warm-ray.jsonl"))
        lost = [r for r in log if r["event"] == "lost"]
        chunks = [warming.Chunk(r["run"], r["dataset"], r["setting"], tuple(r["ids"])) for r in lost]
        again = {body for body, n in counts.items() if n > 1}
        replay = {"MULTIHOP_HOME": str(home), "MULTIHOP_LIVE": "never"}
        in_flight, began = asked_by(root, chunks, **replay), time.monotonic()
        replayed, repro_s = reproduced(root, **replay), time.monotonic() - began
        assert server.counts == counts, "the replay asked something"
    return {
        "questions": questions,
        "answers": questions * len(config.load(root / "params.yaml").runs),
        "shards": SHARDS,
        "chunks": chunks_of(root),
        "kills": 1,
        "chunks_lost": len(lost),
        "needed": needed.total(),
        "asked": counts.total(),
        "all_needed_asked": set(counts) == set(needed),
        "asked_again": len(again),
        "asked_at_most": max(counts.values()),
        "again_beyond_lost_chunks": len(again - in_flight),
        "replay_equal": replayed == expected,
        "seconds": round(seconds, 1),
        "repro_seconds": round(repro_s, 1),
        "said": said,
    }


def markdown(result: dict[str, Any]) -> str:
    told = {
        "answers": "answers (questions x runs)",
        "shards": "shards",
        "chunks": "chunks",
        "kills": "nodes killed",
        "chunks_lost": "chunks in flight on it",
        "needed": "requests that an uninterrupted run asks",
        "asked": "requests asked",
        "asked_again": "of them a second time",
        "asked_at_most": "times that one was asked at most",
        "again_beyond_lost_chunks": "of these, outside the lost chunks",
        "replay_equal": "`dvc repro`, without a live call: records, scores and metrics equal to the byte",
        "seconds": "seconds, with the cluster's start",
        "repro_seconds": "seconds of `dvc repro`",
    }
    shown = {k: ("yes" if v else "no") if isinstance(v, bool) else v for k, v in result.items()}
    packages = {"ray": result["ray"]} | result["machine"]
    about = "; ".join(f"{name} {packages[name]}" for name in ("processor", "python", "ray", "dvc") if name in packages)
    head = (
        f"# Two Ray nodes, one killed midway\n\n`python benchmarks/ray_cluster.py`: {result['questions']} questions. "
        f"{about}.\n\nBoth nodes are processes of this machine; the second is killed (SIGKILL, with all its processes) "
        "once half of the requests are answered. The driver merges what the workers stored. `dvc repro` then "
        "replays it with MULTIHOP_LIVE=never; its results are compared with those of a run on one machine that nothing "
        "disturbed.\n\n"
        "| what | |\n|---|---:|\n"
    )
    return head + "\n".join(f"| {text} | {shown[key]} |" for key, text in told.items()) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="12 questions in place of 60")
    parser.add_argument("--out", type=Path, default=REPO / "benchmarks/results/ray.json")
    options = parser.parse_args()
    import ray

    for name in [n for n in os.environ if n.startswith("MULTIHOP_") or n.lower().endswith("_proxy")]:
        del os.environ[name]
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "120", "RAY_worker_niceness": "0"}
    os.environ |= {"PYTHONPATH": str(REPO / "src"), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="mh-") as folder:
        os.environ |= {"RAY_TMPDIR": folder, "TMPDIR": folder}  # so that nothing stays, of a killed worker neither
        result = measure(Path(folder), 12 if options.quick else 60)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    result |= {"ray": ray.__version__, "machine": machine()}
    jsonl.write_json(options.out, result)
    options.out.with_suffix(".md").write_text(markdown(result), encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
