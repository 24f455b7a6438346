"""Which gold passages can be reached at all, and what that says of those that a run missed.

A certificate row (results/certificates) says of one gold passage with which probes a tool returns it. Here rows become
shares, and a run's missing passages are told apart:

never_asked          certified reachable with a tool the run has, at its k, and the record did not ask for the passage
asked_not_returned   the record asked for it and did not get it
no_certificate       neither: no probe returned it, which proves nothing

``askable``, the part of ``never_asked`` that the question, another run's query or the true sub-question certifies, is a
lower bound of search drift: of what better asking alone could have brought. A passage without a certificate may be
reachable, too. It rests on the rule for "asked" (probes.was_asked), which reads queries and not minds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from multihop.analysis.probes import ASKABLE, TIERS, Asked, own_words, steps_of, was_asked
from multihop.errors import DataError
from multihop.evaluation.statistics import ratio_intervals
from multihop.evaluation.support import ChunkMap
from multihop.types import Gold, Passage, RunRecord

Row = Mapping[str, Any]
FATES = ("never_asked", "asked_not_returned", "no_certificate")
ANY = "any"
"""Beside the tiers: at least one of them."""


# -- shares of gold passages


def found_from(row: Row, tool: str, tier: str, without_run: str | None = None) -> int | None:
    """The smallest k at which ``tool`` is certified to return the row's passage; None without a certificate.

    ``tier``: one of TIERS or "any". ``without_run``: witnesses that this run itself asked do not count.
    """
    tiers = row["certificates"].get(tool, {})
    found = []
    for name in TIERS if tier == ANY else (tier,):
        witness = tiers.get(name)
        if witness and name == "issued" and without_run is not None:
            witness = next((w for w in (witness, *witness["others"]) if without_run not in w["runs"]), None)
        if witness:
            found.append(witness["k"])
    return min(found, default=None)


def in_groups(row: Row) -> list[str]:
    """The groups that a passage (or a missing one) belongs to: all, by hop count, by hop position, by kind of gold."""
    groups = ["all", f"{row['hops']}-hop"]
    if row["hop"] is not None:
        groups.append(f"hop {row['hop']}")
    return [*groups, "labelled gold" if row["gold_exact"] else "matched gold"]


def shares(
    rows: Iterable[Row], tools: Sequence[str], ks: Sequence[int], k: int, **bootstrap: Any
) -> dict[str, dict[str, Any]]:
    """Group -> ``passages`` and ``questions`` (mapped ones), and by tool and tier how many passages are certified.

    ``found``: counts, one for each of ``ks``; ``low``, ``high``: the interval of the share at ``k``, over questions;
    ``lowest``: passages by the lowest tier that certifies them at ``k``.
    ``bootstrap``: seed, resamples, level. Passages that no chunk of the corpus holds are left out.
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        for group in in_groups(row) if row["mapped"] else ():
            groups.setdefault(group, []).append(row)
    return {group: _shares(groups[group], tools, ks, k, bootstrap) for group in sorted(groups)}


def _shares(
    rows: list[Row], tools: Sequence[str], ks: Sequence[int], k: int, bootstrap: Mapping[str, Any]
) -> dict[str, Any]:
    columns = [(tool, tier) for tool in tools for tier in (*TIERS, ANY)]
    needs = {c: np.array([found_from(row, *c) or max(ks) + 1 for row in rows]) for c in columns}
    by_question = _by_question(rows)
    parts = np.stack([by_question((needs[c] <= k).astype(float)) for c in columns], axis=1)
    low, high = ratio_intervals(parts, by_question(np.ones(len(rows))), **bootstrap)
    out: dict[str, Any] = {"passages": len(rows), "questions": len(parts)}
    for i, (tool, tier) in enumerate(columns):
        found = [int((needs[tool, tier] <= at).sum()) for at in ks]
        out.setdefault(tool, {})[tier] = {"found": found, "low": _rounded(low[i]), "high": _rounded(high[i])}
    for tool in tools:
        lowest = Counter(next((tier for tier in TIERS if needs[tool, tier][i] <= k), None) for i in range(len(rows)))
        out[tool]["lowest"] = {tier: lowest[tier] for tier in TIERS}
    return out


def _by_question(rows: Sequence[Row]) -> Callable[[np.ndarray], np.ndarray]:
    """A function that adds up one number a row into one a question, in the order of ids."""
    _, which = np.unique([row["qid"] for row in rows], return_inverse=True)
    return lambda values: np.bincount(which, weights=values)


def _rounded(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 6)


# -- what a run missed


@dataclass(frozen=True, slots=True)
class Rules:
    """How a run's missing passages are told apart: params.yaml's ``certificates``."""

    ks: tuple[int, ...] = (1, 3, 5, 10)
    run_k: int = 5
    asked_share: float = 0.6


def deepest(ks: Sequence[int], most: int) -> int:
    """The largest certified depth that is not above ``most``; the smallest where all are."""
    return max((k for k in ks if k <= most), default=min(ks))


