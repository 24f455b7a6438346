"""The benchmarks run: the cheap parts' quick forms give rows of finite numbers, and the table holds them. No timing."""

from __future__ import annotations

import asyncio
import importlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from project_fixture import make_project, params_for

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    """Import a file of benchmarks/ by name."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def finite(found) -> bool:
    return bool(found) and all(math.isfinite(row.ours) and math.isfinite(row.ratio or 0) for row in found)


def row(benchmark, **changes):
    fields = {"part": "search", "what": "a|b", "ours": 12.5, "unit": "ms", "reference": 5.0, "named": "bare"}
    return benchmark("rows").Row(**fields | changes)


# -- the parts


def test_overhead_counts_the_calls_that_the_server_got(tmp_path, benchmark):
    runs = params_for()["runs"]
    source = make_project(tmp_path / "source", runs={name: runs[name] for name in ("vanilla", "arag")})
    found = benchmark("overhead").measure(quick=True, source=source)
    assert [r.what for r in found] == ["vanilla", "arag"] and finite(found)
    assert "6 questions, 1.0 calls each" in found[0].note and "6 questions, 4.0 calls each" in found[1].note
    assert "query encoding" in found[0].note and "dense search" in found[0].note


def test_throughput_asks_as_often_as_it_says(benchmark):
    m = asyncio.run(benchmark("throughput").at(0.05, 4, 3, spread=0.0))
    assert m.calls == 12 and 0.05 <= m.delay < 1 and 0.05 <= m.bare_delay < 1
    assert m.ours.wall >= 3 * 0.05 and m.bare.wall >= 3 * 0.05  # three rounds one after another, not fewer


def test_the_loopback_model_takes_each_form(benchmark):
    loopback = benchmark("loopback")
    schema = {
        "type": "object",
        "properties": {
            "sufficient": {"type": "boolean"},
            "decision": {"enum": ["answer", "continue", "refine"]},
            "gaps": {"type": "array", "maxItems": 1, "items": {"type": "string", "maxLength": 9}},
        },
    }
    message = {"role": "user", "content": "[p1] The Salt Road\nQuestion: Where is Dorvik?"}
    form = {"type": "json_schema", "json_schema": {"name": "judgement", "schema": schema}}
    said = json.loads(loopback.reply_to({"messages": [message], "response_format": form}).content)
    assert isinstance(said["sufficient"], bool) and said["decision"] == "continue"
    assert len(said["gaps"]) == 1 and len(said["gaps"][0]) <= 9
    again = json.loads(loopback.reply_to({"messages": [message], "response_format": form}).content)
    assert again == said


# -- the command and its table


def test_table_says_what_was_missed(benchmark, tmp_path):
    run = benchmark("run")
    result = {"quick": False, "date": "2026-01-01 00:00 UTC", "machine": {"processor": "P", "numpy": "1"}}
    good, bad = row(benchmark, met=True), row(benchmark, what="slow", met=False, ours=0.01234)
    files = {"search": [good], "replay": [row(benchmark, part="replay", reference=None), bad]}
    for part, found in files.items():
        text = json.dumps({**result, "part": part, "rows": [vars(r) for r in found]})
        run.write(tmp_path / f"{part}.json", text)
    run.write(tmp_path / "kills.md", "# Kills\n")
    text = run.table(tmp_path)
    assert "| a\\|b | 12.5 ms | 5.00 (bare) | 2.50 |  | yes |  |" in text
    assert "| slow | 0.0123 ms | 5.00 (bare) | 0.00247 |  | **no** |  |" in text
    assert "Targets missed: search: slow." in text  # the row's own part
    assert "(kills.md)" in text and "faults.md" not in text
    assert text.count("P; numpy 1.") == 1


def test_a_failing_part_leaves_the_others_and_the_exit_code_says_so(tmp_path):
    (tmp_path / "search.json").write_text(
        json.dumps({"part": "search", "quick": True, "date": "d", "machine": {"processor": "P"}, "rows": []})
    )
    code = "import run, sys; run.PARTS = ('gone', 'search'); sys.argv = ['run', *sys.argv[1:]]; sys.exit(run.main())"
    command = [sys.executable, "-c", code, "--quick", "--out", str(tmp_path), "gone"]
    env = {**os.environ, "PYTHONPATH": str(BENCHMARKS)}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 1 and "FAILED: gone" in done.stdout
    assert "## search" in (tmp_path / "README.md").read_text()
