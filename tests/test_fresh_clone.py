"""A stranger's first minutes, in a clone of HEAD: the pipeline from the recording, a clean tree, a no-op, one ablation.

The clone uses this environment's packages and its own sources; installing is what `make` does around it.
"""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest
from cloning import cloned

from multihop import config


def sh(command: str, where: Path, environ: dict[str, str], timeout: float = 900) -> str:
    done = subprocess.run(command, shell=True, cwd=where, env=environ, capture_output=True, text=True, timeout=timeout)
    output = done.stdout + done.stderr
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{output[-4000:]}"
    return output


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> tuple[Path, dict[str, str]]:
    return cloned(tmp_path_factory.mktemp("clone") / "project")


@pytest.mark.e2e
def test_the_pipeline_replays_in_a_clone_and_leaves_it_clean(clone):
    where, environ = clone
    sh("dvc repro", where, environ)
    assert sh("git status --porcelain", where, environ) == ""
    for name in config.load(where / "params.yaml").notebooks:
        assert (where / f"results/notebooks/{name}.html").is_file()
    assert "executionrag" in sh("multihop summary", where, environ)


@pytest.mark.e2e
def test_again_runs_nothing(clone):
    where, environ = clone
    started = time.monotonic()
    output = sh("dvc repro", where, environ)
    assert "Running stage" not in output
    assert "up to date" in output
    print(f"no-op: {time.monotonic() - started:.1f} s")


@pytest.mark.e2e
def test_one_changed_param_reruns_that_run_and_what_follows(clone):
    where, environ = clone
    path = where / "params.yaml"
    text = path.read_text(encoding="utf-8")
    changed = re.sub(r"(vanilla_k3: \{.*k: )3", r"\g<1>5", text)
    assert changed != text
    path.write_text(changed, encoding="utf-8")
    output = sh("dvc repro", where, environ)
    ran = set(re.findall(r"Running stage '([^']+)'", output))
    assert {s for s in ran if s.startswith("run@")} == {"run@vanilla_k3"}
    assert not any(s.startswith(("download", "prepare", "index", "retrieval")) for s in ran)
    assert not any(s.startswith(("collect", "fit", "tune", "learned")) for s in ran)
    assert not any(s.startswith(("structure", "graph", "network")) for s in ran), "indexes and structured runs"
    assert {"score", "coverage", "render"} <= ran


@pytest.mark.e2e
def test_one_changed_ablation_and_a_retraining_rerun_what_depends_on_them(clone):
    where, environ = clone
    path = where / "params.yaml"
    text = path.read_text(encoding="utf-8")
    changed = text.replace("controller_lambda0: {lam: 0.0,", "controller_lambda0: {lam: 0.1,")
    assert changed != text
    path.write_text(changed, encoding="utf-8")
    output = sh("dvc repro fit@controller_lambda0", where, environ)
    assert set(re.findall(r"Running stage '([^']+)'", output)) == {"resolve", "fit@controller_lambda0"}
    stale = sh("dvc status", where, environ)
    changed_runs = set(re.findall(r"^((?:learned|structured|run|fit|collect|tune|network)@\w+):", stale, re.MULTILINE))
    assert changed_runs == {"learned@dynakrag_lambda0"}


@pytest.mark.e2e
def test_one_changed_label_of_a_structured_run_builds_no_index(clone):
    where, environ = clone
    path = where / "params.yaml"
    text = path.read_text(encoding="utf-8")
    changed = text.replace("label: KGP,", "label: KGP (again),")
    assert changed != text
    path.write_text(changed, encoding="utf-8")
    output = sh("dvc repro structured@kgp", where, environ)
    assert set(re.findall(r"Running stage '([^']+)'", output)) == {"resolve", "structured@kgp"}
