"""The knowledge graph: what it is made of, its synonyms against the plain computation, odd corpora."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from knowledge_fixture import TRIPLES, graph_of, statistics_of, world

from multihop import jsonl
from multihop.errors import DataError
from multihop.structures.knowledge_graph import KnowledgeGraphStructure, Params, phrase_of
from multihop.structures.synonyms import synonym_pairs


@pytest.fixture(scope="module")
def retriever(tmp_path_factory):
    return world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def graph(retriever, tmp_path_factory):
    return graph_of(retriever, tmp_path_factory.mktemp("graph"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  The  Salt-Road! ", "the salt road"),
        ("Karla Möhn", "karla möhn"),
        ("1931", "1931"),
        ("…!_", ""),
        ("東京", "東京"),
    ],
)
def test_normal_form(text, expected):
    assert phrase_of(text) == expected == phrase_of(expected)


def test_phrases_facts_and_where_they_came_from(graph):
    assert graph.phrases[:4] == ("the lantern ferry", "oda wren", "skarholm", "emil wren")
    assert len(graph.phrases) == len(set(graph.phrases)) == 13 and len(graph.facts) == len(set(graph.facts)) == 15
    mayor = [f for f in range(15) if graph.parts(f) == ("skarholm", "has mayor", "karla möhn")]
    assert len(mayor) == 1 and graph.fact_chunks[mayor[0]] == (2, 3)
    assert all(list(chunks) == sorted(set(chunks)) and chunks for chunks in graph.fact_chunks)
    skarholm = graph.phrases.index("skarholm")
    assert graph.chunk_counts[skarholm] == 5
    assert graph.mentions[:, skarholm].toarray().ravel().tolist() == [1, 1, 2, 1, 1] + [0] * 7
    assert graph.mentions.shape == (12, 13)


def test_vectors_are_those_of_the_texts(graph, retriever):
    embed = retriever.embedder.encode
    texts = [" ".join(graph.parts(f)) for f in range(len(graph.facts))]
    assert (graph.fact_vectors == embed(texts, "passage")).all() and graph.fact_vectors.dtype == np.float16
    assert (graph.phrase_vectors == embed(graph.phrases, "passage")).all()
    assert (graph.relation_vectors == embed(graph.relations, "passage")).all()


def test_statistics(retriever, tmp_path):
    said, graph = statistics_of(retriever, tmp_path)
    assert (said["phrases"], said["facts"], said["passages"]) == (13, 15, 12)
    assert said["synonym_edges"] == len(graph.synonyms) and said["isolated_passages"] == 3
    whole = nx.Graph((i, j) for i, j, _ in _edges(graph.full_graph))
    whole.add_nodes_from(range(25))
    assert said["components"] == nx.number_connected_components(whole)
    assert said["mean_degree"] == round(2 * said["edges"] / 25, 4)
    assert all(isinstance(value, (int, float)) for value in said.values())


def _edges(graph):
    return [(*edge.tuple, weight) for edge, weight in zip(graph._graph.es, graph._graph.es["weight"], strict=True)]


def test_edges_of_the_two_walks(retriever, tmp_path):
    triples = {
        "p0": [("Norr", "is near", "Tavik"), ("Tavik", "is above", "Norr"), ("Norr", "is", "Norr")],
        "p1": [("Norr", "is near", "Tavik")],
    }
    graph = graph_of(retriever, tmp_path, triples, synonym_cosine=1.0)
    assert _edges(graph.phrase_graph) == [(0, 1, 6.0)]  # three co-occurrences, each entered in both directions
    assert _edges(graph.full_graph) == [(0, 1, 6.0), (0, 2, 1.0), (1, 2, 1.0), (0, 3, 1.0), (1, 3, 1.0)]
    assert graph.mentions.toarray()[:2].tolist() == [[3, 2], [1, 1]]


def test_walks_agree_with_networkx(graph):
    reset = np.zeros(graph.full_graph.nodes)
    reset[[1, 4, 20]] = 0.5, 0.2, 0.05
    plain = nx.Graph()
    plain.add_nodes_from(range(graph.full_graph.nodes))
    for i, j, weight in _edges(graph.full_graph):
        plain.add_edge(i, j, weight=plain.get_edge_data(i, j, {"weight": 0})["weight"] + weight)
    seeds = {i: v for i, v in enumerate(reset)}
    expected = nx.pagerank(plain, 0.5, personalization=seeds, dangling=seeds, weight="weight", tol=1e-13, max_iter=500)
    found = graph.full_graph.pagerank(reset, 0.5)
    assert found == pytest.approx([expected[i] for i in range(len(found))], abs=1e-9)


# -- synonyms


def plain_synonyms(phrases, vectors, threshold, most):
    exact = np.round(vectors.astype(float) @ vectors.astype(float).T, 6)
    near = []
    for i, phrase in enumerate(phrases):
        others = [j for j in range(len(phrases)) if j != i and exact[i, j] >= threshold]
        others = [j for j in others if sum(c.isalnum() for c in phrases[j]) > 2]
        near.append(sorted(others, key=lambda j: (-exact[i, j], j))[:most] if sum(map(str.isalnum, phrase)) > 2 else [])
    pairs = ((i, j) for i in range(len(phrases)) for j in range(i + 1, len(phrases)))
    return [(i, j, exact[i, j]) for i, j in pairs if j in near[i] and i in near[j]]


@pytest.mark.parametrize("most", [1, 3, 100])
def test_synonyms_are_those_of_the_plain_computation(most, monkeypatch):
    rng = np.random.default_rng(5)
    base = rng.normal(size=(12, 8))
    vectors = base[rng.integers(0, 12, 80)] + rng.normal(size=(80, 8)) * 0.25
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)
    vectors[7] = vectors[60] = vectors[3]
    phrases = [f"name {i}" if i % 9 else f"{i % 10}" for i in range(80)]
    expected = plain_synonyms(phrases, vectors, 0.8, most)
    assert len(expected) > 10
    for cells in (1 << 23, 80 * 7, 1):  # whole, blocks of seven rows, one row at a time
        monkeypatch.setattr("multihop.structures.synonyms.CELLS", cells)
        pairs, cosines = synonym_pairs(phrases, vectors, 0.8, most)
        assert [(i, j) for i, j in pairs.tolist()] == [(i, j) for i, j, _ in expected]
        assert cosines == pytest.approx([c for _, _, c in expected], abs=2e-6)


def groups(n: int, dim: int = 48, seed: int = 2) -> np.ndarray:
    """Unit vectors, three to five around each of many centres, at cosines of about 0.7 to 0.95."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(n // 4, dim))
    spread = rng.uniform(0.25, 0.6, size=(n, 1))
    vectors = centres[rng.integers(0, len(centres), n)] + spread * rng.normal(size=(n, dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)


def test_neighbourhoods_find_nearly_all_that_the_exact_search_finds(monkeypatch):
    vectors = groups(6000)
    phrases = [f"name {i}" for i in range(6000)]
    pairs, cosines = synonym_pairs(phrases, vectors, 0.8, 100)
    monkeypatch.setattr("multihop.structures.synonyms.EXACT", 6000)
    whole, of_all = synonym_pairs(phrases, vectors, 0.8, 100)
    expected = dict(zip(map(tuple, whole.tolist()), of_all, strict=True))
    found = dict(zip(map(tuple, pairs.tolist()), cosines, strict=True))
    assert len(expected) > 2000 and found.items() <= expected.items()  # nothing that is not there, same cosines
    assert 0.99 <= len(found) / len(expected) < 1  # docs/deviations.md; below 1: it is not the exact search
    assert pairs.tolist() == sorted(pairs.tolist())


def test_up_to_the_threshold_every_pair_is_compared(monkeypatch):
    monkeypatch.setattr("multihop.structures.synonyms.EXACT", 300)
    monkeypatch.setattr("multihop.structures.synonyms.SIZE", 2)
    monkeypatch.setattr("multihop.structures.synonyms.PROBES", 1)
    vectors = groups(301)
    phrases = [f"name {i}" for i in range(301)]
    exact = [(i, j) for i, j, _ in plain_synonyms(phrases[:300], vectors[:300], 0.8, 3)]
    assert synonym_pairs(phrases[:300], vectors[:300], 0.8, 3)[0].tolist() == list(map(list, exact))
    assert len(synonym_pairs(phrases, vectors, 0.8, 3)[0]) < len(exact)  # so coarse a search loses some


@pytest.mark.parametrize("most", [0, 3])
def test_equal_vectors_in_neighbourhoods_keep_the_bound(most, monkeypatch):
    monkeypatch.setattr("multihop.structures.synonyms.EXACT", 100)
    vectors = np.full((400, 4), 0.5, dtype=np.float16)
    pairs, _ = synonym_pairs([f"name {i}" for i in range(400)], vectors, 0.8, most)
    assert max(np.bincount(pairs.ravel()), default=0) <= most and bool(len(pairs)) == bool(most)


def test_equal_vectors_keep_the_bound_and_the_order():
    vectors = np.full((50, 4), 0.5, dtype=np.float16)
    pairs, cosines = synonym_pairs([f"name {i}" for i in range(50)], vectors, 0.8, 5)
    assert max(np.bincount(pairs.ravel())) <= 5 and (cosines == 1).all() and pairs.tolist() == sorted(pairs.tolist())
    assert len(synonym_pairs([f"name {i}" for i in range(50)], vectors, 0.8, 0)[0]) == 0


@pytest.mark.parametrize("phrases", [[], ["one name"], ["ab", "c", "12"]])
def test_too_few_for_synonyms(phrases):
    pairs, cosines = synonym_pairs(phrases, np.ones((len(phrases), 4), dtype=np.float16), 0.5, 9)
    assert pairs.shape == (0, 2) and cosines.shape == (0,)


def test_a_phrase_and_its_synonym_are_linked(retriever, tmp_path):
    triples = {"p0": [("harbour town Skarholm", "is", "old")], "p1": [("Skarholm harbour town", "has", "mayors")]}
    graph = graph_of(retriever, tmp_path, triples)
    assert graph.synonyms == ((0, 2, pytest.approx(1, abs=1e-3)),)
    assert graph.phrase_graph.statistics()["components"] == 1
    assert graph.params.pair_weight * graph.synonyms[0][2] in graph.phrase_graph._graph.es["weight"]


# -- search


def test_link_takes_the_nearest_phrases_each_once(graph):
    names = ["KARLA MÖHN", "Oda Wren", "karla möhn", "", "?!"]
    assert [graph.phrases[i] for i in graph.link(names)] == ["karla möhn", "oda wren"]
    assert graph.link([]) == graph.link(["--"]) == []


def test_nearest_facts_are_scaled_over_all(graph, retriever):
    query = retriever.query_vector("Who is the mayor of Skarholm?")
    scores = np.round(graph.fact_vectors.astype(float) @ query.astype(float), 9)
    expected = (scores - scores.min()) / (scores.max() - scores.min())
    found = graph.nearest_facts(query, 5)
    assert [f for f, _ in found] == np.argsort(-expected, kind="stable")[:5].tolist()
    assert [s for _, s in found] == pytest.approx(np.sort(expected)[::-1][:5]) and found[0][1] == 1.0
    assert len(graph.nearest_facts(query, 99)) == 15


def test_equal_scores_become_one_and_go_by_position(graph):
    assert graph.nearest_facts(np.zeros(24, dtype=np.float16), 3) == [(0, 1.0), (1, 1.0), (2, 1.0)]


def test_hits_are_relative_rounded_and_without_zeros(graph):
    scores = np.zeros(12)
    scores[[3, 5, 9]] = 2e-7, 1e-7 + 1e-15, 1e-7
    assert [(h.chunk_id, h.rank, h.score) for h in graph.hits(scores, 5)] == [
        ("p3", 1, 1.0),
        ("p5", 2, 0.5),
        ("p9", 3, 0.5),
    ]
    assert [h.chunk_id for h in graph.hits(np.ones(12), 2)] == ["p0", "p1"]
    assert graph.hits(np.zeros(12), 5) == []


# -- odd input


@pytest.mark.parametrize("size", [1, 2, 12, 13])
def test_small_corpora_with_duplicates(tmp_path, size):
    retriever = world(tmp_path / "world", [("Norr", "Norr is a village.")] * size)
    graph = graph_of(retriever, tmp_path / "graph", {f"p{i}": [("Norr", "is", "village")] for i in range(size)})
    assert len(graph.facts) == 1 and graph.fact_chunks[0] == tuple(range(size))
    assert graph.chunk_counts.tolist() == [size, size]


def test_a_graph_without_facts(retriever, tmp_path):
    said, graph = statistics_of(retriever, tmp_path, {"p0": [("…", "is", "Norr"), ("Norr", "-", "Tavik")]})
    assert (said["phrases"], said["facts"], said["isolated_passages"], said["edges"]) == (0, 0, 12, 0)
    assert graph.link(["Norr"]) == [] and graph.nearest_facts(np.ones(24), 5) == []


def test_the_same_bytes_twice(retriever, tmp_path):
    for name in ("a", "b"):
        graph_of(retriever, tmp_path / name)
    for path in sorted((tmp_path / "a").iterdir()):
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


@pytest.mark.parametrize("name", ["facts.jsonl", "names.jsonl", "fact_vectors.npy", "mentions.npy"])
def test_a_missing_or_foreign_file_is_said(retriever, tmp_path, name):
    graph_of(retriever, tmp_path / "one")
    graph_of(retriever, tmp_path / "other", {"p0": TRIPLES["p0"]})
    structure = KnowledgeGraphStructure(Params())
    (tmp_path / "one" / name).unlink()
    with pytest.raises(DataError):
        structure.load(tmp_path / "one", retriever, None)
    if name == "fact_vectors.npy":
        (tmp_path / "one" / name).write_bytes((tmp_path / "other" / name).read_bytes())
        with pytest.raises(DataError, match="do not fit"):
            structure.load(tmp_path / "one", retriever, None)


@pytest.mark.parametrize(
    "row",
    [{"fact": [0, 0, 99]}, {"fact": [0, 99, 1]}, {"fact": [-1, 0, 1]}, {"chunks": [99]}, {"fact": [0, 1]}],
)
def test_a_position_that_is_none_is_said_at_loading(retriever, tmp_path, row):
    graph_of(retriever, tmp_path)
    rows = list(jsonl.read(tmp_path / "facts.jsonl"))
    jsonl.write(tmp_path / "facts.jsonl", [rows[0] | row, *rows[1:]])
    with pytest.raises(DataError, match="do not fit"):
        KnowledgeGraphStructure(Params()).load(tmp_path, retriever, None)


def test_a_synonym_that_is_none_is_said_at_loading(retriever, tmp_path):
    graph_of(retriever, tmp_path)
    np.save(tmp_path / "synonyms.npy", np.array([[0, 99]], dtype=np.int32))
    np.save(tmp_path / "synonym_cosines.npy", np.ones(1))
    with pytest.raises(DataError, match="do not fit"):
        KnowledgeGraphStructure(Params()).load(tmp_path, retriever, None)
