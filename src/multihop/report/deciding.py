"""Whether an estimate decides a test.

An interval decides where it lies wholly inside or outside the accepted range, and where enough questions speak: with
fewer than 1 + log2(1/alpha) of them (6 at 95 %) even unanimous ones have a two-sided p above alpha. Where the boundary
is 0 a question speaks if the two systems differ on it; of a share or a saving only those speak that enter its sums (the
failed ones). An interval without width, of a value without bounds, decides nothing. What can't be negative is above 0
once it happened at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from scipy.stats import norm

from multihop.report.contrasts import EQUAL
from multihop.report.predicates import Range

POWER = 0.8
YES, NO, OPEN, NOT_RUN = "yes", "no", "inconclusive", "not run"


def joined(how: str, answers: list[str]) -> str:
    """Of all: one "no" is enough, then one that did not run, then an open one; of any: the same with "yes"."""
    enough, other = (NO, YES) if how == "all" else (YES, NO)
    return next((a for a in (enough, NOT_RUN, OPEN) if a in answers), other)


@dataclass(frozen=True, slots=True)
class Estimate:
    """``missing`` says why nothing ran; a value of None with a remark is one that is undefined here."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    speaking: int = 0
    """Questions whose value is not 0 (of a pair: on which the two differ)."""
    span: tuple[float, float] | None = None
    """The values that one question can have, where they are bounded."""
    exact: bool = False
    """A count over the whole set, no sample: it has no interval and needs none."""
    missing: str | None = None
    remark: str = ""
    entering: int | None = None
    """Of a ratio: the questions that add to its sums (of a share of failures: that failed); None: all n."""

    @property
    def degenerate(self) -> bool:
        return self.value is not None and self.low == self.high

    @property
    def blind(self) -> bool:
        """No spread was seen and no bound is known: the interval says nothing."""
        return self.degenerate and self.span is None and not self.exact

    @property
    def counted(self) -> int:
        return self.n if self.entering is None else self.entering


def less(first: Estimate, second: Estimate, alpha: float) -> Estimate:
    """First minus second of unlike questions: the interval is put together from the two (Newcombe's MOVER)."""
    if first.missing or second.missing:
        return Estimate(missing="; ".join(dict.fromkeys(filter(None, (first.missing, second.missing)))))
    if first.value is None or second.value is None:
        return Estimate(n=min(first.n, second.n), remark=first.remark or second.remark)
    a, b = widened(first, alpha), widened(second, alpha)
    value = a.value - b.value
    low = value - math.hypot(a.value - a.low, b.high - b.value)
    high = value + math.hypot(a.high - a.value, b.value - b.low)
    fewest = 0 if first.blind or second.blind else min(a.counted, b.counted)
    return Estimate(value, low, high, a.n + b.n, fewest, remark=first.remark or second.remark, entering=fewest)


def widened(e: Estimate, alpha: float) -> Estimate:
    """Where all questions have one value the bootstrap has no width: it is the exact bound on the share of others."""
    if not e.degenerate or e.span is None or not e.counted:
        return e
    others = 1 - (alpha / 2) ** (1 / e.counted)
    low, high = e.span
    return replace(e, low=e.value - others * (e.value - low), high=e.value + others * (high - e.value))


def quorum(alpha: float) -> int:
    """How many unanimous questions reach a two-sided p of ``alpha``."""
    return math.ceil(1 + math.log2(1 / alpha) - 1e-9)


def decides(e: Estimate, accepted: Range, alpha: float) -> bool | None:
    """True: inside; False: outside; None: the interval spans the boundary, is blind, or too few questions speak."""
    if e.exact and e.value is not None:
        return accepted.holds(e.value, e.value)
    once = accepted.above == 0 and math.isinf(accepted.upper) and e.span is not None and e.span[0] == 0
    if once and e.value:
        return True
    if e.value is None or e.blind or _voices(e, accepted) < quorum(alpha):
        return None
    e = widened(e, alpha)
    return True if accepted.holds(e.low, e.high) else False if accepted.excludes(e.low, e.high) else None


def _voices(e: Estimate, accepted: Range) -> int:
    return min(e.speaking, e.counted) if 0 in accepted.edges else e.counted


def needed(e: Estimate, accepted: Range, alpha: float) -> int | None:
    """How many questions would decide with a chance of ``POWER`` if value and spread stayed as they are; None where no
    number would, or too little is seen to tell."""
    voices = _voices(e, accepted)
    if e.value is None or e.blind or not voices:
        return None
    wanted = [e.n + 1, math.ceil(e.n * quorum(alpha) / voices)]
    inside = accepted.holds(e.value, e.value)
    edges = accepted.edges if inside else [min(accepted.edges, key=lambda edge: abs(edge - e.value))]
    for edge in edges:
        distance = abs(e.value - edge)
        if distance <= EQUAL:
            return None
        if e.degenerate and e.span:
            room = abs((e.span[0] if edge < e.value else e.span[1]) - e.value)
            alike = math.log(alpha / 2) / math.log1p(-distance / room) if distance < room else 0
            wanted.append(math.ceil(alike * e.n / e.counted))
        else:
            half = e.value - e.low if edge < e.value else e.high - e.value
            reach = 1 + norm.ppf(POWER) / norm.ppf(1 - alpha / 2)
            wanted.append(math.ceil(e.n * (half * reach / distance) ** 2))
    return max(wanted)
