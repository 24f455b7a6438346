"""benchmarks/structured_slice.py: what it draws, the whole chain behind the scripted server, and a forbidden model."""

from __future__ import annotations

import asyncio
import importlib.util

import pytest
from project_fixture import REPO, first_of, make_project, params_for
from scripted_server import Say, little_model

from multihop.data import splits
from multihop.errors import DataError, ReplayMiss

_spec = importlib.util.spec_from_file_location("structured_slice", REPO / "benchmarks/structured_slice.py")
structured_slice = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(structured_slice)


@pytest.fixture
def source(tmp_path):
    return make_project(tmp_path / "whole") / "data/prepared/musique"


def test_gold_passages_are_in_the_slice_and_the_seed_decides_the_rest(source):
    questions, gold, passages = structured_slice.chosen(source, 2, 6, 0)
    ids = [p.id for p in passages]
    assert len(questions) == 2 and len(ids) == 6 and {p for g in gold for p in g.supporting} <= set(ids)
    assert [g.id for g in gold] == [q.id for q in questions]
    assert ids == [p.id for p in splits.passages(source) if p.id in ids]  # corpus order
    assert structured_slice.chosen(source, 2, 6, 0) == (questions, gold, passages)
    others = [structured_slice.chosen(source, 2, 6, seed) for seed in range(1, 6)]
    assert any([p.id for p in other[2]] != ids for other in others)


@pytest.mark.parametrize(("questions", "passages"), [(7, 6), (2, 13), (1, 1)])
def test_more_than_there_is_is_refused(source, questions, passages):
    with pytest.raises(DataError, match="ask for"):
        structured_slice.chosen(source, questions, passages, 0)


def made(tmp_path, source, monkeypatch):
    full = params_for(
        structures={"openie": {"structure": "openie", "settings": ["other"]}},
        graphs={"knowledge_graph": {"structure": "knowledge_graph", "over": "openie", "settings": ["other"]}},
        structured_runs={
            name: {"method": name, "structure": "knowledge_graph", "settings": ["other"], "questions": 1}
            for name in structured_slice.RUNS
        },
    )
    folder = tmp_path / "slice"
    monkeypatch.setenv("MULTIHOP_DATA_DIR", str(folder / "source"))
    monkeypatch.setenv("MULTIHOP_HOME", str(tmp_path / "home"))
    structured_slice.make(folder, source, structured_slice.params_of(full, "musique", "small"), 3, 9, 0)
    return folder


def extracting(body):
    """One triple for every passage, the first fact for every question."""
    form = (body.get("response_format") or {}).get("json_schema", {}).get("name")
    said = {
        "named": '{"entities": ["Oda Wren", "Skarholm"]}',
        "triples": '{"triples": [["Oda Wren", "lived in", "Skarholm"]]}',
        "kept": '{"kept": [1]}',
    }
    return Say(said[form.lower()]) if form and form.lower() in said else little_model(body)


def test_the_whole_chain_and_again_from_the_store(tmp_path, source, serve, monkeypatch):
    serve(extracting)
    folder = made(tmp_path, source, monkeypatch)
    found = asyncio.run(structured_slice.work(folder))
    assert found["indexes"]["openie"]["statistics"]["passages"] == 9
    assert found["indexes"]["openie"]["actual"]["calls"] == found["indexes"]["openie"]["live_calls"] == 18
    assert found["indexes"]["knowledge_graph"]["statistics"]["facts"] == 1
    for name in structured_slice.RUNS:
        run = found["runs"][name]
        assert [a["status"] for a in run["answers"]] == ["ok"] * 3 and run["scores"]["n"] == 3
        assert 0 <= run["scores"]["f1"] <= 1 and 0 < run["scores"]["total_tokens"]
        assert run["scores"]["support_recall"] is not None
    monkeypatch.setenv("MULTIHOP_LIVE", "never")
    again = asyncio.run(structured_slice.work(folder))
    assert again["indexes"]["openie"]["live_calls"] == 0
    assert again["runs"]["hipporag2"]["answers"] == found["runs"]["hipporag2"]["answers"]


def test_a_forbidden_model_ends_in_a_miss(tmp_path, source, serve, monkeypatch):
    server = serve(extracting)
    folder = made(tmp_path, source, monkeypatch)
    monkeypatch.setenv("MULTIHOP_LIVE", "never")
    with pytest.raises((ReplayMiss, BaseExceptionGroup)) as caught:
        asyncio.run(structured_slice.work(folder))
    assert isinstance(first_of(caught.value), ReplayMiss) and not server.bodies
