"""RAPTOR's tree: its invariants, what is asked, what fails, and what another processor replays."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_embedder import small_retriever
from hypothesis import given, settings
from hypothesis import strategies as st
from project_fixture import WORLD, FakeClient, prompts_of
from scripted_server import OVERFLOW, Say, in_turn

from multihop.errors import DataError, ReplayMiss
from multihop.llm.client import Refused
from multihop.retrieval.tokens import count_tokens
from multihop.structures import clustering
from multihop.structures.base import Builder
from multihop.structures.clustering import Clustering
from multihop.structures.tree import Node, Params, Tree

PLAIN = Clustering(10, 15, 0.1, 8, 3500, 42)


@pytest.fixture
def no_umap(monkeypatch):
    """PCA for every size: UMAP compiles for half a minute."""

    def reduced(self, vectors, neighbours):
        left, sizes, _ = np.linalg.svd(vectors - vectors.mean(axis=0), full_matrices=False)
        return left[:, : self.components] * sizes[: self.components]

    monkeypatch.setattr(Clustering, "_reduced", reduced)


def passages(n: int, seed: int = 0) -> list[tuple[str, str]]:
    rng = random.Random(seed)
    words = "bell bridge church fire hill mayor music novel opera painter river town village weaver".split()
    return [(f"Place {i}", " ".join(rng.choices(words, k=12)) + ".") for i in range(n)]


def echo(body) -> Say:
    """A summary that is its texts' first words: distinct texts get distinct summaries."""
    text = body["messages"][-1]["content"]
    return Say("Summary: about " + " ".join(part.split("\n")[0] for part in text.split("\n\n"))[:80])


def build(retriever, folder: Path, script=echo, **params):
    client = FakeClient(script)
    tree = Tree(Params(**{"max_clusters": 8} | params))
    folder.mkdir(parents=True)
    statistics = asyncio.run(tree.build(Builder(retriever, client, prompts_of("tree"), folder)))
    return tree.load(folder, retriever, None), statistics, client


def check(tree, chunk_ids: list[str]) -> None:
    """The invariants of a tree without failures."""
    nodes, top = tree.nodes, max(node.layer for node in tree.nodes)
    assert [n.chunk_id for n in nodes if n.layer == 0] == chunk_ids
    for node in nodes:
        assert (node.layer == 0) == (node.chunk_id is not None) == (not node.children)
        assert all(nodes[c].layer == node.layer - 1 and c < node.id for c in node.children)  # hence no cycle
        assert len(set(node.children)) == len(node.children)
        if node.children:
            below = {c for child in node.children for c in tree.descendants(nodes[child])}
            assert set(tree.descendants(node)) == below
    parents = {c for node in nodes for c in node.children}
    assert all(node.id in parents for node in nodes if node.layer < top)  # everything reaches the top layer
    sizes = [sum(n.layer == layer for n in nodes) for layer in range(top + 1)]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == len(sizes)


@pytest.mark.parametrize("seed", range(3))
def test_invariants(seed, tmp_path, no_umap):
    retriever = small_retriever(tmp_path, passages(40, seed))
    tree, statistics, client = build(retriever, tmp_path / "tree")
    check(tree, [c.id for c in retriever.chunks])
    assert statistics["layers"] >= 1 and statistics["failed"] == 0
    assert statistics["leaves"] == 40 == statistics["nodes_layer_0"]
    assert statistics["summaries"] == len(client.bodies) == len(tree.nodes) - 40
    assert tree.vectors.shape == (len(tree.nodes), 24) and tree.vectors.dtype == np.float16


@pytest.mark.parametrize(("n", "calls"), [(1, False), (2, False), (11, False), (12, True)])
def test_small_corpora(n, calls, tmp_path):
    """Eleven nodes are never clustered; twelve are, by PCA: none of these needs UMAP."""
    retriever = small_retriever(tmp_path, WORLD[:n])
    tree, statistics, client = build(retriever, tmp_path / "tree")
    check(tree, [c.id for c in retriever.chunks])
    assert bool(client.bodies) == calls and statistics["layers"] == calls
    found = tree.search(retriever.query_vector("Tavik"), 50)
    assert len(found) == len(tree.nodes) and found[0][1] >= found[-1][1]


