"""The paper's Tables 12 to 15: why answers are wrong, by Appendix E to the letter, and what it leaves out.

Every table has both judges, the paper's rule beside the symmetric one (rule 3b off), and stands with and without
the answers that a budget forced.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from multihop.analysis import failures
from multihop.report.expected import Cell
from multihop.report.frames import NOT_PRINTED, Table, caption, frame, note, number, ours, paper
from multihop.report.load import Report
from multihop.report.values import absent, in_group, measure

CATEGORIES = failures.PAPER_CATEGORIES
JUDGES = {"llm": "model judge", "rule": "rule judge"}
RULES = {False: "App. E", True: "symmetric"}
PAIR = ("arag", "executionrag")
LABELS = {c: c.replace("_", " ") for c in failures.CATEGORIES}
NO_FAILURE = "no failure"
PRINTED = "paper: missing %"
EXPLANATION = (
    "Shares are of a system's own failures. Reasoning error 3a: all gold passages retrieved; 3b (ExecutionRAG only): "
    "register closed while one was missing; symmetric: 3b off. Wrong and missing: a gold passage never retrieved, "
    "whatever the label. Premature resolutions: items resolved on passages of which none is gold, as events."
)


def table_12(report: Report) -> Table:
    return _causes(report, "Table 12", "main")


def table_13(report: Report, *, forced: bool = True) -> Table:
    return _by_hops(report, "Table 13", "main", forced)


def table_14(report: Report) -> Table:
    return _causes(report, "Table 14", "second")


def table_15(report: Report, *, forced: bool = True) -> Table:
    return _by_hops(report, "Table 15", "second", forced)


def _causes(report: Report, item: str, role: str) -> Table:
    """Rows: judge, rule, answers, system, the paper's own line under each system's first."""
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for judge in JUDGES:
        for symmetric in RULES:
            for forced in (True, False):
                for system in PAIR:
                    cell = Cell(item, "musique", system, role, "total_failures", "all")
                    answers = "all" if forced else "without forced"
                    label = report.expected.systems[system].label
                    key = (JUDGES[judge], RULES[symmetric], answers, label)
                    rows[key] = _line(report, cell, judge, symmetric=symmetric, forced=forced)
                    if (judge, symmetric, forced) == ("llm", False, True):
                        rows[(*key[:3], f"{label} (paper)")] = _paper_line(report, cell)
    text = f"Counts, and in percent of the failures. {EXPLANATION}"
    index = ["judge", "rule", "answers", "system"]
    return Table(caption(report, item, role, text, ["musique"]), frame(rows, index), note(report))


def _line(report: Report, cell: Cell, judge: str, *, symmetric: bool, forced: bool) -> dict[str, str]:
    """One system's failures: counts from analysis/failures.py, shares with their intervals from values.py."""
    options = {"judge": judge, "symmetric": symmetric, "forced": forced}
    total = measure(report, cell, **options)
    if not total.ran:
        return {"failures": ours(total, "total_failures")}
    rows = _failure_rows(report, cell)
    counts = failures.table(rows, judge, symmetric=symmetric, forced=forced)
    seeds = _seeds(report, cell)
    line = {"failures": f"{ours(total, 'total_failures')} of {total.n}"}
    for category in CATEGORIES:
        metric = f"{category}_share"
        share = measure(report, cell._replace(metric=metric), **options)
        count = number(counts["counts"][category] / seeds, "count")
        line[LABELS[category]] = f"{count}: {ours(share, metric)} %" if share.value is not None else count
    for category in failures.CATEGORIES[len(CATEGORIES) :]:
        line[LABELS[category]] = number(counts["counts"][category] / seeds, "count")
    line["3a"] = number(counts["reasoning_3a"] / seeds, "count")
    line["3b"] = number(counts["reasoning_3b"] / seeds, "count")
    return line | _extras(counts, seeds)


def _extras(counts: dict[str, Any], seeds: int) -> dict[str, str]:
    share = counts["forced_share"]
    premature = f"{counts['premature_resolutions']} ({counts['with_premature_resolution']})"
    return {
        "wrong and missing": number(counts["wrong_and_missing"] / seeds, "count"),
        "premature resolutions (in questions)": premature,
        "forced share": "" if share is None else f"{100 * share:.1f} %",
    }


def _paper_line(report: Report, cell: Cell) -> dict[str, str]:
    line = {"failures": paper(report, cell)}
    for category in CATEGORIES:
        count = paper(report, cell._replace(metric=f"{category}_count"))
        share = paper(report, cell._replace(metric=f"{category}_share"))
        both = [t for t in (count if count != NOT_PRINTED else "", f"{share} %" if share != NOT_PRINTED else "") if t]
        line[LABELS[category]] = ": ".join(both) or NOT_PRINTED
    return line


