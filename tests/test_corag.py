"""CoRAG on a scripted model: the chain's calls, its stopping rules, and what odd replies do."""

from __future__ import annotations

import copy

import pytest
from fake_embedder import small_retriever
from project_fixture import WORLD, FakeClient, answer, events, prompts_of
from scripted_server import Say, in_turn

from multihop.methods.corag import NO_INFORMATION, _one_line

QUESTION = "Who is the mayor of the town where the author of The Lantern Ferry lived?"
FINAL = Say("Because: she is (p2).\nAnswer: Karla Möhn")
Q1, A1 = "Who wrote The Lantern Ferry?", "Oda Wren"
Q2, A2 = "Where did Oda Wren live?", "Skarholm"
Q3, A3 = "Who is the mayor of Skarholm?", "Karla Möhn"
WHOLE = [Say(text) for text in (Q1, A1, Q2, A2, Q3, A3)]


@pytest.fixture(scope="module")
def retriever(tmp_path_factory):
    return small_retriever(tmp_path_factory.mktemp("corag"), WORLD)


def run(retriever, outcomes, **options):
    client = FakeClient(in_turn(outcomes, then=lambda body: FINAL))
    _, trace, record = answer(retriever, "corag", client, QUESTION, **options)
    assert record.error is None, record.error
    return client, trace, record


def kinds(client) -> list[str]:
    """query, again, answer or reader, by the prompts that each call used."""
    prompts = prompts_of("corag")
    names = {prompts["query_system"]: "query", prompts["answer_system"]: "answer", prompts["reader_system"]: "reader"}
    found = []
    for body in client.bodies:
        kind = names[body["messages"][0]["content"]]
        found.append("again" if kind == "query" and "asked already" in body["messages"][1]["content"] else kind)
    return found


def user(client, call: int) -> str:
    return client.bodies[call]["messages"][-1]["content"]


def test_three_steps_of_query_and_answer_then_the_reader(retriever):
    client, trace, record = run(retriever, WHOLE)
    assert kinds(client) == ["query", "answer"] * 3 + ["reader"]
    assert client.roles == ["control"] * 6 + ["reader"]
    assert {b["temperature"] for b in client.bodies} == {0.0} and {b["max_tokens"] for b in client.bodies} == {64}
    assert [e["query"] for e in events(trace, "retrieve")] == [Q1, Q2, Q3]
    assert (record.stop_reason, record.loops, record.retrieval_calls, record.short) == ("limit", 3, 3, "Karla Möhn")
    prompts = prompts_of("corag")
    assert user(client, 0) == prompts["query_user"].format(question=QUESTION, chain="(no queries yet)")
    chain = f"Query 1: {Q1}\nAnswer 1: {A1}\nQuery 2: {Q2}\nAnswer 2: {A2}"
    assert user(client, 4) == prompts["query_user"].format(question=QUESTION, chain=chain)


def test_a_sub_answer_rests_on_its_own_three_documents_best_last(retriever):
    client, _, _ = run(retriever, WHOLE)
    for call, query in ((1, Q1), (3, Q2), (5, Q3)):
        ids = [h.chunk_id for h in retriever.dense(query, 3)]
        shown = "\n\n".join(f"[{c}] {retriever.text(c)}" for c in reversed(ids))
        assert user(client, call) == prompts_of("corag")["answer_user"].format(passages=shown, query=query)


def test_the_reader_sees_the_chain_as_notes_and_each_document_once(retriever):
    client, _, record = run(retriever, WHOLE)
    ids = list(dict.fromkeys(h.chunk_id for q in (Q1, Q2, Q3) for h in retriever.dense(q, 3)))
    assert record.cited == tuple(ids) and 3 < len(ids) <= 9
    shown = "\n\n".join(f"[{c}] {retriever.text(c)}" for c in ids)
    chain = "\n".join(f"Query {n}: {q}\nAnswer {n}: {a}" for n, (q, a) in enumerate([(Q1, A1), (Q2, A2), (Q3, A3)], 1))
    expected = prompts_of("corag")["reader_user"].format(passages=f"{shown}\n\n{chain}", question=QUESTION)
    assert user(client, 6) == expected


