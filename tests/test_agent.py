"""The shared agent loop: A-RAG's trace, budgets, odd models; ExecutionRAG switched off is A-RAG to the byte."""

from __future__ import annotations

import json
import re

import pytest
from fake_embedder import small_retriever
from project_fixture import FakeClient, answer, events, prompts_of
from scripted_server import OVERFLOW, Fail, Say, act, conclude, for_kind, in_turn, little_model, turns

from multihop import jsonl
from multihop.retrieval.tokens import count_tokens
from multihop.types import Event, Retrieved

QUESTION = "Who is the mayor of the birthplace of Ilva Dorn?"
BOTH = pytest.mark.parametrize("mode", ["native", "json_action"])
OFF = {"use_register": False, "dedup": False, "nudge_at": None}


@pytest.fixture(scope="module")
def retriever(tmp_path_factory):
    return small_retriever(tmp_path_factory.mktemp("agent"))


def arag(retriever, script=little_model, mode: str = "native", **options):
    client = FakeClient(script, tool_calling=mode, **options.pop("reader", {}))
    _, trace, record = answer(retriever, "arag", client, options.pop("question", QUESTION), **options)
    return client, trace, record


def always(tool: str, argument):
    return lambda body: act(body, tool, argument)


# -- the golden trace


@BOTH
def test_golden_trace(retriever, mode):
    client, trace, record = arag(retriever, mode=mode, k=2)
    thought = "" if mode == "native" else "known:  | missing: a fact"

    def turn(step: int, tool: str, arguments: str) -> Event:
        return Event(
            step, "turn", {"thought": thought, "calls": [{"tool": tool, "arguments": arguments}], "answer": False}
        )

    def search(step: int, tool: str, query, chunks: list[str]) -> Event:
        found = [e.data["scores"] for e in trace.events if e.kind == "retrieve" and e.step == step]
        data = {"tool": tool, "query": query, "chunk_ids": chunks, "scores": found[0], "repeat": False}
        return Event(step, "retrieve", data)

    assert trace.events == [
        turn(1, "semantic_search", json.dumps({"query": QUESTION})),
        search(1, "semantic_search", QUESTION, ["p3", "p2"]),
        turn(2, "keyword_search", '{"keywords": ["Ilva", "Dorn"]}'),
        search(2, "keyword_search", ["Ilva", "Dorn"], ["p0", "p2"]),
        turn(3, "read_chunk", '{"chunk_ids": ["p3", "p2"]}'),
        Event(3, "read", {"chunk_ids": ["p3", "p2"], "new": ["p3", "p2"], "unknown": []}),
        Event(
            4,
            "turn",
            {"thought": "" if mode == "native" else "known: it all | missing: nothing", "calls": [], "answer": True},
        ),
    ]
    assert record.answer == "The Glass Harbour [p3]" and record.short is None and record.mode == "free"
    assert (record.status, record.stop_reason, record.forced, record.error) == ("ok", "answered", False, None)
    assert record.retrieved == (
        Retrieved("p3", 1, "semantic_search"),
        Retrieved("p2", 1, "semantic_search"),
        Retrieved("p0", 2, "keyword_search"),
    )
    assert (record.read, record.cited) == (("p3", "p2"), ())
    assert (record.loops, record.retrieval_calls, record.usage["reader"].calls, set(record.usage)) == (
        4,
        2,
        4,
        {"reader"},
    )
    # A-RAG's counter: the sentences that the searches showed, and the texts read.
    shown = [
        "A party was held in Sund by the smart guests of the town\n"
        "The Glass Harbour\nThe Glass Harbour is a novel by Ilva Dorn",
        "Ilva Dorn was born in Marrow Bay in 1912\nThe Glass Harbour is a novel by Ilva Dorn",
        retriever.text("p3"),
        retriever.text("p2"),
    ]
    assert record.retrieved_tokens == sum(map(count_tokens, shown)) and record.seed_tokens == 0
    results = [m["content"] for m in client.bodies[-1]["messages"][2:] if m["role"] != "assistant"]
    assert results == [
        "[p3] A party was held in Sund by the smart guests of the town\n"
        "[p2] The Glass Harbour … The Glass Harbour is a novel by Ilva Dorn",
        "[p0] Ilva Dorn was born in Marrow Bay in 1912\n[p2] The Glass Harbour is a novel by Ilva Dorn",
        f"[p3] {retriever.text('p3')}\n\n[p2] {retriever.text('p2')}",
    ]


