"""The stage that trains GFM-RAG's network, over a small invented project with a scripted model."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import asdict

import pytest
from gnn_fixture import network_of
from project_fixture import WORLD, gold_row, make_project, params_for, records_of, run_project, write_params
from scripted_server import Say
from test_gnn import write_checkpoint

from multihop import building, config, jsonl, stages, training_network
from multihop.data.chunks import build_chunks
from multihop.errors import ConfigError, DataError, MultihopError
from multihop.session import opened
from multihop.types import Passage

TRAIN = {
    "t0": ("Where does the author of The Lantern Ferry come from?", ["p0", "p1"]),
    "t1": ("Who was the teacher of the composer of The Salt Choir?", ["p7", "p8"]),
    "t2": ("Where did the brother of the novelist Oda Wren die?", ["p1", "p5"]),
    "t3": ("Which river ends at the town of the mayor Karla Möhn?", ["p2", "p3"]),
    "t4": ("Whose town lies on the Lisse?", ["p2", "p4"]),
    "t5": ("Where is a fire told of that nobody wrote down?", ["p12"]),
}
"""The last one's gold passage is in no evaluation corpus."""
NETWORK = {"structure": "knowledge_graph", "questions": 3, "held_out": 2, "hidden": 6, "layers": 2, "epochs": 4}


def network_params(network=None, **changes):
    return (
        params_for(
            runs={"direct": {"method": "direct"}},
            structures={"openie": {"structure": "openie", "settings": ["small"]}},
            graphs={"knowledge_graph": {"structure": "knowledge_graph", "over": "openie", "settings": ["small"]}},
            networks={"gfm": NETWORK | (network or {})},
            training={
                "main": {
                    "setting": "small",
                    "datasets": {"musique": "musique"},
                    "questions": 3,
                    "tuning_questions": 3,
                    "fixed_k_grid": [1],
                }
            },
            learned_runs={
                "gfm_rag": {
                    "method": "gfm_rag",
                    "structure": "knowledge_graph",
                    "trained": "gfm",
                    "max_tokens": 60,
                    "entity_tokens": 50,
                    "k": 2,
                },
                "dynakrag": {"method": "dynakrag", "trained": "gone"},
                "adaptive_rag": {"method": "adaptive_rag", "trained": "baselines"},
                "fixed_k": {"method": "fixed_k", "trained": "baselines"},
            },
            controllers={"gone": {}},
        )
        | changes
    )


def model(body):
    """Names whatever title the text holds; links a passage's title to the titles that it holds."""
    form = (body.get("response_format") or {}).get("json_schema", {}).get("name")
    text = body["messages"][-1]["content"]
    held = [title for title, _ in WORLD if title in text]
    if form == "named":
        return Say(json.dumps({"entities": held}))
    if form == "triples":
        own = next(title for title, body_ in WORLD if body_ in text)
        return Say(json.dumps({"triples": [[own, "tells of", other] for other in held if other != own]}))
    return Say("Because: x.\nAnswer: Skarholm")


def _with(root, work):
    async def main():
        async with opened(config.load(root / "params.yaml"), root) as session:
            return await work(session)

    try:
        return asyncio.run(main())
    except BaseExceptionGroup as group:
        raise next(iter(group.subgroup(MultihopError).exceptions)) from None


