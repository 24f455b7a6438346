"""Retrieval recall before any reader: the share of a question's gold passages among the top k (HippoRAG's recall@k)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from multihop.evaluation.statistics import bootstrap_mean
from multihop.types import Gold

DEPTHS = (2, 5, 10)


def recall_at(ranked: Sequence[Iterable[str]], gold: Iterable[str], k: int) -> float:
    """``ranked``: the passage ids of each retrieved unit, best first. A fraction, not a hit.

    Raises ValueError for a question without gold passages.
    """
    wanted = set(gold)
    if not wanted:
        raise ValueError("recall needs at least one gold passage")
    found = {passage for unit in ranked[:k] for passage in unit}
    return len(wanted & found) / len(wanted)


def table(rankings: Mapping[str, Sequence[Iterable[str]]], gold: Iterable[Gold], seed: int) -> dict[str, Any]:
    """recall@2/5/10 with n and interval: all questions, by hops, and those with labelled gold passages alone."""
    groups: dict[str, list[Gold]] = {"all": []}
    for g in gold:
        if g.supporting:
            groups["all"].append(g)
            groups.setdefault(f"{g.hops} hops", []).append(g)
            if g.exact:
                groups.setdefault("labelled gold", []).append(g)
    return {
        name: {"n": len(members)} | {f"recall@{k}": _mean(rankings, members, k, seed) for k in DEPTHS}
        for name, members in sorted(groups.items())
    }


def _mean(rankings: Mapping[str, Sequence[Iterable[str]]], members: list[Gold], k: int, seed: int) -> dict[str, Any]:
    interval = bootstrap_mean([recall_at(rankings[g.id], g.supporting, k) for g in members], seed=seed)
    return {"mean": interval.mean, "low": interval.low, "high": interval.high}
