"""The certify stage: is there a query that returns a gold passage? No model is asked; vectors come through the store.

Writes results/certificates/<dataset>/<embedder>-<corpus>.jsonl, one row per gold passage of every question, and
results/reachability.json: shares of gold passages, and what each run missed of those that can be reached.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from multihop import jsonl
from multihop.analysis import probes, reachability
from multihop.analysis.probes import Asked, Probe
from multihop.data import splits
from multihop.errors import DataError
from multihop.evaluation.support import ChunkMap
from multihop.opening import open_certificate_index
from multihop.retrieval.batch import BatchSearch
from multihop.session import Session
from multihop.types import Gold, Passage, RunRecord

FOLDER, SUMMARY = "results/certificates", "results/reachability.json"
Witness = dict[str, Any]
Answered = Sequence[tuple[str, str, list[RunRecord]]]
"""(run, setting, records) of each cell of one dataset."""


@dataclass(frozen=True, slots=True)
class Target:
    """A gold passage of a question, and what is tried to find it."""

    gold: Gold
    passage: Passage
    probes: tuple[Probe, ...]


# -- one index


def certify(
    search: BatchSearch, chunks: ChunkMap, targets: Sequence[Target], tools: Sequence[str], depth: int
) -> list[dict[str, Any]]:
    """One certificate row per target, in their order; ``depth``: the largest k. See docs for the fields."""
    queries = list(dict.fromkeys(p.query for t in targets for p in t.probes))
    number = {query: i for i, query in enumerate(queries)}
    position = {chunk.id: i for i, chunk in enumerate(search.retriever.chunks)}
    held = [np.array(sorted(position[c] for c in chunks.chunks_of(t.passage.id)), dtype=np.int64) for t in targets]
    rows = [_row(target, bool(len(places))) for target, places in zip(targets, held, strict=True)]
    for tool in tools:
        ranked = search.search(tool, [q.text for q in queries], [q.keywords for q in queries], depth)
        for target, places, row in zip(targets, held, rows, strict=True):
            asked = np.array([number[p.query] for p in target.probes], dtype=np.int64)
            hits = np.isin(ranked.positions[asked], places)
            found = []
            for i in np.flatnonzero(hits.any(axis=1)):
                needs = np.where(hits[i], ranked.needs[asked[i]], depth + 1)
                rank = int(needs.argmin())  # of a passage's chunks the one that the shallowest search returns
                found.append((int(needs[rank]), rank + 1, int(i)))
            row["certificates"][tool] = _witnesses(target.probes, sorted(found), tool)
    return rows


def _row(target: Target, mapped: bool) -> dict[str, Any]:
    g, p = target.gold, target.passage
    return {
        "qid": g.id,
        "passage": p.id,
        "hop": probes.hop_of(g, p),
        "hops": g.hops,
        "type": g.type,
        "gold_exact": g.exact,
        "mapped": mapped,
        "certificates": {},
    }


def _witnesses(tried: Sequence[Probe], found: list[tuple[int, int, int]], tool: str) -> dict[str, Witness]:
    """Tier -> its best witness. For ``issued`` also the next best ones, until every run is without a part in one."""
    best: dict[str, Witness] = {}
    for k, rank, i in found:
        probe = tried[i]
        sent = list(probe.query.keywords) if tool.startswith("keyword_") else probe.query.text
        witness: Witness = {"k": k, "rank": rank, "query": sent}
        if probe.tier != "issued":
            best.setdefault(probe.tier, witness)
            continue
        witness["runs"] = list(probe.runs)
        if "issued" not in best:
            best["issued"] = witness | {"others": []}
            continue
        others = best["issued"]["others"]
        in_all = set(best["issued"]["runs"]).intersection(*(w["runs"] for w in others))
        if in_all - set(probe.runs):
            others.append(witness)
    return best


# -- one dataset


@dataclass
class World:
    """What certificates of a dataset are made from."""

    dataset: str
    questions: dict[str, str]
    gold: dict[str, Gold]
    passages: dict[str, Passage]

    @staticmethod
    def open(session: Session, dataset: str) -> World:
        folder = session.prepared(dataset)
        return World(
            dataset,
            {q.id: q.text for q in splits.questions(folder)},
            {g.id: g for g in splits.gold(folder)},
            {p.id: p for p in splits.passages(folder)},
        )

    def targets(self, runs: Mapping[str, Asked], most: int) -> list[Target]:
        """The gold passages of all questions, by question id and then in the benchmark's order."""
        out = []
        for qid, gold in self.gold.items():
            issued = probes.issued(runs, qid)
            for passage in dict.fromkeys(gold.supporting):
                if passage not in self.passages:
                    raise DataError(f"{self.dataset}: gold passage {passage} of {qid} is in no corpus; prepare again")
                own = probes.probes(self.questions[qid], gold, self.passages[passage], most)
                out.append(Target(gold, self.passages[passage], (*own, *issued)))
        return out


