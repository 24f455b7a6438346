"""One number of ours for one cell of the paper's, with its interval and how many questions it is over.

Tables, coverage and the comparison with the paper all read their numbers here, so that they can't disagree.
Accuracies are in percent or, where the paper prints them so, fractions; their differences are percentage points,
shares of failures percent, counts questions (the mean over seeds), tokens and USD per question. What compares two
systems is in contrasts.py, what is counted in records or data cards in counted.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from multihop.evaluation import aggregate
from multihop.evaluation.statistics import Interval, bootstrap_mean, bootstrap_sums, ratio_intervals
from multihop.report.expected import Cell
from multihop.report.load import Report

PERCENT = (
    "em", "f1", "f1_aliases", "contain", "contain_word", "llm_acc", "rule_acc", "judge_strict", "forced",
    "support_recall",
)  # fmt: skip
"""Columns of the score rows that are shares of 1; the other columns keep their unit."""
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Measured:
    """``missing`` says why there is no number; it is None where the cell ran."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    """Questions behind the number (of the group)."""
    missing: str | None = None
    remark: str = ""
    """What a reader must know beside the number, such as that it has no denominator."""

    @property
    def ran(self) -> bool:
        return self.missing is None


def measure(report: Report, cell: Cell, **options: Any) -> Measured:
    """Our number for ``cell``. ``options``: ``judge`` ("llm" or "rule"), ``symmetric``, ``forced`` for failures.

    Raises ValueError for a metric that nothing here can measure.
    """
    key = ("measure", cell.key, tuple(sorted(options.items())))
    if key not in report.memo:
        report.memo[key] = _measure(report, cell, **options)
    return report.memo[key]


def absent(report: Report, dataset: str, role: str, run: str | None) -> str | None:
    """What is missing for a cell to have results; None where it has them."""
    setting = report.setting(role)
    if dataset not in report.datasets:
        return f"params.yaml does not have the dataset {dataset}"
    if setting is None:
        return f"no setting of params.yaml stands for {report.expected.own.label(role)}"
    if run not in report.params.runs:
        return f"no run {run} in params.yaml"
    where = f"{report.label_run(run)} on {report.label_dataset(dataset)} / {report.label_setting(setting)}"
    if (dataset, setting) not in set(report.params.cells(run)):
        return f"params.yaml does not ask for {where}"
    if not report.has(dataset, setting, run):
        return report.no_scores(run, setting, dataset)
    return None


def in_group(row: Row, group: str) -> bool:
    """Whether a score or failure row belongs to "all", "<k>-hop", "<k>-support" (gold passages) or a question type."""
    if group == "all":
        return True
    if group.endswith("-support"):
        return row["support_total"] == int(group[0])
    return row["hops"] == int(group[0]) if group.endswith("-hop") else row["type"] == group


def statistics(report: Report) -> dict[str, Any]:
    """Options of the bootstrap, from params.yaml."""
    return report.params.statistics.bootstrap


def score_rows(report: Report, cell: Cell) -> list[Row]:
    """The score rows behind a cell, of all its seeds."""
    rows = report.score_rows(cell.dataset, report.setting(cell.role) or "", run_of(report, cell.system) or "")
    return [r for r in rows if in_group(r, cell.group)]


def run_of(report: Report, system: str) -> str | None:
    """The run that stands for a system of the paper's; any other name is a run's own."""
    return report.expected.systems[system].run if system in report.expected.systems else system


def scale(report: Report, metric: str) -> float:
    """What a mean of the score rows is multiplied with to be in the paper's unit."""
    return 100 if metric in PERCENT and report.expected.shares == "percent" else 1


def _measure(report: Report, cell: Cell, **options: Any) -> Measured:
    from multihop.report import contrasts, counted

    system = report.expected.systems.get(cell.system)
    if cell.metric in counted.OF_DATA:
        return counted.OF_DATA[cell.metric](report, cell)
    if cell.dataset == "average":
        return _average(report, cell)
    if system and system.best_of:
        return contrasts.best(report, cell)[1]
    if system and system.minus:
        return contrasts.contrast(report, cell, system.minus, **options)
    missing = absent(report, cell.dataset, cell.role, run_of(report, cell.system))
    if missing:
        return Measured(missing=missing)
    if cell.group.startswith("case "):
        return counted.OF_CASES[cell.metric](report, cell)
    if cell.metric in counted.OF_RECORDS:
        return counted.OF_RECORDS[cell.metric](report, cell)
    rows = score_rows(report, cell)
    if not rows:
        return Measured(missing=f"no {cell.group} question among the {report.questions(cell.dataset)}")
    if cell.metric.endswith("_rank"):
        return contrasts.rank(report, cell)
    if cell.metric.endswith(("_count", "_share")) or cell.metric == "total_failures":
        return _failures(report, cell, rows, **options)
    if cell.metric not in rows[0]:
        raise ValueError(f"{cell.item}: nothing measures {cell.metric!r}")
    return scaled(aggregate.interval(rows, cell.metric, **statistics(report)), scale(report, cell.metric))


