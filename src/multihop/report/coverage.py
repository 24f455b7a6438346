"""Every cell of the papers' tables and figures: run or not, what is missing, ours and the paper's.

A cell that ran has status "run", also where the paper's text prints nothing to hold beside it: ``printed`` says that.
"""

from __future__ import annotations

from typing import Any

from multihop import jsonl
from multihop.report.expected import EITHER, PAPERS, Cell, Expected, Printed
from multihop.report.frames import Table, frame, note, number, ours
from multihop.report.load import Report
from multihop.report.values import Measured, measure

NOT_COMPARABLE = "different setting: not comparable"


def coverage(report: Report) -> dict[str, Any]:
    """The content of results/coverage.json: of each paper a summary, and per item its title, counts and cells."""
    return {
        "profile": report.params.profile,
        "statuses": {
            "run": "ours is there; printed tells whether the paper's text prints a figure to hold beside it",
            "not run": "missing says what is missing",
        },
        "papers": {name: of_paper(report.of(name)) for name in PAPERS},
    }


def of_paper(report: Report) -> dict[str, Any]:
    """One paper's part of results/coverage.json."""
    items = {name: _item(report, name) for name in report.expected.items}
    numbered = [items[name]["summary"] for name in report.expected.numbered]
    return {
        "paper": report.expected.paper,
        "title": report.expected.title,
        "note": report.note(),
        "summary": {"items": len(numbered), **{k: sum(s[k] for s in numbered) for k in numbered[0]}},
        "items": items,
    }


def write(report: Report) -> dict[str, Any]:
    """Write results/coverage.json; returns its content."""
    content = coverage(report)
    jsonl.write_json(report.root / "results/coverage.json", content)
    return content


def missing_items(content: dict[str, Any]) -> list[str]:
    """The tables and figures of a paper's part of which no cell ran; empty when all have one."""
    numbered = {name: item for name, item in content["items"].items() if name.startswith(("Table ", "Figure "))}
    return [name for name, item in numbered.items() if not any(c["status"] == "run" for c in item["cells"])]


def _item(report: Report, name: str) -> dict[str, Any]:
    item = report.expected.items[name]
    cells = [_cell(report, cell) for cell in report.expected.cells(name)]
    return {
        "title": item.title,
        "shows": item.shows,
        "notebook": item.notebook,
        "summary": {
            "cells": len(cells),
            "run": sum(c["status"] == "run" for c in cells),
            "not_run": sum(c["status"] == "not run" for c in cells),
            "printed": sum(c["printed"] for c in cells),
            "run_and_printed": sum(c["status"] == "run" and c["printed"] for c in cells),
        },
        "cells": cells,
    }


def _cell(report: Report, cell: Cell) -> dict[str, Any]:
    measured = measure(report, cell)
    printed = report.expected.lookup(*cell.key)
    row: dict[str, Any] = {
        "dataset": cell.dataset,
        "system": cell.system,
        "setting": report.setting(cell.role) or cell.role,
        report.expected.own.varies: cell.role,
        "metric": cell.metric,
        "group": cell.group,
        "status": "run" if measured.ran else "not run",
        "printed": printed is not None,
        "paper": printed.value if printed else "not printed",
    }
    if printed:
        row["source"] = {"id": printed.id, "exactness": printed.exactness, "place": printed.place}
    if not measured.ran:
        return {**row, "missing": measured.missing}
    row |= {"ours": _rounded(measured.value), "n": measured.n}
    if measured.low is not None:
        row["interval"] = [_rounded(measured.low), _rounded(measured.high)]
    return {**row, "remark": measured.remark} if measured.remark else row


def _rounded(value: float | None) -> float | None:
    """Six decimals: the same text on every processor."""
    return None if value is None else round(value, 6)