def cells(session: Session, dataset: str) -> Iterator[tuple[str, str, list[RunRecord]]]:
    """(run, setting, records) of every cell that has been answered. Raises DataError for a damaged record."""
    for run in session.params.runs:
        for found, setting in session.params.cells(run):
            path = session.records(run, dataset, setting)
            if found == dataset and path.is_file():
                yield run, setting, jsonl.read_records(path)


def certify_all(session: Session) -> dict[str, Any]:
    """Certificates of all datasets and indexes, and the summary; writes both. Raises DataError for a missing index."""
    shutil.rmtree(session.root / FOLDER, ignore_errors=True)
    (session.root / FOLDER).mkdir(parents=True)
    out: dict[str, Any] = {"rules": session.params.certificates.model_dump(mode="json"), "shares": {}, "runs": {}}
    for dataset in session.params.datasets:
        started = time.monotonic()
        answered = list(cells(session, dataset))
        world = World.open(session, dataset)
        shares, rows = _certify(session, world, answered)
        out["shares"][dataset], out["runs"][dataset] = shares, _runs(session, world, answered, rows)
        print(f"certificates of {dataset}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    jsonl.write_wide(session.root / SUMMARY, out)
    return out


def embed_queries(session: Session, dataset: str, records: Mapping[tuple[str, str, str], list[RunRecord]]) -> None:
    """Have every vector in the store that a dataset's certificates will want; ``records`` by (run, dataset, setting).

    Writes no result. Its indexes must be there.
    """
    answered = [(run, setting, found) for (run, of, setting), found in records.items() if of == dataset]
    targets = _targets(session, World.open(session, dataset), answered)
    texts = list(dict.fromkeys(probe.query.text for target in targets for probe in target.probes))
    for name in session.params.certificate_indexes():
        BatchSearch(open_certificate_index(session, dataset, name)).vectors(texts)


def _targets(session: Session, world: World, answered: Answered) -> list[Target]:
    most = session.params.certificates.keywords
    by_run: dict[str, list[RunRecord]] = {}
    for run, _, records in answered:
        by_run.setdefault(run, []).extend(records)
    return world.targets({run: probes.asked(records, most) for run, records in by_run.items()}, most)


def _certify(
    session: Session, world: World, answered: Answered
) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """(shares, certificate rows) by index; writes the rows."""
    rule = session.params.certificates
    targets = _targets(session, world, answered)
    shares: dict[str, Any] = {}
    rows: dict[str, list[dict[str, Any]]] = {}
    lexical: dict[str, BatchSearch] = {}
    for name, (_, corpus) in session.params.certificate_indexes().items():
        chunks = ChunkMap(splits.chunks(session.prepared(world.dataset), corpus))
        search = BatchSearch(open_certificate_index(session, world.dataset, name), lexical.get(corpus))
        lexical.setdefault(corpus, search)
        rows[name] = certify(search, chunks, targets, rule.tools, max(rule.ks))
        jsonl.write(session.root / FOLDER / world.dataset / f"{name}.jsonl", rows[name])
        options = session.params.statistics.bootstrap
        shares[name] = reachability.shares(rows[name], rule.tools, rule.ks, rule.run_k, **options)
    return shares, rows


def _runs(
    session: Session, world: World, answered: Answered, rows: Mapping[str, list[dict[str, Any]]]
) -> dict[str, Any]:
    """run -> setting -> its tools and k, and the split of its missing passages by group, or why there is none."""
    rule = session.params.certificates
    rules = reachability.Rules(tuple(rule.ks), rule.run_k, rule.asked_share)
    out: dict[str, Any] = {}
    for run, setting, records in answered:
        index = session.params.index_name(setting)
        lexical = bool(session.params.runs[run].options.get("lexical"))
        searches = probes.asked(records, rule.keywords, lexical)
        no = reachability.excuse(searches) or (None if index in rows else f"no certificates over {index}")
        entry: dict[str, Any] = {"index": index, "excuse": no}
        if no is None:
            chunks = ChunkMap(splits.chunks(session.prepared(world.dataset), session.params.settings[setting].corpus))
            lost = reachability.missing(
                run, records, searches, rows[index], world.gold, world.passages, chunks, rules
            )  # fmt: skip
            entry |= {"tools": list(searches.tools), "k": reachability.depth_of(searches, rules)}
            options = session.params.statistics.bootstrap
            entry["groups"] = reachability.split(lost, records, world.gold, rows[index], **options)
        out.setdefault(run, {})[setting] = entry
    return out


def said(summary: Mapping[str, Any]) -> str:
    """One line per dataset and index: how many gold passages are certified at the runs' k, by any tier."""
    ks, k = summary["rules"]["ks"], summary["rules"]["run_k"]
    at = ks.index(reachability.deepest(ks, k))
    lines = []
    for dataset, indexes in summary["shares"].items():
        for name, groups in indexes.items():
            found = groups.get("all", {"passages": 0})
            tools = [t for t in summary["rules"]["tools"] if t in found]
            counts = ", ".join(f"{tool} {found[tool]['any']['found'][at]}" for tool in tools)
            lines.append(f"{dataset:<17}{name:<20}of {found['passages']} gold passages at k = {ks[at]}: {counts}")
    return "\n".join(lines)
