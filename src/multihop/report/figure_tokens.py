"""Figures 4 and 6 of paper 1: accuracy against retrieved tokens."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from multihop.report.expected import Cell
from multihop.report.load import Report
from multihop.report.plotting import (
    INK,
    METHODS,
    MUTED,
    PAPER,
    Picture,
    any_ran,
    apart,
    bar,
    embedder,
    finish,
    footer,
    no_figure,
    paper_mark,
    percent_axis,
    printed,
    shifted,
    styled,
    title,
    undominated,
)
from multihop.report.values import Measured, measure

ABLATIONS = {
    "executionrag": ("full", "#0072B2", "o"),
    "executionrag_question_only": ("question-only register", "#D55E00", "s"),
    "executionrag_no_updates": ("no updates", "#009E73", "^"),
}
"""System -> (name, colour, marker)."""
SHAPES = {"main": "o", "second": "s"}
TOKENS = "retrieved tokens per question (log scale)"
EDGE = (
    "Hollow: printed in the paper; a triangle at the right edge where it prints only the accuracy. Marks that would "
    "cover each other stand side by side, moved along the token axis by a mark's width or so. Whiskers end at the axis."
)
SIZE, PANEL, WIDE = 7.5, (2.9, 2.1), (4.4, 2.4)
"""Of a mark (points), of a panel of three, of a panel of two (inches, roughly)."""


@dataclass(frozen=True)
class Mark:
    """A system in a panel."""

    cell: Cell
    name: str
    colour: str
    marker: str
    tokens: Measured
    accuracy: Measured
    paper: tuple[float | None, float | None]
    """What the paper prints: tokens, accuracy in %."""

    @property
    def place(self) -> tuple[float, float] | None:
        """(tokens, accuracy in %), None where it did not run; a log axis begins at one token."""
        if self.tokens.value is None or self.accuracy.value is None:
            return None
        return max(self.tokens.value, 1.0), self.accuracy.value


def _mark(report: Report, cell: Cell, name: str, colour: str, marker: str) -> Mark:
    tokens = cell._replace(metric="retrieved_tokens")
    both = printed(report, tokens), printed(report, cell)
    return Mark(cell, name, colour, marker, measure(report, tokens), measure(report, cell), both)


@styled
def figure_4(report: Report) -> Figure:
    """LLM-Acc against retrieved tokens, with the Pareto frontier; below, the ablations (paper 1, Fig. 4)."""
    heading = title(report, "Figure 4")
    cells = report.expected.cells("Figure 4")
    if not any_ran(report, cells):
        return no_figure(report, heading, cells)
    groups = {d: _pair(report, d) for d in report.datasets}
    figure = Picture(heading, footer(report, cells, f"{_frontier_note(report, groups)} {EDGE}"), height=6.9)
    upper, lower = figure.body.subfigures(2, 1, height_ratios=[1, 1.05])
    panels = upper.subplots(1, len(groups), sharex=True, sharey=True, squeeze=False)[0]
    _limit_tokens(panels[0], [m for marks in groups.values() for m in marks])
    for axes, (dataset, marks) in zip(panels, groups.items(), strict=True):
        _panel(axes, report.label_dataset(dataset), marks, PANEL)
        line = [m.place for m in _best(marks)]
        axes.plot(*zip(*sorted(set(line)), strict=True), color=MUTED, linewidth=1, zorder=1) if line else None
    panels[0].set_ylabel("LLM-Acc, %")
    handles = [
        _dot(colour, SHAPES[role], f"{report.label_run(run)}, {embedder(report, role)}")
        for role in report.roles
        for run, colour in METHODS.items()
    ]
    upper.legend(handles=handles, loc="outside lower center", ncols=2)
    _ablations(report, lower)
    return finish(figure)


def _pair(report: Report, dataset: str) -> list[Mark]:
    """Both methods under both embedders."""
    return [
        _mark(report, Cell("Figure 4", dataset, run, role, "llm_acc", "all"),
              f"{report.label_run(run)}, {role} embedder", colour, SHAPES[role])
        for role in report.roles
        for run, colour in METHODS.items()
    ]  # fmt: skip


def _best(marks: list[Mark]) -> list[Mark]:
    """Those that no other of ours beats."""
    by_name = {m.name: m for m in marks if m.place}
    return [by_name[n] for n in undominated({n: m.place for n, m in by_name.items()})]


def _frontier_note(report: Report, groups: dict[str, list[Mark]]) -> str:
    """Says where there is a line to be seen."""
    places = {d: {m.place for m in _best(marks)} for d, marks in groups.items()}
    alone = [report.label_dataset(d) for d, found in places.items() if len(found) == 1]
    notes = []
    if any(len(found) > 1 for found in places.values()):
        notes.append("Grey line: Pareto frontier of our points (fewer tokens, higher accuracy).")
    if alone:
        notes.append(f"{', '.join(alone)}: one point of ours is not beaten by any other of ours, so no frontier line.")
    return " ".join(notes)


def _panel(axes: Any, heading: str, marks: list[Mark], inches: tuple[float, float]) -> None:
    """Ours filled with whiskers both ways, the paper's hollow; the token axis has its limits already."""
    _token_axes(axes, heading)
    for shift, mark in enumerate(marks):
        _paper_point(axes, mark, shift % 2)
    ran = [m for m in marks if m.place]
    for mark, shift in zip(ran, apart(axes, [m.place for m in ran], inches), strict=True):
        (x, y), at = mark.place, shifted(axes, shift)
        whiskers = {"xerr": _arms(mark.tokens, x), "yerr": _arms(mark.accuracy, y), "elinewidth": 0.8, "capsize": 2}
        look = {"color": mark.colour, "marker": mark.marker, "markersize": SIZE, "markeredgecolor": "white"}
        axes.errorbar(x, y, **look, zorder=3, transform=at, **whiskers)
    missing = [m.name for m in marks if not m.place]
    if missing:
        axes.set_xlabel("\n".join([TOKENS, *textwrap.wrap(f"not run: {', '.join(missing)}", 46)]))