def coverage_table(report: Report) -> Table:
    """One row per item: how many of its cells ran, and how many the paper's text prints."""
    rows = {}
    for name, item in of_paper(report)["items"].items():
        s = item["summary"]
        rows[name,] = {
            "title": item["title"],
            "cells": str(s["cells"]),
            "run": str(s["run"]),
            "not run": str(s["not_run"]),
            "printed by the paper's text": str(s["printed"]),
            "run and printed": str(s["run_and_printed"]),
            "what is missing": _shorten([c["missing"] for c in item["cells"] if "missing" in c]),
            "notebook": item["notebook"],
        }
    text = f"Coverage of {report.expected.title}'s tables and figures. Every cell is listed in results/coverage.json."
    return Table(text, frame(rows, ["item"]), note(report))


def _shorten(reasons: list[str], most: int = 3) -> str:
    unique = list(dict.fromkeys(reasons))
    return "; ".join(unique[:most]) + (f"; and {len(unique) - most} more" if len(unique) > most else "")


# -- ours beside the paper's


def comparison(report: Report) -> Table:
    """Every figure that the paper's text prints, ours beside it, and a verdict.

    Another setting than the paper's is never compared. With the paper's own: ok or off, by the tolerance of
    expected/<paper>.yaml; a difference of systems or a range has the same tolerance.
    """
    expected = report.expected
    rows = {}
    for printed in expected.printed:
        # The rest are second, rounded or less exact mentions of the same figure.
        cells = [c for c in expected.standing(printed) if expected.lookup(*c.key) is printed]
        for cell in cells:
            suffix = f" {cell.dataset} {cell.role} {cell.group}" if len(cells) > 1 else ""
            rows[printed.id + suffix,] = _compared(report, printed, cell)
    text = f"Every figure that the paper's text prints ({len(rows)}, second mentions left out) beside ours."
    return Table(text, frame(rows, ["id"]), note(report))


def _compared(report: Report, printed: Printed, cell: Cell) -> dict[str, str]:
    expected = report.expected
    measured = measure(report, cell)
    return {
        "item": cell.item,
        "dataset": report.label_dataset(cell.dataset),
        "system": expected.systems[cell.system].label,
        expected.own.varies: EITHER if printed.setting == EITHER else cell.role,
        "metric": cell.metric.replace("_", " "),
        "questions": cell.group,
        "paper": expected.text(printed),
        "ours [95 %]": ours(measured, cell.metric, expected.shares),
        "n": str(measured.n) if measured.ran else "",
        "verdict": verdict(report, printed, measured, cell),
    }


def verdict(report: Report, printed: Printed, measured: Measured, cell: Cell) -> str:
    """not run | undefined | different setting: not comparable | ok | off by …"""
    if not measured.ran:
        return "not run"
    if measured.value is None:
        return "undefined here"
    if cell.group.startswith("case") or report.differences(cell.dataset, cell.role):
        return NOT_COMPARABLE
    off = _distance(printed, measured.value)
    if off <= _allowed(report.expected, printed):
        return "ok"
    if printed.unit == "verdict":
        return "another verdict"
    return f"off by {number(off, printed.metric, report.expected.shares)}"


def _distance(printed: Printed, value: float) -> float:
    """To the printed value, to the nearer end of the range, or to the side on which the text says it lies."""
    if isinstance(printed.value, list):
        low, high = min(printed.value), max(printed.value)
        return max(low - value, value - high, 0.0)
    if printed.exactness == "above":
        return max(printed.value - value, 0.0)
    if printed.exactness == "below":
        return max(value - printed.value, 0.0)
    return abs(value - printed.value)


def _allowed(expected: Expected, printed: Printed) -> float:
    points = expected.tolerance.points
    if printed.exactness in ("above", "below") or printed.unit in ("verdict", "rank", "questions"):
        return 0.0
    if printed.unit in ("tokens", "calls", "USD"):
        ends = printed.value if isinstance(printed.value, list) else [printed.value]
        return expected.tolerance.relative * max(abs(v) for v in ends)
    if printed.unit.startswith("questions of"):
        return points / 100 * expected.own.questions[printed.dataset]
    return points / 100 if printed.unit == "fraction" else points
