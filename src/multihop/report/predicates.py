"""What a claim says, as a test over results: the typed language of expected/claims.yaml.

A quantity is a number of results: a ``level`` (one system), a ``difference`` (first minus second, paired question by
question), a ``cut`` (by how many percent the first has less), a ``combination`` (a weighted sum of levels, paired).
A test bounds a quantity, follows it over groups (``trend``, ``flat``), asks where it is ``largest``, who is ``best``,
who ``dominates`` whom, or joins tests (``all_of``, ``any_of``). leaves.py makes it single comparisons.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from multihop.blocks import Dataset, Strict


class Range(Strict):
    """The values that a test accepts: above and below leave the boundary out, at_least and at_most hold it."""

    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Range:
        if None not in (self.above, self.at_least) or None not in (self.below, self.at_most):
            raise ValueError("above and at_least, or below and at_most, exclude each other")
        if self.lower > self.upper or (self.lower == self.upper and None in (self.at_least, self.at_most)):
            raise ValueError(f"no value lies between {self.lower:g} and {self.upper:g}")
        return self

    @property
    def lower(self) -> float:
        return next((v for v in (self.above, self.at_least) if v is not None), -math.inf)

    @property
    def upper(self) -> float:
        return next((v for v in (self.below, self.at_most) if v is not None), math.inf)

    @property
    def bounded(self) -> bool:
        return math.isfinite(self.lower) or math.isfinite(self.upper)

    @property
    def edges(self) -> list[float]:
        return [edge for edge in (self.lower, self.upper) if math.isfinite(edge)]

    def holds(self, low: float, high: float) -> bool:
        """Whether all of low..high is accepted."""
        return (low > self.lower or (self.above is None and low == self.lower)) and (
            high < self.upper or (self.below is None and high == self.upper)
        )

    def excludes(self, low: float, high: float) -> bool:
        """Whether low..high lies beyond the boundary; one that touches it does not."""
        return high < self.lower or low > self.upper

    def __str__(self) -> str:
        signs = ((">", self.above), ("≥", self.at_least), ("<", self.below), ("≤", self.at_most))
        return " and ".join(f"{sign} {value:g}" for sign, value in signs if value is not None)


class Quantity(Range):
    """A number of results. Its own datasets, settings (roles) and groups replace those of the claim."""

    datasets: list[Dataset] | None = None
    settings: list[str] | None = None
    groups: list[str] | None = None

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """(system, metric) of everything it reads."""
        raise NotImplementedError


class Level(Quantity):
    kind: Literal["level"]
    system: str
    metric: str

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return [(self.system, self.metric)]


class Difference(Quantity):
    kind: Literal["difference"]
    first: str
    second: str
    metric: str

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return [(self.first, self.metric), (self.second, self.metric)]


class Cut(Difference):
    """100 x (1 - first / second), of the sums over the same questions."""

    kind: Literal["cut"]


class Term(Strict):
    system: str
    metric: str
    weight: float


class Combination(Quantity):
    """The mean over questions of a weighted sum, such as a difference of differences."""

    kind: Literal["combination"]
    terms: Annotated[list[Term], Field(min_length=2)]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return [(t.system, t.metric) for t in self.terms]


class Reachable(Quantity):
    """A share of the gold passages that a run missed, from results/reachability.json."""

    kind: Literal["reachable"]
    system: str
    share: Literal["askable", "never_asked", "asked_not_returned", "no_certificate"]
    """``askable``: the part of ``never_asked`` that a query certifies which could be asked before the passage is known
    (the question, a run's own, a true sub-question); the others hold what only the passage itself gives away."""

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return [(self.system, self.share)]


Measure = Annotated[Level | Difference | Cut | Combination | Reachable, Field(discriminator="kind")]


class Trend(Strict):
    """Each group's value against the one before it; the questions of two groups are unlike, so nothing is paired."""

    kind: Literal["trend"]
    of: Measure
    groups: Annotated[list[str], Field(min_length=2)]
    direction: Literal["rising", "falling"]


class Largest(Strict):
    """The value at one dataset or group against each of the others; ``smallest``: the other way round."""

    kind: Literal["largest", "smallest"]
    of: Measure
    over: Literal["datasets", "groups"]
    at: str
    among: Annotated[list[str], Field(min_length=1)]


class Flat(Strict):
    """The values of any two groups, ``within`` of each other."""

    kind: Literal["flat"]
    of: Measure
    groups: Annotated[list[str], Field(min_length=2)]
    within: Annotated[float, Field(gt=0)]


class Best(Strict):
    """The system against each of the others, paired."""

    kind: Literal["best"]
    system: str
    among: Annotated[list[str], Field(min_length=1)]
    metric: str


class Dominates(Strict):
    """More of the quality, and less of every cost."""

    kind: Literal["dominates"]
    first: str
    second: str
    quality: str
    costs: Annotated[list[str], Field(min_length=1)]


class Joined(Strict):
    kind: Literal["all_of", "any_of"]
    tests: Annotated[list[Test], Field(min_length=1)]


Test = Annotated[
    Level | Difference | Cut | Combination | Reachable | Trend | Largest | Flat | Best | Dominates | Joined,
    Field(discriminator="kind"),
]
Joined.model_rebuild()
