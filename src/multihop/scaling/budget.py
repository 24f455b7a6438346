"""Ceilings of USD, calls and tokens over workers on other machines: a chunk is let go with a portion of what is left.

A portion is reserved in the driver's ledger, as a call is on one machine: other processes of the MULTIHOP_HOME see it,
and where the driver is killed it counts as spent. A worker that stops at its portion may go on with a larger one, so
portions begin small: little is held back for chunks that need little, or that are lost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from multihop.llm.ledger import Cost, Passed
from multihop.scaling.warming import Chunk
from multihop.session import Session

PARTS = 4
"""All workers' first portions together are at most this part of what is left: a fourth."""
UNKNOWN = "(portion of a chunk)"
"""In the ledger the model of a portion: of a lost one nobody knows which models spent how much of it."""
Ceilings = dict[str, float]


@dataclass
class Portion:
    wanted: Ceilings
    ceilings: Ceilings
    """What it got: less than ``wanted`` where another process was faster."""
    reserved: list[tuple[int, str, Cost]] = field(default_factory=list)
    """(number, run, cost) as in the ledger."""


class Budget:
    """What is held for chunks that were let go and have not come back."""

    def __init__(self, session: Session):
        self.params, self.limits, self.ledger = session.params, session.meter.limits, session.meter.ledger
        self._held: dict[Chunk, Portion] = {}
        self._stopped: dict[Chunk, Ceilings] = {}
        """What chunks wanted that then stopped at it."""
        self._stuck: set[Chunk] = set()
        """Those that could not make a single call with it: as much again would not do."""

    def hold(self, chunk: Chunk, workers: int) -> Ceilings | None:
        """The ceilings under which the chunk may be answered by one of ``workers``. A chunk that failed keeps those
        that it had. One that stopped gets higher ones; None where others hold what is left."""
        if chunk not in self._held:
            wanted = self._ceilings(chunk, workers)
            before = self._stopped.get(chunk, {})
            if chunk in self._stuck and all(wanted[name] <= before[name] for name in wanted):
                return None
            self._held[chunk] = self._reserved(chunk, wanted)
        return self._held[chunk].ceilings

    def settle(self, chunk: Chunk, spent: Sequence[tuple[str, str, Cost]]) -> None:
        """A chunk is back: what it spent stands in place of its portion."""
        for run, model, cost in spent:
            self.ledger.note(run, model, cost)
        self.ledger.flush()
        for number, run, _ in self._held.pop(chunk).reserved:
            self.ledger.settle(number, run, UNKNOWN, Cost())

    def stopped(self, chunk: Chunk, spent: Sequence[tuple[str, str, Cost]]) -> None:
        """A chunk is back, unfinished: it stopped at its portion, and will need a larger one."""
        self._stopped[chunk] = self._held[chunk].wanted
        (self._stuck.discard if spent else self._stuck.add)(chunk)
        self.settle(chunk, spent)

    def lost(self, chunk: Chunk) -> None:
        """What a chunk spent will never be known, and may be billed: all that it holds is spent."""
        portion = self._held.pop(chunk, None)
        for number, run, cost in portion.reserved if portion else ():
            self.ledger.settle(number, run, UNKNOWN, cost)

    # -- sums

    def _runs(self, chunk: Chunk) -> tuple[str, str]:
        """What a chunk spends counts as one of these (``Session.begin``)."""
        return f"{self.params.profile}: run {chunk.run}", f"{self.params.profile}: score"

    def _ceilings(self, chunk: Chunk, workers: int) -> Ceilings:
        portions = {name: self._portion(name, chunk, workers) for name in self.limits}
        of_run = {unit: portions[name] for name, (unit, each, _) in self.limits.items() if each}
        for name, (unit, each, _) in self.limits.items():
            if not each and unit in of_run:  # the run and its scores are two
                portions[name] = min(portions[name], 2 * of_run[unit])
        return portions

    def _portion(self, name: str, chunk: Chunk, workers: int) -> float:
        """At first an equal part of what is left; after a stop at least twice as much as before."""
        unit, of_run, most = self.limits[name]
        runs = self._runs(chunk) if of_run else (None,)
        taken = max(getattr(self.ledger.spent(r), unit) + getattr(self.ledger.reserved(r), unit) for r in runs)
        left = max(0, most - taken)
        wanted = max(left / (PARTS * workers), 2 * self._stopped.get(chunk, {}).get(name, 0))
        return self._whole(name, min(left, wanted if unit == "usd" else math.ceil(wanted)))

    def _whole(self, name: str, value: float) -> float:
        """There are no parts of calls and tokens."""
        return value if self.limits[name][0] == "usd" else math.floor(value)

    def _reserved(self, chunk: Chunk, wanted: Ceilings) -> Portion:
        for factor in (1, 0.999, 0.5, 0.1):  # what is left may have become less, or sums may differ in their last digit
            portion = Portion(wanted, {name: self._whole(name, value * factor) for name, value in wanted.items()})
            try:
                for run, cost in self._costs(chunk, portion.ceilings):
                    portion.reserved.append((self.ledger.reserve(run, UNKNOWN, cost, self.limits), run, cost))
                return portion
            except Passed:
                for number, run, _ in portion.reserved:
                    self.ledger.settle(number, run, UNKNOWN, Cost())
        return Portion(wanted, dict.fromkeys(wanted, 0))

    def _costs(self, chunk: Chunk, ceilings: Ceilings) -> list[tuple[str, Cost]]:
        """What ``ceilings`` allow, as costs of the run and of its scores.

        A ceiling of one run each of the two may reach, so each reserves it; one of all runs is reserved once.
        """
        of_run = {unit: ceilings[name] for name, (unit, each, _) in self.limits.items() if each}
        of_all = {unit: ceilings[name] for name, (unit, each, _) in self.limits.items() if not each}
        run, scores = self._runs(chunk)
        costs = [(run, _cost(of_all | of_run)), (scores, _cost(of_run))]
        return [(name, cost) for name, cost in costs if cost != Cost()]


def _cost(units: dict[str, float]) -> Cost:
    return Cost(int(units.get("calls", 0)), int(units.get("tokens", 0)), 0, units.get("usd", 0.0))
