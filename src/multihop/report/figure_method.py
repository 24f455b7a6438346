"""Figure 1: the method's three stages, filled with one of our own traces (the one of case 2, cases.py)."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from multihop.report import cases
from multihop.report.load import Report
from multihop.report.plotting import INK, MUTED, STATUSES, WIDTH, Picture, finish, nothing, styled
from multihop.report.traces import METHOD, Trace
from multihop.types import Event

TITLE = "Figure 1. ExecutionRAG: build a register, work through it, answer when nothing is open"
STAGES = (("1  Build the register", 0.1, 2.95), ("2  Search and update ↻", 3.35, 3.75), ("3  Answer", 7.4, 2.5))
"""(heading, left edge, width) of the three boxes, inches."""
SUBTITLES = (
    "from the question and one retrieval with it (the seed): one item active, the rest pending",
    "each loop: show the open item → the agent searches → update the items that the new evidence touches",
    "when no item is open, or when the loops are used up: from the register and its supporting passages",
)
CHARACTER = 0.0076
"""Inches of a character's width for each point of type size, on average."""
LOOPS_SHOWN = 6


@dataclass
class Column:
    """Text that flows down a box; drawn once the height of all boxes is known."""

    left: float
    width: float
    y: float = 0.0
    marks: list[Callable[[Any], None]] = field(default_factory=list)

    def text(self, text: str, size: float = 8, indent: float = 0.0, most: int = 5, **look: Any) -> None:
        character = CHARACTER * size * (1.14 if look.get("weight") == "bold" else 1)
        for line in textwrap.wrap(text, int((self.width - indent) / character), max_lines=most, placeholder=" …"):
            self.y += size * 0.0185
            where = (self.left + indent, self.y)
            self.marks.append(lambda axes, w=where, t=line: axes.text(*w, t, size=size, parse_math=False, **look))

    def item(self, status: str, text: str) -> None:
        """A register item: its status as a coloured chip, then its id and sub-question."""
        self.chip(status, STATUSES[status], 0.58, text)

    def chip(self, label: str, look: tuple[str, str], width: float, text: str) -> None:
        """A coloured label, ``look`` being (fill, ink), and the text beside it."""
        fill, ink = look
        self.y += 0.06
        box, middle = (self.left, self.y), self.y + 0.08

        def chip(axes: Any) -> None:
            axes.add_patch(Rectangle(box, width, 0.16, facecolor=fill, edgecolor="none"))
            axes.text(box[0] + width / 2, middle, label, size=7, color=ink, ha="center", va="center_baseline")

        self.marks.append(chip)
        top = self.y
        self.text(text, 7.5, indent=width + 0.08, most=9)
        self.y = max(self.y, top + 0.17)

    def space(self, height: float) -> None:
        self.y += height


@styled
def figure_1(report: Report) -> Figure:
    """The three stages as a schematic with the searches and register of a real record (paper 1, Fig. 1)."""
    found = cases.case(report, 2)
    if found is None:
        return nothing(TITLE, "Not run: no trace of ExecutionRAG to fill the scheme with.", [report.note()])
    trace = found.trace
    columns = [Column(left + 0.12, width - 0.24) for _, left, width in STAGES]
    for column, (heading, _, _), subtitle in zip(columns, STAGES, SUBTITLES, strict=True):
        column.space(0.48)
        column.text(heading, 10.5, weight="bold")
        column.text(subtitle, 7.5, color=MUTED)
        column.space(0.08)
    _build(trace, columns[0])
    _search(trace, columns[1])
    _answer(trace, columns[2])
    height = max(column.y for column in columns) + 0.2
    figure = Picture(TITLE, [_footnote(trace), report.note()], height, layout="none")
    axes = figure.body.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(height, 0))
    axes.axis("off")
    _boxes(axes, height)
    for column in columns:
        for draw in column.marks:
            draw(axes)
    return finish(figure)


def _footnote(trace: Trace) -> str:
    return (
        f"Filled with a real trace (n = 1): {trace.report.label_dataset(trace.dataset)}, question {trace.record.qid}, "
        f"{trace.report.label_setting(trace.setting)}, reader {trace.report.reader(trace.setting)}, judge "
        f"{trace.report.judge}. ● a gold passage, ○ another passage."
    )


