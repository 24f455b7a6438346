"""The figures of paper 1 (ExecutionRAG), drawn from our results with the paper's printed values as hollow marks.

Each ``figure_N(report)`` returns a matplotlib figure; ``save`` writes it as PNG, the same bytes each time. All numbers
come from values.py, so that figures and tables can't disagree. What did not run keeps its place as a dashed slot.
Figures 1 and 2 have files of their own.
"""

from __future__ import annotations

import textwrap
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from multihop.report.expected import Cell
from multihop.report.figure_failures import figure_2
from multihop.report.figure_method import figure_1
from multihop.report.load import PAPER_EMBEDDERS, ROLES, Report
from multihop.report.plotting import (
    EMBEDDERS,
    INK,
    METHODS,
    MUTED,
    PAPER,
    Picture,
    any_ran,
    bar,
    embedder,
    finish,
    footer,
    nothing,
    percent_axis,
    png,
    save,
    styled,
    title,
)
from multihop.report.values import Measured, measure

__all__ = ["figure_1", "figure_2", "figure_3", "figure_4", "figure_5", "figure_6", "png", "save"]

METRICS = {"contain": "Contain-Match", "llm_acc": "LLM-Acc"}
ABLATIONS = {
    "executionrag": ("full", "#0072B2", "o"),
    "executionrag_question_only": ("question-only register", "#D55E00", "s"),
    "executionrag_no_updates": ("no updates", "#009E73", "^"),
}
"""System -> (name, colour, marker)."""
SHAPES = {"main": ("o", 10.0), "second": ("s", 7.0)}
"""Role of the setting -> (marker, size): of two points in one place both can be seen."""
TOKENS = "retrieved tokens per question (log scale)"
EDGE = (
    "Hollow: printed in the paper; a triangle at the right edge where it prints only the accuracy. Whiskers end at the "
    "axis."
)


def _printed(report: Report, cell: Cell) -> float | None:
    value = report.expected.lookup(*cell.key)
    return value.number if value else None


def _paper_mark(report: Report, axes: Any, x: float, cell: Cell) -> None:
    value = _printed(report, cell)
    if value is not None:
        axes.plot([x], [value], zorder=5, **PAPER)


def _no_figure(report: Report, heading: str, cells: list[Cell]) -> Figure:
    return nothing(heading, "Not run: no results yet for any of its cells.", footer(report, cells))


# -- Figure 3


@styled
def figure_3(report: Report) -> Figure:
    """Contain-Match and LLM-Acc under the second embedder, by benchmark and on average (paper 1, Fig. 3)."""
    heading = f"{title(report, 'Figure 3')}: {embedder(report, 'second')}"
    cells = [Cell("Figure 3", d, system, "second", "llm_acc", "all") for d in report.datasets for system in METHODS]
    if not any_ran(report, cells):
        return _no_figure(report, heading, cells)
    figure = Picture(heading, footer(report, cells, "The average counts every benchmark the same."), height=3.5)
    n = len(report.datasets)
    *panels, average = figure.body.subplots(1, 3, sharey=True, width_ratios=[n, n, 2])
    for axes, (metric, name) in zip(panels, METRICS.items(), strict=True):
        axes.set_title(f"{name}, %")
        groups = {report.label_dataset(d): Cell("Figure 3", d, "", "second", metric, "all") for d in report.datasets}
        _pairs(report, axes, groups)
    average.set_title("Average over the benchmarks, %")
    groups = {name: Cell("Figure 3", "average", "", "second", metric, "all") for metric, name in METRICS.items()}
    _pairs(report, average, groups)
    handles = [Patch(color=c, label=report.label_run(run)) for run, c in METHODS.items()]
    handles.append(Line2D([], [], label=f"paper, {PAPER_EMBEDDERS['second']}", **PAPER))
    figure.body.legend(handles=handles, loc="outside lower center", ncols=3)
    return finish(figure)


def _pairs(report: Report, axes: Any, groups: dict[str, Cell]) -> None:
    """A-RAG and ExecutionRAG side by side in every group; each cell lacks only its system."""
    percent_axis(axes)
    axes.set_xticks(range(len(groups)), groups)
    for i, cell in enumerate(groups.values()):
        for j, (system, colour) in enumerate(METHODS.items()):
            x, own = i + (j - 0.5) * 0.4, cell._replace(system=system)
            bar(axes, x, 0.36, measure(report, own), colour)
            _paper_mark(report, axes, x + 0.11, own)


# -- Figures 4 and 6