def test_a_repeated_query_is_asked_for_once_more_then_the_chain_goes_on(retriever):
    client, trace, record = run(retriever, [Say(Q1), Say(A1), Say(Q1.upper()), Say(Q2), Say(A2), Say(Q3), Say(A3)])
    assert kinds(client) == ["query", "answer", "query", "again", "answer", "query", "answer", "reader"]
    again = prompts_of("corag")["query_again"].format(queries=Q1)
    assert user(client, 3) == f"{user(client, 2)}\n{again}"
    assert client.bodies[3]["temperature"] == 0.0
    assert events(trace, "parse_failed") == [{"what": "query", "error": "repeated query"}]
    assert record.stop_reason == "limit" and record.retrieval_calls == 3


def test_a_query_repeated_twice_ends_the_chain(retriever):
    client, trace, record = run(retriever, [Say(Q1), Say(A1), Say(Q1), Say(f'Query 2: "{Q1}"')])
    assert kinds(client) == ["query", "answer", "query", "again", "reader"]
    assert (record.stop_reason, record.retrieval_calls) == ("repeat", 1)
    assert len(events(trace, "parse_failed")) == 2 and f"Answer 1: {A1}\n" in user(client, 4)


def test_without_a_first_query_the_chain_starts_with_the_question(retriever):
    client, trace, record = run(retriever, [Say(""), Say("?!"), Say(A1), Say(Q2), Say(A2), Say(" "), Say(None)])
    assert kinds(client) == ["query", "again", "answer", "query", "answer", "query", "again", "reader"]
    assert [e["query"] for e in events(trace, "retrieve")] == [QUESTION, Q2]
    assert record.stop_reason == "repeat"


@pytest.mark.parametrize("reply", ["", "No relevant information found.", " \n ", "Answer: no relevant information"])
def test_no_information_is_said_in_one_way(retriever, reply):
    client, trace, _ = run(retriever, [Say(Q1), Say(reply)], steps=1)
    assert events(trace, "sub_answer") == [{"query": Q1, "answer": NO_INFORMATION}]
    assert f"Answer 1: {NO_INFORMATION}" in user(client, 2)


def test_steps_and_documents_are_capped(retriever):
    client, _, record = run(retriever, WHOLE, max_docs=4)
    assert record.stop_reason == "limit" and len(record.cited) <= 4 and len(record.retrieved) <= 4
    many = [Say(text) for n in range(20) for text in (f"query {n} of Tavik", f"answer {n}")]
    client, _, record = run(retriever, many, steps=2)
    assert kinds(client) == ["query", "answer"] * 2 + ["reader"] and record.loops == 2
    _, _, record = run(retriever, many, steps=20)
    assert len(record.retrieved) <= 12


def test_a_retriever_that_finds_nothing_costs_no_sub_answer_call(retriever):
    empty = copy.copy(retriever)
    empty.dense = lambda query, k: []
    client, trace, record = run(empty, [Say(Q1), Say(Q2), Say(Q3)])
    assert kinds(client) == ["query"] * 3 + ["reader"] and record.cited == ()
    assert {e["answer"] for e in events(trace, "sub_answer")} == {NO_INFORMATION}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Next query: Who is she?\nAnd more", "Who is she?"),
        ('\n\n- Query 2: "Who is she?"', "Who is she?"),
        ("**Who is she?**", "Who is she?"),
        ('"The Salt Choir" composer', '"The Salt Choir" composer'),
        ("-5 degrees", "-5 degrees"),
        ("Query:\nWho is she?", "Who is she?"),
        ("...", ""),
        ("", ""),
    ],
)
def test_one_line(text, line):
    assert _one_line(text) == line
