"""Fitting a controller: what it learns, what its card says, and what happens where the data cannot carry a step."""

import json
from dataclasses import replace

import numpy as np
import pytest
from trajectory_fixture import NAMES, trajectories

from multihop.controller import calibration, card, fitting, model, skill, tasks, thresholds
from multihop.controller.fitting import FitOptions, fit
from multihop.controller.targets import Cost, action_costs
from multihop.controller.tasks import Task
from multihop.errors import ConfigError, DataError

QUICK = FitOptions(trees=30, oof_trees=15)


@pytest.fixture(scope="module")
def rows():
    return trajectories(30)


@pytest.fixture(scope="module")
def trained(rows):
    models, written = fit(rows, QUICK, seeds=[0], names=NAMES, facts={"controller": "dynakrag", "trained_on": "x"})
    return models[0], written


def table(rows, name, options=QUICK):
    return tasks.build(rows, options, NAMES, action_costs(rows))[name]


# -- what is learned


def test_the_operation_that_finds_the_missing_part_is_ranked_first(trained):
    for bridge, best in ((1, "B"), (0, "R")):
        scores = trained[0].advantage([1, bridge, 0.5, 0.5], ["R", "B", "S"], [[0.5]] * 3)
        assert max(scores, key=scores.get) == best
        assert scores[best] > 0.3 > 0.1 > scores["S"]


def test_the_gate_goes_on_while_something_is_missing(trained):
    assert trained[0].gate([1, 0, 0.4, 0.5]).cont
    assert not trained[0].gate([3, 0, 1.1, 0.5]).cont


def test_skill_and_importances_say_what_was_learned(trained):
    (training,) = trained[1]["trainings"]
    for name in ("advantage", "continuation", "gain", "premature"):
        assert training["skill"][name]["model"] > 0.3
        assert training["skill"][name]["constant"] == 0.0
    assert training["skill"]["gain"]["metric"] == "R2"
    assert training["skill"]["premature"]["metric"] == "Brier skill"
    assert {i["feature"] for i in training["importances"]["advantage"][:3]} == {"action", "bridge", "covered"}
    weights = {i["feature"]: i["mean"] for i in training["importances"]["advantage"]}
    assert set(weights) == {"step", "bridge", "covered", "noise", "action", "near"}
    assert weights["bridge"] > 0.1 > 0.05 > abs(weights["noise"])
    assert training["importances"]["continuation"][0]["feature"] == "covered"
    means = [i["mean"] for i in training["importances"]["gain"]]
    assert means == sorted(means, reverse=True)


def test_calibration_curve_covers_every_state_once(trained, rows):
    (training,) = trained[1]["trainings"]
    for curve in training["calibration"].values():
        assert sum(b["n"] for b in curve) == sum(row["step"] >= 1 for row in rows)
        assert all(0 <= b["predicted"] <= 1 and 0 <= b["observed"] <= 1 for b in curve)
        assert curve[0]["observed"] < 0.2 < 0.6 < curve[-1]["observed"]


# -- the same again, and what it depends on


def test_depends_on_the_rows_and_not_on_their_order_or_the_cores(rows, trained):
    again, written = fit(
        rows[::-1], replace(QUICK, jobs=2), names=NAMES, facts={"controller": "dynakrag", "trained_on": "x"}
    )
    assert again[0].to_bytes() == trained[0].to_bytes()
    assert json.dumps(written) == json.dumps(trained[1])


def test_trainings_are_independent(rows):
    models, written = fit(rows + trajectories(30, seed=1), QUICK, seeds=[0, 1], names=NAMES)
    alone, _ = fit(trajectories(30, seed=1), QUICK, seeds=[1], names=NAMES)
    one, two = written["trainings"]
    assert [one["seed"], two["seed"]] == [0, 1] and one["sha256"] != two["sha256"]
    state = [1, 1, 0.5, 0.5]
    assert models[1].gate(state) == alone[0].gate(state) != models[0].gate(state)
    assert written["states"] == 600 and written["questions"] == 30


def test_split_by_question():
    qids = {f"q{n}" for n in range(50)}
    fitted, aside = tasks.split(qids, 0)
    assert (len(fitted), len(aside)) == (40, 10) and fitted | aside == qids
    assert tasks.split(qids, 0) == (fitted, aside) != tasks.split(qids, 1)
    assert [len(part) for part in tasks.split({"a", "b"}, 0)] == [1, 1]
    assert [len(part) for part in tasks.split({"a"}, 0)] == [1, 0]


def test_no_calibration_question_is_fitted_on(rows, monkeypatch):
    seen = []
    forest = Task.forest
    monkeypatch.setattr(
        Task, "forest", lambda self, o, s, trees=None: seen.append((trees, set(self.qids))) or forest(self, o, s, trees)
    )
    fit(rows, QUICK, names=NAMES)
    fitted, _ = tasks.split({row["qid"] for row in rows}, 0)
    assert [qids for trees, qids in seen if trees is None] == [fitted] * 4
    assert len([1 for trees, _ in seen if trees == 15]) == 20


