"""The number behind a quantity of a claim's test (predicates.py), with its interval; deciding.py says what it decides.

Differences are paired question by question; runs that may not be compared are refused (analysis/pairing.py).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from scipy.stats import norm

from multihop.analysis import paired
from multihop.analysis.failures import CATEGORIES
from multihop.errors import DataError
from multihop.evaluation import aggregate
from multihop.evaluation.statistics import bootstrap_mean
from multihop.report import contrasts, counted, pairs, reachable
from multihop.report.deciding import Estimate
from multihop.report.expected import Cell
from multihop.report.leaves import Operand
from multihop.report.load import Report
from multihop.report.predicates import Combination, Cut, Difference, Level, Reachable
from multihop.report.values import (
    PERCENT,
    Measured,
    absent,
    measure,
    ratio,
    run_of,
    scale,
    score_rows,
    statistics,
)

Options = Mapping[str, Any]
"""``judge`` ("llm" or "rule") and ``symmetric``, as of values.measure."""
RATES: dict[str, Any] = {
    "wrong_rate": None,
    "premature_rate": lambda f: f["premature_resolutions"] > 0,
    "relabelled_rate": lambda f: f["reason"] == "3b",
    **{f"{m}_rate": m for m in (*CATEGORIES, paired.UNRETRIEVED, paired.WRONG_AND_MISSING)},
}
"""Questions of a kind in percent of all questions, by a measure of analysis/paired.py or what holds for a failure row.

A share of the failures is ``<cause>_share``. ``premature_rate``: wrong, and an item was resolved with no gold passage
among its own; ``relabelled_rate``: wrong, and a reasoning error by rule 3b alone.
"""
EVENTS = {"guidance_tokens": ("inject", lambda data: data["tokens"])}
"""Sums over a kind of event of a question's record."""
SHARES = tuple(f"{c}_share" for c in CATEGORIES)
METRICS = frozenset({*aggregate.MEANS, *RATES, *EVENTS, *SHARES, *counted.OF_RECORDS, *counted.OF_DATA})


def at_level(report: Report, alpha: float) -> Report:
    """The same results with intervals of another confidence, 1 - alpha."""
    own = report.params.statistics
    if math.isclose(1 - own.confidence, alpha):
        return report
    key = ("at_level", round(alpha, 12))
    if key not in report.memo:
        _ = report.expected, report.settings, report.cards, report.metrics, report._files, report._counts  # shared
        twin = Report(report.root, report.paper)
        twin.__dict__ |= {k: v for k, v in report.__dict__.items() if k != "memo"}
        stricter = own.model_copy(update={"confidence": 1 - alpha})
        twin.__dict__["params"] = report.params.model_copy(update={"statistics": stricter})
        twin.memo[reachable.WIDER] = norm.ppf(1 - alpha / 2) / norm.ppf((1 + own.confidence) / 2)
        report.memo[key] = twin
    return report.memo[key]


def estimate(report: Report, o: Operand, options: Options) -> Estimate:
    """The number of an operand; the interval has the report's confidence."""
    bare = o.of.model_dump(exclude={"above", "at_least", "below", "at_most", "datasets", "settings", "groups"})
    key = ("estimate", repr(bare), o.dataset, o.role, o.group, tuple(sorted(options.items())))
    if key not in report.memo:
        report.memo[key] = _estimate(report, o, options)
    return report.memo[key]


def _estimate(report: Report, o: Operand, options: Options) -> Estimate:
    if isinstance(o.of, Reachable):
        found = reachable.share(report, o.dataset, o.role, o.of.system, o.group, o.of.share)
        return _share(report, _cell(o, o.of.system, "llm_acc"), found, (0, 100))
    for system, metric in o.of.pairs:
        if missing := _unavailable(report, _cell(o, system, metric)):
            return Estimate(missing=missing)
    try:
        match o.of:
            case Combination():
                return _combination(report, o, [(t.weight, t.system, t.metric) for t in o.of.terms], options)
            case Cut():
                return _cut(report, o, options)
            case Difference() if o.of.metric.endswith("_share"):
                cell = _cell(o, o.of.first, f"{o.of.metric}_delta")
                pair = (o.of.first, o.of.second)
                found = contrasts.contrast(report, cell, pair, **options)
                return _share(report, _cell(o, o.of.first, "llm_acc"), found, (-100, 100))
            case Difference():
                terms = [(1.0, o.of.first, o.of.metric), (-1.0, o.of.second, o.of.metric)]
                return _combination(report, o, terms, options)
            case Level():
                return _level(report, o, options)
    except DataError as e:
        return Estimate(missing=str(e))
    raise ValueError(f"nothing estimates {o.of!r}")


