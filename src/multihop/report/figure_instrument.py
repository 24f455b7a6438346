"""The instrument's figures: recovered against injected, and the drop that labels alone make."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from multihop.report.instrument import METHODS, command, measured
from multihop.report.load import Report
from multihop.report.plotting import INK, MUTED, Picture, finish, nothing, styled
from multihop.report.plotting import METHODS as COLOURS

MARKS = {"arag": "o", "executionrag": "s"}
HABITS = {
    "abstain_missing": ("abstains where evidence is missing", "#CC79A7", "o"),
    "stall": ("runs out of its budget", "#009E73", "s"),
}
DRIFTS = ("#56B4E9", "#0072B2", INK)


@styled
def recovered(report: Report, stored: bool = True) -> Figure:
    """Every rate of every simulated run (left), and counts of missing evidence over the grids of labels (right)."""
    heading = "Recovered against injected"
    found, points = measured(report, "recovery", stored), measured(report, "bias", stored)
    if found is None or points is None:
        return nothing(heading, f"Not there: run `{command(stored)}`.", [])
    runs = [{"scale": 1.0, "questions": found["questions"], "rates": found["rates"]}, *found["grid"]]
    sizes = ", ".join(f"{r['scale']:g} x the set rates (n = {r['questions']:,})" for r in runs)
    note = (
        f"Left: shares of questions, hops or wrong answers in simulated runs through the whole pipeline, {sizes}; "
        "whiskers: 95 % bootstrap interval of the recovered share; hollow: a lower bound by its definition. Right: "
        "questions not answered rightly for want of a passage, in process, against what is called missing evidence. On "
        "the line: recovered; under it without a register: hidden as gave up, which comes first."
    )
    figure = Picture(heading, [note], height=4.3)
    left, right = figure.body.subplots(1, 2)
    for run in runs:
        for r in run["rates"]:
            _rate(left, r)
    _square(left, "realised, %", "recovered, %")
    for method, label in METHODS.items():
        left.plot([], [], MARKS[method], color=COLOURS[method], markersize=5, label=label)
    left.legend(loc="upper left")
    _counts(right, points["points"])
    return finish(figure)


def _rate(axes: Any, r: dict[str, Any]) -> None:
    x, y, low, high = (100 * r[k] for k in ("realised", "recovered", "low", "high"))
    colour = COLOURS[r["method"]]
    face = colour if r["exact"] else "white"
    axes.errorbar(
        x, y, [[max(y - low, 0)], [max(high - y, 0)]], fmt=MARKS[r["method"]], color=colour, markerfacecolor=face,
        markersize=7 if r["method"] == "arag" else 4, elinewidth=0.6, alpha=0.85,
    )  # fmt: skip


def _counts(axes: Any, points: list[dict[str, Any]]) -> None:
    looks = (
        ("missing", 0, "o", COLOURS["arag"], "without a register"),
        ("missing", 1, "s", COLOURS["executionrag"], "with one, paper's rule"),
        ("symmetric", 1, "x", INK, "with one, symmetric rule"),
    )
    own = [p for p in points if p["grid"] in ("early", "dropped")]
    for key, side, mark, colour, label in looks:
        xs, ys = [p["injected"][side] for p in own], [p[key][side] for p in own]
        axes.plot(xs, ys, mark, color=colour, markersize=5, label=label, linestyle="none")
    habits = [p for p in points if p["grid"] in HABITS]
    xs, ys = [p["injected"][1] for p in habits], [p["missing"][1] for p in habits]
    axes.plot(xs, ys, "^", color="#CC79A7", markersize=5, label="without one, gives up more often", linestyle="none")
    _square(axes, "injected: wrong for want of a passage", "recovered as missing evidence")
    axes.legend(loc="upper left")


def _square(axes: Any, x: str, y: str) -> None:
    top = max(axes.get_xlim()[1], axes.get_ylim()[1])
    axes.plot([0, top], [0, top], color=MUTED, linewidth=0.8, zorder=0)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(axis="both")


@styled
def labels_alone(report: Report, stored: bool = True) -> Figure:
    """How large a drop in missing evidence labels and habits make, as a share of the first method's."""
    heading = "Drop in missing evidence between two methods that search alike"
    found = measured(report, "bias", stored)
    if found is None:
        return nothing(heading, f"Not there: run `{command(stored)}`.", [])
    paper = 100 * (found["paper"]["first"] - found["paper"]["second"]) / found["paper"]["first"]
    n = found["points"][0]["questions"]
    note = (
        f"n = {n:,} questions a point, in process, classified by the analysis itself; whiskers: 95 % bootstrap "
        f"interval of the paired difference. Dashed: the paper's drop, {found['paper']['first']} to "
        f"{found['paper']['second']}, of other systems and real questions. Left and middle: the symmetric rule shows "
        "no drop in these grids (0 everywhere), in which no search is cut short."
    )
    figure = Picture(heading, [note], height=3.7)
    panels = figure.body.subplots(1, 3, sharey=True)
    drifts = sorted({p["drift"] for p in found["points"] if p["grid"] == "early"})
    for drift, colour in zip(drifts, DRIFTS, strict=False):
        own = [p for p in found["points"] if p["grid"] == "early" and p["drift"] == drift]
        _line(panels[0], own, colour, "o", f"{100 * drift:g} % of hops drift")
    _line(panels[1], [p for p in found["points"] if p["grid"] == "dropped"], INK, "o", "10 % of hops drift")
    for grid, (label, colour, mark) in HABITS.items():
        _line(panels[2], [p for p in found["points"] if p["grid"] == grid], colour, mark, label)
    titles = ("Rule 3b: resolved too early", "Rule 3b: left out of the register", "Gave up comes first")
    under = ("% of hops resolved too early", "% of drifted hops left out", "% of questions, second method")
    for axes, name, text in zip(panels, titles, under, strict=True):
        axes.axhline(paper, color=MUTED, linestyle="--", linewidth=0.9)
        axes.set_title(name)
        axes.set_xlabel(text)
        axes.grid(axis="y")
        axes.legend(loc="upper left")
        axes.set_ylim(-4, 135)
    panels[0].set_ylabel("drop, % of the first method's\nmissing evidence")
    return finish(figure)


def _line(axes: Any, points: list[dict[str, Any]], colour: str, mark: str, label: str) -> None:
    own = [p for p in points if p["missing"][0]]
    xs, ys = [100 * p["rate"] for p in own], [100 * p["drop_share"] for p in own]
    below = [y - 100 * p["low"] / p["missing"][0] for y, p in zip(ys, own, strict=True)]
    above = [100 * p["high"] / p["missing"][0] - y for y, p in zip(ys, own, strict=True)]
    whiskers = [[max(v, 0) for v in below], [max(v, 0) for v in above]]
    axes.errorbar(xs, ys, whiskers, marker=mark, color=colour, markersize=4, linewidth=1, capsize=2, label=label)
