"""How a simulated reader words its searches: as the benchmark's sub-question has it, or not.

The instrument's own runs are verbatim. Other wordings test the rule that says what a run asked for
(analysis/probes.was_asked), which agrees with verbatim queries by construction.
"""

from __future__ import annotations

from dataclasses import dataclass

from multihop.controller.text import content_words
from multihop.instrument.plan import drawn


@dataclass(frozen=True)
class Wording:
    """``composed``: share of searches as a register composes them, the question behind (paper 1, eq. 5); ``reworded``:
    share in other order with only ``kept`` of the content words. Together at most 1; the rest is verbatim."""

    composed: float = 0.0
    reworded: float = 0.0
    kept: float = 0.75

    def of(self, text: str, question: str, seed: int) -> str:
        """The query for sub-question ``text``; drawn by both texts, so that it is the same whenever it is asked."""
        u = drawn(seed, text, question, "wording")
        if u < self.composed:
            return f"{text} For: {question}"
        if u < self.composed + self.reworded:
            words = content_words(text)
            return " ".join(words[: max(1, round(self.kept * len(words)))][::-1])
        return text


VERBATIM = Wording()
