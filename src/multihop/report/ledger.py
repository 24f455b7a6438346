"""The claims of the two papers as tests over results: expected/claims.yaml, checked when read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from multihop import messages
from multihop.blocks import Dataset, Strict
from multihop.errors import ConfigError
from multihop.report import expected
from multihop.report.estimates import METRICS
from multihop.report.leaves import Branch, Leaf, Scope, expand, leaves
from multihop.report.predicates import Best, Dominates, Flat, Joined, Largest, Quantity, Reachable, Test, Trend

FILE = "expected/claims.yaml"


class Claim(Strict):
    """One claim of a paper's, in our words; or a question of ours beside them."""

    id: str
    paper: Literal["executionrag", "dynakrag"]
    place: str
    """Section, table or figure of the paper."""
    says: str
    contradicted_by: str
    datasets: Annotated[list[Dataset], Field(min_length=1)]
    settings: Annotated[list[str], Field(min_length=1)]
    """Roles of the paper's settings."""
    groups: list[str] = Field(default=["all"])
    depends_on: Literal["answers", "data"] = "answers"
    """What must be the paper's own for its verdict: all of it, or the data alone."""
    printed: list[str] = Field(default=[])
    """Ids of the figures in expected/<paper>.yaml that state it."""
    remark: str = ""
    ours: bool = False
    """Not stated by the paper: asked by us, of what its results imply or leave open; in none of the paper's counts."""
    test: Test | None = None
    not_decidable: str = ""
    """Why the paper's own text leaves it open, in place of a test."""

    @model_validator(mode="after")
    def _one(self) -> Claim:
        if bool(self.not_decidable) == (self.test is not None):
            raise ValueError("either a test, or not_decidable and why")
        return self

    @cached_property
    def tree(self) -> Leaf | Branch:
        """The leaves of the test over the claim's scope."""
        return expand(self.test, Scope(self.datasets, self.settings, self.groups))

    @property
    def runs(self) -> list[str]:
        """The systems that it needs, in the order of the test."""
        found = leaves(self.tree) if self.test else []
        return list(dict.fromkeys(system for leaf in found for system, _ in leaf.operand.of.pairs))


class Control(Strict):
    """A run of ours that the paper does not have."""

    label: str


class Ledger(Strict):
    controls: dict[str, Control]
    claims: Annotated[list[Claim], Field(min_length=1)]

    def label(self, paper: expected.Expected, system: str) -> str:
        known = paper.systems.get(system) or self.controls.get(system)
        return known.label if known else system


def load(root: Path, papers: dict[str, expected.Expected]) -> Ledger:
    """Read and check ``root``/expected/claims.yaml against the papers' own files. Raises ConfigError that names the
    claim: an unknown key, system, metric, role, group or figure, a test without a bound, two claims of one id."""
    path = Path(root) / FILE
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; restore it from git")
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as e:
        raise ConfigError(f"{path}: not YAML: {e}") from e
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: expected a mapping, found {type(raw).__name__}")
    try:
        ledger = Ledger.model_validate(raw)
    except ValidationError as e:
        raise _named(raw, messages.explain(e, Ledger, str(path))) from e
    counts = Counter(c.id for c in ledger.claims)
    problems = [f"{name}: two claims of one id" for name, count in counts.items() if count > 1]
    for claim in ledger.claims:
        problems += [f"{claim.id}: {p}" for p in _problems(claim, papers[claim.paper], ledger)]
    if problems:
        raise ConfigError(f"{path}: " + "\n  ".join(dict.fromkeys(problems)))
    return ledger


def _named(raw: dict[str, Any], error: ConfigError) -> ConfigError:
    """The error with the claims' ids in place of their positions."""
    text = str(error)
    claims = raw.get("claims")
    for i, claim in reversed(list(enumerate(claims if isinstance(claims, list) else ()))):
        if isinstance(claim, dict) and "id" in claim:
            text = text.replace(f"claims.{i}.", f"{claim['id']}: ").replace(f"claims.{i}:", f"{claim['id']}:")
    return ConfigError(text)


def _problems(claim: Claim, paper: expected.Expected, ledger: Ledger) -> Iterator[str]:
    """Names that the claim uses and nothing has."""
    printed = {p.id for p in paper.printed}
    yield from (messages.unknown("figure", name, sorted(printed)) for name in claim.printed if name not in printed)
    known = {"role": set(paper.own.roles), "group": _groups(paper)}
    for what, names in (("role", claim.settings), ("group", claim.groups)):
        yield from (messages.unknown(what, name, sorted(known[what])) for name in names if name not in known[what])
    if claim.test is None:
        return
    yield from _unbounded(claim.test)
    systems = {name for name, s in paper.systems.items() if not s.minus and not s.best_of} | set(ledger.controls)
    for leaf in leaves(claim.tree):
        for o in filter(None, (leaf.operand, leaf.minus)):
            for system, metric in o.of.pairs:
                if system not in systems:
                    yield messages.unknown("system", system, sorted(systems))
                if metric not in METRICS and not isinstance(o.of, Reachable):
                    yield messages.unknown("metric", metric, sorted(METRICS))
            for what, name in (("role", o.role), ("group", o.group)):
                if name not in known[what]:
                    yield messages.unknown(what, name, sorted(known[what]))
            if o.dataset not in expected.DATASETS:
                yield messages.unknown("dataset", o.dataset, expected.DATASETS)


def _groups(paper: expected.Expected) -> set[str]:
    cells = [c.group for item in paper.items for c in paper.cells(item)]
    return {"all", *(g for g in cells if not g.startswith("case "))}


def _unbounded(test: Any) -> Iterator[str]:
    """A quantity as a test says what it should be; inside a trend or a comparison it does not."""
    match test:
        case Joined():
            for part in test.tests:
                yield from _unbounded(part)
        case Trend() | Largest() | Flat() if test.of.bounded:
            yield f"a {test.kind} compares values: its quantity takes no bound"
        case Trend() | Largest() | Flat() | Best() | Dominates():
            return
        case Quantity() if not test.bounded:
            yield f"a {test.kind} needs a bound: above, at_least, below or at_most"
