"""A simulated run: world -> prepare -> index -> run -> score -> failures, all by the pipeline's own functions.

Only two things are not a user's pipeline: the endpoint (endpoint.py), and that a share of the gold passages is made
unreachable between prepare and index.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from multihop import config, jsonl, running, stages
from multihop.blocks import Faults
from multihop.data import splits
from multihop.environment import Environment
from multihop.instrument import plan
from multihop.instrument.endpoint import Simulated, SimulatedEndpoints
from multihop.instrument.judge import SimulatedJudge
from multihop.instrument.plan import Case
from multihop.instrument.reader import Log, SimulatedReader
from multihop.instrument.wording import VERBATIM, Wording
from multihop.session import Session
from multihop.types import Gold, RunRecord

DATASET, SETTING = "musique", "simulated"
METHODS = ("arag", "executionrag")
EMPTY = "⁂"
"""The text of an unreachable passage: no word, so that no search ranks it above a passage with one."""
LOOPS = 20
"""Enough for four hops with four searches each, so that only a reader that stalls runs out of them."""
PASSAGES_PER_QUESTION = 2
LEAST_PASSAGES = 300


@dataclass(frozen=True)
class Simulation:
    """What was injected and what came out, by method; rows sorted by question id."""

    root: Path
    cases: Mapping[str, Case]
    """By question id."""
    unreachable: frozenset[str]
    logs: Mapping[str, Mapping[str, Log]]
    """method -> question id -> the reader's own log."""
    verdicts: Mapping[tuple[str, str], bool]
    """(gold, answer) -> what the judge said."""
    records: Mapping[str, list[RunRecord]]
    scores: Mapping[str, list[dict[str, Any]]]
    failures: Mapping[str, list[dict[str, Any]]]

    @property
    def gold(self) -> dict[str, Gold]:
        return {qid: case.gold for qid, case in self.cases.items()}


async def simulate(
    project: Path,
    root: Path,
    questions: int,
    faults: Faults,
    seed: int,
    options: Mapping[str, Any] | None = None,
    wording: Wording = VERBATIM,
) -> Simulation:
    """Run both methods over a generated world in the empty folder ``root``.

    ``project``: the folder whose prompts/ are used. ``options``: by method, over its params. ``wording``: of queries.
    Raises MultihopError as the stages do.
    """
    params = _project(project, root, questions, seed, options or {})
    opening = session_of(params, root, "index")
    try:
        cases, hidden = _world(opening, faults, seed)
        hide(opening.prepared(DATASET), hidden)
        stages.index(opening, DATASET)
    finally:
        opening.store.close()
    logs = {}
    for method in METHODS:
        reader = SimulatedReader(cases, seed, wording=wording)
        await _run(session_of(params, root, method, reader), method)
        logs[method] = reader.logs
    judge = SimulatedJudge(_judge_prompts(root), faults, seed)
    await _score(session_of(params, root, "score", judge))
    return Simulation(
        root,
        {case.question.id: case for case in cases.values()},
        frozenset(hidden),
        logs,
        judge.verdicts,
        {m: stages.read_records(root / "results/runs" / m / DATASET / f"{SETTING}.jsonl") for m in METHODS},
        {m: list(jsonl.read(_result(root, "scores", m))) for m in METHODS},
        {m: list(jsonl.read(_result(root, "failures", m))) for m in METHODS},
    )


def draws(project: Path, root: Path, questions: int, faults: Faults, seed: int) -> tuple[list[Case], list[str]]:
    """(cases, unreachable passages) of the run that ``simulate`` would make, without making it."""
    opening = session_of(_project(project, root, questions, seed, {}), root, "index")
    try:
        cases, hidden = _world(opening, faults, seed)
    finally:
        opening.store.close()
    return list(cases.values()), hidden


def _world(opening: Session, faults: Faults, seed: int) -> tuple[dict[str, Case], list[str]]:
    """The generated world, prepared; its questions' faults by question text, and its unreachable passages."""
    stages.download(opening, DATASET)
    stages.prepare(opening, DATASET)
    prepared = opening.prepared(DATASET)
    cases = plan.draw(splits.questions(prepared), splits.gold(prepared), faults, seed)
    return cases, plan.unreachable(cases, faults, seed)


def _result(root: Path, kind: str, method: str) -> Path:
    return root / "results" / kind / DATASET / SETTING / f"{method}.jsonl"


def hide(prepared: Path, passages: list[str]) -> None:
    """Empty the chunks of these passages: titles, texts and gold stay as they are, but no search can return them."""
    path, wanted = prepared / "chunks/passages.jsonl", set(passages)
    rows = list(jsonl.read(path))
    for row in rows:
        if row["id"] in wanted:
            row["text"] = EMPTY
            row["spans"] = [span | {"start": 0, "end": len(EMPTY)} for span in row["spans"]]
    jsonl.write(path, rows)


def session_of(params: config.Params, root: Path, part: str, model: Simulated | None = None) -> Session:
    """Each part has a store of its own, so that every run asks its own reader."""
    env = Environment.read({"MULTIHOP_HOME": f".multihop-{part}", "MULTIHOP_RECORDINGS": "no-recordings"})
    session = Session(params, env, root)
    if model is not None:
        session.endpoints = SimulatedEndpoints(params.endpoints, env, model)
    return session


async def _run(session: Session, method: str) -> None:
    try:
        await running.run(session, method)
    finally:
        session.store.close()


async def _score(session: Session) -> None:
    try:
        await stages.score_all(session)
    finally:
        session.store.close()


def _judge_prompts(root: Path) -> dict[str, str]:
    places = {"judge_system": "judge/system.txt", "extract_system": "extract/system.txt"}
    return {name: (root / "prompts" / p).read_text(encoding="utf-8").strip() for name, p in places.items()}


def _project(project: Path, root: Path, questions: int, seed: int, options: Mapping[str, Any]) -> config.Params:
    """params.yaml, prompts and prices of the simulated project: a simulated reader costs nothing."""
    root.mkdir(parents=True, exist_ok=True)
    shutil.copytree(project / "prompts", root / "prompts")
    prices = {"models": {"simulated": {"input": 0, "cached": 0, "output": 0}}}
    (root / "prices.yaml").write_text(yaml.safe_dump(prices), encoding="utf-8")
    runs = {m: {"method": m, "k": 1, "max_loops": LOOPS} | dict(options.get(m, {})) for m in METHODS}
    passages = max(LEAST_PASSAGES, PASSAGES_PER_QUESTION * questions)
    params = {
        "profile": "instrument",
        "datasets": [DATASET],
        "demo": {"seed": seed, "passages": passages},
        "data": {DATASET: {"questions": questions, "train_questions": 0}},
        "endpoints": {"simulated": {}},
        "readers": {"simulated": {"endpoint": "simulated", "model": "simulated"}},
        "embedders": {"lsa": {"preset": "lsa"}},
        "settings": {SETTING: {"reader": "simulated", "embedder": "lsa"}},
        "judge": {"reader": "simulated"},
        "certificates": {"corpora": ["passages"], "tools": ["semantic_search", "keyword_search"]},
        "max_error_share": 0.0,
        "runs": runs,
    }
    text = yaml.safe_dump(params, sort_keys=False)
    (root / "params.yaml").write_text(text, encoding="utf-8")
    return config.load(root / "params.yaml")
