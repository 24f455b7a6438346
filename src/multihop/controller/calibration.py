"""From a forest's share of votes to a probability: a curve of a few numbers, fitted on questions set aside.

Both classifiers of the gate are fitted with balanced classes, so that what they say is not yet a probability.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

ISOTONIC_FROM = 200
"""Positives from which isotonic regression is used; with fewer it follows the noise, and Platt's two numbers serve."""
Kind = Literal["identity", "constant", "platt", "isotonic"]
_EDGE = 1e-6


@dataclass(frozen=True, slots=True)
class Calibrator:
    """A non-decreasing curve [0, 1] -> [0, 1]."""

    kind: Kind = "identity"
    x: tuple[float, ...] = ()
    """isotonic: its corners; platt: (slope, intercept) over the log odds."""
    y: tuple[float, ...] = ()
    """isotonic: the probability at each corner; constant: the probability."""

    def __call__(self, p: np.ndarray) -> np.ndarray:
        """Shapes (n,) -> (n,)."""
        p = np.asarray(p, dtype=np.float64)
        if self.kind == "isotonic":
            return np.interp(p, self.x, self.y)
        if self.kind == "constant":
            return np.full(len(p), self.y[0])
        if self.kind == "platt":
            slope, intercept = self.x
            return 1 / (1 + np.exp(-(slope * _log_odds(p) + intercept)))
        return p


def fit(p: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None) -> Calibrator:
    """The curve for forest outputs ``p`` (n,) and labels ``y`` (n,) in {0, 1}; ``weights`` (n,), all 1 by default.

    Isotonic with at least ISOTONIC_FROM positives, else Platt. Constant, at the share of positives, where there is no
    rising curve to be found: one class only, or positives that lie lower than negatives. Identity without rows.
    """
    p, y = np.asarray(p, dtype=np.float64), np.asarray(y, dtype=np.int64)
    w = np.ones(len(y)) if weights is None else np.asarray(weights, dtype=np.float64)
    if not len(y):
        return Calibrator()
    if len(np.unique(y)) < 2:
        return _constant(y)
    return _isotonic(p, y, w) if y.sum() >= ISOTONIC_FROM else _platt(p, y, w)


def _constant(y: np.ndarray) -> Calibrator:
    """One more of each class than was seen: a class that few rows do not hold is not impossible."""
    return Calibrator("constant", y=(round((int(y.sum()) + 1) / (len(y) + 2), 6),))


def _isotonic(p: np.ndarray, y: np.ndarray, w: np.ndarray) -> Calibrator:
    from sklearn.isotonic import IsotonicRegression

    curve = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(p, y, sample_weight=w)
    x, values = curve.X_thresholds_, curve.y_thresholds_
    return Calibrator("isotonic", tuple(x.tolist()), tuple(values.tolist()))


def _platt(p: np.ndarray, y: np.ndarray, w: np.ndarray) -> Calibrator:
    """Logistic regression on the log odds, with Platt's smoothed labels: each row counts as both classes, in part.

    The smoothing keeps the slope finite where the two classes are separable. Both numbers are rounded, so that they are
    the same on every processor.
    """
    from sklearn.linear_model import LogisticRegression

    positive, negative = int(y.sum()), int(len(y) - y.sum())
    share = np.where(y == 1, (positive + 1) / (positive + 2), 1 / (negative + 2))
    x = np.tile(_log_odds(p), 2)[:, None]
    labels = np.repeat([1, 0], len(y))
    model = LogisticRegression(C=1e6, tol=1e-8, max_iter=1000)
    model.fit(x, labels, sample_weight=np.concatenate([w * share, w * (1 - share)]))
    slope, intercept = round(float(model.coef_[0, 0]), 6), round(float(model.intercept_[0]), 6)
    return Calibrator("platt", (slope, intercept)) if slope > 0 else _constant(y)


def _log_odds(p: np.ndarray) -> np.ndarray:
    p = np.clip(p, _EDGE, 1 - _EDGE)
    return np.log(p) - np.log1p(-p)
