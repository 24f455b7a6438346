"""The lanes of one system in a case's picture: searches, gold passages, register items, guidance.

A lane is its height in inches and a function that draws it from a given y downwards, on axes whose unit is the inch.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from matplotlib.patches import Rectangle

from multihop.report.plotting import FAINT, INK, MUTED, STATUSES, WIDTH
from multihop.report.traces import Trace, shorten
from multihop.types import Event, RunRecord

FOUND, READ = "#0072B2", "#E69F00"
MARKS = {
    "initial": ("register shown", {"marker": "v", "markerfacecolor": INK}),
    "delta": ("progress delta", {"marker": "v", "markerfacecolor": "white"}),
    "nudge": ("nudge", {"marker": "P", "markerfacecolor": INK}),
    "reminder": ("reminder of open items", {"marker": "*", "markerfacecolor": "#F0E442", "markersize": 9}),
    "guards": ("guard acted", {"marker": "s", "markerfacecolor": "white"}),
    "update_failed": ("update failed", {"marker": "x"}),
    "forced": ("forced answer", {"marker": "X", "markerfacecolor": "#D55E00"}),
}
"""Kind of mark -> (legend, look), in the order in which they stand within a loop."""
TOOLS = {"seed": "seed", "semantic_search": "semantic", "keyword_search": "keyword", "read_chunk": "read"}
LEFT, RIGHT = 3.1, 0.15
LINE = 0.125
"""Inches: the column of lane labels, the right margin, and the height of a line of small type."""
NARROW = 0.62
"""Inches of a loop's column below which queries do not fit: then only the tool's letter stands there."""
Lane = tuple[float, Callable[[Any, float], None]]


@dataclass(frozen=True)
class Columns:
    """Where the loops stand: column 0 is the seed retrieval, the one after a run's last loop its answer."""

    loops: int

    @property
    def width(self) -> float:
        return (WIDTH - LEFT - RIGHT) / (self.loops + 2)

    def left(self, step: int) -> float:
        return LEFT + step * self.width

    def centre(self, step: int) -> float:
        return self.left(step) + self.width / 2

    @property
    def characters(self) -> int:
        return int((self.width - 0.06) / 0.058)


def system(trace: Trace, record: RunRecord | None, run: str, columns: Columns) -> list[Lane]:
    name = trace.report.label_run(run)
    if record is None:
        return [_bar(name, "not run", columns, range(0))]
    loops = f"{record.loops} loop{'s' * (record.loops != 1)}"
    facts = f"{loops}, {record.retrieved_tokens:,} retrieved tokens, stopped: {record.stop_reason}"
    lanes = [_bar(name, facts, columns, range(_first(record), record.loops + 2)), _searches(trace, record, columns)]
    lanes += [_passage(trace, record, hop, p, columns) for hop, p in enumerate(trace.gold.supporting, 1)]
    lanes += [_item(trace, record, key, columns) for key in _items(record)]
    marks = [(e, kind) for e in record.events if (kind := _mark(e)) is not None]
    return [*lanes, _guidance(marks, columns)] if marks else lanes


def _first(record: RunRecord) -> int:
    """Column 0 is for those that retrieve before the first loop."""
    return 0 if any(e.kind == "retrieve" and e.step == 0 for e in record.events) else 1


def _bar(name: str, facts: str, columns: Columns, steps: range) -> Lane:
    """The system's name, and the column heads; the last is the answer's."""

    def draw(axes: Any, y: float) -> None:
        axes.plot([0.08, WIDTH - RIGHT], [y + 0.02, y + 0.02], color=INK, linewidth=1)
        axes.text(0.08, y + 0.16, name, size=9.5, weight="bold", va="center")
        axes.text(0.08, y + 0.33, facts, size=7.5, color=MUTED, va="center")
        for step in steps:
            head = "seed" if step == 0 else "answer" if step == steps[-1] else f"loop {step}"
            short = head if columns.width > 0.45 else {"seed": "s", "answer": "a"}.get(head, str(step))
            axes.text(columns.centre(step), y + 0.33, short, size=8, color=MUTED, ha="center", va="center")

    return 0.46, draw


def _searches(trace: Trace, record: RunRecord, columns: Columns) -> Lane:
    texts: dict[int, list[str]] = {}
    for event in record.events:
        if event.kind in ("retrieve", "read", "tool_error"):
            texts.setdefault(event.step, []).extend(_call(trace, event, columns))
    texts = {step: lines if len(lines) <= 8 else [*lines[:7], "…"] for step, lines in texts.items()}
    height = LINE * max((len(lines) for lines in texts.values()), default=1) + 0.1

    def draw(axes: Any, y: float) -> None:
        _label(axes, y + height / 2, "searches and reads")
        for step, lines in texts.items():
            box = (columns.left(step) + 0.02, y + 0.01)
            axes.add_patch(Rectangle(box, columns.width - 0.04, height - 0.04, facecolor="#F4F4F4", edgecolor="none"))
            where = (columns.left(step) + 0.05, y + 0.05)
            axes.text(*where, "\n".join(lines), size=6.8, va="top", linespacing=1.15, parse_math=False)

    return height, draw