def test_the_questions_set_aside_calibrate_choose_and_measure(rows, trained):
    found, written = trained
    (training,) = written["trainings"]
    _, aside = tasks.split({row["qid"] for row in rows}, 0)
    rows = sorted(rows, key=lambda r: (r["qid"], r["rollout"], r["step"]))
    held = table(rows, "continuation").of(aside)
    assert found.calibrators["continuation"] == calibration.fit(
        found.continuation_forest.predict(held.X), held.y, held.weights
    )
    assert any(f"continuation: {int(held.y.sum())} positives" in f for f in training["fallbacks"])
    states = [row for row in rows if row["qid"] in aside and row["step"] >= 1]
    outputs = found.gate_outputs([row["features"] for row in states])
    assert found.thresholds == thresholds.choose(states, outputs)
    measured = skill.importances(held, found.continuation_forest, found.calibrators["continuation"], 0)
    assert training["importances"]["continuation"] == card.rounded(measured)


# -- the tables


def test_tables_by_hand():
    rows = trajectories(1)[:3]
    costs = action_costs(rows)
    built = tasks.build(rows, QUICK, NAMES, costs)
    branches = [(row, b) for row in rows for b in row["branches"]]
    assert built["advantage"].X.shape == (len(branches), 4 + 6 + 2) == (9, 12)
    row, branch = branches[1]
    assert built["advantage"].X[1].tolist() == [
        *row["features"],
        1,
        0,
        0,
        0,
        0,
        0,
        costs["R"].cost,
        *branch["features"],
    ]
    assert built["advantage"].y[1] == pytest.approx(branch["u_after"] - row["u"] - 0.02 * 0.25)
    assert built["advantage"].y[4] == row["u"] and branches[4][1]["action"] == "T"
    assert built["gain"].X.tolist() == [r["features"] for r in rows[1:]]
    assert built["gain"].weights.tolist() == [0.5, 0.5]
    assert built["continuation"].y.tolist() == [float(r["final_f1"] - r["f1"] >= 0.2) for r in rows[1:]]
    assert not built["gain"].classes and built["premature"].classes


def flat(y, weights, classes):
    """One feature that says nothing: a forest predicts a share or a mean."""
    qids = np.array([f"q{n}" for n in range(len(y))], dtype=object)
    return Task(
        ("flat",), classes, np.zeros((len(y), 1)), np.array(y, dtype=float), qids, np.array(weights, dtype=float)
    )


def test_rows_weigh_what_they_are_given():
    task = flat([1] * 100 + [0] * 100, [1] * 100 + [0.1] * 100, classes=False)
    assert task.forest(QUICK, 0).predict([[0.0]])[0] == pytest.approx(10 / 11, abs=0.02)


def test_rare_labels_weigh_as_much_as_common_ones():
    """Balanced classes: a leaf that holds the classes in their overall shares says one half."""
    task = flat([1] * 20 + [0] * 180, [1] * 200, classes=True)
    assert task.forest(QUICK, 0).predict([[0.0]])[0] == pytest.approx(0.5, abs=0.06)


# -- the card


def test_what_the_card_holds(trained):
    found, written = trained
    assert written["controller"] == "dynakrag"
    assert written["features"] == {"count": 4, "action_count": 2, "hash": "names-of-the-tests"}
    assert written["options"]["lambda"] == 1.0 and written["options"]["oof_trees"] == 15
    assert "jobs" not in written["options"]
    (training,) = written["trainings"]
    assert (training["fit_questions"], training["calibration_questions"]) == (24, 6)
    assert training["bytes"] == len(found.to_bytes())
    assert {rule: tuple(t) for rule, t in training["thresholds"].items()} == found.thresholds
    assert any("Platt" in f for f in training["fallbacks"])
    assert found.calibrators["continuation"].kind == "platt"
    assert json.loads(json.dumps(written, allow_nan=False)) == written
    assert card.rounded(written) == written


def test_written_and_loaded(rows, trained, tmp_path):
    facts = {"controller": "dynakrag", "trained_on": "x"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks.Names, "current", classmethod(lambda cls: NAMES))
        fitting.write(tmp_path / "a/b", rows, QUICK, [0], facts)
    assert sorted(p.name for p in (tmp_path / "a/b").iterdir()) == ["card.json", "seed0.npz"]
    assert json.loads((tmp_path / "a/b/card.json").read_text()) == trained[1]
    assert model.load(tmp_path / "a/b", 0, NAMES.hash).to_bytes() == trained[0].to_bytes()


# -- too little


def test_nothing_to_fit_from():
    with pytest.raises(DataError, match=r"no trajectories.*dvc repro"):
        fit([], QUICK, names=NAMES)


