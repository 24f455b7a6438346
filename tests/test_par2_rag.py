"""PAR2-RAG on a scripted model: anchor, gated chain, stopping rules, and what odd replies do."""

from __future__ import annotations

import copy
import json

import pytest
from fake_embedder import small_retriever
from project_fixture import WORLD, FakeClient, answer, events, prompts_of
from scripted_server import Say, in_turn

QUESTION = "Who is the mayor of the town where the author of The Lantern Ferry lived?"
FINAL = Say("Because: she is (p2).\nAnswer: Karla Möhn")
SUBS = ("Who wrote The Lantern Ferry?", "Where did that author live?", "Who is the mayor there?")
BAD = [Say("Let me think."), Say("I can't.")]
"""A reply that can't be read, and its repair."""


@pytest.fixture(scope="module")
def retriever(tmp_path_factory):
    return small_retriever(tmp_path_factory.mktemp("par2"), WORLD)


def plan(*sub_queries: str) -> Say:
    return Say(json.dumps({"sub_queries": list(sub_queries)}))


def gate(decision: str, query: str = "") -> Say:
    return Say(json.dumps({"decision": decision, "query": query}))


def run(retriever, outcomes, **options):
    client = FakeClient(in_turn(outcomes, then=lambda body: FINAL))
    _, trace, record = answer(retriever, "par2_rag", client, QUESTION, **options)
    assert record.error is None, record.error
    return client, trace, record


def forms(client) -> list[str]:
    return [(b.get("response_format") or {}).get("json_schema", {}).get("name", "text") for b in client.bodies]


def user(client, call: int) -> str:
    return client.bodies[call]["messages"][-1]["content"]


def searches(trace) -> list[tuple[int, str, int]]:
    """(step, query, documents found) of each search."""
    return [(e.step, e.data["query"], len(e.data["chunk_ids"])) for e in trace.events if e.kind == "retrieve"]


ANCHOR = [(1, QUESTION, 3), *((1, q, 1) for q in SUBS)]


def test_anchor_then_a_gate_that_answers(retriever):
    client, trace, record = run(retriever, [plan(*SUBS), gate("answer")])
    assert forms(client) == ["plan", "gate", "text"] and client.roles == ["control", "control", "reader"]
    assert searches(trace) == ANCHOR
    assert (record.stop_reason, record.loops, len(record.cited)) == ("answer", 2, 6)
    assert [b["max_tokens"] for b in client.bodies] == [100, 64, 64]
    prompts = prompts_of("par2_rag")
    shown = "\n\n".join(f"[{c}] {retriever.text(c)}" for c in record.cited)
    assert user(client, 0) == prompts["plan_user"].format(question=QUESTION)
    assert user(client, 1) == prompts["gate_user"].format(passages=shown, question=QUESTION, sub_question=SUBS[0])
    assert user(client, 2) == prompts["reader_user"].format(passages=shown, question=QUESTION)
    assert record.usage["control"].calls == 2


def test_continue_follows_the_plan_and_refine_replaces_a_sub_question(retriever):
    outcomes = [plan(*SUBS), gate("continue", "ignored"), gate("refine", "Where did Oda Wren live?"), gate("answer")]
    client, trace, record = run(retriever, outcomes)
    assert searches(trace)[4:] == [(2, SUBS[0], 3), (3, "Where did Oda Wren live?", 3)]
    assert len(record.cited) == 12 and record.stop_reason == "limit"  # full: no third gate
    outcomes[0] = plan(SUBS[0], SUBS[1])
    client, trace, record = run(retriever, outcomes)
    assert [user(client, n).splitlines()[-2] for n in (1, 2, 3)] == [
        f"Next sub-question: {text}" for text in (SUBS[0], SUBS[1], "(none planned)")
    ]
    assert (record.stop_reason, record.loops) == ("answer", 4)


def test_four_control_steps_and_twelve_documents_at_most(retriever):
    on = [gate("refine", f"query {n}") for n in range(9)]
    client, trace, record = run(retriever, [plan(), *on])
    assert forms(client) == ["plan", "gate", "gate", "gate", "text"]
    assert [step for step, _, _ in searches(trace)] == [1, 2, 3, 4]
    assert (record.stop_reason, record.loops, len(record.cited)) == ("limit", 4, 12)
    _, _, record = run(retriever, [plan(*SUBS), *on], max_docs=5)
    assert (record.stop_reason, record.loops, len(record.retrieved)) == ("limit", 1, 5)
    _, trace, record = run(retriever, [plan(*SUBS), *on], max_steps=1)
    assert searches(trace) == ANCHOR and record.stop_reason == "limit"


