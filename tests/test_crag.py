"""CRAG on a scripted model: the three actions, the strips, and what odd grades come to."""

from __future__ import annotations

import json

import numpy as np
import pytest
from fake_embedder import small_retriever
from project_fixture import FakeClient, answer, events, prompts_of, tools_for
from scripted_server import Say, in_turn

from multihop.config import RunConfig
from multihop.errors import ConfigError
from multihop.methods import registry
from multihop.methods.crag import best_strips, decide
from multihop.types import Question

QUESTION = "Who is the mayor of the birthplace of Ilva Dorn?"
REPLY = Say("Because: it says so (p4).\nAnswer: Tomas Reed")
KEYWORDS = "Ilva Dorn birthplace mayor"
TOWNS = [
    (f"The Town of Orrel {n}", f"Orrel {n} has a mayor, born {n} years ago. It has {n + 2} wells. Nobody sings there.")
    for n in range(30)
]


@pytest.fixture(scope="module")
def towns(tmp_path_factory):
    return small_retriever(tmp_path_factory.mktemp("crag"), TOWNS, splitter="simple")


def grades(*values: int) -> Say:
    return Say(json.dumps({"grades": values}))


def run(retriever, *outcomes, **options):
    client = FakeClient(in_turn(outcomes, then=lambda body: REPLY))
    _, trace, record = answer(retriever, "crag", client, QUESTION, **options)
    assert record.error is None
    return client, trace, record


def unseen(retriever, query, seen, k=6):
    return [h.chunk_id for h in retriever.dense(query, 99) if h.chunk_id not in seen][:k]


def strips_by_hand(retriever, ids, count=6):
    """[(chunk id, sentence)]: the sentences nearest to the question, in document order."""
    query = retriever.query_vector(QUESTION).astype(float)
    found = []
    for chunk_id in ids:
        for sentence, vector in retriever.sentences_of(chunk_id):
            if sentence != retriever.text(chunk_id).split("\n")[0]:
                vector = vector.astype(float)
                cosine = vector @ query / np.linalg.norm(vector) / np.linalg.norm(query)
                found.append((-round(cosine, 6), len(found), chunk_id, sentence))
    best = sorted(sorted(found)[:count], key=lambda s: s[1])
    return [(c, s) for _, _, c, s in best]


def context_of(retriever, strips):
    blocks = {}
    for chunk_id, sentence in strips:
        title = retriever.text(chunk_id).split("\n")[0]
        blocks.setdefault(chunk_id, [f"[{chunk_id}] {title}"]).append(sentence)
    return "\n\n".join("\n".join(lines) for lines in blocks.values())


# -- the three actions


def test_correct_reads_the_strips_of_the_first_search(towns):
    client, trace, record = run(towns, grades(0, 1, 2, 0, 0, 0))
    first = unseen(towns, QUESTION, [])
    prompts = prompts_of("crag")
    assert client.roles == ["control", "reader"] and [b["max_tokens"] for b in client.bodies] == [48, 64]
    shown = "\n\n".join(f"[{c}] {towns.text(c)}" for c in first)
    assert client.bodies[0]["messages"] == [
        {"role": "system", "content": prompts["grade_system"]},
        {"role": "user", "content": prompts["grade_user"].format(passages=shown, question=QUESTION, count=6)},
    ]
    strips = strips_by_hand(towns, first)
    assert client.bodies[1]["messages"][1]["content"] == prompts["reader_user"].format(
        passages=context_of(towns, strips), question=QUESTION
    )
    assert record.cited == tuple(dict.fromkeys(c for c, _ in strips))
    assert (record.stop_reason, record.short, record.loops, record.retrieval_calls) == ("correct", "Tomas Reed", 1, 1)
    assert events(trace, "grades") == [{"grades": [0, 1, 2, 0, 0, 0], "action": "correct"}]
    assert events(trace, "final")[0]["compressed"] is True


@pytest.mark.parametrize(
    ("given", "action"), [((0, 0, 0, 0, 0, 0), "incorrect"), ((0, 1, 0, 0, 0, 0), "ambiguous"), ((1,) * 6, "ambiguous")]
)
def test_the_correction_searches_the_corpus_with_keywords(towns, given, action):
    client, trace, record = run(towns, grades(*given), Say(KEYWORDS))
    first = unseen(towns, QUESTION, [])
    second = unseen(towns, KEYWORDS, first)
    prompts = prompts_of("crag")
    assert client.roles == ["control", "control", "reader"] and client.bodies[1]["max_tokens"] == 32
    assert client.bodies[1]["messages"] == [
        {"role": "system", "content": prompts["keywords_system"]},
        {"role": "user", "content": prompts["keywords_user"].format(question=QUESTION)},
    ]
    assert [(e["query"], e["chunk_ids"]) for e in events(trace, "retrieve")] == [(QUESTION, first), (KEYWORDS, second)]
    # Incorrect: the new documents alone. Ambiguous: six strips of each action.
    pools = [second] if action == "incorrect" else [first, second]
    strips = [s for pool in pools for s in strips_by_hand(towns, pool)]
    assert len(strips) == 6 * len(pools)
    assert client.bodies[2]["messages"][1]["content"] == prompts["reader_user"].format(
        passages=context_of(towns, strips), question=QUESTION
    )
    assert (record.stop_reason, record.loops, record.retrieval_calls) == (action, 2, 2)
    assert len(record.retrieved) == 12


