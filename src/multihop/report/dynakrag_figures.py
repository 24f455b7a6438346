"""The figures of paper 2 (DynaKRAG) from our results, with what the paper's text prints of them as hollow marks.

Figures 1 and 2 are in dynakrag_method.py, cost and compression in dynakrag_tradeoff.py. All numbers come
from values.py, as those of the tables do. What did not run keeps its place as a dashed slot.
"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from multihop.report.dynakrag_method import figure_1, figure_2
from multihop.report.dynakrag_tables import label
from multihop.report.dynakrag_tradeoff import compression, quality_and_cost
from multihop.report.expected import Cell
from multihop.report.load import Report
from multihop.report.plotting import (
    INK,
    MUTED,
    PAPER,
    Picture,
    any_ran,
    bar,
    finish,
    footer,
    keep,
    no_figure,
    paper_mark,
    png,
    save,
    styled,
    title,
    whisker,
)
from multihop.report.values import Measured, measure

__all__ = [
    "compression", "figure_1", "figure_2", "figure_3", "figure_4", "figure_5", "keep", "png", "quality_and_cost",
    "save",
]  # fmt: skip
ROLE = "first"
"""The backbone whose runs the paper analyses."""
CAPS = {
    "dynakrag_cap1": "1",
    "dynakrag_cap2": "2",
    "dynakrag_cap3": "3",
    "dynakrag_cap4": "4",
    "dynakrag": "none",
}
"""System -> cap on retrieval calls."""
PAIR = {"dynakrag": "#0072B2", "dynakrag_uniform_valid": "#E69F00"}
GAINS = {
    "dynakrag_minus_fixed_k": "#0072B2",
    "dynakrag_minus_joint_uniform": "#E69F00",
    "dynakrag_minus_no_sufficiency": "#009E73",
    "dynakrag_minus_no_compression": "#CC79A7",
}
BUCKETS = (
    ("musique", "hops", ("2-hop", "3-hop", "4-hop")),
    ("2wikimultihopqa", "type", ("comparison", "bridge_comparison", "compositional", "inference")),
    ("musique", "gold passages", ("2-support", "3-support", "4-support")),
    ("2wikimultihopqa", "gold passages", ("2-support", "4-support")),
)
"""(dataset, what the groups are, groups) of Figure 4's panels."""
HOLLOW = "Hollow: printed in the paper's text."


def heading(report: Report, item: str) -> str:
    """The item's title and the reader whose runs it is about."""
    setting = report.setting(ROLE)
    return f"{title(report, item)}: {report.reader(setting) if setting else 'no setting for the first backbone'}"


def small_n(group: str, n: int) -> str:
    """A tick label: the group's name and how many questions of ours it has."""
    name = group.replace("-hop", " hops").replace("-support", " passages").replace("_", "\n")
    return f"{name}\nn = {n:,}"


# -- Figure 3


@styled
def figure_3(report: Report) -> Figure:
    """F1 by cap on the retrieval calls, each dataset in its panel (paper 2, Fig. 3)."""
    report = report.of("dynakrag")
    head = heading(report, "Figure 3")
    cells = [Cell("Figure 3", d, system, ROLE, "f1", "all") for d in report.datasets for system in CAPS]
    if not any_ran(report, cells):
        return no_figure(report, head, cells)
    note = (
        "The runs cap control steps at four, the first of which is a retrieval. Below a cap: the calls that a question "
        f"took, on average. {HOLLOW} Of caps the text prints no F1."
    )
    figure = Picture(head, footer(report, cells, note), height=3.3)
    panels = figure.body.subplots(1, len(report.datasets), sharey=True, squeeze=False)[0]
    for axes, dataset in zip(panels, report.datasets, strict=True):
        _caps(report, axes, dataset)
    panels[0].set_ylabel("F1")
    handles = [
        Line2D([], [], color=PAIR["dynakrag"], marker="o", markersize=6, label=label(report, "dynakrag")),
        Line2D([], [], label=f"paper, {report.expected.own.label(ROLE)}", **PAPER),
    ]
    figure.body.legend(handles=handles, loc="outside lower center", ncols=2)
    return finish(figure)


def _caps(report: Report, axes: Any, dataset: str) -> None:
    fraction_axis(axes)
    axes.set_title(report.label_dataset(dataset))
    axes.set_xlabel("most retrieval calls allowed")
    places, ticks = [], []
    for i, (system, cap) in enumerate(CAPS.items()):
        cell = Cell("Figure 3", dataset, system, ROLE, "f1", "all")
        value, calls = measure(report, cell), measure(report, cell._replace(metric="retrieval_calls"))
        ticks.append(f"{cap}\n({calls.value:.2g})" if calls.value is not None else f"{cap}\nnot run")
        if value.value is not None:
            places.append((i, value.value))
            _point(axes, i, value)
        paper_mark(report, axes, i + 0.22, cell)
    if places:
        axes.plot(*zip(*places, strict=True), color=PAIR["dynakrag"], linewidth=1.2, zorder=2)
    axes.set_xlim(-0.75, len(CAPS) - 0.4)
    axes.set_xticks(range(len(CAPS)), ticks)


