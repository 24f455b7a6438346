"""The pipeline's stages as functions of a session; cli gives each a sub-command, dvc.yaml a place in the graph."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from multihop import jsonl, running
from multihop.analysis import failures
from multihop.config import Params
from multihop.data import splits
from multihop.data.download import fetch
from multihop.data.prepare import prepare as prepare_data
from multihop.errors import ConfigError
from multihop.evaluation import aggregate, judge, recall, score
from multihop.evaluation.answers import gold_answers
from multihop.evaluation.support import ChunkMap
from multihop.gathering import gathered
from multihop.jsonl import read_records
from multihop.llm import batching
from multihop.llm.client import ContextOverflow, NoAnswer, Refused
from multihop.retrieval.files import build_index
from multihop.session import Session
from multihop.types import Question, RunRecord

DEMO_QUESTIONS = 20
"""Questions that the generator writes for each dataset; data.<dataset>.questions of them are used."""


SHARED = ("datasets", "seeds", "settings", "readers", "endpoints", "embedders", "retrieval")
"""The blocks of params.yaml that every run reads."""


def resolve(params: Params, root: Path) -> list[Path]:
    """Write results/params: the blocks that many stages read, and all of params.yaml, with their defaults."""
    everything = params.model_dump(mode="json")
    files = {"all": everything, "shared": {name: everything[name] for name in SHARED}}
    files |= {name: everything[name] for name in ("training", "learned_runs")}
    paths = {root / f"results/params/{name}.json": content for name, content in files.items()}
    for path, content in paths.items():
        jsonl.write_json(path, content)
    return list(paths)


def check_access(session: Session) -> None:
    """Keys and addresses that the settings in use need, before hours of download. Raises ConfigError naming them."""
    params = session.params
    if params.source != "hub" or session.env.live == "never":
        return
    used = {params.settings[setting].reader for run in params.runs for _, setting in params.cells(run)}
    missing = {}
    for reader in sorted(used | {params.judge.reader}):
        endpoint = params.endpoints[params.readers[reader].endpoint]
        for variable in (endpoint.key_env, endpoint.url_env):
            if variable and not os.environ.get(variable):
                missing.setdefault(variable, reader)
    if missing:
        said = ", ".join(f"{variable} (reader {reader})" for variable, reader in missing.items())
        raise ConfigError(f"set {said} before anything is downloaded; MULTIHOP_LIVE=never replays without a model")


def download(session: Session, dataset: str) -> None:
    """Fetch or generate the raw files. Raises ConfigError where a folder, key or address is missing."""
    check_access(session)
    params, env = session.params, session.env
    if params.source == "local" and env.data_dir is None:
        raise ConfigError("source: local needs MULTIHOP_DATA_DIR, the folder with the benchmark files")
    wanted = params.data[dataset]
    demo = {
        "seed": params.demo.seed,
        "passages": params.demo.passages,
        "questions": max(DEMO_QUESTIONS, wanted.questions or 0),
        "train_questions": wanted.train_questions or 0,
    }
    fetch(
        params.source,
        dataset,
        session.raw(dataset),
        local_dir=env.data_dir,
        demo=demo,
        hub={"release": params.hub_release},
        lock_path=session.root / "data/hub.lock.json",
    )


def prepare(session: Session, dataset: str) -> dict[str, Any]:
    params = session.params
    wanted = params.data[dataset]
    return prepare_data(
        session.raw(dataset),
        session.prepared(dataset),
        dataset,
        limit=wanted.questions,
        limit_train=wanted.train_questions,
        subset_ids=session.root / wanted.ids if wanted.ids else None,
        variants=("passages", "chunk1000"),
        window=params.retrieval.chunk_tokens,
        overlap=params.retrieval.chunk_overlap,
        pool=wanted.pool,
        sample_seed=wanted.sample_seed,
        drop_empty=params.source == "hub",
    )


def index(session: Session, dataset: str) -> list[dict[str, Any]]:
    """One index per (embedder, corpus variant) that a setting or certificates use; the folder is rebuilt whole."""
    params = session.params
    folder = session.root / "data/index" / dataset
    if folder.exists():
        shutil.rmtree(folder)
    wanted = {params.index_name(name): (s.corpus, s.embedder) for name, s in params.settings.items()}
    wanted |= {name: (corpus, embedder) for name, (embedder, corpus) in params.certificate_indexes().items()}
    training = params.the_training
    if training and dataset in training.datasets.values():
        wanted[params.train_index_name()] = ("train", params.settings[training.setting].embedder)
    return [
        build_index(
            session.prepared(dataset),
            variant,
            params.embedders[embedder].overrides(),
            session.store,
            folder / place,
            session.retrieval_params(),
            allow=session.may_ask,
            hub=params.source == "hub",
        )
        for place, (variant, embedder) in wanted.items()
    ]


def retrieval(session: Session) -> dict[str, Any]:
    """recall@2/5/10 of the question itself as query, over all prepared questions; writes results/retrieval.json."""
    out: dict[str, Any] = {}
    for dataset in session.params.datasets:
        prepared = session.prepared(dataset)
        questions, gold = splits.questions(prepared), splits.gold(prepared)
        for setting in session.params.settings:
            retriever = running.open_index(session, dataset, setting)
            chunks = ChunkMap(splits.chunks(prepared, session.params.settings[setting].corpus))
            searches = {
                "dense": retriever.dense,
                "semantic_search": retriever.semantic_search,
                "bm25": retriever.bm25,
            }
            for tool, search in searches.items():
                rankings = {
                    q.id: [chunks.passages_of(hit.chunk_id) for hit in search(q.text, max(recall.DEPTHS))]
                    for q in questions
                }
                table = recall.table(rankings, gold, session.params.statistics.seed)
                out.setdefault(dataset, {}).setdefault(setting, {})[tool] = table
    jsonl.write_json(session.root / "results/retrieval.json", out)
    return out


def cells(session: Session) -> Iterator[tuple[str, str, str]]:
    """(run, dataset, setting) of every cell that has records."""
    for run in session.params.runs:
        for dataset, setting in session.params.cells(run):
            yield run, dataset, setting


def score_cell_of(session: Session, dataset: str, setting: str, run: str) -> score.Cell:
    chosen = session.params.settings[setting]
    prepared = session.prepared(dataset)
    return score.Cell(
        dataset=dataset,
        setting=setting,
        run=run,
        ids=tuple(q.id for q in splits.questions(prepared)[: session.params.run(run).questions]),
        seeds=tuple(session.params.seeds_of(run)),
        gold={g.id: g for g in splits.gold(prepared)},
        chunks=ChunkMap(splits.chunks(prepared, chosen.corpus)),
        reader_model=session.params.readers[chosen.reader].model,
        prices=session.prices,
    )


async def score_records(session: Session, cell: score.Cell, records: list[RunRecord]) -> list[dict[str, Any]]:
    params = session.params
    prompts, judging = judge.Prompts.load(session.root / "prompts"), session.client(params.judge.reader)
    extracting = session.client(params.judge.extract_reader or params.judge.reader)
    said = [r for r in records if r.status != "error" and r.qid in cell.gold]
    if batching.offered(extracting):
        free = [r for r in said if r.mode == "free"]
        await batching.ahead(extracting, free, lambda r: judge.extract(extracting, prompts, r.question, r.answer))
    if batching.offered(judging):
        gold = {qid: gold_answers(g)[0] for qid, g in cell.gold.items()}
        ask = lambda r: judge.judge(judging, prompts, score.message(r), gold[r.qid])  # noqa: E731
        await batching.ahead(judging, said, ask)
    return await score.score_cell(
        records,
        cell,
        judging,
        prompts,
        extract_client=extracting,
        concurrency=session.workers(params.judge.reader),
        recordable=(Refused, ContextOverflow),
        unanswered=(NoAnswer,),
    )


async def score_all(session: Session) -> dict[str, Any]:
    """Scores, failures and metrics of every cell; writes them and returns the metrics."""
    judge_model = session.params.readers[session.params.judge.reader].model
    session.begin("score", session.params.judging_readers())
    metrics: dict[tuple[str, str, str], dict[str, Any]] = {}
    for folder in ("results/scores", "results/failures"):
        shutil.rmtree(session.root / folder, ignore_errors=True)
    for run, dataset, setting in cells(session):
        cell = score_cell_of(session, dataset, setting, run)
        # Neither the score nor the category looks at the other events, which are most of a record.
        records = read_records(session.records(run, dataset, setting), {*score.EVENTS, *failures.EVENTS})
        try:
            rows = await score_records(session, cell, records)
        finally:
            session.side_log("score")
        wrong = failures.classify_cell(records, rows, cell.gold, cell.chunks)
        place = Path(dataset) / setting / f"{run}.jsonl"
        jsonl.write(session.root / "results/scores" / place, rows)
        jsonl.write(session.root / "results/failures" / place, wrong)
        metrics[dataset, setting, run] = aggregate.metrics(rows, judge_model)
    nested = aggregate.nest(metrics)
    jsonl.write_json(session.root / "results/metrics.json", nested)
    return nested


def questions_of(session: Session, run: str, dataset: str) -> list[Question]:
    """The questions that a run answers, in the file's order."""
    return splits.questions(session.prepared(dataset))[: session.params.run(run).questions]


