"""LAG on a scripted model: order of sub-questions, the logical terminator, and what odd replies do."""

from __future__ import annotations

import json

import pytest
from fake_embedder import small_retriever
from project_fixture import WORLD, FakeClient, answer, events
from scripted_server import Say, in_turn

from multihop.methods.lag import Chain, _order

QUESTION = "Who is the mayor of the town where the author of The Lantern Ferry lived?"
SUBS = [("Who wrote The Lantern Ferry?", []), ("Where did #1 live?", [1]), ("Who is the mayor of #2?", [2])]
ASKED = ["Who wrote The Lantern Ferry?", "Where did Oda Wren live?", "Who is the mayor of Skarholm?"]
BAD = [Say("Let me think."), Say("I can't.")]
"""A reply that can't be read, and its repair."""
FINAL = Say("Because: she is (p2).\nAnswer: Karla Möhn")


@pytest.fixture(scope="module")
def retriever(tmp_path_factory):
    return small_retriever(tmp_path_factory.mktemp("lag"), WORLD)


def plan(*subs: tuple[str, list[int]], needed: bool = True) -> Say:
    rows = [{"question": text, "depends_on": depends} for text, depends in subs]
    return Say(json.dumps({"needs_decomposition": needed, "sub_questions": rows}))


def sub(text: str, confidence: float = 0.9, supported: bool = True) -> Say:
    return Say(json.dumps({"answer": text, "confidence": confidence, "supported": supported}))


WEAK = sub("", 0.0, False)
GOOD = [sub("Oda Wren"), sub("Skarholm"), sub("Karla Möhn")]


def run(retriever, outcomes, question=QUESTION, **options):
    client = FakeClient(in_turn(outcomes, then=lambda body: FINAL))
    _, trace, record = answer(retriever, "lag", client, question, **{"k": 3} | options)
    assert record.error is None, record.error
    return client, trace, record


def forms(client) -> list[str]:
    return [(b.get("response_format") or {}).get("json_schema", {}).get("name", "text") for b in client.bodies]


def user(client, call: int) -> str:
    return client.bodies[call]["messages"][-1]["content"]


def searches(trace) -> list[str]:
    return [e.data["query"] for e in trace.events if e.kind == "retrieve"]


def fallbacks(trace) -> list[tuple[str, str]]:
    return [(e["what"], e["to"]) for e in events(trace, "fallback")]


def test_golden(retriever):
    client, trace, record = run(retriever, [plan(*SUBS), *GOOD])
    assert forms(client) == ["plan", "step", "step", "step", "text"]
    assert client.roles == ["control"] * 4 + ["reader"]
    assert searches(trace) == ASKED and not fallbacks(trace)
    ranked = [[h.chunk_id for h in retriever.dense(q, 3)] for q in ASKED]
    assert user(client, 1).startswith(f"[{ranked[0][0]}] ") and "\nKnown: nothing\n" in user(client, 1)
    assert "\nKnown: \n- Who wrote The Lantern Ferry? Oda Wren\nQuestion: Where did Oda Wren live?\n" in user(client, 2)
    notes = "\n".join(f"- {q} {a}" for q, a in zip(ASKED, ("Oda Wren", "Skarholm", "Karla Möhn"), strict=True))
    assert f"Notes from sub-questions:\n{notes}\nQuestion: {QUESTION}" in user(client, 4)
    union = list(dict.fromkeys(ids[rank] for rank in range(3) for ids in ranked))
    assert list(record.cited) == union and {r.tool for r in record.retrieved} == {"lag"}
    assert [r.chunk_id for r in record.retrieved] == list(dict.fromkeys(c for ids in ranked for c in ids))
    assert (record.stop_reason, record.loops, record.short) == ("answered", 3, "Karla Möhn")
    assert [e["confidence"] for e in events(trace, "sub_answer")] == [0.9] * 3


def test_final_passages_are_bounded(retriever):
    _, _, record = run(retriever, [plan(*SUBS), *GOOD], max_docs=2)
    assert list(record.cited) == [retriever.dense(q, 1)[0].chunk_id for q in ASKED[:2]]
    chain = Chain(found=[["a", "b"], [], ["b", "c", "d"]])
    assert chain.chunks(9) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("reply", [plan(needed=False), plan(*SUBS, needed=False), plan(), plan(("  ", []))])
def test_a_question_that_needs_no_decomposition_is_looked_up(retriever, reply):
    client, trace, record = run(retriever, [reply])
    assert forms(client) == ["plan", "text"] and searches(trace) == [QUESTION] and not fallbacks(trace)
    assert (record.stop_reason, record.loops, len(record.cited)) == ("not_decomposed", 1, 3)


# -- order


@pytest.mark.parametrize(
    ("planned", "order"),
    [
        ([("a", []), ("b", [1])], [1, 2]),
        ([("a of #2", []), ("b", [])], [2, 1]),
        ([("a", [3]), ("b", []), ("c", [2])], [2, 3, 1]),
        ([("a", [2]), ("b", [1])], None),
        ([("a", [1])], None),
        ([("a", [7])], None),
        ([("a", [0])], None),
        ([("a of #4", [])], None),
        ([], []),
    ],
)
def test_order(planned, order):
    assert _order(planned) == order


