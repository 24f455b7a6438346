"""Training: trajectories of train questions -> targets -> controllers; the baselines' router and depth (paper 2).

Gold is read here and in evaluation, never by a method: a target is made of recall and F1, a feature of neither.
Everything is asked through the store, so that a killed collection goes on where it was.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from multihop import jsonl, running
from multihop.config import Controller
from multihop.controller import features, fitting
from multihop.controller.router import Router
from multihop.controller.state import RETRIEVING, EvidenceState
from multihop.controller.validity import valid
from multihop.data import splits
from multihop.data.formats import sample
from multihop.data.prepare import plain_text
from multihop.errors import ConfigError, DataError
from multihop.evaluation.answers import score_answer
from multihop.gathering import gathered
from multihop.methods.base import Tools, Trace
from multihop.methods.operations import Workspace, start
from multihop.methods.reading import read_and_answer
from multihop.session import Session
from multihop.types import Gold, Question

SCRIPT = ("R", "S", "G", "B")
"""The scripted roll-out beside the uniform one: it makes sure that gaps and bridges are seen."""
BASELINES = "baselines"
GOOD_F1 = 0.8
"""A strategy answers a question where it reaches this F1 (the router's labels)."""


@dataclass
class Trainer:
    """One training dataset, open: its questions and gold, and the reader, prompts and index they are run with."""

    session: Session
    dataset: str
    cell: running.Cell
    questions: list[Question]
    gold: dict[str, Gold]

    def tools(self, qid: str, seed: int) -> Tools:
        rng = random.Random(f"{seed}:{qid}:train")
        return Tools(
            self.cell.retriever, self.cell.client, self.cell.prompts, Trace(), seed, rng, self.cell.trained(seed)
        )

    def recall(self, state: EvidenceState, gold: Gold) -> float:
        """U(s): the share of the gold passages that the evidence holds."""
        held = {p for c in state.docs for p in self.cell.retriever.passages_of(c)}
        return sum(p in held for p in gold.supporting) / len(gold.supporting)

    def f1(self, answer: str, gold: Gold) -> float:
        return score_answer(self.dataset, answer, gold)["f1"]


def open_trainer(session: Session, dataset: str, run: str, count: int) -> Trainer:
    """Raises DataError for too few train questions or for leakage, naming ids."""
    prepared = session.prepared(dataset)
    questions = splits.questions(prepared, "train")
    refuse_leakage(questions, splits.questions(prepared), dataset)
    if len(questions) < count:
        raise DataError(
            f"training on {dataset}: {count} questions are asked for (params.yaml: training), "
            f"{len(questions)} are prepared; raise data.{dataset}.train_questions"
        )
    gold = {g.id: g for g in splits.gold(prepared, "train")}
    cell = running.open_train_cell(session, run, dataset)
    corpus = {p for chunk in cell.retriever.chunks for p in cell.retriever.passages_of(chunk.id)}
    usable = [q for q in questions if gold[q.id].supporting and set(gold[q.id].supporting) <= corpus]
    drawn = sample([q.id for q in usable], count, _training(session).sample_seed)
    return Trainer(session, dataset, cell, [q for q in usable if q.id in drawn], gold)


def refuse_leakage(train: list[Question], dev: list[Question], dataset: str) -> None:
    """Train questions that are evaluation questions, by id or by normalised text. Raises DataError naming them."""
    ids, texts = {q.id for q in dev}, {plain_text(q.text) for q in dev}
    same = [q.id for q in train if q.id in ids or plain_text(q.text) in texts]
    if same:
        raise DataError(
            f"training on {dataset}: {len(same)} train questions are also evaluation questions: "
            f"{splits.name_some(same)}"
        )


# -- collecting trajectories


async def collect(session: Session) -> dict[str, int]:
    """Write data/trajectories/<dataset>/states.jsonl for each training dataset; returns states by dataset."""
    session.begin("collect", [session.params.settings[_training(session).setting].reader])
    counts = {}
    for dataset in sorted(set(_training(session).datasets.values())):
        try:
            rows = await _states(session, dataset)
        finally:
            session.side_log("collect")
        jsonl.write(session.root / "data/trajectories" / dataset / "states.jsonl", rows)
        counts[dataset] = len(rows)
    return counts


async def _states(session: Session, dataset: str) -> list[dict[str, Any]]:
    training = _training(session)
    trainer = open_trainer(session, dataset, training.run, training.questions)
    jobs = [(q, seed) for q in trainer.questions for seed in training.collection_seeds]
    found = await gather(session, training.setting, jobs, lambda job: _trajectories(trainer, *job))
    rows = [row for each in found for row in each]
    return sorted(rows, key=lambda r: (r["seed"], r["qid"], r["rollout"], r["step"]))


async def gather(
    session: Session, setting: str, items: Sequence[Any], ask: Callable[[Any], Awaitable[Any]]
) -> list[Any]:
    """``ask`` of every item, in order, as many at a time as the setting's reader has workers."""
    return await gathered(items, ask, session.workers(session.params.settings[setting].reader))


async def _trajectories(trainer: Trainer, question: Question, seed: int) -> list[dict[str, Any]]:
    """One uniform and one scripted roll-out, every valid action tried at every visited state."""
    rows = []
    for rollout in ("uniform", "scripted"):
        visited = [row async for row in _roll(trainer, question, seed, rollout)]
        for row in visited:
            row["final_f1"] = visited[-1]["f1"]
        rows += visited
    return rows


async def _roll(trainer: Trainer, question: Question, seed: int, rollout: str) -> Any:
    params = trainer.cell.method.params
    tools, gold, limits = trainer.tools(question.id, seed), trainer.gold[question.id], params.limits
    work = Workspace(tools, limits, params.check_tokens, params.rewrite_tokens)
    state = start(question.text, tools)
    while True:
        row = {
            "seed": seed,
            "qid": question.id,
            "rollout": rollout,
            "step": state.step,
            "features": features.state_vector(state, limits, tools.retriever),
            "u": round(trainer.recall(state, gold), 6),
            "f1": await _prefix_f1(trainer, question, state, tools),
            "tokens": state.tokens,
            "chosen": None,
            "branches": [],
        }
        following: dict[str, EvidenceState] = {}
        if state.step < limits.steps:
            for action in valid(state, limits):
                branch, after = await _branch(trainer, gold, work, state, action)
                row["branches"].append(branch)
                if after is not None:
                    following[action] = after
        if not following:
            yield row
            return
        row["chosen"] = _pick(rollout, list(following), state.step, tools.rng)
        yield row
        state = following[row["chosen"]]


def _pick(rollout: str, actions: list[str], step: int, rng: random.Random) -> str:
    """The collection policy: it never stops early. The script falls back where its action is not valid."""
    drawn = rng.choice(sorted(actions))
    if rollout == "uniform":
        return drawn
    return next(a for a in (SCRIPT[step % len(SCRIPT)], "B", "R", "W", "G", "S") if a in actions)


async def _branch(
    trainer: Trainer, gold: Gold, work: Workspace, state: EvidenceState, action: str
) -> tuple[dict[str, Any], EvidenceState | None]:
    """What ``action`` does in ``state``; for a negative check also what the gap query after it does."""
    row: dict[str, Any] = {
        "action": action,
        "features": features.action_vector(action, state, work.tools.retriever),
        "u_after": round(trainer.recall(state, gold), 6),
        "tokens": 0,
        "retrievals": 0,
        "sufficient": None,
        "u_follow": None,
        "follow_tokens": 0,
        "follow_retrievals": 0,
    }
    if action == "T":
        return row, None
    after = await work.run(action, state)
    step = after.history[-1]
    row |= {
        "u_after": round(trainer.recall(after, gold), 6),
        "tokens": step.tokens,
        "retrievals": int(action in RETRIEVING and step.retrievals > 0),
        "sufficient": step.sufficient,
    }
    if action == "S" and not step.sufficient and "G" in valid(after, work.limits) and after.step < work.limits.steps:
        followed = await work.run("G", after)
        row |= {
            "u_follow": round(trainer.recall(followed, gold), 6),
            "follow_tokens": followed.history[-1].tokens,
            "follow_retrievals": 1,
        }
    return row, after


async def _prefix_f1(trainer: Trainer, question: Question, state: EvidenceState, tools: Tools) -> float:
    """F1 of the answer that stopping here would give, from the uncompressed evidence; 0 without evidence."""
    if not state.docs:
        return 0.0
    scratch = replace(tools, trace=Trace())
    tokens = trainer.cell.method.params.max_tokens
    answer = await read_and_answer(question, list(state.docs), scratch, max_tokens=tokens)
    return round(trainer.f1(answer.short or "", trainer.gold[question.id]), 6)


# -- fitting the controller


def fit(session: Session, name: str) -> list[Path]:
    """Train controller ``name`` on each training dataset; writes models and cards, returns the folders."""
    training = _training(session)
    if name not in session.params.controllers:
        raise ConfigError(f"unknown controller {name!r}; params.yaml has: {', '.join(session.params.controllers)}")
    folders = []
    for dataset in sorted(set(training.datasets.values())):
        rows = list(jsonl.read(session.root / "data/trajectories" / dataset / "states.jsonl"))
        folder = session.trained(name, dataset)
        facts = {
            "controller": name,
            "trained_on": dataset,
            "setting": training.setting,
            "profile": session.params.profile,
        }
        fitting.write(folder, rows, fit_options(session.params.controllers[name]), training.seeds, facts)
        folders.append(folder)
    return folders


def fit_options(controller: Controller) -> fitting.FitOptions:
    return fitting.FitOptions(**controller.model_dump())


# -- the baselines that are tuned


async def tune(session: Session) -> dict[str, Any]:
    """Train Adaptive-RAG's router and choose Fixed-K's depth on train questions; writes router.json, fixed_k.json."""
    training = _training(session)
    session.begin("tune", [session.params.settings[training.setting].reader])
    out = {}
    for dataset in sorted(set(training.datasets.values())):
        try:
            router, depth = await _router(session, dataset), await _depth(session, dataset)
        finally:
            session.side_log("tune")
        folder = session.trained(BASELINES, dataset)
        jsonl.write_json(folder / "router.json", router)
        jsonl.write_json(folder / "fixed_k.json", depth)
        out[dataset] = {"labels": router["labels"], "k": depth["k"]}
    return out


async def _answers(
    session: Session, dataset: str, run: str, count: int, **options: Any
) -> list[tuple[Question, float]]:
    """(question, F1) of the first train questions, answered by ``run``'s method with ``options`` over its own."""
    trainer = open_trainer(session, dataset, run, count)
    cls = type(trainer.cell.method)
    method = cls(cls.Params.model_validate({**trainer.cell.method.params.model_dump(), **options}))

    async def one(question: Question) -> float:
        answer = await method.answer(question, trainer.tools(question.id, 0))
        return trainer.f1(answer.short or "", trainer.gold[question.id])

    training = _training(session)
    found = await gather(session, training.setting, trainer.questions, one)
    return list(zip(trainer.questions, found, strict=True))


async def _router(session: Session, dataset: str) -> dict[str, Any]:
    """Silver labels: the cheapest strategy that answers; where none does, the costliest (Jeong et al. 2024)."""
    training = _training(session)
    by_strategy = {}
    for strategy in ("A", "B", "C"):
        scored = await _answers(session, dataset, training.router_run, training.tuning_questions, strategy=strategy)
        by_strategy[strategy] = {q.id: f1 for q, f1 in scored}
    questions = [q for q, _ in scored]
    labels = [next((s for s in "ABC" if by_strategy[s][q.id] >= GOOD_F1), "C") for q in questions]
    retriever = running.open_train_cell(session, training.router_run, dataset).retriever
    router = Router.fit([retriever.query_vector(q.text) for q in questions], labels)
    return router.to_json() | {
        "labels": {s: labels.count(s) for s in "ABC"},
        "mean_f1": {s: round(sum(v.values()) / len(v), 6) for s, v in by_strategy.items()},
        "questions": len(questions),
        "trained_on": dataset,
    }


async def _depth(session: Session, dataset: str) -> dict[str, Any]:
    """The depth with the best F1 on train questions; the smaller one where two are equal."""
    training = _training(session)
    grid = {}
    for k in training.fixed_k_grid:
        scored = await _answers(session, dataset, training.fixed_k_run, training.tuning_questions, k=k)
        grid[k] = round(sum(f1 for _, f1 in scored) / len(scored), 6)
    best = max(sorted(grid), key=lambda k: grid[k])
    return {
        "k": best,
        "grid": {str(k): grid[k] for k in sorted(grid)},
        "questions": training.tuning_questions,
        "trained_on": dataset,
    }


def _training(session: Session) -> Any:
    if session.params.the_training is None:
        raise ConfigError("params.yaml: training is empty: nothing to collect, fit or tune")
    return session.params.the_training
