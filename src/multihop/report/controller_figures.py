"""What the controller does and what it learned, as figures: its actions, importances, calibration and targets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from textwrap import fill
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from multihop.controller.state import ACTIONS as CODES
from multihop.controller.state import NAMES
from multihop.report.controller_data import MODELS, ROLE, RUN, Decision, all_decisions, cards, records, serves
from multihop.report.expected import Cell
from multihop.report.load import Report
from multihop.report.plotting import (
    ACTIONS,
    FAINT,
    INK,
    MUTED,
    Picture,
    finish,
    footer,
    keep,
    nothing,
    percent_axis,
    png,
    save,
    styled,
)

__all__ = ["action_mix", "calibration", "importances", "keep", "png", "save", "targets"]
FEATURES_SHOWN = 8
TRAININGS = (("#0072B2", "o"), ("#E69F00", "s"), ("#009E73", "^"), ("#CC79A7", "D"), ("#56B4E9", "v"))
"""Colour and marker of the independent trainings, in turn."""
UNTRAINED = "Not run: no controller is trained yet."


# -- actions


@styled
def action_mix(report: Report) -> Figure:
    """Above, what was done at each step; below, how often each operation was valid and was chosen."""
    report = report.of("dynakrag")
    heading = "What the controller does"
    found = {d: all_decisions(report, d) for d in report.datasets}
    cells = [Cell("", d, RUN, ROLE, "f1", "all") for d in report.datasets]
    if not any(found.values()):
        return nothing(heading, "Not run: no record of the run dynakrag yet.", footer(report, cells))
    note = (
        "Above: share of the questions; white: the search had ended. In a segment: questions. Below: outline, share of "
        "all decisions in which the operation was valid; filled, in which it was chosen. At step 1 only R can be valid."
    )
    figure = Picture(heading, footer(report, cells, note, whiskers=False), height=5.9)
    grid = figure.body.subplots(2, len(found), squeeze=False, sharey="row", height_ratios=[1.3, 1])
    for (above, below), (dataset, taken) in zip(grid.T, found.items(), strict=True):
        above.set_title(f"{report.label_dataset(dataset)}, n = {len(records(report, dataset)):,}")
        _steps(above, taken, len(records(report, dataset)))
        _validity(below, taken)
    grid[0][0].set_ylabel("% of the questions")
    grid[1][0].set_ylabel("% of the decisions")
    handles = [Patch(facecolor=ACTIONS[c][0], label=f"{c}  {NAMES[c]}") for c in CODES]
    handles.append(Patch(facecolor="white", edgecolor=FAINT, label="ended before"))
    figure.body.legend(handles=handles, loc="outside lower center", ncols=4)
    return finish(figure)


def _steps(axes: Any, taken: list[Decision], questions: int) -> None:
    percent_axis(axes)
    steps = range(1, max((d.step for d in taken), default=1) + 1)
    for step in steps:
        chosen = [d.chosen for d in taken if d.step == step]
        bottom = 0.0
        for code in CODES:
            count = chosen.count(code)
            share = 100 * count / questions if questions else 0.0
            if not share:
                continue
            fill, ink = ACTIONS[code]
            axes.bar(step, share, 0.72, bottom, color=fill, edgecolor="white")
            if share >= 8:
                axes.text(step, bottom + share / 2, f"{code} {count:,}", ha="center", va="center", size=8, color=ink)
            bottom += share
        if bottom < 100:
            axes.bar(step, 100 - bottom, 0.72, bottom, facecolor="white", edgecolor=FAINT, linewidth=0.8)
    axes.set_xticks(list(steps), [f"step {s}" for s in steps])
    if not taken:
        axes.text(0.5, 0.5, "not run", transform=axes.transAxes, ha="center", color=MUTED)


def _validity(axes: Any, taken: list[Decision]) -> None:
    percent_axis(axes)
    axes.set_xticks(range(len(CODES)), CODES)
    for i, code in enumerate(CODES if taken else ()):
        valid = 100 * sum(code in d.valid for d in taken) / len(taken)
        chosen = 100 * sum(code == d.chosen for d in taken) / len(taken)
        axes.bar(i, valid, 0.7, fill=False, edgecolor=INK, linewidth=0.9)
        axes.bar(i, chosen, 0.7, color=ACTIONS[code][0])
        text = f"{chosen:.0f} / {valid:.0f}"
        axes.annotate(text, (i, valid), (0, 2), textcoords="offset points", ha="center", size=7.5)
    if taken:
        axes.set_xlabel(f"{len(taken):,} decisions: chosen / valid, %")


# -- importances


@styled
def importances(report: Report) -> Figure:
    """Permutation importances of the four forests, a row for each dataset that was trained on."""
    report = report.of("dynakrag")
    heading, found = "What the controller looks at", cards(report)
    if not found:
        return nothing(heading, UNTRAINED, [report.note()])
    note = (
        "Permutation importance: how much of a constant's squared error a forest loses when the feature's values are "
        "shuffled among the calibration questions. Bars: mean over the trainings, marks: each training. Features that "
        f"move nothing are left out; at most {FEATURES_SHOWN} are shown."
    )
    figure = Picture(heading, [f"{note} {_sizes(report, found)}", report.note()], height=0.4 + 2.7 * len(found))
    grid = figure.body.subplots(len(found), len(MODELS), squeeze=False)
    for line, (dataset, card) in zip(grid, found.items(), strict=True):
        for axes, (model, name) in zip(line, MODELS.items(), strict=True):
            axes.set_title(f"{name}\ntrained on {report.label_dataset(dataset)}", size=8.5)
            _bars(axes, model, card["trainings"])
    return finish(figure)


def _bars(axes: Any, model: str, trainings: list[dict[str, Any]]) -> None:
    each = [{row["feature"]: row["mean"] for row in t["importances"].get(model, [])} for t in trainings]
    mean = {f: sum(t.get(f, 0.0) for t in each) / len(each) for f in sorted({f for t in each for f in t})}
    shown = [f for f in sorted(mean, key=lambda f: (-mean[f], f)) if mean[f] > 0][:FEATURES_SHOWN]
    if not shown:
        axes.set_axis_off()
        why = f"no feature matters:\n{_why_none(model, trainings)}"
        axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center", size=8, color=MUTED)
        return
    axes.barh(range(len(shown)), [mean[f] for f in shown], 0.62, color="#56B4E9")
    for (colour, marker), training in zip(TRAININGS * len(each), each, strict=False):
        axes.plot([training.get(f, 0.0) for f in shown], range(len(shown)), marker, color=colour, markersize=3.5,
                  markeredgecolor="white", markeredgewidth=0.4)  # fmt: skip
    axes.set_yticks(range(len(shown)), shown, size=7)
    axes.set_ylim(FEATURES_SHOWN - 0.5, -0.5)
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.tick_params(axis="both", length=0, labelsize=7)
    axes.grid(axis="x")


def _why_none(model: str, trainings: list[dict[str, Any]]) -> str:
    """Why a forest has no importance to show, a line for each reason, with how many trainings it holds in."""
    classes = model in ("continuation", "premature")
    counts: Counter[str] = Counter()
    for t in trainings:
        reasons = []
        if any(text.startswith(f"{model}:") and "constant" in text for text in t["fallbacks"]):
            reasons.append("a constant classifier")
        if not t["calibration_questions"]:
            reasons.append("nothing held out")
        elif not t["importances"].get(model):
            reasons.append("held-out rows of one class" if classes else "held-out targets all equal")
        counts.update(reasons or ["shuffling changes nothing for the worse"])
    lines = (f"{reason} ({n} of {len(trainings)})" for reason, n in counts.most_common())
    return "\n".join(fill(line, 36) for line in lines)


def _sizes(report: Report, found: Mapping[str, dict[str, Any]]) -> str:
    """n of each card and whom it serves."""
    parts = []
    for dataset, card in found.items():
        served = ", ".join(report.label_dataset(d) for d in serves(report, dataset)) or "no dataset"
        parts.append(
            f"Trained on {report.label_dataset(dataset)}: n = {card['questions']:,} train questions, "
            f"{card['states']:,} states, {len(card['trainings'])} training(s); serves {served}"
        )
    return "; ".join(parts) + "."


# -- calibration


@styled
def calibration(report: Report) -> Figure:
    """Reliability of the gate's two classifiers, out of fold."""
    report = report.of("dynakrag")
    heading, found = "Calibration of the gate", cards(report)
    if not found:
        return nothing(heading, UNTRAINED, [report.note()])
    note = (
        "Out-of-fold probabilities in tenths; the larger the mark, the more rows. On the dashed line a probability is "
        "what happens; a falling curve is worse than a constant. A classifier that saw one class only is a constant: "
        "then there is one mark, or none."
    )
    figure = Picture(heading, [f"{note} {_sizes(report, found)}", report.note()], height=0.5 + 3.0 * len(found))
    names = ("continuation", "premature")
    grid = figure.body.subplots(len(found), len(names), squeeze=False, sharex=True, sharey=True)
    for line, (dataset, card) in zip(grid, found.items(), strict=True):
        for axes, model in zip(line, names, strict=True):
            axes.set_title(f"{MODELS[model]}, trained on {report.label_dataset(dataset)}")
            _reliability(axes, [t["calibration"].get(model, []) for t in card["trainings"]])
        line[0].set_ylabel("share that was so")
    for axes in grid[-1]:
        axes.set_xlabel("predicted probability")
    count = max(len(card["trainings"]) for card in found.values())
    handles = [
        Line2D([], [], color=TRAININGS[i % len(TRAININGS)][0], marker=TRAININGS[i % len(TRAININGS)][1], linewidth=1,
               label=f"training {i + 1}") for i in range(count)
    ]  # fmt: skip
    figure.body.legend(handles=handles, loc="outside lower center", ncols=count)
    return finish(figure)


