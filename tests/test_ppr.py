"""PageRank against networkx, and rankings that another processor repeats."""

from __future__ import annotations

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multihop.structures import ppr

WEIGHTS = st.sampled_from([0.25, 0.5, 1.0, 2.0, 3.5])


@st.composite
def graphs(draw):
    """(nodes, edges with weights, reset, damping): parallel edges, isolated nodes, several components, no loops."""
    n = draw(st.integers(2, 9))
    pairs = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda p: p[0] != p[1])
    edges = draw(st.lists(st.tuples(pairs, WEIGHTS), max_size=18))
    reset = draw(st.lists(st.sampled_from([0.0, 0.1, 1.0, 4.0]), min_size=n, max_size=n).filter(any))
    return n, edges, np.array(reset), draw(st.sampled_from([0.1, 0.5, 0.85]))


def graph_of(n, edges):
    return ppr.Graph(n, [a for (a, _), _ in edges], [b for (_, b), _ in edges], [w for _, w in edges])


def peer(n, edges, reset, damping):
    other = networkx.Graph()
    other.add_nodes_from(range(n))
    for (a, b), w in edges:
        other.add_edge(a, b, weight=w + (other[a][b]["weight"] if other.has_edge(a, b) else 0.0))
    # A dangling node sends its walk back by `personalization` there too: networkx's default.
    personal = {i: float(x) for i, x in enumerate(reset)}
    found = networkx.pagerank(other, alpha=damping, personalization=personal, tol=1e-13, max_iter=5000)
    return np.array([found[i] for i in range(n)])


@given(graphs())
@settings(max_examples=80, deadline=None)
def test_equals_networkx(drawn):
    n, edges, reset, damping = drawn
    scores = graph_of(n, edges).pagerank(reset, damping)
    assert np.allclose(scores, peer(n, edges, reset, damping), atol=1e-8) and np.isclose(scores.sum(), 1)


def test_damping_is_the_probability_to_follow_an_edge():
    """Two nodes, all restarts in the first: it has 1 / (1 + d)."""
    for damping in (0.1, 0.5, 0.9):
        scores = ppr.Graph(2, [0], [1], [7.0]).pagerank(np.array([1.0, 0.0]), damping)
        assert scores == pytest.approx([1 / (1 + damping), damping / (1 + damping)])
    assert ppr.Graph(2, [0], [1], [7.0]).pagerank(np.array([3.0, 1.0]), 0.0) == pytest.approx([0.75, 0.25])


def test_weights_steer_and_parallel_edges_add_up():
    once = ppr.Graph(3, [0, 0], [1, 2], [1.0, 3.0]).pagerank(np.array([1.0, 0, 0]), 0.5)
    apart = ppr.Graph(3, [0, 0, 2], [1, 2, 0], [1.0, 1.0, 2.0]).pagerank(np.array([1.0, 0, 0]), 0.5)
    assert once[2] == pytest.approx(3 * once[1]) and apart == pytest.approx(once)


def test_a_graph_without_edges_gives_the_reset_back():
    assert ppr.Graph(3, [], [], []).pagerank(np.array([1.0, 0.0, 3.0]), 0.5) == pytest.approx([0.25, 0, 0.75])


def test_another_component_gets_nothing():
    scores = ppr.Graph(5, [0, 2], [1, 3], [1.0, 1.0]).pagerank(np.array([1.0, 0, 0, 0, 0]), 0.85)
    assert scores[2:].tolist() == [0, 0, 0]


@pytest.mark.parametrize("reset", [[0.0, 0.0], [1.0, -0.1], [1.0, float("nan")], [float("inf"), 0], [1.0], [1, 0, 0]])
def test_an_impossible_reset_is_refused(reset):
    with pytest.raises(ValueError, match="reset"):
        ppr.Graph(2, [0], [1], [1.0]).pagerank(np.array(reset), 0.5)


def test_statistics():
    assert ppr.Graph(5, [0, 1, 1], [1, 2, 2], [1, 1, 1]).statistics() == {
        "nodes": 5,
        "edges": 3,
        "components": 3,
        "largest_component": 3,
        "isolated": 2,
    }
    empty = {"nodes": 0, "edges": 0, "components": 0, "largest_component": 0, "isolated": 0}
    assert ppr.Graph(0, [], [], []).statistics() == empty


# -- rankings


def test_scores_that_differ_in_their_last_bits_are_ordered_by_position():
    scores = np.array([0.3, 0.1 + 0.2, 0.5, 0.3 - 1e-12])
    assert ppr.best(scores, 4) == [2, 0, 1, 3] and ppr.best(scores * 1e-9, 4) == [2, 0, 1, 3]


def test_rounding_keeps_what_differs_and_is_relative():
    scores = np.array([1e-9, 1.00001e-9, 0.5e-9])
    assert ppr.best(scores, 3) == [1, 0, 2]
    assert ppr.rounded(np.zeros(3)).tolist() == [0, 0, 0] and ppr.rounded(np.zeros(0)).size == 0


def test_best_of_equal_few_none_and_negative():
    assert ppr.best(np.ones(4), 2) == [0, 1] and ppr.best(np.array([-2.0, -1.0]), 5) == [1, 0]
    assert ppr.best(np.ones(3), 0) == [] == ppr.best(np.ones(3), -1) == ppr.best(np.zeros(0), 3)


def test_minmax():
    assert ppr.minmax(np.array([2.0, 4.0, 3.0])).tolist() == [0, 1, 0.5]
    assert ppr.minmax(np.array([3.0, 3.0])).tolist() == [1, 1] and ppr.minmax(np.zeros(0)).size == 0
