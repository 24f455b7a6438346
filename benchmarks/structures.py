"""Indexing without a language model: time and peak memory by corpus size, and recall of what is built.

    python benchmarks/structures.py PROJECT DATASET SETTING [passages ...]

PROJECT holds params.yaml, data/prepared and data/index of the dataset (a checkout after `dvc repro`, or
scratch/<profile>); by default all passages and half of them. Each size is measured in a process of its own, so that
the peak is its own, with an empty store: passages' vectors come from the index, spaCy runs once over all passages, and
the vectors of entities are computed and counted apart. ``wall`` is the clock, ``cpu`` this process's processor time
(all threads), which a busy machine stretches less; ``added_mib`` by how much a step raised the peak of memory. What
is built on entities runs in a child of its own, so that its peak is not hidden by an earlier one. ``linearrag``:
entities, their vectors and the graph, in NER passes (cpu). The knowledge graph has no triples here (a language model
finds them): each passage's neighbouring entities stand in, with their own vectors; those of facts are zeros.
``growth``: each step's cpu and memory over those of the size before.

A last process answers every question without a model: recall@2/5/10 of LinearRAG, of KGP (the question itself in place
of what the model would ask for) and of dense search.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
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
from multihop.structures import clustering, entities, knowledge_graph, passage_graph, tree, tri_graph
from multihop.structures.base import Builder
from multihop.structures.openie import Extraction
from multihop.trace import Trace
from multihop.types import Usage

DEPTH = max(recall.DEPTHS)


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


class Clock:
    """Wall and processor seconds by name, and by how much each raised the peak of memory over what was held."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = {}
        self.cpu: dict[str, float] = {}
        self.added: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        wall, cpu, held = time.perf_counter(), time.process_time(), resident_mib()
        yield
        self.wall[name] = self.wall.get(name, 0.0) + time.perf_counter() - wall
        self.cpu[name] = self.cpu.get(name, 0.0) + time.process_time() - cpu
        self.added[name] = max(self.added.get(name, 0.0), round(peak_mib() - held, 1))

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


class WithoutFacts(Builder):
    """A phrase has its entity's vector; relations and facts of the stand-in are not encoded: zeros."""

    def vectors(self, texts: Any) -> np.ndarray:
        found = {knowledge_graph.phrase_of(name): name for triples in self.over.values() for name in triples.entities}
        if all(text in found for text in texts):
            return super().vectors([found[text] for text in texts])
        return np.zeros((len(texts), self.retriever.chunk_vectors.shape[1]), dtype=np.float16)


class Built:
    """The structures over a retriever, and what each took."""

    def __init__(self, retriever: Retriever, folder: Path):
        self.retriever, self.folder = retriever, folder
        self.clock = Clock()
        self.statistics: dict[str, Any] = {}

    def build(self, structure: Any, over: Any = None, kind: type[Builder] = Builder) -> None:
        place = self.folder / structure.name
        place.mkdir(parents=True)
        builder = kind(self.retriever, None, {}, place, over)
        with self.clock(structure.name):
            self.statistics[structure.name] = asyncio.run(structure.build(builder))

    def names(self) -> entities.EntityIndex:
        """Entities, then the vectors of their names."""
        made = entities.Entities(entities.Params())
        self.build(made)
        found = made.load(self.folder / made.name, self.retriever, None)
        distinct = sorted({name for c in self.retriever.chunks for name in found.of(c.id)})
        with self.clock("entity_vectors"):
            Builder(self.retriever, None, {}, self.folder).vectors(distinct)
        return found

    def all(self) -> dict[str, Any]:
        found, made = self.names(), {}
        for structure in graphs():
            self.build(structure, found)
            made[structure.name] = structure.load(self.folder / structure.name, self.retriever, found)
        return made

    def apart(self, store: Path, work: Any) -> None:
        """``work`` in a child with its own connection to the store; its figures come back."""
        place = self.folder / "figures.json"
        if child := os.fork():
            if os.waitpid(child, 0)[1]:
                raise SystemExit("a step failed, see above")
            found = json.loads(place.read_text())
            for mine, theirs in zip((self.clock.wall, self.clock.cpu, self.clock.added), found["clock"], strict=True):
                mine |= theirs
            self.statistics |= found["statistics"]
            return
        try:
            self.clock, self.retriever.store = Clock(), Store(store)
            work()
            clock = self.clock.wall, self.clock.cpu, self.clock.added
            place.write_text(json.dumps({"clock": clock, "statistics": self.statistics}))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)


