"""GFM-RAG: what it asks, how entities become passages, and every question or graph that leaves it nothing to rank."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gnn_fixture import PASSAGES, TRIPLES, constant, network_of, small_graph
from project_fixture import FakeClient, answer, events, prompts_of
from scripted_server import Say

from multihop.config import RunConfig
from multihop.errors import DataError
from multihop.methods import registry
from multihop.structures import gnn, ppr
from multihop.types import Retrieved

QUESTION = "Where was the author of The Salt Road born?"


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return small_graph(tmp_path_factory.mktemp("gfm"))


def script(names=("The Salt Road",), raw=None):
    def model(body):
        form = (body.get("response_format") or {}).get("json_schema", {}).get("name")
        if form == "named":
            return Say(raw if raw is not None else json.dumps({"entities": list(names)}))
        return Say("Because: x.\nAnswer: Dorvik")

    return model


def run(graph, model=None, network=None, question=QUESTION, **options):
    client = FakeClient(model or script())
    _, trace, record = answer(
        graph.retriever, "gfm_rag", client, question, trained=network or network_of(), structure=graph, **options
    )
    return client, trace, record


def expected(graph, network, linked, k=5, top=20):
    scores = network.scores(graph, graph.retriever.query_vector(QUESTION), linked)
    entities = ppr.best(scores, top)
    passages = gnn.passage_scores(graph, entities)
    order = sorted((i for i in range(len(passages)) if passages[i] > 0), key=lambda i: (-round(passages[i], 9), i))
    return [f"p{i}" for i in order[:k]]


def test_golden_calls_and_passages(graph):
    client, trace, record = run(graph, max_tokens=66, entity_tokens=44)
    prompts = prompts_of("gfm_rag")
    assert client.roles == ["control", "reader"]
    first, last = client.bodies
    assert first["messages"] == [
        {"role": "system", "content": prompts["query_entities_system"]},
        {"role": "user", "content": prompts["query_entities_user"].format(question=QUESTION)},
    ]
    assert (first["max_tokens"], first["temperature"], last["max_tokens"]) == (44, 0.0, 66)
    ids = ["p4", "p0", "p3", "p1", "p2"]
    shown = "\n\n".join(f"[{i}] {graph.retriever.text(i)}" for i in ids)
    assert last["messages"][1]["content"] == prompts["reader_user"].format(passages=shown, question=QUESTION)
    assert record.retrieved == tuple(Retrieved(i, 1, "gfm_rag") for i in ids) and record.cited == tuple(ids)
    assert (record.status, record.short, record.loops, record.retrieval_calls) == ("ok", "Dorvik", 1, 1)
    assert [e.kind for e in trace.events] == ["query_entities", "linked", "retrieve", "final"]
    assert events(trace, "linked") == [{"phrases": ["the salt road"]}]
    [search] = events(trace, "retrieve")
    # Every phrase is among the best 20: Mern's passage has two of its own, the ends of the chain one and a half.
    assert search["scores"] == [1.0, 0.75, 0.75, 0.5, 0.5]


@pytest.mark.parametrize("top", [1, 2, 3])
def test_the_best_entities_choose_the_passages(graph, top):
    network = network_of(seed=3)
    linked = [graph.phrases.index("the salt road"), graph.phrases.index("dorvik")]
    record = run(graph, script(("The Salt Road", "Dorvik")), network, top_entities=top)[2]
    ids = [r.chunk_id for r in record.retrieved]
    assert ids == expected(graph, network, linked, top=top) and 0 < len(ids) <= 5
    assert [r.chunk_id for r in run(graph, script(("The Salt Road", "Dorvik")), network, k=1)[2].retrieved] == expected(
        graph, network, linked, k=1
    )


@pytest.mark.parametrize("model", [script(()), script(raw="I see no entity here"), script(("...", ""))])
def test_a_question_without_entities_is_linked_as_one(graph, model):
    trace, record = run(graph, model)[1:]
    [nearest] = graph.link([QUESTION])
    assert events(trace, "linked") == [{"phrases": [graph.phrases[nearest]]}]
    assert events(trace, "fallback") == [{"what": "no_entity", "to": "the whole question as one"}]
    assert record.status == "ok" and record.retrieved


def test_a_question_of_no_letters_gets_the_dense_ranking(graph):
    trace, record = run(graph, script(()), question="??")[1:]
    assert events(trace, "fallback")[-1] == {"what": "no_entity", "to": "dense"}
    assert [r.chunk_id for r in record.retrieved] == [h.chunk_id for h in graph.retriever.dense("??", 5)]


def test_equal_scores_say_nothing_and_get_the_dense_ranking(graph):
    trace, record = run(graph, network=constant(network_of()), k=3)[1:]
    assert events(trace, "fallback") == [{"what": "equal_scores", "to": "dense"}]
    assert record.read == tuple(h.chunk_id for h in graph.retriever.dense(QUESTION, 3)) and record.retrieval_calls == 1


def test_a_graph_without_facts_asks_nothing_and_gets_the_dense_ranking(tmp_path):
    graph = small_graph(tmp_path, triples={})
    client, trace, record = run(graph, k=2)
    assert client.roles == ["reader"] and events(trace, "fallback") == [{"what": "no_facts", "to": "dense"}]
    assert [r.tool for r in record.retrieved] == ["gfm_rag", "gfm_rag"]


def test_a_network_of_another_embedder_is_refused_before_anything_is_asked(graph):
    client = FakeClient(script())
    with pytest.raises(BaseException) as caught:
        answer(graph.retriever, "gfm_rag", client, QUESTION, trained=network_of(features=768), structure=graph)
    assert isinstance(caught.value, DataError) and "768 dimensions" in str(caught.value) and client.bodies == []


@pytest.mark.parametrize("passages", [1, 2, 12, 13])
def test_small_corpora_duplicates_and_an_entity_everywhere(tmp_path, passages):
    texts = [(f"Title {i % 3}", "Dorvik is mentioned here.") for i in range(passages)]
    triples = {i: [("Dorvik", "has", f"quarter {i % 3}")] for i in range(passages)}
    graph = small_graph(tmp_path, texts, triples)
    record = run(graph, script(("Dorvik",)))[2]
    ids = [r.chunk_id for r in record.retrieved]
    assert record.status == "ok" and len(ids) == min(5, passages) and len(set(ids)) == len(ids)


def test_a_graph_of_one_phrase(tmp_path):
    graph = small_graph(tmp_path, PASSAGES[:2], {0: [("Dorvik", "is", "Dorvik")]})
    assert [r.chunk_id for r in run(graph)[2].retrieved] == ["p0"]


def test_the_same_question_twice_is_the_same_record_and_passages_without_entities_are_never_found(graph):
    network = network_of(seed=5)
    first, second = (run(graph, network=network)[2].to_json() for _ in range(2))
    assert first == second and "p5" not in [r["chunk_id"] for r in first["retrieved"]]
    assert set(TRIPLES) == {0, 1, 2, 3, 4}


def test_defaults_are_the_authors(graph):
    params = registry.create(RunConfig(method="gfm_rag"), "x").params
    assert (params.k, params.top_entities) == (5, 20)
    assert np.isfinite(network_of().scores(graph, graph.retriever.query_vector(QUESTION), [0, 1, 2])).all()
