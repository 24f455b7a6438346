"""How every figure looks, and how it becomes the same bytes each time: colours, empty slots, footers, PNG.

No pyplot: a figure here has no global state, and a notebook shows it through ``_repr_png_``.
"""

from __future__ import annotations

import functools
import io
import os
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from multihop.evaluation import aggregate
from multihop.evaluation.statistics import Interval
from multihop.report import expected
from multihop.report.load import Report

DPI = 110
WIDTH = 10.0
"""Inches; with DPI about the width of a notebook's output area."""
INK, MUTED, FAINT = "#222222", "#6b6b6b", "#d9d9d9"
METHODS = {"arag": "#E69F00", "executionrag": "#0072B2"}
"""Okabe and Ito's palette, which the common colour-vision deficiencies keep apart."""
EMBEDDERS = ("#009E73", "#CC79A7")
PAPER = {"marker": "D", "markerfacecolor": "white", "markeredgecolor": INK, "linestyle": "none", "markersize": 6}
_STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "axes.axisbelow": True,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "hatch.linewidth": 0.6,
    "figure.dpi": DPI,
}
_FOOTER_SIZE, _FOOTER_LINE, _FOOTER_CHARACTERS = 7.5, 0.15, 178


class Picture(Figure):
    """A titled figure with small print below, drawn by Agg whatever the backend; it shows itself in a notebook.

    Draw into ``body``, ``height`` inches high. ``layout``: "constrained", or "none" for axes placed by hand.
    """

    def __init__(self, title: str, notes: Iterable[str], height: float, layout: str = "constrained"):
        lines = [line for note in notes for line in textwrap.wrap(note, _FOOTER_CHARACTERS)]
        foot = _FOOTER_LINE * len(lines) + 0.12
        super().__init__(figsize=(WIDTH, height + foot), layout=layout, facecolor="white")
        FigureCanvasAgg(self)
        self.body, below = self.subfigures(2, 1, height_ratios=[height, foot])
        self.body.suptitle(title, x=0.008, ha="left", weight="bold", size=11)
        small = {"size": _FOOTER_SIZE, "color": MUTED, "va": "bottom", "linespacing": 1.3}
        below.text(0.008, 0.05 / foot, "\n".join(lines), **small)

    def _repr_png_(self) -> bytes:
        return png(self)


@contextmanager
def style() -> Iterator[None]:
    """Matplotlib's own defaults and ours, whatever the reader's matplotlibrc says."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    @functools.wraps(draw)
    def wrapped(*args: Any, **kwargs: Any) -> Figure:
        with style():
            return draw(*args, **kwargs)

    return wrapped


def finish(figure: Picture) -> Picture:
    """Lay out once and freeze the layout, so that drawing again moves nothing."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def nothing(title: str, why: str, notes: Iterable[str]) -> Picture:
    """A figure without data: it says what is missing."""
    figure = Picture(title, notes, height=1.2, layout="none")
    figure.body.text(0.008, 0.4, why, size=10, color=INK, va="center")
    return finish(figure)


def png(figure: Figure) -> bytes:
    """The figure as PNG bytes that depend on nothing but the figure: no date, no software version."""
    buffer = io.BytesIO()
    with style():
        figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None, "Creation Time": None})
    return buffer.getvalue()


def save(figure: Figure, path: Path | str) -> Path:
    """Write ``png(figure)`` atomically and return the path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(png(figure))
    os.replace(temporary, path)
    return path


# -- parts of an axes


def empty_slot(axes: Any, x: float, width: float, top: float, text: str = "not run") -> None:
    """The place of a bar that has no data."""
    axes.bar(x, top, width, fill=False, edgecolor=MUTED, linestyle=(0, (2, 2)), linewidth=0.8)
    axes.text(x, top * 0.5, text, rotation=90, ha="center", va="center", size=8, color=MUTED)


def bar(axes: Any, x: float, width: float, value: Interval | None, *, top: float, scale: float = 1, **kw: Any) -> None:
    """A bar with its interval and its value, or an empty slot when there is no value."""
    if value is None or value.mean is None:
        empty_slot(axes, x, width, top)
        return
    mean, low, high = (scale * v for v in (value.mean, value.low, value.high))
    axes.bar(x, mean, width, **kw)
    if high > low:
        axes.errorbar(x, mean, [[mean - low], [high - mean]], color=INK, capsize=2.5, linewidth=0.9)
    axes.annotate(f"{mean:.0f}", (x, high), (0, 2), textcoords="offset points", ha="center", size=8)


def percent_axis(axes: Any, label: str = "%") -> None:
    axes.set_ylim(0, 112)
    axes.set_yticks(range(0, 101, 20))
    axes.set_ylabel(label)
    axes.grid(axis="y")
    axes.tick_params(axis="both", length=0)


# -- numbers


def interval(report: Report, rows: Sequence[dict[str, Any]], metric: str) -> Interval | None:
    """Mean and bootstrap interval of a cell's rows by the params' statistics; None for no rows."""
    chosen = report.params.statistics
    if not rows:
        return None
    return aggregate.interval(
        rows, metric, seed=chosen.seed, resamples=chosen.resamples, level=chosen.confidence
    )


@functools.lru_cache(maxsize=4)
def _paper(root: Path) -> expected.Expected:
    return expected.load(root)


def printed(
    report: Report, dataset: str, role: str, system: str, metric: str, group: str = "all"
) -> float | None:
    """The number that the paper's text prints on these coordinates (percent, tokens), None where it prints none."""
    value = _paper(report.root.resolve()).lookup(dataset, system, role, metric, group)
    return value.number if value else None


def paper_loops(report: Report, table: str) -> dict[str, float]:
    """System -> loops that the paper prints for a case's table; the coordinates alone do not tell its cases apart."""
    values = _paper(report.root.resolve()).values
    return {v.system: v.number for v in values if v.item == table and v.metric == "loops"}


def questions(report: Report, cells: Iterable[tuple[str, str | None, str]]) -> str:
    """"n = 4 questions a cell", or the range where the cells differ; "n = 0" for none."""
    counts = {len({r["qid"] for r in report.score_rows(*cell)}) for cell in cells if cell[1]} - {0}
    if not counts:
        return "n = 0"
    low, high = min(counts), max(counts)
    return f"n = {low:,} questions in each cell" if low == high else f"n = {low:,} to {high:,} questions in a cell"


def footer(report: Report, cells: Sequence[tuple[str, str | None, str]], text: str = "") -> list[str]:
    """What every figure says about itself: n, interval, judge, settings, and how far it is from the paper's."""
    settings = dict.fromkeys(setting for _, setting, _ in cells if setting)
    described = "; ".join(f"{report.label_setting(s)}, reader {report.reader(s)}" for s in settings)
    level = f"{100 * report.params.statistics.confidence:g} %"
    facts = (
        f"{questions(report, cells)}; whiskers: {level} bootstrap interval over questions (none where all score the "
        f"same, which is no certainty). LLM-Acc judged by {report.judge}. Settings: {described}."
    )
    return [f"{text} {facts}".strip(), report.note()]
