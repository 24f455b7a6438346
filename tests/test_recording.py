"""What building took, as it is noted while a recording is made."""

from __future__ import annotations

import json

from multihop.building import Built
from multihop.recording import _note_seconds


def built(seconds: float, live: int, computed: int) -> dict[str, Built]:
    return {"musique/minilm": Built({}, seconds, live, computed)}


def noted(path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def test_seconds_add_up_over_a_killed_build_and_a_replay_adds_nothing(tmp_path):
    path = tmp_path / "index_seconds.json"
    _note_seconds(path, "demo", "openie", built(10.0, 6, 6))
    _note_seconds(path, "demo", "openie", built(5.0, 4, 4))
    _note_seconds(path, "demo", "openie", built(0.5, 0, 0))
    _note_seconds(path, "demo", "tree", built(0.5, 0, 0))
    content = noted(path)
    assert content["profile"] == "demo" and "cores" in content["machine"]
    assert content["seconds"] == {"openie": {"musique/minilm": {"seconds": 15.0, "live_calls": 10}}}


def test_another_profiles_seconds_go(tmp_path):
    path = tmp_path / "index_seconds.json"
    _note_seconds(path, "demo", "openie", built(10.0, 6, 6))
    _note_seconds(path, "paper", "tree", built(3.0, 2, 2))
    content = noted(path)
    assert content["profile"] == "paper"
    assert content["seconds"] == {"tree": {"musique/minilm": {"seconds": 3.0, "live_calls": 2}}}
