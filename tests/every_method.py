"""The small project with every method of the package: indexes, structures, trainings, runs and scores.

``commands`` are those that dvc.yaml's stages call where a model can be asked, in its order; ``perform`` does what the
command line does with one, in this process. The model behind it is benchmarks/loopback.py's, which answers by rules in
whatever form a request asks for, the same to the same request; here it takes entities and triples from the text.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from project_fixture import REPO, WORLD, gold_row, make_project, params_for, write_params
from scripted_server import Body, Say

sys.path.append(str(REPO / "benchmarks"))
import loopback

from multihop import building, config, jsonl, running, stages, training, training_network
from multihop.data.chunks import build_chunks
from multihop.methods import registry
from multihop.session import opened
from multihop.types import Passage

TRAIN = {
    "t0": ("Where does the author of The Lantern Ferry come from?", "Skarholm"),
    "t1": ("Who was the teacher of the composer of The Salt Choir?", "Lene Astrup"),
    "t2": ("Where did the brother of the novelist Oda Wren die?", "Tavik"),
    "t3": ("Which river ends at the town of the mayor Karla Möhn?", "Lisse"),
}
STRUCTURED = {
    "kgp": "passage_graph", "g_retriever": "knowledge_graph", "raptor": "tree", "lightrag": "lightrag",
    "hipporag": "knowledge_graph", "hipporag2": "knowledge_graph", "linearrag": "tri_graph",
}  # fmt: skip
LEARNED = {"fixed_k": "baselines", "adaptive_rag": "baselines", "dynakrag": "controller", "gfm_rag": "gfm"}
PLAIN = (
    *("direct", "vanilla", "cot_rag", "arag", "executionrag", "ircot", "s2g_rag", "corag", "par2_rag", "crag"),
    *("lag", "self_ask"),
)
SLOW = ("lightrag", "gfm_rag", "kgp", "linearrag")
"""Load torch, spaCy or LightRAG's package: not in the tests' quick form."""
_OVER = {"knowledge_graph": "openie", "passage_graph": "entities", "tri_graph": "entities"}


def model(body: Body) -> Say:
    form = (body.get("response_format") or {}).get("json_schema", {}).get("schema", {}).get("properties", {})
    if not {"entities", "triples"} & set(form):
        return loopback.reply_to(body)
    names = [title for title, _ in WORLD if title in body["messages"][-1]["content"]] or ["Nobody"]
    triples = [[first, "is named with", second] for first, second in itertools.pairwise(names)]
    return Say(json.dumps({"entities": names} if "entities" in form else {"triples": triples}))


def params(methods: tuple[str, ...]) -> dict[str, Any]:
    """params.yaml for ``methods``, with the structures and trainings that they need."""
    short, entry = {"max_tokens": 60}, {"settings": ["small"]}
    used = {s for m, s in (STRUCTURED | {"gfm_rag": "knowledge_graph"}).items() if m in methods}
    graphs = {name: {"structure": name, "over": over, **entry} for name, over in _OVER.items() if name in used}
    structures = {graph["over"] for graph in graphs.values()} | used - set(_OVER)
    learned: dict[str, Any] = {m: {"method": m, "trained": t, **short} for m, t in LEARNED.items() if m in methods}
    networks = {}
    if "gfm_rag" in learned:
        learned["gfm_rag"]["structure"] = "knowledge_graph"
        networks = {"gfm": {"structure": "knowledge_graph", "questions": 3, "hidden": 8, "layers": 2, "epochs": 2}}
    training = {"setting": "small", "datasets": {"musique": "musique"}, "questions": 3, "tuning_questions": 3}
    return params_for(
        runs={m: params_for()["runs"].get(m, {"method": m, **short}) for m in PLAIN if m in methods},
        structures={s: {"structure": s, **entry} for s in sorted(structures)},
        graphs=graphs,
        networks=networks,
        structured_runs={m: {"method": m, "structure": s, **short} for m, s in STRUCTURED.items() if m in methods},
        training={"main": training | {"seeds": [0], "fixed_k_grid": [1, 3]}},
        controllers={"controller": {"trees": 10, "min_leaf": 2}},
        learned_runs=learned,
    )


def make(root: Path, methods: tuple[str, ...] = tuple(registry.names())) -> Path:
    """A project under ``root`` for ``methods``, with train questions beside the small project's."""
    make_project(root)
    write_params(root, params(methods))
    folder = root / "data/prepared/musique"
    passages = [Passage(f"p{n}", title, text) for n, (title, text) in enumerate(WORLD)]
    jsonl.write(folder / "train_questions.jsonl", ({"id": q, "text": t} for q, (t, _) in TRAIN.items()))
    jsonl.write(folder / "train_gold.jsonl", (gold_row(q, a) for q, (_, a) in TRAIN.items()))
    jsonl.write(folder / "train_passages.jsonl", map(asdict, passages))
    jsonl.write(folder / "chunks/train.jsonl", map(asdict, build_chunks(passages, "passages")))
    return root


def commands(root: Path) -> list[str]:
    chosen = config.load(root / "params.yaml")
    built = [f"build {name}" for name in (*chosen.structures, *chosen.graphs)]
    trained = ["collect", *(f"fit {name}" for name in chosen.controllers), "tune"] if chosen.training else []
    trained += [f"train {name}" for name in chosen.networks]
    return ["index musique", *built, *trained, *(f"run {name}" for name in chosen.runs), "score"]


_WORK = {
    "index": stages.index, "build": building.build, "collect": training.collect, "fit": training.fit,
    "tune": training.tune, "train": training_network.train, "run": running.run, "score": stages.score_all,
}  # fmt: skip


def perform(root: Path, command: str) -> None:
    """Raises what the stage raises."""
    name, *given = command.split()

    async def work() -> None:
        async with opened(config.load(root / "params.yaml"), root) as session:
            done = _WORK[name](session, *given)
            if inspect.isawaitable(done):
                await done

    asyncio.run(work())
