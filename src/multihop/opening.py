"""Opening what stages have written: prompts, search indexes, structures, trainings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from multihop import jsonl
from multihop.controller import model
from multihop.controller.router import Router
from multihop.errors import DataError
from multihop.retrieval.files import open_retriever
from multihop.retrieval.index import Retriever
from multihop.session import Session
from multihop.structures import registry


def load_prompts(root: Path, owner: str) -> dict[str, str]:
    """Prompt texts by file name without suffix: the method's (or structure's) own folder over prompts/shared."""
    texts = {}
    for folder in (root / "prompts/shared", root / "prompts" / owner):
        for path in sorted(folder.glob("*.txt")):
            if path.stem != "README":
                texts[path.stem] = path.read_text(encoding="utf-8").strip()
    return texts


def open_index(session: Session, dataset: str, setting: str, train: bool = False) -> Retriever:
    """The retriever of a (dataset, setting); ``train``: over the corpus of its train questions.

    Raises DataError where its index is missing or of another corpus.
    """
    chosen = session.params.settings[setting]
    if train:
        return _open(session, dataset, session.params.train_index_name(), chosen.embedder, "train")
    return _open(session, dataset, session.params.index_name(setting), chosen.embedder, chosen.corpus)


def open_certificate_index(session: Session, dataset: str, name: str) -> Retriever:
    """The retriever of one of ``certificate_indexes``. Raises DataError as ``open_index`` does."""
    return _open(session, dataset, name, *session.params.certificate_indexes()[name])


def _open(session: Session, dataset: str, name: str, embedder: str, corpus: str) -> Retriever:
    return open_retriever(
        session.prepared(dataset),
        session.root / "data/index" / dataset / name,
        corpus,
        session.params.embedders[embedder].overrides(),
        session.store,
        session.retrieval_params(),
        allow=session.may_ask,
        hub=session.params.source == "hub",
    )


def structure_identity(session: Session, name: str, setting: str, retriever: Retriever) -> dict[str, Any]:
    """What decides a structure's files: written beside its facts, compared when it is opened."""
    made = registry.create(session.params, name)
    entry = session.params.structure(name)
    identity = {
        "structure": made.name,
        "options": made.params.model_dump(mode="json"),
        "corpus": retriever.corpus,
        "retrieval": session.retrieval_params(),
        "space": retriever.embedder.space,
        "over": structure_identity(session, entry.over, setting, retriever) if entry.over else None,
    }
    if asks_a_model(session.root, made.name):
        reader = session.params.readers[session.params.settings[setting].reader]
        identity["prompts"] = jsonl.digest(load_prompts(session.root, made.name))
        identity["reader"] = reader.model_dump(mode="json")
    return identity


def asks_a_model(root: Path, structure: str) -> bool:
    """A structure that asks a model has prompts of its own; the others' folder explains why there are none."""
    return any(path.stem != "README" for path in (root / "prompts" / structure).glob("*.txt"))


def open_structure(session: Session, name: str, dataset: str, setting: str, retriever: Retriever) -> Any:
    """What the structure's ``load`` gives. Raises DataError where it is missing, or of another corpus or embedder."""
    folder = session.structure(name, dataset, setting)
    what_to_do = f"run `dvc repro` (or `multihop build {name}`)"
    if not folder.is_dir():
        raise DataError(f"{folder}: not there yet; {what_to_do}")
    facts = jsonl.read_json(session.structure_facts(name, dataset, setting), what_to_do)
    if facts.get("identity") != structure_identity(session, name, setting, retriever):
        raise DataError(f"{folder}: built from another corpus, embedder, reader, prompt or params; run `dvc repro`")
    over = session.params.structure(name).over
    below = open_structure(session, over, dataset, setting, retriever) if over else None
    return registry.create(session.params, name).load(folder, retriever, below)


def open_trained(session: Session, run: str, dataset: str) -> tuple[Callable[[int], Any], str]:
    """(what a learned run is given, by seed; its hash). Raises DataError where it is missing, old or tampered with."""
    name = session.params.run(run).trained
    if name is None:
        return (lambda seed: None), ""
    folder = session.trained(name, served_by(session, name, dataset))
    kind = session.params.kind_of_training(name)
    if kind == "baselines":
        router, depth = jsonl.read_json(folder / "router.json"), jsonl.read_json(folder / "fixed_k.json")
        found = {"router": Router.from_json(router), "k": depth["k"]}
        return (lambda seed: found), jsonl.digest(router | depth)
    card = jsonl.read_json(folder / "card.json")
    if kind == "network":
        from multihop.structures import gnn  # torch, only where a run needs it

        network = gnn.load(folder)
        return (lambda seed: network), jsonl.digest(card)
    models = {s: {"controller": model.load(folder, s)} for s in session.params.seeds_of(run)}
    return models.__getitem__, jsonl.digest(card)


def served_by(session: Session, name: str, dataset: str) -> str:
    """The dataset whose training serves ``dataset``: params.yaml says it, or what is there without a training."""
    if training := session.params.the_training:
        return training.datasets[dataset]
    there = sorted(p.name for p in session.trained(name, "").glob("*") if p.is_dir())
    return there[0] if len(there) == 1 else dataset
