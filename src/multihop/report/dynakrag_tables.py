"""Paper 2's Tables 1 and 2 with our numbers, the printed ones beside them, and what its text says of them.

Costs are in dynakrag_costs.py, what was trained in dynakrag_training.py. Every function takes a Report of this paper
(``Report(root, "dynakrag")``) and returns a Table ready to display. What did not run keeps its row and says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from multihop.report.contrasts import EQUAL, STRONGEST, tied
from multihop.report.expected import Cell, OwnRole
from multihop.report.frames import (
    NOT_PRINTED,
    Table,
    caption,
    compared,
    frame,
    note,
    number,
    ours,
    paper,
    setting_label,
)
from multihop.report.load import Report
from multihop.report.standing import same
from multihop.report.values import Measured, measure, run_of

__all__ = [
    "backbones", "caps", "factorial", "gains", "musique_by_hops", "table_1", "table_2", "variants",
]  # fmt: skip
OURS = "ours [95 %]"
FIRST = "first"
"""The role of the backbone that the paper's ablations and analyses are about."""
FULL, FIXED_K, S2G_RAG = "dynakrag", "fixed_k", "s2g_rag"
FACTORIAL = {
    "dynakrag": ("✓", "✓"),
    "dynakrag_uniform_valid": ("×", "✓"),
    "dynakrag_fixed_horizon": ("✓", "×"),
    "dynakrag_uniform_fixed": ("×", "×"),
    "dynakrag_no_sufficiency": ("✓", "✓"),
    "dynakrag_no_compression": ("✓", "✓"),
}
"""Rows of Table 2 -> (learned ranking, learned continuation)."""
EFFECTS = {
    "learned ranking, gate learned": "dynakrag_minus_uniform_valid",
    "learned ranking, horizon fixed": "fixed_horizon_minus_uniform_fixed",
    "learned gate, ranking learned": "dynakrag_minus_fixed_horizon",
    "learned gate, ranking uniform": "uniform_valid_minus_uniform_fixed",
    "interaction: first row minus second": "interaction",
}
CAPS = ("dynakrag_cap1", "dynakrag_cap2", "dynakrag_cap3", "dynakrag_cap4", FULL)
VARIANTS = ("dynakrag_lambda05", "dynakrag_lambda0", "dynakrag_vote_any", "dynakrag_vote_all")


# -- what the tables share


def systems(report: Report) -> list[str]:
    """The nine rows of Table 1's blocks, in the paper's order."""
    return [*(report.expected.systems[STRONGEST].best_of or []), FULL]


def label(report: Report, system: str) -> str:
    return report.expected.systems[system].label


def backbone(report: Report, role: str) -> str:
    """Our reader and embedder, and the paper's backbone that they stand for."""
    return setting_label(report, role)


def shown(report: Report, measured: Measured, metric: str) -> str:
    return ours(measured, metric, report.expected.shares)


def questions(report: Report, datasets: Iterable[str] | None = None) -> str:
    return (
        "n: " + ", ".join(f"{report.label_dataset(d)} {report.questions(d)}" for d in datasets or report.datasets) + "."
    )


def both(report: Report, cell: Cell, heading: str) -> dict[tuple[str, str], str]:
    """Ours and the paper's under one heading."""
    return {(heading, OURS): shown(report, measure(report, cell), cell.metric), (heading, "paper"): paper(report, cell)}


def say_once(row: dict[Any, str]) -> dict[Any, str]:
    """What is missing is said in the first cell that lacks it."""
    said: set[str] = set()
    shown_row = {}
    for key, text in row.items():
        shown_row[key] = "" if text in said else text
        if text.startswith("not run: "):
            said.add(text)
    return shown_row


def printed_contrast(report: Report, cell: Cell) -> float | None:
    """What the printed values of its systems give for a difference of F1, in points; None where one is not printed."""
    system = report.expected.systems[cell.system]
    if system.minus:
        first, second = (printed_contrast(report, cell._replace(system=s)) for s in system.minus)
        return None if first is None or second is None else first - second
    value = report.expected.lookup(cell.dataset, cell.system, cell.role, "f1", cell.group)
    return 100 * value.number if value and value.number is not None else None


def derived(report: Report, cell: Cell) -> str:
    value = printed_contrast(report, cell)
    return NOT_PRINTED if value is None else number(value, "f1_delta", report.expected.shares)


# -- settings


def backbones(report: Report) -> Table:
    """Which setting stands for which of the paper's backbones, and how many of Table 1's cells it has."""
    rows = {}
    for role in report.roles:
        setting, own = report.setting(role), report.expected.own.roles[role]
        cells = [(d, s) for d in report.datasets for s in systems(report)]
        ran = [c for c in cells if report.has(c[0], setting, run_of(report, c[1]) or "")]
        rows[role,] = {
            "paper": f"{own.reader}, {own.embedder}",
            "ours": report.label_setting(setting) if setting else "not run: params.yaml has no setting for it",
            "reader": report.reader(setting) if setting else "",
            "embedder": report.params.settings[setting].embedder if setting else "",
            "Table 1's cells that ran": f"{len(ran)} of {len(cells)}",
            "stands for it": _stands(report, setting, own) if setting else "",
        }
    text = f"The paper's backbones and what stands for them here. {questions(report)}"
    return Table(text, frame(rows, ["backbone"]), note(report))


