"""What a paper prints, and which cells its tables and figures have: expected/<paper>.yaml, checked when read.

A cell is (dataset, system, role of the setting, metric, group) of an item ("Table 1", "Figure 2"). A printed value
stands on such coordinates and is shown in every item that has them; "every" in a coordinate stands for all of them.
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

from multihop import messages
from multihop.blocks import DATASETS, Dataset, Strict
from multihop.errors import ConfigError

PAPERS = ("executionrag", "dynakrag")
"""Their files are expected/<name>.yaml."""
EVERY, EITHER = "every", "either"
_PREFERENCE = ("exact", "rounded", "approximate", "above", "below")
_SIGNS = {"approximate": "≈ ", "above": "> ", "below": "< "}
VERDICTS = {1: "dominates", 0: "neither", -1: "is dominated"}
"""The values of a pareto metric."""


class Cell(NamedTuple):
    """The coordinates of one number of one table or figure."""

    item: str
    dataset: str
    system: str
    role: str
    metric: str
    group: str
    """all, 2-hop, 3-hop, 4-hop, a question type, 2-support, ..., or case 1, 2, 3."""

    @property
    def key(self) -> tuple[str, ...]:
        """The coordinates without the item."""
        return tuple(self)[1:]


class Block(Strict):
    """A product of coordinates."""

    datasets: list[str]
    systems: list[str]
    settings: list[str]
    metrics: list[str]
    groups: list[str] = Field(default=["all"])

    def cells(self, item: str) -> Iterator[Cell]:
        for key in product(self.datasets, self.systems, self.settings, self.groups, self.metrics):
            dataset, system, role, group, metric = key
            yield Cell(item, dataset, system, role, metric, group)


class Item(Strict):
    """A table or figure of the paper, or what its text says beside them."""

    title: str
    shows: str
    notebook: str
    cells: list[Block]


class System(Strict):
    """A row of the paper's: one of our runs, the difference of two systems, or the best of several."""

    label: str
    run: str | None = None
    minus: list[str] | None = None
    """First minus second; either may be a difference itself."""
    best_of: list[str] | None = None
    """In each cell the one with the highest value of the metric."""


class Printed(Strict):
    """One figure that the paper's text prints."""

    id: str
    item: str
    dataset: str
    system: str
    setting: str
    """A role; every; or either: one of them, the text does not say which."""
    metric: str
    group: str
    value: float | list[float]
    """In the metric's unit; two numbers are a range."""
    unit: str
    exactness: Literal["exact", "rounded", "approximate", "above", "below"]
    """above, below: the text only says on which side of the value it lies."""
    place: str
    remark: str = ""

    @property
    def number(self) -> float | None:
        return None if isinstance(self.value, list) else self.value

    @property
    def rank(self) -> tuple[int, bool]:
        """The best mention of a cell comes first: the most exact, and one number before a range or a vague place."""
        vague = isinstance(self.value, list) or {EVERY, EITHER} & {self.dataset, self.setting, self.group}
        return _PREFERENCE.index(self.exactness), bool(vague)


class Grid(Strict):
    """A table that the text prints whole, row by row."""

    id: str
    item: str
    place: str
    columns: list[list[str]]
    """(dataset, metric) of each number of a row."""
    units: dict[str, str]
    """Metric -> unit."""
    rows: dict[str, dict[str, list[float]]]
    """Role -> system -> numbers."""

    def values(self) -> Iterator[Printed]:
        for role, systems in self.rows.items():
            for system, numbers in systems.items():
                for (dataset, metric), value in zip(self.columns, numbers, strict=True):
                    yield Printed(
                        id=f"{self.id}_{role}_{system}_{dataset}_{metric}",
                        item=self.item,
                        dataset=dataset,
                        system=system,
                        setting=role,
                        metric=metric,
                        group="all",
                        value=value,
                        unit=self.units[metric],
                        exactness="exact",
                        place=self.place,
                    )


class SetupFact(Strict):
    """How the paper ran, where the text says so."""

    id: str
    fact: str
    value: float
    unit: str
    place: str
    param: str | None = None
    """Where ours stands in params.yaml, ``*`` for any key."""
    ours: str = "see the settings"
    """What ours is, where no param says it."""


class Tolerance(Strict):
    points: float
    """Percentage points; for counts of 1,000 questions a tenth of a percent each."""
    relative: float
    """Share of the printed value, for tokens, calls and money."""


class OwnRole(Strict):
    """The reader and embedder of one of the paper's settings, as their makers name them."""

    reader: str
    embedder: str


class Limit(Strict):
    """A bound of the paper's that changes results; ours are at ``param``."""

    label: str
    param: str
    value: float


class OwnTraining(Strict):
    """How the paper trains what is learned."""

    run: str
    """The run of ours whose training stands beside it."""
    questions: int
    """Train questions per dataset."""
    trainings: int
    """Independent ones."""


