"""The page reachability: tables and figure from a summary of invented rows, and what they say before anything ran."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import report_fixture
from matplotlib.text import Text

from multihop import jsonl
from multihop.analysis import probes, reachability
from multihop.data import splits
from multihop.errors import DataError
from multihop.evaluation.support import ChunkMap
from multihop.report import reachability as page
from multihop.report.figure_reachability import figure_reachability
from multihop.report.load import Report

TABLES = (page.by_tier, page.by_depth, page.by_index, page.lost, page.witnesses)
TOOLS, KS = list(page.TOOL_LABELS), [1, 3, 5, 10]
BOOTSTRAP = {"resamples": 99}


def certificate(i: int, passage: str) -> dict[str, Any]:
    """Every fourth passage has none; of the others T2 holds from 1 on, T1 from 5 on, T0 from 10 on."""
    found = {tier: {"k": k, "rank": k, "query": f"about {passage}"} for tier, k in (("T0", 10), ("T1", 5), ("T2", 1))}
    found["issued"] = {"k": 3, "rank": 2, "query": "q", "runs": ["arag"], "others": []}
    return {tool: {} if i % 4 == 3 else found for tool in TOOLS}


def certify(root: Path) -> None:
    report = Report(root)
    out: dict[str, Any] = {"rules": report.params.certificates.model_dump(mode="json"), "shares": {}, "runs": {}}
    rules = reachability.Rules()
    for dataset in report.datasets:
        folder = root / "data/prepared" / dataset
        gold = {g.id: replace(g, exact=int(g.id[-1]) % 2 == 0) for g in splits.gold(folder)}
        pairs = [(g, p) for g in gold.values() for p in g.supporting]
        rows = [
            {"qid": g.id, "passage": p, "hop": g.supporting.index(p) + 1, "hops": g.hops, "type": g.type,
             "gold_exact": g.exact, "mapped": True, "certificates": certificate(i, p)}
            for i, (g, p) in enumerate(pairs)
        ]  # fmt: skip
        for index in ("minilm-passages", "lsa-passages"):
            jsonl.write(root / page.FOLDER / dataset / f"{index}.jsonl", rows)
            shares = reachability.shares(rows, TOOLS, KS, 5, **BOOTSTRAP)
            out["shares"].setdefault(dataset, {})[index] = shares
        for run in ("direct", "arag"):
            records = report.records(run, dataset, "minilm")
            searches = probes.asked(records, 6)
            entry: dict[str, Any] = {"index": "minilm-passages", "excuse": reachability.excuse(searches)}
            if entry["excuse"] is None:
                passages = {p.id: p for p in splits.passages(folder)}
                chunks = ChunkMap(splits.chunks(folder, "passages"))
                lost = reachability.missing(run, records, searches, rows, gold, passages, chunks, rules)
                entry |= {"tools": list(searches.tools), "k": reachability.depth_of(searches, rules)}
                entry["groups"] = reachability.split(lost, records, gold, rows, **BOOTSTRAP)
            out["runs"].setdefault(dataset, {})[run] = {"minilm": entry}
    jsonl.write_json(root / page.SUMMARY, out)


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Report:
    root = report_fixture.build(tmp_path_factory.mktemp("project"), certificates={"corpora": ["passages"]})
    certify(root)
    return Report(root)


def test_shares_are_counted_over_gold_passages(report):
    frame = page.by_tier(report).frame
    line = frame.loc[("HotpotQA", "all", page.TOOL_LABELS["semantic_search"])]
    assert line["gold passages"] == "8"
    shown = [line[page.TIER_LABELS[tier]].split()[0] for tier in (*probes.TIERS, "any")]
    assert shown == ["0.0", "75.0", "75.0", "75.0", "0.0", "75.0"], "6 of 8; T0 needs k = 10"
    assert "[" in line[page.TIER_LABELS["T1"]]
    by_depth = page.by_depth(report).frame.loc[("HotpotQA", page.TOOL_LABELS["bm25"])]
    assert by_depth["gold passages", ""] == "8" and set(page.by_index(report).frame["gold passages"]) >= {"8"}
    assert [by_depth[page.TIER_LABELS["T1"], f"k = {k}"] for k in KS] == ["0.0", "0.0", "75.0", "75.0"]


def test_positions_kinds_of_gold_and_indexes_have_their_lines(report):
    positions = page.by_tier(report, "position").frame.index.get_level_values(1)
    assert {"hop 1", "hop 2", "hop 3", "hop 4"} <= set(positions)
    kinds = page.by_tier(report, "gold").frame.index.get_level_values(1)
    assert set(kinds) == {"labelled gold", "matched gold"}
    assert list(page.by_index(report).frame.loc["MuSiQue"].index) == [
        "all-MiniLM-L6-v2, passages", "LSA (stand-in for Qwen3-Embedding-0.6B), passages",
    ]  # fmt: skip


def test_fates_add_up_and_a_run_without_searches_is_named_below(report):
    table = page.lost(report)
    assert set(table.frame.index.get_level_values("run")) == {"A-RAG"}
    assert "no search recorded: Direct" in table.note
    for line in table.frame.to_dict("records"):
        assert sum(float(line[page.FATE_LABELS[fate]].split()[0]) for fate in reachability.FATES) == pytest.approx(100)
    hops = page.lost(report, "hops").frame
    missing = hops["missing"].astype(int).groupby(level="dataset").sum()
    assert missing.to_dict() == table.frame["missing"].astype(int).groupby(level="dataset").sum().to_dict()


def test_what_a_run_missed_stands_apart_by_kind_of_gold(report):
    whole = page.lost(report).frame["missing"].astype(int)
    kinds = page.lost(report, "gold").frame
    assert set(kinds.index.get_level_values("group")) == {"labelled gold", "matched gold"}
    missing = kinds["missing"].astype(int).groupby(level=["dataset", "run"]).sum().to_dict()
    assert missing == whole.groupby(level=["dataset", "run"]).sum().to_dict()


def test_gold_of_one_kind_is_said_in_a_sentence(report):
    alike = Report(report.root)
    for indexes in page.summary(alike)["shares"].values():
        for groups in indexes.values():
            groups.pop("matched gold", None)
    for shown in (page.by_tier(alike, "gold"), page.lost(alike, "gold")):
        assert "of one kind" in shown.text


def test_witnesses_are_named(report):
    frame = page.witnesses(report, questions=1).frame
    assert set(frame["query"]) > {"q", "about p0"} and "A-RAG" in set(frame["asked by"])


@pytest.mark.parametrize("table", TABLES, ids=lambda t: t.__name__)
def test_every_table_says_that_no_certificate_proves_nothing_and_points_to_the_head(report, table):
    shown = table(report)
    assert "see the note at the page's head" in shown.note
    assert table is page.witnesses or page.PROVES_NOTHING in shown.caption


def test_the_figure_counts_passages_by_lowest_tier(report):
    shown = [t.get_text() for t in figure_reachability(report).findobj(Text)]
    assert "6" in shown, "HotpotQA's six, issued at k = 3"
    assert any("proves nothing" in t for t in shown) and any("passages, " in t and " question" in t for t in shown)


@pytest.mark.parametrize("table", TABLES, ids=lambda t: t.__name__)
def test_before_the_stage_ran_everything_says_so(tmp_path, table):
    root = report_fixture.build(tmp_path, runs={"direct": report_fixture.PARAMS["runs"]["direct"]})
    report = Report(root)
    assert page.NOT_YET in table(report).frame.to_string()
    assert any(page.NOT_YET in t.get_text() for t in figure_reachability(report).findobj(Text))
    (root / page.SUMMARY).write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match="multihop certify"):
        page.by_tier(Report(root))
