"""How every figure looks, and how it becomes the same bytes each time: colours, empty slots, footers, PNG.

No pyplot: a figure here has no global state, and a notebook shows it through ``_repr_png_``.
"""

from __future__ import annotations

import functools
import io
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from multihop import jsonl
from multihop.report.expected import Cell
from multihop.report.load import Report
from multihop.report.values import Measured, absent, run_of, score_rows

DPI = 110
WIDTH = 10.0
"""Inches; with DPI about the width of a notebook's output area."""
INK, MUTED, FAINT = "#222222", "#6b6b6b", "#d9d9d9"
METHODS = {"arag": "#E69F00", "executionrag": "#0072B2"}
"""Okabe and Ito's palette, which the common colour-vision deficiencies keep apart."""
EMBEDDERS = ("#009E73", "#CC79A7")
STATUSES = {
    "pending": ("#E4E4E4", INK),
    "active": ("#56B4E9", INK),
    "resolved": ("#009E73", "white"),
    "retired": ("#D55E00", "white"),
}
"""Status of a register item -> (fill, text colour)."""
ACTIONS = {
    "R": ("#0072B2", "white"),
    "G": ("#E69F00", INK),
    "W": ("#CC79A7", INK),
    "B": ("#009E73", "white"),
    "S": ("#56B4E9", INK),
    "T": ("#D55E00", "white"),
    "C": ("#999999", INK),
}
"""Code of an operation -> (fill, text colour); the letter always stands with it."""
PAPER = {"marker": "D", "markerfacecolor": "white", "markeredgecolor": INK, "linestyle": "none", "markersize": 6}
_STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.parse_math": False,  # a dollar sign in a title or question is one: no formula to set, none to fail at
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
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
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
    with jsonl.replacing(path) as f:
        f.write(png(figure))
    return path


def keep(report: Report, name: str, figure: Figure) -> Figure:
    """Save as figures/<name>.png of the project and give it back, to be shown."""
    save(figure, report.root / f"figures/{name}.png")
    return figure


# -- parts of an axes


Span = tuple[float, float]


def empty_slot(axes: Any, x: float, width: float, text: str = "not run", span: Span = (0, 100)) -> None:
    """The place of a bar that has no data, ``span`` being from where to where."""
    bottom, top = span
    axes.bar(x, top - bottom, width, bottom, fill=False, edgecolor=MUTED, linestyle=(0, (2, 2)), linewidth=0.8)
    axes.text(x, (bottom + top) / 2, text, rotation=90, ha="center", va="center", size=8, color=MUTED)


def bar(
    axes: Any, x: float, width: float, value: Measured, colour: str, form: str = ".0f", span: Span = (0, 100)
) -> None:
    """A bar with its interval and its value, or an empty slot that says what is missing."""
    if value.value is None:
        empty_slot(axes, x, width, slot_text(value), span)
        return
    axes.bar(x, value.value, width, color=colour)
    ends = [value.value]
    if value.high > value.low:
        whisker(axes, x, value)
        ends = [value.low, value.high]
    below = span[0] < 0 and value.value <= 0
    y, gap, va = (min(*ends, 0.0), -2, "top") if below else (max(*ends, 0.0), 2, "bottom")
    place = {"textcoords": "offset points", "ha": "center", "va": va}
    axes.annotate(format(value.value, form), (x, y), (0, gap), size=8, **place)


def whisker(axes: Any, x: float, value: Measured) -> None:
    below, above = value.value - value.low, value.high - value.value
    axes.errorbar(x, value.value, [[max(below, 0)], [max(above, 0)]], color=INK, capsize=2.5, linewidth=0.9)


def slot_text(value: Measured) -> str:
    if value.missing is None:
        return "undefined"
    return "no question" if " question among " in value.missing else "not run"


def percent_axis(axes: Any) -> None:
    axes.set_ylim(0, 112)
    axes.set_yticks(range(0, 101, 20))
    axes.grid(axis="y")
    axes.tick_params(axis="both", length=0)


