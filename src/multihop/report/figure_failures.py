"""Figure 2: why wrong answers are wrong on MuSiQue, by Appendix E's rule and by the symmetric one.

The symmetric rule leaves out 3b (a register that was closed while a passage was missing), which can only move the
register method's failures out of "missing evidence". The paper prints nothing under that rule.
"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from multihop.report.expected import Cell
from multihop.report.load import Report
from multihop.report.plotting import (
    INK,
    METHODS,
    MUTED,
    Picture,
    any_ran,
    embedder,
    empty_slot,
    finish,
    footer,
    no_figure,
    percent_axis,
    slot_text,
    styled,
    title,
    whisker,
)
from multihop.report.values import measure

LOOK = {
    "missing_evidence": ("missing evidence", "#D55E00", ""),
    "reasoning_error": ("reasoning error", "#0072B2", ""),
    "gave_up": ("gave up", "#F0E442", ""),
    "judge_error": ("judge error", "#999999", ""),
    "unmappable": ("unmappable", "#ffffff", "///"),
    "system_error": ("system error", "#ffffff", "xxx"),
}
"""Category -> (label, colour, hatch), from the bottom of a bar to its top."""
GROUPS = {"all": "overall", "2-hop": "2 hops", "3-hop": "3 hops", "4-hop": "4 hops"}
WIDTH_OURS, WIDTH_PAPER = 0.27, 0.1
RULES = {False: "Appendix E's rule", True: "symmetric: rule 3b off"}


@styled
def figure_2(report: Report) -> Figure:
    """Failure categories, overall and by hops, for A-RAG and ExecutionRAG under both embedders (paper 1, Fig. 2)."""
    heading = title(report, "Figure 2")
    cells = [Cell("Figure 2", "musique", system, role, "", "all") for role in report.roles for system in METHODS]
    if not any_ran(report, cells):
        return no_figure(report, heading, cells)
    names = ", ".join(f"{_letter(report, system)} = {report.label_run(system)}" for system in METHODS)
    note = (
        f"{names}; below a bar the number of its failures by the model judge, in a segment the segment's. Narrow bars: "
        "the shares that the paper's text prints. Whiskers: the missing-evidence share."
    )
    figure = Picture(heading, footer(report, cells, note), height=6.6)
    panels = figure.body.subplots(len(report.roles), len(RULES), sharey=True)
    for line, role in zip(panels, report.roles, strict=True):
        for axes, symmetric in zip(line, RULES, strict=True):
            _panel(report, axes, role, symmetric)
        line[0].set_ylabel("% of the method's own failures")
    handles = [Patch(facecolor=c, hatch=h, edgecolor=MUTED, label=name) for name, c, h in LOOK.values()]
    handles.append(Patch(facecolor="white", edgecolor=MUTED, linestyle=":", label="not printed (paper's bars)"))
    figure.body.legend(handles=handles, loc="outside lower center", ncols=7, columnspacing=1.2, handlelength=1.4)
    return finish(figure)


def _letter(report: Report, system: str) -> str:
    return report.label_run(system)[0]


def _panel(report: Report, axes: Any, role: str, symmetric: bool) -> None:
    percent_axis(axes)
    axes.set_title(f"{embedder(report, role)}\n{RULES[symmetric]}", size=9)
    axes.spines["bottom"].set_visible(False)
    labels = {}
    for i, (group, name) in enumerate(GROUPS.items()):
        for j, system in enumerate(METHODS):
            x = i + (j - 0.5) * 0.46
            cell = Cell("Figure 2", "musique", system, role, "", group)
            labels[x] = f"{_letter(report, system)}\n{_bar(report, axes, x, cell, symmetric)}"
            if not symmetric:
                _paper_bar(report, axes, x + 0.21, cell)
        axes.text(i, -0.2, name, transform=axes.get_xaxis_transform(), ha="center", va="top", size=9)
    axes.set_xticks(list(labels), labels.values())
    axes.set_xlabel("\n")


def _bar(report: Report, axes: Any, x: float, cell: Cell, symmetric: bool) -> str:
    """One stacked bar, or an empty slot; returns the number of failures as a text."""
    total = measure(report, cell._replace(metric="total_failures"), symmetric=symmetric)
    if not total.value:
        empty_slot(axes, x, WIDTH_OURS, "no failure" if total.ran else slot_text(total))
        return "–" if total.value is None else "0"
    bottom = 0.0
    for category, (_, colour, hatch) in LOOK.items():
        share = measure(report, cell._replace(metric=f"{category}_share"), symmetric=symmetric).value
        if not share:
            continue
        edge = MUTED if hatch else "white"
        axes.bar(x, share, WIDTH_OURS, bottom, color=colour, hatch=hatch, edgecolor=edge)
        if share >= 6:
            ink = "white" if category in ("missing_evidence", "reasoning_error") else INK
            count = f"{share * total.value / 100:.3g}"
            axes.text(x - 0.06, bottom + share / 2, count, ha="center", va="center", size=8, color=ink)
        bottom += share
    missing = measure(report, cell._replace(metric="missing_evidence_share"), symmetric=symmetric)
    if missing.high > missing.low:
        whisker(axes, x + 0.08, missing)
    return f"{total.value:.4g}"


def _paper_bar(report: Report, axes: Any, x: float, cell: Cell) -> None:
    """The shares that the paper prints, stacked in the same order; what it does not print stays white."""
    printed = [report.expected.lookup(*cell._replace(metric=f"{category}_share").key) for category in LOOK]
    bottom = 0.0
    for category, value in zip(LOOK, printed, strict=True):
        if value is None or value.number is None:
            break
        axes.bar(x, value.number, WIDTH_PAPER, bottom, color=LOOK[category][1], edgecolor=INK, linewidth=0.6)
        bottom += value.number
    if bottom:
        axes.bar(x, 100 - bottom, WIDTH_PAPER, bottom, fill=False, edgecolor=MUTED, linestyle=":", linewidth=0.8)