def test_a_repeated_query_answers(retriever):
    again = [gate("refine", "Oda Wren"), gate("refine", " oda  WREN ")]
    client, trace, record = run(retriever, [plan(SUBS[0]), *again])
    assert (record.stop_reason, record.loops) == ("repeat", 3) and len(searches(trace)) == 3
    assert forms(client) == ["plan", "gate", "gate", "text"]


def test_an_unreadable_gate_continues_with_the_question_and_leaves_the_plan(retriever):
    client, trace, record = run(retriever, [plan(*SUBS[:2]), *BAD, gate("continue"), gate("answer")])
    assert forms(client) == ["plan", "gate", "gate", "gate", "gate", "text"]
    assert searches(trace)[3:] == [(2, QUESTION, 3), (3, SUBS[0], 3)]
    assert [(e["what"]) for e in events(trace, "parse_failed")] == ["gate"]
    assert record.stop_reason == "answer"


def test_an_unreadable_gate_answers_at_the_last_step_and_the_second_time(retriever):
    _, trace, record = run(retriever, [plan(), gate("refine", "Tavik"), gate("refine", "Norr"), *BAD])
    assert (record.stop_reason, record.loops, len(searches(trace))) == ("limit", 4, 3)
    _, trace, record = run(retriever, [plan(), *BAD, *BAD])
    assert (record.stop_reason, record.loops, len(searches(trace))) == ("repeat", 3, 2)


@pytest.mark.parametrize(
    ("reply", "query"),
    [
        (gate("refine", ""), SUBS[0]),
        (gate("continue"), SUBS[0]),
        (gate(" Refine ", "  Oda   Wren "), "Oda Wren"),
        (Say('{"decision": "CONTINUE"}'), SUBS[0]),
        (Say('```json\n{"decision": "refine", "query": "Oda Wren"}\n```'), "Oda Wren"),
    ],
)
def test_what_a_gate_searches_for(retriever, reply, query):
    _, trace, _ = run(retriever, [plan(SUBS[0]), reply, gate("answer")])
    assert searches(trace)[2] == (2, query, 3)


@pytest.mark.parametrize(("written", "query"), [("Oda Wren", "Oda Wren"), ("", QUESTION)])
def test_continue_beyond_the_plan_takes_the_written_query_or_the_question(retriever, written, query):
    _, trace, _ = run(retriever, [plan(), gate("continue", written), gate("answer")])
    assert searches(trace)[1] == (2, query, 3)


@pytest.mark.parametrize(
    ("reply", "failed"), [(BAD, ["plan"]), ([Say("")] * 2, ["plan"]), ([plan()], []), ([plan("", " ", QUESTION)], [])]
)
def test_without_a_plan_the_anchor_is_the_question(retriever, reply, failed):
    client, trace, record = run(retriever, [*reply, gate("answer")])
    assert searches(trace) == [(1, QUESTION, 3)] and record.stop_reason == "answer"
    assert [e["what"] for e in events(trace, "parse_failed")] == failed
    assert "Next sub-question: (none planned)" in user(client, len(reply))


def test_a_plan_keeps_three_distinct_sub_queries(retriever):
    _, trace, _ = run(retriever, [plan("Oda", "ODA ", "Norr", "Tavik", "Lisse"), gate("answer")])
    [planned] = events(trace, "plan")
    assert [q.lower() for q in planned["sub_queries"]] == ["oda", "norr", "tavik"]


def test_a_retriever_that_finds_nothing_leads_straight_to_the_reader(retriever):
    empty = copy.copy(retriever)
    empty.dense = lambda query, k: []
    client, _, record = run(empty, [plan(*SUBS)])
    assert forms(client) == ["plan", "text"] and (record.cited, record.stop_reason) == ((), "no_documents")


def test_a_used_up_corpus_ends_the_chain(tmp_path):
    small = small_retriever(tmp_path, WORLD[:4])
    _, _, record = run(small, [plan(), gate("refine", "x"), gate("refine", "y"), gate("refine", "z")])
    assert (record.stop_reason, len(record.cited), record.loops) == ("no_documents", 4, 3)


def test_the_grammar_bounds_plan_and_gate(retriever):
    client = FakeClient(in_turn([plan(), gate("answer")], then=lambda body: FINAL))
    client.endpoint = client.endpoint.model_copy(update={"kind": "embedded"})
    answer(retriever, "par2_rag", client, QUESTION)
    planned, gated = (b["response_format"]["json_schema"]["schema"]["properties"] for b in client.bodies[:2])
    assert planned["sub_queries"] == {"type": "array", "items": {"type": "string", "maxLength": 120}, "maxItems": 3}
    assert gated["decision"]["enum"] == ["answer", "continue", "refine"] and gated["query"]["maxLength"] == 120
