"""IRCoT on a scripted model: the sequence of calls, the first-sentence rule, each way to stop."""

from __future__ import annotations

import pytest
from fake_embedder import small_retriever
from hypothesis import given
from hypothesis import strategies as st
from project_fixture import FakeClient, answer, events, prompts_of
from scripted_server import Say, in_turn

from multihop.methods.chain import next_sentence, search_words

QUESTION = "Who is the mayor of the birthplace of Ilva Dorn?"
REPLY = Say("Because: it says so (p4).\nAnswer: Tomas Reed")
BORN = "Ilva Dorn was born in Marrow Bay."
TOWNS = [(f"Town {n}", f"Town {n} has a mayor and {n + 2} wells.") for n in range(30)]


@pytest.fixture(scope="module")
def retriever(tmp_path_factory):
    return small_retriever(tmp_path_factory.mktemp("ircot"))


@pytest.fixture(scope="module")
def towns(tmp_path_factory):
    return small_retriever(tmp_path_factory.mktemp("towns"), TOWNS)


def run(retriever, *sentences: str | None, then=REPLY, **options):
    client = FakeClient(in_turn([Say(s) for s in sentences], then=then if callable(then) else lambda body: then))
    _, trace, record = answer(retriever, "ircot", client, QUESTION, **options)
    assert record.error is None
    return client, trace, record


def counting():
    """A model that always thinks of something new, and answers when it is asked to."""
    said = iter(range(1000))

    def script(body):
        reading = '"Answer: ..."' in body["messages"][-1]["content"]
        return REPLY if reading else Say(f"Town {next(said)} has wells.")

    return script


def unseen(retriever, query, seen, k):
    ranking = [h.chunk_id for h in retriever.dense(query, 99)]
    return [c for c in ranking if c not in seen][:k]


# -- the sequence


def test_the_sequence_of_searches_and_calls(retriever):
    client, trace, record = run(retriever, BORN + " It is old.", "So the answer is: Tomas Reed.")
    first = unseen(retriever, QUESTION, [], 3)
    second = unseen(retriever, BORN, first, 3)  # two are left, and the best three hold seen ones
    found = events(trace, "retrieve")
    assert [(e["query"], e["chunk_ids"]) for e in found] == [(QUESTION, first), (BORN, second)]
    assert client.roles == ["control", "control", "reader"]
    assert [b["max_tokens"] for b in client.bodies] == [64, 64, 64]

    prompts = prompts_of("ircot")
    shown = ["\n\n".join(f"[{c}] {retriever.text(c)}" for c in ids) for ids in (first, first + second)]
    for body, passages, thoughts in zip(client.bodies, shown, ("(nothing yet)", BORN), strict=False):
        user = prompts["ircot_user"].format(passages=passages, question=QUESTION, thoughts=thoughts)
        assert body["messages"] == [
            {"role": "system", "content": prompts["ircot_system"]},
            {"role": "user", "content": user},
        ]
    # The chain steers the searches alone: the reader gets the documents and nothing of it.
    assert client.bodies[2]["messages"][1]["content"] == prompts["reader_user"].format(
        passages=shown[1], question=QUESTION
    )
    assert (record.stop_reason, record.short, record.loops) == ("answer", "Tomas Reed", 2)
    assert record.cited == tuple(first + second) and record.retrieval_calls == 2
    assert [e["sentence"] for e in events(trace, "thought")] == [BORN, "So the answer is: Tomas Reed."]


def test_thoughts_add_up_in_the_prompt(towns):
    client = run(towns, "One is here.", "Two is there.", "Three is far.", per_search=1)[0]
    assert "Reasoning so far: One is here. Two is there.\n" in client.bodies[2]["messages"][1]["content"]


# -- each way to stop


@pytest.mark.parametrize("said", ["So the answer is: Norr.", "the ANSWER IS Norr", "Hence the final answer is no."])
def test_stops_where_the_answer_is_said(retriever, said):
    client, trace, record = run(retriever, said)
    assert record.stop_reason == "answer" and len(events(trace, "retrieve")) == 1 and len(client.bodies) == 2


@pytest.mark.parametrize("said", ["The answer island is small.", "The answers is what we lack."])
def test_the_stop_pattern_is_two_words(retriever, said):
    assert run(retriever, said)[2].stop_reason != "answer"


@pytest.mark.parametrize("said", [None, "", "\n \n", "...", "[p1] (p2)", "Who?", "Reasoning so far:"])
def test_a_reply_that_says_nothing_stops(retriever, said):
    client, trace, record = run(retriever, said)
    assert record.stop_reason == "repeat" and client.roles == ["control", "reader"]
    assert len(events(trace, "retrieve")) == 1