class Own(Strict):
    """The paper's own setting: ours is called comparable where it is the same."""

    varies: Literal["embedder", "backbone"]
    """What the roles differ in."""
    roles: dict[str, OwnRole]
    judge: str | None
    """The model that judges answers; null: the paper has none."""
    questions: dict[Dataset, int]
    limits: list[Limit]
    training: OwnTraining | None = None

    def label(self, role: str) -> str:
        return self.roles[role].embedder if self.varies == "embedder" else self.roles[role].reader


class Expected(Strict):
    paper: str
    title: str
    shares: Literal["percent", "fraction"]
    """How the paper prints accuracies; their differences are percentage points either way."""
    digits: dict[str, int]
    """Unit -> decimals of an exact figure; 0 for the units left out."""
    own: Own
    tolerance: Tolerance
    systems: dict[str, System]
    items: dict[str, Item]
    grids: list[Grid] = Field(default=[])
    values: list[Printed]
    setup: list[SetupFact]

    @cached_property
    def printed(self) -> list[Printed]:
        """Everything that the text prints: the tables that it has whole, then the single figures."""
        return [value for grid in self.grids for value in grid.values()] + self.values

    def cells(self, item: str) -> list[Cell]:
        """All cells of an item, row by row."""
        return [cell for block in self.items[item].cells for cell in block.cells(item)]

    @property
    def numbered(self) -> list[str]:
        """The paper's tables and figures, in its order."""
        return [name for name in self.items if name.startswith(("Table ", "Figure "))]

    def standing(self, p: Printed) -> list[Cell]:
        """The cells that a printed value is about."""
        roles = list(self.own.roles) if p.setting in (EVERY, EITHER) else [p.setting]
        if EVERY in (p.dataset, p.group):
            places = [
                (c.dataset, c.group)
                for c in self.cells(p.item)
                if (c.system, c.metric) == (p.system, p.metric)
                and p.dataset in (c.dataset, EVERY)
                and p.group in (c.group, EVERY)
            ]
        else:
            places = [(p.dataset, p.group)]
        return [Cell(p.item, d, p.system, role, p.metric, g) for d, g in dict.fromkeys(places) for role in roles]

    def lookup(self, dataset: str, system: str, role: str, metric: str, group: str = "all") -> Printed | None:
        """What the text prints on these coordinates, the most exact mention first; None when it prints nothing."""
        return self._best.get((dataset, system, role, metric, group))

    @cached_property
    def _best(self) -> dict[tuple[str, ...], Printed]:
        best: dict[tuple[str, ...], Printed] = {}
        for p in sorted(self.printed, key=lambda p: p.rank):
            for cell in self.standing(p):
                best.setdefault(cell.key, p)
        return best

    def text(self, p: Printed) -> str:
        """As the paper prints it."""
        values = p.value if isinstance(p.value, list) else [p.value]
        if p.unit == "verdict":
            return VERDICTS[int(values[0])]
        form = f",.{self.digits.get(p.unit, 0)}f" if p.exactness == "exact" else ",g"
        shown = "–".join(format(v, form) for v in values)
        unnamed = f" ({self.own.varies} not named)" if p.setting == EITHER else ""
        return f"{_SIGNS.get(p.exactness, '')}{shown}{unnamed}"


def load(root: Path, paper: str = PAPERS[0]) -> Expected:
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
        raise messages.explain(e, Expected, str(path)) from e
    if problems := [*_declared(expected), *_placed(expected)]:
        raise ConfigError(f"{path}: " + "\n  ".join(dict.fromkeys(problems)))
    return expected


def _declared(expected: Expected) -> Iterator[str]:
    """Names that the items and systems use."""
    for name, system in expected.systems.items():
        for other in (*(system.minus or ()), *(system.best_of or ())):
            if other not in expected.systems:
                yield f"systems.{name}: unknown {other!r}"
    known = {"system": expected.systems, "dataset": (*DATASETS, "average"), "role": expected.own.roles}
    for name in expected.items:
        for cell in expected.cells(name):
            for what, names in known.items():
                if getattr(cell, what) not in names:
                    yield f"items.{name}: unknown {what} {getattr(cell, what)!r}"


def _placed(expected: Expected) -> Iterator[str]:
    """Every value must stand on a declared cell of its item."""
    for grid in expected.grids:
        for role, systems in grid.rows.items():
            for system, numbers in systems.items():
                if len(numbers) != len(grid.columns):
                    yield f"grids {grid.id}: {role}, {system}: {len(numbers)} numbers for {len(grid.columns)} columns"
                    return
    for name, count in Counter(p.id for p in expected.printed).items():
        if count > 1:
            yield f"{name}: two values"
    declared = {name: set(expected.cells(name)) for name in expected.items}
    for p in expected.printed:
        if p.item not in declared:
            yield f"values {p.id}: unknown item {p.item!r}"
        elif not declared[p.item] & set(expected.standing(p)):
            yield f"values {p.id}: {p.item} declares no such cell"
