"""The deterministic validity layer: what can be executed in a state (paper 2, "Not every action is meaningful")."""

from __future__ import annotations

from collections.abc import Mapping

from multihop.controller.state import ACTIONS, RETRIEVING, EvidenceState, Limits


def valid(state: EvidenceState, limits: Limits) -> tuple[str, ...]:
    """Codes of the executable actions, in the order of ACTIONS; never empty.

    Stopping needs evidence, unless nothing else can be done.
    """
    may_retrieve = len(state.docs) < limits.docs and (limits.retrievals is None or state.retrievals < limits.retrievals)
    seen = set(state.docs)
    rules = {
        "R": any(chunk_id not in seen for chunk_id, _ in state.frontier[state.cursor :]),
        "G": bool(state.gap),
        "W": bool(state.docs) and not state.rewrite_spent,
        "B": bool(state.bridges),
        "S": limits.sufficiency and bool(state.docs) and state.checked_docs < len(state.docs),
    }
    found = [a for a in ACTIONS if rules.get(a) and (a not in RETRIEVING or may_retrieve)]
    if state.docs or not found:
        found.append("T")
    return tuple(found)


def affordable(
    actions: tuple[str, ...], state: EvidenceState, limits: Limits, expected_tokens: Mapping[str, float]
) -> tuple[str, ...]:
    """Those of ``actions`` whose expected tokens fit in what is left of the budget; stopping always does.

    An empty remainder (the first retrieval costs no token, so only odd limits get here) becomes stop.
    """
    left = limits.tokens - state.tokens
    found = tuple(a for a in actions if a == "T" or expected_tokens.get(a, 0.0) <= left)
    return found or ("T",)