def _token_axes(axes: Any, heading: str) -> None:
    axes.set_title(heading)
    percent_axis(axes)
    axes.set_ylim(-5, 108)
    axes.set_xlabel(TOKENS)
    axes.grid(axis="x")


def _limit_tokens(axes: Any, marks: list[Mark]) -> None:
    """The points decide the axis (shared by the panels); a whisker down to 0 has no place on it and is cut."""
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}" if x < 1000 else f"{x / 1000:g}k"))
    axes.xaxis.set_minor_locator(NullLocator())
    tokens = [m.place[0] for m in marks if m.place] + [m.paper[0] for m in marks if None not in m.paper]
    if tokens:
        low, high = 0.6 * min(tokens), 1.4 * max(tokens)
        axes.set_xlim(low, high)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 300 else (1,)))


def _arms(value: Measured, centre: float) -> list[list[float]]:
    return [[max(centre - max(value.low, 0.5), 0)], [max(value.high - centre, 0)]]


def _paper_point(axes: Any, mark: Mark, shift: int) -> None:
    """What the paper prints; ``shift`` keeps equal marks on the edge apart."""
    tokens, accuracy = mark.paper
    hollow = {"markerfacecolor": "white", "markeredgecolor": mark.colour, "markeredgewidth": 1.4, "linestyle": "none"}
    if accuracy is not None and tokens is not None:
        axes.plot([tokens], [accuracy], marker=mark.marker, markersize=SIZE, zorder=2, **hollow)
    elif accuracy is not None:
        at = axes.get_yaxis_transform()
        axes.plot([1 + 0.022 * shift], [accuracy], marker="<", markersize=7, transform=at, clip_on=False, **hollow)


def _dot(colour: str, marker: str, label: str) -> Line2D:
    return Line2D([], [], color=colour, marker=marker, linestyle="none", markersize=SIZE, label=label)


def _ablations(report: Report, figure: Any) -> None:
    """The variants of Table 2 on MuSiQue: retrieved tokens as a line above, LLM-Acc as bars."""
    tops, panels = figure.subplots(2, 2, sharex="col", height_ratios=[1, 2.2])
    for top, axes, role in zip(tops, panels, report.roles, strict=True):
        top.set_title(f"Ablation on MuSiQue, {embedder(report, role)}", size=9)
        percent_axis(axes)
        axes.set_xticks(range(len(ABLATIONS)), [name for name, _, _ in ABLATIONS.values()])
        tokens = []
        for i, run in enumerate(ABLATIONS):
            cell = Cell("Figure 4", "musique", run, role, "llm_acc", "all")
            bar(axes, i, 0.5, measure(report, cell), "#56B4E9")
            paper_mark(report, axes, i + 0.17, cell)
            used = measure(report, cell._replace(metric="retrieved_tokens"))
            tokens += [(i, used.value)] if used.value is not None else []
        _token_line(top, tokens)
    tops[0].set_ylabel("retrieved\ntokens")
    panels[0].set_ylabel("LLM-Acc, %")
    handles = [
        Line2D([], [], color=INK, marker="o", markersize=4, label="retrieved tokens"),
        Patch(color="#56B4E9", label="LLM-Acc"),
        Line2D([], [], label="paper's LLM-Acc", **PAPER),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)


def _token_line(axes: Any, tokens: list[tuple[int, float]]) -> None:
    axes.yaxis.set_major_locator(MaxNLocator(2, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.grid(axis="y")
    axes.tick_params(axis="both", length=0)
    axes.set_ylim(0, 1.5 * max((t for _, t in tokens), default=0) or 1)
    if tokens:
        axes.plot(*zip(*tokens, strict=True), color=INK, marker="o", markersize=4, linewidth=1)
    for x, value in tokens:
        axes.annotate(f"{value:,.0f}", (x, value), (0, 4), textcoords="offset points", ha="center", size=8)


@styled
def figure_6(report: Report) -> Figure:
    """LLM-Acc against retrieved tokens for the ablation variants on MuSiQue (paper 1, Fig. 6)."""
    heading = f"{title(report, 'Figure 6')}, MuSiQue"
    cells = [Cell("Figure 6", "musique", run, role, "llm_acc", "all") for role in report.roles for run in ABLATIONS]
    if not any_ran(report, cells):
        return no_figure(report, heading, cells)
    figure = Picture(heading, footer(report, cells, EDGE), height=3.8)
    panels = figure.body.subplots(1, 2, sharex=True, sharey=True)
    groups = {
        role: [_mark(report, c, *ABLATIONS[c.system]) for c in cells if c.role == role] for role in report.roles
    }  # fmt: skip
    _limit_tokens(panels[0], [m for marks in groups.values() for m in marks])
    for axes, (role, marks) in zip(panels, groups.items(), strict=True):
        _panel(axes, embedder(report, role), marks, WIDE)
    panels[0].set_ylabel("LLM-Acc, %")
    handles = [_dot(colour, marker, name) for name, colour, marker in ABLATIONS.values()]
    figure.body.legend(handles=handles, loc="outside lower center", ncols=3)
    return finish(figure)
