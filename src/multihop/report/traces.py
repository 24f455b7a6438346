"""One question under ExecutionRAG and A-RAG, as the case studies see it, and how much of it may be shown.

Rendered pages are tracked in git, so a text that quotes a benchmark's passage is withheld; the generated world of the
demo may be quoted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from multihop.analysis.failures import premature_resolutions
from multihop.data import splits
from multihop.evaluation.support import ChunkMap
from multihop.report.load import Report
from multihop.types import Event, Gold, Passage, RunRecord

METHOD, BASELINE = "executionrag", "arag"
WITHHELD = "(withheld: quotes a passage)"
QUOTE = 6
"""So many words in a row that a passage also has count as a quotation."""
QUERY_CHARACTERS = 60


@dataclass(frozen=True)
class World:
    """What is known about one dataset under one corpus variant."""

    gold: dict[str, Gold]
    passages: dict[str, Passage]
    chunks: ChunkMap

    @staticmethod
    @lru_cache(maxsize=8)
    def load(report: Report, dataset: str, variant: str) -> World:
        """Raises DataError when the dataset is not prepared."""
        folder = report.root / "data/prepared" / dataset
        return World(
            {g.id: g for g in splits.gold(folder)},
            {p.id: p for p in splits.passages(folder)},
            ChunkMap(splits.chunks(folder, variant)),
        )


@dataclass(frozen=True)
class Trace:
    """One question under ExecutionRAG and, where it ran, under A-RAG."""

    report: Report
    dataset: str
    setting: str
    record: RunRecord
    baseline: RunRecord | None
    score: dict[str, Any]
    baseline_score: dict[str, Any] | None
    world: World

    @property
    def gold(self) -> Gold:
        return self.world.gold[self.record.qid]

    @property
    def items(self) -> list[dict[str, Any]]:
        """The register as it ended; empty where none was recorded."""
        found = [e.data["items"] for e in self.record.events if e.kind in ("register", "final_register")]
        return found[-1] if found else []

    @property
    def resolved(self) -> int:
        return sum(item["status"] == "resolved" for item in self.items)

    @property
    def musique(self) -> bool:
        """The paper's cases are all of MuSiQue: a trace of it that shows the effect goes first."""
        return self.dataset == "musique"

    @property
    def right(self) -> bool:
        return self.score["llm_acc"] == 1 or self.score["rule_acc"] == 1

    @property
    def gain(self) -> float | None:
        """Supporting recall, ExecutionRAG minus A-RAG; None where it has no meaning."""
        if self.baseline_score is None or self.baseline.status == "error":
            return None
        ours, theirs = self.score["support_recall"], self.baseline_score["support_recall"]
        return None if ours is None or theirs is None else ours - theirs

    def count(self, kind: str) -> int:
        return sum(e.kind == kind for e in self.record.events)

    @property
    def guided(self) -> int:
        """How often the agent was shown the register, or what changed in it."""
        return sum(e.data["tokens"] > 0 for e in self.record.events if e.kind == "inject")

    @property
    def retirements(self) -> list[Event]:
        return [e for e in self.record.events if e.kind == "transition" and e.data["to"] == "retired"]

    @property
    def premature(self) -> int:
        return premature_resolutions(self.record, self.gold, self.world.chunks)

    @cached_property
    def namesakes(self) -> list[str]:
        """Titles that A-RAG surfaced and that share a word with a gold title, without being gold."""
        titles = [self.world.passages[p].title for p in self.gold.supporting if p in self.world.passages]
        words = set().union(*(_words(t) for t in titles))
        surfaced = self.baseline.retrieved if self.baseline else ()
        passages = dict.fromkeys(p for r in surfaced for p in sorted(self.world.chunks.passages_of(r.chunk_id)))
        found = [self.world.passages[p].title for p in passages if p not in self.gold.supporting]
        return [t for t in dict.fromkeys(found) if t not in titles and words & _words(t)]

    # -- what may be shown

    def title(self, chunk_id: str) -> str:
        """The titles of the passages that a chunk holds; its id where there is none."""
        held = sorted(self.world.chunks.passages_of(chunk_id))
        return " / ".join(self.world.passages[p].title for p in held[:2]) or chunk_id

    def passage_title(self, passage_id: str) -> str:
        passage = self.world.passages.get(passage_id)
        return passage.title if passage else passage_id

    def clean(self, text: str) -> str:
        """The text as it is in the demo world; of a benchmark, nothing that quotes a passage (rendered pages are
        tracked in git)."""
        if self.report.is_demo or not self._quotes.intersection(_runs(text)):
            return text
        return WITHHELD

    @cached_property
    def _quotes(self) -> set[tuple[str, ...]]:
        surfaced = [*self.record.retrieved, *(self.baseline.retrieved if self.baseline else ())]
        ids = {p for r in surfaced for p in self.world.chunks.passages_of(r.chunk_id)} | set(self.gold.supporting)
        return {run for p in sorted(ids & self.world.passages.keys()) for run in _runs(self.world.passages[p].text)}

    def query(self, query: str | list[str]) -> str:
        """A query without the note that the register put into it."""
        text = ", ".join(query) if isinstance(query, list) else re.split(r"\s*\b(?:Known|For): ", query)[0]
        return self.clean(shorten(text, QUERY_CHARACTERS))


def traces(report: Report) -> Iterator[Trace]:
    """Every ExecutionRAG record that is no error, in the order that breaks ties."""
    for dataset in sorted(report.datasets, key=lambda d: d != "musique"):
        for setting in report.settings:
            scores = {(r["qid"], r["seed"]): r for r in report.score_rows(dataset, setting, METHOD)}
            theirs = {(r["qid"], r["seed"]): r for r in report.score_rows(dataset, setting, BASELINE)}
            baseline = {(r.qid, r.seed): r for r in report.records(BASELINE, dataset, setting)} if scores else {}
            for record in report.records(METHOD, dataset, setting) if scores else ():
                key = (record.qid, record.seed)
                if record.status == "error" or key not in scores:
                    continue
                world = World.load(report, dataset, report.params.settings[setting].corpus)
                other = baseline.get(key) if key in theirs else None
                score, its = scores[key], theirs[key] if other else None
                yield Trace(report, dataset, setting, record, other, score, its, world)


def shorten(text: str, limit: int) -> str:
    """On one line, cut at a word to ``limit`` characters."""
    text = " ".join(text.split())
    return text if len(text) <= limit else text[:limit].rsplit(" ", 1)[0] + " …"


def _words(text: str) -> set[str]:
    return {w for w in re.findall(r"\w+", text.casefold()) if len(w) >= 4}


def _runs(text: str) -> set[tuple[str, ...]]:
    """Every run of QUOTE words; a shorter text is its own run."""
    words = re.findall(r"\w+", text.casefold())
    return {tuple(words[i : i + QUOTE]) for i in range(max(1, len(words) - QUOTE + 1))} if words else set()
