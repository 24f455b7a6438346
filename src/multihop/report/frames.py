"""How a table looks: a frame of texts with a caption above and, below, where the page says how to read it."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from multihop.report.expected import VERDICTS, Cell
from multihop.report.load import Report
from multihop.report.standing import same
from multihop.report.values import PERCENT, Measured, measure, score_rows

NOT_PRINTED = "—"
LEGEND = (
    "Brackets: 95 % bootstrap interval over questions; it has no width where all scores are equal, as with n = 1. "
    f"{NOT_PRINTED}: the paper's text does not print it."
)
METRIC_LABELS = {
    "em": "EM",
    "f1": "F1",
    "contain": "Contain",
    "llm_acc": "LLM-Acc",
    "rule_acc": "rule judge",
    "retrieved_tokens": "retrieved tokens",
    "usd": "USD",
}


@dataclass(frozen=True)
class Note:
    """Small print that shows itself in a notebook."""

    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f"<p><small>{html.escape(self.text)}</small></p>"


@dataclass(frozen=True)
class Table:
    """Shows itself in a notebook as HTML and as text; ``frame`` holds the cells as texts."""

    caption: str
    frame: pd.DataFrame
    note: str = ""

    def __repr__(self) -> str:
        with pd.option_context("display.max_colwidth", None):
            body = self.frame.to_string() if len(self.frame) else "(no rows)"
        return "\n".join(filter(None, (self.caption, body, self.note)))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """The text beside the HTML is short, so that rendered notebooks do not hold every number twice."""
        return {"text/html": self._repr_html_(), "text/plain": self.caption}

    def _repr_html_(self) -> str:
        with pd.option_context("display.max_colwidth", None):
            body = _aligned(self.frame.to_html(border=0, na_rep=""), self.frame)
        note = f"<p><small>{html.escape(self.note)}</small></p>" if self.note else ""
        return f"<p><b>{html.escape(self.caption)}</b></p>\n{body}\n{note}"


_NUMBER = re.compile(r"[-+−≈]?\s*\d(?:[^a-zA-Z]|of)*")
_NOTHING = ("", NOT_PRINTED)


def _aligned(page: str, frame: pd.DataFrame) -> str:
    """Cells of columns that hold mostly words get the class that render.py's style sheet aligns to the left."""
    columns = [[c for c in map(str, frame.iloc[:, i]) if c not in _NOTHING] for i in range(frame.shape[1])]
    words = [2 * sum(_NUMBER.fullmatch(c) is None for c in cells) > len(cells) for cells in columns]
    at = iter(range(page.count("<td>")))
    return re.sub("<td>", lambda m: '<td class="words">' if words[next(at) % len(words)] else m[0], page)


def caption(
    report: Report, item: str, role: str | None = None, text: str = "", datasets: Sequence[str] | None = None
) -> str:
    """The item's name and title, its setting, judge and n (of ``datasets``, else all); ``text`` explains the rows."""
    declared = report.expected.items[item]
    parts = [f"{item}. {declared.title}."]
    if role:
        parts.append(f"Setting: {setting_label(report, role)}.")
    counts = [f"{report.label_dataset(d)} {report.questions(d)}" for d in datasets or report.datasets]
    if report.expected.own.judge:
        parts.append(f"Judges: {report.judge} (LLM-Acc) and a string rule.")
    parts.append(f"n: {', '.join(counts)}.")
    return " ".join([*parts, text]).strip()


def setting_label(report: Report, role: str) -> str:
    """Ours first, then the paper's that it stands for: ``reader, embedder (stands for the paper's backbone)``.

    Where a paper's settings differ in the embedder alone, its name is enough. An embedder is named by the label of the
    first setting that has it.
    """
    own, setting = report.expected.own, report.setting(role)
    if setting is None:
        return f"no setting (for {own.label(role)})"
    if own.varies == "embedder":
        return f"{report.label_setting(setting)} (paper: {own.label(role)})"
    if same(report, "backbone", setting, own.roles[role]):
        return report.label_setting(setting)
    settings = report.params.settings
    first = next(name for name, s in settings.items() if s.embedder == settings[setting].embedder)
    return f"{report.reader(setting)}, {report.label_setting(first)} (stands for {own.label(role)})"


