"""G-Retriever (hard prompt): prizes, the subgraph, its text, and the passages it came from."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from knowledge_fixture import ask, graph_of, replies, world
from project_fixture import FakeClient, events, prompts_of

from multihop.methods.g_retriever import Params, Prizes, prizes_of, sources, subgraph, table
from multihop.retrieval.tokens import count_tokens

QUESTION = "Which river flows through Skarholm, the town with the mayor Karla Möhn?"


@pytest.fixture(scope="module")
def retriever(tmp_path_factory):
    return world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def graph(retriever, tmp_path_factory):
    return graph_of(retriever, tmp_path_factory.mktemp("graph"))


def prizes(graph, nodes=(), edges=()):
    """By phrase, and by position of the fact."""
    made = Prizes(np.zeros(len(graph.phrases)), np.zeros(len(graph.facts)))
    for phrase, prize in nodes:
        made.nodes[graph.phrases.index(phrase)] = prize
    for fact, prize in edges:
        made.edges[fact] = prize
    return made


def names(graph, nodes):
    return sorted(graph.phrases[n] for n in nodes)


def test_golden(graph):
    client = FakeClient(replies())
    answer, tools = ask(graph, "g_retriever", client, QUESTION, k=3, nodes=2, edges=1, max_tokens=99)
    [body] = client.bodies
    assert client.roles == ["reader"] and body["max_tokens"] == 99
    text = "subject,relation,object\nskarholm,has mayor,karla möhn\nskarholm,lies on,lisse"
    assert answer.cited == ("p2", "p3")
    shown = f"{text}\n\n{tools.numbered(['p2', 'p3'])}"
    prompts = prompts_of("g_retriever")
    assert body["messages"] == [
        {"role": "system", "content": prompts["graph_system"]},
        {"role": "user", "content": prompts["graph_user"].format(passages=shown, question=QUESTION)},
    ]
    assert events(tools.trace, "subgraph") == [{"phrases": 3, "facts": 2, "shown": 2}]
    [search] = events(tools.trace, "retrieve")
    assert (search["tool"], search["chunk_ids"]) == ("g_retriever", ["p2", "p3"])
    assert (answer.short, tools.trace.loops, events(tools.trace, "fallback")) == ("Norr", 1, [])


def test_graph_only_leaves_the_passages_out_and_records_them(graph):
    client = FakeClient(replies())
    answer, tools = ask(graph, "g_retriever", client, QUESTION, graph_only=True)
    shown = client.bodies[0]["messages"][1]["content"]
    assert "[p" not in shown and shown.startswith("subject,relation,object\n")
    assert answer.cited and tuple(tools.trace.retrieved) == answer.cited
    assert not tools.trace.read and tools.trace.retrieval_calls == 1  # retrieved, and read by no model
    assert tools.trace.retrieved_tokens == count_tokens(shown.split("\nQuestion: ")[0])


# -- prizes


def test_node_prizes_go_by_rank(graph, retriever):
    query = retriever.query_vector(QUESTION)
    order = [i for i, _ in graph.phrase_index.search(query, 4)]
    made = prizes_of(graph, query, Params(nodes=4)).nodes
    assert made[order].tolist() == [4, 3, 2, 1] and made.sum() == 10


def test_an_edge_tier_shares_its_prize_and_stays_below_the_better_one(retriever, tmp_path):
    triples = {
        "p0": [("Norr", "mayor", "Tavik"), ("Lisse", "mayor", "Skarholm"), ("Oda", "mayor", "Norr")],
        "p1": [("Oda", "town", "Lisse"), ("Emil", "near", "Tavik")],
    }
    graph = graph_of(retriever, tmp_path, triples)
    query = retriever.query_vector("mayor")
    order = [graph.relations[i] for i, _ in graph.relation_index.search(query, 3)]
    made = prizes_of(graph, query, Params(edges=2)).edges
    by_relation = dict(zip(["mayor", "mayor", "mayor", "town", "near"], made.tolist(), strict=True))
    assert order[0] == "mayor" and made[:3].tolist() == pytest.approx([2 / 3] * 3)
    assert by_relation[order[1]] == pytest.approx(2 / 3 * 0.99) and by_relation[order[2]] == 0.0


def test_more_prizes_than_there_are_phrases_and_edges(graph, retriever):
    made = prizes_of(graph, retriever.query_vector(QUESTION), Params(nodes=99, edges=99))
    assert made.nodes.max() == len(graph.phrases) and (made.nodes > 0).all() and (made.edges > 0).all()


def test_all_equal_scores_are_one_tier(graph):
    made = prizes_of(graph, np.zeros(24, dtype=np.float16), Params())
    assert made.nodes[:3].tolist() == [10, 9, 8]
    assert made.edges.tolist() == pytest.approx([1 / len(graph.facts)] * len(graph.facts))


# -- the subgraph


def test_two_prized_phrases_are_joined_where_it_pays(graph):
    near = prizes(graph, [("the lantern ferry", 4), ("lisse", 3)])
    nodes, edges = subgraph(graph, near, 0.5)
    assert names(graph, nodes) == ["lisse", "skarholm", "the lantern ferry"] and len(edges) == 2
    far = prizes(graph, [("the lantern ferry", 4), ("lisse", 1.5)])
    nodes, edges = subgraph(graph, far, 2.0)  # the way costs 4, more than it leads to
    assert names(graph, nodes) == ["the lantern ferry"] and edges == []


def test_a_fact_worth_more_than_its_cost_is_chosen_for_itself(graph):
    fact = next(f for f in range(len(graph.facts)) if graph.parts(f)[1] == "composed by")
    nodes, edges = subgraph(graph, prizes(graph, edges=[(fact, 3.0)]), 0.5)
    assert edges == [fact] and names(graph, nodes) == ["jon ekeby", "the salt choir"]


def test_the_cost_is_lowered_until_the_best_facts_are_worth_it(graph):
    """Many facts of one relation share its prize: at the full cost none of them would be worth its edge."""
    shared = prizes(graph, edges=[(0, 0.05), (7, 0.02)])
    nodes, edges = subgraph(graph, shared, 0.5)
    assert edges == [0] and len(nodes) == 2
    assert subgraph(graph, shared, 0.01)[1] == [0]  # a cost that is low enough stays


def test_one_connected_part_is_chosen(graph):
    far = prizes(graph, [("norr", 5), ("karla möhn", 4), ("tavik", 3)])
    nodes, edges = subgraph(graph, far, 0.5)
    part = nx.Graph((graph.facts[f][0], graph.facts[f][2]) for f in edges)
    assert names(graph, nodes) == ["karla möhn", "tavik"] and nx.is_connected(part)


def test_loops_and_parallel_facts(retriever, tmp_path):
    triples = {"p0": [("Norr", "is", "Norr"), ("Norr", "near", "Tavik"), ("Tavik", "above", "Norr")]}
    graph = graph_of(retriever, tmp_path, triples)
    assert subgraph(graph, prizes(graph, [("norr", 1)]), 0.5) == ([0], [])
    nodes, edges = subgraph(graph, prizes(graph, [("norr", 1), ("tavik", 2)], [(0, 2.0), (1, 0.2)]), 0.5)
    assert (nodes, edges) == ([0, 1], [0, 1])  # the loop for its prize, of the two others the cheaper one
    alone = graph_of(retriever, tmp_path, {"p0": [("Norr", "is", "Norr")]})
    assert subgraph(alone, prizes(alone, [("norr", 1)]), 0.5) == ([0], [])
    assert subgraph(alone, prizes(alone, [("norr", 1)], [(0, 0.1)]), 0.5) == ([0], [0])  # the lowered cost


# -- its text and its passages


def test_the_table_shows_the_best_facts_within_the_budget(graph):
    given = prizes(graph, [("norr", 2), ("skarholm", 1)], [(0, 0.5), (1, 0.25)])
    text, shown = table(graph, range(13), range(15), given, 2000)
    rows = text.split("\n")
    assert rows[0] == "subject,relation,object" and shown == 15 == len(rows) - 1
    assert rows[1] == "jon ekeby,born in,norr" and rows[3] == "the lantern ferry,printed in,skarholm"
    for limit in (5, 30, 60):
        short, shown = table(graph, range(13), range(15), given, limit)
        assert text.startswith(short) and short.count("\n") == shown < 15
        assert count_tokens(short) <= max(limit, count_tokens(rows[0]))


def test_the_table_of_a_subgraph_without_facts(graph):
    given = prizes(graph, [("norr", 2), ("tavik", 3)])
    both = [graph.phrases.index("norr"), graph.phrases.index("tavik")]
    assert table(graph, both, [], given, 100) == ("entity\ntavik\nnorr", 2)


def test_passages_are_those_the_facts_came_from_by_their_prizes(graph):
    mayor = next(f for f in range(15) if graph.parts(f)[1] == "has mayor")
    given = prizes(graph, [("skarholm", 2), ("lisse", 1)], [(mayor, 0.4)])
    ends = [graph.facts[mayor][0], graph.facts[mayor][2], graph.phrases.index("lisse")]
    assert [h.chunk_id for h in sources(graph, ends, [mayor], given, 5)] == ["p2", "p3"]
    assert [h.chunk_id for h in sources(graph, ends, [mayor], given, 1)] == ["p2"]
    assert [h.chunk_id for h in sources(graph, ends, [], given, 2)] == ["p2", "p4"]
    nothing = prizes(graph)  # a fact on the way, without a prize
    assert [h.chunk_id for h in sources(graph, ends, [mayor], nothing, 5)] == ["p2", "p3"]


# -- odd input


def test_an_empty_graph_and_a_blank_question(retriever, graph, tmp_path):
    empty = graph_of(retriever, tmp_path, {})
    client = FakeClient(replies())
    answer, tools = ask(empty, "g_retriever", client, QUESTION, k=2, graph_only=True)
    assert list(answer.cited) == [h.chunk_id for h in retriever.dense(QUESTION, 2)]
    assert events(tools.trace, "fallback") == [{"what": "no_facts", "to": "dense"}]
    assert client.bodies[0]["messages"][1]["content"].startswith(f"[{answer.cited[0]}] ")
    answer, tools = ask(graph, "g_retriever", client, " ")
    assert answer.cited == () and events(tools.trace, "fallback") == [{"what": "no_question", "to": "dense"}]


@pytest.mark.parametrize("size", [1, 2, 12, 13])
def test_small_corpora_with_duplicates(tmp_path, size):
    retriever = world(tmp_path / "world", [("Norr", "Norr is a village.")] * size)
    graph = graph_of(retriever, tmp_path / "graph", {f"p{i}": [("Norr", "is", "village")] for i in range(size)})
    answer, _ = ask(graph, "g_retriever", FakeClient(replies()), "What is Norr?")
    assert answer.cited == tuple(f"p{i}" for i in range(min(size, 5)))
