"""Figure 2: why wrong answers are wrong on MuSiQue, by Appendix E's rule and by the symmetric one.

The symmetric rule leaves out 3b (a register that was closed while a passage was missing), which can only move the
register method's failures out of "missing evidence". The paper prints nothing under that rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from multihop.analysis import failures
from multihop.report.load import PAPER_EMBEDDERS, ROLES, Report
from multihop.report.plotting import (
    INK,
    METHODS,
    MUTED,
    Picture,
    empty_slot,
    finish,
    footer,
    interval,
    nothing,
    percent_axis,
    printed,
    styled,
)

LOOK = {
    "missing_evidence": ("missing evidence", "#D55E00", ""),
    "reasoning_error": ("reasoning error", "#0072B2", ""),
    "gave_up": ("gave up", "#F0E442", ""),
    "judge_error": ("judge error", "#999999", ""),
    "unmappable": ("unmappable", "#ffffff", "///"),
    "system_error": ("system error", "#ffffff", "xxx"),
}
"""Category -> (label, colour, hatch), from the bottom of a bar to its top."""
HOPS: tuple[int | None, ...] = (None, 2, 3, 4)
WIDTH_OURS, WIDTH_PAPER = 0.27, 0.1
RULES = {False: "Appendix E's rule", True: "symmetric: rule 3b off"}


@styled
def figure_2(report: Report) -> Figure:
    """Failure categories, overall and by hops, for A-RAG and ExecutionRAG under both embedders (paper 1, Fig. 2)."""
    title = "Figure 2. Failure distribution on MuSiQue, by category and hop count"
    cells = [("musique", report.setting(role), run) for role in ROLES for run in METHODS]
    if not any(report.has(*cell) for cell in cells):
        return nothing(title, "Not run: no results yet for any of its cells.", footer(report, cells))
    names = ", ".join(f"{run_letter(run)} = {report.label_run(run)}" for run in METHODS)
    note = (
        f"{names}; below a bar the number of its failures by the model judge, in a segment the segment's. Narrow bars: "
        "the shares that the paper's text prints. Whiskers: the missing-evidence share."
    )
    figure = Picture(title, footer(report, cells, note), height=6.6)
    panels = figure.body.subplots(len(ROLES), len(RULES), sharey=True)
    for line, role in zip(panels, ROLES, strict=True):
        for axes, symmetric in zip(line, RULES, strict=True):
            _panel(report, axes, role, symmetric)
        line[0].set_ylabel("% of the method's own failures")
    handles = [Patch(facecolor=c, hatch=h, edgecolor=MUTED, label=name) for name, c, h in LOOK.values()]
    handles.append(Patch(facecolor="white", edgecolor=MUTED, linestyle=":", label="not printed (paper's bars)"))
    figure.body.legend(handles=handles, loc="outside lower center", ncols=7, columnspacing=1.2, handlelength=1.4)
    return finish(figure)


def run_letter(run: str) -> str:
    return run[0].upper()


def _panel(report: Report, axes: Any, role: str, symmetric: bool) -> None:
    percent_axis(axes, "")
    setting = report.setting(role)
    name = report.label_setting(setting) if setting else f"{PAPER_EMBEDDERS[role]}: no such setting"
    axes.set_title(f"{name}\n{RULES[symmetric]}", size=9)
    axes.spines["bottom"].set_visible(False)
    ticks, labels = [], []
    for i, hops in enumerate(HOPS):
        for j, run in enumerate(METHODS):
            x = i + (j - 0.5) * 0.46
            rows = _rows(report, setting, run, hops)
            _bar(report, axes, x, rows, report.has("musique", setting, run), symmetric)
            if not symmetric:
                _paper_bar(report, axes, x + 0.21, role, run, hops)
            ticks.append(x)
            labels.append(f"{run_letter(run)}\n{len(rows)}")
        group = "overall" if hops is None else f"{hops} hops"
        axes.text(i, -0.2, group, transform=axes.get_xaxis_transform(), ha="center", va="top", size=9)
    axes.set_xticks(ticks, labels)
    axes.set_xlabel("\n")


def _rows(report: Report, setting: str | None, run: str, hops: int | None) -> list[dict[str, Any]]:
    rows = report.failure_rows("musique", setting, run) if setting else []
    return [r for r in rows if r["judge"] == "llm" and hops in (None, r["hops"])]


def _bar(report: Report, axes: Any, x: float, rows: Sequence[dict], ran: bool, symmetric: bool) -> None:
    """One stacked bar with counts; an empty slot where the cell did not run or has no failure."""
    if not rows:
        empty_slot(axes, x, WIDTH_OURS, 100, "no failure" if ran else "not run")
        return
    found = failures.table(rows, "llm", symmetric=symmetric)
    bottom = 0.0
    for category, (_, colour, hatch) in LOOK.items():
        share = 100 * found["shares"][category]
        if share == 0:
            continue
        axes.bar(x, share, WIDTH_OURS, bottom, color=colour, hatch=hatch, edgecolor="white" if not hatch else MUTED)
        if share >= 6:
            dark = category in ("missing_evidence", "reasoning_error")
            axes.text(
                x - 0.06, bottom + share / 2, str(found["counts"][category]), ha="center", va="center", size=8,
                color="white" if dark else INK,
            )  # fmt: skip
        bottom += share
    column = "category_symmetric" if symmetric else "category"
    missing = interval(report, [{**r, "missing": r[column] == "missing_evidence"} for r in rows], "missing")
    if missing.high > missing.low:
        below, above = 100 * (missing.mean - missing.low), 100 * (missing.high - missing.mean)
        axes.errorbar(x + 0.08, 100 * missing.mean, [[below], [above]], color=INK, capsize=2, linewidth=0.9)


def _paper_bar(report: Report, axes: Any, x: float, role: str, run: str, hops: int | None) -> None:
    """The shares that the paper prints, stacked in the same order; what it does not print stays white."""
    group = "all" if hops is None else f"{hops}-hop"
    shares = {c: printed(report, "musique", role, run, f"{c}_share", group) for c in LOOK}
    if all(share is None for share in shares.values()):
        return
    bottom = 0.0
    for category, share in shares.items():
        if share is None:
            break
        axes.bar(x, share, WIDTH_PAPER, bottom, color=LOOK[category][1], edgecolor=INK, linewidth=0.6)
        bottom += share
    axes.bar(x, 100 - bottom, WIDTH_PAPER, bottom, fill=False, edgecolor=MUTED, linestyle=":", linewidth=0.8)
