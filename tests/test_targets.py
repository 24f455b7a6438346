"""Targets and costs on numbers worked out by hand (paper 2, eq. 1)."""

import numpy as np
import pytest

from multihop.controller import targets
from multihop.controller.targets import Cost

COSTS = {
    "R": Cost(1, 0.0, 1.0, 0.25),
    "G": Cost(1, 0.0, 1.0, 0.25),
    "W": Cost(1, 400.0, 1.0, 0.65),
    "S": Cost(1, 300.0, 0.0, 0.3),
    "T": Cost(1, 0.0, 0.0, 0.0),
}


def branch(action, u_after, sufficient=None, u_follow=None, tokens=0, retrievals=0):
    return {
        "action": action,
        "u_after": u_after,
        "sufficient": sufficient,
        "u_follow": u_follow,
        "tokens": tokens,
        "retrievals": retrievals,
    }


def target(u, b, lam=1.0, beta=0.02, s_target="full_only"):
    return targets.advantage(u, b, COSTS, lam=lam, beta=beta, s_target=s_target)


def test_a_retrieval_is_worth_the_recall_that_it_adds_less_its_cost():
    assert target(0.5, branch("R", 1.0)) == pytest.approx(0.5 - 0.005)
    assert target(0.5, branch("W", 0.5), beta=0.1) == pytest.approx(-0.065)


def test_lambda_leaves_stopping_alone():
    assert [target(0.5, branch("R", 1.0), lam=x, beta=0) for x in (0, 0.5, 1)] == [1.0, 0.75, 0.5]
    assert [target(0.5, branch("T", 0.5), lam=x, beta=9) for x in (0, 0.5, 1)] == [0.5, 0.5, 0.5]


@pytest.mark.parametrize(
    ("s_target", "complete", "early", "followed", "alone"),
    [
        ("literal", -0.006, -0.006, -0.006, -0.006),
        ("full_only", 0.994, -0.006, 0.5 - 0.011, -0.006),
        ("stop_value", 0.994, 0.494, 0.5 - 0.011, -0.006),
    ],
)
def test_what_a_sufficiency_check_is_credited_with(s_target, complete, early, followed, alone):
    """beta * c_S = 0.02 * 0.3 = 0.006; with the gap query after it 0.02 * 0.55 = 0.011."""
    check = {"s_target": s_target}
    assert target(1.0, branch("S", 1.0, True), **check) == pytest.approx(complete)
    assert target(0.5, branch("S", 0.5, True), **check) == pytest.approx(early)
    assert target(0.5, branch("S", 0.5, False, u_follow=1.0), **check) == pytest.approx(followed)
    assert target(0.5, branch("S", 0.5, False), **check) == pytest.approx(alone)
    assert target(0.5, branch("S", 0.5, None), **check) == pytest.approx(alone)  # a verdict that nobody can read


def test_a_false_verdict_is_not_rewarded_by_default():
    wrong, right = branch("S", 0.5, True), branch("R", 1.0)
    assert target(0.5, wrong) < target(0.5, right)
    assert target(0.5, wrong, s_target="stop_value") > target(0.5, right) - 0.01


def test_recall_of_three_thirds_is_complete():
    third = 1 / 3
    assert target(third + third + third, branch("S", 1.0, True)) > 0.9
    assert target(0.999999, branch("S", 0.999999, True)) < 0


def test_costs_are_means_over_the_branches():
    rows = [
        {"branches": [branch("R", 0, retrievals=1), branch("S", 0, tokens=200)]},
        {"branches": [branch("S", 0, tokens=400), branch("W", 0, tokens=100, retrievals=1), branch("T", 0, tokens=7)]},
        {"branches": [branch("W", 0, tokens=300, retrievals=0)]},
    ]
    costs = targets.action_costs(rows)
    assert list(costs) == ["R", "G", "W", "B", "S", "T"]
    assert costs["R"] == Cost(1, 0.0, 1.0, 0.25)
    assert costs["S"] == Cost(2, 300.0, 0.0, 0.3)
    assert costs["W"] == Cost(2, 200.0, 0.5, pytest.approx(0.325))
    assert costs["B"] == Cost(0, 0.0, 1.0, 0.25)
    assert costs["T"] == Cost(1, 0.0, 0.0, 0.0)
    assert targets.action_costs(rows, retrieval_cost=1.0)["W"].cost == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("f1", "final", "goes_on", "gain", "premature"),
    [
        (0.0, 1.0, True, 1.0, True),
        (0.4, 0.6, True, 0.2, False),
        (0.4, 0.59, False, 0.19, False),
        (0.5, 1.0, False, 0.5, False),
        (0.49, 0.8, True, 0.31, True),
        (1.0, 0.0, False, -1.0, False),
        (0.0, 0.0, False, 0.0, False),
    ],
)
def test_gate_targets(f1, final, goes_on, gain, premature):
    assert targets.continuation(f1, final) is goes_on
    assert targets.gain(f1, final) == pytest.approx(gain)
    assert targets.premature(f1, final) is premature


def test_no_answer_is_worth_nothing():
    assert targets.prefix_f1({"f1": None}) == 0.0
    assert targets.prefix_f1({"f1": 0.25}) == 0.25


def test_every_question_weighs_one():
    weights = targets.prefix_weights(["a", "b", "a", "a", "c", "c"])
    assert weights == pytest.approx([1 / 3, 1, 1 / 3, 1 / 3, 1 / 2, 1 / 2])
    assert weights.sum() == pytest.approx(3)
    assert isinstance(targets.prefix_weights([]), np.ndarray)
