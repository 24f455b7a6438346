"""Trajectories of an invented environment in which the best operation can be seen in the features."""

from __future__ import annotations

import random
from typing import Any

from multihop.controller.tasks import Names

NAMES = Names(("step", "bridge", "covered", "noise"), ("expected_cost", "near"), "names-of-the-tests")


def trajectories(questions: int = 30, seed: int = 0, first: int = 0) -> list[dict[str, Any]]:
    """Two roll-outs per question. B finds what is missing in a bridge question, R in any other; the rest find nothing.

    The answer is right once everything is found; ``covered`` shows, with noise, how much that is.
    """
    rows = []
    for q in range(first, first + questions):
        for rollout in ("uniform", "scripted"):
            rows += _rollout(random.Random(f"{seed}:{q}:{rollout}"), seed, f"q{q:03}", q % 2, rollout)
    return rows


def _rollout(rng: random.Random, seed: int, qid: str, bridge: int, rollout: str) -> list[dict[str, Any]]:
    rows, u = [], 0.0
    for step in range(5):
        valid = {0: "R", 4: ""}.get(step, "RBST")
        after = {a: _after(a, u, step, bridge) for a in valid}
        chosen = rng.choice([a for a in valid if a != "T"]) if valid else None
        rows.append(
            {
                "seed": seed,
                "qid": qid,
                "rollout": rollout,
                "step": step,
                "features": [step, bridge, round(u + rng.uniform(-0.2, 0.2), 6), round(rng.random(), 6)],
                "u": u,
                "f1": float(u == 1) if step else None,
                "tokens": 100 * step,
                "chosen": chosen,
                "branches": [_branch(rng, a, u, value) for a, value in after.items()],
            }
        )
        u = after[chosen] if chosen else u
    for row in rows:
        row["final_f1"] = float(u == 1)
    return rows


def _after(action: str, u: float, step: int, bridge: int) -> float:
    if step == 0:
        return 0.5
    return 1.0 if action == ("B" if bridge else "R") else u


def _branch(rng: random.Random, action: str, u: float, after: float) -> dict[str, Any]:
    return {
        "action": action,
        "features": [round(rng.random(), 6)],
        "u_after": after,
        "tokens": 200 if action == "S" else 0,
        "retrievals": int(action in "RB"),
        "sufficient": u == 1 if action == "S" else None,
        "u_follow": None,
        "follow_tokens": 0,
        "follow_retrievals": 0,
    }
