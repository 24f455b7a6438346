"""From trajectories to trained controllers and their model card.

Paper 2, "Learning a State-Conditioned Control Policy" and its implementation details. Each training splits the
questions 80/20, fits four forests on the larger part, and calibrates the classifiers and chooses the gate's thresholds
on the smaller. Where the data cannot carry a step, the card says what was done instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from multihop import jsonl
from multihop.controller import calibration, card, skill, targets, tasks, thresholds
from multihop.controller.calibration import Calibrator
from multihop.controller.forest import Forest
from multihop.controller.model import DIGITS, FORESTS, ControllerModel, file_entry, save
from multihop.controller.tasks import FitOptions, Names, Row, Task
from multihop.errors import DataError

__all__ = ["FitOptions", "Names", "fit", "write"]
CLASSIFIERS = ("continuation", "premature")
FEWEST = 5
"""With fewer questions set aside, out-of-fold predictions of all questions calibrate and choose the thresholds."""


def write(
    folder: Path, rows: Sequence[Row], options: FitOptions, seeds: Sequence[int], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """:func:`fit`, written to ``folder``: seed<r>.npz of each training and card.json. Returns the card."""
    models, written = fit(rows, options, seeds=seeds, facts=facts)
    for model in models:
        save(model, folder)
    jsonl.write_json(folder / "card.json", written)
    return written


def fit(
    rows: Sequence[Row],
    options: FitOptions,
    *,
    seeds: Sequence[int] = (0,),
    facts: Mapping[str, Any] | None = None,
    names: Names | None = None,
) -> tuple[list[ControllerModel], dict[str, Any]]:
    """One controller per seed, and the card. Depends on the rows (in any order) and the arguments only.

    ``facts`` go into the card as they are; ``names``: the features that the rows were collected with, by default the
    present ones. Raises DataError for no rows, rows of another feature list, or a feature that is not finite.
    """
    if not rows:
        raise DataError("no trajectories to fit a controller from: run `dvc repro`, which collects them first")
    rows = sorted(rows, key=lambda r: (r["seed"], r["qid"], r["rollout"], r["step"]))
    names = names or Names.current()
    costs = targets.action_costs(rows, options.retrieval_cost)
    models, trainings = [], []
    for seed in seeds:
        model, training = _train(rows, options, seed, names, costs)
        models.append(model)
        trainings.append(training)
    described = card.describe(rows, options, costs, tasks.build(rows, options, names, costs))
    whole = {
        **(facts or {}),
        **described,
        "features": {"count": len(names.state), "action_count": len(names.action), "hash": names.hash},
        "options": options.to_json(),
        "sklearn": version("scikit-learn"),
        "trainings": trainings,
    }
    return models, card.rounded(whole)


def _train(
    rows: Sequence[Row], options: FitOptions, seed: int, names: Names, costs: Mapping[str, targets.Cost]
) -> tuple[ControllerModel, dict[str, Any]]:
    """One training and its part of the card."""
    fallbacks: list[str] = []
    own = _of_seed(rows, seed, fallbacks)
    tables = tasks.build(own, options, names, costs)
    qids = {row["qid"] for row in own}
    order = tasks.shuffled(qids, seed)
    if len(order) < skill.FOLDS:
        fallbacks.append(f"out of fold: {len(order)} folds, for {len(order)} questions")
    fitted_on, aside = tasks.split(qids, seed)
    forests = {name: tables[name].of(fitted_on).forest(options, seed) for name in FORESTS}
    held = {name: tables[name].of(aside) for name in FORESTS}
    found = {name: skill.out_of_fold(tables[name], order, options, seed) for name in FORESTS}
    unseen = _unseen(tables, forests, held, found, own, aside, fallbacks)
    calibrators = {n: _calibrate(n, tables[n].of(fitted_on), unseen, fallbacks) for n in CLASSIFIERS}
    model = ControllerModel(
        seed=seed,
        state_names=names.state,
        action_names=names.action,
        feature_hash=names.hash,
        **{f"{name}_forest": forest for name, forest in forests.items()},
        calibrators=calibrators,
        costs=costs,
        thresholds={},
        options=options.to_json(),
    )
    model = replace(model, thresholds=_thresholds(calibrators, unseen, fallbacks))
    curves = {name: calibrators.get(name, Calibrator()) for name in FORESTS}
    return model, {
        "seed": seed,
        "fit_questions": len(fitted_on),
        "calibration_questions": len(aside),
        "skill": {name: skill.skill(tables[name], found[name]) for name in FORESTS},
        "calibration": {name: skill.curve(tables[name], found[name]) for name in CLASSIFIERS},
        "importances": {name: skill.importances(held[name], forests[name], curves[name], seed) for name in FORESTS},
        "thresholds": {rule: list(t) for rule, t in model.thresholds.items()},
        "fallbacks": fallbacks,
        **file_entry(model, model.to_bytes()),
    }


def _of_seed(rows: Sequence[Row], seed: int, fallbacks: list[str]) -> list[Row]:
    """The trajectories of collection ``seed``; where there are none, those of the first."""
    own = [row for row in rows if row["seed"] == seed]
    if own:
        return own
    first = rows[0]["seed"]
    fallbacks.append(f"trajectories: none were collected with seed {seed}; those of seed {first}")
    return [row for row in rows if row["seed"] == first]


@dataclass(frozen=True, slots=True)
class _Unseen:
    """Gate predictions on states of questions that the predicting forest was not fitted on."""

    rows: list[Row]
    tasks: Mapping[str, Task]
    raw: Mapping[str, np.ndarray]


def _unseen(
    tables: Mapping[str, Task],
    forests: Mapping[str, Forest],
    held: Mapping[str, Task],
    found: Mapping[str, skill.OutOfFold | None],
    rows: Sequence[Row],
    aside: set[str],
    fallbacks: list[str],
) -> _Unseen:
    """The questions set aside; where they are too few, all questions, out of fold."""
    gate = FORESTS[1:]
    states = [row for row in rows if row["step"] >= 1]
    if len(aside) >= FEWEST or any(found[name] is None for name in gate):
        kept = [row for row in states if row["qid"] in aside]
        return _Unseen(kept, held, {name: forests[name].predict(held[name].X) for name in gate})
    fallbacks.append(
        f"calibration and thresholds: {len(aside)} questions are set aside, fewer than {FEWEST}; "
        f"out-of-fold predictions of all {len({row['qid'] for row in rows})} questions"
    )
    return _Unseen(states, tables, {name: found[name].raw for name in gate})


def _calibrate(name: str, fit_part: Task, unseen: _Unseen, fallbacks: list[str]) -> Calibrator:
    if len(np.unique(fit_part.y)) < 2:
        only = int(fit_part.y[0]) if len(fit_part.y) else 0
        fallbacks.append(f"{name}: one class only ({only}) among the fit questions; a constant classifier")
        return Calibrator()
    held = unseen.tasks[name]
    curve = calibration.fit(unseen.raw[name], held.y, held.weights)
    positives = int(held.y.sum())
    if curve.kind == "identity":
        fallbacks.append(f"{name}: no calibration rows; the forest's share of votes as it is")
    elif curve.kind == "constant":
        fallbacks.append(
            f"{name}: no rising curve in the calibration rows ({positives} positives of {len(held.y)}); a constant"
        )
    elif curve.kind == "platt":
        fallbacks.append(
            f"{name}: {positives} positives among the calibration rows, {calibration.ISOTONIC_FROM} are needed for "
            "isotonic regression; Platt"
        )
    return curve


def _thresholds(
    calibrators: Mapping[str, Calibrator], unseen: _Unseen, fallbacks: list[str]
) -> dict[str, tuple[float, float, float]]:
    if not unseen.rows:
        fallbacks.append("thresholds: no calibration question with evidence; the defaults")
    p, gain, q = (calibrators.get(name, Calibrator())(unseen.raw[name]).round(DIGITS) for name in FORESTS[1:])
    return thresholds.choose(unseen.rows, (p, gain, q))
