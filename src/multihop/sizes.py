"""How large a project's questions and corpora are: as prepared, or else as their release is known to be."""

from __future__ import annotations

from pathlib import Path

from multihop.config import Params
from multihop.data import splits

BENCHMARK_PASSAGE_TOKENS = 110
"""Mean o200k tokens of a benchmark passage (HippoRAG corpora, 86-123), where the corpus is not prepared yet."""
DEMO_PASSAGE_TOKENS = 60
FULL_SIZES = {
    "hipporag": {"hotpotqa": 1000, "2wikimultihopqa": 1000, "musique": 1000},
    "official": {"hotpotqa": 7405, "2wikimultihopqa": 12576, "musique": 2417},
}
"""Evaluation questions of a release, where they are not prepared yet."""
PASSAGES_PER_QUESTION = {"hotpotqa": 9.811, "2wikimultihopqa": 6.119, "musique": 11.656}
"""Of the HippoRAG corpora (1,000 questions each), where the corpus is not prepared yet; the pool of a larger set of
questions shares more passages."""


def scale(root: Path, dataset: str, params: Params) -> float:
    """How many times as long as in the demo a prompt is: as the passages are, and never shorter."""
    prepared = root / "data/prepared" / dataset
    if (prepared / "card.json").is_file():
        return max(1.0, splits.card(prepared)["corpus"]["tokens"]["mean"] / DEMO_PASSAGE_TOKENS)
    return 1.0 if params.source == "demo" else BENCHMARK_PASSAGE_TOKENS / DEMO_PASSAGE_TOKENS


def questions(root: Path, dataset: str, params: Params) -> int:
    """How many evaluation questions a dataset has."""
    prepared = root / "data/prepared" / dataset
    if (prepared / "questions.jsonl").is_file():
        return len(splits.questions(prepared))
    return params.data[dataset].questions or FULL_SIZES[params.hub_release][dataset]


def passages(root: Path, dataset: str, params: Params) -> tuple[float, float]:
    """(how many, mean tokens of one) of a dataset's corpus."""
    prepared = root / "data/prepared" / dataset
    if (prepared / "card.json").is_file():
        corpus = splits.card(prepared)["corpus"]
        return corpus["passages"], corpus["tokens"]["mean"]
    if params.source == "demo":
        return params.demo.passages, DEMO_PASSAGE_TOKENS
    data = params.data[dataset]
    whole = FULL_SIZES[params.hub_release][dataset]
    pooled = data.questions if data.pool == "selected" and data.questions else whole
    return pooled * PASSAGES_PER_QUESTION[dataset], BENCHMARK_PASSAGE_TOKENS


def corpus(root: Path, dataset: str, params: Params) -> str:
    """What tells one corpus from another."""
    prepared = root / "data/prepared" / dataset
    if (prepared / "card.json").is_file():
        return splits.card(prepared)["corpus_hash"]
    return "demo" if params.source == "demo" else dataset
