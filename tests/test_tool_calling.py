"""An agent's turn, native and as a JSON action: the same calls and answers come out of both."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from fake_embedder import small_retriever
from project_fixture import FakeClient, answer, events
from scripted_server import Say, act, conclude, in_turn

from multihop.llm.tool_calling import CHUNK_IDS, action_schema
from multihop.methods.base import Model, Trace
from multihop.retrieval.tools import TOOL_SPECS

BOTH = pytest.mark.parametrize("mode", ["native", "json_action"])


@pytest.fixture(scope="module")
def retriever(tmp_path_factory):
    return small_retriever(tmp_path_factory.mktemp("tool_calling"))


def turn_of(mode: str, *says) -> tuple:
    client, trace = FakeClient(in_turn(says), tool_calling=mode), Trace()
    model = Model("reader", client, trace, 0, "Unusable ({error}).")
    return asyncio.run(model.act([{"role": "user", "content": "Question: x"}], list(TOOL_SPECS))), client, trace


CALLS = [
    ("semantic_search", "who wrote it", {"query": "who wrote it"}),
    ("keyword_search", ["Ilva Dorn", "Sund"], {"keywords": ["Ilva Dorn", "Sund"]}),
    ("keyword_search", "Sund", {"keywords": ["Sund"]}),
    ("read_chunk", ["p1", "p2"], {"chunk_ids": ["p1", "p2"]}),
    ("read_chunk", "p4", {"chunk_ids": ["p4"]}),
]


@pytest.mark.parametrize(("tool", "argument", "parsed"), CALLS)
def test_both_forms_give_the_same_call(tool, argument, parsed):
    for mode in ("native", "json_action"):
        turn, client, _ = turn_of(mode, lambda body: act(body, tool, argument))
        [call] = turn.calls
        assert (call.name, json.loads(call.arguments)) == (tool, parsed), mode
        assert len(client.bodies) == 1


@BOTH
def test_both_forms_give_the_same_answer(mode):
    turn, _, _ = turn_of(mode, lambda body: conclude(body, "Marrow Bay [p1]."))
    assert (turn.text, turn.calls) == ("Marrow Bay [p1].", ())


def test_native_sends_the_tools_and_an_action_its_schema():
    _, native, _ = turn_of("native", Say("x"))
    _, action, _ = turn_of("json_action", Say('{"enough": true, "answer": "x"}'))
    assert native.bodies[0]["tools"] == TOOL_SPECS and "response_format" not in native.bodies[0]
    assert action.bodies[0]["response_format"]["json_schema"]["schema"] == action_schema(TOOL_SPECS)
    assert "tools" not in action.bodies[0]


def test_the_agent_samples_at_its_own_temperature():
    for mode in ("native", "json_action"):
        client = FakeClient(lambda body: conclude(body, "x"), tool_calling=mode, temperature=0.0, agent_temperature=1.0)
        asyncio.run(
            Model("reader", client, Trace(), 0, "{error}").act([{"role": "user", "content": "x"}], list(TOOL_SPECS))
        )
        assert client.bodies[0]["temperature"] == 1.0


# -- the JSON action


def test_an_answer_may_stand_in_known_alone():
    turn, _, _ = turn_of(
        "json_action", Say('{"known": "Norr (p9)", "missing": "nothing", "enough": true, "answer": ""}')
    )
    assert (turn.text, turn.calls) == ("Norr (p9)", ())


def test_thoughts_are_kept_apart_from_the_answer():
    said = '{"known": "a", "missing": "b", "enough": false, "tool": "semantic_search", "argument": "c"}'
    turn, _, _ = turn_of("json_action", Say(said))
    assert turn.thought == "known: a | missing: b" and turn.text == said


@pytest.mark.parametrize(
    ("written", "ids"),
    [
        ("p1, p2", ["p1", "p2"]),
        ("[p1, p2]", ["p1", "p2"]),
        ("['p1', 'p2']", ["p1", "p2"]),
        (" p1 ,, ", ["p1"]),
        ("", []),
    ],
)
def test_a_list_in_one_argument_is_split_at_commas(written, ids):
    said = json.dumps({"enough": False, "tool": "read_chunk", "argument": written})
    turn, _, _ = turn_of("json_action", Say(said))
    assert json.loads(turn.calls[0].arguments) == {"chunk_ids": ids}


def test_prose_for_an_action_is_repaired_once_and_then_taken_as_the_answer():
    fixed, client, trace = turn_of("json_action", Say("Let me think."), lambda body: act(body, "semantic_search", "x"))
    assert fixed.calls[0].name == "semantic_search" and trace.usage["reader"].repairs == 1
    prose, client, _ = turn_of("json_action", Say("Let me think."), Say("It is Norr."))
    assert (prose.text, prose.calls, len(client.bodies)) == ("It is Norr.", (), 2)


def test_the_schema_has_an_answer_a_search_and_a_reading_branch():
    answering, search, read = action_schema(TOOL_SPECS)["anyOf"]
    assert list(answering["properties"]) == ["known", "missing", "enough", "answer"]
    assert list(search["properties"]) == list(read["properties"]) == ["known", "missing", "enough", "tool", "argument"]
    assert search["properties"]["tool"] == {"enum": ["keyword_search", "semantic_search"]}
    assert [b["properties"]["enough"]["const"] for b in (answering, search, read)] == [True, False, False]
    ids = re.compile(CHUNK_IDS)
    assert all(ids.match(text) for text in ("p0", "c12, c13", "p1, p2, p3, p4, p5"))
    assert not any(ids.match(text) for text in ("", "Sund", "p", "p1,p2", "p1, p2, p3, p4, p5, p6"))


# -- through the loop


@BOTH
def test_an_unknown_tool_is_answered_in_words_and_recorded(retriever, mode):
    says = in_turn([lambda body: act(body, "browse_web", "x"), lambda body: conclude(body, "done")])
    _, trace, record = answer(retriever, "arag", FakeClient(says, tool_calling=mode), "Who?")
    [error] = events(trace, "tool_error")
    assert "browse_web" in error["message"] and "keyword_search" in error["message"]
    assert (record.status, record.answer, record.loops, record.retrieval_calls) == ("ok", "done", 2, 0)


@BOTH
def test_an_unknown_chunk_is_answered_in_words_and_recorded(retriever, mode):
    client = FakeClient(
        in_turn([lambda body: act(body, "read_chunk", ["p999", "p1"]), lambda body: conclude(body, "done")]),
        tool_calling=mode,
    )
    _, trace, record = answer(retriever, "arag", client, "Who?")
    assert events(trace, "read") == [{"chunk_ids": ["p1"], "new": ["p1"], "unknown": ["p999"]}]
    assert "[p999] not found" in client.bodies[1]["messages"][-1]["content"]
    assert record.read == ("p1",) and [r.chunk_id for r in record.retrieved] == ["p1"]


@pytest.mark.parametrize(
    "arguments", ["not json", "", "null", "[]", '"text"', "{", '{"query": 7}', '{"query": null}', "{}"]
)
def test_bad_arguments_of_a_native_call(retriever, arguments):
    client = FakeClient(in_turn([Say(None, (("semantic_search", arguments),)), Say("done")]))
    _, trace, record = answer(retriever, "arag", client, "Who?")
    assert "needs 'query'" in events(trace, "tool_error")[0]["message"]
    assert (record.status, record.answer) == ("ok", "done")
    assert client.bodies[1]["messages"][-1] == {
        "role": "tool",
        "tool_call_id": "call_0_0",
        "content": "Error: semantic_search needs 'query', a non-empty string.",
    }


def test_several_native_calls_of_one_turn_are_one_loop_and_each_is_answered(retriever):
    calls = (("semantic_search", '{"query": "mayor"}'), ("read_chunk", '{"chunk_ids": ["p1"]}'), ("nothing", "{}"))
    client = FakeClient(in_turn([Say("I look.", calls), Say("done")]))
    _, trace, record = answer(retriever, "arag", client, "Who?")
    assert record.loops == 2 and [e.kind for e in trace.events] == ["turn", "retrieve", "read", "tool_error", "turn"]
    assistant, *results = client.bodies[1]["messages"][2:]
    assert [c["id"] for c in assistant["tool_calls"]] == [m["tool_call_id"] for m in results]
    assert assistant["content"] == "I look." and trace.events[0].data["thought"] == "I look."
