"""Trajectories, leakage, fitting and tuning as stages, over a small invented project with a scripted model."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import asdict

import pytest
from dynakrag_fixture import kind
from dynakrag_fixture import script as control_script
from project_fixture import (
    QUESTIONS,
    WORLD,
    gold_row,
    make_project,
    params_for,
    records_file,
    run_project,
    write_params,
)
from scripted_server import Say

from multihop import config, jsonl, stages, training
from multihop.controller import features
from multihop.data.chunks import build_chunks
from multihop.errors import ConfigError, DataError, MultihopError
from multihop.session import opened
from multihop.types import Passage

SMALL = {"max_tokens": 60, "check_tokens": 60}


def learned_params(**changes):
    params = params_for(
        runs={"direct": {"method": "direct"}},
        training={
            "main": {
                "setting": "small",
                "datasets": {"musique": "musique"},
                "questions": 4,
                "tuning_questions": 3,
                "seeds": [0, 1],
                "fixed_k_grid": [1, 3],
            }
        },
        controllers={"controller": {"trees": 10, "min_leaf": 2}, "lambda0": {"lam": 0.0, "trees": 10, "min_leaf": 2}},
        learned_runs={
            "dynakrag": {"method": "dynakrag", "trained": "controller", **SMALL},
            "adaptive_rag": {"method": "adaptive_rag", "trained": "baselines", "max_tokens": 60},
            "fixed_k": {"method": "fixed_k", "trained": "baselines", "max_tokens": 60},
        },
    )
    return params | changes


TRAIN = {
    "t0": ("Where does the author of The Lantern Ferry come from?", "Skarholm"),
    "t1": ("Who was the teacher of the composer of The Salt Choir?", "Lene Astrup"),
    "t2": ("Where did the brother of the novelist Oda Wren die?", "Tavik"),
    "t3": ("Which river ends at the town of the mayor Karla Möhn?", "Lisse"),
}


@pytest.fixture(scope="module")
def trained_project(tmp_path_factory):
    """The small project with train questions and their corpus, indexed."""
    return _project(tmp_path_factory.mktemp("training") / "project", learned_params())


def _project(root, params):
    make_project(root, questions=3)
    write_params(root, params)
    folder = root / "data/prepared/musique"
    passages = [Passage(f"p{n}", title, text) for n, (title, text) in enumerate(WORLD)]
    jsonl.write(folder / "train_questions.jsonl", ({"id": q, "text": t} for q, (t, _) in TRAIN.items()))
    jsonl.write(folder / "train_gold.jsonl", (gold_row(q, a) for q, (_, a) in TRAIN.items()))
    jsonl.write(folder / "train_passages.jsonl", map(asdict, passages))
    jsonl.write(folder / "chunks/train.jsonl", map(asdict, build_chunks(passages, "passages")))
    _with(root, lambda s: stages.index(s, "musique"))
    return root


@pytest.fixture
def project(trained_project, tmp_path):
    target = tmp_path / "project"
    shutil.copytree(trained_project, target, symlinks=True)
    return target


def _with(root, work):
    async def main():
        async with opened(config.load(root / "params.yaml"), root) as session:
            result = work(session)
            return await result if asyncio.iscoroutine(result) else result

    try:
        return asyncio.run(main())
    except BaseExceptionGroup as group:
        known = group.subgroup(MultihopError)
        while isinstance(known, BaseExceptionGroup):
            known = known.exceptions[0]
        raise (known or group) from None


def model(body):
    """Knows the control calls; reads the author's town once enough is shown."""
    if kind(body) == "read":
        known = "Skarholm" if "Oda Wren was a novelist" in body["messages"][-1]["content"] else "nobody"
        return Say(f"Because: x.\nAnswer: {known}")
    return control_script(check=({"found": "", "missing": "the town", "sufficient": False},))(body)


def rows_of(root):
    return list(jsonl.read(root / "data/trajectories/musique/states.jsonl"))


