"""Certificate rows to shares, and what a run missed told apart, against cases counted by hand."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from multihop.analysis import probes, reachability
from multihop.analysis.probes import Asked
from multihop.analysis.reachability import Rules, found_from, missing, shares, split
from multihop.controller import state
from multihop.errors import DataError
from multihop.evaluation import statistics
from multihop.evaluation.statistics import ratio_intervals
from multihop.evaluation.support import ChunkMap
from multihop.methods import registry
from multihop.types import Chunk, Event, Gold, Hop, Passage, Retrieved, RunRecord, Span

TITLES = ["The Salt Road", "Ines Havel", "Dorvik", "Arle"]
PASSAGES = {f"p{i}": Passage(f"p{i}", title, f"{title} is here.") for i, title in enumerate(TITLES)}
CHUNKS = ChunkMap([Chunk(p.id, p.full, (Span(p.id, 0, len(p.full)),)) for p in PASSAGES.values()])
STEPS = tuple(Hop(f"step about {title.lower()} thing", "x", f"p{i}") for i, title in enumerate(TITLES))
GOLD = {
    "a": Gold("a", ("x",), ("p0", "p1"), "2hop", 2, decomposition=STEPS[:2]),
    "b": Gold("b", ("x",), ("p2", "p3", "p1"), "3hop1", 3, decomposition=STEPS, exact=False),
    "c": Gold("c", ("x",), (), "2hop", 2),
}
BOOTSTRAP = {"seed": 0, "resamples": 500, "level": 0.95}
RULES = Rules()


def witness(k: int, *runs: str, others: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    found: dict[str, Any] = {"k": k, "rank": k, "query": "q"}
    return found | ({"runs": list(runs), "others": list(others)} if runs else {})


def row(qid: str, passage: str, mapped: bool = True, hop: int | None = 1, **certificates: Any) -> dict[str, Any]:
    gold = GOLD[qid]
    return {
        "qid": qid, "passage": passage, "hop": hop, "hops": gold.hops, "type": gold.type, "gold_exact": gold.exact,
        "mapped": mapped, "certificates": certificates,
    }  # fmt: skip


def record(qid: str, found: tuple[str, ...] = (), run: str = "r", seed: int = 0, **changes: Any) -> RunRecord:
    retrieved = tuple(Retrieved(p, 1, "retrieve") for p in found)
    made = RunRecord(qid, "musique", "s", run, seed, "h", "c", "what?", "x", None, "free", "ok", "answered", retrieved)
    return replace(made, **changes)


# -- certificates


def test_a_certificate_holds_from_its_k_on_and_a_run_does_not_certify_itself():
    other = {"k": 5, "rank": 4, "query": "q", "runs": ["b"]}
    made = row("a", "p0", dense={"T1": witness(3), "issued": witness(1, "a", others=(other,))})
    assert found_from(made, "dense", "T1") == 3
    assert found_from(made, "dense", "T0") is None and found_from(made, "bm25", "T1") is None
    assert found_from(made, "dense", "any") == 1
    assert found_from(made, "dense", "issued", without_run="a") == 5
    assert found_from(made, "dense", "issued", without_run="b") == 1
    assert found_from(made, "dense", "any", without_run="a") == 3
    alone = row("a", "p0", dense={"issued": witness(1, "a")})
    assert found_from(alone, "dense", "any", without_run="a") is None


ROWS = [
    row("a", "p0", dense={"T0": witness(1), "T1": witness(1)}),
    row("a", "p1", hop=2, dense={"T1": witness(5)}),
    row("b", "p2", dense={"T2": witness(10)}),
    row("b", "p3", hop=None),
    row("b", "p1", mapped=False),
]


def test_shares_count_passages_by_tier_depth_and_group():
    found = shares(ROWS, ["dense"], [1, 3, 5, 10], 5, **BOOTSTRAP)
    everything = found["all"]
    assert (everything["passages"], everything["questions"]) == (4, 2), "what no chunk holds is left out"
    assert everything["dense"]["T0"]["found"] == [1, 1, 1, 1]
    assert everything["dense"]["T1"]["found"] == [1, 1, 2, 2]
    assert everything["dense"]["T2"]["found"] == [0, 0, 0, 1]
    assert everything["dense"]["any"]["found"] == [1, 1, 2, 3]
    assert everything["dense"]["lowest"] == {"T0": 1, "issued": 0, "T1": 1, "T2": 0, "T3": 0}
    assert (everything["dense"]["any"]["low"], everything["dense"]["any"]["high"]) == (0.0, 1.0)
    assert found["hop 2"]["dense"]["T1"]["found"] == [0, 0, 1, 1]
    assert set(found) == {"all", "2-hop", "3-hop", "hop 1", "hop 2", "labelled gold", "matched gold"}
    assert found["matched gold"]["passages"] == 2, "apart from the labelled ones"
    one = found["2-hop"]["dense"]["T1"]
    assert (one["low"], one["high"]) == (1.0, 1.0), "one question: no width"


def test_no_gold_no_shares():
    assert shares([], ["dense"], [1, 5], 5, **BOOTSTRAP) == {}
    assert shares([row("a", "p0", mapped=False)], ["dense"], [1, 5], 5, **BOOTSTRAP) == {}


def test_ratio_intervals_equal_a_plain_bootstrap():
    rng = np.random.default_rng(5)
    wholes = rng.integers(0, 4, 40).astype(float)
    parts = np.stack([rng.binomial(wholes.astype(int), p) for p in (0.1, 0.5)], axis=1).astype(float)
    low, high = ratio_intervals(parts, wholes, seed=3, resamples=4000, level=0.9)
    drawn = np.random.default_rng(99).integers(0, 40, size=(20_000, 40))
    for column in (0, 1):
        ratios = parts[drawn, column].sum(axis=1) / wholes[drawn].sum(axis=1)
        expected = np.quantile(ratios, [0.05, 0.95])
        assert np.allclose([low[column], high[column]], expected, atol=0.02)
    again = ratio_intervals(parts, wholes, seed=3, resamples=4000, level=0.9)
    assert (again[0] == low).all() and (again[1] == high).all()


def test_ratio_intervals_do_not_depend_on_how_many_are_drawn_at_once(monkeypatch):
    parts, wholes = np.array([[1.0], [0.0], [2.0]]), np.array([1.0, 1.0, 3.0])
    whole = ratio_intervals(parts, wholes, resamples=200)
    monkeypatch.setattr(statistics, "_CELLS", 7)
    assert np.array_equal(whole, ratio_intervals(parts, wholes, resamples=200))


def test_ratio_intervals_of_nothing_and_of_one():
    assert np.isnan(ratio_intervals(np.zeros((0, 2)), np.zeros(0))).all()
    assert np.isnan(ratio_intervals(np.zeros((3, 2)), np.zeros(3))).all(), "nothing is missing"
    assert np.array_equal(ratio_intervals(np.array([[1.0]]), np.array([4.0])), [[0.25], [0.25]])
    low, high = ratio_intervals(np.array([[1.0], [0.0]]), np.array([1.0, 0.0]))
    assert (low, high) == (1.0, 1.0), "resamples in which nothing is missing have no share"


# -- what a run missed

OTHER = {"k": 3, "rank": 3, "query": "q", "runs": ["s"]}
LOST_ROWS = [
    row("a", "p0", dense={"T1": witness(3), "T2": witness(1)}),
    row("a", "p1", hop=2, dense={"T0": witness(10)}, bm25={"T0": witness(1)}),
    row("b", "p2", dense={"issued": witness(1, "r")}),
    row("b", "p3", hop=2, dense={"issued": witness(1, "r", others=(OTHER,))}),
    row("b", "p1", hop=3),
]


def asking(*queries: str, tool: str = "retrieve") -> tuple[Event, ...]:
    return tuple(Event(1, "retrieve", {"tool": tool, "query": q, "chunk_ids": []}) for q in queries)


DENSE = Asked(("dense",), 5)


def fates(records: list[RunRecord], searches: Asked, run: str = "r") -> dict[tuple[str, str], tuple[str, str | None]]:
    lost = missing(run, records, searches, LOST_ROWS, GOLD, PASSAGES, CHUNKS, RULES)
    return {(m["qid"], m["passage"]): (m["fate"], m["tier"]) for m in lost}


def test_missing_passages_are_told_apart():
    found = fates([record("a"), record("b", ("p1",), events=asking("where is Arle"))], DENSE)
    assert found == {
        ("a", "p0"): ("never_asked", "T1"),  # the lowest tier, not the one with the best rank
        ("a", "p1"): ("no_certificate", None),  # dense finds it at 10 only, and BM25 is not this run's tool
        ("b", "p2"): ("no_certificate", None),  # only its own query finds it
        ("b", "p3"): ("asked_not_returned", None),  # it named the title, whatever certifies it
    }
    assert fates([record("b", ("p1", "p3"))], DENSE, run="t")["b", "p2"] == ("never_asked", "issued")
    assert fates([record("b", ("p1", "p2"))], DENSE)["b", "p3"] == ("never_asked", "issued"), "another run's query"


ABOUT = "Which thing lies at The Salt Road?"


@pytest.mark.parametrize(
    ("query", "fate"),
    [
        (ABOUT, "never_asked"),  # the seed retrieval
        (f"Who was Ines Havel? For: {ABOUT}", "never_asked"),  # the register's: the question alone names The Salt Road
        ("who was ines havel? for: which  thing lies at the salt road", "never_asked"),  # as an agent copies it
        (f"Where is The Salt Road? For: {ABOUT}", "asked_not_returned"),
        (f"Who knew the step? For: {ABOUT}", "never_asked"),  # one of the step's four words, the others the question's
        (f"Which step was salt a thing of? For: {ABOUT}", "asked_not_returned"),  # three of the four
        ("Where is The Salt Road?", "asked_not_returned"),
    ],
)
def test_what_only_the_question_says_is_not_asked_for(query, fate):
    """Step of p0: step, salt, road, thing; with the question's words in each query everything would be asked for."""
    made = record("a", ("p1",), question=ABOUT, events=asking(query))
    assert fates([made], DENSE)["a", "p0"][0] == fate


