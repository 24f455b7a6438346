"""The figures of paper 1 (ExecutionRAG), drawn from our results with the paper's printed values as hollow marks.

Each ``figure_N(report)`` returns a matplotlib figure; ``save`` writes it as PNG, the same bytes each time. A series
that did not run keeps its place as a dashed slot. Figures 1 and 2 have files of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from multihop.evaluation.aggregate import per_question
from multihop.evaluation.statistics import Interval, bootstrap_mean
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
    bar,
    finish,
    footer,
    interval,
    nothing,
    percent_axis,
    png,
    printed,
    save,
    styled,
)

__all__ = ["figure_1", "figure_2", "figure_3", "figure_4", "figure_5", "figure_6", "png", "save"]

METRICS = {"contain": "Contain-Match", "llm_acc": "LLM-Acc"}
ABLATIONS = {
    "executionrag": ("full", "#0072B2", "o"),
    "executionrag_question_only": ("question-only register", "#D55E00", "s"),
    "executionrag_no_updates": ("no updates", "#009E73", "^"),
}
CATEGORIES: dict[str, tuple[str, list[Any]]] = {
    "musique": ("hops", [2, 3, 4]),
    "hotpotqa": ("type", ["bridge", "comparison"]),
    "2wikimultihopqa": ("type", ["compositional", "comparison", "bridge_comparison", "inference"]),
}
"""Dataset -> (column of the score rows, the categories of Tables 3 to 8)."""
Cell = tuple[str, str | None, str]


def _cells(report: Report, roles: Sequence[str], runs: Sequence[str], datasets: Sequence[str]) -> list[Cell]:
    return [(d, report.setting(role), run) for d in datasets for role in roles for run in runs]


def _ran(report: Report, cells: Sequence[Cell]) -> bool:
    return any(report.has(*cell) for cell in cells)


def _rows(report: Report, cell: Cell) -> list[dict[str, Any]]:
    dataset, setting, run = cell
    return report.score_rows(dataset, setting, run) if setting else []


def _absent(title: str, report: Report, cells: Sequence[Cell]) -> Figure:
    return nothing(title, "Not run: no results yet for any of its cells.", footer(report, cells))


def _embedder(report: Report, role: str) -> str:
    setting = report.setting(role)
    return report.label_setting(setting) if setting else f"{PAPER_EMBEDDERS[role]} (no such setting)"


# -- Figure 3


@styled
def figure_3(report: Report) -> Figure:
    """Contain-Match and LLM-Acc under the second embedder, by benchmark and on average (paper 1, Fig. 3)."""
    title = f"Figure 3. Performance under the second embedder: {_embedder(report, 'second')}"
    cells = _cells(report, ["second"], list(METHODS), report.datasets)
    if not _ran(report, cells):
        return _absent(title, report, cells)
    figure = Picture(title, footer(report, cells), height=3.5)
    n = len(report.datasets)
    panels = figure.body.subplots(1, 3, sharey=True, width_ratios=[n, n, 2])
    for axes, (metric, name) in zip(panels, METRICS.items(), strict=False):
        _benchmarks(report, axes, metric)
        axes.set_title(f"{name}, %")
    _average(report, panels[2])
    handles = [Patch(color=c, label=report.label_run(run)) for run, c in METHODS.items()]
    handles.append(Line2D([], [], label=f"paper, {PAPER_EMBEDDERS['second']}", **PAPER))
    figure.body.legend(handles=handles, loc="outside lower center", ncols=3)
    return finish(figure)


def _benchmarks(report: Report, axes: Any, metric: str) -> None:
    percent_axis(axes, "")
    axes.set_xticks(range(len(report.datasets)), [report.label_dataset(d) for d in report.datasets])
    for i, dataset in enumerate(report.datasets):
        for j, (run, colour) in enumerate(METHODS.items()):
            x = i + (j - 0.5) * 0.4
            value = interval(report, _rows(report, (dataset, report.setting("second"), run)), metric)
            bar(axes, x, 0.36, value, top=100, scale=100, color=colour)
            _paper_mark(axes, x + 0.11, printed(report, dataset, "second", run, metric))


def _average(report: Report, axes: Any) -> None:
    """The unweighted mean over the benchmarks; drawn only where all of them ran."""
    percent_axis(axes, "")
    axes.set_title("Average over the benchmarks, %")
    axes.set_xticks(range(len(METRICS)), METRICS.values())
    for i, metric in enumerate(METRICS):
        for j, (run, colour) in enumerate(METHODS.items()):
            x = i + (j - 0.5) * 0.4
            bar(axes, x, 0.36, _macro(report, metric, run), top=100, scale=100, color=colour)
            values = [printed(report, d, "second", run, metric) for d in report.datasets]
            if None not in values:
                _paper_mark(axes, x + 0.11, sum(values) / len(values))


def _macro(report: Report, metric: str, run: str) -> Interval | None:
    """Mean of the benchmarks' means. Each question is weighted so that every benchmark counts the same."""
    cells = [_rows(report, (d, report.setting("second"), run)) for d in report.datasets]
    if not all(cells):
        return None
    chosen = report.params.statistics
    values = [list(per_question(rows, metric).values()) for rows in cells]
    total = sum(map(len, values))
    weighted = [v * total / (len(cells) * len(own)) for own in values for v in own]
    return bootstrap_mean(weighted, seed=chosen.seed, resamples=chosen.resamples, level=chosen.confidence)


