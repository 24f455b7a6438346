"""The figures of paper 1 (ExecutionRAG), drawn from our results with the paper's printed values as hollow marks.

Each ``figure_N(report)`` returns a matplotlib figure; ``save`` writes it as PNG, the same bytes each time. All numbers
come from values.py, so that figures and tables can't disagree. What did not run keeps its place as a dashed slot.
Figures 1, 2, 4 and 6 have files of their own.
"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from multihop.report.expected import Cell
from multihop.report.figure_failures import figure_2
from multihop.report.figure_method import figure_1
from multihop.report.figure_tokens import figure_4, figure_6
from multihop.report.load import Report
from multihop.report.plotting import (
    EMBEDDERS,
    METHODS,
    PAPER,
    Picture,
    any_ran,
    bar,
    embedder,
    finish,
    footer,
    no_figure,
    paper_mark,
    percent_axis,
    png,
    save,
    styled,
    title,
)
from multihop.report.values import measure

__all__ = ["figure_1", "figure_2", "figure_3", "figure_4", "figure_5", "figure_6", "png", "save"]

METRICS = {"contain": "Contain-Match", "llm_acc": "LLM-Acc"}


# -- Figure 3


@styled
def figure_3(report: Report) -> Figure:
    """Contain-Match and LLM-Acc under the second embedder, by benchmark and on average (paper 1, Fig. 3)."""
    heading = f"{title(report, 'Figure 3')}: {embedder(report, 'second')}"
    cells = [Cell("Figure 3", d, system, "second", "llm_acc", "all") for d in report.datasets for system in METHODS]
    if not any_ran(report, cells):
        return no_figure(report, heading, cells)
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
    handles.append(Line2D([], [], label=f"paper, {report.expected.own.label('second')}", **PAPER))
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
            paper_mark(report, axes, x + 0.11, own)


# -- Figure 5


@styled
def figure_5(report: Report) -> Figure:
    """ExecutionRAG by hop count and question type under both embedders (paper 1, Fig. 5 and Tables 3 to 8)."""
    heading = title(report, "Figure 5")
    cells = [c for c in report.expected.cells("Figure 5") if c.dataset in report.datasets]
    if not any_ran(report, cells):
        return no_figure(report, heading, cells)
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
    handles = [Patch(color=c, label=embedder(report, r)) for r, c in zip(report.roles, EMBEDDERS, strict=True)]
    figure.body.legend(handles=handles, loc="outside lower center", ncols=2)
    return finish(figure)


def _categories(report: Report, axes: Any, dataset: str, groups: list[str], metric: str) -> None:
    percent_axis(axes)
    labels = []
    for i, group in enumerate(groups):
        sizes = set()
        for j, (role, colour) in enumerate(zip(report.roles, EMBEDDERS, strict=True)):
            cell = Cell("Figure 5", dataset, "executionrag", role, metric, group)
            value = measure(report, cell)
            sizes |= {value.n} if value.ran else set()
            bar(axes, i + (j - 0.5) * 0.42, 0.38, value, colour)
            paper_mark(report, axes, i + (j - 0.5) * 0.42 + 0.11, cell)
        name = group.replace("-hop", " hops").replace("_", "\n")
        labels.append(f"{name}\nn = {'/'.join(map(str, sorted(sizes))) or 0}")
    axes.set_xticks(range(len(groups)), labels)
