"""KGP's passage graph: who is linked, why, how many at most, and that it is the same every time."""

from __future__ import annotations

import numpy as np
import pytest
from entity_fixture import Capitalised, built
from fake_embedder import PASSAGES, small_retriever
from project_fixture import WORLD

from multihop.errors import DataError
from multihop.structures import passage_graph

NONE = {"keywords": 0, "nearest": 0}


def graph_over(tmp_path, passages, **params):
    retriever = small_retriever(tmp_path, passages)
    return built("passage_graph", retriever, tmp_path / "graph", Capitalised(retriever), **params)


def listed(graph, place):
    return [int(c[1:]) for c in graph.neighbours([f"p{place}"])]


def kinds(statistics):
    return [statistics[f"{kind}_links"] for kind in ("entity", "keyword", "nearest")]


class Nameless(Capitalised):
    """No passage has an entity."""

    def of(self, chunk_id):
        return ()


def test_entities_alone(tmp_path):
    graph, statistics = graph_over(tmp_path, PASSAGES, **NONE)
    # Ilva Dorn, The Glass Harbour: p0, p2; Marrow Bay: p0, p1, p4; Sund: p1, p3; Tomas Reed: p1, p4.
    assert [listed(graph, i) for i in range(5)] == [[1, 2, 4], [0, 3, 4], [0], [1], [0, 1]]
    assert kinds(statistics) == [10, 0, 0] and statistics["linking_entities"] == 5
    assert statistics["links"] == 10 and statistics["isolated"] == 0
    assert (statistics["nodes"], statistics["max_degree"], statistics["components"]) == (5, 3, 1)


def test_what_many_share_links_none(tmp_path):
    graph, statistics = graph_over(tmp_path, PASSAGES, max_df=2, **NONE)
    assert listed(graph, 0) == [2] and listed(graph, 4) == [1]  # Marrow Bay is in three
    assert statistics["linking_entities"] == 4


def test_an_entity_in_every_passage(tmp_path):
    many = [(f"Item {i}", f"Dorvik sells number {i}.") for i in range(8)]
    _, statistics = graph_over(tmp_path, many, max_df=5, **NONE)
    assert (statistics["links"], statistics["isolated"], statistics["components"]) == (0, 8, 8)
    _, all_linked = graph_over(tmp_path / "all", many, max_df=8, max_degree=3, **NONE)
    assert all_linked["links"] == 8 * 3 and all_linked["max_degree"] == 3


def test_keywords_are_shared_words_and_no_stop_words(tmp_path):
    texts = [("a", "the ferry crossed the ferry lane"), ("b", "the ferry was sold"), ("c", "the lane was long")]
    graph, statistics = graph_over(tmp_path, texts, nearest=0, keywords=1, max_df=2)
    assert listed(graph, 0) == [1] and listed(graph, 2) == []  # its best word is ferry: twice there
    assert kinds(statistics) == [0, 2, 0] and statistics["linking_keywords"] == 1
    two, _ = graph_over(tmp_path / "two", texts, nearest=0, keywords=2, max_df=2)
    assert listed(two, 0) == [1, 2]


def test_nearest_links_are_the_exact_ones_both_ways(tmp_path, monkeypatch):
    monkeypatch.setattr(passage_graph, "BLOCK", 5)  # several blocks
    retriever = small_retriever(tmp_path, WORLD)
    graph, statistics = built("passage_graph", retriever, tmp_path / "g", Nameless(retriever), keywords=0)
    vectors = np.stack([retriever.chunk_vector(c.id) for c in retriever.chunks]).astype(float)
    cosine = np.round(vectors @ vectors.T, 9)
    np.fill_diagonal(cosine, -2)
    best = [set(np.argsort(-row, kind="stable")[:10].tolist()) for row in cosine]
    for a in range(len(WORLD)):
        assert listed(graph, a) == [b for b in range(len(WORLD)) if b in best[a] or a in best[b]]
    assert kinds(statistics) == [0, 0, statistics["links"]] and statistics["links"] >= 12 * 10


