"""LinearRAG's tri-graph: which links there are, and how a question finds its way in."""

from __future__ import annotations

import numpy as np
import pytest
from entity_fixture import Capitalised, built
from fake_embedder import PASSAGES, small_retriever

from multihop.errors import DataError
from multihop.structures import tri_graph


def graph_over(tmp_path, passages=PASSAGES, **params):
    retriever = small_retriever(tmp_path, passages)
    return built("tri_graph", retriever, tmp_path / "graph", Capitalised(retriever), **params)


def sentences_with(graph, retriever, entity):
    texts = [s for c in retriever.chunks for s, _ in retriever.sentences_of(c.id)]
    row = graph.entities.index(entity)
    return [texts[i] for i in graph.entity_sentences[[row]].tocoo().coords[1]]


def test_an_entity_is_in_the_sentences_of_its_passages_that_hold_its_name(tmp_path):
    passages = [
        ("Arle", "The ARLE is a river. It ends at Dorvik. Boats from Dorvik leave daily."),
        ("Other", "nobody writes arle large here, and nobody found it"),
    ]
    retriever = small_retriever(tmp_path, passages)
    graph, statistics = built("tri_graph", retriever, tmp_path / "graph", Capitalised(retriever))
    assert graph.entities == sorted(graph.entities) and {"arle", "dorvik"} <= set(graph.entities)
    assert [s.strip() for s in sentences_with(graph, retriever, "arle")] == ["The ARLE is a river"]
    assert [s.strip() for s in sentences_with(graph, retriever, "dorvik")] == [
        "It ends at Dorvik",
        "Boats from Dorvik leave daily",
    ]
    assert (graph.sentence_entities != graph.entity_sentences.T).nnz == 0
    assert statistics["sentence_links"] == graph.entity_sentences.nnz and statistics["passages"] == 2


def test_mentions_count_the_name_and_are_at_least_one(tmp_path):
    graph, _ = graph_over(tmp_path, [("Arle", "Arle and Arle again. Dorvik is near."), ("x", "Dorvik")])
    counts = {name: graph.mentions[[i]].toarray()[0].tolist() for i, name in enumerate(graph.entities)}
    assert counts["arle"] == [3, 0] and counts["dorvik"] == [1, 1]

    class Odd(Capitalised):
        def of(self, chunk_id):
            return ("written otherwise",)

    retriever = small_retriever(tmp_path / "odd")
    odd, statistics = built("tri_graph", retriever, tmp_path / "odd/graph", Odd(retriever))
    assert odd.mentions.toarray().tolist() == [[1] * 5] and odd.entity_sentences.nnz == 0
    assert statistics["entities_without_sentence"] == 1 and statistics["components"] == 1


def test_pagerank_follows_shares_of_mentions(tmp_path):
    """All restarts in one passage: an edge's share of the walk is the entity's share of the mentions."""
    graph, _ = graph_over(tmp_path, [("Arle", "Arle and Arle again. Dorvik is near."), ("x", "nothing")])
    arle, dorvik = (graph.entities.index(x) for x in ("arle", "dorvik"))
    reset = np.zeros(len(graph.entities) + 2)
    reset[len(graph.entities)] = 1
    scores = graph.graph.pagerank(reset, 0.5)
    assert scores[arle] == pytest.approx(3 * scores[dorvik]) and scores[-1] == 0


def test_a_name_is_a_whole_word(tmp_path):
    passages = [("Art", "the party was large. the part of Art was small. a house of art (Art) and Art's."), ("x", "y")]
    retriever = small_retriever(tmp_path, passages)
    graph, _ = built("tri_graph", retriever, tmp_path / "graph", Capitalised(retriever))
    assert [s.strip() for s in sentences_with(graph, retriever, "art")] == [
        "the part of Art was small",
        "a house of art (Art) and Art's",
    ]
    assert graph.mentions[[graph.entities.index("art")]].toarray()[0].tolist() == [5, 0]


