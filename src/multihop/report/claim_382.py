"""Paper 1's main claim in three forms: missing-evidence failures fall from 382 (A-RAG) to 234 (ExecutionRAG).

By the paper's rule, whose 3b takes failures out of "missing evidence" for the register run alone; by the symmetric
rule; and question by question: which of A-RAG's missing-evidence failures became right, and which only another label.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from multihop.analysis import paired
from multihop.report.expected import Cell
from multihop.report.failure_tables import JUDGES, RULES
from multihop.report.frames import NOT_PRINTED, Table, number
from multihop.report.load import Report
from multihop.report.pairs import MAIN, Scope, chosen, compare, label_scope, scopes
from multihop.report.transitions import adjusted, interval, table
from multihop.report.values import statistics

MISSING = "missing_evidence"
LABEL_FREE = "whatever the label"


def claim_counts(report: Report) -> Table:
    """Forms 1 and 2: each run's count and its share of the run's own failures, as the paper prints them."""
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for scope, judge, key in _lines(report):
        if not scope.pairs:
            rows[(*key, "")] = {"n": scope.problem}
            continue
        for symmetric, rule in RULES.items():
            rows[(*key, rule)] = _counts(report, scope, judge, MISSING, symmetric=symmetric)
        rows[(*key, LABEL_FREE)] = _counts(report, scope, judge, paired.WRONG_AND_MISSING)
    text = (
        "Forms 1 and 2 of 382 → 234: wrong answers labelled missing evidence, in questions (means over seeds), in "
        "brackets their share of the run's own failures; the difference with its paired interval. App. E: the "
        f"paper's rule, 3b on for the register run. Symmetric: 3b off. {LABEL_FREE}: wrong, and a gold passage never "
        "retrieved. Paper: what its text prints."
    )
    return table(report, text, rows, ["setting", "dataset", "judge", "rule"])


def claim_paired(report: Report) -> Table:
    """Form 3: what became of A-RAG's missing-evidence failures, the interval of the difference, and McNemar."""
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for scope, judge, key in _lines(report):
        for symmetric, rule in RULES.items():
            rows[(*key, rule)] = _became(report, scope, judge, symmetric) if scope.pairs else {"n": scope.problem}
    family = adjusted(rows.values(), ["p (Holm)"])
    text = (
        "Form 3 of 382 → 234, paired: of the first run's missing-evidence failures, how many are right in the second; "
        "fail otherwise with no gold passage missing; carry another label while one is still missing (relabelled, not "
        "mended); are the same failure still. New: the second run's that the first did not have. Difference: second "
        "minus first in percentage points of all questions, paired bootstrap; p: exact McNemar on having such a "
        f"failure, in brackets after Holm over the {family} tests of this table."
    )
    return table(report, text, rows, ["setting", "dataset", "judge", "rule"])


def _lines(report: Report) -> Iterator[tuple[Scope, str, tuple[str, str, str]]]:
    for scope in scopes(report, *MAIN) if MAIN in chosen(report) else ():
        for judge, name in JUDGES.items():
            yield scope, judge, (report.label_setting(scope.setting), label_scope(report, scope), name)


def _counts(report: Report, scope: Scope, judge: str, measure: str, *, symmetric: bool = False) -> dict[str, str]:
    c = compare(report, scope, measure, judge, symmetric=symmetric)
    line = {"n": str(c.n)}
    counts = []
    for run, mean, side in zip(MAIN, (c.first, c.second), ("first", "second"), strict=True):
        own = [f for p in scope.pairs for f in getattr(p, side).failures if f["judge"] == judge]
        total = len(own) / len(scope.pairs[0].seeds)
        counts.append(mean * c.n)
        share = f" ({100 * counts[-1] / total:.1f} % of {number(total, 'count')})" if total else " (no failure)"
        line[report.label_run(run)] = f"{number(round(counts[-1], 6), 'count')}{share}"
    change, low, high = (_signed(v * c.n) for v in (c.difference.mean, c.difference.low, c.difference.high))
    line["second − first [95 %]"] = f"{change} [{low}, {high}]"
    # The paper prints its own rule and judge alone.
    own_rule = (judge, measure, symmetric) == ("llm", MISSING, False)
    return line | {"paper": _printed(report, scope) if own_rule else ""}


def _signed(count: float) -> str:
    """A difference of counts; a whole number without decimals."""
    text = f"{round(count, 1):+g}".replace("-", "−")
    return "0" if text in ("+0", "−0") else text


def _printed(report: Report, scope: Scope) -> str:
    role = next((r for r in report.roles if report.setting(r) == scope.setting), None)
    cells = [Cell("", scope.name, run, role or "", f"{MISSING}_count", "all") for run in MAIN]
    values = [report.expected.lookup(*cell.key) for cell in cells]
    return " → ".join(report.expected.text(v) for v in values) if all(values) else NOT_PRINTED


def _became(report: Report, scope: Scope, judge: str, symmetric: bool) -> dict[str, Any]:
    became = paired.conversion(scope.pairs, judge, category=MISSING, symmetric=symmetric, **statistics(report))
    c = compare(report, scope, MISSING, judge, symmetric=symmetric)
    share = became.converted
    mended = f": {100 * share.mean:.0f} % [{100 * share.low:.0f}, {100 * share.high:.0f}]" if share.n else ""
    return {
        "n": str(c.n),
        "first run had": number(became.had, "count"),
        "right": f"{number(became.right, 'count')}{mended}",
        "fails otherwise, all found": number(became.other_found, "count"),
        "relabelled, still missing": number(became.other_missing, "count"),
        "same failure": number(became.same, "count"),
        "new": number(became.new, "count"),
        "difference [95 %]": interval(c),
        "p (Holm)": c.test.p,
    }
