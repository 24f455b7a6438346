"""The trained controller: what it answers in a state, and the file it is kept in.

The file is an uncompressed .npz of plain arrays, no pickle: the same model is the same bytes on every machine. The card
beside it holds its sha256; the file itself the hash of the feature list and the version of scikit-learn that fitted
it. Where one of the three differs the file is refused.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np

from multihop.controller.calibration import Calibrator
from multihop.controller.forest import ARRAYS, Forest
from multihop.controller.state import ACTIONS
from multihop.controller.targets import Cost
from multihop.errors import DataError

Vote = Literal["majority", "any", "all"]
NEEDED: dict[str, int] = {"majority": 2, "any": 1, "all": 3}
"""Votes of the three gate models that it takes to continue."""
DEFAULT_THRESHOLDS = (0.5, 0.05, 0.3)
"""Of p_continue, gain and p_premature, where no question was left to choose them on."""
COST_FEATURE = "expected_cost"
ACTION_COLUMNS = tuple(f"action_{a}" for a in ACTIONS)
"""The one-hot action."""
FORESTS = ("advantage", "continuation", "gain", "premature")
DIGITS = 9
"""Predictions are rounded before they are compared, so that every processor decides the same."""
_RETRAIN = "retrain it: dvc repro"


@dataclass(frozen=True, slots=True)
class Gate:
    """What the continuation gate says in one state."""

    cont: bool
    """Go on (stop_answer is removed) or stop (only stop_answer is left)."""
    p_continue: float
    gain: float
    """Expected gain in F1, in [-1, 1]."""
    p_premature: float
    votes: int
    """Of the three models, for going on."""


@dataclass(frozen=True, slots=True, eq=False)
class ControllerModel:
    """Four forests with their calibration, the expected costs and the thresholds of each vote rule."""

    seed: int
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    """Of the features of an action, ``expected_cost`` among them."""
    feature_hash: str
    advantage_forest: Forest
    """Columns: state features, one per action (1 for the action scored), action features."""
    continuation_forest: Forest
    gain_forest: Forest
    premature_forest: Forest
    calibrators: Mapping[str, Calibrator]
    """continuation, premature"""
    costs: Mapping[str, Cost]
    thresholds: Mapping[str, tuple[float, float, float]]
    """Vote rule -> thresholds of p_continue, gain, p_premature."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """How it was trained."""
    sklearn: str = field(default_factory=lambda: version("scikit-learn"))

    @property
    def expected_tokens(self) -> dict[str, float]:
        """Mean tokens of each action on the training trajectories: what "affordable" is decided by."""
        return {action: cost.tokens for action, cost in self.costs.items()}

    def advantage(
        self, state_features: Sequence[float], actions: Sequence[str], action_features: Sequence[Sequence[float]]
    ) -> dict[str, float]:
        """Predicted target of eq. 1 for each of ``actions``, rounded to nine decimals.

        ``action_features``: one row per action, without the expected cost, which is added here. DataError for a
        feature that is not finite, by name, and for rows of another length.
        """
        if not actions:
            return {}
        rows = action_rows(self.action_names, actions, action_features, self.costs)
        X = np.hstack([np.tile(np.asarray(state_features, dtype=np.float64), (len(actions), 1)), rows])
        return dict(zip(actions, self.advantage_forest.predict(X).round(DIGITS).tolist(), strict=True))

    def gate(self, state_features: Sequence[float], vote: Vote = "majority") -> Gate:
        """Whether to go on. DataError for a feature that is not finite, by name."""
        p, gain, q = (float(a[0]) for a in self.gate_outputs([state_features]))
        passed = [a >= b for a, b in zip((p, gain, q), self.thresholds[vote], strict=True)]
        return Gate(sum(passed) >= NEEDED[vote], p, gain, q, sum(passed))

    def gate_outputs(self, X: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """p_continue, gain and p_premature of states (n, d), each (n,), rounded."""
        p = self.calibrators["continuation"](self.continuation_forest.predict(X))
        q = self.calibrators["premature"](self.premature_forest.predict(X))
        return p.round(DIGITS), self.gain_forest.predict(X).round(DIGITS), q.round(DIGITS)

    def to_bytes(self) -> bytes:
        """The model file."""
        forests = {name: getattr(self, f"{name}_forest") for name in FORESTS}
        about = {
            "seed": self.seed,
            "state_names": self.state_names,
            "action_names": self.action_names,
            "feature_hash": self.feature_hash,
            "sklearn": self.sklearn,
            "names": {name: f.names for name, f in forests.items()},
            "depths": {name: f.depth for name, f in forests.items()},
            "calibrators": {name: asdict(c) for name, c in self.calibrators.items()},
            "costs": {a: asdict(c) for a, c in self.costs.items()},
            "thresholds": dict(self.thresholds),
            "options": dict(self.options),
        }
        arrays = {"about": np.frombuffer(json.dumps(about, sort_keys=True).encode(), dtype=np.uint8)}
        for name, forest in forests.items():
            arrays |= {f"{name}.{key}": array for key, array in forest.arrays().items()}
        return _zip(arrays)

    @classmethod
    def from_bytes(cls, data: bytes) -> ControllerModel:
        """Inverse of :meth:`to_bytes`; it checks nothing (:func:`load` does)."""
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = dict(file)
        about = json.loads(arrays["about"].tobytes())
        forests = {
            f"{name}_forest": Forest.from_arrays(
                {key: arrays[f"{name}.{key}"] for key in ARRAYS}, about["names"][name], about["depths"][name]
            )
            for name in FORESTS
        }
        return cls(
            seed=about["seed"],
            state_names=tuple(about["state_names"]),
            action_names=tuple(about["action_names"]),
            feature_hash=about["feature_hash"],
            calibrators={
                k: Calibrator(c["kind"], tuple(c["x"]), tuple(c["y"])) for k, c in about["calibrators"].items()
            },
            costs={a: Cost(**c) for a, c in about["costs"].items()},
            thresholds={k: tuple(t) for k, t in about["thresholds"].items()},
            options=about["options"],
            sklearn=about["sklearn"],
            **forests,
        )


def action_rows(
    action_names: Sequence[str],
    actions: Sequence[str],
    action_features: Sequence[Sequence[float]],
    costs: Mapping[str, Cost],
) -> np.ndarray:
    """(n, 6 + len(action_names)): the action one-hot, then its features with the expected cost in its place.

    DataError where a row is not one short of ``action_names``, or no feature is called ``expected_cost``.
    """
    if COST_FEATURE not in action_names:
        raise DataError(f"no action feature is called {COST_FEATURE!r}: the fit adds it, the list must name it")
    given = np.asarray(action_features, dtype=np.float64).reshape(len(actions), -1)
    if given.shape[1] != len(action_names) - 1:
        raise DataError(f"{given.shape[1]} features of an action, where {len(action_names) - 1} are known; {_RETRAIN}")
    hot = np.array([[float(a == b) for b in ACTIONS] for a in actions])
    cost = np.array([costs[a].cost for a in actions])
    return np.hstack([hot, np.insert(given, list(action_names).index(COST_FEATURE), cost, axis=1)])


def advantage_names(state_names: Sequence[str], action_names: Sequence[str]) -> tuple[str, ...]:
    """Columns of the advantage forest."""
    return (*state_names, *ACTION_COLUMNS, *action_names)


def save(model: ControllerModel, directory: Path) -> dict[str, Any]:
    """Write ``seed<r>.npz``; returns its entry in the card: name, sha256, bytes."""
    data = model.to_bytes()
    directory.mkdir(parents=True, exist_ok=True)
    entry = file_entry(model, data)
    (directory / entry["file"]).write_bytes(data)
    return entry


def file_entry(model: ControllerModel, data: bytes) -> dict[str, Any]:
    """Name, sha256 and size of the model's file, as the card lists them."""
    return {"file": f"seed{model.seed}.npz", "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


def load(directory: Path, seed: int, feature_hash: str | None = None) -> ControllerModel:
    """The model of training ``seed`` in ``directory``, checked against the card.json there.

    ``feature_hash``: of the features in use; by default that of :mod:`multihop.controller.features`. Raises DataError
    for a missing or changed file, another feature list, another scikit-learn.
    """
    if feature_hash is None:
        from multihop.controller import features

        feature_hash = features.fingerprint()
    entry = _entry(directory / "card.json", seed)
    path = directory / entry["file"]
    if not path.is_file():
        raise DataError(f"{path}: no such file; {_RETRAIN}")
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise DataError(f"{path}: not the file that was trained (its sha256 differs from card.json); {_RETRAIN}")
    model, here = ControllerModel.from_bytes(data), version("scikit-learn")
    if model.feature_hash != feature_hash:
        raise DataError(
            f"{path}: trained on another list of features ({model.feature_hash}, here {feature_hash}); {_RETRAIN}"
        )
    if model.sklearn != here:
        raise DataError(f"{path}: fitted by scikit-learn {model.sklearn}, here is {here}; {_RETRAIN}")
    return model


def _entry(path: Path, seed: int) -> dict[str, str]:
    """File and sha256 of one training, from the card."""
    try:
        trainings = json.loads(path.read_text(encoding="utf-8"))["trainings"]
        entry = {t["seed"]: t for t in trainings}[seed]
        return {key: entry[key] for key in ("file", "sha256")}
    except FileNotFoundError:
        raise DataError(f"{path}: no such file, so there is no trained controller; {_RETRAIN}") from None
    except (ValueError, KeyError, TypeError) as e:
        raise DataError(f"{path}: holds no training of seed {seed} ({type(e).__name__}); {_RETRAIN}") from e


def _zip(arrays: Mapping[str, np.ndarray]) -> bytes:
    """An .npz without clock, compression or platform in it."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(arrays):
            member = io.BytesIO()
            np.lib.format.write_array(member, np.ascontiguousarray(arrays[name]), (1, 0), allow_pickle=False)
            info = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            info.create_system, info.external_attr = 3, 0o644 << 16
            archive.writestr(info, member.getvalue())
    return out.getvalue()
