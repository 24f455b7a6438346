"""A case as a picture: loops from left to right; searches, gold passages, register items and guidance as lanes."""

from __future__ import annotations

import textwrap
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from multihop.report import cases
from multihop.report.cases import Case
from multihop.report.lanes import FOUND, MARKS, NARROW, READ, Columns, Lane, look, system
from multihop.report.load import Report
from multihop.report.plotting import INK, MUTED, STATUSES, WIDTH, Picture, finish, nothing, styled
from multihop.report.traces import BASELINE, METHOD, Trace


@styled
def case_figure(report: Report, number: int) -> Figure:
    """The picture of case 1, 2 or 3; a figure that says so where no trace qualifies."""
    found = cases.case(report, number)
    title = f"Case {number}. {cases.EFFECTS[number - 1]}"
    if found is None:
        return nothing(title, "Not run: no trace of ExecutionRAG to show.", [report.note()])
    trace = found.trace
    columns = Columns(max(r.loops for r in (trace.record, trace.baseline) if r))
    lanes = [
        *_header(found),
        *system(trace, trace.record, METHOD, columns),
        (0.16, _nothing),
        *system(trace, trace.baseline, BASELINE, columns),
        (0.62, _legend),
    ]
    height = sum(h for h, _ in lanes)
    figure = Picture(title, [_footnote(trace, columns), report.note()], height, layout="none")
    axes = figure.body.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(height, 0))
    axes.axis("off")
    y = 0.0
    for h, draw in lanes:
        draw(axes, y)
        y += h
    return finish(figure)


def _nothing(axes: Any, y: float) -> None:
    pass


def _footnote(trace: Trace, columns: Columns) -> str:
    record = trace.record
    letters = " S semantic search, K keyword search, R read, T refused call." if columns.width < NARROW else ""
    setting = f"{trace.report.label_setting(trace.setting)}, reader {trace.report.reader(trace.setting)}"
    return (
        f"{trace.report.label_dataset(trace.dataset)}, question {record.qid}, seed {record.seed}; setting {setting}; "
        f"judge {trace.report.judge}. One trace (n = 1), chosen by rule. * resolved on passages of which none is gold."
        f"{letters}"
    )


# -- the header


def _header(case: Case) -> list[Lane]:
    trace = case.trace
    missing = {run: _missing(trace, run) for run in (METHOD, BASELINE)}
    lines = [
        ("Question", trace.record.question),
        ("Gold answer", " | ".join(trace.gold.answers[:3])),
        *((trace.report.label_run(run), cases.verdict(trace, run)) for run in (METHOD, BASELINE)),
        *((f"never retrieved, {trace.report.label_run(run)}", text) for run, text in missing.items()),
        ("why this trace", case.why),
        ("paper's own case", _paper_case(trace.report, case.number)),
    ]
    return [(0.38, _nothing), *(_field(label, text) for label, text in lines), (0.1, _nothing)]


def _paper_case(report: Report, number: int) -> str:
    key = ("main", "loops", f"case {number}")
    printed = {run: report.expected.lookup("musique", run, *key) for run in (METHOD, BASELINE)}
    text = report.expected.text
    said = ", ".join(f"{report.label_run(run)} {text(value)}" for run, value in printed.items() if value)
    return f"Table {15 + number}, another question" + (f"; loops printed: {said}" if said else "")


def _field(label: str, text: str) -> Lane:
    wrapped = textwrap.wrap(text, 108) or ["–"]

    def draw(axes: Any, y: float) -> None:
        axes.text(2.0, y + 0.12, label, size=8.5, color=MUTED, ha="right", va="baseline")
        for i, line in enumerate(wrapped):
            axes.text(2.12, y + 0.12 + 0.155 * i, line, size=8.5, va="baseline", parse_math=False)

    return 0.155 * len(wrapped) + 0.04, draw


def _missing(trace: Trace, run: str) -> str:
    record = trace.record if run == METHOD else trace.baseline
    if record is None:
        return "not run"
    found = trace.world.chunks.support(record, trace.gold)
    titles = [
        f"gold passage {hop} ({trace.passage_title(p)})"
        for hop, (p, f) in enumerate(zip(found.passages, found.found, strict=True), 1)
        if f is False
    ]
    return "; ".join(titles) or "none: every gold passage was retrieved"


def _legend(axes: Any, y: float) -> None:
    handles: list[Any] = [Patch(color=fill, label=status) for status, (fill, _) in STATUSES.items()]
    handles += [
        Line2D([], [], color=FOUND, marker="o", markersize=7, label="gold passage first retrieved"),
        Line2D([], [], color=READ, marker="s", markersize=6, linestyle="none", label="read in full"),
        Line2D([], [], marker="o", markersize=7, linestyle="none", markerfacecolor="white", markeredgecolor=INK,
               label="never retrieved"),
    ]  # fmt: skip
    handles += [Line2D([], [], label=text, **look(kind)) for kind, (text, _) in MARKS.items()]
    axes.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0.05, y + 0.08), bbox_transform=axes.transData, ncols=7,
        fontsize=7.5, columnspacing=1.3, handlelength=1.4, borderaxespad=0,
    )  # fmt: skip