def _call(trace: Trace, event: Event, columns: Columns) -> list[str]:
    """One call in at most four short lines; in a narrow column its letter alone."""
    data = event.data
    if columns.width < NARROW:
        return [(TOOLS.get(data["tool"], "?") if event.kind == "retrieve" else event.kind)[0].upper()]
    if event.kind == "tool_error":
        return ["call refused"]
    if event.kind == "read":
        head, text = "read:", ", ".join(trace.title(c) for c in data["new"]) or "nothing new"
    else:
        head = "repeated:" if data["repeat"] else f"{TOOLS.get(data['tool'], data['tool'])}:"
        text = trace.query(data["query"])
    return [head, *textwrap.wrap(text, columns.characters, max_lines=3, placeholder=" …")]


def _passage(trace: Trace, record: RunRecord, hop: int, passage_id: str, columns: Columns) -> Lane:
    """Filled where a gold passage was first surfaced, a square where it was read, hollow at the end if never."""
    chunks = trace.world.chunks.chunks_of(passage_id)
    found = next((r.step for r in record.retrieved if r.chunk_id in chunks), None)
    read = next((e.step for e in record.events if e.kind == "read" and chunks & set(e.data["new"])), None)
    end = columns.centre(record.loops + 1)

    def draw(axes: Any, y: float) -> None:
        middle = y + 0.11
        _label(axes, middle, f"gold passage {hop}: {shorten(trace.passage_title(passage_id), 40)}")
        if not chunks:
            axes.text(columns.left(0), middle, "not in the corpus", size=7.5, color=MUTED, va="center")
            return
        if found is None:
            axes.plot([columns.centre(_first(record)), end], [middle, middle], color=FAINT, linewidth=1, linestyle=":")
            axes.plot(end, middle, marker="o", markersize=7, markerfacecolor="white", markeredgecolor=INK)
            return
        axes.plot([columns.centre(found), end], [middle, middle], color=FOUND, linewidth=1)
        axes.plot(columns.centre(found), middle, marker="o", markersize=7, color=FOUND)
        if read is not None:
            x = columns.centre(read) + 0.13
            axes.plot(x, middle, marker="s", markersize=6, color=READ, markeredgecolor=INK, markeredgewidth=0.6)

    return 0.23, draw


def _items(record: RunRecord) -> list[tuple[str, str]]:
    """(id, sub-question) of every item there ever was, in order of appearance."""
    found = [(i["id"], i["question"]) for e in _snapshots(record) for i in e.data["items"]]
    return list(dict.fromkeys(found))


def _snapshots(record: RunRecord) -> list[Event]:
    return [e for e in record.events if e.kind in ("register", "final_register")]


def _segments(record: RunRecord, key: tuple[str, str]) -> list[tuple[int, int, str, list[str]]]:
    """(first column, column after the last, status, passages) of one item; a snapshot holds from the next loop on."""
    segments: list[tuple[int, int, str, list[str]]] = []
    last = record.loops + 2
    for event in _snapshots(record):
        at = min(event.step + 1, record.loops + 1)
        item = next((i for i in event.data["items"] if (i["id"], i["question"]) == key), None)
        if segments and segments[-1][1] == last:
            first, _, status, passages = segments[-1]
            if item and item["status"] == status and item["passages"] == passages:
                continue
            segments[-1] = (first, at, status, passages)
        if item:
            segments.append((at, last, item["status"], item["passages"]))
    return [s for s in segments if s[1] > s[0]]


def _item(trace: Trace, record: RunRecord, key: tuple[str, str], columns: Columns) -> Lane:
    label = textwrap.wrap(f"{key[0]}  {trace.clean(key[1])}", 50, max_lines=3, placeholder=" …")
    height = max(0.26, LINE * len(label) + 0.08)
    gold = frozenset().union(*(trace.world.chunks.chunks_of(p) for p in trace.gold.supporting))

    def draw(axes: Any, y: float) -> None:
        _label(axes, y + height / 2, "\n".join(label))
        previous = None
        for first, after, status, passages in _segments(record, key):
            fill, ink = STATUSES[status]
            x, width = columns.left(first), (after - first) * columns.width
            box = (x + (0.0 if previous == status else 0.015), y + 0.03)
            axes.add_patch(Rectangle(box, width, height - 0.06, facecolor=fill, edgecolor="none"))
            text = status + ("*" if status == "resolved" and gold and not gold & set(passages) else "")
            if width > 0.6 and previous != status:
                axes.text(x + 0.07, y + height / 2, text, size=7.5, color=ink, va="center")
            previous = status

    return height, draw


def _mark(event: Event) -> str | None:
    kind = event.data["inject"] if event.kind == "inject" else event.kind
    return kind if kind in MARKS else None


def _guidance(marks: list[tuple[Event, str]], columns: Columns) -> Lane:
    def draw(axes: Any, y: float) -> None:
        _label(axes, y + 0.13, "guidance")
        for step in sorted({event.step for event, _ in marks}):
            here = [kind for event, kind in marks if event.step == step]
            gap = min(0.17, (columns.width - 0.1) / len(here))
            for i, kind in enumerate(sorted(here, key=list(MARKS).index)):
                x = columns.centre(step) + (i - (len(here) - 1) / 2) * gap
                axes.plot(x, y + 0.13, **look(kind))

    return 0.28, draw


def look(kind: str) -> dict[str, Any]:
    return {"linestyle": "none", "markersize": 7, "markeredgecolor": INK, "markeredgewidth": 0.8, **MARKS[kind][1]}


def _label(axes: Any, y: float, text: str) -> None:
    axes.text(LEFT - 0.1, y, text, size=7.5, ha="right", va="center", linespacing=1.15, parse_math=False)
