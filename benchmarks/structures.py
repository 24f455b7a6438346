"""Indexing without a language model: time and peak memory by corpus size, and recall of what is built.

    python benchmarks/structures.py PROJECT DATASET SETTING [passages ...]

PROJECT holds params.yaml, data/prepared and data/index of the dataset (a checkout after `dvc repro`, or
scratch/<profile>); by default all passages and half of them. Each size is measured in a process of its own, so that
the peak is its own, with an empty store: passages' vectors come from the index, spaCy runs once over all passages, and
the vectors of entities are computed and counted apart. ``wall`` is the clock, ``cpu`` this process's processor time
(all threads), which a busy machine does not stretch; ``peak_mib`` the process's peak after each step, so that a step
that raises it shows. ``linearrag``: entities, their vectors and the graph, in NER passes (cpu).

A last process answers every question without a model: recall@2/5/10 of LinearRAG, of KGP (the question itself in place
of what the model would ask for) and of dense search.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from multihop import config
from multihop.data import splits
from multihop.environment import Environment
from multihop.evaluation import recall
from multihop.evaluation.support import ChunkMap
from multihop.llm.client import Reply
from multihop.methods.base import Tools
from multihop.methods.kgp import Kgp
from multihop.methods.linearrag import LinearRag
from multihop.opening import load_prompts, open_index
from multihop.retrieval.index import Retriever
from multihop.retrieval.sentences import Sentence
from multihop.retrieval.tokens import count_tokens
from multihop.session import Session
from multihop.store import Store
from multihop.structures import clustering, entities, passage_graph, tree, tri_graph
from multihop.structures.base import Builder
from multihop.trace import Trace
from multihop.types import Usage

DEPTH = max(recall.DEPTHS)


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Clock:
    """Wall and processor seconds by name, and the peak of memory at the end of each."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = {}
        self.cpu: dict[str, float] = {}
        self.peak: dict[str, int] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.wall[name] = self.wall.get(name, 0.0) + time.perf_counter() - wall
        self.cpu[name] = self.cpu.get(name, 0.0) + time.process_time() - cpu
        self.peak[name] = round(peak_mib())

    def seconds(self) -> dict[str, dict[str, float]]:
        return {name: {"wall": round(self.wall[name], 2), "cpu": round(self.cpu[name], 2)} for name in self.wall}


def first(retriever: Retriever, count: int, store: Store) -> Retriever:
    """The same search over the first ``count`` chunks."""
    chunks = retriever.chunks[:count]
    sentences = [(c.id, text, vector) for c in chunks for text, vector in retriever.sentences_of(c.id)]
    return Retriever(
        chunks,
        [Sentence(owner, text) for owner, text, _ in sentences],
        retriever.chunk_vectors[:count],
        np.stack([vector for _, _, vector in sentences]),
        retriever.embedder,
        store,
        retriever.params,
    )


class Built:
    """The structures over a retriever, and what each took."""

    def __init__(self, retriever: Retriever, folder: Path):
        self.retriever, self.folder = retriever, folder
        self.clock = Clock()
        self.statistics: dict[str, Any] = {}

    def build(self, structure: Any, over: Any = None) -> Any:
        place = self.folder / structure.name
        place.mkdir(parents=True)
        builder = Builder(self.retriever, None, {}, place, over)
        with self.clock(structure.name):
            self.statistics[structure.name] = asyncio.run(structure.build(builder))
        return structure.load(place, self.retriever, over)

    def all(self) -> dict[str, Any]:
        found = self.build(entities.Entities(entities.Params()))
        names = sorted({name for c in self.retriever.chunks for name in found.of(c.id)})
        with self.clock("entity_vectors"):
            Builder(self.retriever, None, {}, self.folder).vectors(names)
        return {
            "tri_graph": self.build(tri_graph.TriGraphBuilder(tri_graph.Params()), found),
            "passage_graph": self.build(passage_graph.PassageGraphBuilder(passage_graph.Params()), found),
        }


def opened(project: Path, dataset: str, setting: str) -> tuple[Session, Retriever]:
    session = Session(config.load(project / "params.yaml"), Environment.read(), project)
    return session, open_index(session, dataset, setting)


