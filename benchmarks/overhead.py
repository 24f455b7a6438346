"""Our own processor time per model call, method by method, beside the bare openai client in the same run.

    python benchmarks/run.py overhead

A server on loopback answers at once. Each method answers the project's questions through ``running.run``, records and
store included, with a fresh store; then the bare client sends the same requests. Counted: the processor time of the
client's process. Apart, and not in it: encoding queries, dense search (LightRAG's package has its own), the trained
controller's (or network's) inference; the row's note says what each takes. What else a method computes is in the
figure; of that the note tells LinearRAG's entity recognition (spaCy's model, on every question) and G-Retriever's
Steiner tree. The project has to be there: ``make repro`` first.
"""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import loopback
import rows
import yaml

from multihop import config, jsonl, running
from multihop.entries import as_sent
from multihop.environment import Environment
from multihop.session import Session
from multihop.types import Question

REPO = Path(__file__).resolve().parents[1]
URL_ENV = "MULTIHOP_BENCHMARK_URL"
WORKERS = 16
WARM = 3
"""Questions answered before the clock starts: models are loaded by the first."""
TARGET = 3.0
OF_THE_METHOD = ("entity recognition", "graph search")
"""Timed for the note alone: they are a part of the figure."""


# -- the project: this checkout's data, indexes and trainings, with more questions and the loopback server


def project(root: Path, source: Path, questions: int, served: bool = True) -> config.Params:
    """A copy of ``source`` under ``root``, each dataset with up to ``questions`` questions of all of them.

    ``served``: every endpoint is the server whose address the environment variable URL_ENV has.
    """
    raw = yaml.safe_load((source / "params.yaml").read_text(encoding="utf-8"))
    for endpoint in raw["endpoints"].values() if served else ():
        endpoint["url_env"] = URL_ENV
        endpoint.pop("key_env", None)
    for block in ("runs", "structured_runs", "learned_runs"):
        for run in raw.get(block, {}).values():
            run.pop("questions", None)
    (root / "params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False, allow_unicode=True), encoding="utf-8")
    for name in ("prompts", "prices.yaml", "data/index", "data/structures", "results/trained", "results/structures"):
        if (source / name).exists():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).symlink_to(source / name)
    for dataset in raw["datasets"]:
        if not (source / "data/prepared" / dataset).is_dir():
            raise SystemExit(f"{source / 'data/prepared' / dataset}: not there; run `make repro` first")
        folder = root / "data/prepared" / dataset
        shutil.copytree(source / "data/prepared" / dataset, folder)
        asked = {}
        for file in sorted(source.glob("data/prepared/*/*questions.jsonl")):
            asked |= {f"{file.parent.name}-{row['id']}": row["text"] for row in jsonl.read(file)}
        chosen = dict(sorted(asked.items())[:questions])
        jsonl.write(folder / "questions.jsonl", ({"id": q, "text": text} for q, text in chosen.items()))
    return config.load(root / "params.yaml")


def first_runs(params: config.Params) -> dict[str, str]:
    """Method -> the first run of params.yaml that uses it."""
    found: dict[str, str] = {}
    for name, run in params.runs.items():
        found.setdefault(run.method, name)
    return found


# -- what is counted apart


@dataclass
class Apart:
    """Processor seconds of wrapped functions, by what they are. A wrapped function inside another counts once."""

    seconds: dict[str, float] = field(default_factory=dict)
    _inside: bool = False
    _before: list[tuple[Any, str, Any]] = field(default_factory=list)

    def replace(self, owner: Any, name: str, by: Any) -> None:
        self._before.append((owner, name, getattr(owner, name)))
        setattr(owner, name, by)

    def __enter__(self) -> Apart:
        return self

    def __exit__(self, *_: object) -> None:
        while self._before:
            setattr(*self._before.pop())

    def wrap(self, owner: Any, name: str, what: str) -> None:
        """Replace ``owner.name`` by the same with its processor time taken."""
        function = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return function(*args, **kwargs)
            self._inside, started = True, time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self._inside = False
                self.seconds[what] = self.seconds.get(what, 0.0) + time.process_time() - started

        self.replace(owner, name, timed)


def counted_apart(params: config.Params) -> Apart:
    """The process's own functions wrapped, until the block of this ends."""
    from multihop.controller.model import ControllerModel
    from multihop.controller.router import Router
    from multihop.methods import g_retriever
    from multihop.retrieval import dense, embedders
    from multihop.structures import entities, lightrag_adapter

    apart = Apart()
    for embedder in (embedders.TransformerEmbedder, embedders.LsaEmbedder):
        for name in ("encode", "truncated"):
            apart.wrap(embedder, name, "query encoding")
    apart.replace(embedders.TransformerEmbedder, "_build", _once(embedders.TransformerEmbedder._build))
    apart.wrap(dense.DenseIndex, "search", "dense search")
    if "lightrag" in first_runs(params):
        lightrag_adapter.require()  # the package's store makes the root logger a loud one, this does not
        import nano_vectordb

        apart.wrap(nano_vectordb.NanoVectorDB, "query", "dense search")
    apart.wrap(entities, "_recognise", "entity recognition")
    apart.wrap(g_retriever, "steiner", "graph search")
    trained: dict[Any, tuple[str, ...]] = {ControllerModel: ("gate", "advantage"), Router: ("route",)}
    if params.networks:
        from multihop.structures.gnn import Network  # torch

        trained[Network] = ("scores",)
    for owner, names in trained.items():
        for name in names:
            apart.wrap(owner, name, "controller inference")
    return apart