def _unavailable(report: Report, cell: Cell) -> str | None:
    """What is missing for one system's metric."""
    if cell.metric in counted.OF_DATA:
        return None
    run = run_of(report, cell.system)
    if missing := absent(report, cell.dataset, cell.role, run):
        return missing
    rows = score_rows(report, cell)
    setting = report.label_setting(report.setting(cell.role))
    where = f"{report.label_run(run)} on {report.label_dataset(cell.dataset)} / {setting}"
    if not rows:
        return f"no {cell.group} question in {where}"
    if cell.metric == "usd" and not any(r["usd"] for r in rows):
        return "a local reader has no price"
    if cell.metric in RATES or cell.metric in SHARES:
        wrong = any(r["llm_acc"] == 0 for r in report.score_rows(cell.dataset, report.setting(cell.role), run))
        if wrong and not report.failure_rows(cell.dataset, report.setting(cell.role), run):
            return f"no failure analysis of {where} yet (multihop score)"
    if callable(RATES.get(cell.metric)):
        failed = report.failure_rows(cell.dataset, report.setting(cell.role), run)
        if failed and all(f["register_closed"] is None for f in failed):
            return f"{where} keeps no register, so it resolves nothing"
    if cell.metric in EVENTS:
        kind = EVENTS[cell.metric][0]
        if not any(e.kind == kind for r in counted.records_of(report, cell) for e in r.events):
            return f"no {kind!r} event in the records of {where}"
    return None


def _cell(o: Operand, system: str, metric: str) -> Cell:
    return Cell("claims", o.dataset, system, o.role, metric, o.group)


def _level(report: Report, o: Operand, options: Options) -> Estimate:
    cell = _cell(o, o.of.system, _judged(o.of.metric, options))
    if cell.metric not in RATES and cell.metric not in EVENTS:
        extra = options if cell.metric in SHARES else {}
        measured = measure(report, cell, **extra)
        if cell.metric in SHARES:
            return _share(report, cell, measured, (0, 100))
        found = _measured(measured, (0, scale(report, cell.metric)) if cell.metric in PERCENT else None)
        if cell.metric in counted.OF_DATA:
            return replace(found, exact=True)
        if cell.metric in counted.OF_RECORDS and cell.metric != "injection_saving" and found.degenerate:
            return replace(found, span=(0, max(found.n, 1)))
        return found
    values = list(_by_question(report, cell, options).values())
    return _mean(report, values, (0, 100) if cell.metric in RATES else None)


def _combination(report: Report, o: Operand, terms: list[tuple[float, str, str]], options: Options) -> Estimate:
    columns = [_by_question(report, _cell(o, system, metric), options) for _, system, metric in terms]
    shared = _same_questions(report, o, terms, columns)
    factors = [w * (100 if m in PERCENT else 1) for w, _, m in terms]
    values = [math.fsum(f * c[q] for f, c in zip(factors, columns, strict=True)) for q in shared]
    span = None
    if all(m in PERCENT or m in RATES for _, _, m in terms):
        span = (100 * sum(min(w, 0) for w, _, _ in terms), 100 * sum(max(w, 0) for w, _, _ in terms))
    return _mean(report, [0.0 if abs(v) <= contrasts.EQUAL else v for v in values], span)


