"""From score rows to the numbers of results/metrics.json, and their intervals."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from multihop.errors import DataError
from multihop.evaluation.statistics import Interval, bootstrap_mean

Row = Mapping[str, Any]
MEANS = (
    "em", "f1", "f1_aliases", "contain", "contain_strict", "contain_word", "llm_acc", "judge_strict",
    "rule_acc", "forced", "support_recall", "retrieved_tokens", "seed_tokens", "prompt_tokens",
    "completion_tokens", "total_tokens", "final_prompt_tokens", "llm_calls", "repairs", "retrieval_calls", "loops",
    "usd", "answer_words",
)  # fmt: skip
"""Means over every row of a cell, errors included (where they are 0); where a row has null, over the others."""


def metrics(rows: Sequence[Row], judge: str) -> dict[str, Any]:
    """The metrics of one cell: means over all questions x seeds, shares as 0..1.

    ``n`` is the number of questions, ``n_ok`` of rows that are no error divided by the number of
    seeds (a whole number with one seed), ``judge`` the model behind ``llm_acc``. ``support_recall``
    leaves out questions none of whose gold passages is in the corpus, ``final_prompt_tokens`` those without a
    final answer call over evidence.
    Raises DataError for no rows, or rows of more than one cell.
    """
    if not rows:
        raise DataError("no score rows to aggregate; run the cell and score it again")
    cells = {(r["dataset"], r["setting"], r["run"]) for r in rows}
    if len(cells) > 1:
        raise DataError(f"rows of {len(cells)} cells in one aggregate: {sorted(cells)[:3]}")
    seeds = sorted({r["seed"] for r in rows})
    ok = sum(r["status"] != "error" for r in rows)
    return {
        **{name: mean(rows, name) for name in MEANS},
        "judge": judge,
        "judge_unparsed": sum(r["judge_unparsed"] for r in rows),
        "judge_calls": sum(r["judge_calls"] for r in rows),
        "judge_tokens": sum(r["judge_tokens"] for r in rows),
        "extract_tokens": sum(r["extract_tokens"] for r in rows),
        "agreement": mean([{"agree": r["llm_acc"] == r["rule_acc"]} for r in rows], "agree"),
        "n": len({r["qid"] for r in rows}),
        "n_ok": ok // len(seeds) if ok % len(seeds) == 0 else round(ok / len(seeds), 4),
        "seeds": seeds,
    }


def nest(cells: Mapping[tuple[str, str, str], dict[str, Any]]) -> dict[str, Any]:
    """dataset -> setting -> run -> metrics, from a mapping keyed by those three."""
    tree: dict[str, Any] = {}
    for (dataset, setting, run), values in sorted(cells.items()):
        tree.setdefault(dataset, {}).setdefault(setting, {})[run] = values
    return tree


def mean(rows: Iterable[Row], metric: str) -> float | None:
    """Mean over the rows that have the metric (not null), None when none has. Exact: order-free."""
    values = [float(r[metric]) for r in rows if r[metric] is not None]
    return math.fsum(values) / len(values) if values else None


def per_question(rows: Iterable[Row], metric: str) -> dict[str, float]:
    """The metric of each question, the mean over its seeds; questions with none are left out."""
    values: dict[str, list[float]] = defaultdict(list)
    for r in rows:
        if r[metric] is not None:
            values[r["qid"]].append(float(r[metric]))
    return {qid: math.fsum(v) / len(v) for qid, v in sorted(values.items())}


def interval(rows: Iterable[Row], metric: str, **options: Any) -> Interval:
    """Percentile bootstrap interval of a metric's mean, resampling questions (not seeds).

    ``options`` are ``bootstrap_mean``'s seed, resamples and level.
    """
    return bootstrap_mean(list(per_question(rows, metric).values()), **options)
