"""The data card: counts, lengths, hashes and how well gold maps, of one prepared dataset."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from multihop import jsonl
from multihop.data import fingerprint, tokens
from multihop.types import Chunk, Gold, Passage

ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalise_answer(text: str) -> str:
    """The benchmarks' own rule: lower case, no ASCII punctuation, no articles, one space."""
    kept = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return " ".join(ARTICLES.sub(" ", kept).split())


def lengths(values: Sequence[int]) -> dict[str, float | int]:
    if not values:
        return {"mean": 0.0, "median": 0, "max": 0, "sum": 0}
    return {
        "mean": round(fmean(values), 2),
        "median": median(values),
        "max": max(values),
        "sum": sum(values),
    }


def corpus_card(passages: Sequence[Passage]) -> dict[str, Any]:
    titles = Counter(p.title for p in passages)
    return {
        "passages": len(passages),
        "titles": len(titles),
        "titles_shared_by_several_passages": sum(n > 1 for n in titles.values()),
        "passages_with_a_shared_title": sum(n for n in titles.values() if n > 1),
        "characters": lengths([len(p.full) for p in passages]),
        "tokens": lengths([tokens.count(p.full) for p in passages]),
    }


def split_card(gold: Sequence[Gold]) -> dict[str, Any]:
    return {
        "questions": len(gold),
        "by_type": dict(sorted(Counter(g.type for g in gold).items())),
        "by_hops": {str(h): n for h, n in sorted(Counter(g.hops for g in gold).items())},
        "gold_passages": sum(len(g.supporting) for g in gold),
        "gold_exact": sum(g.exact for g in gold),
        "with_decomposition": sum(bool(g.decomposition) for g in gold),
        "answers_normalising_to_empty": sum(not normalise_answer(g.answers[0]) for g in gold),
    }


def mapping_card(
    gold: Sequence[Gold], passages: Sequence[Passage], variants: dict[str, list[Chunk]]
) -> dict[str, Any]:
    """Shares of (question, gold passage) pairs that map: exactly, and by fingerprint, in each variant.

    ``all`` is over every question; ``gold_exact`` over those whose gold is labelled rather than matched,
    and stands only where the two differ.
    """
    by_id = {p.id: p for p in passages}
    groups = {"all": [pid for g in gold for pid in g.supporting]}
    if not all(g.exact for g in gold):
        groups["gold_exact"] = [pid for g in gold if g.exact for pid in g.supporting]
    report: dict[str, Any] = {}
    for variant, chunks in variants.items():
        held = {span.passage_id for chunk in chunks for span in chunk.spans}
        matches = fingerprint.match([by_id[pid] for pid in groups["all"]], chunks)
        report[variant] = {
            name: {
                "gold_passages": len(wanted),
                "exact": round(sum(pid in held for pid in wanted) / len(wanted), 6) if wanted else 0.0,
                "fingerprint": fingerprint.rates(matches, wanted),
            }
            for name, wanted in groups.items()
        }
    return report


def variant_card(chunks: Sequence[Chunk]) -> dict[str, Any]:
    return {
        "chunks": len(chunks),
        "characters": lengths([len(c.text) for c in chunks]),
        "tokens": lengths([tokens.count(c.text) for c in chunks]),
        "passages_per_chunk": lengths([len(c.spans) for c in chunks]),
    }


def file_hashes(paths: Sequence[Path], base: Path) -> dict[str, str]:
    return {path.relative_to(base).as_posix(): jsonl.file_sha256(path) for path in sorted(paths)}
