"""The simulated reader: what a model would write, from the request alone and from the question's gold chain.

It plays agent, register and final answer. What it has seen it reads off the messages it is sent, as a model does; the
pipeline's records are never looked at, so that its log is a truth of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from multihop.errors import MultihopError
from multihop.instrument.plan import EARLY, SWAPPED, Case, drawn
from multihop.instrument.wording import VERBATIM, Wording

Message = Mapping[str, Any]
_ID = re.compile(r"^\[([a-z]\d+)\]", re.MULTILINE)
"""A passage as tools and prompts show it."""
MORE = 10
"""Passages that it asks for when a hop's first two searches did not bring its passage."""
ABSTENTIONS = (
    "I could not determine this.",
    "I was unable to find it.",
    "There is not enough evidence.",
    "I do not know.",
)


@dataclass
class Log:
    """What really happened with one question: the truth that the analysis is compared with."""

    seen: set[str] = field(default_factory=set)
    """Ids of all passages that a message showed."""
    queries: list[tuple[str, str]] = field(default_factory=list)
    """(tool, query) of every search, in order; keywords joined by a comma."""
    searched: set[int] = field(default_factory=set)
    """Hops whose own sub-question was asked, however worded."""
    resolved: dict[int, str] = field(default_factory=dict)
    """Hop -> the passage that the register was told to rest on."""
    early: set[int] = field(default_factory=set)
    """Hops resolved on another passage than their own."""
    forced: bool = False
    kind: str = ""
    """right, guess, wrong (evidence missing), misread or abstained: what the last answer was."""
    answer: str = ""


