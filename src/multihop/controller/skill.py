"""How good the learned parts are: skill out of fold against a constant, calibration curves, importances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from multihop.controller import calibration
from multihop.controller.calibration import Calibrator
from multihop.controller.forest import Forest
from multihop.controller.model import ACTION_COLUMNS, COST_FEATURE
from multihop.controller.tasks import FitOptions, Task

FOLDS = 5
REPEATS = 5
IMPORTANCE_ROWS = 1000
"""Rows at most that importances are measured on, drawn with the training's seed."""
BINS = 10
_NOTHING = 1e-12
"""A squared error of rounding."""


@dataclass(frozen=True, slots=True)
class OutOfFold:
    """Predictions for the n rows of a task by models that never saw the row's question."""

    predicted: np.ndarray
    """A probability is calibrated by the other folds' out-of-fold predictions."""
    constant: np.ndarray
    """What the mean of the other folds predicts."""
    raw: np.ndarray
    """As ``predicted``, before calibration."""


def out_of_fold(task: Task, order: Sequence[str], options: FitOptions, seed: int) -> OutOfFold | None:
    """``order``: the questions, shuffled; the i-th is in fold i modulo their number (at most FOLDS).

    None where there is no other question to learn from.
    """
    folds = min(FOLDS, len(order))
    fold_of = {qid: n % folds for n, qid in enumerate(order)}
    fold = np.array([fold_of[q] for q in task.qids])
    if len(np.unique(fold)) < 2:
        return None
    predicted, constant = np.empty(len(fold)), np.empty(len(fold))
    for k in np.unique(fold):
        rest = task.part(fold != k)
        constant[fold == k] = np.average(rest.y, weights=rest.weights)
        predicted[fold == k] = rest.forest(options, seed, options.oof_trees).predict(task.X[fold == k])
    raw = predicted.copy()
    if task.classes:
        for k in np.unique(fold):
            rest = fold != k
            predicted[~rest] = calibration.fit(raw[rest], task.y[rest], task.weights[rest])(raw[~rest])
    return OutOfFold(predicted, constant, raw)


def skill(task: Task, found: OutOfFold | None) -> dict[str, Any]:
    """1 - squared error / squared error of the constant: R2 of a value, Brier skill of a probability; weighted.

    By this measure the constant itself has skill 0. None where it is undefined: nothing held out, or nothing to tell
    apart.
    """
    model = None
    if found is not None:
        worst = _error(task, found.constant)
        model = 1 - _error(task, found.predicted) / worst if worst > _NOTHING else None
    return {"metric": "Brier skill" if task.classes else "R2", "model": model, "constant": 0.0}


def curve(task: Task, found: OutOfFold | None) -> list[dict[str, Any]]:
    """Mean probability and share of positives in each tenth of [0, 1] that holds rows."""
    if found is None:
        return []
    bins = np.minimum((found.predicted * BINS).astype(int), BINS - 1)
    return [
        {
            "predicted": float(found.predicted[bins == b].mean()),
            "observed": float(task.y[bins == b].mean()),
            "n": int((bins == b).sum()),
        }
        for b in np.unique(bins)
    ]


def importances(task: Task, forest: Forest, calibrator: Calibrator, seed: int) -> list[dict[str, Any]]:
    """Skill lost when a feature's values are shuffled among the rows of ``task``, most important first.

    Mean and standard deviation of REPEATS shuffles, in the unit of the skill. The action's one-hot columns and its
    expected cost, which says the same, are shuffled together, as "action". Empty where the targets are all equal.
    """
    rng = np.random.default_rng(seed)
    if len(task.y) > IMPORTANCE_ROWS:
        keep = np.zeros(len(task.y), dtype=bool)
        keep[rng.permutation(len(task.y))[:IMPORTANCE_ROWS]] = True
        task = task.part(keep)
    worst = _error(task, np.average(task.y, weights=task.weights)) if len(task.y) else 0.0
    if worst <= _NOTHING:
        return []
    base, used = _error(task, calibrator(forest.predict(task.X))), forest.used()
    out = []
    for name, columns in _groups(task.names).items():
        # Drawn for every feature, used or not, so that one feature's figure does not depend on the others.
        orders = [rng.permutation(len(task.y)) for _ in range(REPEATS)]
        lost = np.zeros(REPEATS)
        if used & set(columns):
            predicted = calibrator(forest.predict(np.vstack([_mixed(task.X, columns, o) for o in orders])))
            lost = (np.array([_error(task, p) for p in np.split(predicted, REPEATS)]) - base) / worst
        out.append({"feature": name, "mean": float(lost.mean()), "sd": float(lost.std())})
    return sorted(out, key=lambda row: (-row["mean"], row["feature"]))


def _groups(names: Sequence[str]) -> dict[str, list[int]]:
    """Feature -> its columns."""
    groups: dict[str, list[int]] = {}
    for column, name in enumerate(names):
        groups.setdefault("action" if name in (*ACTION_COLUMNS, COST_FEATURE) else name, []).append(column)
    return groups


def _mixed(X: np.ndarray, columns: list[int], order: np.ndarray) -> np.ndarray:
    mixed = X.copy()
    mixed[:, columns] = X[order][:, columns]
    return mixed


def _error(task: Task, predicted: np.ndarray | float) -> float:
    """Weighted mean squared error."""
    return float(np.average((task.y - predicted) ** 2, weights=task.weights))