def _paper_mark(axes: Any, x: float, value: float | None) -> None:
    if value is not None:
        axes.plot([x], [value], zorder=5, **PAPER)


# -- Figures 4 and 6


@styled
def figure_4(report: Report) -> Figure:
    """LLM-Acc against retrieved tokens, with the Pareto frontier; below, the ablations (paper 1, Fig. 4)."""
    title = "Figure 4. Accuracy and retrieved tokens per question"
    cells = _cells(report, ROLES, list(METHODS), report.datasets)
    ablations = _cells(report, ROLES, list(ABLATIONS), ["musique"])
    if not _ran(report, cells + ablations):
        return _absent(title, report, cells)
    note = (
        "Grey line: Pareto frontier of our points (fewer tokens, higher accuracy). Hollow: printed in the paper; "
        "a triangle at the right edge where only the accuracy is printed."
    )
    figure = Picture(title, footer(report, [*cells, *ablations], note), height=6.4)
    upper, lower = figure.body.subfigures(2, 1, height_ratios=[1.15, 1])
    panels = upper.subplots(1, len(report.datasets), sharex=True, sharey=True, squeeze=False)[0]
    for axes, dataset in zip(panels, report.datasets, strict=True):
        _frontier(report, axes, dataset)
    panels[0].set_ylabel("LLM-Acc, %")
    upper.legend(handles=_frontier_legend(report), loc="outside lower center", ncols=2)
    for axes, role in zip(lower.subplots(1, 2), ROLES, strict=True):
        _ablation_bars(report, axes, role)
    kinds = [
        Patch(color="#56B4E9", label="LLM-Acc (bars, left axis)"),
        Line2D([], [], color=INK, marker="o", markersize=4, label="retrieved tokens (line, right axis)"),
        Line2D([], [], label="paper's LLM-Acc", **PAPER),
    ]
    lower.legend(handles=kinds, loc="outside lower center", ncols=3)
    return finish(figure)


def _frontier(report: Report, axes: Any, dataset: str) -> None:
    """One panel: both methods under both embedders, ours filled and the paper's hollow."""
    _token_axes(axes, report.label_dataset(dataset))
    points, absent = [], []
    for role, marker in zip(ROLES, "os", strict=True):
        for shift, (run, colour) in enumerate(METHODS.items()):
            rows = _rows(report, (dataset, report.setting(role), run))
            if rows:
                points.append(_point(report, axes, rows, colour, marker))
            else:
                absent.append(f"{report.label_run(run)}, {role} embedder")
            _paper_point(report, axes, (dataset, role, run), (colour, marker), shift)
    best, line = -1.0, []
    for tokens, accuracy in sorted(points, key=lambda p: (p[0], -p[1])):
        if accuracy > best:
            best = accuracy
            line.append((tokens, accuracy))
    if line:
        axes.plot(*zip(*line, strict=True), color=MUTED, linewidth=1, zorder=1)
    _say_absent(axes, absent)


