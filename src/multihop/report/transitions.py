"""Pairs of runs question by question: what moved where, whether it is more than chance, and what n could show at all.

Every function takes a Report and returns a Table; which pairs, is ``paired.pairs`` of params.yaml. A difference is
second minus first. The claim 382 → 234 is in claim_382.py, the picture in figure_flows.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

from multihop.analysis import failures
from multihop.analysis.paired import CORRECT, OUTCOMES, UNRETRIEVED, WRONG_AND_MISSING, Comparison, moves, values
from multihop.evaluation.statistics import detectable_difference, holm, questions_needed
from multihop.report import failure_tables
from multihop.report.expected import Cell
from multihop.report.frames import NOT_PRINTED, Table, frame, note, number
from multihop.report.load import Report
from multihop.report.pairs import (
    MAIN,
    POOLED,
    Scope,
    chosen,
    compare,
    label_outcome,
    label_pair,
    label_scope,
    matrix,
    scopes,
)

NO_PAIR = "no such pair among the runs (paired.pairs of params.yaml)"
SAME = "·"
TESTS = {
    "right (model judge)": (CORRECT, "llm"),
    "right (rule judge)": (CORRECT, "rule"),
    "some gold unretrieved": (UNRETRIEVED, "llm"),
}
"""Heading -> (measure, judge)."""
LONGEST_LIST = 60


def table(report: Report, caption: str, rows: dict[tuple[str, ...], dict[Any, str]], names: list[str]) -> Table:
    """A Table with the page's note below; without rows it says that there is no such pair."""
    if not rows:
        return Table(caption, frame({(NO_PAIR,): {"": ""}}, [""]), note(report))
    return Table(caption, frame(rows, names), note(report))


def points(value: float | None) -> str:
    """A difference of shares, in percentage points, with its sign."""
    if value is None:
        return ""
    text = f"{100 * value:+.1f}".replace("-", "−")
    return "0.0" if text in ("+0.0", "−0.0") else text


def interval(comparison: Comparison) -> str:
    d = comparison.difference
    return f"{points(d.mean)} [{points(d.low)}, {points(d.high)}]" if d.n else "undefined: no question has it"