@dataclass(frozen=True)
class Slice:
    """A cell of which a few questions are asked, judged and shortened at a time; no result is written."""

    session: Session
    cell: running.Cell
    scored: score.Cell

    @staticmethod
    def open(session: Session, run: str, dataset: str, setting: str) -> Slice:
        """Raises MultihopError where params, data, index or training do not allow it."""
        cell = running.open_cell(session, run, dataset, setting)
        return Slice(session, cell, score_cell_of(session, dataset, setting, run))

    async def ask(self, questions: Sequence[Question], workers: int = 1) -> list[RunRecord]:
        """Whatever the questions need, judge and extraction included, ``workers`` at a time."""
        session, params = self.session, self.session.params
        session.begin(f"run {self.cell.run}", [params.settings[self.cell.setting].reader, *params.judging_readers()])
        jobs = [(q, seed) for q in questions for seed in params.seeds_of(self.cell.run)]
        await self.cell.ask_ahead(jobs)
        records = await gathered(jobs, lambda job: self.cell.answer(*job), workers)
        session.begin("score", params.judging_readers())
        await score_records(session, replace(self.scored, ids=tuple(q.id for q in questions)), records)
        return records


async def record_slice(session: Session, run: str, dataset: str, setting: str, first: int) -> list[RunRecord]:
    """Ask whatever the first ``first`` questions of a cell need, one after another."""
    return await Slice.open(session, run, dataset, setting).ask(questions_of(session, run, dataset)[:first])