def test_with_umap_the_same_seed_gives_the_same_tree(tmp_path):
    pytest.importorskip("umap")
    files = []
    for name in ("a", "b"):
        retriever = small_retriever(tmp_path / name, [*WORLD, ("Norr Bell", "The bell of Norr was cast in 1701.")])
        tree, _, _ = build(retriever, tmp_path / name / "tree")
        check(tree, [c.id for c in retriever.chunks])
        files.append([(tmp_path / name / "tree" / f).read_bytes() for f in ("nodes.jsonl", "vectors.npy")])
    assert files[0] == files[1]


def test_duplicate_passages_are_one_cluster(tmp_path, no_umap):
    retriever = small_retriever(tmp_path, [WORLD[0]] * 20)
    tree, _, client = build(retriever, tmp_path / "tree")
    check(tree, [c.id for c in retriever.chunks])
    assert len(client.bodies) == 1


# -- what is asked


def test_the_requests_are_those_that_were_recorded(tmp_path, monkeypatch):
    retriever = small_retriever(tmp_path, WORLD)
    monkeypatch.setattr(Clustering, "clusters", lambda self, vectors, tokens: [(0, 5), tuple(range(1, 12))])
    _, statistics, client = build(retriever, tmp_path / "tree", summary_tokens=90, input_tokens=100)
    first, second = client.bodies
    text = "\n\n".join(retriever.text(c) for c in ("p0", "p5"))
    assert first["messages"][0]["content"] == prompts_of("tree")["summary_system"]
    assert first["messages"][1]["content"] == f"{text}\nWrite the summary in at most 60 words."
    assert (first["temperature"], first["max_tokens"], "response_format" in first) == (0.0, 90, False)
    assert client.roles == ["indexer"] * 2 and statistics["truncated_inputs"] == 1
    assert count_tokens(second["messages"][1]["content"].rsplit("\n", 1)[0]) <= 100


def test_layers_stop_at_their_bound_and_where_nothing_gets_smaller(tmp_path, monkeypatch):
    retriever = small_retriever(tmp_path, passages(40))
    pairs = lambda self, vectors, tokens: [tuple(range(i, i + 2)) for i in range(0, len(vectors), 2)]  # noqa: E731
    monkeypatch.setattr(Clustering, "clusters", pairs)
    assert [build(retriever, tmp_path / f"t{n}", layers=n)[1]["layers"] for n in (0, 1, 3)] == [0, 1, 2]
    alone = lambda self, vectors, tokens: [(i,) for i in range(len(vectors))]  # noqa: E731
    monkeypatch.setattr(Clustering, "clusters", alone)
    _, statistics, client = build(small_retriever(tmp_path / "x", passages(40)), tmp_path / "alone")
    assert not client.bodies and statistics["layers"] == 0


def test_the_estimate_counts_what_may_be_asked(tmp_path):
    few, many = (small_retriever(tmp_path / str(n), passages(n)) for n in (11, 40))
    tree, prompts = Tree(Params()), prompts_of("tree")
    assert tree.estimate(few, prompts).calls == 0
    cost = tree.estimate(many, prompts)
    assert cost.calls == 10 and cost.completion_tokens == 1500
    assert cost.prompt_tokens > sum(map(many.tokens, (c.id for c in many.chunks)))


# -- failures


def refused(body):
    raise Refused("no")


