"""A test taken apart into leaves, one for each dataset, role and group of its scope: each is one number, or the
difference of two over unlike questions, and the range it should lie in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

from multihop.report.predicates import Best, Difference, Dominates, Flat, Joined, Largest, Range, Trend


@dataclass(frozen=True, slots=True)
class Operand:
    """A quantity on one dataset, role and group."""

    of: Any
    dataset: str
    role: str
    group: str


@dataclass(frozen=True, slots=True)
class Leaf:
    """``operand``, less ``minus`` (other questions) where there is one, should lie within ``range``."""

    operand: Operand
    range: Range
    minus: Operand | None = None


@dataclass(frozen=True, slots=True)
class Branch:
    how: Literal["all", "any"]
    parts: tuple[Leaf | Branch, ...]


@dataclass(frozen=True, slots=True)
class Scope:
    datasets: Sequence[str]
    roles: Sequence[str]
    groups: Sequence[str]

    def operands(self, of: Any) -> Iterator[Operand]:
        """One for each dataset, role and group of the quantity's own scope, else of this one."""
        for dataset in of.datasets or self.datasets:
            for role in of.settings or self.roles:
                for group in of.groups or self.groups:
                    yield Operand(of, dataset, role, group)


def expand(test: Any, scope: Scope) -> Leaf | Branch:
    """The leaves of a test over its scope; several are joined by all unless the test says any."""
    if isinstance(test, Joined):
        parts = tuple(expand(t, scope) for t in test.tests)
        return Branch("any" if test.kind == "any_of" else "all", parts)
    return Branch("all", tuple(_leaves(test, scope)))


def _leaves(test: Any, scope: Scope) -> Iterator[Leaf]:
    match test:
        case Trend():
            wanted = Range(above=0) if test.direction == "rising" else Range(below=0)
            bare = test.of.model_copy(update={"groups": test.groups[:1]})
            for o in scope.operands(bare):
                for before, after in zip(test.groups, test.groups[1:], strict=False):
                    yield Leaf(_moved(o, "groups", after), wanted, _moved(o, "groups", before))
        case Largest():
            wanted = Range(above=0) if test.kind == "largest" else Range(below=0)
            bare = test.of.model_copy(update={test.over: [test.at]})
            for o in scope.operands(bare):
                for other in test.among:
                    yield Leaf(o, wanted, _moved(o, test.over, other))
        case Flat():
            wanted = Range(at_least=-test.within, at_most=test.within)
            for o in scope.operands(test.of.model_copy(update={"groups": test.groups[:1]})):
                for before, after in combinations(test.groups, 2):
                    yield Leaf(_moved(o, "groups", after), wanted, _moved(o, "groups", before))
        case Best():
            for other in test.among:
                of = Difference(kind="difference", first=test.system, second=other, metric=test.metric)
                yield from (Leaf(o, Range(above=0)) for o in scope.operands(of))
        case Dominates():
            wanted = {test.quality: Range(above=0)} | dict.fromkeys(test.costs, Range(below=0))
            for metric, accepted in wanted.items():
                of = Difference(kind="difference", first=test.first, second=test.second, metric=metric)
                yield from (Leaf(o, accepted) for o in scope.operands(of))
        case _:
            yield from (Leaf(o, test) for o in scope.operands(test))


def _moved(o: Operand, over: str, to: str) -> Operand:
    return Operand(o.of, *((to, o.role, o.group) if over == "datasets" else (o.dataset, o.role, to)))


def leaves(node: Leaf | Branch) -> list[Leaf]:
    return [node] if isinstance(node, Leaf) else [leaf for part in node.parts for leaf in leaves(part)]