def test_rows_of_another_version_or_with_holes_are_refused(rows):
    broken = [dict(row) for row in rows]
    broken[7]["features"] = [0, 1, float("nan"), 0]
    with pytest.raises(DataError, match=rf"question {rows[7]['qid']}, step {rows[7]['step']}: feature 'covered'"):
        fit(broken, QUICK, names=NAMES)
    broken[7]["features"] = [0, 1]
    with pytest.raises(DataError, match=r"2 features, where 4.*dvc repro"):
        fit(broken, QUICK, names=NAMES)
    broken = [dict(row) for row in rows]
    broken[1]["branches"] = [b | {"features": [float("inf")]} for b in rows[1]["branches"]]
    with pytest.raises(DataError, match="step 1: feature 'near'"):
        fit(broken, QUICK, names=NAMES)


def test_one_class_is_a_constant(rows):
    (found,), written = fit([row | {"f1": 1.0, "final_f1": 1.0} for row in rows], QUICK, names=NAMES)
    (training,) = written["trainings"]
    for name in ("continuation", "premature"):
        assert f"{name}: one class only (0) among the fit questions; a constant classifier" in training["fallbacks"]
    gate = found.gate([1, 0, 0.5, 0.5])
    assert (gate.p_continue, gate.gain, gate.p_premature, gate.cont) == (0.0, 0.0, 0.0, False)
    assert training["skill"]["continuation"]["model"] is None
    assert training["importances"]["premature"] == []


def test_few_questions_calibrate_and_choose_out_of_fold(rows):
    """Two questions set aside decide nothing: all twelve do, each predicted by forests that never saw it."""
    few = [row for row in rows if row["qid"] < "q012"]
    (found,), written = fit(few, QUICK, names=NAMES)
    (training,) = written["trainings"]
    assert training["calibration_questions"] == 2
    assert any("2 questions are set aside" in f and "of all 12 questions" in f for f in training["fallbacks"])
    order = tasks.shuffled({r["qid"] for r in few}, 0)
    table_of = tasks.build(sorted(few, key=lambda r: (r["qid"], r["rollout"], r["step"])), QUICK, NAMES, found.costs)
    whole = table_of["continuation"]
    unseen = skill.out_of_fold(whole, order, QUICK, 0)
    assert found.calibrators["continuation"] == calibration.fit(unseen.raw, whole.y, whole.weights)


def test_three_questions(rows):
    few = [row for row in rows if row["qid"] in ("q000", "q001", "q002")]
    _, written = fit(few, QUICK, names=NAMES)
    (training,) = written["trainings"]
    assert (training["fit_questions"], training["calibration_questions"]) == (2, 1)
    assert "out of fold: 3 folds, for 3 questions" in training["fallbacks"]
    assert training["skill"]["advantage"]["model"] is not None


def test_one_question_has_nothing_held_out(rows):
    (found,), written = fit([row for row in rows if row["qid"] == "q000"], QUICK, names=NAMES)
    (training,) = written["trainings"]
    assert training["calibration_questions"] == 0
    assert training["skill"]["advantage"]["model"] is None
    assert training["calibration"] == {"continuation": [], "premature": []}
    assert training["thresholds"]["majority"] == [0.5, 0.05, 0.3]
    assert any("thresholds" in f and "defaults" in f for f in training["fallbacks"])
    found.gate([1, 0, 0.5, 0.5])


def test_no_state_with_evidence(rows):
    (found,), written = fit([row for row in rows if row["step"] == 0], QUICK, names=NAMES)
    assert written["targets"]["gain"] == {"n": 0, "mean": None, "sd": None, "quartiles": []}
    assert not found.gate([1, 0, 0.5, 0.5]).cont
    (found,), _ = fit([row | {"branches": []} for row in rows], QUICK, names=NAMES)
    assert found.advantage([1, 0, 0.5, 0.5], ["R"], [[0.5]]) == {"R": 0.0}


def test_a_training_without_trajectories_of_its_own_takes_the_first(rows):
    models, written = fit(rows, QUICK, seeds=[0, 2], names=NAMES)
    assert "none were collected with seed 2; those of seed 0" in written["trainings"][1]["fallbacks"][0]
    assert models[1].to_bytes() != models[0].to_bytes()


def test_options_that_do_not_exist():
    with pytest.raises(ConfigError, match=r"'generous'.*full_only"):
        FitOptions(s_target="generous")


def test_options_matter(rows):
    few = [row for row in rows if row["qid"] < "q008"]
    costs = {a: Cost(1, 0.0, 1.0, 0.25) for a in "RGWBST"}
    by_lambda = [tasks.build(few, FitOptions(lam=x), NAMES, costs)["advantage"].y for x in (0.0, 1.0)]
    assert (by_lambda[0] >= by_lambda[1]).all() and (by_lambda[0] > by_lambda[1]).any()
    _, dear = fit(few, replace(QUICK, retrieval_cost=1.0), names=NAMES)
    assert dear["costs"]["R"]["cost"] == 1.0