@BOTH
def test_messages_only_grow_and_hold_no_score(retriever, mode):
    """Append-only lists keep a server's prefix cache; a rounding must not change a prompt."""
    client, trace, _ = arag(retriever, mode=mode)
    for earlier, later in zip(client.bodies, client.bodies[1:], strict=False):
        assert later["messages"][: len(earlier["messages"])] == earlier["messages"]
    text = str(client.bodies[-1]["messages"])
    scores = [s for e in events(trace, "retrieve") for s in e["scores"] if s != int(s)]
    assert (
        scores
        and not any(f"{s:.2f}" in text for s in scores)
        and not re.search(r"similarity|score", text, re.IGNORECASE)
    )


def test_the_two_forms_search_and_read_the_same(retriever):
    (_, _, native), (_, _, action) = arag(retriever), arag(retriever, mode="json_action")
    same = ("answer", "status", "stop_reason", "retrieved", "read", "loops", "retrieved_tokens", "retrieval_calls")
    assert [getattr(native, f) for f in same] == [getattr(action, f) for f in same]


def test_the_json_example_is_in_the_system_prompt_of_that_form_alone(retriever):
    prompts = prompts_of("arag")
    native, action = arag(retriever)[0], arag(retriever, mode="json_action")[0]
    assert native.bodies[0]["messages"][0]["content"] == prompts["agent_system"]
    assert action.bodies[0]["messages"][0]["content"] == f"{prompts['agent_system']}\n\n{prompts['agent_json_action']}"


# -- budgets


@BOTH
def test_an_endless_loop_ends_with_a_forced_answer(retriever, mode):
    script = for_kind(
        agent=lambda body: act(body, "semantic_search", f"query {turns(body)}"), chat=Say("Norr, perhaps.")
    )
    client, trace, record = arag(retriever, script, mode, max_loops=3)
    assert (record.status, record.stop_reason, record.answer) == ("budget", "forced_loops", "Norr, perhaps.")
    assert (record.loops, record.forced, record.usage["reader"].calls) == (3, True, 4)
    assert events(trace, "forced") == [{"why": "loops"}] and trace.events[-1].step == 3
    last = client.bodies[-1]
    assert "tools" not in last and "response_format" not in last
    assert last["messages"][-1]["content"] == prompts_of("arag")["agent_force"].format(question=QUESTION)


@BOTH
def test_too_many_tokens_force_an_answer_before_the_next_turn(retriever, mode):
    script = for_kind(agent=always("read_chunk", ["p0", "p1", "p2"]), chat=Say("Norr."))
    client, trace, record = arag(retriever, script, mode, token_budget=count_tokens(prompt_text(mode)) + 20)
    assert (record.status, record.stop_reason, record.loops) == ("budget", "forced_tokens", 1)
    assert events(trace, "forced") == [{"why": "tokens"}] and len(client.bodies) == 2


def prompt_text(mode: str) -> str:
    prompts = prompts_of("arag")
    parts = [prompts["agent_system"], prompts["agent_question"].format(question=QUESTION)]
    return "\n".join([*parts, prompts["agent_json_action"]] if mode == "json_action" else parts)


def test_the_system_prompt_counts_once(retriever):
    exact = sum(count_tokens(text) for text in (prompts_of("arag")["agent_system"], f"Question: {QUESTION}"))
    assert arag(retriever, token_budget=exact - 1)[2].loops == 0
    assert arag(retriever, token_budget=exact)[2].loops == 1


def test_a_forced_answer_in_json_is_unwrapped(retriever):
    script = for_kind(
        agent=always("semantic_search", "x"), chat=lambda body: Say('{"enough": true, "answer": "Norr."}')
    )
    record = arag(retriever, script, "json_action", max_loops=1)[2]
    assert (record.answer, record.status) == ("Norr.", "budget")


def test_an_empty_forced_answer_is_invalid(retriever):
    script = for_kind(agent=always("semantic_search", "x"), chat=Say(None))
    record = arag(retriever, script, max_loops=1)[2]
    assert (record.answer, record.status, record.stop_reason, record.forced) == (
        "",
        "invalid_output",
        "forced_loops",
        True,
    )


# -- odd models


@BOTH
def test_null_content_is_invalid_output_and_no_answer(retriever, mode):
    record = arag(retriever, lambda body: Say(None), mode)[2]
    assert (record.answer, record.status, record.stop_reason) == ("", "invalid_output", "answered")


def test_prose_instead_of_an_action_is_the_answer_and_said(retriever):
    _, trace, record = arag(retriever, lambda body: Say("It is Tomas Reed."), "json_action")
    assert (record.answer, record.status, record.usage["reader"].repairs) == ("It is Tomas Reed.", "ok", 1)
    assert len(events(trace, "format_fallback")) == 1


def test_json_of_another_shape_is_invalid_output_and_no_answer(retriever):
    _, trace, record = arag(retriever, lambda body: Say('{"colour": "red"}'), "json_action")
    assert (record.answer, record.status) == ("", "invalid_output")
    assert len(events(trace, "format_fallback")) == 1