def _reliability(axes: Any, curves: list[list[dict[str, Any]]]) -> None:
    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.set(xlim=(-0.04, 1.04), ylim=(-0.04, 1.04))
    axes.grid()
    axes.tick_params(axis="both", length=0)
    if not any(curves):
        axes.text(0.5, 0.5, "undefined: nothing was held out", transform=axes.transAxes, ha="center", color=MUTED)
    largest = max((row["n"] for curve in curves for row in curve), default=1)
    for (colour, marker), curve in zip(TRAININGS * len(curves), curves, strict=False):
        x, y = [row["predicted"] for row in curve], [row["observed"] for row in curve]
        axes.plot(x, y, color=colour, linewidth=1, alpha=0.8)
        sizes = [18 + 90 * row["n"] / largest for row in curve]
        axes.scatter(x, y, sizes, color=colour, marker=marker, edgecolor="white", linewidth=0.6, zorder=3)


# -- targets


@styled
def targets(report: Report) -> Figure:
    """The advantage targets of eq. 1 by operation, and how their means move with λ."""
    report = report.of("dynakrag")
    heading, found = "What the controller was trained towards", cards(report)
    if not found:
        return nothing(heading, UNTRAINED, [report.note()])
    note = (
        "Left: targets of eq. 1 as fitted; mark: mean, thick line: one standard deviation, thin line: smallest to "
        "largest, n below. Right: the mean target if λ were another: λ takes its share of the present recall off every "
        "operation but stopping (T), and off no positive check that is credited like a stop; the others of a state "
        "move alike, so it changes the targets more than their order."
    )
    figure = Picture(heading, [f"{note} {_sizes(report, found)}", report.note()], height=0.4 + 2.9 * len(found))
    grid = figure.body.subplots(len(found), 2, squeeze=False, width_ratios=[1.6, 1])
    for (left, right), (dataset, card) in zip(grid, found.items(), strict=True):
        options = card["options"]
        fitted = f"λ = {options['lambda']:g}, β = {options['beta']:g}, S: {options['s_target']}"
        left.set_title(f"Trained on {report.label_dataset(dataset)} ({fitted})")
        _spreads(left, card["targets"]["advantage"])
        right.set_title("Mean target by λ")
        _by_lambda(right, card["lambda_sensitivity"])
    return finish(figure)


