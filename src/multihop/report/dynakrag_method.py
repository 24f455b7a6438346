"""Figures 1 and 2 of paper 2 (DynaKRAG): drawn from the operation table that the controller itself runs on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from multihop.controller.state import ACTIONS as LEARNED
from multihop.controller.state import OPERATIONS, Limits
from multihop.report.figure_method import Column
from multihop.report.load import Report
from multihop.report.plotting import ACTIONS, INK, MUTED, WIDTH, Picture, finish, styled, title

PIPELINES = {
    "fixed_k": "R → A",
    "ircot": "R → ( W ) → A",
    "s2g_rag": "R → ( S → G ) → A",
    "corag_s3": "( G ) → A",
    "adaptive_rag": "route: A, or R → A, or R → ( W ) → A",
    "par2_rag": "plan: R R R → ( S → G ) → A",
    "crag": "R → S → W → A",
    "self_ask": "( G ) → A",
}
"""Run -> its fixed order in the codes of the operation table, as near as they go; in brackets: repeated."""
CHIP = 0.2
_ANSWER = (0.5, "answer", ("white", INK), MUTED)
"""Width, label, (fill, ink) and edge of the box that ends a pipeline."""
NEAR = (
    "Upper part: our controlled implementations, written in the operations of the table as near as they go: a sentence "
    "of reasoning that becomes a query counts as a rewrite, a follow-up question as a gap query, grading as a check."
)
FIELDS = (
    "question, documents held, place in the initial ranking, latest query, what is missing, last verdict, "
    "operations so far, cost"
)
Arrow = tuple[tuple[float, float], tuple[float, float]]


@styled
def figure_1(report: Report) -> Figure:
    """Method-specific pipelines above, the one controller below (paper 2, Fig. 1)."""
    report = report.of("dynakrag")
    rows = (len(PIPELINES) + 1) // 2
    top, middle = 0.46, 0.86 + 0.25 * rows
    state, table, policy = Column(0.22, 1.75, middle + 0.42), Column(2.5, 4.9), Column(7.82, 1.95, middle + 0.42)
    bottom = _operation_rows(table, middle + 0.42)
    _state_box(state)
    _policy_box(policy)
    low = max(bottom, state.y, policy.y) + 0.12
    frames = [(0.1, middle + 0.3, 2.0), (2.38, middle + 0.3, 5.12), (7.7, middle + 0.3, 2.2)]
    notes = [f"{NEAR} Lower part: the table of operations in the code (multihop/controller/state.py)."]
    figure, axes = _canvas(title(report, "Figure 1"), notes, low + 0.36)
    _heading(axes, top, "Fixed pipelines: each has its own order")
    for i, (run, steps) in enumerate(PIPELINES.items()):
        _pipeline(axes, 0.2 + 4.2 * (i // rows), top + 0.26 + 0.25 * (i % rows), report.label_run(run), steps)
    _heading(axes, middle + 0.16, "DynaKRAG: at every step any operation that the state makes valid")
    for left, y, width in frames:
        _frame(axes, left, y, width, low - y)
    y = (middle + 0.3 + low) / 2
    arrows: list[Arrow] = [((2.1, y), (2.38, y)), ((7.5, y), (7.7, y))]
    _arrows(axes, arrows)
    _return(axes, 8.8, 1.1, low, low + 0.17, "executing it gives the next state")
    for column in (state, table, policy):
        _draw(axes, column)
    return finish(figure)


def _operation_rows(column: Column, y: float, effects: bool = True) -> float:
    """The operation table; returns its lower end."""
    column.y = y
    column.text("Operations", 9, weight="bold")
    for o in OPERATIONS:
        text = f"{o.name}: valid with {o.needs}" if o.code in LEARNED else f"{o.name}: {o.needs}"
        text = f"{text}; cost: {o.cost}"
        column.chip(o.code, ACTIONS[o.code], CHIP, f"{text} → {o.effect}" if effects else text)
        column.space(0.02)
    return column.y


def _state_box(column: Column) -> None:
    column.text("Evidence state", 9, weight="bold")
    column.text(FIELDS, 7.5, most=12)
    column.space(0.06)
    column.text("nothing that needs the gold answer or the supporting facts", 7.5, most=5, color=MUTED)


def _policy_box(column: Column) -> None:
    column.text("Policy", 9, weight="bold")
    for number, text in enumerate(
        (
            "the rules of validity and the budget leave the executable operations",
            "where stopping is one of them, a learned gate votes: stop, or go on",
            "the learned advantage of each of the others over answering now decides",
        ),
        1,
    ):
        column.text(f"{number}  {text}", 7.5, most=5)
        column.space(0.05)


# -- Figure 2


@styled
def figure_2(report: Report) -> Figure:
    """Training above, inference below (paper 2, Fig. 2)."""
    report = report.of("dynakrag")
    training = [Column(left + 0.1, 2.2, 0.7) for left in (0.1, 2.6, 5.1, 7.6)]
    for column, (head, *lines) in zip(training, _training(report), strict=True):
        _fill(column, head, lines)
    low = max(c.y for c in training) + 0.12
    second = low + 0.42
    inference = [Column(left + 0.1, width - 0.2, second + 0.1) for left, width in _PLACES]
    state, table, gate, scorer, end = inference
    _fill(state, "Evidence state", [FIELDS])
    bottom = _operation_rows(table, second + 0.1, effects=False)
    _fill(gate, "Gate", ["continuation, gain and premature-stop models vote", "stop: only T stays", "go on: T goes"])
    _fill(scorer, "Advantage scorer", ["ranks what is left", "the first is executed"])
    _fill(end, "End", _endings())
    base = max(bottom, *(c.y for c in inference)) + 0.12
    figure, axes = _canvas(title(report, "Figure 2"), [_trained_note(report), report.note()], base + 0.36)
    _heading(axes, 0.44, "Training, on train questions")
    _heading(axes, second - 0.14, "Inference")
    for left in (0.1, 2.6, 5.1, 7.6):
        _frame(axes, left, 0.6, 2.3, low - 0.6)
    for left, width in _PLACES:
        _frame(axes, left, second, width, base - second)
    _arrows(axes, [((x, (0.6 + low) / 2), (x + 0.2, (0.6 + low) / 2)) for x in (2.4, 4.9, 7.4)])
    y = (second + base) / 2
    _arrows(axes, [((left + width, y), (after, y)) for (left, width), (after, _) in pairwise(_PLACES)])
    _return(axes, 7.3, 0.9, base, base + 0.17, "the next state")
    for column in (*training, *inference):
        _draw(axes, column)
    return finish(figure)


_PLACES = ((0.1, 1.6), (1.9, 3.3), (5.4, 1.35), (6.95, 1.3), (8.45, 1.45))
"""(left, width) of the boxes of inference."""


def _training(report: Report) -> list[tuple[str, ...]]:
    training = report.params.the_training
    many = f"{training.questions:,} train questions" if training else "train questions"
    return [
        ("Trajectories", f"{many} of a dataset, none of them an evaluation question",
         "two roll-outs of each: a random one and a scripted one",
         "at every state each valid operation is tried once, and the answer as of now is read"),
        ("Targets", "advantage (eq. 1): recall after the operation − λ · recall now (not for stopping) − β · cost",
         "gate: F1 of the answer now against F1 after the whole trajectory"),
        ("Forests", "advantage: a regressor over state, operation and its expected cost",
         "gate: continuation classifier, gain regressor, premature-stop classifier; calibrated on held-out questions"),
        ("Controller", "compiled arrays and a model card with the hash of the feature list",
         "the same files serve every reader model"),
    ]  # fmt: skip


def _endings() -> list[str]:
    limits = Limits()
    return [
        "T chosen, or S says the evidence suffices, or the budget is spent, or "
        f"{limits.steps} steps are over ({limits.docs} documents at most)",
        "C shortens the evidence once",
        "the reader answers",
    ]


def _trained_note(report: Report) -> str:
    """How much stands behind the controllers of this project."""
    cards = [(d, files["card"]) for by in report.trained.values() for d, files in by.items() if "card" in files]
    if not cards:
        return "No controller is trained in this project yet (results/trained is empty)."
    sizes = dict.fromkeys(
        f"{report.label_dataset(d)}: n = {card['questions']:,} questions, {card['states']:,} states, "
        f"{len(card['trainings'])} independent trainings"
        for d, card in cards
    )
    return f"Trained in this project on {'; '.join(sizes)}."


# -- drawing


def _canvas(heading: str, notes: Sequence[str], height: float) -> tuple[Picture, Any]:
    """Axes whose unit is the inch, y downwards."""
    figure = Picture(heading, notes, height, layout="none")
    axes = figure.body.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(height, 0))
    axes.axis("off")
    return figure, axes


def _fill(column: Column, head: str, lines: Sequence[str]) -> None:
    column.text(head, 9, weight="bold")
    for line in lines:
        column.text(line, 7.5, most=12)
        column.space(0.05)


def _draw(axes: Any, column: Column) -> None:
    for mark in column.marks:
        mark(axes)


def _heading(axes: Any, y: float, text: str) -> None:
    axes.text(0.1, y, text, size=9.5, weight="bold", va="center", color=MUTED)


def _frame(axes: Any, left: float, top: float, width: float, height: float) -> None:
    box = FancyBboxPatch((left, top), width, height, boxstyle="round,pad=0,rounding_size=0.07")
    box.set(facecolor="#FAFAFA", edgecolor=MUTED, linewidth=0.8)
    axes.add_patch(box)


def _arrows(axes: Any, arrows: Sequence[Arrow]) -> None:
    for start, end in arrows:
        look = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.3, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", end, start, arrowprops=look)


def _return(axes: Any, start: float, end: float, top: float, y: float, text: str) -> None:
    """The way back, below the boxes."""
    axes.plot([start, start, end], [top, y, y], color=INK, linewidth=1.3)
    _arrows(axes, [((end, y), (end, top))])
    axes.text((start + end) / 2, y + 0.03, text, size=7.5, color=MUTED, ha="center", va="top")


def _pipeline(axes: Any, left: float, y: float, name: str, steps: str) -> None:
    """One line: the name, then its operations as chips; other words stand as they are."""
    axes.text(left, y, name, size=8.5, va="center")
    x = left + 1.3
    for token in steps.split():
        bare = token.rstrip(",:")
        word = token[len(bare) :]
        if bare in ACTIONS or bare == "A":
            width, label, (fill, ink), edge = (CHIP, bare, ACTIONS[bare], "none") if bare in ACTIONS else _ANSWER
            axes.add_patch(Rectangle((x, y - 0.085), width, 0.17, facecolor=fill, edgecolor=edge, linewidth=0.7))
            axes.text(x + width / 2, y, label, size=7, color=ink, ha="center", va="center_baseline")
            x += width + 0.03
        else:
            word = {")": ")↻"}.get(token, token)
        if word:
            axes.text(x, y, word, size=8.5, va="center", color=MUTED)
            x += 0.08 * len(word) + 0.05