def test_trajectories_hold_states_branches_and_answers(project, serve):
    server = serve(model)
    assert _with(project, training.collect) == {"musique": len(rows_of(project))}
    rows = rows_of(project)
    assert {r["qid"] for r in rows} == set(TRAIN) and {r["rollout"] for r in rows} == {"uniform", "scripted"}
    assert rows == sorted(rows, key=lambda r: (r["seed"], r["qid"], r["rollout"], r["step"]))
    for row in rows:
        assert len(row["features"]) == len(features.STATE) and 0 <= row["u"] <= 1 and 0 <= row["step"] <= 4
        assert all(len(b["features"]) == len(features.ACTION) - 1 for b in row["branches"])
    first = [r for r in rows if r["step"] == 0]
    assert all([b["action"] for b in r["branches"]] == ["R"] and r["f1"] == 0 and r["u"] == 0 for r in first)
    last = [r for r in rows if r["step"] == 4]
    assert last and all(r["branches"] == [] and r["chosen"] is None and r["final_f1"] == r["f1"] for r in last)
    scripted = [r["chosen"] for r in rows if r["rollout"] == "scripted" and r["qid"] == "t0"]
    assert scripted[:3] == ["R", "S", "G"]
    checks = [b for r in rows for b in r["branches"] if b["action"] == "S"]
    assert all(b["sufficient"] is False and b["tokens"] > 0 for b in checks)
    followed = [b for b in checks if b["u_follow"] is not None]
    assert followed and all(b["u_after"] <= b["u_follow"] for b in followed)
    stops = [b for r in rows for b in r["branches"] if b["action"] == "T"]
    assert stops and all(b["tokens"] == b["retrievals"] == 0 for b in stops)
    asked = len(server.bodies)
    before = (project / "data/trajectories/musique/states.jsonl").read_bytes()
    _with(project, training.collect)
    assert len(server.bodies) == asked and (project / "data/trajectories/musique/states.jsonl").read_bytes() == before


def test_shuffled_gold_changes_targets_and_nothing_that_the_controller_sees(project, serve):
    """Features, actions and replies are the same; recall and F1 are not."""
    serve(model)
    _with(project, training.collect)
    before = rows_of(project)
    gold = project / "data/prepared/musique/train_gold.jsonl"
    rows = list(jsonl.read(gold))
    answers = [r["answers"] for r in rows]
    jsonl.write(gold, (r | {"answers": a, "supporting": ["p9"]} for r, a in zip(rows, reversed(answers), strict=True)))
    _with(project, training.collect)
    seen = ("qid", "rollout", "step", "features", "chosen", "tokens")
    blind = ("action", "features", "tokens", "retrievals", "sufficient")

    def observable(found):
        return [[r[k] for k in seen] + [[b[k] for k in blind] for b in r["branches"]] for r in found]

    assert observable(rows_of(project)) == observable(before)
    assert [r["u"] for r in rows_of(project)] != [r["u"] for r in before]
    assert [r["f1"] for r in rows_of(project)] != [r["f1"] for r in before]


def test_from_trajectories_to_a_run_and_its_transfer(project, serve):
    serve(model)
    with pytest.raises(DataError, match=r"card\.json.*dvc repro"):
        run_project(project, "dynakrag")
    _with(project, training.collect)
    for name in ("controller", "lambda0"):
        [folder] = _with(project, lambda s, name=name: training.fit(s, name))
        card = json.loads((folder / "card.json").read_text())
        assert card["controller"] == name and card["questions"] == 4 and len(card["trainings"]) == 2
        assert sorted(p.name for p in folder.iterdir()) == ["card.json", "seed0.npz", "seed1.npz"]
    assert run_project(project, "dynakrag") == {"ok": 3}
    first = records_file(project, "dynakrag").read_bytes()
    models = {p: p.read_bytes() for p in (project / "results/trained").rglob("*.npz")}
    _with(project, lambda s: training.fit(s, "controller"))
    run_project(project, "dynakrag")
    assert records_file(project, "dynakrag").read_bytes() == first
    assert {p: p.read_bytes() for p in models} == models