@BOTH
@pytest.mark.parametrize(
    ("outcome", "status", "stop"),
    [
        (Say(None, refusal="No."), "refused", "refused"),
        (Say("ha", finish="content_filter"), "refused", "refused"),
        (OVERFLOW, "budget", "context_overflow"),
        (Fail(500), "error", "error"),
    ],
)
def test_what_went_wrong_is_a_status_and_what_was_found_stays(retriever, mode, outcome, status, stop):
    script = in_turn([always("semantic_search", "mayor"), outcome])
    _, trace, record = arag(retriever, script, mode)
    assert (record.answer, record.status, record.stop_reason, record.mode) == ("", status, stop, "free")
    assert record.retrieval_calls == 1 and record.loops == 1 and record.retrieved
    assert (record.error is not None) == (status == "error")
    assert [e.kind for e in trace.events][-1] == ("retrieve" if status == "error" else stop)


@BOTH
def test_a_repeated_search_brings_the_same_again_or_a_notice(retriever, mode):
    script = in_turn([always("keyword_search", "Sund"), always("keyword_search", " SUND "), lambda b: conclude(b, "x")])
    client, trace, record = arag(retriever, script, mode)
    first, second = events(trace, "retrieve")
    assert (first["chunk_ids"], first["repeat"], second["repeat"]) == (second["chunk_ids"], False, False)
    script = in_turn([always("keyword_search", "Sund"), always("keyword_search", " SUND "), lambda b: conclude(b, "x")])
    client, trace, with_dedup = arag(retriever, script, mode, dedup=True)
    first, second = events(trace, "retrieve")
    assert (first["chunk_ids"], first["repeat"], second["repeat"]) == (second["chunk_ids"], False, True)
    assert "made before" in client.bodies[-1]["messages"][-1]["content"]
    assert with_dedup.retrieval_calls == 2 and with_dedup.loops == 3
    assert with_dedup.retrieved_tokens * 2 == record.retrieved_tokens


def test_a_chunk_that_two_searches_of_one_loop_find_is_shown_once(retriever):
    calls = (("keyword_search", '{"keywords": ["mayor"]}'), ("keyword_search", '{"keywords": ["Reed"]}'))
    client, _, _ = arag(retriever, in_turn([Say(None, calls), Say("done")]))
    first, second = (m["content"] for m in client.bodies[1]["messages"] if m["role"] == "tool")
    assert "[p1] Its mayor" in first and "[p1] (shown above)" in second


def test_curly_brackets_and_any_script_in_a_question(retriever):
    question = "Qui est {x} à İzmir, 日本 {0}?"
    client, _, record = arag(retriever, question=question)
    assert client.bodies[0]["messages"][1]["content"] == f"Question: {question}" and record.status == "ok"


# -- ExecutionRAG switched off is A-RAG

SCRIPTS = {
    "little model": little_model,
    "endless": for_kind(agent=lambda body: act(body, "semantic_search", f"query {turns(body)}")),
    "the same again": for_kind(agent=always("semantic_search", "Sund")),
    "reads everything": for_kind(agent=always("read_chunk", ["p0", "p1", "p2", "p3", "p4", "p9"])),
    "unknown tool": for_kind(agent=always("browse", "x")),
    "nothing": lambda body: Say(None),
    "refuses": lambda body: Say(None, refusal="No."),
    "prose": lambda body: Say("Tomas Reed."),
}


@BOTH
@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("budget", [{}, {"token_budget": 700}])
def test_executionrag_without_register_dedup_and_nudge_is_arag_to_the_byte(retriever, mode, name, budget):
    lines, bodies = [], []
    for method, options in (("arag", {}), ("executionrag", OFF)):
        client = FakeClient(SCRIPTS[name], tool_calling=mode)
        record = answer(retriever, method, client, QUESTION, max_loops=4, **budget, **options)[2]
        lines.append(jsonl.dumps(record.to_json()))
        bodies.append(client.bodies)
    assert lines[0] == lines[1] and bodies[0] == bodies[1]


@BOTH
@pytest.mark.parametrize("on", [{"dedup": True}, {"nudge_at": 0.5}, {"use_register": True}])
def test_each_switch_changes_something(retriever, mode, on):
    """So that the test above can fail."""
    script = SCRIPTS["the same again"]
    lines = []
    for options in (OFF, OFF | on):
        record = answer(
            retriever, "executionrag", FakeClient(script, tool_calling=mode), QUESTION, max_loops=4, **options
        )[2]
        lines.append(jsonl.dumps(record.to_json()))
    assert lines[0] != lines[1]
