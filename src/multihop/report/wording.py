"""A part of a claim in words: which number of which systems, where, and how it stands to what the claim wants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from multihop.report.frames import METRIC_LABELS, number
from multihop.report.leaves import Operand
from multihop.report.ledger import Ledger
from multihop.report.load import Report
from multihop.report.predicates import Combination, Cut, Difference, Reachable, Term
from multihop.report.values import PERCENT

if TYPE_CHECKING:
    from multihop.report.judging import Part


def described(report: Report, ledger: Ledger, part: Part, short: bool = False) -> str:
    """``short``: only what is measured; else also where, the number with its interval, and the range wanted."""
    leaf, e = part.leaf, part.estimate
    what = quantity(report, ledger, leaf.operand.of)
    if leaf.minus:
        what += f", {_place(report, leaf.operand, leaf.minus)} less {_place(report, leaf.minus, leaf.operand)}"
    if short:
        return what
    if not leaf.minus or leaf.minus.group != leaf.operand.group:
        what += f" on {report.label_dataset(leaf.operand.dataset)}"
    if not leaf.minus and leaf.operand.group != "all":
        what += f", {leaf.operand.group}"
    setting = report.setting(leaf.operand.role)
    what += f" / {report.label_setting(setting) if setting else report.expected.own.label(leaf.operand.role)}"
    if e.missing:
        return f"{what}: {e.missing}"
    if e.value is None:
        return f"{what}: {e.remark}"
    value = interval(report, leaf.operand.of, e)
    said = f"{what}: {value}, n = {e.n}, wanted {leaf.range}"
    return f"{said} ({e.remark})" if e.remark else said


def interval(report: Report, of: Any, e: Any) -> str:
    value, low, high = (figure(report, of, v) for v in (e.value, e.low, e.high))
    return value if low == high == value else f"{value} [{low}, {high}]"


def figure(report: Report, of: Any, value: float) -> str:
    """In the metric's usual precision; differences and combinations of shares are percentage points."""
    metric = of.pairs[0][1]
    points = isinstance(of, Combination | Difference) and (metric in PERCENT or metric.endswith("_rate"))
    if isinstance(of, Cut | Reachable) or points or metric.endswith(("_rate", "_share")):
        return f"{value:.1f}"
    return number(value, metric, report.expected.shares)


def quantity(report: Report, ledger: Ledger, of: Any) -> str:
    def system(name: str) -> str:
        label = ledger.label(report.expected, name)
        return f"({label})" if ", " in label else label

    match of:
        case Combination():
            return " ".join(_term(t, system(t.system)) for t in of.terms).removeprefix("+ ")
        case Cut():
            return f"how much less {metric_label(of.metric)} {system(of.first)} has than {system(of.second)}, in %"
        case Difference():
            return f"{metric_label(of.metric)}, {system(of.first)} − {system(of.second)}"
        case Reachable():
            return f"share of what {system(of.system)} missed: {of.share.replace('_', ' ')}"
    label = metric_label(of.metric)
    return label if of.metric == "questions" else f"{label} of {system(of.system)}"


def _term(term: Term, system: str) -> str:
    factor = "" if abs(term.weight) == 1 else f"{abs(term.weight):g} × "
    return f"{'−' if term.weight < 0 else '+'} {factor}{metric_label(term.metric)} of {system}"


def metric_label(metric: str) -> str:
    if metric == "questions":
        return "number of questions"
    if metric in METRIC_LABELS:
        return METRIC_LABELS[metric]
    if metric.endswith("_rate"):
        return metric.removesuffix("_rate").replace("_", " ") + " (% of questions)"
    if metric.endswith("_share"):
        return metric.removesuffix("_share").replace("_", " ") + " (% of failures)"
    return metric.replace("_", " ")


def _place(report: Report, o: Operand, other: Operand) -> str:
    return o.group if o.group != other.group else report.label_dataset(o.dataset)
