"""Injected against recovered: confusion of categories, realised rates, set rates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from multihop.analysis import failures, paired
from multihop.blocks import Faults
from multihop.evaluation.statistics import ratio_intervals
from multihop.instrument.simulate import DATASET, METHODS, SETTING, Simulation
from multihop.instrument.truth import MECHANISMS, NO_FAILURE, Truth, truths

COLUMNS = (NO_FAILURE, *failures.CATEGORIES)
ZERO_AT = 3.0
"""Standard errors within which a set rate must be recovered."""
Row = dict[str, Any]


def compare(simulation: Simulation, faults: Faults, *, seed: int, resamples: int) -> Row:
    """The whole comparison as plain data; shares 0..1, rounded to 6 decimals.

    ``exact`` of a rate: whether the analysis claims to measure it, rather than a lower bound of it.

    ``seed`` and ``resamples`` are the bootstrap's.
    """
    methods, rates, set_rates = {}, [], []
    for method in METHODS:
        known = truths(simulation, method)
        said = {f["qid"]: f for f in simulation.failures[method] if f["judge"] == "llm"}
        scores = {s["qid"]: s for s in simulation.scores[method]}
        methods[method] = _confusion(known, said)
        options = {"seed": seed, "resamples": resamples}
        rates += [{"method": method} | r for r in _realised(known, said, scores, options)]
        set_rates += [{"method": method} | r for r in _set_rates(method, faults, said, scores)]
    return {
        "questions": len(simulation.cases),
        "hops": sum(len(c.fates) for c in simulation.cases.values()),
        "methods": methods,
        "rates": rates,
        "set_rates": set_rates,
        "paired": _paired(simulation, seed=seed, resamples=resamples),
    }


def _confusion(known: Sequence[Truth], said: dict[str, Row]) -> Row:
    """Counts of (what happened, what the analysis said), and the questions where that is not what it should say."""
    confusion = {m: Counter() for m in MECHANISMS}
    wrong = []
    for t in known:
        found = said.get(t.qid)
        category = found["category"] if found else NO_FAILURE
        symmetric = found["category_symmetric"] if found else NO_FAILURE
        confusion[t.mechanism][category] += 1
        if (category, symmetric) != (t.category, t.symmetric):
            wrong.append(
                {"qid": t.qid, "happened": t.mechanism, "should": t.category, "said": category, "symmetric": symmetric}
            )
    return {
        "confusion": {m: {c: n[c] for c in COLUMNS if n[c]} for m, n in confusion.items()},
        "should": {m: sorted({t.category for t in known if t.mechanism == m}) for m in MECHANISMS},
        "agree": len(known) - len(wrong),
        "disagree": wrong,
    }


def _realised(known: Sequence[Truth], said: dict[str, Row], scores: dict[str, Row], options: Row) -> list[Row]:
    """Shares of all questions (or hops): by the truth, by the analysis, with the analysis's interval."""

    def label(t: Truth, key: str = "category") -> str:
        return said[t.qid][key] if t.qid in said else NO_FAILURE

    missing, wrong = "missing_evidence", [t for t in known if t.category != NO_FAILURE]
    rows = [
        _rate(c, [[t.category == c] for t in known], [[label(t) == c] for t in known], options)
        for c in failures.PAPER_CATEGORIES
    ]
    rows += [
        _rate(
            "missing_evidence, symmetric rule",
            [[t.symmetric == missing] for t in known],
            [[label(t, "category_symmetric") == missing] for t in known],
            options,
        ),
        _rate(
            "some gold passage unseen, of the wrong",
            [[any(h != "seen" for h in t.hops)] for t in wrong],
            [[t.qid in said and said[t.qid]["wrong_and_missing"]] for t in wrong],
            options,
        ),
        _rate(
            "gold passage unseen, of all",
            [[h != "seen" for h in t.hops] for t in known],
            [[found is False for found in scores[t.qid]["hop_found"]] for t in known],
            options,
        ),
    ]
    if any(t.early for t in known):
        judged = [t for t in wrong if t.qid in said]
        # What analysis/failures.py counts is a lower bound: an item that rests on another item's gold passage is none.
        found = [[said[t.qid]["premature_resolutions"] > 0] for t in judged]
        true = [[t.early > 0] for t in judged]
        rows.append(_rate("some item resolved too early, of the wrong", true, found, options, exact=False))
    return [row for row in rows if row]


