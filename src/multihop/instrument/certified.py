"""Do certificates tell the unreachable from the unasked? The certify stage's own functions over a simulated run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from multihop import certifying, config, jsonl
from multihop.analysis import probes, reachability
from multihop.blocks import Faults
from multihop.data import splits
from multihop.evaluation.support import ChunkMap
from multihop.instrument.plan import ASKED, Case
from multihop.instrument.recovery import against, rounded
from multihop.instrument.simulate import DATASET, METHODS, SETTING, Simulation, session_of

FATES = reachability.FATES
Row = dict[str, Any]


def compare(simulation: Simulation, faults: Faults) -> Row:
    """Certified against reachable, and each missing passage's fate against what really happened to it.

    ``passages``: counts of gold passages, reachable or not, certified by a probe at the runs' k or not; ``fates``: by
    method, counts of (what happened, what was said); ``set_rates``: as recovery's, see ``unasked_rate``.
    """
    params = config.load(simulation.root / "params.yaml")
    session = session_of(params, simulation.root, "certify")
    try:
        certifying.certify_all(session)
    finally:
        session.store.close()
    index = params.index_name(SETTING)
    rows = list(jsonl.read(simulation.root / certifying.FOLDER / DATASET / f"{index}.jsonl"))
    certified = _certified(rows, params.certificates.run_k)
    reached = {p: p not in simulation.unreachable for p in certified}
    counts = Counter((reached[p], certified[p]) for p in certified)
    unreachable = sum(not c for c in certified.values())
    fates, set_rates = {}, [against("gold passage unreachable", faults.unreachable, unreachable, len(certified))]
    hops = sum(certified[p] for case in simulation.cases.values() for p in case.passages)
    unasked, _ = drawn_unasked(simulation.cases.values(), simulation.unreachable)
    for method in METHODS:
        fates[method] = _fates(simulation, params, rows, method)
        rate = unasked_rate(faults, fates[method]["counts"], unasked, hops)
        set_rates.append({"method": method} | rate)
    names = {True: "reachable", False: "unreachable"}
    said = {True: "certified", False: "no certificate"}
    return {
        "passages": {names[r]: {said[c]: counts[r, c] for c in said} for r in names},
        "fates": fates,
        "set_rates": set_rates,
    }


def _certified(rows: Sequence[Row], k: int) -> dict[str, bool]:
    """Passage -> whether some probe of T0 to T3 returns it at ``k``, for any question whose gold it is.

    Issued queries are left out: a passage must not count as reachable because a run was told its name.
    """
    tools, tiers = ("semantic_search", "keyword_search"), ("T0", "T1", "T2", "T3")
    found: dict[str, bool] = {}
    for row in rows:
        needs = [n for tool in tools for tier in tiers if (n := reachability.found_from(row, tool, tier)) is not None]
        found[row["passage"]] = found.get(row["passage"], False) or (bool(needs) and min(needs) <= k)
    return dict(sorted(found.items()))


def drawn_unasked(cases: Iterable[Case], unreachable: Collection[str]) -> tuple[int, int]:
    """Hops whose passage can be reached: (drawn as not asked for, all)."""
    fates = [f for c in cases for p, f in zip(c.passages, c.fates, strict=True) if p not in unreachable]
    return sum(fate != ASKED for fate in fates), len(fates)


def unasked_rate(faults: Faults, counts: Row, drawn: int, hops: int) -> Row:
    """Hops said to be never asked for, against what drift and early resolutions imply.

    A passage that nobody asked for may surface in another search, and is then not missing: the set rate is multiplied
    by the share of the ``drawn`` hops that stayed missing, by the reader's log. ``counts``: (happened, said).
    """
    missing = sum(counts["never_asked"].values())
    expected = (faults.drift + faults.early) * (missing / drawn if drawn else 1.0)
    said = sum(counts[fate]["never_asked"] for fate in FATES)
    row = against("hop not asked for, passage reachable and missing", expected, said, hops)
    return row | {"drawn": drawn, "surfaced": drawn - missing}


def _fates(simulation: Simulation, params: config.Params, rows: Sequence[Row], method: str) -> Row:
    """What happened to a method's missing passages and what is said of them."""
    prepared = simulation.root / "data/prepared" / DATASET
    rule = params.certificates
    searches = probes.asked(simulation.records[method], rule.keywords)
    lost = reachability.missing(
        method,
        simulation.records[method],
        searches,
        rows,
        simulation.gold,
        {p.id: p for p in splits.passages(prepared)},
        ChunkMap(splits.chunks(prepared, "passages")),
        reachability.Rules(tuple(rule.ks), rule.run_k, rule.asked_share),
    )
    counts = {fate: Counter() for fate in FATES}
    for row in lost:
        counts[_happened(simulation, method, row)][row["fate"]] += 1
    total = sum(n for c in counts.values() for n in c.values())
    agree = sum(counts[fate][fate] for fate in FATES)
    return {
        "counts": {fate: {said: counts[fate][said] for said in FATES} for fate in FATES},
        "missing": total,
        "agree": agree,
        "share": rounded(agree / total) if total else None,
    }


def _happened(simulation: Simulation, method: str, row: Row) -> str:
    """By the reader's own log: it searched for the passage; it did not, and could have; it did not, and in vain."""
    case, log = simulation.cases[row["qid"]], simulation.logs[method][row["qid"]]
    hop = case.passages.index(row["passage"])
    if hop in log.searched:
        return "asked_not_returned"
    return "no_certificate" if row["passage"] in simulation.unreachable else "never_asked"
