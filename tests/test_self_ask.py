"""Self-Ask on a scripted model: turns, intermediate answers from their own documents, each way to stop."""

from __future__ import annotations

import json

import pytest
from fake_embedder import small_retriever
from project_fixture import FakeClient, answer, events, prompts_of
from scripted_server import Say, in_turn

from multihop.llm.structured import strict_schema
from multihop.methods.self_ask import Turn

QUESTION = "Who is the mayor of the birthplace of Ilva Dorn?"
REPLY = Say("Because: it says so (p4).\nAnswer: Tomas Reed")
BORN, MAYOR = "Where was Ilva Dorn born?", "Who is the mayor of Marrow Bay?"
TOWNS = [(f"Town {n}", f"Town {n} has a mayor and {n + 2} wells.") for n in range(30)]


@pytest.fixture(scope="module")
def retriever(tmp_path_factory):
    return small_retriever(tmp_path_factory.mktemp("self_ask"))


@pytest.fixture(scope="module")
def towns(tmp_path_factory):
    return small_retriever(tmp_path_factory.mktemp("towns"), TOWNS)


def ask(followup: str) -> Say:
    return Say(json.dumps({"need_followup": True, "followup": followup, "final": ""}))


def done(final: str = "Tomas Reed") -> Say:
    return Say(json.dumps({"need_followup": False, "followup": "", "final": final}))


def run(retriever, *outcomes, then=lambda body: REPLY, **options):
    client = FakeClient(in_turn(outcomes, then=then))
    _, trace, record = answer(retriever, "self_ask", client, QUESTION, **options)
    assert record.error is None
    return client, trace, record


def kinds(client) -> list[str]:
    """What each call was: turn, intermediate or reader."""
    structured = ["turn" if "response_format" in body else "intermediate" for body in client.bodies]
    return [s if r == "control" else r for s, r in zip(structured, client.roles, strict=True)]


def endless():
    """A model that has a new follow-up each time."""
    numbers = iter(range(1000))

    def script(body):
        if "response_format" in body:
            return ask(f"Which town is number {next(numbers)}?")
        return REPLY if '"Answer: ..."' in body["messages"][-1]["content"] else Say("Town 1")

    return script


def shown(retriever, query, k=3):
    return [h.chunk_id for h in retriever.dense(query, k)]


def passages(retriever, ids):
    return "\n\n".join(f"[{c}] {retriever.text(c)}" for c in ids)


# -- the sequence


def test_the_sequence_of_turns_searches_and_answers(retriever):
    client, trace, record = run(retriever, ask(BORN), Say("Marrow Bay"), ask(MAYOR), Say("Tomas Reed"), done())
    prompts = prompts_of("self_ask")
    assert kinds(client) == ["turn", "intermediate", "turn", "intermediate", "turn", "reader"]
    assert [b["max_tokens"] for b in client.bodies] == [96, 64, 96, 64, 96, 64]
    found = [(e["query"], e["chunk_ids"]) for e in events(trace, "retrieve")]
    assert found == [(q, shown(retriever, q)) for q in (BORN, MAYOR)]

    one = f"Follow-up: {BORN}\nIntermediate answer: Marrow Bay"
    two = f"{one}\nFollow-up: {MAYOR}\nIntermediate answer: Tomas Reed"
    for body, chain in zip(client.bodies[::2], ("(no follow-up yet)", one, two), strict=True):
        user = prompts["turn_user"].format(question=QUESTION, chain=chain)
        assert body["messages"] == [
            {"role": "system", "content": prompts["turn_system"]},
            {"role": "user", "content": user},
        ]
    for body, query in zip(client.bodies[1:4:2], (BORN, MAYOR), strict=True):
        seen = passages(retriever, shown(retriever, query))
        user = prompts["intermediate_user"].format(passages=seen, question=query)
        assert body["messages"] == [
            {"role": "system", "content": prompts["intermediate_system"]},
            {"role": "user", "content": user},
        ]

    ids = list(dict.fromkeys(shown(retriever, BORN) + shown(retriever, MAYOR)))
    assert client.bodies[-1]["messages"][1]["content"] == prompts["reader_user"].format(
        passages=f"{passages(retriever, ids)}\n\n{two}", question=QUESTION
    )
    assert record.cited == tuple(ids) and (record.short, record.stop_reason) == ("Tomas Reed", "answered")
    assert record.loops == 3 and record.retrieval_calls == 2


def test_a_document_that_one_follow_up_found_may_answer_the_next(retriever):
    client, trace, record = run(retriever, ask(MAYOR), Say("Reed"), ask(MAYOR + " Now?"), Say("Reed"), done())
    first, second = (set(e["chunk_ids"]) for e in events(trace, "retrieve"))
    both = first & second
    assert both and all(f"[{c}]" in client.bodies[3]["messages"][1]["content"] for c in both)
    assert len(record.cited) == len(set(record.cited)) == len(first | second)


