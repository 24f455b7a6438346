"""Adaptive-RAG's router: fit, ties, constants, storage, and what it refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest

from multihop.controller.router import Router
from multihop.errors import DataError

CENTRES = {"A": (1.0, 0.0, 0.0), "B": (0.0, 1.0, 0.0), "C": (0.0, 0.0, 1.0)}


def sample(strategies: str, n: int = 30, seed: int = 1) -> tuple[np.ndarray, list[str]]:
    rng = np.random.default_rng(seed)
    labels = [s for s in strategies for _ in range(n)]
    return (np.array([CENTRES[s] for s in labels]) + rng.normal(0, 0.1, (len(labels), 3))).astype(np.float16), labels


@pytest.mark.parametrize("strategies", ["ABC", "AB", "AC", "BC", "CA"])
def test_it_learns_what_it_is_shown_as_scikit_learn_does(strategies):
    from sklearn.linear_model import LogisticRegression

    vectors, labels = sample(strategies)
    router = Router.fit(vectors, labels)
    model = LogisticRegression(C=1.0, random_state=0, max_iter=1000).fit(vectors.astype(float), labels)
    fresh, truth = sample(strategies, seed=2)
    routed = [router.route(v) for v in fresh]
    assert routed == model.predict(fresh.astype(float)).tolist()
    assert np.mean([a == b for a, b in zip(routed, truth, strict=True)]) > 0.95
    assert router.coefficients.dtype == np.float64 and router.strategies == tuple(sorted(strategies))


def test_a_list_of_half_precision_vectors_will_do():
    vectors, labels = sample("ABC")
    assert Router.fit(list(vectors), labels).to_json() == Router.fit(vectors, labels).to_json()


def test_weaker_regularisation_gives_larger_coefficients():
    vectors, labels = sample("ABC")
    assert (
        np.abs(Router.fit(vectors, labels, C=100).coefficients).sum()
        > np.abs(Router.fit(vectors, labels, C=0.01).coefficients).sum()
    )


def test_one_class_is_a_constant():
    router = Router.fit(np.eye(3), ["B"] * 3)
    assert {router.route(v) for v in (np.zeros(3), np.ones(3), -np.eye(3)[0])} == {"B"}
    assert Router.from_json(router.to_json()).route(np.ones(3)) == "B"


@pytest.mark.parametrize(
    ("strategies", "logits", "expected"),
    [
        ("ABC", (1.0, 1.0, 1.0), "A"),
        ("ABC", (0.0, 1.0, 1.0), "B"),
        ("AC", (0.5, 0.5), "A"),
        ("ABC", (0.0, 0.0, 4e-10), "A"),
        ("ABC", (0.0, 0.0, 6e-10), "C"),
    ],
)
def test_ties_go_to_the_cheaper_strategy(strategies, logits, expected):
    router = Router(tuple(strategies), np.zeros((len(logits), 2)), np.array(logits))
    assert router.route(np.ones(2)) == expected


def test_storage_is_exact_deterministic_and_ignores_other_keys():
    vectors, labels = sample("ABC")
    router = Router.fit(vectors, labels)
    text = json.dumps(router.to_json())
    again = Router.from_json(json.loads(text) | {"trained_on": "x"})
    assert np.array_equal(again.coefficients, router.coefficients) and json.dumps(again.to_json()) == text
    assert np.array_equal(again.intercepts, router.intercepts) and again.strategies == router.strategies
    assert json.dumps(Router.fit(vectors, labels).to_json()) == text
    assert all(c == round(c, 9) for row in json.loads(text)["coefficients"] for c in row)


@pytest.mark.parametrize(
    "vector", [np.ones(2), np.ones(4), np.ones((1, 3)), np.array([1, np.nan, 0]), np.array([np.inf, 0, 0])]
)
def test_an_unfit_vector_is_refused(vector):
    router = Router.fit(*sample("ABC"))
    with pytest.raises(DataError, match="the router was given a vector"):
        router.route(vector)
    with pytest.raises(DataError, match="the router was given a vector"):
        Router.fit([np.ones(3), vector], ["A", "B"])


@pytest.mark.parametrize(
    ("vectors", "labels", "message"),
    [
        ([], [], "at least one"),
        ([np.ones(2)], ["A", "B"], "1 vectors and 2 labels"),
        ([np.ones(2)], ["D"], "got 'D'"),
    ],
)
def test_training_data_that_does_not_fit_is_refused(vectors, labels, message):
    with pytest.raises(DataError, match=message):
        Router.fit(vectors, labels)


@pytest.mark.parametrize(
    "change",
    [
        {"strategies": []},
        {"strategies": ["B", "A", "C"]},
        {"strategies": ["A", "B", "D"]},
        {"strategies": None},
        {"coefficients": [[1.0]]},
        {"coefficients": [[1.0], [1.0, 2.0], [0.0]]},
        {"coefficients": "x"},
        {"intercepts": [0.0, float("nan"), 0.0]},
        {"intercepts": [0.0]},
    ],
)
def test_a_damaged_router_is_refused(change):
    value = Router.fit(*sample("ABC")).to_json() | change
    with pytest.raises(DataError, match="stored router is damaged"):
        Router.from_json(value)
    with pytest.raises(DataError, match="damaged"):
        Router.from_json({k: v for k, v in value.items() if k != next(iter(change))})
