"""A slice of real data through the structured baselines that need OpenIE: 3 questions, 60 passages, a model live.

    python benchmarks/structured_slice.py PROJECT DATASET FOLDER [questions] [passages] [seed]

PROJECT holds data/prepared of the dataset (a checkout after `dvc repro`, or scratch/<profile>); FOLDER becomes a
project of its own, under scratch/ for one: benchmark text is written there and nowhere else. Drawn with the seed: the
questions, and distractors beside their gold passages. Reader, embedder, judge, options of indexes and runs are those of
this checkout's params.yaml; MULTIHOP_HOME holds the store and the models, so a stopped call goes on where it was.
Printed: each index's counts, calls, tokens and seconds, each run's answers, and its scores. Triples, answers
and verdicts are a 1.5B model's, on a corpus of 60 passages: no figure of a paper compares with them.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from multihop import building, config, jsonl, running, stages
from multihop.data import splits
from multihop.errors import DataError, MultihopError
from multihop.session import opened
from multihop.types import Gold, Passage, Question

REPO = Path(__file__).resolve().parents[1]
SETTING = "minilm"
INDEXES = ("openie", "knowledge_graph")
RUNS = ("hipporag2", "g_retriever")
SHOWN = ("n", "n_ok", "em", "f1", "support_recall", "llm_calls", "total_tokens")


Drawn = tuple[list[Question], list[Gold], list[Passage]]


def chosen(prepared: Path, questions: int, passages: int, seed: int) -> Drawn:
    """Questions by id, their gold, and the corpus in its own order: their gold passages and distractors.

    Raises DataError where there are fewer questions or passages, or the gold passages alone are more.
    """
    asked, corpus = splits.questions(prepared), splits.passages(prepared)
    gold = {g.id: g for g in splits.gold(prepared)}
    if len(asked) < questions or len(corpus) < passages:
        raise DataError(f"{prepared}: {len(asked)} questions and {len(corpus)} passages; ask for no more than that")
    rng = random.Random(seed)
    drawn = sorted(rng.sample(asked, questions), key=lambda q: q.id)
    needed = {p for q in drawn for p in gold[q.id].supporting}
    if len(needed) > passages:
        raise DataError(f"{questions} questions have {len(needed)} gold passages; ask for at least as many passages")
    others = [p for p in corpus if p.id not in needed]
    kept = needed | {p.id for p in rng.sample(others, passages - len(needed))}
    return drawn, [gold[q.id] for q in drawn], [p for p in corpus if p.id in kept]


def write_raw(folder: Path, questions: Sequence[Question], gold: Sequence[Gold], passages: Sequence[Passage]) -> None:
    """The slice in the plain form, for ``source: local``."""
    of = {p.id: {"title": p.title, "text": p.text} for p in passages}
    jsonl.write(folder / "corpus.jsonl", ({"id": p.id, **of[p.id]} for p in passages))
    rows = (
        {
            "id": q.id,
            "question": q.text,
            "answer": g.answers[0],
            "answer_aliases": list(g.answers[1:]),
            "type": g.type,
            "hops": g.hops,
            "supporting": [of[p] for p in g.supporting],
            "contexts": [],
            "gold_exact": g.exact,
        }
        for q, g in zip(questions, gold, strict=True)
    )
    jsonl.write(folder / "questions.jsonl", rows)


def params_of(full: Mapping[str, Any], dataset: str, setting: str) -> dict[str, Any]:
    """params.yaml with this dataset, this setting, and what the two runs need."""
    kept = {"settings": {setting: full["settings"][setting]}}
    kept |= {
        "structures": {"openie": full["structures"]["openie"] | {"settings": [setting]}},
        "graphs": {"knowledge_graph": full["graphs"]["knowledge_graph"] | {"settings": [setting]}},
        "structured_runs": {},
    }
    for name in RUNS:
        run = {key: v for key, v in full["structured_runs"][name].items() if key not in ("questions", "datasets")}
        kept["structured_runs"][name] = run | {"settings": [setting]}
    shared = ("endpoints", "readers", "embedders", "retrieval", "statistics", "judge", "seeds", "max_error_share")
    kept |= {name: full[name] for name in shared if name in full}
    return kept | {
        "profile": "slice",
        "source": "local",
        "datasets": [dataset],
        "data": {dataset: {"questions": None, "train_questions": 0}},
        "runs": {},
    }


def make(folder: Path, prepared: Path, params: Mapping[str, Any], questions: int, passages: int, seed: int) -> None:
    """The project folder: raw files, params.yaml, prompts and prices of this checkout."""
    [dataset] = params["datasets"]
    write_raw(folder / "source" / dataset, *chosen(prepared, questions, passages, seed))
    (folder / "params.yaml").write_text(yaml.safe_dump(dict(params), sort_keys=False), encoding="utf-8")
    for name in ("prompts", "prices.yaml"):
        if not (folder / name).exists():
            (folder / name).symlink_to(REPO / name)


async def work(folder: Path) -> dict[str, Any]:
    """Every stage from download to scores; the answers and what they cost. Raises ReplayMiss where the model may not
    be asked (MULTIHOP_LIVE=never) and the store lacks an answer."""
    out: dict[str, Any] = {"indexes": {}, "runs": {}}
    params = config.load(folder / "params.yaml")
    async with opened(params, folder) as session:
        [dataset], [setting] = params.datasets, params.settings
        stages.download(session, dataset)
        stages.prepare(session, dataset)
        stages.index(session, dataset)
        for name in INDEXES:
            [built] = (await building.build(session, name)).values()
            facts = json.loads(session.structure_facts(name, dataset, setting).read_text(encoding="utf-8"))
            costs = {"estimated": facts["estimated"], "actual": facts["actual"], "live_calls": built.live_calls}
            out["indexes"][name] = {"seconds": round(built.seconds, 1), **costs, "statistics": built.statistics}
        for name in RUNS:
            started = time.monotonic()
            await running.run(session, name)
            records = stages.read_records(session.records(name, dataset, setting))
            answers = [{"qid": r.qid, "status": r.status, "answer": (r.short or "")[:60]} for r in records]
            out["runs"][name] = {"seconds": round(time.monotonic() - started, 1), "answers": answers}
        metrics = (await stages.score_all(session))[dataset][setting]
        for name in RUNS:
            out["runs"][name]["scores"] = {key: metrics[name].get(key) for key in SHOWN}
    return out


def main() -> None:
    if len(sys.argv) < 4:
        raise SystemExit(__doc__)
    project, dataset, folder = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    numbers = [int(a) for a in sys.argv[4:7]]
    questions, passages, seed = numbers + [3, 60, 0][len(numbers) :]
    full = yaml.safe_load((REPO / "params.yaml").read_text(encoding="utf-8"))
    os.environ["MULTIHOP_DATA_DIR"] = str((folder / "source").resolve())
    try:
        params = params_of(full, dataset, SETTING)
        make(folder, project / "data/prepared" / dataset, params, questions, passages, seed)
        print(json.dumps(asyncio.run(work(folder)), indent=1, ensure_ascii=False))
    except* MultihopError as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise SystemExit(f"{type(error).__name__}: {error}") from None


if __name__ == "__main__":
    main()