def depth_of(searches: Asked, rules: Rules) -> int:
    """The k at which certificates count for a run: the largest certified one that is neither above ``run_k`` nor, but
    for an agent, above the hits of the run's longest list."""
    return deepest(rules.ks, rules.run_k if searches.depth is None else min(rules.run_k, searches.depth))


def excuse(searches: Asked) -> str | None:
    """Why a run's missing passages can't be told apart; None where they can."""
    if searches.own_index:
        return "searches an index of its own"
    return None if searches.tools else "no search recorded"


def missing(
    run: str,
    records: Iterable[RunRecord],
    searches: Asked,
    rows: Iterable[Row],
    gold: Mapping[str, Gold],
    passages: Mapping[str, Passage],
    chunks: ChunkMap,
    rules: Rules,
) -> list[dict[str, Any]]:
    """One row per gold passage that a record of ``run`` did not retrieve, with its fate; records with an error and
    passages that no chunk holds are left out. Raises DataError for a passage without a certificate row."""
    certified = {(row["qid"], row["passage"]): row for row in rows}
    k = depth_of(searches, rules)
    out = []
    for record in sorted(records, key=lambda r: (r.qid, r.seed)):
        if record.status == "error":
            continue
        support = chunks.support(record, gold[record.qid])
        for passage, found in zip(support.passages, support.found, strict=True):
            if found is not False:
                continue
            row = certified.get((record.qid, passage))
            if row is None:
                raise DataError(f"no certificate row of {record.qid} / {passage}; run `multihop certify` again")
            fate, tier = _fate(run, record, searches, row, gold[record.qid], passages[passage], k, rules)
            out.append({key: row[key] for key in ("qid", "passage", "hop", "hops", "type", "gold_exact")}
                       | {"seed": record.seed, "fate": fate, "tier": tier})  # fmt: skip
    return out


def _fate(
    run: str, record: RunRecord, searches: Asked, row: Row, gold: Gold, passage: Passage, k: int, rules: Rules
) -> tuple[str, str | None]:
    # By this record alone: what another seed asked did not help this one.
    if was_asked(own_words(record), passage.title, steps_of(gold, passage), rules.asked_share):
        return "asked_not_returned", None
    for tier in TIERS:
        needs = [n for tool in searches.tools if (n := found_from(row, tool, tier, run)) is not None]
        if needs and min(needs) <= k:
            return "never_asked", tier
    return "no_certificate", None


def split(
    lost: Sequence[Row], records: Iterable[RunRecord], gold: Mapping[str, Gold], rows: Iterable[Row], **bootstrap: Any
) -> dict[str, dict[str, Any]]:
    """Group -> ``questions`` (answered, and of the group), ``with_missing``, ``missing`` passages (over all seeds),
    ``tiers`` of those never asked; of each fate and of ``askable`` ``count``, ``share`` of the missing, ``low``,
    ``high`` over questions.

    The shares are None where nothing is missing. ``rows``: certificate rows of the run's index; they know which
    questions have a gold passage at a hop position.
    """
    answered = {r.qid for r in records if r.status != "error"}
    groups: dict[str, list[Row]] = {"all": []}
    for row in lost:
        for group in in_groups(row):
            groups.setdefault(group, []).append(row)
    positions: dict[str, set[str]] = {}
    for row in rows:
        positions.setdefault(f"hop {row['hop']}", set()).add(row["qid"])
    return {
        group: _split(group, groups[group], answered & positions.get(group, answered), gold, bootstrap)
        for group in sorted(groups)
    }


def _split(
    group: str, lost: list[Row], answered: set[str], gold: Mapping[str, Gold], bootstrap: Mapping[str, Any]
) -> dict[str, Any]:
    ids = sorted(q for q in answered if not group.endswith("-hop") or f"{gold[q].hops}-hop" == group)
    if group in ("labelled gold", "matched gold"):
        ids = [q for q in ids if gold[q].exact is (group == "labelled gold")]
    place = {qid: i for i, qid in enumerate(ids)}
    wholes, parts = np.zeros(len(ids)), np.zeros((len(ids), len(FATES) + 1))
    for row in lost:
        wholes[place[row["qid"]]] += 1
        parts[place[row["qid"]]] += [*(row["fate"] == fate for fate in FATES), row["tier"] in ASKABLE]
    low, high = ratio_intervals(parts, wholes, **bootstrap)
    tiers = Counter(row["tier"] for row in lost if row["tier"])
    out: dict[str, Any] = {
        "questions": len(ids),
        "with_missing": int((wholes > 0).sum()),
        "missing": len(lost),
        "tiers": {tier: tiers[tier] for tier in TIERS},
    }
    for i, (name, count) in enumerate(zip((*FATES, "askable"), parts.sum(axis=0).astype(int).tolist(), strict=True)):
        share = round(count / len(lost), 6) if lost else None
        out[name] = {"count": count, "share": share, "low": _rounded(low[i]), "high": _rounded(high[i])}
    return out
