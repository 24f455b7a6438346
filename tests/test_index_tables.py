"""What indexes cost and hold, Table 1's structured rows and their failures, on invented facts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import report_fixture
import yaml

from multihop import jsonl
from multihop.errors import ConfigError, DataError
from multihop.report import index_tables, tables
from multihop.report.dynakrag_training import controllers
from multihop.report.failure_tables import failure_overview
from multihop.report.load import Report
from multihop.types import Event, RunRecord

REPOSITORY = Path(__file__).parents[1]
DATASETS = list(report_fixture.TYPES)
BLOCKS: dict[str, Any] = {
    "structures": {
        "openie": {"structure": "openie", "settings": ["minilm"]},
        "entities": {"structure": "entities", "settings": ["minilm"]},
        "tree": {"structure": "tree", "settings": ["minilm"]},
    },
    "graphs": {
        "knowledge_graph": {"structure": "knowledge_graph", "over": "openie", "settings": ["minilm"]},
        "passage_graph": {"structure": "passage_graph", "over": "entities", "settings": ["minilm"]},
    },
    "structured_runs": {
        run: {"method": run, "label": label, "structure": index, "settings": ["minilm"]}
        for run, label, index in (
            ("kgp", "KGP", "passage_graph"),
            ("g_retriever", "G-Retriever (hard prompt)", "knowledge_graph"),
            ("raptor", "RAPTOR", "tree"),
        )
    },
    "learned_runs": {
        "gfm_rag": {
            "method": "gfm_rag",
            "label": "GFM-RAG (network trained here)",
            "structure": "knowledge_graph",
            "trained": "gfm",
            "settings": ["minilm"],
        }
    },
    "networks": {"gfm": {"structure": "knowledge_graph", "setting": "minilm", "checkpoint": "released"}},
}
OPENIE = {
    "passages": 12, "entities": 30, "mentions": 1041, "triples": 25, "distinct_triples": 24, "malformed": 2,
    "failed_steps": 1, "passages_without_triples": 3,
}  # fmt: skip


def meta(structure: str, statistics: dict[str, Any], calls: int = 0, corpus: str = "c", **more: Any) -> dict[str, Any]:
    cost = {"calls": calls, "prompt_tokens": 1000 * calls, "completion_tokens": 100 * calls}
    return {
        "identity": {"structure": structure, "corpus": corpus},
        "model": report_fixture.MODEL if calls else None,
        "statistics": statistics,
        "estimated": {key: 2 * n for key, n in cost.items()},
        "actual": cost,
        "repairs": 0,
        "bytes": 4321,
    } | more


def write(root: Path, entry: str, content: dict[str, Any], datasets: list[str] = DATASETS) -> None:
    for dataset in datasets:
        jsonl.write_json(root / "results/structures" / entry / dataset / "minilm.json", content)


def note_seconds(root: Path, **content: Any) -> None:
    jsonl.write_json(root / "data/recordings/index_seconds.json", {"machine": "two old cores", **content})


@pytest.fixture
def root(built, tmp_path) -> Path:
    shutil.copytree(built, tmp_path / "p")
    return tmp_path / "p"


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """OpenIE, entities and both graphs are built, the tree is not; no structured run has run."""
    folder = report_fixture.build(tmp_path_factory.mktemp("project"))
    shutil.copy(REPOSITORY / "prices.yaml", folder)
    jsonl.write_text(folder / "params.yaml", yaml.safe_dump({**report_fixture.PARAMS, **BLOCKS}, sort_keys=False))
    write(folder, "openie", meta("openie", OPENIE, calls=24))
    write(folder, "entities", meta("entities", {"passages": 12, "entities": 19, "mentions": 44}))
    graph = {"phrases": 30, "relations": 9, "facts": 24, "nodes": 42, "edges": 80, "components": 3, "mean_degree": 3.81}
    write(folder, "knowledge_graph", meta("knowledge_graph", {**graph, "isolated_passages": 2}))
    write(folder, "passage_graph", meta("passage_graph", {"nodes": 12, "links": 60, "isolated": 5}))
    return folder


# -- cost


def test_costs_are_those_of_the_meta_files(root):
    frame = index_tables.index_costs(Report(root)).frame
    row = frame.loc[("openie", "MuSiQue", "all-MiniLM-L6-v2")]
    assert (row["calls", "estimated"], row["calls", "actual"]) == ("48", "24")
    assert (row["prompt tokens", "actual"], row["completion tokens", "actual"]) == ("24,000", "2,400")
    assert row["bytes", "actual"] == "4,321" and row["seconds", "actual"] == "—"
    assert (row["USD", "actual"], row["model", ""]) == ("0 (local)", report_fixture.MODEL)
    assert row["USD", "at gpt-4o-mini's price"] == f"{(0.15 * 24000 + 0.6 * 2400) / 1e6:.4f}"
    free = frame.loc[("entities", "MuSiQue", "all-MiniLM-L6-v2")]
    assert (free["calls", "actual"], free["USD", "actual"], free["model", ""]) == ("0", "0", "none asked")
    tree = frame.loc[("tree", "HotpotQA", "all-MiniLM-L6-v2")]
    assert tree["model", ""].startswith("not run: no index tree of hotpotqa / minilm")
    assert tree["calls", "actual"] == ""
    assert len(frame) == 5 * 3


def test_a_model_behind_an_api_costs_its_price_and_an_unknown_one_is_an_error(root):
    params = yaml.safe_load((root / "params.yaml").read_text())
    params["endpoints"]["embedded"] = {"kind": "openai"}
    jsonl.write_text(root / "params.yaml", yaml.safe_dump(params))
    write(root, "openie", meta("openie", OPENIE, calls=24, model="gpt-4o-mini"))
    frame = index_tables.index_costs(Report(root)).frame
    assert set(frame.loc["openie"]["USD", "actual"]) == {"0.0050"}
    assert set(frame.loc["openie"]["USD", "estimated"]) == {"0.0101"}
    write(root, "openie", meta("openie", OPENIE, calls=24, model="nobody-1"))
    with pytest.raises(ConfigError, match="no price for model 'nobody-1'"):
        index_tables.index_costs(Report(root))


def test_a_shared_corpus_is_said_to_be_paid_once_and_another_one_is_not(root):
    shared = "HotpotQA, 2WikiMultiHopQA and MuSiQue share one corpus"
    assert index_tables.index_costs(Report(root)).note.count(shared) == 1
    for entry in BLOCKS["structures"] | BLOCKS["graphs"]:
        for n, dataset in enumerate(DATASETS):
            write(root, entry, meta(entry, OPENIE, corpus=f"corpus {min(n, 1)}"), [dataset])
    note = index_tables.index_costs(Report(root)).note
    assert "2WikiMultiHopQA and MuSiQue share one corpus" in note and "HotpotQA" not in note


def test_seconds_stand_where_they_were_measured(root):
    measured = {"openie": {"hotpotqa/minilm": {"seconds": 1234.56, "live_calls": 24}}}
    note_seconds(root, profile="demo", seconds=measured)
    table = index_tables.index_costs(Report(root))
    column = table.frame.loc["openie"]["seconds"]
    assert list(column["actual"]) == ["1,234.6", "—", "—"]
    assert list(column["calls answered live"]) == ["24", "—", "—"]
    assert "while the recording was made, on two old cores" in table.note
    assert Report(root).of("dynakrag").index_seconds["seconds"] == measured


def test_another_profiles_seconds_are_not_shown(root):
    measured = {"openie": {"hotpotqa/minilm": {"seconds": 1234.56, "live_calls": 24}}}
    note_seconds(root, profile="executionrag-paper", seconds=measured)
    table = index_tables.index_costs(Report(root))
    assert set(table.frame["seconds", "actual"]) <= {"—", ""} and "seconds were not measured" in table.note
    note_seconds(root, seconds=measured)
    with pytest.raises(DataError, match=r"index_seconds\.json: no profile"):
        index_tables.index_costs(Report(root))


def test_a_meta_file_without_its_cost_is_named(root):
    broken = meta("openie", OPENIE)
    del broken["actual"]
    write(root, "openie", broken, ["musique"])
    with pytest.raises(DataError, match=r"openie.musique.minilm\.json: no actual"):
        index_tables.index_costs(Report(root))


# -- what they hold


def test_statistics_stand_under_their_columns_and_none_is_lost(root):
    frame = index_tables.graph_statistics(Report(root)).frame
    assert {d for name, d, _ in frame.index if name != "tree"} == {"HotpotQA = 2WikiMultiHopQA = MuSiQue"}
    rows = {name: row for (name, _, _), row in frame.iterrows()}
    openie, graph, passages = rows["openie"], rows["knowledge_graph"], rows["passage_graph"]
    assert list(openie[["entities", "triples", "malformed", "failed steps"]]) == ["30", "25", "2", "1"]
    assert openie["further"] == "distinct triples: 24, mentions: 1,041, passages without triples: 3"
    assert openie["nodes"] == openie["isolated passages"] == ""
    assert (graph["entities"], graph["triples"], graph["isolated passages"]) == ("30", "24", "2")
    assert graph["further"] == "mean degree: 3.81, relations: 9"
    assert (passages["edges"], passages["isolated passages"], passages["further"]) == ("60", "5", "")
    assert rows["tree"]["passages"].startswith("not run")


def test_datasets_with_other_statistics_have_rows_of_their_own(root):
    write(root, "openie", meta("openie", {**OPENIE, "triples": 26}), ["musique"])
    frame = index_tables.graph_statistics(Report(root)).frame
    assert [d for n, d, _ in frame.index if n == "openie"] == ["HotpotQA = 2WikiMultiHopQA", "MuSiQue"]


def test_the_data_card_counts_entities_and_triples(root):
    shown = tables.data_cards(Report(root)).frame["MuSiQue"]
    assert shown["entities (openie)"] == "30 (1,041 mentions)"
    assert shown["triples (openie)"] == "24 (25 in all; 2 malformed, 1 failed steps)"
    assert shown["entities (entities)"] == "19 (44 mentions)"
    shutil.rmtree(root / "results/structures")
    assert tables.data_cards(Report(root)).frame["MuSiQue"]["triples (openie)"].startswith("not run")


def test_fallbacks_are_counted_by_question_and_by_reason(root):
    ways = [["no_seeds"], [], ["no_seeds", "no_fact_kept"]]
    records = [
        RunRecord(
            str(i), "musique", "minilm", "kgp", 0, "h", "c", "q", "a", "a", "short", "ok", "answered",
            events=tuple(Event(1, "fallback", {"what": w, "to": "dense"}) for w in found),
        )
        for i, found in enumerate(ways)
    ]  # fmt: skip
    jsonl.write(root / "results/runs/kgp/musique/minilm.jsonl", [r.to_json() for r in records])
    frame = index_tables.fallbacks(Report(root)).frame
    row = frame.loc[("KGP", "MuSiQue", "all-MiniLM-L6-v2")]
    assert list(row) == ["3", "2", "no_fact_kept 1, no_seeds 2"]
    assert frame.loc[("RAPTOR", "MuSiQue", "all-MiniLM-L6-v2")].iloc[0] == "not run"


# -- the systems


def test_every_system_of_table_1_has_a_row_or_is_named(root):
    report = Report(root)
    table = tables.table_1(report)
    contain = table.frame["Contain", "ours [95 %]"]
    assert contain["MuSiQue", "KGP"] == "not run: no scores of KGP on MuSiQue / all-MiniLM-L6-v2 yet (make repro)"
    assert ("MuSiQue", "G-Retriever (hard prompt)") in table.frame.index
    assert "LightRAG, HippoRAG, HippoRAG 2, LinearRAG" in table.note
    # Structured runs are asked for under the first embedder alone.
    second = tables.table_1(report, "second")
    assert "KGP, G-Retriever (hard prompt), RAPTOR" in second.note and ("MuSiQue", "KGP") not in second.frame.index


def test_the_projects_own_params_have_every_system_of_table_1():
    report = Report(REPOSITORY)
    runs = {report.expected.systems[c.system].run for c in report.expected.cells("Table 1")} - {None}
    assert runs <= set(report.params.runs)


@pytest.mark.parametrize("label", ["released checkpoint", "trained on 20 train questions"])
def test_the_network_is_what_its_card_says(root, label):
    assert ("MuSiQue", "GFM-RAG") in tables.table_1(Report(root)).frame.index
    jsonl.write_json(root / "results/trained/gfm/musique/card.json", {"label": label})
    report = Report(root)
    assert ("MuSiQue", f"GFM-RAG ({label})") in tables.table_1(report).frame.index
    assert report.label_run("gfm_rag") == f"GFM-RAG ({label})"
    # It is no controller, and paper 2's tables leave it out.
    assert report.trained == {} and "gfm" not in str(controllers(report.of("dynakrag")).frame)
    jsonl.write_json(root / "results/trained/gfm/musique/card.json", {})
    with pytest.raises(DataError, match="no label"):
        Report(root).label_run("gfm_rag")


def test_failures_have_every_run_before_and_after_it_ran(root):
    place = ("model judge", "MuSiQue", "all-MiniLM-L6-v2", "KGP")
    table = failure_overview(Report(root))
    missing = "not run: no scores of KGP on MuSiQue / all-MiniLM-L6-v2 yet (make repro)"
    assert table.frame.loc[place, "failures"] == missing
    assert "no such run in params.yaml): IRCoT, LightRAG" in table.note
    for kind in ("scores", "failures"):
        folder = root / "results" / kind / "musique/minilm"
        shutil.copy(folder / "vanilla_k5.jsonl", folder / "kgp.jsonl")
    frame = failure_overview(Report(root)).frame
    assert list(frame.loc[place]) == list(frame.loc[(*place[:3], "Vanilla RAG top-5")])
    assert frame.loc[place, "failures"].endswith(" of 4")
    assert {"3b", "missing evidence (symmetric)"} <= set(frame.columns)


def test_what_counts_as_retrieved_is_said_for_the_runs_that_are_there(root):
    frame = index_tables.provenance(Report(root)).frame
    assert list(frame.index) == ["KGP", "G-Retriever (hard prompt)", "RAPTOR", "every other system"]
    assert "every passage visited" in frame.loc["KGP", "counted as retrieved"]
    assert "leaves only" in frame.loc["RAPTOR", "counted as retrieved"]


@pytest.mark.parametrize("name", ["index_costs", "graph_statistics", "provenance"])
def test_a_project_without_indexes_shows_the_tables_all_the_same(root, name):
    jsonl.write_text(root / "params.yaml", yaml.safe_dump(report_fixture.PARAMS))
    report = Report(root)
    assert getattr(index_tables, name)(report)._repr_html_()
    assert index_tables.card_rows(report, "musique") == {}
    shutil.copy(REPOSITORY / "params.yaml", root)
    assert "not run" in repr(index_tables.index_costs(Report(root)))
