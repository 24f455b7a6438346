"""kill -9 in the middle of a run: the same command finishes, repeats no answered call, and leaves the same bytes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from kill_cases import asked_as
from project_fixture import REPO, records_file, run_project

from multihop.store import Store


def test_kill_9_loses_only_what_was_in_flight(project, serve, at_home, tmp_path):
    workers = 2
    server = serve(delay=0.02)
    whole = project("whole")
    at_home("whole")
    run_project(whole, "executionrag")
    expected, needed = records_file(whole, "executionrag").read_bytes(), len(server.bodies)
    server.bodies.clear(), server.counts.clear(), server.answered.clear()

    root = project("killed")
    at_home("killed", MULTIHOP_WORKERS=str(workers))
    command = [sys.executable, "-m", "multihop.cli", "run", "executionrag"]
    env = os.environ | {"PYTHONPATH": str(REPO / "src")}
    first = subprocess.Popen(command, cwd=root, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while server.answered.total() < needed // 2 and first.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert first.returncode == -signal.SIGKILL and not records_file(root, "executionrag").exists()

    store = Store(tmp_path / "home-killed/store.sqlite")
    stored = {asked_as(row["request"]) for row in store.rows() if row["kind"] == "response"}
    store.close()
    before = dict(server.counts)
    assert needed // 2 - workers <= len(stored) < needed and len(before) - len(stored) <= workers

    second = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=120)
    assert second.returncode == 0, second.stderr
    again = {h for h, n in server.counts.items() if n > 1}
    assert not again & stored and len(again) <= workers
    assert records_file(root, "executionrag").read_bytes() == expected


def test_ctrl_c_ends_with_a_line_and_a_code_and_the_same_command_goes_on(project, serve, at_home):
    server = serve(delay=0.05)
    root = project("stopped")
    at_home("stopped", MULTIHOP_WORKERS="2")
    command = [sys.executable, "-m", "multihop.cli", "run", "executionrag"]
    env = os.environ | {"PYTHONPATH": str(REPO / "src")}
    first = subprocess.Popen(command, cwd=root, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while server.answered.total() < 5 and first.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    first.send_signal(signal.SIGINT)
    _, said = first.communicate(timeout=60)
    assert first.returncode == 130 and not records_file(root, "executionrag").exists()
    assert said.splitlines()[-1].startswith("multihop: stopped; every answer so far is stored")
    assert "Traceback" not in said

    second = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=120)
    assert second.returncode == 0, second.stderr
    assert max(server.counts.values()) == 1  # what was on the wire was heard out
    refused = subprocess.run(command, cwd=root, env=env | {"MULTIHOP_SHARD": "0/2"}, capture_output=True, text=True)
    assert refused.returncode == 1 and "MULTIHOP_SHARD is for `multihop warm`" in refused.stderr
