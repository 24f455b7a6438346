"""The four things that are learned, as tables: features, targets, weights and the question of each row."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from multihop.controller import targets
from multihop.controller.forest import Forest
from multihop.controller.model import action_rows, advantage_names
from multihop.errors import ConfigError, DataError

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FitOptions:
    """How a controller is fitted (params.yaml: controllers)."""

    lam: float = 1.0
    """Lambda of eq. 1."""
    beta: float = 0.02
    """Beta of eq. 1."""
    retrieval_cost: float = targets.RETRIEVAL_COST
    s_target: str = "full_only"
    trees: int = 300
    min_leaf: int = 8
    max_samples: float | None = None
    """Share of the rows that each tree draws; None: as many as there are, with repetition."""
    oof_trees: int = 100
    """Trees of the forests that measure out-of-fold skill, and are then thrown away."""
    jobs: int = 1
    """Threads that a forest is fitted with; it changes no result."""

    def __post_init__(self) -> None:
        if self.s_target not in targets.S_TARGETS:
            raise ConfigError(f"s_target {self.s_target!r}: one of {', '.join(targets.S_TARGETS)}")

    def to_json(self) -> dict[str, Any]:
        """What the results depend on."""
        options = asdict(self)
        del options["jobs"]
        return {"lambda": options.pop("lam"), **options}


@dataclass(frozen=True, slots=True)
class Names:
    """The feature lists that the rows were collected with."""

    state: tuple[str, ...]
    action: tuple[str, ...]
    """``expected_cost`` among them."""
    hash: str

    @classmethod
    def current(cls) -> Names:
        from multihop.controller import features

        state, action = (tuple(f.name for f in part) for part in (features.STATE, features.ACTION))
        return cls(state, action, features.fingerprint())


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """One table: n rows of d features."""

    names: tuple[str, ...]
    classes: bool
    """y is 0 or 1, and a probability is learned; else a value."""
    X: np.ndarray
    y: np.ndarray
    qids: np.ndarray
    weights: np.ndarray

    def part(self, keep: np.ndarray) -> Task:
        """The rows where ``keep`` (n,) holds."""
        return replace(self, X=self.X[keep], y=self.y[keep], qids=self.qids[keep], weights=self.weights[keep])

    def of(self, questions: set[str]) -> Task:
        return self.part(np.array([q in questions for q in self.qids], dtype=bool))

    def forest(self, options: FitOptions, seed: int, trees: int | None = None) -> Forest:
        """Fitted to all rows, compiled; a constant where there is no row, or one class only."""
        if not len(self.y) or (self.classes and len(np.unique(self.y)) < 2):
            return Forest.constant(float(self.y[0]) if len(self.y) else 0.0, self.names)
        from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

        how = {
            "n_estimators": trees or options.trees,
            "min_samples_leaf": options.min_leaf,
            "max_features": "sqrt",
            "max_samples": options.max_samples,
            "random_state": seed,
            "n_jobs": options.jobs,
        }
        forest = (
            RandomForestClassifier(class_weight="balanced", **how) if self.classes else RandomForestRegressor(**how)
        )
        return Forest.compile(forest.fit(self.X, self.y, sample_weight=self.weights), self.names)


def build(rows: Sequence[Row], options: FitOptions, names: Names, costs: Mapping[str, targets.Cost]) -> dict[str, Task]:
    """Advantage (one row per branch) and the gate's three tasks (one row per state with evidence).

    Raises DataError for rows of another feature list and, by name, for a feature that is not finite.
    """
    held = [row for row in rows if row["step"] >= 1]
    qids = np.array([row["qid"] for row in held], dtype=object)
    X, weights = _features(held, names), targets.prefix_weights(qids.tolist())
    labels = {"continuation": targets.continuation, "gain": targets.gain, "premature": targets.premature}
    tasks = {"advantage": _advantage(rows, options, names, costs)}
    for name, label in labels.items():
        y = np.array([label(targets.prefix_f1(row), row["final_f1"]) for row in held], dtype=np.float64)
        tasks[name] = Task(names.state, name != "gain", X, y, qids, weights)
    return tasks


def _advantage(rows: Sequence[Row], options: FitOptions, names: Names, costs: Mapping[str, targets.Cost]) -> Task:
    columns = advantage_names(names.state, names.action)
    pairs = [(row, branch) for row in rows for branch in row["branches"]]
    if not pairs:
        return Task(columns, False, np.empty((0, len(columns))), np.empty(0), np.empty(0, dtype=object), np.empty(0))
    codes = [branch["action"] for _, branch in pairs]
    own = action_rows(names.action, codes, [branch["features"] for _, branch in pairs], costs)
    X = np.hstack([_features(rows, names).repeat([len(row["branches"]) for row in rows], axis=0), own])
    _refuse_nan(X, columns, [row for row, _ in pairs])
    how = {"lam": options.lam, "beta": options.beta, "s_target": options.s_target}
    y = np.array([targets.advantage(row["u"], branch, costs, **how) for row, branch in pairs])
    return Task(columns, False, X, y, np.array([row["qid"] for row, _ in pairs], dtype=object), np.ones(len(y)))


def _features(rows: Sequence[Row], names: Names) -> np.ndarray:
    """(n, state features)"""
    for row in rows:
        if len(row["features"]) != len(names.state):
            raise DataError(
                f"trajectories, question {row['qid']}: {len(row['features'])} features, where {len(names.state)} are "
                "known: collected by another version; dvc repro collects them again"
            )
    X = np.array([row["features"] for row in rows], dtype=np.float64).reshape(len(rows), len(names.state))
    _refuse_nan(X, names.state, rows)
    return X


def _refuse_nan(X: np.ndarray, names: Sequence[str], rows: Sequence[Row]) -> None:
    for n, column in np.argwhere(~np.isfinite(X))[:1]:
        row = rows[n]
        raise DataError(
            f"trajectories, question {row['qid']}, step {row['step']}: feature {names[column]!r} is not a finite number"
        )


def shuffled(qids: set[str], seed: int) -> list[str]:
    """Questions in an order that depends on ``seed`` and on nothing else."""
    return sorted(qids, key=lambda q: hashlib.sha256(f"{seed}:{q}".encode()).hexdigest())


def split(qids: set[str], seed: int) -> tuple[set[str], set[str]]:
    """(fit, calibration) questions: 80/20, at least one on either side where there are two."""
    order = shuffled(qids, seed)
    aside = max(1, round(0.2 * len(order))) if len(order) > 1 else 0
    return set(order[aside:]), set(order[:aside])
