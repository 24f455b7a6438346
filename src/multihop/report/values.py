"""One number of ours for one cell of the paper's, with its interval and how many questions it is over.

Tables, coverage and the comparison with the paper all read their numbers here, so that they can't disagree.
Accuracies and shares are in percent, counts in questions (the mean over seeds), tokens and USD per question.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from multihop.evaluation import aggregate
from multihop.evaluation.statistics import bootstrap_mean
from multihop.report.expected import Cell
from multihop.report.load import Report

PERCENT = (
    "em", "f1", "f1_aliases", "contain", "contain_word", "llm_acc", "rule_acc", "judge_strict", "forced",
    "support_recall",
)  # fmt: skip
"""Columns of the score rows that are shown as percentages; the other columns keep their unit."""
Row = Mapping[str, Any]
_BATCH = 500
"""Resamples drawn at once."""


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
        return "params.yaml has one embedder only"
    if run not in report.params.runs:
        return f"no run {run} in params.yaml"
    if (dataset, setting) not in set(report.params.cells(run)):
        return f"params.yaml does not ask for {run} on {dataset} / {setting}"
    if not report.has(dataset, setting, run):
        return f"no scores of {run} on {dataset} / {setting} yet (make repro)"
    return None


def in_group(row: Row, group: str) -> bool:
    """Whether a score or failure row belongs to "all", "<k>-hop" or a question type."""
    if group == "all":
        return True
    return row["hops"] == int(group[0]) if group.endswith("-hop") else row["type"] == group


def statistics(report: Report) -> dict[str, Any]:
    """Options of the bootstrap, from params.yaml."""
    s = report.params.statistics
    return {"seed": s.seed, "resamples": s.resamples, "level": s.confidence}


def score_rows(report: Report, cell: Cell) -> list[Row]:
    """The score rows behind a cell, of all its seeds."""
    rows = report.score_rows(cell.dataset, report.setting(cell.role) or "", run_of(report, cell.system) or "")
    return [r for r in rows if in_group(r, cell.group)]


def run_of(report: Report, system: str) -> str | None:
    """The run that stands for a system of the paper's; any other name is a run's own."""
    return report.expected.systems[system].run if system in report.expected.systems else system


def _measure(report: Report, cell: Cell, **options: Any) -> Measured:
    system = report.expected.systems.get(cell.system)
    if cell.metric == "fingerprint_match":
        return _fingerprint_match(report, cell)
    if cell.dataset == "average":
        return _average(report, cell)
    if system and system.minus:
        return _difference(report, cell, system.minus, **options)
    missing = absent(report, cell.dataset, cell.role, run_of(report, cell.system))
    if missing:
        return Measured(missing=missing)
    if cell.metric in _SPECIAL:
        return _SPECIAL[cell.metric](report, cell)
    rows = score_rows(report, cell)
    if not rows:
        return Measured(missing=f"no {cell.group} question among the {report.questions(cell.dataset)}")
    if cell.metric.endswith(("_count", "_share")) or cell.metric == "total_failures":
        return _failures(report, cell, rows, **options)
    if cell.metric not in rows[0]:
        raise ValueError(f"{cell.item}: nothing measures {cell.metric!r}")
    scale = 100 if cell.metric in PERCENT else 1
    return _scaled(aggregate.interval(rows, cell.metric, **statistics(report)), scale)


def _scaled(interval: Any, scale: float) -> Measured:
    if interval.n == 0:
        return Measured(remark="undefined: no question has it")
    return Measured(interval.mean * scale, interval.low * scale, interval.high * scale, interval.n)


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
        return _scaled(interval, len(part))
    whole = failure_counts(report, cell, None, **options)
    return ratio(report, part, whole)


def ratio(report: Report, part: Mapping[str, float], whole: Mapping[str, float]) -> Measured:
    """100 x sum(part) / sum(whole) over the same questions, with a percentile bootstrap interval over questions."""
    value = _percent(sum(part.values()), sum(whole.values()))
    n = sum(w > 0 for w in whole.values())
    if math.isnan(value):
        return Measured(n=0, remark="undefined: no failure to share out")
    draws = _percent(*_resampled_sums(report, part, whole))
    return Measured(float(value), *_bounds(report, draws), n=n)


def _percent(top: Any, bottom: Any) -> Any:
    """NaN where there is nothing to divide by."""
    top, bottom = np.asarray(top, dtype=float), np.asarray(bottom, dtype=float)
    return 100 * np.divide(top, bottom, out=np.full(bottom.shape, np.nan), where=bottom > 0)


def _resampled_sums(report: Report, *columns: Mapping[str, float]) -> list[np.ndarray]:
    """The sum of each column (n questions, the same for all) in each resample: arrays (resamples,), same draws."""
    options = statistics(report)
    rng = np.random.default_rng(options["seed"])
    values = np.array([list(c.values()) for c in columns], dtype=float)
    n, left, sums = values.shape[1], options["resamples"], []
    while left > 0:
        index = rng.integers(0, n, size=(min(left, _BATCH), n))
        sums.append(values[:, index].sum(axis=2))
        left -= _BATCH
    return list(np.concatenate(sums, axis=1))


def _bounds(report: Report, draws: np.ndarray) -> tuple[float, float]:
    level = report.params.statistics.confidence
    low, high = np.nanquantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


# -- differences and averages


def _difference(report: Report, cell: Cell, pair: Sequence[str], **options: Any) -> Measured:
    """First minus second, paired over the same questions; shares of failures with the same draws for both."""
    first, second = (cell._replace(system=s, metric=cell.metric.removesuffix("_delta")) for s in pair)
    both = [measure(report, c, **options) for c in (first, second)]
    missing = [m.missing for m in both if m.missing]
    if missing:
        return Measured(missing="; ".join(dict.fromkeys(missing)))
    if first.metric.endswith("_share"):
        return _share_difference(report, first, second, both, **options)
    interval = aggregate.difference(
        score_rows(report, first), score_rows(report, second), first.metric, **statistics(report)
    )
    return _scaled(interval, 100 if first.metric in PERCENT else 1)


def _share_difference(report: Report, first: Cell, second: Cell, both: Sequence[Measured], **options: Any) -> Measured:
    if any(m.value is None for m in both):
        return Measured(remark="undefined: one of the two has no failure to share out")
    columns = []
    for cell in (first, second):
        category = cell.metric.removesuffix("_share")
        columns += [failure_counts(report, cell, c, **options) for c in (category, None)]
    a, b, c, d = _resampled_sums(report, *columns)
    draws = _percent(a, b) - _percent(c, d)
    return Measured(both[0].value - both[1].value, *_bounds(report, draws), n=len(columns[0]))


def _average(report: Report, cell: Cell) -> Measured:
    """Mean over the datasets, each resampled on its own."""
    parts = [cell._replace(dataset=d) for d in ("hotpotqa", "2wikimultihopqa", "musique")]
    measured = [measure(report, part) for part in parts]
    missing = [m.missing for m in measured if m.missing]
    if missing:
        return Measured(missing="; ".join(dict.fromkeys(missing)))
    scale = 100 if cell.metric in PERCENT else 1
    draws = []
    options = statistics(report)
    for i, part in enumerate(parts):
        values = np.array(list(aggregate.per_question(score_rows(report, part), cell.metric).values()))
        rng = np.random.default_rng([options["seed"], i])
        draws.append(values[rng.integers(0, len(values), size=(options["resamples"], len(values)))].mean(axis=1))
    low, high = _bounds(report, scale * np.mean(draws, axis=0))
    return Measured(float(np.mean([m.value for m in measured])), low, high, sum(m.n for m in measured))


# -- measured figures that are no column of the scores


def _records(report: Report, cell: Cell) -> list[Any]:
    """The run records of the cell's group."""
    ids = {r["qid"] for r in score_rows(report, cell)}
    records = report.records(run_of(report, cell.system), cell.dataset, report.setting(cell.role))
    return [r for r in records if r.qid in ids]


