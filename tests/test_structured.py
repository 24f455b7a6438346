"""Structured output: lenient reading, one counted repair, and what is invalid in the end."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from project_fixture import FakeClient
from pydantic import BaseModel
from scripted_server import Say, in_turn

from multihop import jsonl
from multihop.llm import structured
from multihop.llm.tool_calling import Action
from multihop.methods.base import Model, Trace
from multihop.methods.register import Initialisation, Update
from multihop.types import Usage

GOOD = '{"enough": true, "answer": "Norr"}'
OTHER = '{"colour": "red", "number": 3}'
PROSE = "I think that the answer is Norr."


def answer_of(text: str) -> tuple[str | None, bool]:
    value, mended, error = structured.parse(text, Action)
    assert (value is None) == bool(error)
    return (value.answer if value else None), mended


# -- parsing


def test_plain_json():
    assert answer_of(GOOD) == ("Norr", False)


@pytest.mark.parametrize(
    "text",
    [
        f"```json\n{GOOD}\n```",
        f"```\n{GOOD}\n```",
        f"{GOOD}\nI hope that this helps!",
        f"Here it is: {GOOD}",
        GOOD[:-1],
        "{'enough': true, 'answer': 'Norr'}",
        '{"enough": true, "answer": "Norr",}',
        '{"enough": true, "answer": "Norr',
    ],
)
def test_what_can_be_mended_is_mended_and_said(text):
    assert answer_of(text) == ("Norr", True)


@pytest.mark.parametrize(
    "text", [PROSE, OTHER, "", "null", "[]", f"[{GOOD}]", "42", '"Norr"', "[" * 50_000, '{"a":' * 5_000, "{}"]
)
def test_what_is_no_answer(text):
    assert answer_of(text)[0] is None


def test_false_as_a_word_is_false():
    assert structured.parse('{"enough": "False", "tool": "read_chunk"}', Action)[0].enough is False


def test_a_number_too_long_to_read_is_invalid_and_no_crash():
    assert answer_of("9" * 6000)[0] is None


def test_a_cut_emoji_leaves_text_that_can_be_written():
    value, _, _ = structured.parse('{"enough": true, "answer": "cut \\ud83d"}', Action)
    assert value.answer.startswith("cut ") and jsonl.digest({"answer": value.answer})
    whole, _, _ = structured.parse('{"enough": true, "answer": "\\ud83d\\ude00 \\u00f8"}', Action)
    assert whole.answer == "😀 ø"


@given(
    st.text(max_size=60)
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=8), x, max_size=3),
        max_leaves=8,
    ).map(json.dumps)
)
@settings(max_examples=60, deadline=None)
def test_no_reply_of_a_model_raises(text):
    for model in (Action, Update, Initialisation):
        structured.parse(text, model)


# -- asking


def complete(*replies: str, **options) -> tuple[structured.Structured, FakeClient, Trace]:
    client, trace = FakeClient(in_turn([Say(r) for r in replies]), **options), Trace()
    model = Model("reader", client, trace, 0, "Unusable ({error}). Again.")
    messages = [{"role": "user", "content": "go"}]
    return asyncio.run(model.json(messages, Action)), client, trace


def test_a_good_reply_needs_no_repair():
    result, client, trace = complete(GOOD)
    assert (result.value.answer, result.repaired, result.error) == ("Norr", False, None)
    assert len(client.bodies) == 1 and trace.usage == {"reader": Usage(1, 1, 4, 0)}


def test_a_mended_reply_is_counted_without_a_call():
    result, client, trace = complete(f"```json\n{GOOD}\n```")
    assert (result.value.answer, result.repaired) == ("Norr", True)
    assert len(client.bodies) == 1 and trace.usage["reader"].repairs == 1


@pytest.mark.parametrize("bad", [PROSE, OTHER, ""])
def test_one_repair_with_the_reason_is_asked_for_and_counted(bad):
    result, client, trace = complete(bad, GOOD)
    assert (result.value.answer, result.repaired, result.error) == ("Norr", True, None)
    first, second = client.bodies
    assert second["messages"][:1] == first["messages"]
    assistant, user = second["messages"][1:]
    assert assistant == {"role": "assistant", "content": bad}
    assert user["role"] == "user" and user["content"].startswith("Unusable (")
    assert ("enough" in user["content"]) == (bad == OTHER) and ("not JSON" in user["content"]) == (bad != OTHER)
    assert trace.usage["reader"].calls == 2 and trace.usage["reader"].repairs == 1
    assert first["response_format"] == second["response_format"] and second["temperature"] == 0.0


@pytest.mark.parametrize("second", [PROSE, OTHER])
def test_twice_unusable_is_invalid_and_there_is_no_third_call(second):
    result, client, trace = complete(PROSE, second)
    assert result.value is None and result.error and result.raw == second
    assert len(client.bodies) == 2 and trace.usage["reader"].repairs == 1


def test_the_reason_in_the_repair_prompt_is_the_recorded_wording():
    """It is part of a request: another wording would miss the recording."""
    _, client, _ = complete(PROSE, GOOD)
    assert client.bodies[1]["messages"][-1]["content"] == "Unusable (not JSON: Expecting value). Again."


# -- schemas


class Inner(BaseModel):
    name: str
    tags: list[str] = []


class Outer(BaseModel):
    """A docstring that must not be sent."""

    inner: Inner
    more: list[Inner] = []


def nodes(node):
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from nodes(value)
    elif isinstance(node, list):
        for value in node:
            yield from nodes(value)


@pytest.mark.parametrize("model", [Outer, Initialisation, Update])
def test_strict_schemas_require_everything_and_allow_nothing_else(model):
    schema = structured.strict_schema(model)
    for node in nodes(schema):
        assert not {"$ref", "$defs", "default"} & set(node)
        if node.get("type") == "object":
            assert node["required"] == list(node["properties"]) and node["additionalProperties"] is False
    assert not any({"maxLength", "maxItems"} & set(node) for node in nodes(schema))


def test_bounds_are_kept_where_a_grammar_reads_them():
    assert any("maxLength" in node for node in nodes(structured.strict_schema(Update, bounded=True)))


def test_a_field_called_title_stays():
    class Book(BaseModel):
        title: str
        description: str = ""

    assert list(structured.strict_schema(Book)["properties"]) == ["title", "description"]


@pytest.mark.parametrize(
    ("mode", "form"), [("json_schema", "json_schema"), ("json_object", "json_object"), ("none", None)]
)
def test_the_form_follows_the_endpoint(mode, form):
    _, client, _ = complete(GOOD, structured=mode)
    assert (client.bodies[0].get("response_format") or {}).get("type") == form
