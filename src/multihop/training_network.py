"""Training GFM-RAG's graph network on train questions, or taking the checkpoint that is given (params.yaml: networks).

Positives are the phrases of a question's gold passages (Luo et al. 2025, section 3.3): gold is read here, as in
:mod:`multihop.training`, never by the method. The graph is that of the evaluation corpus; a train question whose gold
passages are not in it, by title and text, is left out and counted. What is written is committed, so that a replay on
another processor runs with the same weights.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from multihop import config, jsonl, messages
from multihop.data import splits
from multihop.data.formats import sample
from multihop.errors import ConfigError, DataError
from multihop.llm.client import ContextOverflow, Refused
from multihop.methods import registry
from multihop.methods.base import Tools, Trace
from multihop.methods.gfm_rag import GFMRag
from multihop.opening import load_prompts, open_index, open_structure
from multihop.session import Session
from multihop.structures import gnn, gnn_fit
from multihop.structures.gnn_checkpoint import read_checkpoint
from multihop.structures.knowledge_graph import KnowledgeGraph
from multihop.training import gather, refuse_leakage
from multihop.types import Question

AT = 5
"""The card's recall is that of the first so many passages."""


@dataclass(frozen=True)
class Example:
    """One train question as the network learns from it."""

    question: Question
    vector: np.ndarray
    linked: list[int]
    """Phrases that the question is placed on; none: nothing can be learned from it."""
    positives: list[int]
    """Phrases of its gold passages."""
    gold: tuple[str, ...]
    """Ids of its gold passages in the evaluation corpus."""
    dense: list[str]
    """Chunk ids of the dense ranking, ``AT`` of them."""


async def train(session: Session, name: str) -> list[Path]:
    """Write results/trained/<name>/<dataset>/{model.npz, card.json} for each training dataset; returns the folders.

    A checkpoint and the train questions of every dataset are checked before anything is asked. Raises ConfigError,
    DataError.
    """
    entry, setting, datasets = _entry(session, name)
    if entry.checkpoint is not None:
        return [_take_checkpoint(session, name, entry, setting, dataset) for dataset in datasets]
    chosen = {dataset: _questions(session, entry, dataset) for dataset in datasets}
    session.begin(f"train {name}", [session.params.settings[setting].reader])
    folders = []
    for dataset in datasets:
        try:
            folders.append(await _train(session, name, setting, dataset, *chosen[dataset]))
        finally:
            session.side_log(f"train-{name}-{dataset}")
    return folders


def _entry(session: Session, name: str) -> tuple[config.Network, str, list[str]]:
    """(the network's params, its setting, the datasets it is trained on)."""
    params, training = session.params, session.params.the_training
    if name not in params.networks:
        raise ConfigError(messages.unknown("network", name, params.networks))
    entry = params.networks[name]
    if params.structure(entry.structure).structure != GFMRag.structure:
        raise ConfigError(f"params.yaml: networks.{name}.structure: needs an entry of structure {GFMRag.structure!r}")
    datasets = sorted(set(training.datasets.values())) if training else list(params.datasets)
    return entry, params.network_setting(entry), datasets


def _take_checkpoint(session: Session, name: str, entry: config.Network, setting: str, dataset: str) -> Path:
    retriever = open_index(session, dataset, setting)
    features = len(retriever.chunk_vector(retriever.chunks[0].id))
    network, about = read_checkpoint(session.root / str(entry.checkpoint), features)
    graph = open_structure(session, entry.structure, dataset, setting, retriever)
    folder = session.trained(name, dataset)
    gnn.save(folder, network, {"network": name, "setting": setting, "graph": _graph_facts(graph), **about})
    return folder


# -- the questions, their gold and their entities


def _questions(
    session: Session, entry: config.Network, dataset: str
) -> tuple[list[Question], list[Question], dict[str, tuple[str, ...]], dict[str, int]]:
    """(to train on, held out, gold passages by question id, counts). Raises DataError for leakage or too few."""
    prepared = session.prepared(dataset)
    questions = splits.questions(prepared, "train")
    refuse_leakage(questions, splits.questions(prepared), dataset)
    here = {p.full: p.id for p in reversed(splits.passages(prepared))}
    there = {p.id: here.get(p.full) for p in splits.passages(prepared, "train")}
    gold = {g.id: tuple(there.get(p) for p in g.supporting) for g in splits.gold(prepared, "train")}
    usable = [q for q in questions if gold[q.id] and None not in gold[q.id]]
    if len(usable) < entry.questions:
        raise DataError(
            f"training a network on {dataset}: {entry.questions} questions are asked for (params.yaml: networks), "
            f"{len(usable)} of {len(questions)} have all gold passages in the corpus; raise "
            f"data.{dataset}.train_questions, or ask for fewer"
        )
    ids, seed = [q.id for q in usable], session.params.the_training.sample_seed
    first = sample(ids, entry.questions, seed)
    further = sample(ids, entry.questions + entry.held_out, seed) - first
    counts = {"prepared": len(questions), "gold_not_in_corpus": len(questions) - len(usable)}
    return [q for q in usable if q.id in first], [q for q in usable if q.id in further], gold, counts