# -- each way to stop


@pytest.mark.parametrize("again", [BORN, BORN.upper(), "  Where was Ilva Dorn\nborn ", "", " ", "?!"])
def test_a_repeated_or_empty_follow_up_goes_to_the_answer(retriever, again):
    client, trace, record = run(retriever, ask(BORN), Say("Marrow Bay"), ask(again))
    assert kinds(client) == ["turn", "intermediate", "turn", "reader"] and record.stop_reason == "repeat"
    assert [e["query"] for e in events(trace, "retrieve")] == [BORN]


@pytest.mark.parametrize(("most", "each", "cap"), [(4, 3, 12), (1, 3, 12), (6, 3, 12), (4, 5, 7), (2, 9, 4)])
def test_the_limits_hold_against_a_model_that_never_ends(towns, most, each, cap):
    client, trace, record = run(towns, then=endless(), max_followups=most, per_search=each, max_docs=cap)
    assert record.stop_reason == "limit" and record.loops == record.retrieval_calls == most
    assert kinds(client) == ["turn", "intermediate"] * most + ["reader"]
    assert len(record.cited) == len(set(record.cited)) <= cap
    assert all(len(e["chunk_ids"]) <= min(each, cap) for e in events(trace, "retrieve"))
    final = client.bodies[-1]["messages"][1]["content"]
    assert final.count("[p") == len(record.cited) and final.count("Follow-up: ") == most


@pytest.mark.parametrize(
    ("first", "stop"),
    [
        ([done()], "answered"),
        ([done("")], "answered"),
        ([ask("")], "repeat"),
        ([Say("It is Tomas Reed.")] * 2, "invalid"),
        ([Say(None)] * 2, "invalid"),
        ([Say("[true]")] * 2, "invalid"),
    ],
)
def test_without_a_follow_up_the_question_itself_is_searched(retriever, first, stop):
    client, trace, record = run(retriever, *first)
    assert [e["query"] for e in events(trace, "retrieve")] == [QUESTION]
    assert record.cited == tuple(shown(retriever, QUESTION)) and kinds(client) == ["turn"] * len(first) + ["reader"]
    assert "Follow-up" not in client.bodies[-1]["messages"][1]["content"]
    assert (record.stop_reason, record.short, record.status) == (stop, "Tomas Reed", "ok")


# -- odd outputs


def test_a_turn_that_never_parses_is_asked_for_once_more_then_answered(retriever):
    client, trace, record = run(retriever, ask(BORN), Say("Marrow Bay"), Say("prose"), Say("more prose"))
    assert kinds(client) == ["turn", "intermediate", "turn", "turn", "reader"]
    assert record.stop_reason == "invalid" and record.usage["control"].repairs == 1
    [failed] = events(trace, "parse_failed")
    assert failed["what"] == "turn" and failed["error"]
    assert "Intermediate answer: Marrow Bay" in client.bodies[-1]["messages"][1]["content"]


@pytest.mark.parametrize("said", ["false", "False", "no"])
def test_a_boolean_in_words_is_read_as_what_it_says(retriever, said):
    turn = Say(json.dumps({"need_followup": said, "followup": BORN, "final": "x"}))
    client, _, record = run(retriever, turn)
    assert record.stop_reason == "answered" and kinds(client) == ["turn", "reader"]


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("Marrow Bay", "Marrow Bay"),
        ("\n Marrow Bay \n\nIt is a town.", "Marrow Bay"),
        ("Because: p1\nAnswer: Marrow Bay", "Marrow Bay"),
        ("", "not found"),
        (None, "not found"),
        ("Answer:", "not found"),
        (" \n\t", "not found"),
    ],
)
def test_the_intermediate_answer_is_one_line(retriever, said, kept):
    client, trace, _ = run(retriever, ask(BORN), Say(said), done())
    assert events(trace, "intermediate") == [{"question": BORN, "answer": kept}]
    assert client.bodies[2]["messages"][1]["content"].count(f"Intermediate answer: {kept}\n") == 1


def test_a_retriever_that_returns_nothing(retriever, monkeypatch):
    monkeypatch.setattr(retriever, "dense", lambda query, k: [])
    client, trace, record = run(retriever, ask(BORN), ask(MAYOR), done())
    assert kinds(client) == ["turn", "turn", "turn", "reader"] and record.cited == ()
    assert [e["answer"] for e in events(trace, "intermediate")] == ["not found"] * 2
    assert record.status == "ok" and record.retrieval_calls == 3  # two follow-ups, then the question


def test_the_grammar_bounds_the_turn():
    properties = strict_schema(Turn, bounded=True)["properties"]
    assert list(properties) == ["need_followup", "followup", "final"]
    assert properties["followup"]["maxLength"] + properties["final"]["maxLength"] < 300
