"""The measures of a training: skill out of fold, thresholds, importances, and the card's numbers by hand."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from trajectory_fixture import NAMES, trajectories

from multihop.controller import card, model, skill, tasks, thresholds
from multihop.controller.calibration import Calibrator
from multihop.controller.fitting import FitOptions
from multihop.controller.targets import action_costs

QUICK = FitOptions(trees=30, oof_trees=15)


@pytest.fixture(scope="module")
def rows():
    return trajectories(30)


def table(rows, name):
    return tasks.build(rows, QUICK, NAMES, action_costs(rows))[name]


# -- skill


def test_a_question_that_was_seen_does_not_count_as_skill(rows):
    """Targets that a question's own rows give away and other questions' do not: by row the skill would be 1."""
    task = table(rows, "gain")
    which = {q: n for n, q in enumerate(sorted(set(task.qids)))}
    luck = np.random.default_rng(0).normal(size=len(which))
    X = np.array([[which[q]] * 4 for q in task.qids], dtype=float)
    told = replace(task, X=X, y=luck[[which[q] for q in task.qids]])
    found = skill.out_of_fold(told, tasks.shuffled(set(told.qids), 0), QUICK, 0)
    assert skill.skill(told, found)["model"] < 0.1


def test_the_constant_is_the_mean_of_the_other_folds(rows):
    task = table(rows, "gain")
    order = tasks.shuffled(set(task.qids), 0)
    found = skill.out_of_fold(task, order, QUICK, 0)
    first = np.isin(task.qids, order[::5])
    assert found.constant[first] == pytest.approx(np.average(task.y[~first], weights=task.weights[~first]))
    assert skill.skill(task, replace(found, predicted=found.constant))["model"] == 0.0
    assert skill.skill(task, replace(found, predicted=task.y))["model"] == 1.0


def test_a_probability_is_measured_calibrated(rows):
    """Balanced classes make a forest say 0.5 for a label of one row in ten; the calibration takes that back."""
    y = (np.arange(200) % 10 == 0).astype(float)
    qids = np.array([f"q{n}" for n in range(200)], dtype=object)
    task = replace(table(rows, "premature"), X=np.zeros((200, 4)), y=y, qids=qids, weights=np.ones(200))
    found = skill.out_of_fold(task, tasks.shuffled(set(qids), 0), QUICK, 0)
    assert found.predicted.max() < 0.2
    assert skill.skill(task, found)["model"] == pytest.approx(0, abs=0.1)
    (tenth, *_) = skill.curve(task, found)
    assert tenth["observed"] == pytest.approx(0.1, abs=0.05)


# -- thresholds


def brute_force(rows, outputs, needed, cell):
    """Mean utility of one cell of the grid, roll-out by roll-out."""
    total, runs = 0.0, {}
    for n, row in enumerate(rows):
        runs.setdefault((row["qid"], row["rollout"]), []).append(n)
    for run in runs.values():
        stop = next((n for n in run if sum(o[n] >= t for o, t in zip(outputs, cell, strict=True)) < needed), run[-1])
        total += rows[stop]["f1"] - 0.01 * rows[stop]["tokens"] / 1000
    return round(total / len(runs), 9)


@pytest.mark.parametrize("rule", ["majority", "any", "all"])
def test_thresholds_are_the_best_of_the_grid(rule):
    rows = [row for row in trajectories(6, seed=4) if row["step"] >= 1]
    rng = np.random.default_rng(1)
    outputs = (rng.uniform(size=len(rows)), rng.uniform(-0.1, 0.4, len(rows)), rng.uniform(size=len(rows)))
    needed = model.NEEDED[rule]
    found = thresholds.choose(rows, outputs)[rule]
    best = max(brute_force(rows, outputs, needed, cell) for cell in product(*thresholds.GRID))
    assert brute_force(rows, outputs, needed, found) == best


def test_equal_thresholds_stay_at_the_defaults():
    row = {"seed": 0, "qid": "a", "rollout": "uniform", "f1": 1.0, "tokens": 0}
    flat = (np.array([0.5]),) * 3
    assert thresholds.choose([row], flat) == dict.fromkeys(model.NEEDED, model.DEFAULT_THRESHOLDS)
    assert thresholds.choose([], flat) == dict.fromkeys(model.NEEDED, model.DEFAULT_THRESHOLDS)


def test_tokens_cost_a_hundredth_of_f1_per_thousand():
    """Going on brings 0.02 of F1 for 1,000 or for 3,000 tokens."""
    for tokens, go_on in ((1000, True), (3000, False)):
        first = {"seed": 0, "qid": "a", "rollout": "uniform", "f1": 0.5, "tokens": 0}
        rows = [first, first | {"f1": 0.52, "tokens": tokens}]
        outputs = (np.array([0.5, 0.5]), np.array([0.05, 0.05]), np.array([0.3, 0.3]))
        found = thresholds.choose(rows, outputs)["all"]
        assert all(o[0] >= t for o, t in zip(outputs, found, strict=True)) is go_on


# -- importances


def test_only_what_a_forest_looks_at_is_important(rows):
    task = table(rows, "gain")
    task = replace(task, X=task.X * [1, 1, 1, 0])
    forest = task.forest(QUICK, 0)
    found = skill.importances(task, forest, Calibrator(), 0)
    assert {"feature": "noise", "mean": 0.0, "sd": 0.0} in found
    assert found == skill.importances(task, forest, Calibrator(), 0) != skill.importances(task, forest, Calibrator(), 1)
    assert skill.importances(replace(task, y=np.ones(len(task.y))), forest, Calibrator(), 0) == []


def test_the_action_is_shuffled_as_one(rows):
    task = table(rows, "advantage")
    groups = skill._groups(task.names)
    assert groups["action"] == [4, 5, 6, 7, 8, 9, 10]
    mixed = skill._mixed(task.X, groups["action"], np.random.default_rng(0).permutation(len(task.y)))
    assert {tuple(row) for row in mixed[:, 4:11]} == {tuple(row) for row in task.X[:, 4:11]}
    assert (mixed[:, 4:11] != task.X[:, 4:11]).any()
    assert (mixed[:, [0, 1, 2, 3, 11]] == task.X[:, [0, 1, 2, 3, 11]]).all()


# -- the card


def test_card_by_hand():
    same = {"seed": 0, "qid": "a", "rollout": "uniform", "features": [0] * 4, "final_f1": 1.0, "tokens": 0}
    checked = [one("R", 1.0, retrievals=1), one("S", 0.5, tokens=100, sufficient=True), one("T", 0.5)]
    rows = [
        same | {"step": 0, "u": 0.0, "f1": None, "chosen": "R", "branches": [one("R", 0.5, retrievals=1)]},
        same | {"step": 1, "u": 0.5, "f1": 0.0, "chosen": "S", "branches": checked},
        same | {"step": 2, "u": 0.5, "f1": 1.0, "chosen": None, "branches": []},
    ]
    costs = action_costs(rows)
    found = card.describe(rows, QUICK, costs, tasks.build(rows, QUICK, NAMES, costs))
    found = card.rounded(found)
    assert (found["questions"], found["states"]) == (1, 3)
    assert found["targets"]["advantage"] == {
        "R": {"n": 2, "mean": 0.495, "sd": 0.0, "min": 0.495, "max": 0.495},
        "S": {"n": 1, "mean": -0.002, "sd": 0.0, "min": -0.002, "max": -0.002},
        "T": {"n": 1, "mean": 0.5, "sd": 0.0, "min": 0.5, "max": 0.5},
    }
    assert found["targets"]["continuation"] == {"n": 2, "positives": 1} == found["targets"]["premature"]
    assert found["targets"]["gain"] == {"n": 2, "mean": 0.5, "sd": 0.5, "quartiles": [0.25, 0.5, 0.75]}
    assert found["costs"]["S"] == {"n": 1, "tokens": 100.0, "retrievals": 0.0, "cost": 0.1}
    assert found["s_target_sensitivity"] == {
        "literal": {"n": 1, "mean": -0.002},
        "full_only": {"n": 1, "mean": -0.002},
        "stop_value": {"n": 1, "mean": 0.498},
    }
    assert found["lambda_sensitivity"] == {
        "0.0": {"R": 0.745, "S": 0.498, "T": 0.5},
        "0.5": {"R": 0.62, "S": 0.248, "T": 0.5},
        "1.0": {"R": 0.495, "S": -0.002, "T": 0.5},
    }
    assert found["actions"]["steps"] == [
        {"step": 0, "states": 1, "valid": {"R": 1.0}, "chosen": {"R": 1.0}},
        {"step": 1, "states": 1, "valid": {"R": 1.0, "S": 1.0, "T": 1.0}, "chosen": {"S": 1.0}},
        {"step": 2, "states": 1, "valid": {}, "chosen": {}},
    ]


def one(action, u_after, tokens=0, retrievals=0, sufficient=None):
    return {"action": action, "features": [0.5], "u_after": u_after, "tokens": tokens, "retrievals": retrievals,
            "sufficient": sufficient, "u_follow": None}  # fmt: skip


def test_rounded():
    assert card.rounded({"a": [1.23456789, 3, None, "x", True], "b": -1e-12}) == {
        "a": [1.234568, 3, None, "x", True],
        "b": 0.0,
    }
