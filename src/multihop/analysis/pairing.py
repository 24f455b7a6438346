"""Which two cells may be compared question by question, and why others may not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from multihop.analysis.failures import Row, check_totals
from multihop.errors import ConfigError, DataError

Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Side:
    """One run's cell: (question, seed) rows as the score stage wrote them."""

    run: str
    dataset: str
    setting: str
    judge: str
    """The model behind ``llm_acc``."""
    corpus: str
    """corpus_hash of the run's records."""
    scores: Sequence[Row]
    failures: Sequence[Row]

    @property
    def where(self) -> str:
        return f"{self.run} on {self.dataset} / {self.setting}"


@dataclass(frozen=True, slots=True)
class Pair:
    """Two cells that may be compared; ``pair`` makes one."""

    first: Side
    second: Side
    keys: tuple[Key, ...]
    """(question, seed), sorted: the same on both sides."""

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({seed for _, seed in self.keys}))


def pair(first: Side, second: Side) -> Pair:
    """The two sides as a pair. Raises DataError, saying what differs, unless dataset, setting, corpus, judge, seeds and
    questions are the same and there is at least one question; ConfigError for a run beside itself."""
    if (first.run, first.dataset, first.setting) == (second.run, second.dataset, second.setting):
        raise ConfigError(f"paired: {first.where} would be compared with itself; choose two runs")
    keys = [_keys(side) for side in (first, second)]
    found = [
        f"{what} {a!r} and {b!r}"
        for what, a, b in (
            ("dataset", first.dataset, second.dataset),
            ("setting", first.setting, second.setting),
            ("corpus", first.corpus, second.corpus),
            ("judge", first.judge, second.judge),
        )
        if a != b
    ]
    seeds = [sorted({seed for _, seed in k}) for k in keys]
    if all(keys) and seeds[0] != seeds[1]:
        found.append(f"seeds {seeds[0]} and {seeds[1]}")
    questions = [{qid for qid, _ in k} for k in keys]
    found += [
        f"{len(only)} of {len(mine)} questions are only in {side.run}, such as {min(only)!r}"
        for side, mine, others in zip((first, second), questions, questions[::-1], strict=True)
        if (only := mine - others)
    ]
    if found:
        raise DataError(f"paired: {first.where} and {second.where} cannot be compared: {'; '.join(found)}")
    if not keys[0]:
        raise DataError(f"paired: {first.where} and {second.where} hold no question (n = 0); run and score both")
    return Pair(first, second, tuple(sorted(keys[0])))


def _keys(side: Side) -> list[Key]:
    """Raises DataError unless every question is there once for each seed, with one failure for each wrong answer."""
    keys = [(s["qid"], s["seed"]) for s in side.scores]
    questions, seeds = {q for q, _ in keys}, {s for _, s in keys}
    if len(keys) != len(set(keys)) or len(keys) != len(questions) * len(seeds):
        raise DataError(f"paired: {side.where}: not every question is there once for each seed; score the cell again")
    try:
        check_totals(side.failures, side.scores)
    except DataError as e:
        raise DataError(f"paired: {side.where}: {e}; score the cell again") from e
    return keys


def check_pool(pairs: Sequence[Pair]) -> None:
    """Raises DataError unless the pairs are of the same two runs, setting, judge and seeds, each on its own dataset."""
    kinds = {(p.first.run, p.second.run, p.first.setting, p.first.judge, p.seeds) for p in pairs}
    datasets = [p.first.dataset for p in pairs]
    if len(kinds) > 1 or len(set(datasets)) < len(datasets):
        said = (f"{p.first.where} with {p.second.where}, judge {p.first.judge}, seeds {p.seeds}" for p in pairs)
        shown = "; ".join(said)
        raise DataError(f"paired: only the same two runs on different datasets can be pooled, not {shown}")
