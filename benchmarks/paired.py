"""Paired resamples at the size of paper 2's largest set: seconds of processor time, beside scipy.stats.bootstrap.

    python benchmarks/paired.py [questions] [resamples]

By default 12,576 questions and 10,000 resamples of the difference in right answers: ours is the interval of
``bootstrap_difference`` alone, then a whole ``compare`` (outcomes, interval, McNemar) from score and failure rows.
scipy is given the same scores and resamples, percentile method, vectorised, in batches.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.stats import bootstrap

from multihop.analysis import paired
from multihop.evaluation.statistics import bootstrap_difference

BATCH = 200
"""Resamples that scipy draws at once: 20 MB an array."""


def timed(what: Callable[[], Any]) -> tuple[float, float, Any]:
    """(seconds of processor time, seconds by the clock, the result)."""
    started, clock = time.process_time(), time.perf_counter()
    found = what()
    return time.process_time() - started, time.perf_counter() - clock, found


def side(run: str, right: np.ndarray) -> paired.Side:
    scores, failures = [], []
    cause = {"category": "missing_evidence", "category_symmetric": "missing_evidence", "wrong_and_missing": True}
    for i, correct in enumerate(right.tolist()):
        key = {"qid": f"q{i:06}", "seed": 0}
        scores.append({**key, "llm_acc": correct, "rule_acc": correct})
        failures += [{**key, **cause, "judge": judge} for judge in ("llm", "rule") if not correct]
    return paired.Side(run, "2wikimultihopqa", "invented", "judge", "corpus", scores, failures)


def main(questions: int = 12_576, resamples: int = 10_000) -> None:
    rng = np.random.default_rng(0)
    first = (rng.random(questions) < 0.5).astype(float)
    second = np.where(rng.random(questions) < 0.2, 1 - first, first)

    ours, clock, interval = timed(lambda: bootstrap_difference(second, first, resamples=resamples))
    print(f"{questions} questions, {resamples} resamples: {ours:.2f} s, {clock:.2f} s by the clock")
    pair = paired.pair(side("first", first), side("second", second))
    whole, clock, _ = timed(lambda: paired.compare([pair], resamples=resamples))
    print(f"compare, from rows to interval and McNemar: {whole:.2f} s, {clock:.2f} s by the clock")

    def statistic(a: np.ndarray, b: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.mean(a - b, axis=axis)

    options = {"paired": True, "vectorized": True, "method": "percentile", "n_resamples": resamples, "batch": BATCH}
    theirs, _, found = timed(lambda: bootstrap((second, first), statistic, rng=np.random.default_rng(0), **options))
    ends = found.confidence_interval
    off = max(abs(interval.low - ends.low), abs(interval.high - ends.high))
    width = interval.high - interval.low
    print(f"scipy.stats.bootstrap: {theirs:.2f} s: {theirs / ours:.1f} times ours", end="")
    print(f"; ends differ by {off:.1e} at a width of {width:.1e}")


if __name__ == "__main__":
    main(*(int(a) for a in sys.argv[1:]))
