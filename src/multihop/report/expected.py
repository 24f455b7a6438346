"""What the paper prints, and which cells its tables and figures have: expected/<paper>.yaml, checked when read.

A cell is (dataset, system, role of the setting, metric, group) of an item ("Table 1", "Figure 2"). A printed value
stands on such coordinates and is shown in every item that has them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple

import yaml
from pydantic import Field, ValidationError

from multihop.config import DATASETS, Strict, explain
from multihop.errors import ConfigError

Role = Literal["main", "second"]
Exactness = Literal["exact", "rounded", "approximate"]
_PREFERENCE = ("exact", "rounded", "approximate")
_WITH_TENTHS = ("%", "% of own failures", "points", "pp")
_ROLES = {"main": ("main",), "second": ("second",), "either": ("main", "second"), "both": ("main", "second")}


class Cell(NamedTuple):
    """The coordinates of one number of one table or figure."""

    item: str
    dataset: str
    system: str
    role: str
    metric: str
    group: str
    """all, 2-hop, 3-hop, 4-hop, a question type, or case 1, 2, 3."""

    @property
    def key(self) -> tuple[str, ...]:
        """The coordinates without the item."""
        return tuple(self)[1:]


class Block(Strict):
    """A product of coordinates."""

    datasets: list[str]
    systems: list[str]
    settings: list[Role]
    metrics: list[str]
    groups: list[str] = Field(default=["all"])

    def cells(self, item: str) -> Iterator[Cell]:
        for key in product(self.datasets, self.systems, self.settings, self.groups, self.metrics):
            dataset, system, role, group, metric = key
            yield Cell(item, dataset, system, role, metric, group)


class Item(Strict):
    """A table or figure of the paper."""

    title: str
    shows: str
    notebook: str
    cells: list[Block]


class System(Strict):
    """A row of the paper's: one of our runs, or the difference of two systems."""

    label: str
    run: str | None = None
    minus: list[str] | None = None


class Printed(Strict):
    """One figure that the paper's text prints."""

    id: str
    item: str
    dataset: str
    system: str
    setting: Literal["main", "second", "either", "both"]
    metric: str
    group: str
    value: float | list[float]
    """In the metric's unit; two numbers are a range."""
    unit: str
    exactness: Exactness
    place: str
    remark: str = ""

    @property
    def number(self) -> float | None:
        return None if isinstance(self.value, list) else self.value

    @property
    def text(self) -> str:
        """As the paper prints it."""
        values = self.value if isinstance(self.value, list) else [self.value]
        digits = 4 if self.metric == "usd" else 1 if self.exactness == "exact" and self.unit in _WITH_TENTHS else 0
        shown = "–".join(f"{v:,.{digits}f}" for v in values)
        about = "≈ " if self.exactness == "approximate" else ""
        return about + shown + (" (embedder not named)" if self.setting == "either" else "")


class SetupFact(Strict):
    """How the paper ran, where the text says so."""

    id: str
    fact: str
    value: float
    unit: str
    place: str
    param: str | None = None


class Tolerance(Strict):
    points: float
    """Percentage points; for counts of 1,000 questions a tenth of a percent each."""
    relative: float
    """Share of the printed value, for tokens and money."""


class Expected(Strict):
    paper: str
    tolerance: Tolerance
    systems: dict[str, System]
    items: dict[str, Item]
    values: list[Printed]
    setup: list[SetupFact]

    def cells(self, item: str) -> list[Cell]:
        """All cells of an item, row by row."""
        return [cell for block in self.items[item].cells for cell in block.cells(item)]

    @property
    def numbered(self) -> list[str]:
        """The paper's tables and figures, in its order."""
        return [name for name in self.items if name.startswith(("Table ", "Figure "))]

    def lookup(self, dataset: str, system: str, role: str, metric: str, group: str = "all") -> Printed | None:
        """What the text prints on these coordinates, the most exact mention first; None when it prints nothing."""
        return self._best.get((dataset, system, role, metric, group))

    @cached_property
    def _best(self) -> dict[tuple[str, ...], Printed]:
        def rank(p: Printed) -> tuple[int, bool]:
            return _PREFERENCE.index(p.exactness), p.setting in ("either", "both")

        best: dict[tuple[str, ...], Printed] = {}
        for p in sorted(self.values, key=rank):
            for role in _ROLES[p.setting]:
                best.setdefault((p.dataset, p.system, role, p.metric, p.group), p)
        return best


def load(root: Path, paper: str = "executionrag") -> Expected:
    """Read and check ``root``/expected/<paper>.yaml. Raises ConfigError that names the entry."""
    path = Path(root) / "expected" / f"{paper}.yaml"
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; restore it from git")
    try:
        # The C parser is ten times as fast, where PyYAML has it.
        raw = yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as e:
        raise ConfigError(f"{path}: not YAML: {e}") from e
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: expected a mapping, found {type(raw).__name__}")
    try:
        expected = Expected.model_validate(raw)
    except ValidationError as e:
        raise explain(e, Expected, str(path)) from e
    _check(expected, path)
    return expected


def _check(expected: Expected, path: Path) -> None:
    """References between the parts; every value must stand on a declared cell of its item."""
    problems = [f"{name}: two values" for name, n in Counter(v.id for v in expected.values).items() if n > 1]
    for name, system in expected.systems.items():
        problems += [f"systems.{name}.minus: unknown {s!r}" for s in system.minus or () if s not in expected.systems]
    declared = {name: set(expected.cells(name)) for name in expected.items}
    for name, cells in declared.items():
        for cell in sorted(cells):
            if cell.system not in expected.systems:
                problems.append(f"items.{name}: unknown system {cell.system!r}")
            if cell.dataset not in (*DATASETS, "average"):
                problems.append(f"items.{name}: unknown dataset {cell.dataset!r}")
    for v in expected.values:
        if v.item not in expected.items:
            problems.append(f"values {v.id}: unknown item {v.item!r}")
        elif not any(
            Cell(v.item, v.dataset, v.system, role, v.metric, v.group) in declared[v.item] for role in _ROLES[v.setting]
        ):
            problems.append(f"values {v.id}: {v.item} declares no such cell")
    if problems:
        raise ConfigError(f"{path}: " + "\n  ".join(dict.fromkeys(problems)))
