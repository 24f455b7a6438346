"""HippoRAG: entities of the question, a walk over phrases, passages by their phrases; and its fallback."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from knowledge_fixture import ask, graph_of, replies, world
from project_fixture import FakeClient, events, prompts_of

from multihop.methods.hipporag import walk

QUESTION = "Who taught the composer of The Salt Choir?"


@pytest.fixture(scope="module")
def retriever(tmp_path_factory):
    return world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def graph(retriever, tmp_path_factory):
    return graph_of(retriever, tmp_path_factory.mktemp("graph"))


def test_golden(graph):
    client = FakeClient(replies(named='{"entities": ["The Salt Choir", "the salt choir "]}'))
    answer, tools = ask(graph, "hipporag", client, QUESTION, max_tokens=99)
    prompts = prompts_of("hipporag")
    assert client.roles == ["control", "reader"] and [b["max_tokens"] for b in client.bodies] == [80, 99]
    assert client.bodies[0]["messages"] == [
        {"role": "system", "content": prompts["query_entities_system"]},
        {"role": "user", "content": prompts["query_entities_user"].format(question=QUESTION)},
    ]
    assert answer.cited == ("p7", "p8", "p10") and answer.short == "Norr" and tools.trace.loops == 1
    assert events(tools.trace, "query_entities") == [{"found": ["The Salt Choir", "the salt choir"]}]
    assert events(tools.trace, "linked") == [{"phrases": ["the salt choir"]}]
    [search] = events(tools.trace, "retrieve")
    assert (search["tool"], search["chunk_ids"], search["query"]) == ("hipporag", ["p7", "p8", "p10"], QUESTION)
    assert client.bodies[1]["messages"][1]["content"].startswith("[p7] The Salt Choir\n")


def test_the_walk_is_that_of_networkx(graph):
    seeds = [graph.phrases.index("skarholm"), graph.phrases.index("tavik")]
    plain = nx.Graph()
    plain.add_nodes_from(range(len(graph.phrases)))
    edges = graph.phrase_graph._graph.es
    for edge, weight in zip(edges, edges["weight"], strict=True):
        plain.add_edge(*edge.tuple, weight=weight)
    start = {i: 0.0 for i in plain} | {i: 1 / graph.chunk_counts[i] for i in seeds}
    found = nx.pagerank(plain, 0.5, personalization=start, dangling=start, weight="weight", tol=1e-13, max_iter=500)
    scores = graph.mentions.toarray() @ np.array([found[i] for i in range(len(found))])
    expected = [f"p{i}" for i in np.argsort(-np.round(scores / scores.max(), 6), kind="stable")[:5]]
    assert [h.chunk_id for h in walk(graph, seeds, 0.5, 5)] == expected
    assert walk(graph, seeds, 0.5, 5)[0].score == 1.0


def test_a_rare_phrase_weighs_more_than_one_in_every_passage(retriever, tmp_path):
    everywhere = {f"p{i}": [("Skarholm", "named by", f"writer {i}")] for i in range(12)}
    everywhere["p9"] = [("Skarholm", "named by", "writer 9"), ("Tavik", "near", "Norr")]
    graph = graph_of(retriever, tmp_path, everywhere)
    seeds = [graph.phrases.index("skarholm"), graph.phrases.index("tavik")]
    hits = walk(graph, seeds, 0.1, 12)
    assert hits[0].chunk_id == "p9" and len(hits) == 12
    assert [h.chunk_id for h in hits[1:]] == [f"p{i}" for i in range(12) if i != 9]  # equal scores, by position


def test_a_disconnected_part_is_not_retrieved(graph):
    seeds = [graph.phrases.index("norr")]
    assert {h.chunk_id for h in walk(graph, seeds, 0.5, 12)} == {"p7", "p8", "p10"}


@pytest.mark.parametrize("reply", ['{"entities": []}', '{"entities": ["?!", 7]}', "None that I know of."])
def test_without_entities_dense_search_answers_and_it_is_said(graph, reply):
    client = FakeClient(replies(named=reply))
    answer, tools = ask(graph, "hipporag", client, QUESTION, k=3)
    assert list(answer.cited) == [h.chunk_id for h in graph.retriever.dense(QUESTION, 3)]
    assert events(tools.trace, "fallback") == [{"what": "no_phrase", "to": "dense"}]
    assert len(events(tools.trace, "parse_failed")) == (not reply.startswith("{"))


def test_an_empty_graph_and_a_blank_question(retriever, tmp_path):
    empty = graph_of(retriever, tmp_path, {})
    client = FakeClient(replies(named='{"entities": ["Norr"]}'))
    assert len(ask(empty, "hipporag", client, QUESTION)[0].cited) == 5
    answer, tools = ask(empty, "hipporag", client, " ")
    assert answer.cited == () and len(events(tools.trace, "fallback")) == 1
    assert client.roles == ["reader", "reader"]  # nothing to link to, nothing to ask


@pytest.mark.parametrize("size", [1, 2, 12, 13])
def test_small_corpora_with_duplicates(tmp_path, size):
    retriever = world(tmp_path / "world", [("Norr", "Norr is a village.")] * size)
    graph = graph_of(retriever, tmp_path / "graph", {f"p{i}": [("Norr", "is", "village")] for i in range(size)})
    answer, _ = ask(graph, "hipporag", FakeClient(replies(named='{"entities": ["Norr"]}')), "What is Norr?")
    assert answer.cited == tuple(f"p{i}" for i in range(min(size, 5)))