def how_to_read(report: Report) -> Note:
    """What a page says once, at its head: the notation, and what is not the paper's own setting."""
    unit = " EM, F1 and recall are fractions, their differences percentage points."
    units = unit if report.expected.shares == "fraction" else ""
    return Note(f"How to read the tables. {LEGEND}{units} {report.note()}")


def note(report: Report) -> str:
    """The line below a table: short, since ``how_to_read`` stands at the page's head."""
    kind = "A generated world, not the paper's data" if report.is_demo else "Not the paper's setting"
    return f"{kind if report.differences() else f'Profile {report.params.profile}'}: see the note at the page's head."


def number(value: float | None, metric: str, shares: str = "percent") -> str:
    """A value in the metric's usual precision; ``shares``: how the paper prints accuracies."""
    fine = shares == "fraction"
    if value is None:
        return ""
    if metric.startswith("pareto_"):
        return VERDICTS[int(value)]
    if metric == "usd" or (fine and metric in PERCENT):
        return f"{value:.4f}"
    if metric in PERCENT or metric.endswith(("_share", "_saving", "_match", "_cut")):
        return f"{value:.1f}"
    if metric.endswith("_delta") or (fine and metric.endswith("_calls")):
        return f"{value:.2f}" if fine else f"{value:.1f}"
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}"


def ours(measured: Measured, metric: str, shares: str = "percent") -> str:
    """``50.0 [0.0, 100.0]``, or why there is no number."""
    if not measured.ran:
        return f"not run: {measured.missing}"
    if measured.value is None:
        return measured.remark
    if metric.startswith("pareto_") and measured.remark:
        return measured.remark
    value, low, high = (number(v, metric, shares) for v in (measured.value, measured.low, measured.high))
    return f"{value} [{low}, {high}]" if low else value


def paper(report: Report, cell: Cell) -> str:
    printed = report.expected.lookup(*cell.key)
    return report.expected.text(printed) if printed else NOT_PRINTED


def answered(report: Report, cell: Cell) -> str:
    """n_ok / n of the cell's group; with seeds, n_ok is their mean."""
    rows = score_rows(report, cell)
    seeds = len({r["seed"] for r in rows}) or 1
    ok = sum(r["status"] != "error" for r in rows) / seeds
    return f"{ok:g} / {len({r['qid'] for r in rows})}"


def compared(report: Report, cell: Cell, metrics: list[str], **options: Any) -> dict[tuple[str, str], str]:
    """One row of a table: for each metric ours and the paper's; a cell that did not run says so once.

    Of a difference of two systems, the metrics' differences. Options go to ``measure``.
    """
    minus = report.expected.systems[cell.system].minus
    cells = {m: cell._replace(metric=f"{m}_delta" if minus else m) for m in metrics}
    measured = {m: measure(report, c, **options) for m, c in cells.items()}
    first = measured[metrics[0]]
    row: dict[tuple[str, str], str] = {
        ("n_ok / n", ""): f"{first.n} pairs" if minus and first.ran else answered(report, cell) if first.ran else ""
    }
    for metric, value in measured.items():
        label = METRIC_LABELS.get(metric, metric.replace("_", " "))
        repeated = not value.ran and value.missing == first.missing and metric != metrics[0]
        row[label, "ours [95 %]"] = "" if repeated else ours(value, cells[metric].metric, report.expected.shares)
        if metric != "rule_acc":
            row[label, "paper"] = paper(report, cells[metric])
    return row


def frame(rows: dict[tuple[str, ...], dict[Any, str]], names: list[str]) -> pd.DataFrame:
    """Rows by index key; ``names`` are the index levels'."""
    table = pd.DataFrame(list(rows.values()))
    if len(table) and isinstance(table.columns[0], tuple):
        table.columns = pd.MultiIndex.from_tuples(table.columns)
    keys = [k if isinstance(k, tuple) else (k,) for k in rows]
    table.index = pd.MultiIndex.from_tuples(keys, names=names) if len(names) > 1 else pd.Index(
        [k[0] for k in keys], name=names[0]
    )  # fmt: skip
    return table.fillna("")