def _spreads(axes: Any, advantage: Mapping[str, dict[str, Any]]) -> None:
    codes = [c for c in CODES if c in advantage and advantage[c]["n"]]
    _target_axis(axes)
    for i, code in enumerate(codes):
        a, colour = advantage[code], ACTIONS[code][0]
        axes.plot([i, i], [a["min"], a["max"]], color=colour, linewidth=1)
        axes.plot([i, i], [a["mean"] - a["sd"], a["mean"] + a["sd"]], color=colour, linewidth=5, solid_capstyle="butt")
        axes.plot([i], [a["mean"]], "o", color="white", markeredgecolor=INK, markersize=6, zorder=4)
    axes.set_xticks(range(len(codes)), [f"{c}\nn = {advantage[c]['n']:,}" for c in codes])
    axes.set_ylabel("target")


def _by_lambda(axes: Any, sensitivity: Mapping[str, Mapping[str, float | None]]) -> None:
    _target_axis(axes)
    lambdas = sorted(sensitivity, key=float)
    ends: dict[str, tuple[float, float]] = {}
    for code in CODES:
        points = [(float(v), sensitivity[v][code]) for v in lambdas if sensitivity[v].get(code) is not None]
        if points:
            axes.plot(*zip(*points, strict=True), color=ACTIONS[code][0], marker="o", markersize=4, linewidth=1.2)
            ends[code] = points[-1]
    low, high = axes.get_ylim()
    for code, height in _apart({c: y for c, (_, y) in ends.items()}, 0.07 * (high - low)).items():
        axes.annotate(code, (ends[code][0], height), (6, 0), textcoords="offset points", va="center", size=8)
    axes.set_xticks([float(v) for v in lambdas], lambdas)
    axes.set(xlabel="λ", xmargin=0.12)


def _apart(heights: Mapping[str, float], gap: float) -> dict[str, float]:
    """Heights of labels, moved apart to about ``gap`` in their order."""
    order = sorted(heights, key=lambda c: heights[c])
    out = dict(heights)
    for _ in range(100):
        for lower, upper in pairwise(order):
            short = max(0.0, gap - (out[upper] - out[lower]))
            out[lower], out[upper] = out[lower] - short / 2, out[upper] + short / 2
    return out


def _target_axis(axes: Any) -> None:
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.grid(axis="y")
    axes.tick_params(axis="both", length=0)