def _injection_saving(report: Report, cell: Cell) -> Measured:
    """How much shorter the injected register texts were than the whole register each time, in percent (App. B)."""
    shown: dict[str, float] = {}
    full: dict[str, float] = {}
    for record in _records(report, cell):
        for event in record.events:
            if event.kind == "inject":
                shown[record.qid] = shown.get(record.qid, 0) + event.data["tokens"]
                full[record.qid] = full.get(record.qid, 0) + event.data["full_tokens"]
    if not full:
        return Measured(missing=f"no {cell.group} question whose register was injected")
    kept = ratio(report, shown, full)
    remark = "against replaying the whole register each time that something changed"
    return replace(kept, value=100 - kept.value, low=100 - kept.high, high=100 - kept.low, remark=remark)


def _fingerprint_match(report: Report, cell: Cell) -> Measured:
    """Share of gold paragraphs whose first 40 characters are found literally in a chunk, from the data card."""
    card, setting = report.cards.get(cell.dataset), report.setting(cell.role)
    if card is None:
        return Measured(missing=f"data/prepared/{cell.dataset}/card.json is not there yet")
    mapping = card["gold_mapping"][report.params.settings[setting].corpus]["all"]
    share = mapping["fingerprint"]["literal"]["found"]
    remark = f"of {mapping['gold_passages']} gold paragraphs; a count over the whole set, no interval"
    return Measured(100 * share, n=card["evaluation"]["questions"], remark=remark)


def _stage(*kinds: str) -> Callable[[Report, Cell], Measured]:
    """How many questions hold an event of these kinds (Figure 1's three stages)."""

    def count(report: Report, cell: Cell) -> Measured:
        records = _records(report, cell)
        held = {r.qid for r in records if any(e.kind in kinds for e in r.events)}
        return Measured(float(len(held)), n=len({r.qid for r in records}), remark="questions whose record holds it")

    return count


def _of_case(what: str) -> Callable[[Report, Cell], Measured]:
    """Tables 16 to 18: the trace of ours that stands beside the paper's case."""

    def read(report: Report, cell: Cell) -> Measured:
        from multihop.report.cases import METHOD, case

        found = case(report, int(cell.group.removeprefix("case ")))
        record = found and (found.trace.record if cell.system == METHOD else found.trace.baseline)
        if record is None:
            return Measured(missing=f"no trace of {cell.system} to show")
        value = 1.0 if what == "trace" else float(record.loops)
        trace = found.trace
        return Measured(value, n=1, remark=f"our own question {record.qid} of {trace.dataset} / {trace.setting}")

    return read


_SPECIAL: dict[str, Callable[[Report, Cell], Measured]] = {
    "injection_saving": _injection_saving,
    "stage_register": _stage("register"),
    "stage_search": _stage("retrieve"),
    "stage_answer": _stage("final_register"),
    "trace": _of_case("trace"),
    "loops": _of_case("loops"),
}