@dataclass
class SimulatedReader:
    """Replies to the requests of one run. ``cases``: by question text."""

    cases: Mapping[str, Case]
    seed: int
    top_k: int = 1
    """Passages that it asks a search for."""
    logs: dict[str, Log] = field(default_factory=dict)
    """By question id."""
    wording: Wording = VERBATIM

    def reply(self, request: Mapping[str, Any]) -> tuple[str | None, list[tuple[str, dict[str, Any]]]]:
        """(content, tool calls) for an OpenAI-shaped request."""
        messages = request["messages"]
        case = self._case(messages)
        log = self.logs.setdefault(case.question.id, Log())
        self._look(messages, log)
        shape = (request.get("response_format") or {}).get("json_schema", {}).get("name")
        if shape == "initialisation":
            return self._requirements(case), []
        if shape == "update":
            return self._update(case, log, messages[-1]["content"]), []
        calls = [] if "tools" not in request else self._searches(case, log, messages)
        if calls:
            return None, calls
        if "tools" not in request and len(messages) > 2:  # the whole conversation, tools off: the budget is used up
            log.forced = True
        return self._answer(case, log), []

    def _case(self, messages: Sequence[Message]) -> Case:
        """By the first user message's question line."""
        user = next(m["content"] for m in messages if m["role"] == "user")
        lines = [line.removeprefix("Question: ").strip() for line in user.splitlines() if line.startswith("Question: ")]
        for text in lines or [user.strip()]:
            if text in self.cases:
                return self.cases[text]
        raise MultihopError(f"simulated reader: no question of its world in the request: {user[:80]!r}")

    def _look(self, messages: Sequence[Message], log: Log) -> None:
        for message in messages:
            if message["role"] in ("tool", "user"):
                log.seen.update(_ID.findall(message["content"]))

    # -- agent

    def _searches(self, case: Case, log: Log, messages: Sequence[Message]) -> list[tuple[str, dict[str, Any]]]:
        """The next tool calls, or none: then it answers. Step by step through the hops that it knows of."""
        made = [
            (c["function"]["name"], json.loads(c["function"]["arguments"]))
            for m in messages
            for c in m.get("tool_calls") or ()
        ]
        calls = []
        for hop in case.planned:
            call = self._for_hop(case, log, hop, made)
            if call:
                calls.append(call)
                if call[0] != "read_chunk":
                    break
        if not calls and (case.stalls or not made):
            calls = [self._search(self._worded(case, case.swaps[len(made) % len(case.swaps)]))]
        self._note(log, case, calls)
        return calls

    def _for_hop(self, case: Case, log: Log, hop: int, made: list[tuple[str, dict[str, Any]]]) -> Any:
        """The next call that this hop needs, None where it is done with it."""
        gold = case.passages[hop]
        if case.fates[hop] == EARLY:
            return None
        if case.fates[hop] == SWAPPED:
            other = self._search(self._worded(case, case.swaps[-1 - hop]))
            return None if other in made else other
        if gold in log.seen:
            read = ("read_chunk", {"chunk_ids": [gold]})
            return None if read in made else read
        question = case.gold.decomposition[hop].question
        names, worded = keywords(question), self._worded(case, question)
        # The second round in other words: a register method refuses the same query, whatever its top_k.
        tries = (
            self._search(worded),
            ("keyword_search", {"keywords": names, "top_k": self.top_k}),
            self._search(f"{worded} Any passage about {' or '.join(names)}", MORE),
            ("keyword_search", {"keywords": [*names, *question.rstrip("?").split()[-1:]], "top_k": MORE}),
        )
        return next((call for call in tries if call not in made), None)

    def _worded(self, case: Case, text: str) -> str:
        return self.wording.of(text, case.question.text, self.seed)

    def _search(self, query: str, k: int | None = None) -> tuple[str, dict[str, Any]]:
        return "semantic_search", {"query": query, "top_k": k or self.top_k}

    def _note(self, log: Log, case: Case, calls: list[tuple[str, dict[str, Any]]]) -> None:
        for name, arguments in calls:
            if name != "read_chunk":
                query = arguments.get("query") or ", ".join(arguments["keywords"])
                log.queries.append((name, query))
                hops = enumerate(case.gold.decomposition)
                log.searched.update(h for h, hop in hops if self._worded(case, hop.question) == query)

    # -- register

    def _requirements(self, case: Case) -> str:
        """The sub-questions that it knows of, in order; ids say which hop they are."""
        items = [
            {"id": f"R{hop + 1}", "question": case.gold.decomposition[hop].question, "depends_on": []}
            for hop in case.planned
        ]
        return json.dumps({"requirements": items, "active_id": items[0]["id"]})

    def _update(self, case: Case, log: Log, prompt: str) -> str:
        """Items resolved by what the new evidence shows: rightly by their gold passage, too early by any other."""
        shown = _ID.findall(prompt)
        updates = []
        for hop in case.planned:
            gold = case.passages[hop]
            rest = gold if gold in shown else self._false_support(case, shown) if case.fates[hop] == EARLY else None
            if rest is None or hop in log.resolved:
                continue
            log.resolved[hop] = rest
            if rest != gold:
                log.early.add(hop)
            note = case.gold.decomposition[hop].answer if rest == gold else "taken as known"
            updates.append(
                {"id": f"R{hop + 1}", "note": note, "supporting_chunk_ids": [rest], "status": "resolved", "reason": ""}
            )
        return json.dumps({"updates": updates, "new_requirements": []}, ensure_ascii=False)

    @staticmethod
    def _false_support(case: Case, shown: Sequence[str]) -> str | None:
        """A passage that is no gold passage of the question, if one is shown; else another hop's."""
        beside = [p for p in shown if p not in case.gold.supporting]
        return next(iter([*beside, *shown]), None)

    # -- answers

    def _answer(self, case: Case, log: Log) -> str:
        log.kind = case.kind(log.seen.issuperset(case.gold.supporting))
        if log.kind == "abstained":
            log.answer = ABSTENTIONS[int(drawn(self.seed, case.question.id, "", "phrase") * len(ABSTENTIONS))]
        elif log.kind in ("misread", "wrong"):
            log.answer = case.wrong
        else:
            rests = ", ".join(f"[{p}]" for p in case.gold.supporting if p in log.seen)
            log.answer = f"{case.gold.answers[0]}\nThis rests on {rests or 'nothing'}."
        return log.answer


_NAME = re.compile(r"\b[A-Z][\w'-]*(?:\s+(?:of\s+(?:the\s+)?|the\s+|and\s+)?[A-Z][\w'-]*)*")
_ASKING = {"Who", "What", "Which", "Where", "When", "In", "How", "Was", "Is", "On", "At", "For", "From", "By", "To"}


def keywords(question: str) -> list[str]:
    """The names in a sub-question, as an agent would look for them; the whole question where there is none."""
    names = []
    for found in _NAME.findall(question):
        words = found.split()
        while words and words[0] in _ASKING:
            words = words[1:]
        if words:
            names.append(" ".join(words))
    return names or [question]