async def _examples(
    session: Session, method: GFMRag, graph: KnowledgeGraph, setting: str, questions: list[Question], gold: Any
) -> tuple[list[Example], int]:
    """(the questions as examples, how many named no entity of the graph). Asks what the method would ask."""
    retriever = graph.retriever
    client = session.client(session.params.settings[setting].reader)
    prompts = load_prompts(session.root, method.name)
    chunks = {p: row for row, c in enumerate(retriever.chunks) for p in retriever.passages_of(c.id)}
    unnamed = 0

    async def one(question: Question) -> Example:
        nonlocal unnamed
        trace = Trace()
        tools = Tools(retriever, client, prompts, trace, 0, random.Random(f"0:{question.id}:train"), structure=graph)
        try:
            linked = await method.linked(question.text, tools)
        except (Refused, ContextOverflow):
            linked = []  # concerns this question alone: it is left out
        unnamed += any(e.kind == "fallback" for e in trace.events)
        rows = sorted({chunks[p] for p in gold[question.id]})
        positives = sorted({int(i) for row in rows for i in graph.mentions[row].indices})
        dense = [h.chunk_id for h in retriever.dense(question.text, AT)]
        return Example(
            question, retriever.query_vector(question.text), linked, positives, tuple(gold[question.id]), dense
        )

    return await gather(session, setting, questions, one), unnamed


# -- training


async def _train(
    session: Session,
    name: str,
    setting: str,
    dataset: str,
    questions: list[Question],
    held_out: list[Question],
    gold: dict[str, tuple[str, ...]],
    counts: dict[str, int],
) -> Path:
    entry = session.params.networks[name]
    graph = open_structure(session, entry.structure, dataset, setting, open_index(session, dataset, setting))
    method = _method(session, name)
    asked, unnamed = await _examples(session, method, graph, setting, questions + held_out, gold)
    examples, unseen = asked[: len(questions)], asked[len(questions) :]
    usable = _usable(examples, f"{name} on {dataset}", entry.structure)
    options = gnn_fit.Options(entry.hidden, entry.layers, entry.epochs, entry.learning_rate, entry.seed)
    network, losses = gnn_fit.fit(
        gnn.Graph.of(graph),
        [e.vector for e in usable],
        [e.linked for e in usable],
        [e.positives for e in usable],
        options,
    )
    card = {
        "network": name,
        "trained_on": dataset,
        "setting": setting,
        "profile": session.params.profile,
        "graph": _graph_facts(graph),
        "questions": counts
        | {"trained_on": len(usable), "left_out": len(examples) - len(usable), "without_entities": unnamed},
        "options": entry.model_dump(exclude={"structure", "checkpoint", "setting"}),
        "losses": losses,
        f"recall@{AT}": recalls(graph, network, method, unseen),
    }
    folder = session.trained(name, dataset)
    gnn.save(folder, network, card)
    return folder


def _usable(examples: list[Example], where: str, structure: str) -> list[Example]:
    """Those that something can be learned from. Raises DataError where there is none."""
    if not (usable := [e for e in examples if e.linked and e.positives]):
        raise DataError(
            f"training {where}: no train question has an entity and a gold passage with phrases in the graph "
            f"{structure}; see its statistics (data/structures)"
        )
    return usable


def _graph_facts(graph: KnowledgeGraph) -> dict[str, Any]:
    """Which graph a network was made for: with another one the card, and so the runs, are others."""
    return {
        "digest": jsonl.digest([graph.phrases, graph.relations, graph.facts, graph.synonyms]),
        "phrases": len(graph.phrases),
        "facts": len(graph.facts),
        "synonyms": len(graph.synonyms),
    }


def _method(session: Session, name: str) -> GFMRag:
    """The method of the first run that uses the network: its options decide what is asked."""
    for run, entry in session.params.learned_runs.items():
        if entry.trained == name and entry.method == GFMRag.name:
            return registry.create(entry, f"params.yaml: {session.params.where(run)}")
    return GFMRag(GFMRag.Params())


# -- what it is worth


def recalls(
    graph: KnowledgeGraph, network: gnn.Network, method: GFMRag, examples: Sequence[Example]
) -> dict[str, float | int | None]:
    """Mean recall of gold passages on questions that were not trained on, beside two rankings without training.

    ``uniform``: the same entities vote, scored by as many rounds of averaging over neighbours as there are layers.
    """
    edges = gnn.Graph.of(graph)
    found: dict[str, list[float]] = {"network": [], "uniform": [], "dense": []}
    for example in examples:
        found["dense"].append(_recall(graph, example, example.dense))
        for what in ("network", "uniform"):
            ranking = example.dense
            if example.linked:
                scores = (
                    network.scores(graph, example.vector, example.linked)
                    if what == "network"
                    else gnn_fit.spread(edges, example.linked, network.sizes.layers)
                )
                ranking = [h.chunk_id for h in method.ranked(scores, graph)][:AT] or example.dense
            found[what].append(_recall(graph, example, ranking))
    means = {what: round(sum(v) / len(v), 4) if v else None for what, v in found.items()}
    return means | {"questions": len(examples)}


def _recall(graph: KnowledgeGraph, example: Example, chunk_ids: Sequence[str]) -> float:
    held = {p for c in chunk_ids for p in graph.retriever.passages_of(c)}
    return sum(p in held for p in example.gold) / len(example.gold)