def undominated(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """The names of the (cost, quality) points that no other beats or equals in one and beats in the other; by cost."""

    def beaten(cost: float, quality: float) -> bool:
        return any(c <= cost and q >= quality and (c, q) != (cost, quality) for c, q in points.values())

    return sorted((n for n, point in points.items() if not beaten(*point)), key=lambda n: (*points[n], n))


def apart(
    axes: Any, places: Sequence[tuple[float, float]], inches: tuple[float, float], step: float = 7
) -> list[float]:
    """A sideways shift, in points of 1/72 inch, for each place (data): those that would cover each other stand in a
    row about their middle, in their order.

    ``inches``: about how large the axes are drawn; their limits must be set.
    """
    if not places:
        return []
    at = (axes.transScale + axes.transLimits).transform(places) * 72 * np.array(inches)
    rows = [[int(i)] for i in np.lexsort((at[:, 1], at[:, 0]))]
    moved = at.copy()

    def touch(a: list[int], b: list[int]) -> bool:
        return any((abs(moved[i] - moved[j]) < 0.99 * step).all() for i in a for j in b)

    while pair := next(((a, b) for a, b in combinations(rows, 2) if touch(a, b)), None):
        row = sorted(pair[0] + pair[1], key=lambda i: (at[i, 0], i))
        rows = [r for r in rows if r not in pair] + [row]
        moved[row, 0] = at[row, 0].mean() + (np.arange(len(row)) - (len(row) - 1) / 2) * step
    return (moved - at)[:, 0].tolist()


def shifted(axes: Any, points: float) -> Any:
    """The transform of the data, moved sideways by so many points."""
    return axes.transData + ScaledTranslation(points / 72, 0, axes.figure.dpi_scale_trans)


# -- what a figure says about itself


def title(report: Report, item: str) -> str:
    return f"{item}. {report.expected.items[item].title}"


def embedder(report: Report, role: str) -> str:
    setting = report.setting(role)
    return report.label_setting(setting) if setting else f"{report.expected.own.label(role)} (no such setting)"


def any_ran(report: Report, cells: Iterable[Cell]) -> bool:
    return any(absent(report, c.dataset, c.role, run_of(report, c.system)) is None for c in cells)


def printed(report: Report, cell: Cell) -> float | None:
    """What the paper's text prints for a cell."""
    value = report.expected.lookup(*cell.key)
    return value.number if value else None


def paper_mark(report: Report, axes: Any, x: float, cell: Cell) -> None:
    value = printed(report, cell)
    if value is not None:
        axes.plot([x], [value], zorder=5, **PAPER)


def no_figure(report: Report, heading: str, cells: list[Cell]) -> Picture:
    return nothing(heading, "Not run: no results yet for any of its cells.", footer(report, cells))


def footer(report: Report, cells: Sequence[Cell], text: str = "", whiskers: bool = True) -> list[str]:
    """n, interval (where the figure has ``whiskers``), judge, settings, and how far all that is from the paper's."""
    counts = {len({r["qid"] for r in score_rows(report, c._replace(group="all"))}) for c in cells} - {0}
    n = " to ".join(f"{k:,}" for k in sorted({min(counts), max(counts)})) if counts else "0"
    settings = [s for s in map(report.setting, dict.fromkeys(c.role for c in cells)) if s]
    described = "; ".join(f"{report.label_setting(s)}, reader {report.reader(s)}" for s in settings)
    level = f"{100 * report.params.statistics.confidence:g} %"
    judged = f" LLM-Acc judged by {report.judge}." if report.expected.own.judge else ""
    interval = f"{level} bootstrap interval over questions (none where all score the same, which is no certainty)"
    drawn = f"; whiskers: {interval}" if whiskers else ""
    facts = f"n = {n} questions a cell{drawn}.{judged} Settings: {described}."
    return [f"{text} {facts}".strip(), report.note()]