def graphs() -> list[Any]:
    return [
        tri_graph.TriGraphBuilder(tri_graph.Params()),
        passage_graph.PassageGraphBuilder(passage_graph.Params()),
    ]


def stand_in(retriever: Retriever, index: entities.EntityIndex) -> dict[str, Extraction]:
    """Triples of each passage's neighbouring entities, in order of appearance."""
    out = {}
    for chunk in retriever.chunks:
        names = index.of(chunk.id)
        triples = tuple((a, "stands beside", b) for a, b in pairwise(names))
        out[chunk.id] = Extraction(chunk.id, tuple(names), triples)
    return out


def cluster(built: Built) -> None:
    """RAPTOR's first layer, the passages; what UMAP compiles once is not counted."""
    p = tree.Params()
    how = clustering.Clustering(p.components, p.neighbours, p.threshold, p.max_clusters, p.cluster_tokens, p.seed)
    vectors, tokens = built.retriever.chunk_vectors, [count_tokens(c.text) for c in built.retriever.chunks]
    how.clusters(vectors[:50], tokens[:50])
    with built.clock("tree_first_layer"):
        built.statistics["tree_first_layer"] = {"clusters": len(how.clusters(vectors, tokens))}


def opened(project: Path, dataset: str, setting: str) -> tuple[Session, Retriever]:
    session = Session(config.load(project / "params.yaml"), Environment.read(), project)
    return session, open_index(session, dataset, setting)


def measure(project: Path, dataset: str, setting: str, passages: int) -> dict[str, Any]:
    """Builds over the first ``passages``, with a store of its own that is empty."""
    session, retriever = opened(project, dataset, setting)
    session.store.close()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "store.sqlite"
        small = first(retriever, passages, Store(place))
        built = Built(small, Path(folder))
        clock, recognise = built.clock, entities._recognise
        entities._recognise(entities.Params(), [small.chunks[0].text])  # loads the pipeline
        small.embedder.encode(["."], "passage")  # and the model: neither is a part of indexing

        def timed(*args: Any) -> Any:
            with clock("ner"):
                return recognise(*args)

        entities._recognise = timed  # called by the build of entities, once for each block of passages
        found = built.names()
        small.store.close()
        for structure in graphs():
            built.apart(place, lambda made=structure: built.build(made, found))
        graph = knowledge_graph.KnowledgeGraphStructure(knowledge_graph.Params())
        triples = stand_in(small, found)
        built.apart(place, lambda: built.build(graph, triples, WithoutFacts))
        built.apart(place, lambda: cluster(built))
    linearrag = sum(clock.cpu[name] for name in ("entities", "entity_vectors", "tri_graph"))
    return {
        "passages": len(small.chunks),
        "seconds": clock.seconds(),
        "linearrag": {"cpu": round(linearrag, 2), "ner_passes": round(linearrag / clock.cpu["ner"], 2)},
        "added_mib": clock.added,
        "statistics": built.statistics,
    }


def growth(small: dict[str, Any], large: dict[str, Any]) -> dict[str, Any]:
    """Of each step: processor time and memory of the larger size over the smaller's (null where it added none)."""
    out: dict[str, Any] = {"passages": round(large["passages"] / small["passages"], 2)}
    for name, seconds in large["seconds"].items():
        before, mib = small["seconds"][name]["cpu"], small["added_mib"][name]
        out[name] = {
            "cpu": round(seconds["cpu"] / before, 2) if before else None,
            "memory": round(large["added_mib"][name] / mib, 2) if mib else None,
        }
    return out


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
    found: list[dict[str, Any]] = []
    for job in [["--one", *where, str(n)] for n in sizes] + [["--recall", *where]]:
        done = subprocess.run([sys.executable, __file__, *job], check=True, stdout=subprocess.PIPE, text=True)
        found.append(json.loads(done.stdout))
        print(json.dumps(found[-1], indent=1), flush=True)
        if job[0] == "--one" and len(found) > 1:
            print(json.dumps({"growth": growth(*found[-2:])}, indent=1), flush=True)


if __name__ == "__main__":
    main()