def test_passages_are_linked_by_entities_alone(tmp_path):
    _, statistics = graph_over(tmp_path, [("a", "one"), ("b", "two"), ("c", "three")])
    assert statistics["edges"] == 0 and statistics["components"] == statistics["isolated"] == 3


# -- seeds


def test_a_question_finds_the_entity_itself(tmp_path):
    graph, _ = graph_over(tmp_path)
    seeds = graph.seeds("when was Marrow Bay founded, and who is Tomas Reed?")
    assert {graph.entities[i] for i in seeds} == {"marrow bay", "tomas reed"}
    assert list(seeds) == sorted(seeds) and all(v == pytest.approx(1, abs=1e-3) for v in seeds.values())


def test_two_names_of_the_same_entity_count_by_the_better_one(tmp_path):
    graph, _ = graph_over(tmp_path, [("Ilva Dorn", "Ilva Dorn wrote.")])
    both, alone = graph.seeds("is Ilva the same as Ilva Dorn?"), graph.seeds("is Ilva there?")
    assert list(both) == list(alone) == [0] and both[0] > alone[0] > 0
    assert graph.seeds("is Ilva Dorn the same as Ilva?") == both


def test_no_seed(tmp_path):
    graph, _ = graph_over(tmp_path / "a")
    assert graph.seeds("who is the mayor?") == {} == graph.seeds("")
    empty, statistics = graph_over(tmp_path / "b", [("a", "no name here"), ("b", "nor there")])
    assert empty.seeds("Who is Ilva Dorn?") == {} and statistics["entities"] == 0 == statistics["edges"]


def test_an_entity_that_points_away_is_no_seed(tmp_path):
    graph, _ = graph_over(tmp_path, [("Arle", "Arle")])
    graph._vectors = -graph._vectors
    assert graph.seeds("Where is Arle?") == {}


# -- odd corpora


@pytest.mark.parametrize("n", [1, 2, 12, 13])
def test_small_corpora_and_duplicates(tmp_path, n):
    graph, statistics = graph_over(tmp_path, [("Dorvik", "Dorvik is a town.")] * n)
    assert (statistics["entities"], statistics["passages"], statistics["edges"]) == (1, n, n)
    assert statistics["components"] == 1 and graph.seeds("Where is Dorvik?").keys() == {0}


def test_the_same_bytes_every_time(tmp_path):
    for name in "ab":
        graph_over(tmp_path / name)
    files = [sorted((tmp_path / x / "graph").iterdir()) for x in "ab"]
    assert [f.name for f in files[0]] and [f.read_bytes() for f in files[0]] == [f.read_bytes() for f in files[1]]


def test_missing_damaged_and_foreign_files_are_said(tmp_path):
    retriever = small_retriever(tmp_path / "five")
    over = Capitalised(retriever)
    built("tri_graph", retriever, tmp_path / "graph", over)
    made = tri_graph.TriGraphBuilder(tri_graph.Params())
    with pytest.raises(DataError, match="do not fit"):
        made.load(tmp_path / "graph", small_retriever(tmp_path / "one", PASSAGES[:1]), over)
    for name, what in (("entity_vectors", np.zeros((1, 24), "<f2")), ("mentions", np.ones(1, "<i4"))):
        path = tmp_path / "graph" / f"{name}.npy"
        kept = path.read_bytes()
        np.save(path, what)
        with pytest.raises(DataError, match="do not fit"):
            made.load(tmp_path / "graph", retriever, over)
        path.write_bytes(kept)
    (tmp_path / "graph" / "entities.jsonl").unlink()
    with pytest.raises(DataError, match=r"entities\.jsonl"):
        made.load(tmp_path / "graph", retriever, over)


def test_asks_no_model(tmp_path):
    made = tri_graph.TriGraphBuilder(tri_graph.Params())
    assert made.estimate(small_retriever(tmp_path), {}) == tri_graph.Cost(0, 0, 0)
