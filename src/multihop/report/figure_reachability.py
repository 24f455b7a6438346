"""Gold passages by the least one must know to reach them: the figure of the page reachability."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from multihop.analysis.probes import AGENT, TIERS
from multihop.errors import DataError
from multihop.report.load import Report
from multihop.report.plotting import INK, MUTED, Picture, finish, nothing, percent_axis, styled
from multihop.report.reachability import (
    NOT_YET,
    SUMMARY,
    TIER_LABELS,
    TOOL_LABELS,
    Group,
    chosen,
    depth,
    index_label,
    main_index,
    shares_of,
)

COLOURS = dict(zip(TIERS, ("#0072B2", "#009E73", "#56B4E9", "#E69F00", "#F0E442"), strict=True))


@styled
def figure_reachability(report: Report) -> Figure:
    """Bars by dataset and hop count: gold passages by the lowest tier whose probe returns them at the tables' k."""
    index, k = main_index(report), depth(report)
    heading = f"Gold passages by the least one must know to reach them, k = {k}"
    data = [(d, g, s[g]) for d, s in shares_of(report, index) for g in chosen(s, "hops") if g != "all"]
    if not data:
        return nothing(heading, NOT_YET, [report.note()])
    said = f"{index_label(report, index)}. White: no certificate at this k, which proves nothing. In a bar: passages."
    figure = Picture(heading, [said, report.note()], height=4.4)
    panels = figure.body.subplots(1, len(AGENT), sharey=True)
    for axes, tool in zip(panels, AGENT, strict=True):
        percent_axis(axes)
        axes.set_title(TOOL_LABELS[tool], size=9)
        for x, (_, _, group) in enumerate(data):
            _bar(axes, x, group, tool)
        labels = [f"{report.label_dataset(d)}, {g[0]} hops\n{_size(s)}" for d, g, s in data]
        axes.set_xticks(range(len(data)), labels, size=7, rotation=0 if len(data) < 5 else 35)
    panels[0].set_ylabel("% of gold passages")
    handles = [Patch(facecolor=COLOURS[tier], label=TIER_LABELS[tier]) for tier in TIERS]
    handles.append(Patch(facecolor="white", edgecolor=MUTED, label="no certificate"))
    figure.body.legend(handles=handles, loc="outside lower center", ncols=6, columnspacing=1.2, handlelength=1.4)
    return finish(figure)


def _size(group: Group) -> str:
    passages, questions = group["passages"], group["questions"]
    return f"{passages} passage{'s' * (passages != 1)}, {questions} question{'s' * (questions != 1)}"


def _bar(axes: Any, x: int, group: Group, tool: str) -> None:
    if tool not in group:
        raise DataError(f"{SUMMARY}: no certificates of {tool}; run `multihop certify`")
    bottom = 0.0
    for tier in TIERS:
        share = 100 * group[tool]["lowest"][tier] / group["passages"]
        axes.bar(x, share, 0.62, bottom, color=COLOURS[tier], edgecolor="white", linewidth=0.5)
        if share >= 7:
            ink = "white" if tier in ("T0", "issued") else INK
            axes.text(
                x, bottom + share / 2, group[tool]["lowest"][tier], ha="center", va="center", size=7.5, color=ink
            )
        bottom += share
    axes.bar(x, 100 - bottom, 0.62, bottom, fill=False, edgecolor=MUTED, linewidth=0.7)
