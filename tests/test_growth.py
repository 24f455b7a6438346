"""benchmarks/questions.py and replay.py: what they call grown, and that both stages and a replay really run."""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path

import pytest
from project_fixture import run_project

from multihop import config, jsonl
from multihop.environment import Environment
from multihop.session import Session

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def test_growth_is_called_growth(benchmark):
    questions = benchmark("questions")
    linear = {n: {"seconds": n / 100, "peak": 300.0 + n / 100} for n in (1000, 100_000)}
    time, memory, each, most = questions.grown("run", linear)
    assert time.ours == pytest.approx(1.0) and time.met and memory.met
    assert each.ours == pytest.approx(2**20 / 100) and each.met is False  # 10 kB a question is not flat
    assert most.ours == 1300.0 and most.met
    square = {n: {"seconds": n * n / 1e6, "peak": 300.0} for n in (1000, 100_000)}
    time, _, each, _ = questions.grown("run", square)
    assert time.ours == pytest.approx(2.0) and time.met is False
    assert each.ours == 0 and each.met


def test_both_stages_run_over_generated_questions(benchmark, tmp_path, monkeypatch):
    questions = benchmark("questions")
    monkeypatch.setattr(questions, "PASSAGES", 60)
    for stage in ("run", "score"):
        assert questions.one(stage, 6, tmp_path / "project")["seconds"] > 0
    records = list(jsonl.read(tmp_path / "project/results/runs/vanilla/musique/small.jsonl"))
    assert [r["status"] for r in records] == ["ok"] * 6 and all(r["short"] for r in records)
    scores = list(jsonl.read(tmp_path / "project/results/scores/musique/small/vanilla.jsonl"))
    assert sum(row["llm_acc"] for row in scores) == 3


def test_a_replay_counts_the_calls_that_the_store_answered(benchmark, project, serve):
    server, root = serve(), project()
    run_project(root, "arag")
    asked = len(server.bodies)
    with benchmark("replay").closing_session(Session(config.load(root / "params.yaml"), _never(), root)) as session:
        calls, spent = asyncio.run(benchmark("replay").answered(session, "arag", "musique", "small", 2))
    assert calls == 2 * asked and spent > 0 and len(server.bodies) == asked


def _never() -> Environment:
    import os

    return Environment.read(os.environ | {"MULTIHOP_LIVE": "never"})