def test_a_run_with_and_one_without_the_question_in_its_queries_are_judged_alike():
    """A composed query of the register and the bare one of an agent have the same fate, whatever the question names."""
    for own in ("Who was Ines Havel?", "Where is The Salt Road?", "arle", "step about a salt thing"):
        alone, composed = (
            fates([record("a", ("p1",), question=ABOUT, events=asking(q))], DENSE) for q in (own, f"{own} For: {ABOUT}")
        )
        assert alone == composed, own


def test_a_passage_is_asked_for_by_the_very_record_that_missed_it():
    """Seed 1 asked for p0, and even got it: seed 0 did not ask."""
    events = asking("about The Salt Road")
    pair = [record("a", ("p1",)), record("a", ("p0", "p1"), seed=1, events=events), record("a", seed=2, events=events)]
    lost = missing("r", pair, probes.asked(pair, 6), LOST_ROWS, GOLD, PASSAGES, CHUNKS, RULES)
    found = {(m["seed"], m["passage"]): m["fate"] for m in lost}
    assert (found[0, "p0"], found[2, "p0"]) == ("never_asked", "asked_not_returned") and (1, "p0") not in found


def test_lag_searches_densely_and_lexical_vanilla_with_bm25():
    """By the params, not the event: vanilla RAG records both its searches as ``retrieve``."""
    lag = [record("a", ("p1",), events=asking("x", tool="lag"))]
    searches = probes.asked(lag, 6)
    assert (searches.tools, reachability.excuse(searches)) == (("dense",), None)
    plain = [record("a", ("p0",), events=asking("x"))]
    assert probes.asked(plain, 6).tools == ("dense",)
    lexical = probes.asked(plain, 6, lexical=True)
    assert lexical.tools == ("bm25",) and fates(plain, lexical) == {("a", "p1"): ("never_asked", "T0")}


