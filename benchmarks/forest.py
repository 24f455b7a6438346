"""How fast the controller's forests are: one state at a time against scikit-learn, and fitting one dataset's models.

    python benchmarks/forest.py [states] [jobs]

By default 8,000 synthetic states (800 questions, two roll-outs of five states each) and 2 jobs.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.ensemble import RandomForestRegressor

from multihop.controller import targets, tasks
from multihop.controller.forest import Forest
from multihop.controller.state import RETRIEVING
from multihop.controller.tasks import FitOptions, Names

VALID = {0: ("R",), 4: ()}
"""Actions tried by step; between the first state and the last, all but the gap query."""


def trajectories(questions: int, names: Names, seed: int = 0) -> list[dict[str, Any]]:
    """Rows as the collect stage writes them; recall and answers follow three of the features, the rest is noise."""
    rng = random.Random(seed)
    return [
        _state(rng, f"q{q}", rollout, step, names)
        for q in range(questions)
        for rollout in ("uniform", "scripted")
        for step in range(5)
    ]


def _state(rng: random.Random, qid: str, rollout: str, step: int, names: Names) -> dict[str, Any]:
    x = [round(rng.random(), 6) for _ in names.state]
    u = round(x[0], 1)
    branches = [
        {
            "action": a,
            "features": [round(rng.random(), 6) for _ in names.action[1:]],
            "u_after": min(1.0, u + 0.1 * rng.randrange(4)) if a in RETRIEVING else u,
            "tokens": 300 * (a in ("W", "S")),
            "retrievals": int(a in RETRIEVING),
            "sufficient": rng.random() < x[1] if a == "S" else None,
            "u_follow": None,
        }
        for a in VALID.get(step, ("R", "W", "B", "S", "T"))
    ]
    f1 = round(rng.random() * x[0], 3)
    final = min(1.0, f1 + round(rng.random() * x[2], 3))
    return {
        "seed": 0, "qid": qid, "rollout": rollout, "step": step, "features": x, "u": u, "f1": f1, "final_f1": final,
        "tokens": 0, "chosen": "R", "branches": branches,
    }  # fmt: skip


def rate(predict: Callable[[np.ndarray], Any], X: np.ndarray, seconds: float = 2.0) -> float:
    """Single-row predictions a second."""
    predict(X[:1])
    start, n = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        predict(X[n % len(X)][None])
        n += 1
    return n / (time.perf_counter() - start)


def main(states: int = 8000, jobs: int = 2) -> None:
    names, options = Names.current(), FitOptions(jobs=jobs)
    rows = trajectories(states // 10, names)
    tables = tasks.build(rows, options, names, targets.action_costs(rows))
    print(f"{'model':14}{'rows':>8}{'features':>10}{'fit s':>8}{'cpu s':>8}{'nodes':>10}")
    total = np.zeros(2)
    for name, task in tables.items():
        start = np.array([time.perf_counter(), time.process_time()])
        forest = task.forest(options, seed=0)
        took = np.array([time.perf_counter(), time.process_time()]) - start
        total += took
        print(f"{name:14}{len(task.y):8}{len(task.names):10}{took[0]:8.1f}{took[1]:8.1f}{len(forest.feature):10}")
    print(f"four models, {len(rows)} states, {jobs} jobs: {total[0]:.1f} s ({total[1]:.1f} s of processor time)\n")

    task = tables["gain"]
    fitted = RandomForestRegressor(
        options.trees, min_samples_leaf=options.min_leaf, max_features="sqrt", random_state=0, n_jobs=1
    ).fit(task.X, task.y)
    compiled = Forest.compile(fitted, task.names)
    sample = task.X[:500]
    difference = float(np.abs(compiled.predict(sample) - fitted.predict(sample)).max())
    slow, fast = rate(fitted.predict, sample), rate(compiled.predict, sample)
    print(f"one row, {options.trees} trees of depth {compiled.depth} at most: scikit-learn {slow:.0f}/s, ", end="")
    print(f"compiled {fast:.0f}/s: {fast / slow:.0f} times; largest difference {difference:.1e}")


if __name__ == "__main__":
    main(*(int(a) for a in sys.argv[1:]))