def _once(build: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """One model for all runs of this process; loading it is no part of any."""
    loaded: dict[Any, Any] = {}

    def shared(embedder: Any) -> Any:
        if embedder.spec not in loaded:
            loaded[embedder.spec] = build(embedder)
        return loaded[embedder.spec]

    return shared


# -- one method


@dataclass(frozen=True)
class Measured:
    questions: int
    calls: int
    ours: rows.Spent
    apart: dict[str, float]
    bare: rows.Spent

    @property
    def own(self) -> float:
        """Our own processor seconds: without what is counted apart."""
        return self.ours.cpu - sum(seconds for what, seconds in self.apart.items() if what not in OF_THE_METHOD)

    def told(self, of_the_method: bool) -> str:
        """What was timed inside the figure, or apart from it."""
        each = sorted((what, s) for what, s in self.apart.items() if (what in OF_THE_METHOD) == of_the_method)
        return ", ".join(f"{what} {1000 * s / self.questions:.1f}" for what, s in each)


def measure_run(root: Path, params: config.Params, name: str, url: str, apart: Apart) -> Measured:
    """One run against the server at ``url``, in a home of its own; then the bare client with the same requests."""
    dataset, setting = next(iter(params.cells(name)))
    home = Path(tempfile.mkdtemp(dir=root))
    env = {"MULTIHOP_HOME": str(home), "MULTIHOP_LIVE": "always", "MULTIHOP_WORKERS": str(WORKERS)}
    session = Session(params, Environment.read(env), root)
    try:
        cell = running.open_cell(session, name, dataset, setting)
        warm, ours, spent_apart = asyncio.run(_ours(session, cell, apart))
        asked = [row["request"] for row in session.store.rows() if row["kind"] == "response"]
    finally:
        session.store.close()
    bodies = [body_of(request) for request in asked if jsonl.dumps(request) not in warm]
    gc.collect()
    bare = asyncio.run(loopback.bare(url, bodies, WORKERS))
    records = list(jsonl.read(session.records(name, dataset, setting)))
    if failed := [r["error"] for r in records if r.get("error")]:
        raise RuntimeError(f"{name}: {len(failed)} of {len(records)} questions failed: {failed[0]}")
    return Measured(len(records), len(bodies), ours, spent_apart, bare)


async def _ours(session: Session, cell: running.Cell, apart: Apart) -> tuple[set[str], rows.Spent, dict[str, float]]:
    """(requests of the warming up, the run's time, what of it is counted apart)."""
    try:
        for n in range(WARM):
            await cell.answer(Question(f"warm-{n}", f"Which Warm Harbour {n} lies near the Cold River {n}?"), 0)
        warm = {jsonl.dumps(row["request"]) for row in session.store.rows() if row["kind"] == "response"}
        apart.seconds.clear()
        gc.collect()  # as before the bare client: one pass over all that was loaded is longer than a whole run here
        with prepared_cell(session, cell), rows.timed() as ours:
            await running.run(session, cell.run)
        return warm, ours, dict(apart.seconds)
    finally:
        await session.endpoints.close()


@contextmanager
def prepared_cell(session: Session, cell: running.Cell) -> Iterator[None]:
    """In the block, ``running.run`` answers ``cell`` alone, opened and warm as it is."""
    opened, cells = running.open_cell, type(session.params).cells
    running.open_cell = lambda *_, **__: cell
    type(session.params).cells = lambda *_: [(cell.dataset, cell.setting)]
    try:
        yield
    finally:
        running.open_cell, type(session.params).cells = opened, cells


def body_of(stored: dict[str, Any]) -> dict[str, Any]:
    """What a stored request was as a request body."""
    request = as_sent(stored)
    return {key: value for key, value in request.items() if key != "sample"} | {"seed": request["sample"]}


# -- the table


def measure(quick: bool = False, source: Path = REPO, methods: Sequence[str] = ()) -> list[rows.Row]:
    """``source``: a project with its indexes (and trainings); ``methods``: these alone."""
    questions = 6 if quick else 60
    found: list[rows.Row] = []
    with tempfile.TemporaryDirectory() as folder, loopback.Loopback() as url:
        root = Path(folder)
        os.environ[URL_ENV] = url
        params = project(root, source, questions)
        with counted_apart(params) as apart:
            for method, name in first_runs(params).items():
                if not methods or method in methods:
                    found.append(_row(method, measure_run(root, params, name, url, apart)))
                    print(said(found[-1]), file=sys.stderr, flush=True)
    return found


def _row(method: str, m: Measured) -> rows.Row:
    each, reference = 1000 * m.own / m.calls, 1000 * m.bare.cpu / m.calls
    rate = f"{m.questions / m.ours.wall:.0f} questions/s, {m.calls / m.ours.wall:.0f} calls/s"
    note = f"{m.questions} questions, {m.calls / m.questions:.1f} calls each; {rate}"
    for name, parts in (("apart", m.told(False)), ("in the figure", m.told(True))):
        note += f"; {name}, ms a question: {parts}" if parts else ""
    met = each <= TARGET * reference
    named = "the bare openai client"
    return rows.Row("overhead", method, each, "ms CPU a call", reference, named, f"ratio <= {TARGET:g}", met, note)


def said(row: rows.Row) -> str:
    return f"{row.what:16}{row.ours:7.2f} of {row.reference:6.2f} {row.unit}: {row.ratio:5.2f}  {row.note}"


if __name__ == "__main__":
    measure("--quick" in sys.argv, methods=[a for a in sys.argv[1:] if not a.startswith("-")])