def test_a_method_either_records_a_known_tool_or_searches_an_index_of_its_own():
    """Searches under a method's own name are of its own index, LAG's excepted."""
    under_own_name = 0
    for name in registry.names():
        method = registry.find(name)
        if re.search(r"(tool=|, )self\.name\)", inspect.getsource(inspect.getmodule(method))):
            under_own_name += 1
            assert bool(getattr(method, "structure", None)) is (name not in probes.SEARCHES), name
    assert under_own_name >= 8
    assert {state.NAMES[code] for code in state.RETRIEVING} <= set(probes.SEARCHES)


def test_the_deepest_certified_k():
    assert [reachability.deepest((1, 3, 5, 10), most) for most in (0, 1, 4, 5, 99)] == [1, 1, 3, 5, 10]


def test_a_run_is_not_held_to_a_longer_list_than_its_own_and_an_agent_may_ask_for_any():
    assert [reachability.depth_of(Asked(("dense",), d), RULES) for d in (1, 2, 3, 4, 5, 8, 20)] == [1, 1, 3, 3, 5, 5, 5]
    assert reachability.depth_of(Asked(("dense",), 0), RULES) == 1, "no search of it ever returned a hit"
    assert reachability.depth_of(Asked(probes.AGENT, None), RULES) == 5
    shallow = Asked(("dense",), 1)
    assert fates([record("a", ("p1",))], shallow) == {("a", "p0"): ("never_asked", "T2")}