def train(root, name="gfm"):
    [folder] = _with(root, lambda s: training_network.train(s, name))
    return folder, json.loads((folder / "card.json").read_text())


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The small project with train questions, indexed, and its knowledge graph."""
    root = make_project(tmp_path_factory.mktemp("network") / "project", questions=2)
    write_params(root, network_params())
    folder = root / "data/prepared/musique"
    texts = [*WORLD, ("Elsewhere", "A fire is told of in a book that nobody wrote.")]
    passages = [Passage(f"p{n}", title, text) for n, (title, text) in enumerate(texts)]
    passages[0], passages[1] = (  # ids of train passages are their own
        Passage("p1", *texts[1]),
        Passage("p0", *texts[0]),
    )
    jsonl.write(folder / "train_questions.jsonl", ({"id": q, "text": t} for q, (t, _) in TRAIN.items()))
    gold = (gold_row(q, "x") | {"supporting": s} for q, (_, s) in TRAIN.items())
    jsonl.write(folder / "train_gold.jsonl", gold)
    jsonl.write(folder / "train_passages.jsonl", map(asdict, passages))
    jsonl.write(folder / "chunks/train.jsonl", map(asdict, build_chunks(passages, "passages")))
    with pytest.MonkeyPatch.context() as patch:
        from project_fixture import URL_ENV
        from scripted_server import ScriptedServer

        with ScriptedServer(model) as server:
            patch.setenv(URL_ENV, server.url)

            async def build(session):
                stages.index(session, "musique")
                for name in ("openie", "knowledge_graph"):
                    await building.build(session, name)

            _with(root, build)
    return root


@pytest.fixture
def project(built, tmp_path):
    target = tmp_path / "project"
    shutil.copytree(built, target, symlinks=True)
    return target


def test_from_train_questions_to_a_run(project, serve):
    server = serve(model)
    with pytest.raises(DataError, match=r"card\.json"):
        run_project(project, "gfm_rag")
    asked = len(server.bodies)
    folder, card = train(project)
    assert len(server.bodies) - asked == 5, "one call for each train question, three trained on, two held out"
    assert {b["max_tokens"] for b in server.bodies[asked:]} == {50}, "the run's own options decide"
    assert card["label"] == "trained here on 3 train questions" and card["trained_on"] == "musique"
    assert card["questions"] == {
        "prepared": 6,
        "gold_not_in_corpus": 1,
        "trained_on": 3,
        "left_out": 0,
        "without_entities": card["questions"]["without_entities"],
    }
    assert len(card["losses"]) == 4 and card["losses"][-1] < card["losses"][0]
    recall = card["recall@5"]
    assert recall["questions"] == 2 and all(0 <= recall[k] <= 1 for k in ("network", "dense", "uniform"))
    assert card["sizes"] == {"features": 6, "hidden": 6, "layers": 2} and card["graph"]["facts"] > 10
    assert sorted(p.name for p in folder.iterdir()) == ["card.json", "model.npz"]
    assert run_project(project, "gfm_rag") == {"ok": 2}
    first = records_of(project, "gfm_rag")
    assert all(len(r.retrieved) == 2 and r.retrieved[0].tool == "gfm_rag" for r in first)

    asked, files = len(server.bodies), {p.name: p.read_bytes() for p in folder.iterdir()}
    train(project)
    assert len(server.bodies) == asked and {p.name: p.read_bytes() for p in folder.iterdir()} == files
    run_project(project, "gfm_rag")
    assert records_of(project, "gfm_rag") == first


def test_gold_decides_what_is_learned_and_nothing_that_is_asked(project, serve):
    server = serve(model)
    folder, _ = train(project)
    before, asked = (folder / "model.npz").read_bytes(), len(server.bodies)
    path = project / "data/prepared/musique/train_gold.jsonl"
    jsonl.write(path, [r | {"supporting": ["p10"]} if r["id"] != "t5" else r for r in jsonl.read(path)])
    train(project)
    assert (folder / "model.npz").read_bytes() != before and len(server.bodies) == asked


@pytest.mark.parametrize("change", [{"id": "q1"}, {"text": "Where was the composer of The Salt Choir born"}])
def test_leakage_is_refused_before_anything_is_asked(project, serve, change):
    server = serve(model)
    path = project / "data/prepared/musique/train_questions.jsonl"
    rows = list(jsonl.read(path))
    rows[0] |= change
    jsonl.write(path, rows)
    gold = project / "data/prepared/musique/train_gold.jsonl"
    jsonl.write(gold, [g | {"id": q["id"]} for g, q in zip(jsonl.read(gold), rows, strict=True)])
    with pytest.raises(DataError, match="also evaluation questions"):
        train(project)
    assert server.bodies == []


def test_too_few_questions_and_questions_without_phrases_are_refused(project, serve):
    server = serve(model)
    write_params(project, network_params({"questions": 6}))
    with pytest.raises(DataError, match=r"6 questions are asked for.*5 of 6 have all gold passages in the corpus"):
        train(project)
    assert server.bodies == []
    path = project / "data/prepared/musique/train_gold.jsonl"
    rows = list(jsonl.read(path))
    write_params(project, network_params({"held_out": 0, "questions": 5}))
    jsonl.write(path, [r | {"supporting": ["p9"]} if r["id"] in ("t0", "t1") else r for r in rows])
    card = train(project)[1]
    assert card["recall@5"] == {"network": None, "uniform": None, "dense": None, "questions": 0}
    assert (card["questions"]["trained_on"], card["questions"]["left_out"]) == (3, 2)
    jsonl.write(path, [r | {"supporting": ["p9"]} for r in rows])
    with pytest.raises(DataError, match="no train question has an entity and a gold passage with phrases"):
        train(project)


def test_no_graph_yet_and_unknown_names(project, serve):
    serve(model)
    with pytest.raises(ConfigError, match="unknown network 'gmf'; did you mean 'gfm'"):
        train(project, "gmf")
    shutil.rmtree(project / "data/structures/knowledge_graph")
    with pytest.raises(DataError, match=r"knowledge_graph.*dvc repro"):
        train(project)


def test_a_checkpoint_is_taken_over_and_used(project, serve):
    server = serve(model)
    write_checkpoint(project / "released", network_of(features=6, hidden=4, layers=6))
    write_params(project, network_params({"checkpoint": "released"}))
    _, card = train(project)
    assert server.bodies == [] and card["label"] == "released checkpoint"
    assert set(card["graph"]) == {"digest", "phrases", "facts", "synonyms"} and card["graph"]["facts"] > 10
    assert card["sizes"] == {"features": 6, "hidden": 4, "layers": 6} and card["embedder"]
    assert run_project(project, "gfm_rag") == {"ok": 2}


def test_a_checkpoint_that_is_missing_or_of_another_dimension_is_refused(project, serve):
    server = serve(model)
    write_params(project, network_params({"checkpoint": "released"}))
    with pytest.raises(DataError, match=r"not there.*leave `checkpoint` out"):
        train(project)
    write_checkpoint(project / "released", network_of(features=768))
    with pytest.raises(DataError, match=r"768 dimensions.*gives 6"):
        train(project)
    assert server.bodies == [] and not (project / "results/trained/gfm").exists()