def _by_hops(report: Report, item: str, role: str, forced: bool) -> Table:
    """Rows: judge, rule, system, hops; shares with intervals, the paper's printed ones beside them."""
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    groups = list(dict.fromkeys(c.group for c in report.expected.cells(item)))
    for judge in JUDGES:
        for symmetric in RULES:
            options = {"judge": judge, "symmetric": symmetric, "forced": forced}
            for system in (*PAIR, "executionrag_minus_arag"):
                for group in groups:
                    cell = Cell(item, "musique", system, role, "total_failures", group)
                    line = _hop_line(report, cell, options)
                    rows[JUDGES[judge], RULES[symmetric], report.expected.systems[system].label, group] = line
    text = "All answers." if forced else "Without the answers that a budget forced."
    index = ["judge", "rule", "system", "hops"]
    return Table(caption(report, item, role, f"{text} {EXPLANATION}", ["musique"]), frame(rows, index), note(report))


def _hop_line(report: Report, cell: Cell, options: dict[str, Any]) -> dict[str, str]:
    # The paper's shares are those of its own rule and judge, over all answers.
    as_paper = options == {"judge": "llm", "symmetric": False, "forced": True}
    if report.expected.systems[cell.system].minus:
        cell = cell._replace(metric="missing_evidence_share_delta")
        delta = measure(report, cell, **options)
        return {"missing evidence %": ours(delta, cell.metric), PRINTED: paper(report, cell) if as_paper else ""}
    total = measure(report, cell, **options)
    if not total.ran:
        return {"failures": ours(total, "total_failures")}
    line = {"failures": f"{number(total.value, 'count')} of {total.n}"}
    for category in CATEGORIES:
        metric = f"{category}_share"
        share = measure(report, cell._replace(metric=metric), **options)
        line[f"{LABELS[category]} %"] = ours(share, metric) if share.value is not None else NO_FAILURE
    line[PRINTED] = paper(report, cell._replace(metric="missing_evidence_share")) if as_paper else ""
    rows = [r for r in _failure_rows(report, cell) if in_group(r, cell.group)]
    counts = failures.table(rows, options["judge"], symmetric=options["symmetric"], forced=options["forced"])
    return line | _extras(counts, _seeds(report, cell))


def failure_overview(report: Report) -> Table:
    """Every run on every dataset and setting it is asked for: the causes by the paper's rule, both judges."""
    rows = {}
    for judge, dataset, setting, run in product(JUDGES, report.datasets, report.settings, report.runs):
        key = (JUDGES[judge], report.label_dataset(dataset), report.label_setting(setting), report.label_run(run))
        if report.has(dataset, setting, run):
            counts = failures.table(report.failure_rows(dataset, setting, run), judge)
            shown = {LABELS[c]: str(n) for c, n in counts["counts"].items()}
            symmetric = failures.table(report.failure_rows(dataset, setting, run), judge, symmetric=True)
            shown["3b"] = str(counts["reasoning_3b"])
            shown["missing evidence (symmetric)"] = str(symmetric["counts"]["missing_evidence"])
            total = f"{counts['failures']} of {len(report.score_rows(dataset, setting, run))}"
            rows[key] = {"failures": total, **shown, **_extras(counts, 1)}
        elif (dataset, setting) in set(report.params.cells(run)):
            rows[key] = {"failures": f"not run: {report.no_scores(run, setting, dataset)}"}
    text = f"Causes of the wrong answers of every cell, App. E's rule, counts over questions and seeds. {EXPLANATION}"
    below = " ".join(filter(None, (_no_such_run(report), note(report))))
    return Table(text, frame(rows, ["judge", "dataset", "setting", "run"]), below)


def _no_such_run(report: Report) -> str:
    """The paper's systems of which params.yaml has no run, in one line."""
    systems = [s for s in report.expected.systems.values() if s.run and s.run not in report.params.runs]
    return f"Not run (no such run in params.yaml): {', '.join(s.label for s in systems)}." if systems else ""


def _failure_rows(report: Report, cell: Cell) -> list[dict[str, Any]]:
    run = report.expected.systems[cell.system].run
    if absent(report, cell.dataset, cell.role, run):
        return []
    return report.failure_rows(cell.dataset, report.setting(cell.role), run)


def _seeds(report: Report, cell: Cell) -> int:
    return len(report.params.seeds_of(report.expected.systems[cell.system].run))
