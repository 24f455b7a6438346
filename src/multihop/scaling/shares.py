"""Ceilings of USD, calls and tokens over workers on other machines: a chunk is let go with a share of what is left.

The driver's ledger knows what was spent; what chunks in flight may spend is held back. So no ceiling is passed by what
workers do; near it, one may stop at its share while others still hold theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from multihop.llm.ledger import Cost
from multihop.scaling.warming import Chunk
from multihop.session import Session

Key = tuple[str, str | None]
"""A ceiling, and the run that it counts (None: all)."""


class Shares:
    """What is held for chunks in flight."""

    def __init__(self, session: Session):
        self.session = session
        self._held: Counter[Key] = Counter()
        self._of: dict[Chunk, dict[Key, float]] = {}

    def hold(self, chunk: Chunk, among: int) -> dict[str, float]:
        """The ceilings of this chunk: what is left of each, divided by ``among`` chunks about to be let go."""
        given: dict[str, float] = {}
        held = self._of[chunk] = {}
        for name, (unit, of_run, most) in self.session.meter.limits.items():
            runs = (f"run {chunk.run}", "score") if of_run else (None,)
            keys = [(name, run and f"{self.session.params.profile}: {run}") for run in runs]
            left = min(most - getattr(self._spent(run), unit) - self._held[name, run] for name, run in keys)
            given[name] = max(0.0, left / among)
            held.update(dict.fromkeys(keys, given[name]))
        self._held.update(held)
        return given

    def free(self, chunk: Chunk, spent: Sequence[tuple[str, str, Cost]] = ()) -> None:
        """A chunk is back: what it spent is noted, the rest of its share is free again."""
        self._held.subtract(self._of.pop(chunk, {}))
        for run, model, cost in spent:
            self.session.meter.ledger.note(run, model, cost)

    def _spent(self, run: str | None) -> Cost:
        return self.session.meter.ledger.spent(run)