def _token_axes(axes: Any, title: str) -> None:
    axes.set_title(title)
    percent_axis(axes, "")
    axes.set_ylim(-5, 108)
    axes.set_xscale("log")
    axes.set_xlabel("retrieved tokens per question (log scale)")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(axis="x")


def _point(report: Report, axes: Any, rows: list[dict], colour: str, marker: str) -> tuple[float, float]:
    """One cell as a point with whiskers both ways; returns (tokens, accuracy in %)."""
    tokens, accuracy = interval(report, rows, "retrieved_tokens"), interval(report, rows, "llm_acc")
    x, y = max(tokens.mean, 1.0), 100 * accuracy.mean
    axes.errorbar(
        x,
        y,
        xerr=[[x - max(tokens.low, 1.0)], [tokens.high - tokens.mean]],
        yerr=[[y - 100 * accuracy.low], [100 * accuracy.high - y]],
        color=colour,
        marker=marker,
        markersize=8,
        markeredgecolor="white",
        elinewidth=0.8,
        capsize=2,
        zorder=3,
    )
    return x, y


def _paper_point(report: Report, axes: Any, key: tuple[str, str, str], look: tuple[str, str], shift: int) -> None:
    """What the paper prints of a cell; ``shift`` keeps equal marks on the edge apart."""
    accuracy = printed(report, *key, "llm_acc")
    tokens = printed(report, *key, "retrieved_tokens")
    colour, marker = look
    hollow = {"markerfacecolor": "white", "markeredgecolor": colour, "markeredgewidth": 1.4, "linestyle": "none"}
    if accuracy is not None and tokens is not None:
        axes.plot([tokens], [accuracy], marker=marker, markersize=8, zorder=2, **hollow)
    elif accuracy is not None:
        at = axes.get_yaxis_transform()
        axes.plot([1 + 0.022 * shift], [accuracy], marker="<", markersize=7, transform=at, clip_on=False, **hollow)


def _frontier_legend(report: Report) -> list[Any]:
    return [
        Line2D([], [], color=colour, marker=marker, linestyle="none", markersize=8,
               label=f"{report.label_run(run)}, {_embedder(report, role)}")
        for role, marker in zip(ROLES, "os", strict=True)
        for run, colour in METHODS.items()
    ]  # fmt: skip


def _say_absent(axes: Any, absent: list[str]) -> None:
    if absent:
        axes.text(0.03, 0.03, "not run: " + "\n".join(absent), transform=axes.transAxes, size=8, color=MUTED)


def _ablation_bars(report: Report, axes: Any, role: str) -> None:
    """LLM-Acc as bars and retrieved tokens as a line, for the variants of Table 2 on MuSiQue."""
    percent_axis(axes, "LLM-Acc, %")
    axes.set_title(f"Ablation on MuSiQue\n{_embedder(report, role)}")
    axes.set_xticks(range(len(ABLATIONS)), [name for name, _, _ in ABLATIONS.values()])
    right = axes.twinx()
    right.spines["right"].set_visible(True)
    right.set_ylabel("retrieved tokens")
    right.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    right.yaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    tokens = []
    for i, run in enumerate(ABLATIONS):
        rows = _rows(report, ("musique", report.setting(role), run))
        bar(axes, i, 0.5, interval(report, rows, "llm_acc"), top=100, scale=100, color="#56B4E9")
        _paper_mark(axes, i + 0.17, printed(report, "musique", role, run, "llm_acc"))
        if rows:
            tokens.append((i, interval(report, rows, "retrieved_tokens").mean))
    if tokens:
        right.plot(*zip(*tokens, strict=True), color=INK, marker="o", markersize=4, linewidth=1)
    right.set_ylim(0, 1.25 * max((t for _, t in tokens), default=1.0) or 1.0)


