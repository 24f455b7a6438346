"""What DynaKRAG's quality costs, as figures: F1 against tokens and retrieval calls, and what compression saves."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter
from matplotlib.transforms import ScaledTranslation

from multihop.report.controller_data import records
from multihop.report.dynakrag_tables import label
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
    no_figure,
    paper_mark,
    percent_axis,
    styled,
    title,
    undominated,
)
from multihop.report.values import Measured, absent, measure

ROLE = "first"
BASELINES = ("fixed_k", "ircot", "s2g_rag", "corag_s3", "adaptive_rag", "par2_rag", "crag", "self_ask")
CONTROLLERS = (
    "dynakrag", "dynakrag_no_compression", "dynakrag_uniform_valid", "dynakrag_fixed_horizon",
    "dynakrag_uniform_fixed", "dynakrag_joint_uniform", "dynakrag_no_sufficiency",
)  # fmt: skip
COSTS = {"total_tokens": "model tokens per question", "retrieval_calls": "retrieval calls per question"}
BEST, OTHER, MOVED = "#0072B2", "#F5E3C3", "white"
PANEL = (2.97, 2.86)
"""Inches of a panel, roughly."""
COMPRESSION = {"dynakrag": "#0072B2", "dynakrag_no_compression": "#E69F00"}
Points = dict[str, tuple[float, float]]
"""System -> (cost, F1)."""


# -- quality against cost


@styled
def quality_and_cost(report: Report) -> Figure:
    """F1 against tokens (above) and retrieval calls (below) of every system, numbered; those that none beats filled."""
    report = report.of("dynakrag")
    systems = {s: str(i) for i, s in enumerate((*CONTROLLERS, *BASELINES), 1)}
    cells = [Cell("", d, s, ROLE, "f1", "all") for d in report.datasets for s in systems]
    heading = "Quality against cost"
    if not any_ran(report, cells):
        return no_figure(report, heading, cells)
    runs = [s for s in systems if any(absent(report, d, ROLE, s) is None for d in report.datasets)]
    figure = Picture(heading, footer(report, cells, _cost_note(report, systems, runs), whiskers=False), height=8.0)
    panels = figure.body.subplots(2, len(report.datasets), sharex="row", sharey=True, squeeze=False)
    for line, (metric, name) in zip(panels, COSTS.items(), strict=True):
        points = {d: _points(report, d, runs, metric) for d in report.datasets}
        _limit(line[0], [x for of in points.values() for x, _ in of.values()])
        for axes, dataset in zip(line, report.datasets, strict=True):
            axes.set_title(report.label_dataset(dataset))
            axes.set_xlabel(name)
            axes.set_ylim(-0.06, 1.08)
            axes.grid()
            axes.tick_params(axis="both", length=0)
            _numbered(axes, points[dataset], systems)
        line[0].set_ylabel("F1")
    handles = [_key(systems[s], label(report, s)) for s in runs]
    figure.body.legend(handles=handles, loc="outside lower center", ncols=5, columnspacing=1.2, handletextpad=0.2)
    return finish(figure)


def _cost_note(report: Report, systems: dict[str, str], runs: list[str]) -> str:
    missing = ", ".join(label(report, s) for s in systems if s not in runs)
    return (
        "Up and to the left is better. Blue: no other system here has more F1 for no more cost, or as much F1 for less "
        "(in that dataset; by the means, whatever their intervals). Marks that would cover each other are spread "
        "vertically: a white one's F1 is at the other end of its thin line; costs are true, and the blue line joins "
        "true points. Tokens: prompt and completion of all calls, Fixed-K's too (the paper's are its prompts alone)."
        f"{f' Not run: {missing}.' if missing else ''}"
    )


def _points(report: Report, dataset: str, runs: list[str], metric: str) -> Points:
    """Those that ran."""
    found = {}
    for run in runs:
        cell = Cell("", dataset, run, ROLE, "f1", "all")
        quality, cost = measure(report, cell), measure(report, cell._replace(metric=metric))
        if quality.value is not None and cost.value is not None:
            found[run] = (cost.value, quality.value)
    return found


def _limit(axes: Any, costs: list[float]) -> None:
    high = max(costs, default=0) or 1
    axes.set_xlim(-0.06 * high, 1.1 * high)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}" if high > 20 else f"{x:g}"))


def _numbered(axes: Any, points: Points, systems: dict[str, str]) -> None:
    if not points:
        axes.text(0.5, 0.5, "not run", transform=axes.transAxes, ha="center", color=MUTED)
        return
    best = undominated(points)
    axes.plot(*zip(*sorted({points[s] for s in best}), strict=True), color=BEST, linewidth=1.2, zorder=1)
    for system, shift in spread(axes, points, best).items():
        x, y = points[system]
        if shift:
            ends = {"xytext": (0, shift), "textcoords": "offset points", "annotation_clip": False}
            axes.annotate(
                "",
                (x, y),
                zorder=2,
                arrowprops={"arrowstyle": "-", "color": MUTED, "lw": 0.6, "shrinkA": 0, "shrinkB": 0},
                **ends,
            )
        at = axes.transData + ScaledTranslation(0, shift / 72, axes.figure.dpi_scale_trans)
        fill = BEST if system in best else MOVED if shift else OTHER
        look = {"markersize": 11, "color": fill, "markeredgecolor": INK, "markeredgewidth": 0.5}
        axes.plot([x], [y], "o", transform=at, zorder=3, **look)
        ink = "white" if system in best else INK
        text = {"size": 6.5, "ha": "center", "va": "center_baseline", "color": ink, "transform": at, "zorder": 4}
        axes.text(x, y, systems[system], **text)


def spread(axes: Any, points: Points, first: list[str], step: float = 11.5) -> dict[str, float]:
    """System -> how far up its mark stands from its point, in points of 1/72 inch: 0, or the least shift (up before
    down) that covers no mark placed before it, within the axes. Those of ``first`` are placed first, then by cost.

    Costs stay true. The limits of the axes must be set; they are about ``PANEL`` large.
    """
    size = 72 * np.array(PANEL)
    order = [*first, *sorted((s for s in points if s not in first), key=lambda s: points[s])]
    places = (axes.transScale + axes.transLimits).transform([points[s] for s in order]) * size
    taken: list[tuple[float, float]] = []
    shifts = {}
    for system, (x, y) in zip(order, places, strict=True):
        tries = (sign * d for d in np.arange(0, size[1], 0.5) for sign in (1, -1))
        inside = (t for t in tries if t == 0 or step / 2 <= y + t <= size[1] - step / 2)
        free = (t for t in inside if all(np.hypot(x - a, y + t - b) >= step for a, b in taken))
        shifts[system] = float(next(free, 0.0))
        taken.append((x, y + shifts[system]))
    return shifts


def _key(number: str, name: str) -> Line2D:
    size = 4 + 3 * len(number)
    with matplotlib.rc_context({"text.parse_math": True}):  # what makes a mark of a number
        return Line2D([], [], linestyle="none", marker=f"${number}$", markersize=size, color=INK, label=name)


# -- compression


@styled
def compression(report: Report) -> Figure:
    """Evidence tokens of the final prompt, by how much compression shrinks it, and F1 with and without it."""
    report = report.of("dynakrag")
    heading = title(report, "Compression")
    cells = [Cell("Compression", d, s, ROLE, "f1", "all") for d in report.datasets for s in COMPRESSION]
    if not any_ran(report, cells):
        return no_figure(report, heading, cells)
    note = f"{_fallbacks(report)} Hollow: printed in the paper's text. Differences are paired over questions."
    figure = Picture(heading, footer(report, cells, note), height=3.5)
    tokens, cut, quality = figure.body.subplots(1, 3)
    labels = [report.label_dataset(d).replace("MultiHop", "\nMultiHop") for d in report.datasets]
    _pairs(report, tokens, "final_prompt_tokens", ".0f")
    tokens.set_title("Evidence in the final prompt, tokens")
    _pairs(report, quality, "f1", ".2f")
    quality.set_ylim(0, 1.08)
    quality.set_title("F1")
    percent_axis(cut)
    cut.set_title("Evidence saved, %")
    for i, dataset in enumerate(report.datasets):
        cell = Cell("Compression", dataset, "dynakrag_minus_no_compression", ROLE, "final_prompt_tokens_cut", "all")
        bar(cut, i, 0.5, measure(report, cell), "#009E73")
        paper_mark(report, cut, i + 0.15, cell)
    for axes in (tokens, cut, quality):
        axes.set_xticks(range(len(labels)), labels)
    handles: list[Any] = [Patch(color=c, label=label(report, s)) for s, c in COMPRESSION.items()]
    handles.append(Line2D([], [], label=f"paper, {report.expected.own.label(ROLE)}", **PAPER))
    figure.body.legend(handles=handles, loc="outside lower center", ncols=3)
    return finish(figure)


def _pairs(report: Report, axes: Any, metric: str, form: str) -> None:
    axes.grid(axis="y")
    axes.tick_params(axis="both", length=0)
    pairs: list[tuple[float, Cell, str, Measured]] = []
    for i, dataset in enumerate(report.datasets):
        for j, (system, colour) in enumerate(COMPRESSION.items()):
            cell = Cell("Compression", dataset, system, ROLE, metric, "all")
            pairs.append((i + (j - 0.5) * 0.42, cell, colour, measure(report, cell)))
    high = 1.0 if metric == "f1" else max((m.high for *_, m in pairs if m.high is not None), default=1.0)
    for x, cell, colour, value in pairs:
        bar(axes, x, 0.38, value, colour, form, (0, high))
        paper_mark(report, axes, x + 0.1, cell)


def _fallbacks(report: Report) -> str:
    """How often the model's choice of sentences could not be used."""
    events = [e for d in report.datasets for r in records(report, d) for e in r.events if e.kind == "compress"]
    kept = sum(e.data["fallback"] for e in events)
    return f"In {kept} of {len(events)} compressions the reply was unusable and all evidence was kept."
