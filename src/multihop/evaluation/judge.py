"""The two judges and the extraction of a short answer from a free one.

``judge`` follows the peers' LLM judge (LinearRAG, A-RAG): the question is not shown, one gold
answer, three criteria, one word. ``rule_verdict`` needs no model. Both stand in every table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from multihop.errors import DataError
from multihop.evaluation.answers import contain_word, normalise
from multihop.types import Usage

JUDGE_TOKENS = 8
EXTRACT_TOKENS = 24
_VERDICT = re.compile(r"^\W*(correct|incorrect)\W*$", re.IGNORECASE)
_LABEL = re.compile(r"^\W*(?:short(?:est)? )?answer\s*:\s*", re.IGNORECASE)
_WRAPPERS = " \t`*_\"'“”‘’"
NO_ANSWER = "no answer"
"""What the extraction writes when a response answers nothing; stored as the empty string."""


class Reply(Protocol):
    @property
    def text(self) -> str | None: ...

    @property
    def usage(self) -> Usage: ...

    @property
    def finish_reason(self) -> str | None: ...


class ChatClient(Protocol):
    """The part of the language model client that evaluation uses."""

    async def chat(
        self, messages: list[dict], *, role: str, max_tokens: int, temperature: float = 0.0, sample: int = 0
    ) -> Reply: ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the model judge said of one answer."""

    correct: bool
    strict: bool
    """The peers' reading: the stripped, lower-cased first reply equals "correct" exactly."""
    reply: str
    """The raw first reply; "" when no call was needed."""
    unparsed: bool = False
    """Neither word after one retry: counted as incorrect, and reported."""
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class Prompts:
    """The texts under prompts/judge and prompts/extract. The fixed part comes first, so that a
    local server reads it once and keeps it in its prefix cache."""

    judge_system: str
    judge_user: str
    judge_retry: str
    extract_system: str
    extract_user: str

    @staticmethod
    def load(folder: Path) -> Prompts:
        """Read them from ``folder`` (the project's prompts/). Raises DataError for a missing file."""

        def text(name: str) -> str:
            path = folder / name
            if not path.is_file():
                raise DataError(f"{path}: no such prompt; run from the project's root or restore it from git")
            return path.read_text(encoding="utf-8").strip()

        return Prompts(
            judge_system=text("judge/system.txt"),
            judge_user=text("judge/user.txt"),
            judge_retry=text("judge/retry.txt"),
            extract_system=text("extract/system.txt"),
            extract_user=text("extract/user.txt"),
        )


def parse_verdict(reply: str) -> bool | None:
    """True, False, or None when the reply is anything but one of the two words and punctuation."""
    found = _VERDICT.match(reply.strip())
    return None if found is None else found[1].lower() == "correct"


async def judge(client: ChatClient, prompts: Prompts, prediction: str, gold: str) -> Verdict:
    """Ask the model judge about a whole answer; a blank one is wrong without a call.

    The client's errors pass through: a verdict is never invented.
    """
    if not prediction.strip():
        return Verdict(correct=False, strict=False, reply="")
    user = prompts.judge_user.format(answer=prediction.strip(), gold=gold)
    messages = [{"role": "system", "content": prompts.judge_system}, {"role": "user", "content": user}]
    first = await client.chat(messages, role="judge", max_tokens=JUDGE_TOKENS, temperature=0.0)
    reply, usage = first.text or "", first.usage
    verdict = parse_verdict(reply)
    if verdict is None:
        messages = [
            *messages,
            {"role": "assistant", "content": reply or "(nothing)"},
            {"role": "user", "content": prompts.judge_retry},
        ]
        second = await client.chat(messages, role="judge", max_tokens=JUDGE_TOKENS, temperature=0.0)
        verdict, usage = parse_verdict(second.text or ""), usage + second.usage
    return Verdict(
        correct=verdict is True,
        strict=reply.strip().lower() == "correct",
        reply=reply,
        unparsed=verdict is None,
        usage=usage,
    )


async def extract(client: ChatClient, prompts: Prompts, question: str, answer: str) -> tuple[str, Usage]:
    """The short answer inside a free one, "" where it answers nothing; one call, none if blank."""
    if not answer.strip():
        return "", Usage()
    user = prompts.extract_user.format(question=question.strip(), answer=answer.strip())
    messages = [{"role": "system", "content": prompts.extract_system}, {"role": "user", "content": user}]
    reply = await client.chat(messages, role="extract", max_tokens=EXTRACT_TOKENS, temperature=0.0)
    return clean_span(reply.text or ""), reply.usage


def clean_span(reply: str) -> str:
    """The first line with text, without label, quotes or emphasis; "no answer" becomes ""."""
    line = next((line for line in reply.splitlines() if line.strip(_WRAPPERS)), "")
    span = _LABEL.sub("", line).strip(_WRAPPERS)
    return "" if normalise(span) == NO_ANSWER else span


def rule_verdict(short: str, answers: Iterable[str]) -> bool:
    """The rule judge: the gold answer or an alias stands at word boundaries in the short answer.

    A gold "yes" or "no" must be the short answer's first word; a gold that normalises to nothing
    must be equal to it as written, case apart. A blank short answer is wrong.
    """
    words = normalise(short).split()
    if not short.strip():
        return False
    return any(_rule_holds(short, words, gold) for gold in answers)


def _rule_holds(short: str, words: list[str], gold: str) -> bool:
    expected = normalise(gold)
    if not expected:
        return short.strip().casefold() == gold.strip().casefold()
    if expected in ("yes", "no"):
        return words[:1] == [expected]
    return bool(contain_word(short, gold))