def _stands(report: Report, setting: str, own: OwnRole) -> str:
    other = [what for what in ("backbone", "embedder") if not same(report, what, setting, own)]
    return f"stand-in: another {' and '.join(other)}" if other else "the paper's own"


# -- Table 1


def table_1(report: Report, dataset: str) -> Table:
    """One dataset's 27 rows: nine systems with three backbones."""
    rows: dict[tuple[str, ...], dict[Any, str]] = {}
    for role in report.roles:
        cells = {s: Cell("Table 1", dataset, s, role, "f1", "all") for s in systems(report)}
        ranks = {
            "F1 rank": _ranks(report, cells, "f1"),
            "token rank": _ranks(report, {s: c for s, c in cells.items() if s != FIXED_K}, "total_tokens"),
        }
        for system, cell in cells.items():
            metrics = ["em", "f1", "total_tokens", *(["prompt_tokens"] if system == FIXED_K else [])]
            row: dict[Any, str] = dict(compared(report, cell, metrics))
            for heading, of in ranks.items():
                row[heading, "ours"], row[heading, "paper"] = of.get(system, ("", ""))
            rows[backbone(report, role), label(report, system)] = row
    text = (
        "Total tokens: prompt and completion over all calls of the method. The paper "
        "has Fixed-K's prompt tokens only: they stand apart, and Fixed-K has no token rank."
    )
    title = caption(report, "Table 1", text=text, datasets=[dataset])
    return Table(title, frame(rows, ["backbone", "system"]), note(report))


def _ranks(report: Report, cells: Mapping[str, Cell], metric: str) -> dict[str, tuple[str, str]]:
    """System -> (our rank, the paper's) among those that have a value; fewer tokens and more of all else is better."""
    mine = {s: measure(report, c._replace(metric=metric)).value for s, c in cells.items()}
    printed = {s: report.expected.lookup(*c._replace(metric=metric).key) for s, c in cells.items()}
    theirs = {s: p.number if p else None for s, p in printed.items()}
    sign = -1 if metric == "total_tokens" else 1
    return {s: (_rank(mine, s, sign), _rank(theirs, s, sign)) for s in cells}


def _rank(values: Mapping[str, float | None], system: str, sign: int) -> str:
    own, others = values[system], [v for v in values.values() if v is not None]
    if own is None:
        return ""
    place = 1 + sum(sign * v > sign * own + EQUAL for v in others)
    equal = tied(sum(abs(v - own) <= EQUAL for v in others) - 1)
    return " ".join(filter(None, (str(place), equal, f"of {len(others)}")))


def gains(report: Report) -> Table:
    """The controller's rank and its gain over whichever baseline is the strongest in F1."""
    rows = {}
    for role in report.roles:
        for dataset in report.datasets:
            cell = Cell("Main results", dataset, FULL, role, "f1_rank", "all")
            row = {}
            for metric, heading in (("em_rank", "EM rank"), ("f1_rank", "F1 rank")):
                measured = measure(report, cell._replace(metric=metric))
                row[heading, OURS] = " ".join(filter(None, (shown(report, measured, metric), measured.remark)))
                row[heading, "paper"] = paper(report, cell._replace(metric=metric))
            gain = cell._replace(system="dynakrag_minus_strongest", metric="f1_delta")
            measured = measure(report, gain)
            row |= both(report, gain, "F1 gain, points")
            row["strongest baseline, ours", ""] = measured.remark
            row["pairs", ""] = str(measured.n) if measured.ran else ""
            rows[backbone(report, role), report.label_dataset(dataset)] = say_once(row)
    title = caption(report, "Main results", text="Gains are paired over the questions, with a bootstrap interval.")
    return Table(title, frame(rows, ["backbone", "dataset"]), note(report))


# -- Table 2


def table_2(report: Report) -> Table:
    """The factorial and the two removals: F1, and what the full controller has over each, paired."""
    rows = {}
    for system, (ranking, gate) in FACTORIAL.items():
        row = {("learned", "ranking"): ranking, ("learned", "continuation"): gate}
        for dataset in report.datasets:
            name = report.label_dataset(dataset)
            cell = Cell("Table 2", dataset, system, FIRST, "f1", "all")
            row |= {(f"{name}, {k}", part): text for (k, part), text in both(report, cell, "F1").items()}
            if system != FULL:
                drop = cell._replace(system=_minus(system), metric="f1_delta")
                row |= {(f"{name}, {k}", p): text for (k, p), text in both(report, drop, "drop in points").items()}
        rows[label(report, system),] = say_once(row)
    text = "✓ learned, × uniform or fixed. Drop: the full controller minus the row, paired over the questions."
    return Table(caption(report, "Table 2", FIRST, text), frame(rows, ["variant"]), note(report))