def _point(axes: Any, x: float, value: Measured) -> None:
    if value.high > value.low:
        whisker(axes, x, value)
    axes.plot([x], [value.value], color=PAIR["dynakrag"], marker="o", markersize=6, zorder=4)
    look = {"size": 8, "ha": "right", "zorder": 5, "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.6}}
    axes.annotate(f"{value.value:.2f}", (x, value.value), (-5, 5), textcoords="offset points", **look)


def fraction_axis(axes: Any) -> None:
    axes.set_ylim(0, 1.08)
    axes.grid(axis="y")
    axes.tick_params(axis="both", length=0)


# -- Figure 4


@styled
def figure_4(report: Report) -> Figure:
    """Retrieval calls by kind of question, beside the uniform choice among valid operations (paper 2, Fig. 4)."""
    report = report.of("dynakrag")
    head = heading(report, "Figure 4")
    panels = [(d, what, groups) for d, what, groups in BUCKETS if d in report.datasets]
    cells = [Cell("Figure 4", d, s, ROLE, "retrieval_calls", g) for d, _, gs in panels for g in gs for s in PAIR]
    if not any_ran(report, cells):
        return no_figure(report, head, cells)
    note = f"{HOLLOW} For the comparator it prints a range for all groups together: the grey band."
    figure = Picture(head, footer(report, cells, note), height=6.2)
    widths = [max(len(g) for _, _, g in panels[i::2]) for i in range(2)]
    grid = figure.body.subplots(2, 2, sharey=True, width_ratios=widths).flat
    for axes, (dataset, what, groups) in zip(grid, panels, strict=False):
        axes.set_title(f"{report.label_dataset(dataset)}, by {what}")
        _allocation(report, axes, dataset, groups)
    for axes in list(grid):  # Those of datasets that params.yaml leaves out.
        axes.set_axis_off()
    for axes in figure.body.axes[::2]:
        axes.set_ylabel("retrieval calls per question")
    handles: list[Any] = [Patch(color=c, label=label(report, s)) for s, c in PAIR.items()]
    handles.append(Line2D([], [], label=f"paper, {report.expected.own.label(ROLE)}", **PAPER))
    figure.body.legend(handles=handles, loc="outside lower center", ncols=3)
    return finish(figure)


def _allocation(report: Report, axes: Any, dataset: str, groups: tuple[str, ...]) -> None:
    axes.set_ylim(0, 4.6)
    axes.set_yticks(range(5))
    axes.grid(axis="y")
    axes.tick_params(axis="both", length=0)
    ticks = []
    for i, group in enumerate(groups):
        n = 0
        for j, (system, colour) in enumerate(PAIR.items()):
            x, cell = i + (j - 0.5) * 0.4, Cell("Figure 4", dataset, system, ROLE, "retrieval_calls", group)
            value = measure(report, cell)
            n = max(n, value.n)
            bar(axes, x, 0.36, value, colour, ".2f", (0, 4))
            _paper_calls(report, axes, x, cell)
        ticks.append(small_n(group, n))
    axes.set_xticks(range(len(groups)), ticks)


def _paper_calls(report: Report, axes: Any, x: float, cell: Cell) -> None:
    """A number as a mark; a range as a band behind the bar."""
    found = report.expected.lookup(*cell.key)
    if found and isinstance(found.value, list):
        low, high = found.value
        axes.bar(x, high - low, 0.4, low, color=MUTED, alpha=0.25, zorder=5)
    else:
        paper_mark(report, axes, x + 0.11, cell)


# -- Figure 5


@styled
def figure_5(report: Report) -> Figure:
    """Gains in F1 by question type on 2WikiMultiHopQA over four comparators (paper 2, Fig. 5)."""
    report = report.of("dynakrag")
    head, dataset = heading(report, "Figure 5"), "2wikimultihopqa"
    types = BUCKETS[1][2]
    runs = dict.fromkeys(r for s in GAINS for r in report.expected.systems[s].minus)
    cells = [Cell("Figure 5", dataset, r, ROLE, "f1", "all") for r in runs]
    if dataset not in report.datasets or not any_ran(report, cells):
        return no_figure(report, head, cells)
    note = f"Differences are paired over questions. {HOLLOW} By type it prints those over Fixed-K alone."
    figure = Picture(head, footer(report, cells, note), height=3.9)
    axes = figure.body.subplots()
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.grid(axis="y")
    axes.tick_params(axis="both", length=0)
    axes.set_ylabel("gain in F1, points")
    ticks = []
    for i, kind in enumerate((*types, "all")):
        n = 0
        for j, (system, colour) in enumerate(GAINS.items()):
            x, cell = i + (j - 1.5) * 0.21, Cell("Figure 5", dataset, system, ROLE, "f1_delta", kind)
            value = measure(report, cell)
            n = max(n, value.n)
            bar(axes, x, 0.19, value, colour, "+.0f", (-20, 40))
            paper_mark(report, axes, x + 0.05, cell)
        ticks.append(small_n(kind, n))
    axes.set_xticks(range(len(ticks)), ticks)
    axes.margins(y=0.12)
    handles: list[Any] = [Patch(color=c, label=f"over {_subtrahend(report, s)}") for s, c in GAINS.items()]
    handles.append(Line2D([], [], label=f"paper, {report.expected.own.label(ROLE)}", **PAPER))
    figure.body.legend(handles=handles, loc="outside lower center", ncols=5)
    return finish(figure)


def _subtrahend(report: Report, system: str) -> str:
    return label(report, report.expected.systems[system].minus[1])
