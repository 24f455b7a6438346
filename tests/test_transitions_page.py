"""The page transitions: tables against counts made from the files, refusals as rows, the picture's geometry, params."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
import report_fixture
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.text import Text
from scipy.stats import binomtest
from test_paired import side

from multihop import config, jsonl
from multihop.analysis import paired
from multihop.errors import ConfigError
from multihop.evaluation.statistics import holm
from multihop.report import claim_382, figure_flows, pairs, transitions
from multihop.report.load import Report

MINILM = "all-MiniLM-L6-v2"
DYNAKRAG = {"paired": {"pairs": [["arag", "executionrag"], ["dynakrag", "fixed_k"], ["dynakrag", "ircot"]]}}


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return report_fixture.build_dynakrag(tmp_path_factory.mktemp("project"), **DYNAKRAG)


@pytest.fixture(scope="module")
def report(root) -> Report:
    return Report(root)


def rows(root: Path, kind: str, run: str, dataset: str = "musique", setting: str = "minilm") -> list[dict]:
    return list(jsonl.read(root / "results" / kind / dataset / setting / f"{run}.jsonl"))


def labels(root: Path, run: str, column: str = "category") -> dict[str, str]:
    wrong = {f["qid"]: f[column] for f in rows(root, "failures", run) if f["judge"] == "llm"}
    return {s["qid"]: wrong.get(s["qid"], "right") for s in rows(root, "scores", run)}


# -- tables


def test_the_matrix_is_a_count_of_the_files(root, report):
    first, second = labels(root, "arag"), labels(root, "executionrag")
    wanted = Counter((first[q].replace("_", " "), second[q].replace("_", " ")) for q in first)
    frame = transitions.transitions(report).frame.sort_index().loc[MINILM, "MuSiQue (n = 4)"]
    cells = [((a, b), n) for a, line in frame.iterrows() for b, n in line.items() if b != "all"]
    shown = {key: int(n) for key, n in cells if n not in ("·", "")}
    assert shown == dict(wanted)
    pooled = transitions.transitions(report).frame.sort_index().loc[MINILM, "all datasets (n = 12)"]
    assert sum(map(int, pooled["all"])) == 12


def test_both_forms_of_the_claim_and_the_papers_figures(root, report):
    frame = claim_382.claim_counts(report).frame.sort_index().loc[MINILM, "MuSiQue", "model judge"]
    for rule, column in (("App. E", "category"), ("symmetric", "category_symmetric")):
        counts = [Counter(labels(root, run, column).values())["missing_evidence"] for run in ("arag", "executionrag")]
        for n, label in zip(counts, ("A-RAG", "ExecutionRAG"), strict=True):
            assert frame.loc[rule, label].split(" (")[0] == str(n)
        change = frame.loc[rule, "second − first [95 %]"].split(" [")[0]
        assert int(change.replace("−", "-")) == counts[1] - counts[0]
    assert frame.loc["App. E", "paper"] == "382 → 234" and frame.loc["symmetric", "paper"] == ""


def test_the_paired_form_adds_up(report):
    frame = claim_382.claim_paired(report).frame
    for _, line in frame.iterrows():
        parts = ["right", "fails otherwise, all found", "relabelled, still missing", "same failure"]
        assert int(line["first run had"]) == sum(int(line[p].split(":")[0]) for p in parts)


def test_mcnemar_and_holm_of_the_whole_table(root, report):
    frame = transitions.paired_tests(report).frame
    own = {run: {s["qid"]: s["llm_acc"] for s in rows(root, "scores", run)} for run in ("arag", "executionrag")}
    gained = sum(own["executionrag"][q] > own["arag"][q] for q in own["arag"])
    lost = sum(own["executionrag"][q] < own["arag"][q] for q in own["arag"])
    line = frame.loc["A-RAG → ExecutionRAG", MINILM, "MuSiQue"]["right (model judge)"]
    assert line["only first / second"] == f"{lost} / {gained}"
    p = binomtest(lost, lost + gained, 0.5).pvalue if lost + gained else 1.0
    assert line["p (Holm)"].startswith(f"{p:.3f}")
    scopes = [s for pair in pairs.chosen(report, paper=report.paper) for s in pairs.scopes(report, *pair)]
    raw = [pairs.compare(report, s, *t).test.p for s in scopes for t in transitions.TESTS.values()]
    shown = [cell for _, row in frame.iterrows() for cell in row[[(h, "p (Holm)") for h in transitions.TESTS]]]
    assert shown == [f"{p:.3f} ({q:.3f})" for p, q in zip(raw, holm(raw), strict=True)]
    assert f"{len(raw)} tests" in transitions.paired_tests(report).caption


def test_what_four_questions_can_show(report):
    frame = transitions.detectable(report).frame.sort_index().loc["A-RAG → ExecutionRAG", MINILM]
    assert frame.loc["MuSiQue", ["n", "smallest p", "best case"]].tolist() == ["4", "0.125", "none"]
    assert frame.loc["all datasets", "best case"] == "57.8 points"
    # 44.9 -> 50.2 at 20 % discordance by Connor's formula.
    assert frame.loc["MuSiQue", ["paper's difference", "needed"]].tolist() == ["+5.3", "557"]


def test_each_paper_has_its_own_pairs(report):
    own, second = (transitions.paired_tests(r).frame for r in (report, report.of("dynakrag")))
    assert {p for p, *_ in own.index} == {"A-RAG → ExecutionRAG"}
    assert {p for p, *_ in second.index} == {"DynaKRAG → Fixed-K", "DynaKRAG → IRCoT"}


def test_a_reasoning_error_may_lack_its_passage(tmp_path):
    root = report_fixture.build(tmp_path, paired={"pairs": [["arag", "executionrag"], ["executionrag", "arag"]]})
    report = Report(root)
    rule = transitions.all_transitions(report).frame.sort_index().loc["ExecutionRAG → A-RAG", MINILM]
    lacking = sum(
        f["wrong_and_missing"] for d in report.datasets for f in rows(root, "failures", "executionrag", d)
        if f["judge"] == "llm"
    )  # fmt: skip
    shown = [int(n) for n in rule["wrong and missing, first"] if n != "·"]
    assert sum(shown) == lacking and rule.index.nunique() == len(rule)


def test_a_question_is_shown_in_a_generated_world_alone(root, report, tmp_path):
    asked = {r.question for d in report.datasets for s in report.settings for r in report.records("arag", d, s)}
    assert set(transitions.who_moved(report).frame["asked"]) <= asked
    local = Report(report_fixture.build(tmp_path, source="local"))
    assert list(transitions.who_moved(local).frame.columns) == ["from", "to"]


def test_every_run_of_paper_2_has_its_failures(root, report):
    table = transitions.dynakrag_failures(report)
    asked = {r for r, c in report.params.runs.items() if c.method == "dynakrag"} | {"ircot", "fixed_k", "crag"}
    assert {report.of("dynakrag").label_run(r) for r in asked} <= {run for *_, run in table.frame.index}
    counts = Counter(
        f["category"] for d in report.datasets for f in rows(root, "failures", "crag", d) if f["judge"] == "rule"
    )
    line = table.frame.loc["rule judge"].xs(report.label_run("crag"), level="system").iloc[0]
    for category in ("judge error", "missing evidence", "reasoning error", "gave up"):
        n = counts[category.replace(" ", "_")]
        assert line[category].split(" ")[0] == (str(n) if n else "·")


def test_no_table_shows_nan_and_each_has_the_note(report):
    second = report.of("dynakrag")
    tables = [
        claim_382.claim_counts(report), claim_382.claim_paired(report), transitions.transitions(report, "rule"),
        transitions.all_transitions(second), transitions.who_moved(report), transitions.paired_tests(second),
        transitions.detectable(second), transitions.dynakrag_failures(report),
    ]  # fmt: skip
    for table in tables:
        assert len(table.frame) and not re.search(r"\b(nan|None|inf)\b", repr(table)) and table.note


# -- refusals


def test_what_cannot_be_compared_is_said_in_its_row(tmp_path):
    root = report_fixture.build(tmp_path)
    metrics = jsonl.json.loads((root / "results/metrics.json").read_text())
    metrics["musique"]["minilm"]["arag"]["judge"] = "another judge"
    jsonl.write_json(root / "results/metrics.json", metrics)
    path = root / "results/runs/arag/hotpotqa/minilm.jsonl"
    jsonl.write(path, [{**r, "corpus_hash": "2" * 16} for r in jsonl.read(path)])
    (root / "results/scores/2wikimultihopqa/minilm/executionrag.jsonl").unlink()
    report = Report(root)
    frame = transitions.paired_tests(report).frame.sort_index().loc["A-RAG → ExecutionRAG", MINILM]
    said = frame["n", ""]
    assert "judge 'another judge'" in said["MuSiQue"] and "corpus '2222" in said["HotpotQA"]
    assert said["2WikiMultiHopQA"].startswith("not run: ") and said["all datasets"].startswith("refused (hotpotqa, ")
    assert "refused" in claim_382.claim_paired(report).frame.loc[MINILM, "HotpotQA", "model judge", "App. E"]["n"]
    texts = [t.get_text() for t in figure_flows.flows(report).findobj(Text)]
    assert "refused" in texts and "not run" in texts


def test_a_page_without_pairs_says_so(tmp_path):
    report = Report(report_fixture.build(tmp_path, paired={"pairs": []}))
    for table in (transitions.paired_tests(report), transitions.transitions(report), claim_382.claim_counts(report)):
        assert "paired.pairs" in repr(table)
    assert figure_flows.flows(report)._repr_png_()


# -- the picture


def panel_patches(outcomes_first: dict, outcomes_second: dict):
    pair = paired.pair(side("arag", outcomes_first), side("executionrag", outcomes_second))
    scope = pairs.Scope("arag", "executionrag", "s", "musique", (pair,))
    figure = figure_flows.Picture("t", ["n"], height=3)
    axes = figure.body.subplots()
    figure_flows._panel(axes, scope, "llm", False)
    blocks = [p for p in axes.patches if isinstance(p, Rectangle)]
    return axes, blocks, [p for p in axes.patches if isinstance(p, PathPatch)]


@pytest.mark.parametrize("n", [4, 500])
def test_heights_are_shares_and_nothing_leaves_the_panel(n):
    kinds = ["right", "missing_evidence", "gave_up", "reasoning_error"]
    first = {f"q{i:03}": kinds[i % 4] for i in range(n)}
    second = {f"q{i:03}": kinds[(i // 4) % 4] for i in range(n)}
    axes, blocks, bands = panel_patches(first, second)
    for x in (0.0, 1 - figure_flows.WIDTH):
        column = [b for b in blocks if b.get_x() == x]
        total = sum(b.get_height() for b in column)
        assert total <= 1 + 1e-9 and min(b.get_y() for b in column) > -1e-9
    assert sum(b.get_height() for b in blocks) / 2 == pytest.approx(
        sum(abs(p.get_path().vertices[0, 1] - p.get_path().vertices[-2, 1]) for p in bands)
    )
    numbers = [t.get_text() for t in axes.texts]
    assert f"R {len([k for k in first.values() if k == 'right'])}" in numbers


def test_a_sliver_among_many_carries_no_number():
    first = {f"q{i:03}": "right" if i else "gave_up" for i in range(500)}
    axes, blocks, _ = panel_patches(first, dict.fromkeys(first, "right"))
    assert len(blocks) == 3 and {t.get_text() for t in axes.texts} == {"R 499", "R 500"}


def test_the_picture_is_the_same_twice(report):
    assert len({figure_flows.flows(report)._repr_png_() for _ in range(2)}) == 1


# -- params


def test_pairs_are_runs_that_there_are():
    raw = report_fixture.PARAMS
    wanted = config.parse({**raw, "paired": {"pairs": [["executionrag", "executionrag_*"], ["arag", "arag_*"]]}})
    assert wanted.run_pairs() == [("executionrag", f"executionrag_{x}") for x in ("question_only", "no_updates")]
    assert ("arag", "executionrag") in config.parse(raw).run_pairs()
    with pytest.raises(ConfigError, match=r"paired\.pairs: unknown name 'aragg'; did you mean 'arag'"):
        config.parse({**raw, "paired": {"pairs": [["aragg", "executionrag"]]}})
    for wrong in ({"pairs": [["arag"]]}, {"alpha": 0}, {"discordance": 1.2}, {"powr": 0.8}):
        with pytest.raises(ConfigError, match="paired"):
            config.parse({**raw, "paired": wrong})
