"""Judge protocol, extraction and the rule judge, against a scripted client."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from multihop.errors import DataError, EndpointError
from multihop.evaluation.judge import Prompts, clean_span, extract, judge, parse_verdict, rule_verdict
from multihop.types import Usage

PROMPTS = Prompts.load(Path(__file__).parents[1] / "prompts")


class Script:
    """Answers with the given replies in order and keeps what it was asked."""

    def __init__(self, *replies):
        self.replies = list(replies)
        self.asked = []

    async def chat(self, messages, *, role, max_tokens, temperature=0.7, sample=0):
        self.asked.append((role, messages, temperature))
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return SimpleNamespace(text=reply, usage=Usage(1, 100, 2), finish_reason="stop")


def ask(*replies, prediction="It is in Kesta.", gold="Kesta"):
    client = Script(*replies)
    return asyncio.run(judge(client, PROMPTS, prediction, gold)), client


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("correct", True),
        ("Correct.", True),
        (" “correct” ", True),
        ("**incorrect**", False),
        ("Incorrect", False),
        ("The answer is correct", None),
        ("correct incorrect", None),
        ("", None),
    ],
)
def test_parse_verdict(reply, verdict):
    assert parse_verdict(reply) is verdict


def test_one_call_and_the_strict_column():
    verdict, client = ask("correct")
    assert (verdict.correct, verdict.strict, verdict.unparsed, verdict.usage.calls) == (True, True, False, 1)
    assert [(role, temperature) for role, _, temperature in client.asked] == [("judge", 0.0)]
    lenient, _ = ask("Correct.")
    assert (lenient.correct, lenient.strict) == (True, False)


def test_one_retry_then_unparsed():
    verdict, client = ask("It seems right", "correct")
    assert (verdict.correct, verdict.strict, verdict.reply) == (True, False, "It seems right")
    assert verdict.usage == Usage(2, 200, 4)
    assert client.asked[1][1][: len(client.asked[0][1])] == client.asked[0][1]  # append-only: prefix cache
    lost, client = ask("It seems right", "Indeed")
    assert (lost.correct, lost.unparsed, len(client.asked)) == (False, True, 2)


def test_null_content_is_retried():
    assert ask(None, "correct")[0].correct


def test_a_blank_answer_costs_no_call():
    verdict, client = ask(prediction=" \n")
    assert (verdict.correct, verdict.usage.calls, client.asked) == (False, 0, [])


def test_the_question_and_the_aliases_are_not_shown_and_braces_are_safe():
    _, client = ask("correct", prediction="{gold} is {x}", gold="{answer}")
    system, user = client.asked[0][1]
    assert system["content"] == PROMPTS.judge_system  # the fixed prefix comes first, unchanged
    assert "{gold} is {x}" in user["content"] and "{answer}" in user["content"]


def test_the_clients_errors_pass_through():
    with pytest.raises(EndpointError):
        ask(EndpointError("no key"))


def test_extract():
    client = Script("Mina Orrel\nbecause she founded it")
    span, usage = asyncio.run(extract(client, PROMPTS, "Who founded it?", "Mina Orrel did [p4]."))
    assert (span, usage.calls, client.asked[0][0]) == ("Mina Orrel", 1, "extract")
    assert asyncio.run(extract(Script(), PROMPTS, "Who?", "  ")) == ("", Usage())


@pytest.mark.parametrize(
    ("reply", "span"),
    [
        ('\n "Mina Orrel" ', "Mina Orrel"),
        ("Answer: 4 June 1890", "4 June 1890"),
        ("**Shortest answer:** Kesta", "Kesta"),
        ("No answer.", ""),
        ("no", "no"),
        ("", ""),
        ("...", "..."),
    ],
)
def test_clean_span(reply, span):
    assert clean_span(reply) == span


@pytest.mark.parametrize(
    ("short", "answers", "right"),
    [
        ("Harlow", ["Harlow Press", "Harlow"], True),
        ("Russia", ["US"], False),
        ("the town of Kesta", ["Kesta"], True),
        ("Yes, both", ["yes"], True),
        ("no one knows, yes", ["yes"], False),
        ("not known", ["no"], False),
        ("The", ["A"], False),
        ("the", ["The"], True),
        ("", ["The"], False),
        ("!", ["yes"], False),
    ],
)
def test_rule_verdict(short, answers, right):
    assert rule_verdict(short, answers) is right


def test_a_missing_prompt_is_named(tmp_path):
    with pytest.raises(DataError, match=r"judge/system\.txt"):
        Prompts.load(tmp_path)
