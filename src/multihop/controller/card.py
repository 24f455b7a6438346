"""The model card's part about the trajectories: what was seen, what it cost, what the targets look like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from multihop.controller import targets
from multihop.controller.state import ACTIONS
from multihop.controller.targets import Cost
from multihop.controller.tasks import FitOptions, Row, Task

LAMBDAS = (0.0, 0.5, 1.0)


def rounded(value: Any) -> Any:
    """Every float in it to six decimals."""
    if isinstance(value, Mapping):
        return {key: rounded(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(v) for v in value]
    return round(value, 6) + 0.0 if isinstance(value, float) else value


def describe(
    rows: Sequence[Row], options: FitOptions, costs: Mapping[str, Cost], tasks: Mapping[str, Task]
) -> dict[str, Any]:
    """Sizes, target distributions, costs, sensitivities and the action mix, over all trajectories.

    Standard deviations are of the population. A share is of the states at that step from which something could be
    done.
    """
    binary = {
        name: {"n": len(tasks[name].y), "positives": int(tasks[name].y.sum())} for name in ("continuation", "premature")
    }
    return {
        "questions": len({row["qid"] for row in rows}),
        "states": len(rows),
        "targets": {
            "advantage": {a: _spread(v) for a, v in _targets(rows, costs, options).items()},
            "gain": _quartiles(tasks["gain"].y),
            **binary,
        },
        "costs": {action: asdict(cost) for action, cost in costs.items()},
        "s_target_sensitivity": {
            s: _mean(_targets(rows, costs, options, s_target=s).get("S", [])) for s in targets.S_TARGETS
        },
        "lambda_sensitivity": {
            str(lam): {a: float(np.mean(v)) for a, v in _targets(rows, costs, options, lam=lam).items()}
            for lam in LAMBDAS
        },
        "actions": {"steps": [_step(rows, step) for step in sorted({row["step"] for row in rows})]},
    }


def _targets(
    rows: Sequence[Row], costs: Mapping[str, Cost], options: FitOptions, **changed: Any
) -> dict[str, list[float]]:
    """Eq. 1's targets by action, for the actions that some state could try."""
    how = {"lam": options.lam, "beta": options.beta, "s_target": options.s_target} | changed
    found: dict[str, list[float]] = {}
    for row in rows:
        for branch in row["branches"]:
            found.setdefault(branch["action"], []).append(targets.advantage(row["u"], branch, costs, **how))
    return {a: found[a] for a in ACTIONS if a in found}


def _mean(values: Sequence[float]) -> dict[str, Any]:
    return {"n": len(values), "mean": float(np.mean(values)) if len(values) else None}


def _spread(values: Sequence[float]) -> dict[str, Any]:
    return _mean(values) | {"sd": float(np.std(values)), "min": float(min(values)), "max": float(max(values))}


def _quartiles(values: np.ndarray) -> dict[str, Any]:
    sd = float(np.std(values)) if len(values) else None
    quartiles = np.quantile(values, [0.25, 0.5, 0.75]).tolist() if len(values) else []
    return _mean(values) | {"sd": sd, "quartiles": quartiles}


def _step(rows: Sequence[Row], step: int) -> dict[str, Any]:
    here = [row for row in rows if row["step"] == step]
    able = [row for row in here if row["branches"]]
    valid = [{branch["action"] for branch in row["branches"]} for row in able]
    return {
        "step": step,
        "states": len(here),
        "valid": {a: n / len(able) for a in ACTIONS if (n := sum(a in v for v in valid))},
        "chosen": {a: n / len(able) for a in ACTIONS if (n := sum(row["chosen"] == a for row in able))},
    }