@pytest.mark.parametrize("again", [BORN, BORN.upper(), BORN[:-1] + " (p0).", f"Sentence: {BORN}", f"{BORN} {BORN}"])
def test_a_repeated_sentence_stops(towns, again):
    client, trace, record = run(towns, BORN, again)
    assert record.stop_reason == "repeat" and client.roles == ["control", "control", "reader"]
    assert len(events(trace, "retrieve")) == 2 and record.loops == 2


def test_a_chain_told_again_from_its_start_goes_on(towns):
    _, trace, record = run(towns, BORN, f"{BORN} Its mayor is Tomas Reed.", "So the answer is: Tomas Reed.")
    assert [e["query"] for e in events(trace, "retrieve")] == [QUESTION, BORN, "Its mayor is Tomas Reed."]
    assert record.stop_reason == "answer"


@pytest.mark.parametrize(
    ("steps", "each", "cap"), [(1, 3, 12), (4, 3, 12), (9, 3, 12), (4, 5, 15), (9, 2, 5), (2, 9, 4)]
)
def test_the_limits_hold_and_no_thought_is_asked_for_in_vain(towns, steps, each, cap):
    client, trace, record = run(towns, then=counting(), max_steps=steps, per_search=each, max_docs=cap)
    searches = min(steps, -(-cap // each))
    assert record.stop_reason == "limit" and record.retrieval_calls == record.loops == searches
    assert client.roles == ["control"] * (searches - 1) + ["reader"]
    assert len(record.cited) == len(set(record.cited)) == min(cap, steps * each)
    assert all(len(e["chunk_ids"]) <= each for e in events(trace, "retrieve"))


def test_a_retriever_that_returns_nothing_leaves_one_call(retriever, monkeypatch):
    monkeypatch.setattr(retriever, "dense", lambda query, k: [])
    client, _, record = run(retriever)
    assert (record.stop_reason, record.status, record.cited) == ("no_documents", "ok", ())
    assert client.roles == ["reader"]


def test_a_corpus_that_is_used_up_stops(retriever):
    client, _, record = run(retriever, then=counting(), per_search=3, max_steps=9)
    assert record.stop_reason == "no_documents" and len(record.cited) == 5
    assert client.roles == ["control", "control", "reader"]


# -- the first sentence


@pytest.mark.parametrize(
    ("reply", "first"),
    [
        ("He was born in St. Orrel. Then he left.", "He was born in St. Orrel."),
        ("The U.S. Senate met in Tarn. It rained.", "The U.S. Senate met in Tarn."),
        ("It was led by Dr. Ada Hale. She sang.", "It was led by Dr. Ada Hale."),
        ("It is No. 5 on the list. So what?", "It is No. 5 on the list."),
        ("J. R. R. Hale wrote it. He did.", "J. R. R. Hale wrote it."),
        ("The tower is 3.5 metres high. It leans.", "The tower is 3.5 metres high."),
        ("Edwin Hale Jr. was mayor vs. his will! Ha.", "Edwin Hale Jr. was mayor vs. his will!"),
        ('She said "Go." Then she went.', 'She said "Go."'),
        ("Line one\nLine two", "Line one"),
        ("1. Ilva was born here. Good.", "Ilva was born here."),
        ("- Ilva was born here.", "Ilva was born here."),
        ("Next sentence: Ilva was born here.", "Ilva was born here."),
        ("Reasoning so far:\nIlva was born here.", "Ilva was born here."),
        ("1912 was a wet year.", "1912 was a wet year."),
        ("no full stop at all", "no full stop at all"),
        ("Karla Möhn est née à Tavik. Oui.", "Karla Möhn est née à Tavik."),
    ],
)
def test_the_first_sentence(reply, first):
    assert next_sentence(reply, []) == first


@given(st.text(max_size=80), st.lists(st.text(max_size=20), max_size=3))
def test_any_reply_gives_a_piece_of_it_or_nothing_and_never_a_known_one(reply, thoughts):
    sentence = next_sentence(reply, thoughts)
    assert sentence in reply.replace("\r", "\n") or sentence in "\n".join(reply.splitlines())
    assert not sentence or next_sentence(sentence, [*thoughts, sentence]) == ""
    assert "\n" not in search_words(sentence)


@pytest.mark.parametrize(
    ("sentence", "query"),
    [
        ("Which town did Ilva Dorn, who wrote it, live in?", "town did Ilva Dorn, wrote it, live in?"),
        ("The Whole Show is a film (p3, p4).", "The Whole Show is a film."),
        ("Norr [p12] burnt WHEN it was dry.", "Norr burnt it was dry."),
        ("Who? What?", ""),
        ("", ""),
    ],
)
def test_a_query_has_no_question_words_and_no_citations(sentence, query):
    assert search_words(sentence) == query