@pytest.mark.parametrize(
    ("outcome", "said"), [(Say("  "), "empty reply"), (refused, "Refused: no"), (OVERFLOW, "ContextOverflow")]
)
def test_a_failed_summary_is_recorded_and_left_out(outcome, said, tmp_path, monkeypatch):
    retriever = small_retriever(tmp_path, WORLD)
    monkeypatch.setattr(Clustering, "clusters", lambda self, vectors, tokens: [(0, 5), tuple(range(1, 12))])
    tree, statistics, _ = build(retriever, tmp_path / "tree", in_turn([outcome], then=echo))
    assert (statistics["failed"], statistics["summaries"]) == (1, 1)
    [summary] = [node for node in tree.nodes if node.layer]
    assert summary.children == tuple(range(1, 12)) and summary.text.startswith("about ")
    [row] = (tmp_path / "tree/failed.jsonl").read_text().splitlines()
    assert said in row and '"children":[0,5]' in row and '"layer":1' in row
    assert not any("Refused" in node.text or "context" in node.text for node in tree.nodes)


def test_where_all_summaries_fail_the_leaves_are_the_tree(tmp_path):
    retriever = small_retriever(tmp_path, WORLD)
    tree, statistics, _ = build(retriever, tmp_path / "tree", lambda body: Say(""))
    assert len(tree.nodes) == 12 and statistics["layers"] == 0 and statistics["failed"] >= 1


# -- leaves


def test_a_long_chunk_becomes_pieces_of_whole_sentences(tmp_path):
    long = [f"The {i}th bell of Norr was cast by a weaver who had come from the Grey Hills." for i in range(12)]
    retriever = small_retriever(tmp_path, [WORLD[0], ("Bells", " ".join(long))])
    tree, _, _ = build(retriever, tmp_path / "tree")
    first, *pieces = tree.nodes
    assert first.text == retriever.text("p0") and {p.chunk_id for p in pieces} == {"p1"} and len(pieces) > 1
    assert all(count_tokens(p.text) <= 100 for p in pieces)
    assert pieces[0].text.startswith("Bells\nThe 0th bell") and all(p.text.endswith("Hills.") for p in pieces)
    assert " ".join(p.text for p in pieces) == retriever.text("p1")  # nothing is lost
    assert not np.array_equal(tree.vectors[2], retriever.chunk_vector("p1"))
    endless = small_retriever(tmp_path / "b", [("Endless", "word " * 400)])
    assert [n.text[:5] for n in build(endless, tmp_path / "c")[0].nodes] == ["Endle", "word "]  # longer than the size


# -- clusters


@given(st.integers(0, 10**6), st.integers(12, 45), st.sampled_from([40, 200, 3500]), st.booleans())
@settings(max_examples=12, deadline=None)
def test_clusters_cover_all_nodes_within_the_size(seed, n, limit, alike):
    rng = np.random.default_rng(seed)
    vectors = np.ones((n, 16)) if alike else rng.normal(size=(n, 16))
    tokens = rng.integers(5, 60, n)
    method = replace(PLAIN, max_tokens=limit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Clustering, "_reduced", lambda self, v, neighbours: v[:, : self.components])
        clusters = method.clusters(vectors, tokens)
        again = method.clusters(vectors, tokens)
    assert clusters == again and len(set(clusters)) == len(clusters)
    assert {i for c in clusters for i in c} == set(range(n))
    assert all(list(c) == sorted(set(c)) for c in clusters)
    assert all(len(c) == 1 or tokens[list(c)].sum() <= limit for c in clusters)