def test_a_tampered_model_and_another_feature_list_are_refused(project, serve, monkeypatch):
    serve(model)
    _with(project, training.collect)
    [folder] = _with(project, lambda s: training.fit(s, "controller"))
    whole = (folder / "seed0.npz").read_bytes()
    (folder / "seed0.npz").write_bytes(whole[:-1] + b"x")
    with pytest.raises(DataError, match="sha256"):
        run_project(project, "dynakrag")
    (folder / "seed0.npz").write_bytes(whole)
    monkeypatch.setattr(features, "STATE", features.STATE[:-1])
    with pytest.raises(DataError, match="features"):
        run_project(project, "dynakrag")


def test_the_router_and_the_depth_are_chosen_on_train_questions(project, serve):
    serve(model)
    chosen = _with(project, training.tune)["musique"]
    folder = project / "results/trained/baselines/musique"
    depth = json.loads((folder / "fixed_k.json").read_text())
    router = json.loads((folder / "router.json").read_text())
    assert set(depth["grid"]) == {"1", "3"} and depth["grid"][str(chosen["k"])] == max(depth["grid"].values())
    assert sum(router["labels"].values()) == 3 == router["questions"]
    assert run_project(project, "adaptive_rag") == {"ok": 3} and run_project(project, "fixed_k") == {"ok": 3}
    assert {len(r["read"]) for r in jsonl.read(records_file(project, "fixed_k"))} == {chosen["k"]}


@pytest.mark.parametrize("change", [{"id": "q1"}, {"text": QUESTIONS["q2"][0].upper() + " "}])
def test_a_train_question_that_is_an_evaluation_question_is_refused(project, serve, change):
    server = serve(model)
    path = project / "data/prepared/musique/train_questions.jsonl"
    rows = list(jsonl.read(path))
    rows[0] |= change
    jsonl.write(path, rows)
    gold = project / "data/prepared/musique/train_gold.jsonl"
    jsonl.write(gold, (r | {"id": q["id"]} for r, q in zip(jsonl.read(gold), rows, strict=True)))
    with pytest.raises(DataError, match="also evaluation questions.*" + rows[0]["id"]):
        _with(project, training.collect)
    assert server.bodies == []


def test_fewer_train_questions_than_asked_for(tmp_path, serve):
    server = serve(model)
    params = learned_params()
    params["training"]["main"]["questions"] = 9
    root = _project(tmp_path / "few", params)
    with pytest.raises(DataError, match=r"9 questions are asked for.*4 are prepared.*train_questions"):
        _with(root, training.collect)
    assert server.bodies == []


def test_empty_trajectories_and_unknown_controllers(project):
    path = project / "data/trajectories/musique/states.jsonl"
    jsonl.write(path, [])
    with pytest.raises(DataError, match="no trajectories"):
        _with(project, lambda s: training.fit(s, "controller"))
    with pytest.raises(ConfigError, match="unknown controller 'x'"):
        _with(project, lambda s: training.fit(s, "x"))


def test_no_training_block_means_nothing_to_train(tmp_path):
    root = make_project(tmp_path / "plain", runs={"direct": {"method": "direct"}})
    with pytest.raises(ConfigError, match="training"):
        _with(root, training.collect)


def test_the_corpus_of_train_questions_is_prepared_with_them(tmp_path):
    root = tmp_path / "world"
    make_project(root, questions=1)
    demo = {"data": {"musique": {"questions": 2, "train_questions": 3}}, "demo": {"seed": 5, "passages": 60}}
    write_params(root, learned_params(**demo) | {"training": {}, "controllers": {}, "learned_runs": {}})
    for stage in (stages.download, stages.prepare):
        _with(root, lambda s, stage=stage: stage(s, "musique"))
    folder = root / "data/prepared/musique"
    passages = list(jsonl.read(folder / "train_passages.jsonl"))
    chunks = list(jsonl.read(folder / "chunks/train.jsonl"))
    assert [c["id"] for c in chunks] == [p["id"] for p in passages] and passages
    assert chunks[0]["text"] == f"{passages[0]['title']}\n{passages[0]['text']}"
    ids = {c["id"] for c in chunks}
    assert all(set(g["supporting"]) <= ids for g in jsonl.read(folder / "train_gold.jsonl"))