def test_errors_and_unmapped_passages_are_left_out_and_seeds_counted_each():
    silent = Asked(("dense",), 5)
    assert fates([record("a", status="error", error="X: y")], silent) == {}
    gone = ChunkMap([Chunk("p0", "x", (Span("p0", 0, 1),))])
    lost = missing("r", [record("a"), record("a", seed=1)], silent, LOST_ROWS, GOLD, PASSAGES, gone, RULES)
    assert [(m["passage"], m["seed"]) for m in lost] == [("p0", 0), ("p0", 1)]
    assert missing("r", [record("c")], silent, LOST_ROWS, GOLD, PASSAGES, CHUNKS, RULES) == [], "no gold"
    with pytest.raises(DataError, match="certify` again"):
        missing("r", [record("a")], silent, [], GOLD, PASSAGES, CHUNKS, RULES)


def test_a_split_adds_up_and_has_its_groups():
    records = [record("a"), record("b", ("p1",), events=asking("where is Arle")), record("c")]
    lost = missing("r", records, DENSE, LOST_ROWS, GOLD, PASSAGES, CHUNKS, RULES)
    found = split(lost, records, GOLD, LOST_ROWS, **BOOTSTRAP)
    whole = found["all"]
    assert (whole["questions"], whole["with_missing"], whole["missing"]) == (3, 2, 4)
    assert [whole[fate]["count"] for fate in reachability.FATES] == [1, 1, 2]
    assert whole["never_asked"]["share"] == whole["askable"]["share"] == 0.25 and whole["tiers"]["T1"] == 1
    lost[0]["tier"] = "T3"
    later = split(lost, records, GOLD, LOST_ROWS, **BOOTSTRAP)
    assert later["all"]["askable"]["count"] == 0, "nobody could have asked that"
    assert whole["never_asked"]["low"] == 0.0 and whole["never_asked"]["high"] == 0.5
    assert (found["2-hop"]["questions"], found["3-hop"]["questions"]) == (2, 1)
    assert [found[f"hop {n}"]["questions"] for n in (1, 2)] == [2, 2], "c has no gold passage"
    none = [record("a"), record("b"), record("c")]
    lost = missing("r", none, DENSE, LOST_ROWS, GOLD, PASSAGES, CHUNKS, RULES)
    assert split(lost, none, GOLD, LOST_ROWS, **BOOTSTRAP)["hop 3"]["questions"] == 1, "b alone has a third hop"
    assert found["hop 2"]["missing"] == 2 and found["matched gold"]["questions"] == 1
    for group in found.values():
        assert sum(group[fate]["count"] for fate in reachability.FATES) == group["missing"]


@pytest.mark.parametrize("records", [[], [record("c")], [record("a", ("p0", "p1"))]])
def test_a_split_of_nothing_missing_has_no_share(records):
    lost = missing("r", records, Asked(("dense",), 5), LOST_ROWS, GOLD, PASSAGES, CHUNKS, RULES)
    found = split(lost, records, GOLD, LOST_ROWS, **BOOTSTRAP)
    assert list(found) == ["all"]
    assert found["all"]["never_asked"] == {"count": 0, "share": None, "low": None, "high": None}
    assert found["all"]["questions"] == len(records)


def test_runs_that_can_not_be_told_apart_say_why():
    assert reachability.excuse(Asked()) == "no search recorded"
    assert "its own" in reachability.excuse(Asked(("dense",), 3, own_index=True))
    assert reachability.excuse(Asked(("dense",), 3)) is None
    event = Event(1, "retrieve", {"tool": "kgp", "query": "x", "chunk_ids": []})
    assert "its own" in reachability.excuse(probes.asked([record("a", events=(event,))], 6))
