"""The pairs of runs that params.yaml chooses, as analysis/paired.py compares them; every comparison is made once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from multihop import jsonl
from multihop.analysis import paired
from multihop.errors import DataError, MultihopError
from multihop.report.load import Report
from multihop.report.values import statistics

POOLED = "all datasets"
NOT_RUN = "not run"
MAIN = ("arag", "executionrag")
"""The matched pair of paper 1."""


@dataclass(frozen=True)
class Scope:
    """Two runs under one setting, on one dataset or over all of them."""

    first: str
    second: str
    setting: str
    name: str
    """The dataset, or ``POOLED``."""
    pairs: tuple[paired.Pair, ...]
    problem: str = ""
    """Why there is nothing to compare; then there are no pairs."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.first, self.second, self.setting, self.name

    @property
    def questions(self) -> int:
        return sum(len({qid for qid, _ in p.keys}) for p in self.pairs)


def chosen(report: Report, *, paper: str | None = None) -> list[tuple[str, str]]:
    """The pairs of runs; ``paper`` "dynakrag": those whose first run is DynaKRAG or a variant, else the others."""
    pairs = report.params.run_pairs()
    if paper is None:
        return pairs
    return [p for p in pairs if (report.params.run(p[0]).method == "dynakrag") == (paper == "dynakrag")]


def scopes(report: Report, first: str, second: str, *, pooled_only: bool = False) -> Iterator[Scope]:
    """Per setting that both runs are asked for: all datasets together (where they are several), then each alone.

    A dataset that lacks a run is a scope with a problem, and so are all together; where all lack one, it is said once.
    """
    both = set(report.params.cells(first)) & set(report.params.cells(second))
    for setting in report.settings:
        alone = [_alone(report, first, second, d, setting) for d in report.datasets if (d, setting) in both]
        missing = [s for s in alone if s.problem]
        absent = [s for s in missing if s.problem.startswith(NOT_RUN)]
        if len(alone) > 1:
            able = () if missing else tuple(p for scope in alone for p in scope.pairs)
            yield Scope(first, second, setting, POOLED, able, _together(missing))
        if len(alone) == 1 or not (pooled_only or len(absent) == len(alone)):
            yield from alone


def _together(missing: list[Scope]) -> str:
    """Why the datasets are not pooled: which of them stand in the way, and the first one's reason."""
    if not missing:
        return ""
    kind, _, why = missing[0].problem.partition(": ")
    return f"{kind} ({', '.join(s.name for s in missing)}): {why}"


def _alone(report: Report, first: str, second: str, dataset: str, setting: str) -> Scope:
    key = ("pair", first, second, dataset, setting)
    if key not in report.memo:
        report.memo[key] = _make(report, first, second, dataset, setting)
    return report.memo[key]


def _make(report: Report, first: str, second: str, dataset: str, setting: str) -> Scope:
    for run in (first, second):
        if not report.has(dataset, setting, run):
            said = f"{NOT_RUN}: {report.no_scores(run, setting, dataset)}"
            return Scope(first, second, setting, dataset, (), said)
    try:
        sides = [side(report, run, dataset, setting) for run in (first, second)]
        return Scope(first, second, setting, dataset, (paired.pair(*sides),))
    except MultihopError as e:
        return Scope(first, second, setting, dataset, (), f"refused: {e}")


def side(report: Report, run: str, dataset: str, setting: str) -> paired.Side:
    """One run's cell. Raises DataError where its records or metrics are not there."""
    key = ("side", run, dataset, setting)
    if key not in report.memo:
        report.memo[key] = _side(report, run, dataset, setting)
    return report.memo[key]


def _side(report: Report, run: str, dataset: str, setting: str) -> paired.Side:
    path = report.root / "results/runs" / run / dataset / f"{setting}.jsonl"
    record = next(iter(jsonl.read(path)), None) if path.is_file() else None
    metrics = report.metrics.get(dataset, {}).get(setting, {}).get(run)
    if record is None or metrics is None:
        raise DataError(f"{run} on {dataset} / {setting}: scores without records or metrics; score the cell again")
    scores, failures = (rows(dataset, setting, run) for rows in (report.score_rows, report.failure_rows))
    return paired.Side(run, dataset, setting, metrics["judge"], record["corpus_hash"], scores, failures)


# -- each comparison once


def compare(report: Report, scope: Scope, measure: str, judge: str = "llm", **options: Any) -> paired.Comparison:
    key = ("paired", scope.key, measure, judge, tuple(sorted(options.items())))
    if key not in report.memo:
        report.memo[key] = paired.compare(scope.pairs, measure, judge, **options, **statistics(report))
    return report.memo[key]


def matrix(scope: Scope, judge: str = "llm", *, symmetric: bool = False) -> dict[tuple[str, str], float]:
    """(first's outcome, second's) -> questions."""
    return paired.matrix(paired.moves(scope.pairs, judge, symmetric=symmetric))


def label_outcome(outcome: str) -> str:
    return outcome.replace("_", " ")


def label_scope(report: Report, scope: Scope) -> str:
    return POOLED if scope.name == POOLED else report.label_dataset(scope.name)


def label_pair(report: Report, first: str, second: str) -> str:
    return f"{report.label_run(first)} → {report.label_run(second)}"


