"""The retrieve-then-read methods, the registry, and the contract that every method keeps."""

from __future__ import annotations

import asyncio
import inspect

import pytest
from fake_embedder import small_retriever
from project_fixture import FakeClient, answer, events, prompts_of
from scripted_server import OVERFLOW, Say, in_turn

from multihop.config import RunConfig
from multihop.errors import ConfigError
from multihop.methods import registry
from multihop.methods.base import MethodParams, Trace, split_answer
from multihop.types import Retrieved, Usage

QUESTION = "Who is the mayor of Marrow Bay?"
TWO_LINES = Say("Because: it says so (p4).\nAnswer: Tomas Reed")


@pytest.fixture(scope="module")
def retriever(tmp_path_factory):
    return small_retriever(tmp_path_factory.mktemp("methods"))


def run(retriever, method: str, script=TWO_LINES, **options):
    client = FakeClient(script if callable(script) else lambda body: script)
    _, trace, record = answer(retriever, method, client, QUESTION, **options)
    return client, trace, record


# -- direct


def test_direct_sees_no_passage(retriever):
    client, trace, record = run(retriever, "direct", max_tokens=77)
    prompts = prompts_of("direct")
    assert client.bodies[0]["messages"] == [
        {"role": "system", "content": prompts["direct_system"]},
        {"role": "user", "content": prompts["direct_user"].format(passages="", question=QUESTION)},
    ]
    assert client.bodies[0]["max_tokens"] == 77 and len(client.bodies) == 1
    assert (record.answer, record.short, record.mode) == (TWO_LINES.content, "Tomas Reed", "short")
    assert (record.status, record.stop_reason, record.retrieved, record.retrieved_tokens) == ("ok", "answered", (), 0)
    assert [e.kind for e in trace.events] == ["final"] and record.usage["reader"].calls == 1


# -- vanilla


@pytest.mark.parametrize("k", [1, 3, 5, 10])
def test_vanilla_shows_the_top_k_best_first(retriever, k):
    client, trace, record = run(retriever, "vanilla", k=k)
    ids = [h.chunk_id for h in retriever.dense(QUESTION, k)]
    assert len(ids) == min(k, 5) and record.cited == record.read == tuple(ids)
    prompts = prompts_of("vanilla")
    shown = "\n\n".join(f"[{c}] {retriever.text(c)}" for c in ids)
    assert client.bodies[0]["messages"][1]["content"] == prompts["reader_user"].format(
        passages=shown, question=QUESTION
    )
    assert record.retrieved == tuple(Retrieved(c, 1, "retrieve") for c in ids)
    assert record.retrieved_tokens == sum(retriever.tokens(c) for c in ids) and record.retrieval_calls == 1
    [search] = events(trace, "retrieve")
    assert search["chunk_ids"] == ids and search["query"] == QUESTION and len(search["scores"]) == len(ids)


def test_vanilla_with_bm25(retriever):
    record = run(retriever, "vanilla", k=2, lexical=True)[2]
    assert record.read == tuple(h.chunk_id for h in retriever.bm25(QUESTION, 2))


# -- CoT-RAG


def test_cot_reader_uses_its_own_prompt_over_the_same_passages(retriever):
    cot, _, record = run(retriever, "cot_rag", k=3)
    vanilla, _, plain = run(retriever, "vanilla", k=3)
    assert record.read == plain.read and len(cot.bodies) == 1
    assert cot.bodies[0]["messages"][0]["content"] == prompts_of("cot_rag")["cot_system"]
    assert cot.bodies[0]["messages"] != vanilla.bodies[0]["messages"]


def test_cot_query_searches_with_question_and_rationale(retriever):
    client, trace, record = run(
        retriever,
        "cot_rag",
        in_turn([Say(" Ilva Dorn was born there. "), TWO_LINES]),
        variant="query",
        k=2,
        rationale_tokens=33,
    )
    assert events(trace, "retrieve")[0]["query"] == f"{QUESTION} Ilva Dorn was born there."
    first = client.bodies[0]
    assert first["messages"][0]["content"] == prompts_of("cot_rag")["rationale_system"] and first["max_tokens"] == 33
    assert record.usage["reader"].calls == 2 and record.short == "Tomas Reed"


# -- answers


@pytest.mark.parametrize("method", ["direct", "vanilla", "cot_rag"])
def test_a_reply_without_the_marker_keeps_its_last_line_and_is_said(retriever, method):
    script = Say("It was him.\nTomas Reed\n\n", finish="length")
    _, trace, record = run(retriever, method, script)
    assert (record.short, record.status) == ("Tomas Reed", "ok")
    assert events(trace, "format_fallback") == [{"finish_reason": "length"}]


@pytest.mark.parametrize("content", [None, "", " \n "])
def test_an_empty_reply_is_invalid_output_and_no_answer(retriever, content):
    record = run(retriever, "vanilla", Say(content))[2]
    assert (record.status, record.answer.strip(), record.short, record.error) == ("invalid_output", "", "", None)


