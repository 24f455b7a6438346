"""The simulated judge and extraction: right by the answer's first line, and wrong at a set rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from multihop.blocks import Faults
from multihop.errors import MultihopError
from multihop.instrument.plan import drawn


@dataclass
class SimulatedJudge:
    """``verdicts``: (gold, answer) -> what it said; one request has one verdict, as with a model at temperature 0."""

    prompts: Mapping[str, str]
    """judge_system and extract_system, to know which of the two is asked."""
    faults: Faults
    seed: int
    verdicts: dict[tuple[str, str], bool] = field(default_factory=dict)

    def reply(self, request: Mapping[str, Any]) -> tuple[str, list[Any]]:
        system, user = (m["content"] for m in request["messages"][:2])
        if system == self.prompts["extract_system"]:
            return _between(user, "\nResponse: ", "\nAnswer:").splitlines()[0], []
        if system != self.prompts["judge_system"]:
            raise MultihopError(f"simulated judge: neither a judgement nor an extraction: {system[:60]!r}")
        gold, answer = _between(user, "Gold: ", "\nGenerated: "), _between(user, "\nGenerated: ", "\nVerdict:")
        right = answer.splitlines()[0].strip() == gold.strip()
        u = drawn(self.seed, gold, answer, "judge")
        said = right != (u < (self.faults.judge_error if right else self.faults.judge_accept))
        self.verdicts[gold, answer] = said
        return "correct" if said else "incorrect", []


def _between(text: str, start: str, end: str) -> str:
    return text.partition(start)[2].rpartition(end)[0]
