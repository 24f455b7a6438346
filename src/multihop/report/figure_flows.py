"""The flow picture: on the left what came of each question in the first run, on the right in the second, bands between.

A band's colour is the outcome it comes from. Every block carries the letters of its outcome, so that nothing rests on
colour alone. Heights are shares of the questions: the picture looks the same at n = 4 and at n = 12,576.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch, PathPatch, Rectangle
from matplotlib.path import Path

from multihop.analysis.paired import OUTCOMES, RIGHT
from multihop.report.failure_tables import JUDGES
from multihop.report.figure_failures import LOOK as CAUSES
from multihop.report.figure_failures import RULES
from multihop.report.frames import number
from multihop.report.load import Report
from multihop.report.pairs import MAIN, Scope, chosen, label_scope, matrix, scopes
from multihop.report.plotting import INK, MUTED, Picture, finish, nothing, styled

LOOK = {RIGHT: ("right", "#009E73", ""), **CAUSES}
"""Outcome -> (label, colour, hatch): Okabe and Ito's palette."""
LETTERS = {
    RIGHT: "R", "judge_error": "J", "gave_up": "G", "reasoning_error": "E", "missing_evidence": "M",
    "unmappable": "U", "system_error": "S",
}  # fmt: skip
WIDTH, GAP = 0.2, 0.022
"""Of a block, in the panel's width; between blocks, in its height."""
SMALLEST = 0.045
"""A block lower than this share of the panel carries no number."""
DARK = (RIGHT, "missing_evidence", "reasoning_error")


@styled
def flows(
    report: Report, first: str = MAIN[0], second: str = MAIN[1], *, judge: str = "llm", setting: int = 0
) -> Figure:
    """One pair under the ``setting``-th of its settings: panels for all datasets and each, by App. E's two rules."""
    found = list(scopes(report, first, second)) if (first, second) in chosen(report) else []
    settings = list(dict.fromkeys(s.setting for s in found))
    heading = f"From {report.label_run(first)} to {report.label_run(second)}: what became of each question"
    if setting >= len(settings):
        return nothing(heading, "Not run: no such pair in paired.pairs, or no such setting.", [report.note()])
    panels = [s for s in found if s.setting == settings[setting]]
    label = report.label_setting(settings[setting])
    said = (
        f"Left: outcomes of {report.label_run(first)}; right: of {report.label_run(second)}, the same questions; "
        f"numbers are questions (means over seeds), none in a block below {100 * SMALLEST:.1f} % of the height. "
        f"By the {JUDGES[judge]}; setting {label}."
    )
    figure = Picture(f"{heading} ({label})", [said, report.note()], height=6.4)
    grid = figure.body.subplots(len(RULES), len(panels), squeeze=False)
    for line, (symmetric, rule) in zip(grid, RULES.items(), strict=True):
        for axes, scope in zip(line, panels, strict=True):
            axes.set_title(f"{label_scope(report, scope)}, n = {scope.questions}\n{rule}", size=8.5)
            _panel(axes, scope, judge, symmetric)
    looks = [(f"{LETTERS[o]}: {name}", colour, hatch) for o, (name, colour, hatch) in LOOK.items()]
    handles = [Patch(facecolor=c, hatch=h, edgecolor=MUTED, label=name) for name, c, h in looks]
    figure.body.legend(handles=handles, loc="outside lower center", ncols=7, columnspacing=1.2, handlelength=1.4)
    return finish(figure)


def _panel(axes: Any, scope: Scope, judge: str, symmetric: bool) -> None:
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(False)
    if not scope.pairs:
        axes.text(0.5, 0.5, scope.problem.partition(":")[0], ha="center", color=MUTED)
        return
    counts = matrix(scope, judge, symmetric=symmetric)
    sides = (
        {a: sum(counts[a, b] for b in OUTCOMES) for a in OUTCOMES},
        {b: sum(counts[a, b] for a in OUTCOMES) for b in OUTCOMES},
    )
    blocks = max(sum(n > 0 for n in side.values()) for side in sides)
    scale = (1 - GAP * (blocks - 1)) / sum(sides[0].values())
    tops = [_tops(side, scale) for side in sides]
    for x, side, places in zip((0.0, 1 - WIDTH), sides, tops, strict=True):
        for outcome, top in places.items():
            _block(axes, x, top, side[outcome] * scale, outcome, side[outcome])
    left, right = ({**places} for places in tops)
    for a in left:
        for b in right:
            if height := counts[a, b] * scale:
                _band(axes, left[a], right[b], height, LOOK[a][1], LOOK[a][2])
                left[a] -= height
                right[b] -= height


def _tops(values: Mapping[str, float], scale: float) -> dict[str, float]:
    """Outcome -> upper edge of its block, in the order of ``OUTCOMES`` from the top; outcomes that nobody has are not
    there."""
    tops, edge = {}, 1.0
    for outcome, value in values.items():
        if value:
            tops[outcome] = edge
            edge -= value * scale + GAP
    return tops


def _block(axes: Any, x: float, top: float, height: float, outcome: str, count: float) -> None:
    _, colour, hatch = LOOK[outcome]
    edge = MUTED if hatch else "white"
    axes.add_patch(Rectangle((x, top - height), WIDTH, height, facecolor=colour, hatch=hatch, edgecolor=edge, zorder=2))
    if height >= SMALLEST:
        ink = "white" if outcome in DARK else INK
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8} if hatch else None
        text = f"{LETTERS[outcome]} {number(count, 'count')}"
        axes.text(x + WIDTH / 2, top - height / 2, text, ha="center", va="center", size=8, color=ink, bbox=box)


def _band(axes: Any, left: float, right: float, height: float, colour: str, hatch: str) -> None:
    """A band of one height from the left block to the right one; ``left`` and ``right`` are its upper edges."""
    start, end, middle = WIDTH, 1 - WIDTH, 0.5
    points = [
        (start, left), (middle, left), (middle, right), (end, right),
        (end, right - height), (middle, right - height), (middle, left - height), (start, left - height), (start, left),
    ]  # fmt: skip
    curve = [Path.CURVE4] * 3
    codes = [Path.MOVETO, *curve, Path.LINETO, *curve, Path.CLOSEPOLY]
    # A white fill (hatched outcomes) would not show as a band.
    fill = "#bbbbbb" if hatch else colour
    axes.add_patch(PathPatch(Path(points, codes), facecolor=fill, alpha=0.45, edgecolor="none", zorder=1))