def _minus(system: str) -> str:
    return f"dynakrag_minus_{system.removeprefix('dynakrag_')}"


def factorial(report: Report) -> Table:
    """The simple effects of the two learned parts on F1 and their interaction, in points, paired over questions."""
    rows = {}
    for name, system in EFFECTS.items():
        row = {}
        for dataset in report.datasets:
            cell = Cell("Table 2", dataset, system, FIRST, "f1_delta", "all")
            row[report.label_dataset(dataset), OURS] = shown(report, measure(report, cell), cell.metric)
            row[report.label_dataset(dataset), "from the paper's cells"] = derived(report, cell)
        rows[name,] = row
    text = (
        f"The 2 × 2 factorial of Table 2 as effects on F1, in points. Setting: {backbone(report, FIRST)}. An "
        "interaction above 0: each learned part is worth more where the other is learned too. The paper prints none; "
        f"its column is computed from the F1 values that it prints. {questions(report)}"
    )
    return Table(text, frame(rows, ["effect"]), note(report))


# -- beside the tables


def musique_by_hops(report: Report) -> Table:
    """F1 on MuSiQue by hop count, of the controller, of S2G-RAG, and their paired difference."""
    item = "MuSiQue by hop count"
    groups = [*dict.fromkeys(c.group for c in report.expected.cells(item)), "all"]
    rows = {}
    for system in (FULL, S2G_RAG, "dynakrag_minus_s2g_rag"):
        for group in groups:
            cell = Cell(item, "musique", system, FIRST, "f1", group)
            difference = report.expected.systems[system].minus
            if difference:
                cell = cell._replace(metric="f1_delta")
            measured = measure(report, cell)
            rows[label(report, system), group] = {
                "n": str(measured.n) if measured.ran else "",
                f"F1 {OURS}": shown(report, measured, cell.metric),
                "paper": derived(report, cell) if difference else paper(report, cell),
            }
    text = (
        "The difference in points, paired; the paper's is computed from its two values: at four hops S2G-RAG is ahead."
    )
    title = caption(report, item, FIRST, text, ["musique"])
    return Table(title, frame(rows, ["system", "questions"]), note(report))


def caps(report: Report) -> Table:
    """Figure 3 as a table: F1 under caps on retrieval calls, with what is spent."""
    rows = {}
    for dataset in report.datasets:
        for system in CAPS:
            cell = Cell("Figure 3", dataset, system, FIRST, "f1", "all")
            row = dict(compared(report, cell, ["f1"]))
            for metric in ("retrieval_calls", "total_tokens", "support_recall"):
                row[metric.replace("_", " "), OURS] = _unless_missing(report, cell._replace(metric=metric))
            name = "no cap" if system == FULL else label(report, system)
            rows[report.label_dataset(dataset), name] = row
        rise = Cell("Figure 3", dataset, "cap3_minus_cap1", FIRST, "f1_delta", "all")
        rows[report.label_dataset(dataset), f"{label(report, rise.system)}, points"] = both(report, rise, "F1")
    text = (
        "Four steps make at most four calls: a cap of four binds nothing, and its rows must equal those without a cap."
    )
    title = caption(report, "Figure 3", FIRST, text)
    return Table(title, frame(rows, ["dataset", "retrieval"]), note(report))


def variants(report: Report) -> Table:
    """λ of eq. 1 and the gate's vote, against the full controller; the paper prints no figure of them."""
    rows = {}
    for dataset in report.datasets:
        for system in (FULL, *VARIANTS):
            cell = Cell("Table 2", dataset, system, FIRST, "f1", "all")
            row = {f"F1 {OURS}": shown(report, measure(report, cell), "f1")}
            for metric in ("total_tokens", "retrieval_calls", "loops"):
                row["control steps" if metric == "loops" else metric.replace("_", " ")] = _unless_missing(
                    report, cell._replace(metric=metric)
                )
            if system != FULL:
                drop = cell._replace(system=_minus(system), metric="f1_delta")
                row["F1 of the full one minus it, points"] = _unless_missing(report, drop)
            rows[report.label_dataset(dataset), label(report, system)] = row
    text = (
        f"Variants of the controller: λ of eq. 1 (1 in the full one) and how many of the gate's three models must say "
        f'"go on" (two in the full one). Setting: {backbone(report, FIRST)}. {questions(report)}'
    )
    return Table(text, frame(rows, ["dataset", "variant"]), note(report))


def _unless_missing(report: Report, cell: Cell) -> str:
    """Ours, or nothing where the row says already that it did not run."""
    measured = measure(report, cell)
    return shown(report, measured, cell.metric) if measured.ran else ""