@styled
def figure_4(report: Report) -> Figure:
    """LLM-Acc against retrieved tokens, with the Pareto frontier; below, the ablations (paper 1, Fig. 4)."""
    heading = title(report, "Figure 4")
    cells = report.expected.cells("Figure 4")
    if not any_ran(report, cells):
        return _no_figure(report, heading, cells)
    note = f"Grey line: Pareto frontier of our points (fewer tokens, higher accuracy). {EDGE}"
    figure = Picture(heading, footer(report, cells, note), height=6.4)
    upper, lower = figure.body.subfigures(2, 1, height_ratios=[1.15, 1])
    panels = upper.subplots(1, len(report.datasets), sharex=True, sharey=True, squeeze=False)[0]
    tokens = [t for axes, d in zip(panels, report.datasets, strict=True) for t in _frontier(report, axes, d)]
    _limit_tokens(panels[0], tokens)
    panels[0].set_ylabel("LLM-Acc, %")
    handles = [
        _dot(colour, *SHAPES[role], f"{report.label_run(run)}, {embedder(report, role)}")
        for role in ROLES
        for run, colour in METHODS.items()
    ]
    upper.legend(handles=handles, loc="outside lower center", ncols=2)
    for axes, role in zip(lower.subplots(1, 2), ROLES, strict=True):
        _ablation_bars(report, axes, role)
    kinds = [
        Patch(color="#56B4E9", label="LLM-Acc (bars, left axis)"),
        Line2D([], [], color=INK, marker="o", markersize=4, label="retrieved tokens (line, right axis)"),
        Line2D([], [], label="paper's LLM-Acc", **PAPER),
    ]
    lower.legend(handles=kinds, loc="outside lower center", ncols=3)
    return finish(figure)


def _frontier(report: Report, axes: Any, dataset: str) -> list[float]:
    """One panel: both methods under both embedders, ours filled and the paper's hollow; returns the tokens of all."""
    _token_axes(axes, report.label_dataset(dataset))
    points, missing, printed = [], [], []
    for role in ROLES:
        for shift, (run, colour) in enumerate(METHODS.items()):
            cell = Cell("Figure 4", dataset, run, role, "llm_acc", "all")
            point = _point(report, axes, cell, colour, *SHAPES[role])
            points += [point] if point else []
            missing += [] if point else [f"{report.label_run(run)}, {role} embedder"]
            printed += _paper_point(report, axes, cell, (colour, SHAPES[role][0]), shift)
    best, line = -1.0, []
    for tokens, accuracy in sorted(points, key=lambda p: (p[0], -p[1])):
        if accuracy > best:
            best = accuracy
            line.append((tokens, accuracy))
    if line:
        axes.plot(*zip(*line, strict=True), color=MUTED, linewidth=1, zorder=1)
    _say_missing(axes, missing)
    return [*(tokens for tokens, _ in points), *printed]


def _token_axes(axes: Any, heading: str) -> None:
    axes.set_title(heading)
    percent_axis(axes)
    axes.set_ylim(-5, 108)
    axes.set_xscale("log")
    axes.set_xlabel(TOKENS)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}" if x < 1000 else f"{x / 1000:g}k"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(axis="x")


def _limit_tokens(axes: Any, tokens: list[float]) -> None:
    """The points decide the axis (shared by the panels); a whisker down to 0 has no place on it and is cut."""
    if tokens:
        low, high = 0.6 * min(tokens), 1.4 * max(tokens)
        axes.set_xlim(low, high)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 300 else (1,)))


def _point(report: Report, axes: Any, cell: Cell, colour: str, marker: str, size: float) -> tuple[float, float] | None:
    """One cell as a point with whiskers both ways; returns (tokens, accuracy in %), None where it did not run."""
    tokens, accuracy = measure(report, cell._replace(metric="retrieved_tokens")), measure(report, cell)
    if tokens.value is None or accuracy.value is None:
        return None
    x, y = max(tokens.value, 1.0), accuracy.value
    whiskers = {"xerr": _arms(tokens, x), "yerr": _arms(accuracy, y), "elinewidth": 0.8, "capsize": 2}
    axes.errorbar(x, y, color=colour, marker=marker, markersize=size, markeredgecolor="white", zorder=3, **whiskers)
    return x, y


def _arms(value: Measured, centre: float) -> list[list[float]]:
    return [[max(centre - max(value.low, 0.5), 0)], [max(value.high - centre, 0)]]


def _paper_point(report: Report, axes: Any, cell: Cell, look: tuple[str, str], shift: int) -> list[float]:
    """What the paper prints of a cell; ``shift`` keeps equal marks on the edge apart. Returns the tokens it drew at."""
    accuracy, tokens = _printed(report, cell), _printed(report, cell._replace(metric="retrieved_tokens"))
    colour, marker = look
    hollow = {"markerfacecolor": "white", "markeredgecolor": colour, "markeredgewidth": 1.4, "linestyle": "none"}
    if accuracy is not None and tokens is not None:
        axes.plot([tokens], [accuracy], marker=marker, markersize=8, zorder=2, **hollow)
        return [tokens]
    if accuracy is not None:
        at = axes.get_yaxis_transform()
        axes.plot([1 + 0.022 * shift], [accuracy], marker="<", markersize=7, transform=at, clip_on=False, **hollow)
    return []


def _dot(colour: str, marker: str, size: float, label: str) -> Line2D:
    return Line2D([], [], color=colour, marker=marker, linestyle="none", markersize=size, label=label)


def _say_missing(axes: Any, missing: list[str]) -> None:
    if missing:
        axes.set_xlabel("\n".join([TOKENS, *textwrap.wrap(f"not run: {', '.join(missing)}", 46)]))