def _cut(report: Report, o: Operand, options: Options) -> Estimate:
    terms = [(1.0, o.of.first, o.of.metric), (-1.0, o.of.second, o.of.metric)]
    less, more = (_by_question(report, _cell(o, system, metric), options) for _, system, metric in terms)
    shared = _same_questions(report, o, terms, [less, more])
    less, more = {q: less[q] for q in shared}, {q: more[q] for q in shared}
    kept = ratio(report, less, more)
    if kept.value is None:
        return Estimate(n=len(shared), remark="undefined: the second has none, so nothing can be saved")
    differ = sum(abs(less[q] - more[q]) > contrasts.EQUAL for q in shared)
    entering = sum(less[q] > 0 or more[q] > 0 for q in shared)
    return Estimate(100 - kept.value, 100 - kept.high, 100 - kept.low, len(shared), differ, entering=entering)


def _same_questions(report: Report, o: Operand, terms: Any, columns: list[dict[str, float]]) -> list[str]:
    """The questions of all columns. Raises DataError where the systems may not be compared (analysis/pairing.py)."""
    first, *rest = dict.fromkeys(system for _, system, _ in terms)
    for other in rest:
        paired.pair(*(_side(report, o.dataset, o.role, system) for system in (first, other)))
    return sorted(set.intersection(*(set(c) for c in columns)))


def _side(report: Report, dataset: str, role: str, system: str) -> paired.Side:
    return pairs.side(report, run_of(report, system), dataset, report.setting(role))


def _by_question(report: Report, cell: Cell, options: Options) -> dict[str, float]:
    """Question -> value, the mean over its seeds; rates in percent, scores in their own unit."""
    cell = cell._replace(metric=_judged(cell.metric, options))
    if cell.metric not in RATES and cell.metric not in EVENTS:
        return contrasts.by_question(report, cell)
    rows = score_rows(report, cell)
    seeds = len({r["seed"] for r in rows}) or 1
    found = dict.fromkeys(sorted({r["qid"] for r in rows}), 0.0)
    if cell.metric in EVENTS:
        kind, value = EVENTS[cell.metric]
        for record in counted.records_of(report, cell):
            found[record.qid] += sum(value(e.data) for e in record.events if e.kind == kind) / seeds
        return found
    return {q: 100 * v / seeds for q, v in _rate(report, cell, found, options).items()}


def _rate(report: Report, cell: Cell, found: dict[str, float], options: Options) -> dict[str, float]:
    """Question -> how many of its seeds are of the kind; those without a value are left out."""
    judge, measure = options.get("judge", "llm"), RATES[cell.metric]
    own = _side(report, cell.dataset, cell.role, cell.system)
    if callable(measure):
        rows = (f for f in own.failures if f["judge"] == judge and measure(f))
        values = Counter((f["qid"], f["seed"]) for f in rows)
    elif measure is None:
        values = {key: 1 - v for key, v in paired.values(own, paired.CORRECT, judge).items()}
    else:
        values = paired.values(own, measure, judge, symmetric=bool(options.get("symmetric")))
    for (qid, _), value in values.items():
        if value is None:
            found.pop(qid, None)
        elif qid in found:
            found[qid] += value
    return found


def _judged(metric: str, options: Options) -> str:
    return "rule_acc" if metric == "llm_acc" and options.get("judge") == "rule" else metric


def _mean(report: Report, values: list[float], span: tuple[float, float] | None) -> Estimate:
    if not values:
        return Estimate(remark="undefined: no question has a value")
    i = bootstrap_mean(values, **statistics(report))
    return Estimate(i.mean, i.low, i.high, i.n, sum(v != 0 for v in values), span)


def _share(report: Report, cell: Cell, m: Measured, span: tuple[float, float]) -> Estimate:
    """A share whose ``Measured`` counts the questions that enter it; n are all of the group."""
    questions = 0 if m.missing else len({r["qid"] for r in score_rows(report, cell)})
    return replace(_measured(m, span), n=questions, entering=m.n)


def _measured(m: Measured, span: tuple[float, float] | None) -> Estimate:
    if m.missing:
        return Estimate(missing=m.missing)
    if m.value is None:
        return Estimate(n=m.n, remark=m.remark)
    low, high = (m.value, m.value) if m.low is None else (m.low, m.high)
    return Estimate(m.value, low, high, m.n, m.n, span, remark=m.remark)
