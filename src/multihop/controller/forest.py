"""Random forests as flat arrays: one state in microseconds, and no pickled estimator in a model file.

scikit-learn asks every tree of a forest in turn, which costs milliseconds for one row. Here all trees take their first
step together, then their second, and so on: one numpy operation per level, over (rows x trees) positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from multihop.errors import DataError

_AT_ONCE = 1 << 16
"""Positions (rows x trees) stepped at once: what fits in a processor's cache."""
ARRAYS = {"roots": "<i4", "feature": "<i2", "number": "<f8", "child": "<i4"}
"""What a model file holds of a forest, and in which types."""


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """A fitted forest; ``predict`` gives the mean over its trees. Build it with :meth:`compile` or :meth:`constant`."""

    names: tuple[str, ...]
    """Of the d features, in the order of the columns."""
    roots: np.ndarray
    """(trees,): the node at which each tree starts."""
    feature: np.ndarray
    """(nodes,): the column that an inner node looks at; 0 in a leaf."""
    number: np.ndarray
    """(nodes,): threshold of an inner node, value of a leaf."""
    child: np.ndarray
    """(2 * nodes,): where node i goes for x <= threshold (2i) and for x > threshold (2i + 1); a leaf goes to itself."""
    depth: int
    """Steps after which every tree is in a leaf."""

    @classmethod
    def compile(cls, fitted: Any, names: Sequence[str]) -> Forest:
        """From a fitted RandomForestRegressor, or RandomForestClassifier with classes out of {0, 1}.

        Raises DataError when ``names`` are not as many as the forest's features.
        """
        if len(names) != fitted.n_features_in_:
            raise DataError(f"a forest of {fitted.n_features_in_} features can't be named by {len(names)} names")
        trees = [e.tree_ for e in fitted.estimators_]
        roots = np.cumsum([0, *(t.node_count for t in trees[:-1])])
        features, numbers, children = [], [], []
        for root, tree in zip(roots, trees, strict=True):
            here = np.arange(tree.node_count)
            leaf = tree.children_left < 0
            features.append(np.where(leaf, 0, tree.feature))
            numbers.append(np.where(leaf, _leaf_values(tree, fitted), tree.threshold))
            left, right = np.where(leaf, here, tree.children_left), np.where(leaf, here, tree.children_right)
            children.append(root + np.stack([left, right], axis=1).ravel())
        arrays = (roots, *(np.concatenate(a) for a in (features, numbers, children)))
        return cls(tuple(names), *arrays, depth=max(t.max_depth for t in trees))

    @classmethod
    def constant(cls, value: float, names: Sequence[str]) -> Forest:
        """One tree that is one leaf: what stands in for a forest that had nothing to learn from."""
        zero = np.zeros(1, dtype=np.intp)
        return cls(tuple(names), zero, zero, np.array([value], dtype=np.float64), np.zeros(2, dtype=np.intp), 0)

    def predict(self, X: Any) -> np.ndarray:
        """Value, or probability of class 1, of each row: (n, d) -> (n,) float64.

        As in scikit-learn a feature is compared in single precision. Raises DataError for another number of columns
        and, by name, for a feature that is not finite (or too large for single precision).
        """
        x = self._checked(X)
        out = np.empty(len(x))
        rows = max(1, _AT_ONCE // len(self.roots))
        for start in range(0, len(x), rows):
            part = x[start : start + rows]
            out[start : start + rows] = self._walk(part).mean(axis=1)
        return out

    def used(self) -> set[int]:
        """Columns that some tree looks at."""
        inner = self.child[::2] != np.arange(len(self.feature))
        return set(np.unique(self.feature[inner]).tolist())

    def _walk(self, x: np.ndarray) -> np.ndarray:
        """Leaf values (n, trees)."""
        flat = x.ravel()
        row = np.repeat(np.arange(len(x)) * x.shape[1], len(self.roots))
        node = np.tile(self.roots, len(x))
        for _ in range(self.depth):
            right = flat.take(row + self.feature.take(node)) > self.number.take(node)
            node = self.child.take(2 * node + right)
        return self.number.take(node).reshape(len(x), -1)

    def _checked(self, X: Any) -> np.ndarray:
        """(n, d), finite, rounded to single precision (and held in double, in which the thresholds are)."""
        x = np.asarray(X, dtype=np.float64)
        if x.ndim != 2 or x.shape[1] != len(self.names):
            raise DataError(f"the forest takes rows of {len(self.names)} features, not an array of shape {x.shape}")
        with np.errstate(over="ignore"):
            x = x.astype(np.float32).astype(np.float64)
        if not np.isfinite(x).all():
            row, column = np.argwhere(~np.isfinite(x))[0]
            raise DataError(f"feature {self.names[column]!r} is not a finite number (row {row})")
        return x

    def arrays(self) -> dict[str, np.ndarray]:
        """What to store, in the types of ARRAYS; :meth:`from_arrays` reads it back."""
        return {name: getattr(self, name).astype(kind) for name, kind in ARRAYS.items()}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray], names: Sequence[str], depth: int) -> Forest:
        wide = {k: arrays[k].astype(np.float64 if kind == "<f8" else np.intp) for k, kind in ARRAYS.items()}
        return cls(tuple(names), **wide, depth=depth)


def _leaf_values(tree: Any, fitted: Any) -> np.ndarray:
    """(nodes,): the mean of a regressor's node, the share of class 1 in a classifier's."""
    values = tree.value[:, 0, :]
    if not hasattr(fitted, "classes_"):
        return values[:, 0]
    classes = list(fitted.classes_)
    if 1 not in classes:
        return np.zeros(len(values))
    return values[:, classes.index(1)] / values.sum(axis=1)