def test_sub_questions_are_asked_in_logical_order(retriever):
    swapped = [("Where did #2 live?", [2]), ("Who wrote The Lantern Ferry?", [])]
    _, trace, _ = run(retriever, [plan(*swapped), *GOOD[:2]])
    assert searches(trace) == ASKED[:2] and events(trace, "plan")[0]["order"] == [2, 1]


def test_an_empty_sub_question_is_skipped_and_the_numbers_stay(retriever):
    _, trace, _ = run(retriever, [plan(("", []), SUBS[0], ("Where did #2 live?", [2])), *GOOD[:2]])
    assert searches(trace) == ASKED[:2]


def test_a_cycle_is_asked_in_the_given_order_and_said(retriever):
    cycle = [("Where did #2 live?", [2]), ("Who wrote it in #1?", [1])]
    _, trace, record = run(retriever, [plan(*cycle), *GOOD[:2]])
    assert searches(trace) == ["Where did #2 live?", "Who wrote it in Oda Wren?"]
    assert fallbacks(trace) == [("dependencies", "given order")] and record.stop_reason == "answered"


def test_a_missing_answer_is_replaced_by_its_question(retriever):
    _, trace, record = run(retriever, [plan(*SUBS), GOOD[0], WEAK, GOOD[2]])
    assert searches(trace)[2] == "Who is the mayor of Where did Oda Wren live?" and record.stop_reason == "answered"


# -- terminator


@pytest.mark.parametrize("weak", [WEAK, sub("Norr", 0.29), sub("Norr", 0.9, False), sub("  "), Say("prose")])
def test_two_weak_sub_answers_in_a_row_end_the_chain(retriever, weak):
    twice = [weak, weak] if weak.content != "prose" else [*BAD, *BAD]
    client, trace, record = run(retriever, [plan(*SUBS), *twice])
    assert forms(client)[-1] == "text" and searches(trace)[-1] == QUESTION and len(searches(trace)) == 3
    assert fallbacks(trace)[-1] == ("terminated_weak", "question")
    assert record.stop_reason == "terminated_weak" and "Notes" not in user(client, -1)
    assert list(record.cited) == [h.chunk_id for h in retriever.dense(QUESTION, 3)]


def test_a_good_sub_answer_between_weak_ones_keeps_the_chain(retriever):
    edge = sub("Skarholm", 0.3)
    _, trace, record = run(retriever, [plan(*SUBS), WEAK, edge, WEAK])
    assert record.stop_reason == "answered" and not fallbacks(trace)
    _, _, record = run(retriever, [plan(*SUBS), WEAK, edge, WEAK], weak_streak=1)
    assert record.stop_reason == "terminated_weak" and record.loops == 1


def test_a_redundant_sub_answer_ends_the_chain_unless_it_is_the_last(retriever):
    again = [SUBS[0], SUBS[0], SUBS[0]]
    _, trace, record = run(retriever, [plan(*again), GOOD[0], GOOD[0]])
    assert record.stop_reason == "terminated_redundant" and len(searches(trace)) == 3
    assert fallbacks(trace) == [("terminated_redundant", "question")]
    _, trace, record = run(retriever, [plan(*again[:2]), GOOD[0], GOOD[0]])
    assert record.stop_reason == "answered" and events(trace, "sub_answer")[1]["redundant"]


def test_t_max(retriever):
    client, trace, record = run(retriever, [plan(*SUBS), *GOOD], t_max=2)
    assert searches(trace) == ASKED[:2] and record.stop_reason == "limit" and record.loops == 2
    assert events(trace, "limit") == [{"left": 1}] and "Skarholm" in user(client, -1)
    _, trace, _ = run(retriever, [plan(*SUBS, *SUBS), *GOOD])
    assert len(events(trace, "plan")[0]["sub_questions"]) == 5


# -- replies that can't be read, searches that find nothing


def test_an_unreadable_plan_is_a_question_without_one(retriever):
    _, trace, record = run(retriever, BAD)
    assert fallbacks(trace) == [("plan", "question")] and events(trace, "parse_failed")[0]["what"] == "plan"
    assert record.stop_reason == "not_decomposed" and record.usage["control"].repairs == 1


def test_an_unreadable_sub_answer_is_unsupported(retriever):
    client, trace, record = run(retriever, [plan(*SUBS), *BAD, *GOOD[1:]])
    assert fallbacks(trace) == [("step", "unsupported")] and record.stop_reason == "answered"
    assert "Oda Wren" not in user(client, -1).split("Notes from sub-questions:")[1]


@pytest.mark.parametrize(("said", "used"), [(7, 1.0), (-2, 0.0), (float("nan"), 0.0), ("0.5", 0.5)])
def test_confidence_is_brought_into_its_range(retriever, said, used):
    _, trace, _ = run(retriever, [plan(SUBS[0]), sub("Oda Wren", said)])
    assert events(trace, "sub_answer")[0]["confidence"] == used


def test_nothing_found(retriever, monkeypatch):
    monkeypatch.setattr(type(retriever), "dense", lambda self, query, k: [])
    client, trace, record = run(retriever, [plan(*SUBS)])
    assert forms(client) == ["plan", "text"] and record.cited == () and record.stop_reason == "terminated_weak"
    assert fallbacks(trace) == [
        ("no_passages", "unsupported"),
        ("no_passages", "unsupported"),
        ("terminated_weak", "question"),
        ("no_passages", "the question alone"),
    ]
