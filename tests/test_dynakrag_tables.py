"""Paper 2's expected figures, numbers, tables and coverage, on invented results (report_fixture.build_dynakrag)."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import dynakrag_results
import nbformat
import pytest
import report_fixture
import yaml

from multihop import jsonl
from multihop.errors import ConfigError
from multihop.evaluation.aggregate import per_question
from multihop.report import contrasts, coverage, dynakrag_costs, dynakrag_tables, dynakrag_training, expected
from multihop.report.expected import Cell
from multihop.report.load import Report
from multihop.report.values import Measured, measure

REPOSITORY = Path(__file__).parents[1]
TABLES = {
    name: getattr(module, name)
    for module in (dynakrag_tables, dynakrag_costs, dynakrag_training)
    for name in module.__all__
    if name != "table_1"
}
TABLES |= {f"table_1 {d}": lambda report, d=d: dynakrag_tables.table_1(report, d) for d in report_fixture.TYPES}
OURS = dynakrag_tables.OURS
FIRST_ROWS = f"{report_fixture.MODEL}, all-MiniLM-L6-v2 (stands for Qwen2.5-7B-Instruct)"


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return report_fixture.build_dynakrag(tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="module")
def report(root) -> Report:
    return Report(root, "dynakrag")


@pytest.fixture(scope="module")
def nothing(root, tmp_path_factory) -> Report:
    """A project of which nothing has run."""
    folder = tmp_path_factory.mktemp("nothing")
    shutil.copytree(root / "expected", folder / "expected")
    shutil.copy(root / "params.yaml", folder)
    return Report(folder, "dynakrag")


@pytest.fixture(scope="module")
def paper() -> expected.Expected:
    return expected.load(REPOSITORY, "dynakrag")


def cell(system: str, metric: str, *, item="Table 1", dataset="musique", role="first", group="all") -> Cell:
    return Cell(item, dataset, system, role, metric, group)


def printed(paper, dataset: str, system: str, role: str = "first", metric: str = "f1", group: str = "all") -> float:
    return paper.lookup(dataset, system, role, metric, group).number


# -- what the paper prints


def test_every_figure_of_the_text_is_there(paper):
    said = {int(n) for entry in [*paper.values, *paper.setup] for n in re.findall(r"_(\d{3})", entry.id)}
    assert said == set(range(1, 69))
    assert paper.numbered == ["Table 1", "Table 2", *(f"Figure {n}" for n in range(1, 6))]
    table_1 = paper.cells("Table 1")
    assert len(table_1) == 27 * 9 and all(paper.lookup(*c.key) for c in table_1)
    assert all(paper.lookup(*c.key) for c in paper.cells("Table 2"))


def test_the_papers_figures_agree_with_each_other(paper):
    """Which also finds a digit that was copied wrong."""
    baselines = paper.systems["strongest"].best_of
    cuts = []
    for dataset in report_fixture.TYPES:
        for role in paper.own.roles:
            gain = printed(paper, dataset, "dynakrag", role) - max(printed(paper, dataset, s, role) for s in baselines)
            assert round(100 * gain, 2) == printed(paper, dataset, "dynakrag_minus_strongest", role, "f1_delta")
            tokens = [printed(paper, dataset, s, role, "total_tokens") for s in ("dynakrag", "s2g_rag")]
            cuts.append(100 * (1 - tokens[0] / tokens[1]))
        for variant in ("uniform_valid", "fixed_horizon", "no_sufficiency", "no_compression"):
            drop = printed(paper, dataset, "dynakrag") - printed(paper, dataset, f"dynakrag_{variant}")
            assert round(100 * drop, 2) == printed(paper, dataset, f"dynakrag_minus_{variant}", metric="f1_delta")
    assert [round(min(cuts) + 0.001, 1), round(max(cuts), 1)] == [10.1, 34.3]
    by_hops = {g: printed(paper, "musique", "data", metric="questions", group=g) for g in ("2-hop", "3-hop", "4-hop")}
    for system in ("dynakrag", "s2g_rag"):
        weighted = sum(n * printed(paper, "musique", system, group=g) for g, n in by_hops.items())
        assert round(weighted / sum(by_hops.values()), 4) == printed(paper, "musique", system)
    groups = [c.group for c in paper.cells("Questions") if c.dataset == "2wikimultihopqa"]
    by_type = {g: printed(paper, "2wikimultihopqa", "data", metric="questions", group=g) for g in groups}
    gains = {g: printed(paper, "2wikimultihopqa", "dynakrag_minus_fixed_k", metric="f1_delta", group=g) for g in groups}
    gap = 100 * (printed(paper, "2wikimultihopqa", "dynakrag") - printed(paper, "2wikimultihopqa", "fixed_k"))
    weighted = sum(n * gains[g] for g, n in by_type.items())
    assert weighted / sum(by_type.values()) == pytest.approx(gap, abs=0.01)
    assert paper.own.questions["musique"] == sum(by_hops.values())
    assert paper.own.questions["2wikimultihopqa"] == sum(by_type.values())


def test_figures_are_shown_as_the_paper_prints_them(paper):
    def text(*where) -> str:
        return paper.text(paper.lookup(*where))

    assert text("hotpotqa", "fixed_k", "second", "em") == "0.4170"
    assert text("hotpotqa", "fixed_k", "first", "prompt_tokens") == "1,892.3"
    assert paper.lookup("hotpotqa", "fixed_k", "first", "total_tokens") is None
    assert text("musique", "dynakrag_minus_strongest", "second", "f1_delta") == "1.01"
    assert text("musique", "dynakrag_minus_s2g_rag", "third", "total_tokens_cut") == "10.1–34.3"
    assert text("musique", "dynakrag_minus_s2g_rag", "third", "pareto_retrieval_calls") == "dominates"
    assert text("hotpotqa", "dynakrag_minus_uniform_fixed", "first", "f1_delta") == "> 0"
    assert text("2wikimultihopqa", "dynakrag", "first", "retrieval_calls", "inference") == "≈ 2.9"
    assert text("musique", "dynakrag_uniform_valid", "first", "retrieval_calls", "3-hop") == "2.25–2.62"
    # One number before the range that the abstract gives for all datasets.
    assert text("musique", "dynakrag_minus_no_compression", "first", "final_prompt_tokens_cut") == "71.5"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw["grids"][0]["rows"]["first"]["crag"].pop(), "p2_t1: first, crag: 8 numbers for 9 columns"),
        (lambda raw: raw["items"]["Figure 5"]["cells"][0].update(settings=["fourth"]), "unknown role 'fourth'"),
        (lambda raw: raw["systems"]["strongest"].update(best_of=["nobody"]), "systems.strongest: unknown 'nobody'"),
        (lambda raw: raw["values"][0].update(setting="fourth"), "p2_001: Main results declares no such cell"),
        (lambda raw: raw["own"].update(varies="judge"), "own.varies"),
    ],
)
def test_a_wrong_entry_is_named(tmp_path, change, message):
    raw = yaml.safe_load((REPOSITORY / "expected/dynakrag.yaml").read_text())
    change(raw)
    jsonl.write_text(tmp_path / "expected/dynakrag.yaml", json.dumps(raw))
    with pytest.raises(ConfigError, match=message):
        expected.load(tmp_path, "dynakrag")


# -- which setting stands for which backbone


def cast(tmp_path: Path, readers: dict[str, str], source: str = "demo", embedder: str = "minilm") -> Report:
    """A project with one setting per reader."""
    raw = {**report_fixture.PARAMS, "source": source, "judge": {"reader": next(iter(readers))}}
    raw["readers"] = {name: {"endpoint": "embedded", "model": model} for name, model in readers.items()}
    raw["settings"] = {name: {"reader": name, "embedder": embedder} for name in readers}
    raw["embedders"] = {embedder: {"preset": embedder}}
    jsonl.write_text(tmp_path / "params.yaml", yaml.safe_dump(raw))
    shutil.copytree(REPOSITORY / "expected", tmp_path / "expected")
    return Report(tmp_path, "dynakrag")


def test_the_demos_settings_stand_in_in_their_order(report):
    assert [report.setting(role) for role in report.roles] == ["minilm", "smollm", None]
    assert report.settings == ["minilm", "smollm", "lsa"]
    assert Report(report.root).settings == ["minilm", "lsa", "smollm"]
    note = report.note()
    for fact in (
        "generated world", f"{report_fixture.MODEL} in place of Qwen2.5-7B-Instruct",
        f"{dynakrag_results.SECOND_MODEL} in place of gpt-4o-mini", "all-MiniLM-L6-v2 in place of bge-large-en-v1.5",
        "n = 4 per dataset instead of 7,405 / 12,576 / 2,417", "12 train questions instead of 1,000",
        "2 trainings instead of 3", "HotpotQA, 2WikiMultiHopQA served by a controller trained on MuSiQue",
    ):  # fmt: skip
        assert fact in note, fact
    assert "judge" not in note
    with pytest.raises(ValueError, match="unknown role 'main' of a setting; known: first, second, third"):
        report.setting("main")


def test_the_papers_own_backbone_takes_its_role_wherever_it_stands(tmp_path):
    models = {"l": "meta-llama/Llama-3.1-8B-Instruct", "x": "another-7b", "g": "gpt-4o-mini-2024-07-18"}
    report = cast(tmp_path, models, source="hub", embedder="bge-large-en-v1.5")
    assert [report.setting(role) for role in report.roles] == ["x", "g", "l"]
    assert report.differences(role="third") == []
    assert report.differences(role="first") == ["reader another-7b in place of Qwen2.5-7B-Instruct"]


def test_two_settings_with_one_reader_are_one_backbone(tmp_path):
    report = cast(tmp_path, {"a": "same", "b": "same"})
    assert [report.setting(role) for role in report.roles] == ["a", None, None]


# -- our numbers


def test_accuracies_are_fractions_and_their_differences_points(report):
    metrics = report.metrics["musique"]["minilm"]
    for system in ("dynakrag", "ircot"):
        for metric in ("f1", "em", "total_tokens", "retrieval_calls", "final_prompt_tokens"):
            assert measure(report, cell(system, metric)).value == pytest.approx(metrics[system][metric])
    delta = measure(report, cell("dynakrag_minus_ircot", "f1_delta"))
    assert delta.value == pytest.approx(100 * (metrics["dynakrag"]["f1"] - metrics["ircot"]["f1"]))
    saved = measure(report, cell("dynakrag_minus_ircot", "total_tokens_cut"))
    kept = metrics["dynakrag"]["total_tokens"] / metrics["ircot"]["total_tokens"]
    assert saved.value == pytest.approx(100 * (1 - kept))
    assert saved.low <= saved.value <= saved.high and saved.n == 4


def test_the_interaction_is_paired_by_question(report):
    f1 = {s: per_question(report.score_rows("2wikimultihopqa", "minilm", s), "f1") for s in dynakrag_tables.FACTORIAL}
    full, uniform, fixed, neither = (f1[s] for s in list(f1)[:4])
    own = [100 * (full[q] - uniform[q] - fixed[q] + neither[q]) for q in full]
    measured = measure(report, cell("interaction", "f1_delta", dataset="2wikimultihopqa"))
    assert measured.value == pytest.approx(sum(own) / len(own))
    assert min(own) <= measured.low <= measured.value <= measured.high <= max(own)


def test_the_strongest_baseline_is_ours_not_the_papers(report):
    f1 = {s: measure(report, cell(s, "f1", dataset="hotpotqa")).value for s in dynakrag_tables.systems(report)[:-1]}
    name, measured = contrasts.best(report, cell("strongest", "f1", dataset="hotpotqa"))
    assert f1[name] == max(f1.values()) == measured.value
    own = measure(report, cell("dynakrag", "f1", dataset="hotpotqa")).value
    gain = measure(report, cell("dynakrag_minus_strongest", "f1_delta", dataset="hotpotqa"))
    assert gain.value == pytest.approx(100 * (own - max(f1.values()))) and "of the 8 that ran" in gain.remark
    rank = measure(report, cell("dynakrag", "f1_rank", dataset="hotpotqa"))
    assert rank.value == 1 + sum(v > own for v in f1.values()) and rank.remark.endswith("of 9 that ran")
    assert measure(report, cell("dynakrag", "f1_rank", role="second")).remark.endswith("of 3 that ran")


def test_groups_by_support_and_what_records_hold(report):
    rows = [r for r in report.score_rows("2wikimultihopqa", "minilm", "dynakrag") if r["support_total"] == 4]
    four = measure(report, cell("dynakrag", "retrieval_calls", dataset="2wikimultihopqa", group="4-support"))
    assert four.n == len(rows) == 1 and four.value == rows[0]["retrieval_calls"]
    records = report.records("dynakrag", "musique", "minilm")
    for metric, holds in (
        ("sufficiency_check", lambda e: e.kind == "operation" and e.data["action"] == "S"),
        ("stop_answer", lambda e: e.kind == "decision" and e.data["chosen"] == "T"),
        ("compress_answer_evidence", lambda e: e.kind == "compress"),
        ("gate", lambda e: e.kind == "decision" and e.data["gate"] is not None),
        ("ranking", lambda e: e.kind == "decision" and e.data["scores"] is not None),
    ):
        assert measure(report, cell("dynakrag", metric)).value == sum(any(map(holds, r.events)) for r in records)
    ends = [measure(report, cell("dynakrag", f"ended_{e}")).value for e in ("stop", "sufficient", "steps", "budget")]
    assert sum(ends) == 4
    assert measure(report, cell("data", "questions", group="3-hop")).value == 2


@pytest.mark.parametrize(
    ("gain", "extra", "verdict"),
    [(1, -1, 1), (1, 0, 1), (0, -1, 1), (-1, 1, -1), (-1, 0, -1), (0, 1, -1), (1, 1, 0), (-1, -1, 0), (0, 1e-12, 0)],
)
def test_dominance(gain, extra, verdict):
    assert contrasts.dominates(gain, extra) == verdict


@pytest.mark.parametrize(
    ("gain", "extra", "words"),
    [
        (1, -1, "dominates"), (1, 0, "dominates"), (-1, 1, "is dominated"), (1, 1, "neither"), (-1, -1, "neither"),
        (0, -1, "cheaper, F1 tied"), (1e-12, 1, "dearer, F1 tied"), (0, 0, "F1 and cost tied"),
    ],
)  # fmt: skip
def test_with_equal_f1_nobody_is_said_to_dominate(gain, extra, words):
    assert contrasts.verdict(gain, extra) == words


def all_the_same(root: Path, folder: Path, f1: float, but: dict[str, float] | None = None) -> Report:
    """A copy of the project where every run has this F1 and EM; ``but``: run -> another."""
    shutil.copytree(root, folder)
    for path in (folder / "results/scores").rglob("*.jsonl"):
        value = (but or {}).get(path.stem, f1)
        jsonl.write(path, [{**row, "f1": value, "em": value} for row in jsonl.read(path)])
    return Report(folder, "dynakrag")


def test_ties_are_named(root, tmp_path):
    report = all_the_same(root, tmp_path / "zero", 0.0)
    gains = dynakrag_tables.gains(report).frame.loc[(FIRST_ROWS, "HotpotQA")]
    assert gains["F1 rank", OURS] == gains["EM rank", OURS] == "1 (tied with 8) of 9 that ran"
    assert gains["strongest baseline, ours", ""] == "all tied at 0 (of the 8 that ran)"
    assert set(dynakrag_tables.table_1(report, "hotpotqa").frame.loc[FIRST_ROWS]["F1 rank", "ours"]) == {
        "1 (tied with 8) of 9"
    }
    against = dynakrag_costs.pareto(report).frame.loc[FIRST_ROWS]
    ours = [v for name in ("total tokens", "retrieval calls") for v in against[f"F1 and {name}", "ours"]]
    assert len(ours) == 48 and all(re.match("(cheaper|dearer), F1 tied|F1 and cost tied", v) for v in ours)
    assert "dominate" not in " ".join(ours)
    assert "dominates" in set(coverage.comparison(report).frame["paper"])
    assert "dominate" not in " ".join(coverage.comparison(report).frame["ours [95 %]"])
    report = all_the_same(root, tmp_path / "two", 0.25, {"ircot": 0.5, "crag": 0.5})
    strongest = dynakrag_tables.gains(report).frame.loc[(FIRST_ROWS, "HotpotQA")]["strongest baseline, ours", ""]
    assert strongest == "IRCoT and CRAG tied at 0.5 (of the 8 that ran; paired with IRCoT)"


def test_our_reader_is_named_first(report):
    assert dynakrag_tables.backbone(report, "second") == (
        f"{dynakrag_results.SECOND_MODEL}, all-MiniLM-L6-v2 (stands for gpt-4o-mini)"
    )
    assert f"Setting: {FIRST_ROWS}." in dynakrag_tables.table_2(report).caption
    assert dynakrag_tables.table_1(report, "hotpotqa").caption.count("HotpotQA") == 1


def test_the_papers_own_backbone_stands_for_nothing(tmp_path):
    report = cast(tmp_path, {"q": "Qwen/Qwen2.5-7B-Instruct"}, source="hub", embedder="bge-large-en-v1.5")
    assert dynakrag_tables.backbone(report, "first") == "q"


def test_the_pareto_verdict_is_computed_from_the_means(report):
    for system in dynakrag_tables.systems(report)[:-1]:
        for cost in dynakrag_costs.COSTS:
            means = {s: [measure(report, cell(s, m)).value for m in ("f1", cost)] for s in ("dynakrag", system)}
            gap = [a - b for a, b in zip(means["dynakrag"], means[system], strict=True)]
            verdict = measure(report, cell(f"dynakrag_minus_{system}", f"pareto_{cost}"))
            assert verdict.value == contrasts.dominates(*gap)
            assert verdict.remark.startswith(f"{contrasts.verdict(*gap)} (")


def test_pairs_are_the_questions_that_both_have(tmp_path):
    """A run over fewer questions, one with an error and one without any row in common: never an exception."""
    learned = dynakrag_results.patch(report_fixture.PARAMS)["learned_runs"]
    runs = {n: learned[n] for n in ("dynakrag", "dynakrag_no_compression", "adaptive_rag", "fixed_k")}
    report_fixture.build_dynakrag(tmp_path, learned_runs=runs, runs={"ircot": {"method": "ircot"}})
    path = tmp_path / "results/scores/musique/minilm/dynakrag_no_compression.jsonl"
    rows = list(jsonl.read(path))
    rows[1]["final_prompt_tokens"] = None
    jsonl.write(path, rows[:2])
    report = Report(tmp_path, "dynakrag")
    assert measure(report, cell("dynakrag_minus_no_compression", "f1_delta")).n == 2
    assert measure(report, cell("dynakrag_minus_no_compression", "final_prompt_tokens_cut")).n == 1
    jsonl.write(path, rows[1:2])
    lost = measure(Report(tmp_path, "dynakrag"), cell("dynakrag_minus_no_compression", "final_prompt_tokens_cut"))
    assert lost.ran and lost.value is None and "undefined" in lost.remark
    for draw in TABLES.values():
        assert "not run: no run" in repr(draw(report)) or len(draw(report).frame)


# -- tables


@pytest.mark.parametrize("name", TABLES)
def test_every_table_says_what_it_is(report, name):
    table = TABLES[name](report)
    assert len(table.frame) > 0 and "generated world" in table.note
    shown = table._repr_mimebundle_()
    assert "<table" in shown["text/html"] and " at 0x" not in str(shown) and ">nan<" not in shown["text/html"]
    if name not in dynakrag_training.__all__:
        assert re.search(r"n: .*\S+ 4", table.caption), table.caption


@pytest.mark.parametrize("name", TABLES)
def test_every_table_says_not_run_before_anything_ran(nothing, name):
    said = repr(TABLES[name](nothing))
    assert re.search("not run|Not run|not trained|0 of 27", said)


def test_table_1_has_27_rows_ours_beside_the_papers(report):
    frame = dynakrag_tables.table_1(report, "hotpotqa").frame
    assert len(frame) == 27
    own = frame.loc[(FIRST_ROWS, "DynaKRAG")]
    assert own["F1", "paper"] == "0.5998" and own["total tokens", "paper"] == "2,373.1"
    assert re.fullmatch(r"[\d.]+ \[[\d.]+, [\d.]+\]", own["F1", OURS])
    assert own["token rank", "paper"] == "4 of 8" and own["F1 rank", "paper"] == "1 of 9"
    fixed = frame.loc[(FIRST_ROWS, "Fixed-K")]
    assert fixed["prompt tokens", "paper"] == "1,892.3" and fixed["total tokens", "paper"] == "—"
    assert fixed["token rank", "ours"] == fixed["token rank", "paper"] == ""
    llama = frame.loc[("no setting (for Llama-3.1-8B-Instruct)", "IRCoT")]
    assert llama["EM", OURS] == "not run: no setting of params.yaml stands for Llama-3.1-8B-Instruct"
    assert (llama["EM", "paper"], llama["F1", OURS], llama["F1", "paper"]) == ("0.3252", "", "0.4466")
    ranks = [int(r.split()[0]) for r in frame.loc[FIRST_ROWS]["token rank", "ours"] if r]
    assert len(ranks) == 8 and min(ranks) == 1


def test_the_factorial_of_the_papers_own_cells(report):
    frame = dynakrag_tables.factorial(report).frame
    theirs = {name: list(frame.xs("from the paper's cells", axis=1, level=1).loc[name]) for name in frame.index}
    assert theirs["learned gate, ranking uniform"] == ["-0.40", "-0.29", "-0.20"]
    assert theirs["interaction: first row minus second"] == ["1.19", "0.51", "0.89"]


def test_table_2_has_the_drop_of_each_variant(report):
    frame = dynakrag_tables.table_2(report).frame
    assert list(frame["learned", "ranking"]) == ["✓", "×", "✓", "×", "✓", "✓"]
    drop = frame.loc["Uniform-valid", ("HotpotQA, drop in points", OURS)]
    metrics = report.metrics["hotpotqa"]["minilm"]
    value = 100 * (metrics["dynakrag"]["f1"] - metrics["dynakrag_uniform_valid"]["f1"])
    assert drop.startswith(f"{value:.2f} [")
    assert frame.loc["No sufficiency", ("2WikiMultiHopQA, drop in points", "paper")] == "7.17"
    assert frame.loc["DynaKRAG", ("HotpotQA, drop in points", OURS)] == ""


def test_at_four_hops_the_papers_controller_is_behind(report):
    frame = dynakrag_tables.musique_by_hops(report).frame
    assert frame.loc[("DynaKRAG − S2G-RAG", "4-hop"), "paper"] == "-2.62"
    assert frame.loc[("DynaKRAG", "3-hop"), "n"] == "2"


def test_a_cap_that_binds_nothing_changes_nothing(report):
    frame = dynakrag_tables.caps(report).frame
    for dataset in ("HotpotQA", "2WikiMultiHopQA", "MuSiQue"):
        four, none = (frame.loc[(dataset, r)].drop(("F1", "paper")) for r in ("4 retrieval calls at most", "no cap"))
        assert four.equals(none)
        assert float(frame.loc[(dataset, "1 retrieval call at most"), ("retrieval calls", OURS)].split()[0]) <= 1


def test_compression_is_counted_from_its_events(report):
    row = dynakrag_costs.compression(report).frame.loc[(FIRST_ROWS, "MuSiQue")]
    events = [e.data for r in report.records("dynakrag", "musique", "minilm") for e in r.events if e.kind == "compress"]
    before, after = (sum(e[k] for e in events) for k in ("before_tokens", "after_tokens"))
    assert row["evidence tokens", "before"] == f"{before / 4:,.1f}"
    assert row["evidence tokens", "smaller by, %"].startswith(f"{100 * (1 - after / before):.1f} [")
    assert row["final prompt smaller by, %", "paper"] == "71.5"


def test_pareto_has_every_baseline_and_the_claims_beside_it(report):
    frame = dynakrag_costs.pareto(report).frame
    assert len(frame) == 3 * 3 * 8
    tokens = frame["F1 and total tokens", "paper"]
    assert set(tokens.xs("S2G-RAG", level=2)) == {"dominates (claimed)"}
    assert tokens[FIRST_ROWS, "HotpotQA", "IRCoT"] == "neither (Table 1)"
    assert tokens[FIRST_ROWS, "HotpotQA", "PAR2-RAG"] == "dominates (Table 1)"
    assert set(tokens.xs("Fixed-K", level=2)) == {"—"}


def test_which_controller_serves_what(report, tmp_path):
    frame = dynakrag_training.controllers(report).frame
    row = frame.loc[("controller_lambda05", "MuSiQue")]
    assert row["serves"] == "HotpotQA, 2WikiMultiHopQA, MuSiQue" and row["λ"] == "0.5"
    assert row["runs"] == "dynakrag_lambda05" and row["trainings (seeds)"] == "0, 1"
    assert "continuation: 2" in row["fallbacks"]
    shutil.copytree(report.root, tmp_path / "p")
    (tmp_path / "p/results/trained/controller/musique/card.json").unlink()
    lacking = dynakrag_training.controllers(Report(tmp_path / "p", "dynakrag")).frame
    assert lacking.loc[("controller", "MuSiQue"), "trained in"].startswith("not trained: no results/trained/controller")
    tuned = dynakrag_training.tuned_baselines(report).frame.loc["MuSiQue"]
    assert (tuned["K"], tuned["router's labels"]) == ("5", "A: 3, B: 4, C: 5")
    assert sum(map(int, re.findall(r": (\d)", tuned["routes of the evaluation questions"]))) == 4


def test_models_that_were_trained_elsewhere_are_found(tmp_path):
    """No training block: the learned runs use what lies in results/trained."""
    report = Report(report_fixture.build_dynakrag(tmp_path, training={}, controllers={}), "dynakrag")
    assert report.served_by("controller", "hotpotqa") == "musique"
    frame = dynakrag_training.controllers(report).frame
    assert set(frame["serves"]) == {"HotpotQA, 2WikiMultiHopQA, MuSiQue"} and len(frame) == 3
    assert "12 train questions instead of 1,000" in report.note()


# -- coverage


def test_coverage_has_both_papers(report):
    content = coverage.coverage(report)
    assert list(content["papers"]) == list(expected.PAPERS)
    assert all(coverage.missing_items(part) == [] for part in content["papers"].values())
    own = content["papers"]["dynakrag"]
    assert own["summary"]["items"] == 7 and own["summary"]["cells"] == 366
    assert own["summary"]["not_run"] == 243 - 4 * 27  # Table 1: the first backbone whole, three systems of the second
    cells = own["items"]["Table 1"]["cells"]
    assert {c["backbone"] for c in cells} == {"first", "second", "third"} and "embedder" not in cells[0]
    ran = next(c for c in cells if (c["system"], c["metric"], c["status"]) == ("dynakrag", "f1", "run"))
    assert 0 <= ran["ours"] <= 1 and ran["paper"] == 0.5998 and ran["source"]["place"] == "Table 1"
    assert content == coverage.coverage(Report(report.root))


def test_the_summary_says_how_much_of_each_paper_is_there(report):
    from multihop.summary import summary

    coverage.write(report)
    assert "DynaKRAG: 231 of 366 cells of its 7 tables and figures have numbers" in summary(report.root)


def test_nothing_is_covered_before_anything_ran(nothing):
    assert len(coverage.missing_items(coverage.of_paper(nothing))) == 7


def test_the_demo_is_never_compared(report):
    frame = coverage.comparison(report).frame
    assert set(frame["verdict"]) <= {coverage.NOT_COMPARABLE, "not run", "undefined here"}
    assert {"p2_t1_third_crag_musique_em", "p2_010_011 musique second all", "p2_037"} <= set(frame.index)


def test_verdicts_by_unit(report, paper, monkeypatch):
    monkeypatch.setattr(type(report), "differences", lambda self, *where: [])

    def verdict(value: float, *where: str) -> str:
        place = Cell("", *where)
        return coverage.verdict(report, paper.lookup(*where), Measured(value, value, value, 4), place)

    f1 = ("hotpotqa", "dynakrag", "first", "f1", "all")
    assert [verdict(v, *f1) for v in (0.56, 0.649, 0.66)] == ["ok", "ok", "off by 0.0602"]
    tokens = ("hotpotqa", "dynakrag", "first", "total_tokens", "all")
    assert [verdict(v, *tokens) for v in (2000, 1800)] == ["ok", "off by 573"]
    cut = ("hotpotqa", "dynakrag_minus_s2g_rag", "first", "total_tokens_cut", "all")
    assert [verdict(v, *cut) for v in (20, 6, 45)] == ["ok", "ok", "off by 10.7"]
    above = ("hotpotqa", "cap3_minus_cap1", "first", "f1_delta", "all")
    assert [verdict(v, *above) for v in (0.1, -0.5)] == ["ok", "off by 0.50"]
    pareto = ("hotpotqa", "dynakrag_minus_s2g_rag", "first", "pareto_total_tokens", "all")
    assert [verdict(v, *pareto) for v in (1, 0)] == ["ok", "another verdict"]
    rank = ("hotpotqa", "dynakrag", "first", "f1_rank", "all")
    assert [verdict(v, *rank) for v in (1, 2)] == ["ok", "off by 1"]


# -- the notebook


def test_the_notebook_shows_every_table(root, monkeypatch):
    """Its figures are drawn elsewhere: test_report.py runs it whole."""
    notebook = nbformat.read(REPOSITORY / "notebooks/dynakrag.ipynb", as_version=4)
    monkeypatch.chdir(root)
    shown: list[object] = []
    namespace = {"display": lambda *values: shown.extend(values)}
    for c in notebook.cells:
        if c.cell_type == "code" and "keep(" not in c.source:
            exec(compile(c.source, "dynakrag.ipynb", "exec"), namespace)
    assert set(TABLES) - {f"table_1 {d}" for d in report_fixture.TYPES} <= set(namespace)
    assert len([s for s in shown if hasattr(s, "frame")]) >= len(TABLES) + 2