def p_text(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def adjusted(rows: Iterable[dict[Any, Any]], keys: Sequence[Any]) -> int:
    """Add Holm's p beside every p of the table (a float under one of ``keys``), both as texts; the family's size."""
    places = [(row, key) for row in rows for key in keys if isinstance(row.get(key), float)]
    for (row, key), value in zip(places, holm([row[key] for row, key in places]), strict=True):
        row[key] = f"{p_text(row[key])} ({p_text(value)})"
    return len(places)


# -- matrices


def transitions(report: Report, judge: str = "llm", *, symmetric: bool = False) -> Table:
    """The matched pair of paper 1: from A-RAG's outcome (rows) to ExecutionRAG's (columns), per dataset and pooled."""
    rows = _matrices(report, [MAIN] if MAIN in chosen(report) else [], judge, symmetric=symmetric, pooled_only=False)
    rule = "the symmetric rule (3b off)" if symmetric else "App. E's rule"
    text = f"{label_pair(report, *MAIN)}, {failure_tables.JUDGES[judge]}, {rule}. {_MATRIX}"
    return table(report, text, {key[1:]: row for key, row in rows.items()}, ["setting", "questions", "first run"])


def all_transitions(report: Report) -> Table:
    """The other pairs of the report's paper, all datasets together, by the model judge and App. E's rule."""
    others = [p for p in chosen(report, paper=report.paper) if p != MAIN]
    rows = _matrices(report, others, "llm", symmetric=False, pooled_only=True)
    text = (
        f"Every other pair, model judge, App. E's rule. {_MATRIX} Wrong and missing: of the row's questions, those "
        "that the run answers wrongly with a gold passage never retrieved, whatever the label: a register run's "
        "reasoning error may be 3b, which no run without a register has."
    )
    return table(report, text, rows, ["pair", "setting", "questions", "first run"])


_MATRIX = (
    "Numbers of questions (means over seeds): from the first run's outcome (rows) to the second's (columns); outcomes "
    f"that nobody had are left out, {SAME} is 0."
)


def _matrices(
    report: Report, pairs: Iterable[tuple[str, str]], judge: str, *, symmetric: bool, pooled_only: bool
) -> dict[tuple[str, ...], dict[str, str]]:
    found = [s for pair in pairs for s in scopes(report, *pair, pooled_only=pooled_only)]
    counted = {s.key: matrix(s, judge, symmetric=symmetric) for s in found if s.pairs}
    columns = [o for o in OUTCOMES if any(m[a, o] for m in counted.values() for a in OUTCOMES)]
    rows = {}
    for scope in found:
        key = (label_pair(report, scope.first, scope.second), report.label_setting(scope.setting),
               f"{label_scope(report, scope)} (n = {scope.questions})")  # fmt: skip
        if not scope.pairs:
            blank = dict.fromkeys(map(label_outcome, columns), "")
            rows[(*key[:2], label_scope(report, scope), "")] = {**blank, "all": scope.problem}
            continue
        counts = counted[scope.key]
        for a in OUTCOMES:
            total = sum(counts[a, b] for b in OUTCOMES)
            if total:
                line = {label_outcome(b): number(counts[a, b], "count") if counts[a, b] else SAME for b in columns}
                rows[(*key, label_outcome(a))] = {**line, "all": number(total, "count")}
                if pooled_only:
                    rows[(*key, label_outcome(a))] |= _missing(scope, judge, a)
    return rows


def _missing(scope: Scope, judge: str, outcome: str) -> dict[str, str]:
    """Of the questions with this outcome in the first run: how many each run has wrong with a gold passage missing."""
    line = {}
    for name in ("first", "second"):
        count = 0.0
        for p in scope.pairs:
            lacking = values(getattr(p, name), WRONG_AND_MISSING, judge)
            own = [m for m in moves([p], judge) if m.first == outcome]
            count += sum(lacking[m.qid, m.seed] for m in own) / len(p.seeds)
        line[f"wrong and missing, {name}"] = number(count, "count") if count else SAME
    return line


def who_moved(report: Report, first: str = MAIN[0], second: str = MAIN[1]) -> Table:
    """Per question, who has another outcome in the second run (model judge, App. E's rule); every setting."""
    rows, total = {}, 0
    for scope in scopes(report, first, second) if (first, second) in chosen(report) else ():
        if scope.name == POOLED or not scope.pairs:
            continue
        # A benchmark's own text is not shown.
        asked = {r.qid: r.question for r in report.records(first, scope.name, scope.setting) if report.is_demo}
        for m in moves(scope.pairs):
            if m.first == m.second:
                continue
            total += 1
            if len(rows) < LONGEST_LIST:
                key = report.label_setting(scope.setting), report.label_dataset(m.dataset), m.qid, str(m.seed)
                text = {"asked": asked[m.qid]} if asked else {}
                rows[key] = {**text, "from": label_outcome(m.first), "to": label_outcome(m.second)}
    shown = f"the first {len(rows)} of {total}" if total > len(rows) else f"{total}"
    text = f"Who moved, {label_pair(report, first, second)} (model judge, App. E's rule): {shown} question-seed pairs."
    return table(report, text, rows, ["setting", "dataset", "question", "seed"])


# -- tests


def paired_tests(report: Report) -> Table:
    """Per pair, setting and dataset: differences with their intervals, McNemar on each, Holm over the whole table."""
    rows: dict[tuple[str, ...], dict[Any, Any]] = {}
    for first, second in chosen(report, paper=report.paper):
        for scope in scopes(report, first, second):
            key = label_pair(report, first, second), report.label_setting(scope.setting), label_scope(report, scope)
            rows[key] = _tested(report, scope) if scope.pairs else {("n", ""): scope.problem}
    family = adjusted(rows.values(), [(heading, "p (Holm)") for heading in TESTS])
    text = (
        "Second run minus first, in percentage points over all questions, with the paired bootstrap interval. Only "
        "first / only second: questions (times seeds) that have it in one run alone; p: exact McNemar of these (with "
        "several seeds the exact test that flips the sign of a question's sum), in brackets after Holm over the "
        f"{family} tests of this table (datasets and their pool, both judges: they overlap, which Holm allows). Some "
        "gold unretrieved: a gold passage of the corpus never surfaced, whatever the answer; questions that ended in "
        f"an error in either run are left out of it. {_could_show(report)}"
    )
    return table(report, text, rows, ["pair", "setting", "dataset"])


def _could_show(report: Report) -> str:
    """What the table's numbers of questions could show at best, in one sentence; empty without a comparison."""
    pairs, p = chosen(report, paper=report.paper), report.params.paired
    sizes = sorted({s.questions for pair in pairs for s in scopes(report, *pair) if s.pairs})
    if not sizes:
        return ""
    best = {n: detectable_difference(n, alpha=p.alpha, power=p.power) for n in sizes}
    said = ", ".join(f"n = {n}: {'none' if d is None else f'{100 * d:.1f} points'}" for n, d in best.items())
    return (
        f"Smallest difference that McNemar finds in {100 * p.power:g} % of experiments, at best and before Holm: "
        f"{said}. With few questions an interval without 0 is no test (page instrument)."
    )


def _tested(report: Report, scope: Scope) -> dict[Any, Any]:
    row: dict[Any, Any] = {("n", ""): str(scope.questions)}
    for heading, (measure, judge) in TESTS.items():
        c = compare(report, scope, measure, judge)
        row[heading, "difference [95 %]"] = interval(c) + (f", {c.left_out} left out" if c.left_out else "")
        if c.test:
            row[heading, "only first / second"] = f"{c.test.only_first} / {c.test.only_second}"
            row[heading, "p (Holm)"] = c.test.p
    return row


# -- what n could show


def detectable(report: Report) -> Table:
    """The smallest differences that McNemar could have found at each n, and what the paper's would need."""
    rows = {}
    for first, second in chosen(report, paper=report.paper):
        for scope in scopes(report, first, second):
            if scope.pairs:
                key = label_pair(report, first, second), report.label_setting(scope.setting), label_scope(report, scope)
                rows[key] = _detectable(report, scope)
    p = report.params.paired
    text = (
        f"The smallest difference in right answers (model judge) that an exact McNemar test at level {p.alpha:g} finds "
        f"in {100 * p.power:g} % of experiments: exact unconditional power (Duffy 1984), questions independent, one "
        "pair a question (further seeds would lower it somewhat). Discordance: share of questions that one run alone "
        "answers rightly. Best case: all of them favour one run. Smallest p: when every question favours one run. "
        "Needed: questions for the difference that the paper prints, by Connor's formula (1987), at the assumed "
        "discordance or the difference itself where that is larger. Before Holm: more tests need more."
    )
    return table(report, text, rows, ["pair", "setting", "dataset"])


def _detectable(report: Report, scope: Scope) -> dict[str, str]:
    p = report.params.paired
    level = {"alpha": p.alpha, "power": p.power}
    n, test = scope.questions, compare(report, scope, CORRECT).test
    seen = test.discordant / sum(len(pair.keys) for pair in scope.pairs)

    def smallest(discordance: float | None) -> str:
        found = detectable_difference(n, discordance, **level)
        return "none" if found is None else f"{100 * found:.1f} points"

    printed = _printed_difference(report, scope)
    needed = printed and questions_needed(printed, max(p.discordance, abs(printed)), **level)
    return {
        "n": str(n),
        "smallest p": p_text(min(1.0, 2 * 0.5**n)),
        "best case": smallest(None),
        "observed discordance": f"{100 * seen:.1f} % ({test.discordant})",
        "at that": smallest(seen),
        f"at {100 * p.discordance:g} %": smallest(p.discordance),
        "paper's difference": points(printed) if printed else NOT_PRINTED,
        "needed": f"{needed:,}" if needed else "",
    }


def _printed_difference(report: Report, scope: Scope) -> float | None:
    """The difference in LLM-Acc that the paper's text gives for the pair, 0..1; None where it does not."""
    systems = {s.run: name for name, s in report.expected.systems.items() if s.run}
    role = next((r for r in report.roles if report.setting(r) == scope.setting), None)
    values = []
    for run in (scope.first, scope.second):
        system = systems.get(run)
        cell = system and role and Cell("", scope.name, system, role, "llm_acc", "all")
        value = report.expected.lookup(*cell.key) if cell else None
        values.append(value.number if value else None)
    return None if None in values else (values[1] - values[0]) / 100


# -- paper 2's failures


def dynakrag_failures(report: Report) -> Table:
    """The failure analysis of paper 2's runs, which that paper does not make: DynaKRAG, its variants, its baselines."""
    second = report.of("dynakrag")
    own = {s.run for s in second.expected.systems.values() if s.run}
    runs = [r for r in second.runs if r in own or second.params.run(r).method == "dynakrag"]
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for judge, setting, run in product(failure_tables.JUDGES, second.settings, runs):
        datasets = [d for d, s in second.params.cells(run) if s == setting]
        if datasets:
            key = failure_tables.JUDGES[judge], second.label_setting(setting), second.label_run(run)
            rows[key] = _causes(second, datasets, setting, run, judge)
    text = (
        "Why paper 2's runs are wrong, by App. E's rule of paper 1 (3b never applies: no register): questions (times "
        f"seeds) of all datasets, in brackets {' + '.join(map(report.label_dataset, report.datasets))}. Wrong and "
        "missing: a gold passage never retrieved, whatever the label. Every cell has a line on the page failures too."
    )
    return table(second, text, rows, ["judge", "setting", "system"])


def _causes(report: Report, datasets: Sequence[str], setting: str, run: str, judge: str) -> dict[str, str]:
    missing = [d for d in datasets if not report.has(d, setting, run)]
    if missing:
        return {"wrong": f"not run: {report.no_scores(run, setting, *missing)}"}
    counted = [failures.table(report.failure_rows(d, setting, run), judge) for d in datasets]
    asked = [len(report.score_rows(d, setting, run)) for d in datasets]

    def total(values: Sequence[int]) -> str:
        return SAME if not any(values) else f"{sum(values)} ({' + '.join(map(str, values))})"

    return {
        "wrong": f"{total([c['failures'] for c in counted])} of {sum(asked)}",
        **{label_outcome(c): total([t["counts"][c] for t in counted]) for c in failures.CATEGORIES},
        "wrong and missing": total([c["wrong_and_missing"] for c in counted]),
        "forced": total([c["forced"] for c in counted]),
    }