def _ablation_bars(report: Report, axes: Any, role: str) -> None:
    """LLM-Acc as bars and retrieved tokens as a line, for the variants of Table 2 on MuSiQue."""
    percent_axis(axes)
    axes.set_ylabel("LLM-Acc, %")
    axes.set_title(f"Ablation on MuSiQue\n{embedder(report, role)}")
    axes.set_xticks(range(len(ABLATIONS)), [name for name, _, _ in ABLATIONS.values()])
    tokens = []
    for i, run in enumerate(ABLATIONS):
        cell = Cell("Figure 4", "musique", run, role, "llm_acc", "all")
        bar(axes, i, 0.5, measure(report, cell), "#56B4E9")
        _paper_mark(report, axes, i + 0.17, cell)
        used = measure(report, cell._replace(metric="retrieved_tokens"))
        tokens += [(i, used.value)] if used.value is not None else []
    right = axes.twinx()
    right.spines["right"].set_visible(True)
    right.set_ylabel("retrieved tokens")
    right.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    right.yaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    if tokens:
        right.plot(*zip(*tokens, strict=True), color=INK, marker="o", markersize=4, linewidth=1)
    right.set_ylim(0, 1.25 * max((t for _, t in tokens), default=0) or 1)


@styled
def figure_6(report: Report) -> Figure:
    """LLM-Acc against retrieved tokens for the ablation variants on MuSiQue (paper 1, Fig. 6)."""
    heading = f"{title(report, 'Figure 6')}, MuSiQue"
    cells = [Cell("Figure 6", "musique", run, role, "llm_acc", "all") for role in ROLES for run in ABLATIONS]
    if not any_ran(report, cells):
        return _no_figure(report, heading, cells)
    figure = Picture(heading, footer(report, cells, EDGE), height=3.8)
    panels = figure.body.subplots(1, 2, sharex=True, sharey=True)
    tokens = []
    for axes, role in zip(panels, ROLES, strict=True):
        _token_axes(axes, embedder(report, role))
        missing = []
        for shift, (run, (name, colour, marker)) in enumerate(ABLATIONS.items()):
            cell = Cell("Figure 6", "musique", run, role, "llm_acc", "all")
            point = _point(report, axes, cell, colour, marker, 8.0)
            missing += [] if point else [name]
            tokens += [point[0]] if point else []
            tokens += _paper_point(report, axes, cell, (colour, marker), shift)
        _say_missing(axes, missing)
    _limit_tokens(panels[0], tokens)
    panels[0].set_ylabel("LLM-Acc, %")
    handles = [_dot(colour, marker, 8, name) for name, colour, marker in ABLATIONS.values()]
    figure.body.legend(handles=handles, loc="outside lower center", ncols=3)
    return finish(figure)


# -- Figure 5


@styled
def figure_5(report: Report) -> Figure:
    """ExecutionRAG by hop count and question type under both embedders (paper 1, Fig. 5 and Tables 3 to 8)."""
    heading = title(report, "Figure 5")
    cells = [c for c in report.expected.cells("Figure 5") if c.dataset in report.datasets]
    if not any_ran(report, cells):
        return _no_figure(report, heading, cells)
    groups: dict[str, list[str]] = {}
    for cell in cells:
        known = groups.setdefault(cell.dataset, [])
        known += [] if cell.group in known else [cell.group]
    figure = Picture(heading, footer(report, cells, "The paper's text prints no value of this figure."), height=5.1)
    widths = [len(g) for g in groups.values()]
    panels = figure.body.subplots(len(METRICS), len(groups), sharey=True, squeeze=False, width_ratios=widths)
    for line, (metric, name) in zip(panels, METRICS.items(), strict=True):
        for axes, (dataset, own) in zip(line, groups.items(), strict=True):
            _categories(report, axes, dataset, own, metric)
        line[0].set_ylabel(f"{name}, %")
    for axes, dataset in zip(panels[0], groups, strict=True):
        axes.set_title(report.label_dataset(dataset))
    handles = [Patch(color=c, label=embedder(report, r)) for r, c in zip(ROLES, EMBEDDERS, strict=True)]
    figure.body.legend(handles=handles, loc="outside lower center", ncols=2)
    return finish(figure)


def _categories(report: Report, axes: Any, dataset: str, groups: list[str], metric: str) -> None:
    percent_axis(axes)
    labels = []
    for i, group in enumerate(groups):
        sizes = set()
        for j, (role, colour) in enumerate(zip(ROLES, EMBEDDERS, strict=True)):
            cell = Cell("Figure 5", dataset, "executionrag", role, metric, group)
            value = measure(report, cell)
            sizes |= {value.n} if value.ran else set()
            bar(axes, i + (j - 0.5) * 0.42, 0.38, value, colour)
            _paper_mark(report, axes, i + (j - 0.5) * 0.42 + 0.11, cell)
        name = group.replace("-hop", " hops").replace("_", "\n")
        labels.append(f"{name}\nn = {'/'.join(map(str, sorted(sizes))) or 0}")
    axes.set_xticks(range(len(groups)), labels)