def _boxes(axes: Any, height: float) -> None:
    for _, left, width in STAGES:
        box = FancyBboxPatch((left, 0.4), width, height - 0.46, boxstyle="round,pad=0,rounding_size=0.08")
        box.set(facecolor="#FAFAFA", edgecolor=MUTED, linewidth=0.8)
        axes.add_patch(box)
    for (_, left, width), (_, following, _) in pairwise(STAGES):
        look = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.4, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", (following, 0.62), (left + width, 0.62), arrowprops=look)


def _build(trace: Trace, column: Column) -> None:
    column.text("Question", 7.5, color=MUTED)
    column.text(trace.record.question, 8.5, most=8, weight="bold")
    column.space(0.08)
    seed = next((e for e in trace.record.events if e.kind == "retrieve" and e.step == 0), None)
    column.text("Seed retrieval: semantic_search with the question" if seed else "No seed retrieval", 7.5, color=MUTED)
    for chunk_id in seed.data["chunk_ids"] if seed else ():
        column.text(f"{_dot(trace, chunk_id)} {trace.title(chunk_id)}", 8, most=2)
    column.space(0.08)
    column.text("Register before the first loop", 7.5, color=MUTED)
    first = next(e for e in trace.record.events if e.kind in ("register", "final_register"))
    for item in first.data["items"]:
        column.item(item["status"], f"{item['id']}  {trace.clean(item['question'])}")


def _dot(trace: Trace, chunk_id: str) -> str:
    return "●" if trace.world.chunks.passages_of(chunk_id) & set(trace.gold.supporting) else "○"


def _search(trace: Trace, column: Column) -> None:
    loops = trace.record.loops
    for step in range(1, loops + 1):
        if loops > LOOPS_SHOWN and 4 <= step < loops - 1:
            if step == 4:
                column.text(f"… loops 4 to {loops - 2} …", 8, color=MUTED)
                column.space(0.06)
            continue
        column.text(f"Loop {step}", 8, weight="bold")
        lines = [line for e in trace.record.events if e.step == step for line in _lines(trace, e)]
        for line in lines or ["no search: an answer"]:
            column.text(line, 7.5, indent=0.12, most=3)
        column.space(0.07)


def _lines(trace: Trace, event: Event) -> list[str]:
    """One event of a loop as lines of text; the kinds that say nothing to a reader give none."""
    data = event.data
    if event.kind == "retrieve":
        gold = [c for c in data["chunk_ids"] if _dot(trace, c) == "●"]
        named = ", ".join(f"● {trace.title(c)}" for c in gold) or "no gold passage"
        return [f"{data['tool']}: “{trace.query(data['query'])}” → {len(data['chunk_ids'])} passages; {named}"]
    if event.kind == "read":
        read = ", ".join(f"{_dot(trace, c)} {trace.title(c)}" for c in data["new"])
        return [f"read_chunk: {read}"] if read else []
    if event.kind == "transition":
        return [f"{data['id']}: {data['from'] or 'new'} → {data['to']}"]
    plain = {
        "inject": {"delta": "the agent is shown the progress", "none": None},
        "guards": "a guard kept the register's rules",
        "update_failed": "the update was no valid JSON: register unchanged",
        "reminder": "the agent wanted to answer: sent back to the open items",
        "nudge": "most of the loops are used: the agent is asked to conclude",
        "forced": "out of budget: forced to answer",
    }.get(event.kind)
    if isinstance(plain, dict):
        plain = plain.get(data["inject"], "the agent is shown the register")
    return [plain] if plain else []


def _answer(trace: Trace, column: Column) -> None:
    column.text("Register at the end", 7.5, color=MUTED)
    for item in trace.items:
        column.item(item["status"], f"{item['id']}  {trace.clean(item['question'])}")
    column.space(0.12)
    column.text(f"Stopped: {trace.record.stop_reason}", 7.5, color=MUTED)
    column.text("Answer", 7.5, color=MUTED)
    column.text(cases.answer(trace, trace.record, trace.score), 8.5, weight="bold")
    column.text("Judges: " + cases.judged(trace.score), 7.5)
    column.text(f"Gold answer: {trace.gold.answers[0]}", 7.5)
    column.space(0.08)
    found = trace.world.chunks.support(trace.record, trace.gold)
    label = trace.report.label_run(METHOD)
    column.text(f"Gold passages that {label} retrieved: {found.retrieved} of {len(found.passages)}", 7.5, color=MUTED)