def test_a_refusal_and_an_overflow_keep_what_was_retrieved(retriever):
    for script, status in ((Say(None, refusal="No."), "refused"), (OVERFLOW, "budget")):
        record = run(retriever, "vanilla", script, k=2)[2]
        assert (record.answer, record.status, record.mode, len(record.retrieved)) == ("", status, "short", 2)


def test_a_very_long_passage_reaches_the_reader_whole_or_overflows(tmp_path):
    long = small_retriever(tmp_path, [("Archive", "mayor Marrow Bay " * 20_000), ("Other", "Nothing else.")])
    client, _, record = run(long, "vanilla", k=1)
    assert record.retrieved_tokens > 50_000 and record.status == "ok"
    assert len(client.bodies[0]["messages"][1]["content"]) > 300_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Because: x\nAnswer: Norr", ("Norr", True)),
        ("answer: a\nANSWER:  b \nand more", ("b", True)),
        ("Answer:\n\nNorr", ("Norr", True)),
        ("Answer:", ("", True)),
        ("İstanbul İzmir\nAnswer: Foo", ("Foo", True)),
        ("Straße ẞ ŉ ΐ\nAnswer: 東京", ("東京", True)),
        ("one\n\n two \n", ("two", False)),
        ("", ("", False)),
    ],
)
def test_split_answer(text, expected):
    assert split_answer(text) == expected


# -- the registry


def test_methods_are_found_by_file():
    assert {"direct", "vanilla", "cot_rag", "arag", "executionrag"} <= set(registry.names())
    for name in registry.names():
        cls = registry.find(name)
        assert cls.name == name and issubclass(cls.Params, MethodParams)
        assert inspect.iscoroutinefunction(cls.answer) and inspect.getmodule(cls).__doc__
        assert registry.create(RunConfig(method=name), "x").params == cls.Params()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "vanila"}, "did you mean 'vanilla'"),
        ({"method": "vanilla", "kk": 3}, "unknown key 'kk'; did you mean 'k'"),
        ({"method": "vanilla", "k": "3"}, "k: Input should be a valid integer"),
        ({"method": "vanilla", "k": 0}, "greater than 0"),
        ({"method": "direct", "k": 3}, "unknown key 'k'"),
        ({"method": "arag", "use_register": True}, "unknown key 'use_register'"),
        ({"method": "arag", "k": 21}, "less than or equal to 20"),
        ({"method": "arag", "keyword_scoring": "tfidf"}, "keyword_scoring"),
        ({"method": "cot_rag", "variant": "both"}, "'reader' or 'query'"),
        ({"method": "executionrag", "nudge_at": 1.5}, "nudge_at"),
        ({"method": "executionrag", "updates": "yes"}, "updates: Input should be a valid boolean"),
    ],
)
def test_wrong_options_are_explained(options, message):
    with pytest.raises(ConfigError, match=message):
        registry.create(RunConfig(**options), "params.yaml: runs.x")


# -- what every method keeps

OPTIONS = {"arag": {"max_loops": 3}, "executionrag": {"max_loops": 3}}


@pytest.mark.parametrize("method", ["direct", "vanilla", "cot_rag", "arag", "executionrag"])
def test_the_run_seed_reaches_every_request(retriever, method):
    client = FakeClient()
    answer(retriever, method, client, QUESTION, seed=7, **OPTIONS.get(method, {}))
    assert {body["seed"] for body in client.bodies} == {7}


@pytest.mark.parametrize("method", ["direct", "vanilla", "cot_rag", "arag", "executionrag"])
def test_a_question_leaves_no_trace_in_the_next(retriever, method):
    """One method object answers many questions at once: no state between them."""
    from project_fixture import tools_for

    from multihop.types import Question

    made = registry.create(RunConfig(method=method, **OPTIONS.get(method, {})), "x")

    async def both() -> list[Trace]:
        pair = [tools_for(retriever, FakeClient(), method) for _ in range(2)]
        questions = [Question("a", QUESTION), Question("b", "Where was Ilva Dorn born?")]
        await asyncio.gather(*(made.answer(q, t) for q, t in zip(questions, pair, strict=True)))
        return [t.trace for t in pair]

    alone = answer(retriever, method, FakeClient(), QUESTION, **OPTIONS.get(method, {}))[1]
    assert asyncio.run(both())[0] == alone


@pytest.mark.parametrize("method", ["direct", "vanilla", "cot_rag", "arag", "executionrag"])
def test_usage_is_the_sum_of_the_calls(retriever, method):
    client, _, record = run(retriever, method, FakeClient().script, **OPTIONS.get(method, {}))
    assert sum(u.calls for u in record.usage.values()) == len(client.bodies)
    prompt = sum(len((m["content"] or "").split()) for b in client.bodies for m in b["messages"])
    assert sum(record.usage.values(), Usage()).prompt_tokens == prompt