def test_a_link_may_be_of_several_kinds(tmp_path):
    passages = [("Arle", "the ferry of Arle"), ("Arle again", "a ferry of Arle"), ("Other", "nothing shared")]
    _, statistics = graph_over(tmp_path, passages, nearest=1, keywords=1, max_df=2)
    assert statistics["entity_links"] == 2 == statistics["keyword_links"] and statistics["nearest_links"] == 4
    assert statistics["links"] == 4  # 0-1 for all three reasons, 2 to its nearest
    _, capped = graph_over(tmp_path / "capped", passages, nearest=2, keywords=1, max_df=2, max_degree=1)
    assert kinds(capped) == [2, 2, 3] and capped["links"] == 3  # what the cap leaves


def test_blocks_change_nothing(tmp_path, monkeypatch):
    _, whole = graph_over(tmp_path / "a", WORLD, nearest=3, max_degree=4)
    monkeypatch.setattr(passage_graph, "BLOCK", 5)
    _, parts = graph_over(tmp_path / "b", WORLD, nearest=3, max_degree=4)
    files = [sorted((tmp_path / x / "graph").iterdir()) for x in "ab"]
    assert whole == parts and [f.read_bytes() for f in files[0]] == [f.read_bytes() for f in files[1]]


def test_the_cap_keeps_the_links_that_share_most_and_rarest(tmp_path):
    texts = [
        ("a", "we saw Arle and Norr and Dorvik"),
        ("b", "we met Arle"),
        ("c", "we met Norr and Dorvik"),
        ("d", "we met Dorvik"),
    ]
    graph, _ = graph_over(tmp_path, texts, max_degree=2, **NONE)
    assert listed(graph, 0) == [1, 2]  # c: Norr and Dorvik, b: Arle, of two passages; d: Dorvik, of three
    one, _ = graph_over(tmp_path / "one", texts, max_degree=1, **NONE)
    assert listed(one, 0) == [2]


def test_duplicates_are_each_others_nearest_in_corpus_order(tmp_path):
    same = [("x", "one and the same text")] * 6
    graph, _ = graph_over(tmp_path, same, nearest=2, keywords=0)
    assert [listed(graph, i) for i in (0, 2, 5)] == [[1, 2, 3, 4, 5], [0, 1], [0, 1]]


@pytest.mark.parametrize("n", [1, 2, 12, 13])
def test_small_corpora(tmp_path, n):
    corpus = [(f"t{i}", f"line {i} of a text without a name") for i in range(n)]
    graph, statistics = graph_over(tmp_path, corpus)
    assert statistics["nodes"] == n and statistics["isolated"] == (n == 1)
    assert len(graph.neighbours(["p0"])) == statistics["largest_component"] - 1 == n - 1


def test_neighbours_leave_out_the_visited_and_know_every_id(tmp_path):
    graph, _ = graph_over(tmp_path, PASSAGES, **NONE)
    assert graph.neighbours(["p4", "p0"]) == ["p1", "p2"] and graph.neighbours([]) == []
    with pytest.raises(KeyError):
        graph.neighbours(["p99"])


def test_missing_and_foreign_files_are_said(tmp_path):
    retriever = small_retriever(tmp_path / "five")
    built("passage_graph", retriever, tmp_path / "graph", Capitalised(retriever))
    made = passage_graph.PassageGraphBuilder(passage_graph.Params())
    other = small_retriever(tmp_path / "world", WORLD)
    with pytest.raises(DataError, match="do not fit"):
        made.load(tmp_path / "graph", other, None)
    (tmp_path / "graph" / "indices.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(DataError, match=r"indices\.npy.*dvc repro"):
        made.load(tmp_path / "graph", retriever, None)
    (tmp_path / "graph" / "indptr.npy").unlink()
    with pytest.raises(DataError, match=r"indptr\.npy"):
        made.load(tmp_path / "graph", retriever, None)


def test_asks_no_model(tmp_path):
    made = passage_graph.PassageGraphBuilder(passage_graph.Params())
    assert made.estimate(small_retriever(tmp_path), {}) == passage_graph.Cost(0, 0, 0)
