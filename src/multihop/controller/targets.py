"""What the controller is trained towards (paper 2, eq. 1 and "Continuation model and stop suppression").

Every number comes from a trajectory row: recall of the supporting documents (``u``), F1 of the answer at a prefix
(``f1``) and after completing the roll-out (``final_f1``), and what the operations cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from multihop.controller.state import ACTIONS, RETRIEVING

STarget = Literal["literal", "full_only", "stop_value"]
S_TARGETS: tuple[str, ...] = get_args(STarget)
RETRIEVAL_COST = 0.25
"""Of one retrieval call, in thousands of tokens."""
INADEQUATE, IMPROVED, SUCCESS = 0.5, 0.2, 0.8
"""F1 below which an answer is inadequate; gain in F1 that is substantial; F1 from which a completion is a success."""
_SLACK = 1e-9
"""What rounding may take from a difference: 0.6 - 0.4 is a gain of 0.2."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Expected cost of one action: its mean over the training trajectories."""

    n: int
    """Branches that it is the mean of."""
    tokens: float
    """Prompt and completion tokens."""
    retrievals: float
    cost: float
    """c_exec of eq. 1, in thousands of tokens: the tokens, and ``retrieval_cost`` for each retrieval."""


def action_costs(rows: Iterable[Mapping[str, Any]], retrieval_cost: float = RETRIEVAL_COST) -> dict[str, Cost]:
    """Expected cost of each of the six actions, over all branches of ``rows``.

    Stopping is free. An action that no state could try costs no token, and a retrieval if it is one that retrieves.
    """
    seen: dict[str, list[tuple[float, float]]] = {a: [] for a in ACTIONS}
    for row in rows:
        for branch in row["branches"]:
            seen[branch["action"]].append((branch["tokens"], branch["retrievals"]))
    costs = {}
    for action, pairs in seen.items():
        tokens, retrievals = np.mean(pairs, axis=0).tolist() if pairs else (0.0, float(action in RETRIEVING))
        if action == "T":
            tokens = retrievals = 0.0
        costs[action] = Cost(len(pairs), tokens, retrievals, tokens / 1000 + retrieval_cost * retrievals)
    return costs


def advantage(
    u: float, branch: Mapping[str, Any], costs: Mapping[str, Cost], *, lam: float, beta: float, s_target: str
) -> float:
    """Eq. 1: U(T+(s, a)) - lambda * 1[a != stop] * U(s) - beta * c_exec(a), for one branch of a state of recall ``u``.

    ``s_target`` says what T+ is after a sufficiency check, which itself changes no evidence. ``literal``: the next
    state. ``stop_value``: a positive verdict ends the search, so it is scored as stopping is, without the lambda
    term; after a negative one T+ is the state after the gap query that it makes possible, at the cost of both.
    ``full_only`` (the default): as stop_value, but a positive verdict counts as a stop only where the evidence is in
    fact complete, so that declaring sufficiency wrongly is not rewarded.
    """
    action = branch["action"]
    if action == "T":
        return u
    cost = costs[action].cost
    if action == "S" and s_target != "literal":
        if branch["sufficient"] is True:
            if s_target == "stop_value" or u >= 1 - _SLACK:
                return u - beta * cost
        elif branch["u_follow"] is not None:
            return branch["u_follow"] - lam * u - beta * (cost + costs["G"].cost)
    return branch["u_after"] - lam * u - beta * cost


def continuation(f1: float, final_f1: float) -> bool:
    """The answer of this prefix is inadequate, and completing the roll-out improves it substantially."""
    return f1 < INADEQUATE and final_f1 - f1 >= IMPROVED - _SLACK


def gain(f1: float, final_f1: float) -> float:
    """F1 that completing the roll-out adds, in [-1, 1]."""
    return min(1.0, max(-1.0, final_f1 - f1))


def premature(f1: float, final_f1: float) -> bool:
    """Stopping here would prevent a successful completion."""
    return f1 < INADEQUATE and final_f1 >= SUCCESS


def prefix_f1(row: Mapping[str, Any]) -> float:
    """F1 at this state; no answer is worth 0."""
    return 0.0 if row["f1"] is None else row["f1"]


def prefix_weights(qids: Sequence[str]) -> np.ndarray:
    """(n,): one over the number of the question's prefixes, so that every question weighs 1."""
    count = Counter(qids)
    return np.array([1 / count[q] for q in qids])