def measure(project: Path, dataset: str, setting: str, passages: int) -> dict[str, Any]:
    """Builds over the first ``passages``, with a store of its own that is empty."""
    session, retriever = opened(project, dataset, setting)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "store.sqlite")
        small = first(retriever, passages, store)
        before = round(peak_mib())
        built = Built(small, Path(folder))
        clock, recognise = built.clock, entities._recognise

        def timed(*args: Any) -> Any:
            with clock("ner"):
                return recognise(*args)

        entities._recognise = timed  # called by the build of entities, once for each block of passages
        built.all()
        store.close()
    p = tree.Params()
    how = clustering.Clustering(p.components, p.neighbours, p.threshold, p.max_clusters, p.cluster_tokens, p.seed)
    tokens = [count_tokens(c.text) for c in small.chunks]
    vectors = small.chunk_vectors
    with clock("tree_first_layer"):
        how.clusters(vectors, tokens)
    session.store.close()
    linearrag = sum(clock.cpu[name] for name in ("entities", "entity_vectors", "tri_graph"))
    return {
        "passages": len(small.chunks),
        "seconds": clock.seconds(),
        "linearrag": {"cpu": round(linearrag, 2), "ner_passes": round(linearrag / clock.cpu["ner"], 2)},
        "peak_mib": {"before": before} | clock.peak,
        "statistics": built.statistics,
    }


class Silent:
    """In place of a model: KGP is told to look for the question's own words, readers answer nothing."""

    def __init__(self, says: str):
        self.says = says

    async def chat(self, messages: Any, **options: Any) -> Reply:
        return Reply(self.says, Usage(1), "stop")


def recalls(project: Path, dataset: str, setting: str) -> dict[str, Any]:
    session, retriever = opened(project, dataset, setting)
    prepared = session.prepared(dataset)
    questions, gold = splits.questions(prepared), splits.gold(prepared)
    chunks = ChunkMap(splits.chunks(prepared, session.params.settings[setting].corpus))
    with tempfile.TemporaryDirectory() as folder:
        built = Built(retriever, Path(folder)).all()
        out = {"dense": [retriever.dense(q.text, DEPTH) for q in questions]}
        methods = {
            "linearrag": (LinearRag(LinearRag.Params(k=DEPTH)), built["tri_graph"]),
            "kgp_question_only": (Kgp(Kgp.Params(k=DEPTH, start=DEPTH)), built["passage_graph"]),
        }
        fallbacks = dict.fromkeys(methods, 0)
        started, took = time.perf_counter(), {}
        for name, (method, structure) in methods.items():
            out[name] = []
            for q in questions:
                trace = Trace()
                prompts = load_prompts(Path("."), method.name)
                tools = Tools(retriever, Silent(q.text), prompts, trace, 0, random.Random(0), None, structure)
                answer = asyncio.run(method.answer(q, tools))
                out[name].append(answer.cited)
                fallbacks[name] += any(e.kind == "fallback" for e in trace.events)
            took[name] = round((time.perf_counter() - started) / len(questions), 4)
            started = time.perf_counter()
    tables = {}
    for name, rankings in out.items():
        ids = [[h if isinstance(h, str) else h.chunk_id for h in hits] for hits in rankings]
        found = {q.id: [chunks.passages_of(i) for i in row] for q, row in zip(questions, ids, strict=True)}
        table = recall.table(found, gold, 0)["all"]
        tables[name] = {f"recall@{k}": round(table[f"recall@{k}"]["mean"], 4) for k in recall.DEPTHS}
    session.store.close()
    return {"questions": len(questions), "recall": tables, "seconds_per_question": took, "fallbacks": fallbacks}


def main() -> None:
    if sys.argv[1] == "--one":
        project, dataset, setting, passages = sys.argv[2:6]
        found = measure(Path(project), dataset, setting, int(passages))
        print(json.dumps(found))
        return
    if sys.argv[1] == "--recall":
        print(json.dumps(recalls(Path(sys.argv[2]), sys.argv[3], sys.argv[4])))
        return
    project, dataset, setting = sys.argv[1:4]
    session, retriever = opened(Path(project), dataset, setting)
    session.store.close()
    sizes = [int(a) for a in sys.argv[4:]] or [len(retriever.chunks) // 2, len(retriever.chunks)]
    where = [project, dataset, setting]
    for job in [["--one", *where, str(n)] for n in sizes] + [["--recall", *where]]:
        done = subprocess.run([sys.executable, __file__, *job], check=True, stdout=subprocess.PIPE, text=True)
        print(json.dumps(json.loads(done.stdout), indent=1))


if __name__ == "__main__":
    main()