def _rate(name: str, true: Sequence[list], found: Sequence[list], options: Row, exact: bool = True) -> Row | None:
    """``true``, ``found``: a list a question, 0 or 1 for each of its hops (or for itself); None without a question."""
    n = sum(map(len, found))
    if not n:
        return None
    parts, wholes = (np.array([float(f(own)) for own in found]) for f in (sum, len))
    low, high = ratio_intervals(parts[:, None], wholes, **options)
    counts = sum(map(sum, true)), sum(map(sum, found))
    return {
        "rate": name,
        "n": n,
        "realised": rounded(counts[0] / n),
        "recovered": rounded(counts[1] / n),
        "low": rounded(low[0]),
        "high": rounded(high[0]),
        "exact": exact,
        "points": rounded(100 * (counts[1] - counts[0]) / n),
    }


def _set_rates(method: str, faults: Faults, said: dict[str, Row], scores: dict[str, Row]) -> list[Row]:
    """What was set against what scores and failures show of it, in standard errors of a share of so many."""
    complete = [s for s in scores.values() if s["support_found"] == s["support_total"]]
    partial = [s for s in scores.values() if s["support_found"] < s["support_total"]]
    right = [s for s in scores.values() if s["contain"] == 1]
    wrong = [s for s in scores.values() if s["contain"] == 0]
    heard = 1 - faults.judge_accept

    def reason(rows: list[Row], name: str) -> int:
        return sum(s["qid"] in said and said[s["qid"]]["reason"] == name for s in rows)

    # A complete register ends the search, so that only the other method can still run out of budget.
    in_time = 1 - faults.stall if method == "arag" else 1.0
    return [
        against("judge rejects a right answer", faults.judge_error, sum(not s["llm_acc"] for s in right), len(right)),
        against("judge accepts a wrong answer", faults.judge_accept, int(sum(s["llm_acc"] for s in wrong)), len(wrong)),
        against("abstains, evidence complete", faults.abstain * heard, reason(complete, "phrase"), len(complete)),
        against("abstains, evidence missing", faults.abstain_missing * heard, reason(partial, "phrase"), len(partial)),
        against(
            "misreads complete evidence",
            (1 - faults.abstain) * faults.misread * heard * in_time,
            reason(complete, "3a"),
            len(complete),
        ),
        against(
            "guesses right, evidence missing",
            (1 - faults.abstain_missing) * faults.guess,
            int(sum(s["contain"] for s in partial)),
            len(partial),
        ),
    ]


MEASURES = (
    ("correct", False),
    (paired.UNRETRIEVED, False),
    (paired.WRONG_AND_MISSING, False),
    ("missing_evidence", False),
    ("missing_evidence", True),
)
"""(measure of the paired comparison, whether by the symmetric rule)"""


def _paired(simulation: Simulation, **options: int) -> Row:
    """What the paired comparison says of two methods that search and answer alike; counts of questions."""
    corpora = {m: {r.corpus_hash for r in simulation.records[m]} for m in METHODS}
    sides = [
        paired.Side(m, DATASET, SETTING, "simulated", min(corpora[m]), simulation.scores[m], simulation.failures[m])
        for m in METHODS
    ]
    pair = paired.pair(*sides)
    rows = []
    for measure, symmetric in MEASURES:
        c = paired.compare([pair], measure, symmetric=symmetric, **options)
        low, high = (round(c.n * end, 3) for end in (c.difference.low, c.difference.high))
        counts = {"first": round(c.n * c.first), "second": round(c.n * c.second), "low": low, "high": high}
        rows.append({"measure": measure, "symmetric": symmetric, "p": rounded(c.test.p)} | counts)
    found = paired.conversion([pair], **options)
    kinds = ("had", "right", "other_found", "other_missing", "same", "new")
    became = {kind: round(getattr(found, kind)) for kind in kinds}
    return {"rows": rows, "missing_evidence_became": became}


def against(name: str, expected: float, count: int, n: int) -> Row:
    """``expected``: the share that the set rates imply; ``z``: how many of its standard errors off."""
    error = math.sqrt(expected * (1 - expected) / n) if n else 0.0
    share = count / n if n else None
    z = None if share is None or not error else (share - expected) / error
    return {
        "rate": name,
        "expected": rounded(expected),
        "count": count,
        "n": n,
        "share": rounded(share),
        "z": rounded(z),
        "within": share is None or (abs(z) <= ZERO_AT if z is not None else share == expected),
    }


def rounded(value: float | None) -> float | None:
    return None if value is None else round(float(value), 6)