def test_separate_groups_are_separate_clusters(no_umap):
    rng = np.random.default_rng(3)
    centres = np.eye(16)[[0, 5, 9]] * 10
    vectors = np.repeat(centres, 20, axis=0) + rng.normal(scale=0.05, size=(60, 16))
    method = replace(PLAIN, components=2)
    for cluster in method.clusters(vectors, [10] * 60):
        assert len({i // 20 for i in cluster}) == 1


@pytest.mark.parametrize(("n", "block"), [(30, 512), (30, 7), (700, 512)])
def test_neighbours_are_those_of_the_plain_computation(n, block, monkeypatch):
    monkeypatch.setattr(clustering, "BLOCK", block)
    vectors = np.random.default_rng(1).normal(size=(n, 12)).astype(np.float32)
    vectors[5] = vectors[9]
    positions, distances = clustering.nearest(vectors, 6)
    unit = vectors / np.linalg.norm(vectors.astype(float), axis=1, keepdims=True)
    expected = 1 - unit @ unit.T
    assert positions[:, 0].tolist() == list(range(n)) and (distances[:, 0] == 0).all()
    assert {9, 5} <= set(positions[5]) & set(positions[9])
    assert distances == pytest.approx(np.sort(expected, axis=1)[:, :6], abs=2e-6)
    assert distances == pytest.approx(np.take_along_axis(expected, positions, axis=1), abs=2e-6)


def test_only_a_large_layer_gets_neighbours_of_ours(monkeypatch):
    """What is stored for the demo's 180 passages is what UMAP makes by itself."""
    umap, given = pytest.importorskip("umap"), []

    class Kept:
        def __init__(self, **options):
            given.append(options)

        def fit_transform(self, vectors):
            return vectors[:, :10]

    monkeypatch.setattr(umap, "UMAP", Kept)
    vectors = np.random.default_rng(2).normal(size=(clustering.PAIRWISE + 1, 16))
    PLAIN._reduced(vectors[:-1], 15)
    PLAIN._reduced(vectors, 15)
    assert "precomputed_knn" not in given[0] and given[0]["n_neighbors"] == given[1]["n_neighbors"] == 15
    assert given[1]["precomputed_knn"][0].shape == (clustering.PAIRWISE + 1, 15)


# -- replay


def test_clusters_come_from_the_store(tmp_path, monkeypatch):
    retriever = small_retriever(tmp_path, WORLD)
    first, _, client = build(retriever, tmp_path / "a")

    def fail(self, vectors, tokens):
        raise AssertionError("clustered again")

    monkeypatch.setattr(Clustering, "clusters", fail)
    retriever.allow = False
    second, _, again = build(retriever, tmp_path / "b")
    assert first.nodes == second.nodes and client.bodies == again.bodies
    with pytest.raises((ReplayMiss, BaseExceptionGroup)) as caught:
        build(retriever, tmp_path / "c", threshold=0.2)
    assert "raptor-clusters" in str(caught.value)


def test_another_version_of_a_library_is_refused(tmp_path):
    retriever = small_retriever(tmp_path, WORLD)
    with pytest.raises(ReplayMiss, match=r"umap-learn 0\.0\.1, found .*umap_version"):
        build(retriever, tmp_path / "tree", umap_version="0.0.1")


def test_a_missing_or_damaged_tree_is_refused(tmp_path):
    retriever = small_retriever(tmp_path, WORLD[:3])
    build(retriever, tmp_path / "tree")
    tree = Tree(Params())
    with pytest.raises(DataError):
        tree.load(tmp_path / "none", retriever, None)
    np.save(tmp_path / "tree/vectors.npy", np.zeros((2, 24), dtype=np.float16))
    with pytest.raises(DataError, match="do not fit"):
        tree.load(tmp_path / "tree", retriever, None)
    (tmp_path / "tree/nodes.jsonl").write_text('{"id": 0, "children": []}\n')
    with pytest.raises(DataError, match="damaged"):
        tree.load(tmp_path / "tree", retriever, None)


def test_descendants_of_a_shared_child_count_once(tmp_path):
    retriever = small_retriever(tmp_path, WORLD[:3])
    tree, _, _ = build(retriever, tmp_path / "tree")
    nodes = (*tree.nodes, Node(3, 1, "x", None, (0, 1)), Node(4, 1, "y", None, (1, 2)), Node(5, 2, "z", None, (3, 4)))
    assert replace(tree, nodes=nodes).descendants(nodes[5]) == ["p0", "p1", "p2"]