def scaled(interval: Interval, factor: float, remark: str = "") -> Measured:
    if interval.n == 0:
        return Measured(remark="undefined: no question has it")
    return Measured(interval.mean * factor, interval.low * factor, interval.high * factor, interval.n, remark=remark)


# -- failures (Tables 12 to 15, Figure 2)


def failure_counts(
    report: Report,
    cell: Cell,
    category: str | None,
    *,
    judge: str = "llm",
    symmetric: bool = False,
    forced: bool = True,
) -> dict[str, float]:
    """Question -> share of its seeds that failed (with ``category``: of that cause); every question of the group.

    ``symmetric``: rule 3b off; ``forced=False``: forced answers left out.
    """
    rows = score_rows(report, cell)
    seeds = len({r["seed"] for r in rows}) or 1
    counts = dict.fromkeys(sorted({r["qid"] for r in rows}), 0.0)
    column = "category_symmetric" if symmetric else "category"
    for f in report.failure_rows(cell.dataset, report.setting(cell.role) or "", run_of(report, cell.system) or ""):
        right_row = f["judge"] == judge and f["qid"] in counts and (forced or not f["forced"])
        if right_row and (category is None or f[column] == category):
            counts[f["qid"]] += 1 / seeds
    return counts


def _failures(report: Report, cell: Cell, rows: Sequence[Row], **options: Any) -> Measured:
    category, _, kind = cell.metric.rpartition("_")
    part = failure_counts(report, cell, None if cell.metric == "total_failures" else category, **options)
    if kind != "share":
        interval = bootstrap_mean(list(part.values()), **statistics(report))
        return scaled(interval, len(part))
    whole = failure_counts(report, cell, None, **options)
    return ratio(report, part, whole)


def ratio(report: Report, part: Mapping[str, float], whole: Mapping[str, float]) -> Measured:
    """100 x sum(part) / sum(whole) over the same questions, with a percentile bootstrap interval over questions."""
    value = percent(sum(part.values()), sum(whole.values()))
    n = sum(w > 0 for w in whole.values())
    if math.isnan(value):
        return Measured(n=0, remark="undefined: no failure to share out")
    parts, wholes = (np.array(list(c.values()), dtype=float) for c in (part, whole))
    low, high = ratio_intervals(parts[:, None], wholes, **statistics(report))
    return Measured(float(value), 100 * float(low[0]), 100 * float(high[0]), n=n)


def percent(top: Any, bottom: Any) -> Any:
    """NaN where there is nothing to divide by."""
    top, bottom = np.asarray(top, dtype=float), np.asarray(bottom, dtype=float)
    return 100 * np.divide(top, bottom, out=np.full(bottom.shape, np.nan), where=bottom > 0)


def resampled_sums(report: Report, *columns: Mapping[str, float]) -> list[np.ndarray]:
    """The sum of each column (n questions, the same for all) in each resample: arrays (resamples,), same draws."""
    s = report.params.statistics
    values = np.array([list(c.values()) for c in columns], dtype=float)
    return list(bootstrap_sums(values.T, seed=s.seed, resamples=s.resamples).T)


def bounds(report: Report, draws: np.ndarray) -> tuple[float, float]:
    level = report.params.statistics.confidence
    low, high = np.nanquantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


# -- averages


def _average(report: Report, cell: Cell) -> Measured:
    """Mean over the datasets, each resampled on its own."""
    parts = [cell._replace(dataset=d) for d in ("hotpotqa", "2wikimultihopqa", "musique")]
    measured = [measure(report, part) for part in parts]
    missing = [m.missing for m in measured if m.missing]
    if missing:
        return Measured(missing="; ".join(dict.fromkeys(missing)))
    draws = []
    options = statistics(report)
    for i, part in enumerate(parts):
        values = np.array(list(aggregate.per_question(score_rows(report, part), cell.metric).values()))
        rng = np.random.default_rng([options["seed"], i])
        draws.append(values[rng.integers(0, len(values), size=(options["resamples"], len(values)))].mean(axis=1))
    low, high = bounds(report, scale(report, cell.metric) * np.mean(draws, axis=0))
    return Measured(float(np.mean([m.value for m in measured])), low, high, sum(m.n for m in measured))
