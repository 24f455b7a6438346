"""Adaptive-RAG's router: multinomial logistic regression on the question's embedding, as plain arrays.

Coefficients and logits are rounded, so that a stored router decides as the fitted one does, on any processor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from multihop.errors import DataError

STRATEGIES = ("A", "B", "C")
"""No search, one search, several: cheapest first, which is also how ties are broken."""
DECIMALS = 9


@dataclass(frozen=True)
class Router:
    """Logits = coefficients @ vector + intercepts, one per strategy seen in training."""

    strategies: tuple[str, ...]
    """Those seen in training, cheapest first; with one, the router is a constant."""
    coefficients: np.ndarray
    """float64 (strategies, dim)."""
    intercepts: np.ndarray
    """float64 (strategies,)."""

    @staticmethod
    def fit(vectors: Sequence[np.ndarray] | np.ndarray, labels: Sequence[str], C: float = 1.0, seed: int = 0) -> Router:
        """From (n, dim) question vectors and n strategies; ``C`` is scikit-learn's inverse regularisation.

        Raises DataError where there is no question, a label is no strategy, or a vector is unfit.
        """
        from sklearn.linear_model import LogisticRegression

        if not len(labels) or len(vectors) != len(labels):
            raise DataError(
                f"the router needs one label per question vector, and at least one: got {len(vectors)} vectors and "
                f"{len(labels)} labels"
            )
        if unknown := sorted(set(labels) - set(STRATEGIES)):
            raise DataError(f"the router's labels are {', '.join(STRATEGIES)}; got {unknown[0]!r}")
        dim = np.asarray(vectors[0]).size
        data = np.stack([_checked(vector, dim) for vector in vectors])
        present = tuple(s for s in STRATEGIES if s in set(labels))
        if len(present) == 1:
            return Router(present, np.zeros((1, dim)), np.zeros(1))
        model = LogisticRegression(C=C, random_state=seed, max_iter=1000).fit(data, np.asarray(labels))
        coefficients, intercepts = model.coef_, model.intercept_
        if len(present) == 2:  # scikit-learn keeps the second class's logit alone
            coefficients = np.vstack([np.zeros(dim), coefficients[0]])
            intercepts = np.array([0.0, intercepts[0]])
        return Router(present, np.round(coefficients, DECIMALS), np.round(intercepts, DECIMALS))

    def route(self, vector: np.ndarray) -> str:
        """The strategy for a question vector (dim,). Raises DataError for a wrong dimension or NaN."""
        logits = self.coefficients @ _checked(vector, self.coefficients.shape[1]) + self.intercepts
        return self.strategies[int(np.argmax(np.round(logits, DECIMALS)))]

    def to_json(self) -> dict[str, Any]:
        return {
            "strategies": list(self.strategies),
            "coefficients": np.round(self.coefficients, DECIMALS).tolist(),
            "intercepts": np.round(self.intercepts, DECIMALS).tolist(),
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Router:
        """What ``to_json`` gave; further keys are ignored. Raises DataError for anything else."""
        try:
            strategies = tuple(value["strategies"])
            coefficients = np.array(value["coefficients"], dtype=np.float64)
            intercepts = np.array(value["intercepts"], dtype=np.float64)
        except (KeyError, TypeError, ValueError) as e:
            raise _damaged(f"{type(e).__name__}: {e}") from e
        if not strategies or strategies != tuple(s for s in STRATEGIES if s in strategies):
            raise _damaged(f"strategies are {list(strategies)}")
        if coefficients.ndim != 2 or len(coefficients) != len(strategies) or intercepts.shape != (len(strategies),):
            raise _damaged(f"{coefficients.shape} coefficients, {intercepts.shape} intercepts for {len(strategies)}")
        if not (np.isfinite(coefficients).all() and np.isfinite(intercepts).all()):
            raise _damaged("a coefficient is no finite number")
        return Router(strategies, coefficients, intercepts)


def _checked(vector: np.ndarray, dim: int) -> np.ndarray:
    """As float64 (dim,). Raises DataError."""
    vector = np.asarray(vector, dtype=np.float64)
    if vector.shape != (dim,):
        raise DataError(
            f"the router was given a vector of shape {vector.shape}, expected ({dim},): router and index are of "
            "different embedders; run the tune stage again"
        )
    if not np.isfinite(vector).all():
        raise DataError("the router was given a vector with NaN or infinity; run the index stage again")
    return vector


def _damaged(why: str) -> DataError:
    return DataError(f"the stored router is damaged ({why}); run the tune stage again")