@pytest.mark.parametrize(
    ("given", "documents", "action"),
    [
        ([2], 6, "correct"),
        ([0, 0, 0, 0, 0, 2], 6, "correct"),
        ([0], 1, "incorrect"),
        ([0, 0, 0], 6, "ambiguous"),
        ([], 6, "ambiguous"),
        ([0, 1], 2, "ambiguous"),
    ],
)
def test_the_action_by_the_grades(given, documents, action):
    assert decide(given, documents) == action


# -- odd outputs


@pytest.mark.parametrize(
    "said",
    [
        None,
        "",
        "All of them look fine.",
        "[2, 2, 2]",
        '{"grades": [3, 0]}',
        '{"grades": "2"}',
        '{"grades": [-1]}',
        "{}",
    ],
)
def test_grades_that_do_not_parse_are_ambiguous(towns, said):
    client, trace, record = run(towns, Say(said), Say(said), Say(KEYWORDS))
    assert record.stop_reason == "ambiguous" and client.roles == ["control"] * 3 + ["reader"]
    assert record.usage["control"].repairs == 1
    [failed] = events(trace, "parse_failed")
    assert failed["what"] == "grades" and failed["error"]
    assert record.retrieval_calls == 2 and record.status == "ok"


@pytest.mark.parametrize(
    ("given", "action"), [((0,) * 9, "incorrect"), ((0,) * 6 + (2,), "incorrect"), ((), "ambiguous")]
)
def test_grades_of_documents_that_were_not_shown_do_not_count(towns, given, action):
    assert run(towns, grades(*given), Say(KEYWORDS))[2].stop_reason == action


@pytest.mark.parametrize(
    ("said", "query"),
    [
        ('Keywords: "Orrel mayor"', "Orrel mayor"),
        ("\nOrrel, mayor\nbirthplace", "Orrel, mayor"),
        ("", QUESTION),
        (None, QUESTION),
        ('""\n--', QUESTION),
        (QUESTION, QUESTION),
    ],
)
def test_keywords_are_one_line_and_the_question_where_there_are_none(towns, said, query):
    _, trace, record = run(towns, grades(*[0] * 6), Say(said))
    first, second = events(trace, "retrieve")
    assert second["query"] == query and not set(first["chunk_ids"]) & set(second["chunk_ids"])
    assert len(second["chunk_ids"]) == 6 and record.stop_reason == "incorrect"


def test_a_retriever_that_returns_nothing(towns, monkeypatch):
    monkeypatch.setattr(towns, "dense", lambda query, k: [])
    client, trace, record = run(towns, Say(KEYWORDS))
    assert client.roles == ["control", "reader"] and (record.stop_reason, record.cited) == ("incorrect", ())
    assert [e["query"] for e in events(trace, "retrieve")] == [QUESTION, KEYWORDS] and record.status == "ok"


def test_poor_documents_are_read_where_the_correction_finds_none(tmp_path):
    small = small_retriever(tmp_path, TOWNS[:4], splitter="simple")
    _, trace, record = run(small, grades(0, 0, 0, 0), Say(KEYWORDS))
    assert events(trace, "retrieve")[1]["chunk_ids"] == [] and record.stop_reason == "incorrect"
    assert record.cited and len(events(trace, "strips")[0]["kept"]) == 6


def test_documents_without_a_sentence_are_read_whole(tmp_path):
    bare = small_retriever(tmp_path, [("Orrel", "mayor"), ("Tarn", "wells")])  # A-RAG's splitter drops short pieces
    client, trace, record = run(bare, grades(2, 0))
    assert events(trace, "strips") == [{"kept": []}] and events(trace, "final")[0]["compressed"] is False
    assert len(record.cited) == 2 and "[p0] Orrel\nmayor" in client.bodies[1]["messages"][1]["content"]


# -- strips and caps


def test_no_passage_is_encoded_and_no_title_is_a_strip(towns):
    tools = tools_for(towns, FakeClient(), "crag")
    before = len(towns.embedder.calls)
    strips = best_strips(Question("q", QUESTION), tools, ["p3", "p1"], 99)
    assert [c for c, _, _ in strips] == ["p3"] * 3 + ["p1"] * 3 and "Town" not in " ".join(s for _, _, s in strips)
    assert all(kind == "query" for kind, _ in towns.embedder.calls[before:])
    assert len(best_strips(Question("q", QUESTION), tools, ["p3", "p1"], 2)) == 2
    assert best_strips(Question("q", QUESTION), tools, [], 6) == []


@pytest.mark.parametrize(("each", "cap", "count"), [(6, 12, 6), (6, 8, 2), (3, 3, 1), (12, 12, 20)])
def test_caps_hold(towns, each, cap, count):
    client, trace, record = run(
        towns, Say("prose"), Say("prose"), Say("x"), per_search=each, max_docs=cap, strips=count
    )
    assert len(record.retrieved) == min(2 * each, cap) and len(record.cited) <= cap
    kept = events(trace, "strips")[0]["kept"]
    assert len(kept) <= 2 * count and len(client.bodies) == 4


def test_more_documents_than_the_grades_hold_are_refused():
    with pytest.raises(ConfigError, match="less than or equal to 12"):
        registry.create(RunConfig(method="crag", per_search=13), "x")