@styled
def figure_6(report: Report) -> Figure:
    """LLM-Acc against retrieved tokens for the ablation variants on MuSiQue (paper 1, Fig. 6)."""
    title = "Figure 6. Ablation variants on MuSiQue: accuracy and retrieved tokens"
    cells = _cells(report, ROLES, list(ABLATIONS), ["musique"])
    if not _ran(report, cells):
        return _absent(title, report, cells)
    note = "Hollow: printed in the paper; a triangle at the right edge where only the accuracy is printed."
    figure = Picture(title, footer(report, cells, note), height=3.8)
    panels = figure.body.subplots(1, 2, sharex=True, sharey=True)
    for axes, role in zip(panels, ROLES, strict=True):
        _token_axes(axes, _embedder(report, role))
        absent = []
        for shift, (run, (name, colour, marker)) in enumerate(ABLATIONS.items()):
            rows = _rows(report, ("musique", report.setting(role), run))
            if rows:
                _point(report, axes, rows, colour, marker)
            else:
                absent.append(name)
            _paper_point(report, axes, ("musique", role, run), (colour, marker), shift)
        _say_absent(axes, absent)
    panels[0].set_ylabel("LLM-Acc, %")
    handles = [
        Line2D([], [], color=colour, marker=marker, linestyle="none", markersize=8, label=name)
        for name, colour, marker in ABLATIONS.values()
    ]
    figure.body.legend(handles=handles, loc="outside lower center", ncols=3)
    return finish(figure)


# -- Figure 5


@styled
def figure_5(report: Report) -> Figure:
    """ExecutionRAG by hop count and question type under both embedders (paper 1, Fig. 5 and Tables 3 to 8)."""
    title = "Figure 5. ExecutionRAG by question category under both embedders"
    datasets = [d for d in CATEGORIES if d in report.datasets]
    cells = _cells(report, ROLES, ["executionrag"], datasets)
    if not _ran(report, cells):
        return _absent(title, report, cells)
    groups = {d: _groups(report, d) for d in datasets}
    figure = Picture(title, footer(report, cells, "The paper's text prints no value of this figure."), height=5.1)
    panels = figure.body.subplots(
        len(METRICS), len(datasets), sharey=True, squeeze=False, width_ratios=[len(g) for g in groups.values()]
    )
    for line, (metric, name) in zip(panels, METRICS.items(), strict=True):
        for axes, dataset in zip(line, datasets, strict=True):
            _categories(report, axes, dataset, groups[dataset], metric)
        line[0].set_ylabel(f"{name}, %")
    for axes, dataset in zip(panels[0], datasets, strict=True):
        axes.set_title(report.label_dataset(dataset))
    handles = [Patch(color=c, label=_embedder(report, r)) for r, c in zip(ROLES, EMBEDDERS, strict=True)]
    figure.body.legend(handles=handles, loc="outside lower center", ncols=2)
    return finish(figure)


def _groups(report: Report, dataset: str) -> list[Any]:
    """The paper's categories, then any other that our questions have."""
    column, known = CATEGORIES[dataset]
    found = {
        row[column] for role in ROLES for row in _rows(report, (dataset, report.setting(role), "executionrag"))
    }
    return known + sorted(found - set(known))


def _categories(report: Report, axes: Any, dataset: str, groups: list[Any], metric: str) -> None:
    percent_axis(axes, "")
    column = CATEGORIES[dataset][0]
    labels = []
    for i, group in enumerate(groups):
        sizes = set()
        for j, (role, colour) in enumerate(zip(ROLES, EMBEDDERS, strict=True)):
            cell = _rows(report, (dataset, report.setting(role), "executionrag"))
            rows = [row for row in cell if row[column] == group]
            sizes.add(len({row["qid"] for row in rows}))
            bar(axes, i + (j - 0.5) * 0.42, 0.38, interval(report, rows, metric), top=100, scale=100, color=colour)
        name = f"{group} hops" if column == "hops" else str(group).replace("_", "\n")
        labels.append(f"{name}\nn = {'/'.join(map(str, sorted(sizes)))}")
    axes.set_xticks(range(len(groups)), labels)
