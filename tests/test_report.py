"""Tables, expected figures, coverage and rendering, on invented results (report_fixture.py)."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shutil
from pathlib import Path

import nbformat
import pytest
import report_fixture
import yaml

from multihop import jsonl
from multihop.errors import ConfigError, DataError, MultihopError
from multihop.report import coverage, expected, render, tables
from multihop.report.expected import Cell
from multihop.report.load import Report
from multihop.report.values import failure_counts, measure

REPOSITORY = Path(__file__).parents[1]
NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
TABLES = [name for name in tables.__all__ if name != "per_category"]


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return report_fixture.build(tmp_path_factory.mktemp("project"), price=1.0)


@pytest.fixture(scope="module")
def report(root) -> Report:
    return Report(root)


@pytest.fixture(scope="module")
def nothing(root, tmp_path_factory) -> Report:
    """A project of which nothing has run."""
    folder = tmp_path_factory.mktemp("nothing")
    shutil.copytree(root / "expected", folder / "expected")
    shutil.copy(root / "params.yaml", folder)
    return Report(folder)


def cell(system: str, metric: str, *, item="Table 12", dataset="musique", role="main", group="all") -> Cell:
    return Cell(item, dataset, system, role, metric, group)


# -- load


def test_what_is_not_the_papers_own_is_said(report):
    note = report.note()
    for fact in ("generated world", report_fixture.MODEL, "n = 4", "LSA", "loop limit 6", "not evidence"):
        assert fact in note
    assert "LSA" not in " ".join(report.differences("musique", "main"))
    assert report.settings == ["minilm", "lsa"]
    assert (report.setting("main"), report.setting("second")) == ("minilm", "lsa")


def test_a_second_setting_with_the_same_embedder_is_not_the_second_embedder(tmp_path):
    shutil.copytree(REPOSITORY / "expected", tmp_path / "expected")
    settings = {name: {"reader": "small", "embedder": "minilm"} for name in "ab"}
    jsonl.write_text(tmp_path / "params.yaml", yaml.safe_dump({**report_fixture.PARAMS, "settings": settings}))
    assert Report(tmp_path).setting("second") is None


def test_records_come_back_and_a_bad_one_is_named(root, report, tmp_path):
    records = report.records("executionrag", "musique", "minilm")
    assert [r.qid for r in records] == sorted(r.qid for r in records)
    assert report.records("nothing", "musique", "minilm") == []
    shutil.copy(root / "params.yaml", tmp_path)
    jsonl.write(tmp_path / "results/runs/arag/musique/minilm.jsonl", [{"qid": "1"}])
    with pytest.raises(DataError, match=r"minilm\.jsonl"):
        Report(tmp_path).records("arag", "musique", "minilm")


# -- expected


def test_every_figure_of_the_text_is_there_once():
    paper = expected.load(REPOSITORY)
    ids = {re.sub(r"[ab]$", "", entry.id) for entry in [*paper.values, *paper.setup]}
    assert ids == {f"p1_{n:03d}" for n in range(1, 91)}
    assert paper.numbered == [f"Table {n}" for n in range(1, 19)] + [f"Figure {n}" for n in range(1, 7)]


def test_lookup_prefers_the_exact_mention():
    paper = expected.load(REPOSITORY)
    assert paper.lookup("musique", "arag", "main", "missing_evidence_share").value == 69.3
    by_hops = paper.lookup("musique", "arag", "second", "missing_evidence_share", "4-hop")
    assert paper.text(by_hops) == "81 (embedder not named)"
    assert paper.text(paper.lookup("hotpotqa", "executionrag", "main", "contain")) == "77.0"
    assert paper.text(paper.lookup("musique", "executionrag", "main", "usd")) == "0.0064"
    assert paper.lookup("musique", "direct", "main", "contain") is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw["values"][0].update(group="9-hop"), "p1_001: Table 12 declares no such cell"),
        (lambda raw: raw["values"][1].update(id="p1_001"), "p1_001: two values"),
        (lambda raw: raw["values"][0].update(item="Table 99"), "unknown item 'Table 99'"),
        (lambda raw: raw["items"]["Table 3"]["cells"][0].update(systems=["nobody"]), "unknown system 'nobody'"),
        (lambda raw: raw["values"][0].update(vlaue=3), "did you mean 'value'"),
        (lambda raw: raw["values"][0].update(value="many"), r"values\.0\.value"),
    ],
)
def test_a_wrong_entry_is_named(tmp_path, change, message):
    raw = yaml.safe_load((REPOSITORY / "expected/executionrag.yaml").read_text())
    change(raw)
    jsonl.write_text(tmp_path / "expected/executionrag.yaml", json.dumps(raw))
    with pytest.raises(ConfigError, match=message):
        expected.load(tmp_path)


# -- our numbers


def test_means_are_those_of_the_metrics_file(report):
    for dataset, settings in report.metrics.items():
        for role in ("main", "second"):
            for run, values in settings[report.setting(role)].items():
                for metric, scale in (("contain", 100), ("llm_acc", 100), ("retrieved_tokens", 1), ("usd", 1)):
                    ours = measure(report, cell(run, metric, dataset=dataset, role=role))
                    assert ours.value == pytest.approx(scale * values[metric])
                    assert ours.low <= ours.value <= ours.high


def test_groups_split_the_questions(report):
    scores = {r["hops"]: r["contain"] for r in report.score_rows("musique", "minilm", "arag")}
    assert measure(report, cell("arag", "contain", group="4-hop")).value == 100 * scores[4]
    assert sum(measure(report, cell("arag", "contain", group=f"{h}-hop")).n for h in (2, 3, 4)) == 4
    assert "no 9-hop question" in measure(report, cell("arag", "contain", group="9-hop")).missing


def test_causes_add_up_to_the_wrong_answers(report):
    for system in ("arag", "executionrag"):
        for judge, column in (("llm", "llm_acc"), ("rule", "rule_acc")):
            total = measure(report, cell(system, "total_failures"), judge=judge).value
            rows = report.score_rows("musique", "minilm", system)
            assert total == sum(r[column] == 0 for r in rows)
            causes = ("judge_error", "gave_up", "reasoning_error", "missing_evidence")
            assert total == sum(measure(report, cell(system, f"{c}_count"), judge=judge).value for c in causes)
            shares = [measure(report, cell(system, f"{c}_share"), judge=judge).value for c in causes]
            assert total == 0 or sum(shares) == pytest.approx(100)


def test_the_symmetric_rule_and_forced_answers_change_the_counts(tmp_path):
    rows = [  # (category, symmetric, forced)
        ("reasoning_error", "missing_evidence", False),
        ("gave_up", "gave_up", True),
        ("missing_evidence", "missing_evidence", False),
    ]
    report = Report(report_fixture.build(tmp_path))
    ids = [r["qid"] for r in report.score_rows("musique", "minilm", "executionrag")]
    wrong = [
        {"qid": q, "seed": 0, "judge": "llm", "category": c, "category_symmetric": s, "forced": f}
        for q, (c, s, f) in zip(ids, rows, strict=False)
    ]
    jsonl.write(tmp_path / "results/failures/musique/minilm/executionrag.jsonl", wrong)
    report = Report(tmp_path)
    missing = cell("executionrag", "missing_evidence_share")
    assert measure(report, missing).value == pytest.approx(100 / 3)
    assert measure(report, missing, symmetric=True).value == pytest.approx(200 / 3)
    assert measure(report, missing, forced=False).value == pytest.approx(50)
    assert sum(failure_counts(report, missing, "gave_up", forced=False).values()) == 0
    undefined = measure(report, missing, judge="rule")
    assert undefined.value is None and undefined.ran and "undefined" in undefined.remark


def test_seeds_are_averaged_and_questions_counted(tmp_path):
    report = Report(report_fixture.build(tmp_path, seeds=[0, 1, 2]))
    ours = measure(report, cell("arag", "total_failures"))
    wrong = [f for f in report.failure_rows("musique", "minilm", "arag") if f["judge"] == "llm"]
    assert ours.value == pytest.approx(len(wrong) / 3)
    assert ours.n == 4
    assert tables.table_1(report).frame.loc[("MuSiQue", "A-RAG"), ("n_ok / n", "")] == "4 / 4"


def test_differences_are_those_of_the_two_systems(report):
    for role in ("main", "second"):
        both = [measure(report, cell(s, "llm_acc", role=role)).value for s in ("executionrag", "arag")]
        ours = measure(report, cell("executionrag_minus_arag", "llm_acc_delta", role=role))
        assert ours.value == pytest.approx(both[0] - both[1])
        assert ours.low <= ours.value <= ours.high


def test_the_average_is_over_the_datasets(report):
    parts = [measure(report, cell("arag", "contain", dataset=d, role="second")).value for d in report.datasets]
    ours = measure(report, cell("arag", "contain", dataset="average", role="second"))
    assert ours.value == pytest.approx(sum(parts) / 3)
    assert ours.low < ours.value < ours.high


def test_the_saving_of_progress_deltas_is_counted_from_the_events(report):
    tokens = full = 0
    for record in report.records("executionrag", "musique", "minilm"):
        if record.qid == "musique-3":  # The four-hop question.
            tokens += sum(e.data["tokens"] for e in record.events if e.kind == "inject")
            full += sum(e.data["full_tokens"] for e in record.events if e.kind == "inject")
    ours = measure(report, cell("executionrag", "injection_saving", group="4-hop"))
    assert ours.value == pytest.approx(100 - 100 * tokens / full)


# -- tables


@pytest.mark.parametrize("name", TABLES)
def test_every_table_is_displayed_with_what_it_is(report, name):
    table = getattr(tables, name)(report)
    assert len(table.frame) > 0
    shown = table._repr_mimebundle_()
    assert "<table" in shown["text/html"] and " at 0x" not in str(shown)
    if name.startswith("table_"):
        assert table.caption.startswith(f"Table {name.removeprefix('table_')}. ")
        assert report.judge in table.caption and re.search(r"n: \S+ 4", table.caption)
        assert "generated world" in table.note


@pytest.mark.parametrize("name", TABLES)
def test_every_table_says_not_run_before_anything_ran(nothing, name):
    table = getattr(tables, name)(nothing)
    if name.startswith("table_"):
        assert "not run: no scores of ExecutionRAG on" in repr(table)
    else:
        table._repr_html_()


def test_table_1_has_every_system_of_the_paper_and_the_printed_values(report):
    table = tables.table_1(report)
    frame, ours, paper = table.frame, ("Contain", "ours [95 %]"), ("Contain", "paper")
    assert len(frame) == 10 + 10 + 8  # LAG on HotpotQA says nothing: neither run nor printed
    assert "LAG (HotpotQA)" in table.note and "IRCoT" in table.note
    assert frame.loc[("MuSiQue", "LAG"), ours] == "not run: no run lag in params.yaml"
    assert frame.loc[("MuSiQue", "LAG"), paper] == "42.8"
    assert frame.loc[("MuSiQue", "CoT-RAG"), paper] == "—"
    assert frame.loc[("HotpotQA", "ExecutionRAG"), ("LLM-Acc", "paper")] == "79.8"
    assert re.fullmatch(r"[\d.]+ \[[\d.]+, [\d.]+\]", frame.loc[("HotpotQA", "ExecutionRAG"), ours])


def test_the_papers_shares_stand_beside_its_own_rule_and_judge_only(report):
    frame = tables.table_13(report).frame["paper: missing %"]
    assert frame["model judge", "App. E", "A-RAG", "all"] == "69.3"
    assert frame["model judge", "App. E", "ExecutionRAG − A-RAG", "all"] == "-25.4"
    for judge, rule in (("rule judge", "App. E"), ("model judge", "symmetric"), ("rule judge", "symmetric")):
        assert set(frame[judge, rule]) == {""}
    assert set(tables.table_13(report, forced=False).frame["paper: missing %"]) == {""}


def test_split_3a_and_3b_adds_up_to_the_reasoning_errors(report):
    frame = tables.table_12(report).frame
    for key, row in frame.iterrows():
        if "(paper)" not in key[3] and key[1] == "App. E":
            assert int(row["3a"]) + int(row["3b"]) == int(row["reasoning error"].split(":")[0])
        elif key[1] == "symmetric":
            assert row["3b"] == "0"


def test_a_local_readers_tokens_are_priced(root):
    shutil.copy(REPOSITORY / "prices.yaml", root)
    report = Report(root)
    rows = report.score_rows("musique", "minilm", "arag")
    usd = sum(0.15 * r["prompt_tokens"] + 0.60 * r["completion_tokens"] for r in rows) / 1e6 / len(rows)
    frame = tables.table_9(report).frame
    assert frame.loc[("MuSiQue", "A-RAG"), ("USD at gpt-4o-mini's price", "")] == f"{usd:.4f}"


# -- coverage


def test_every_item_has_cells_that_ran(report):
    content = coverage.write(report)["papers"]["executionrag"]
    assert coverage.missing_items(content) == []
    assert content["summary"]["items"] == 24
    cells = [c for item in content["items"].values() for c in item["cells"]]
    assert {c["status"] for c in cells} == {"run", "not run"}
    for c in cells:
        assert ("missing" in c) == (c["status"] == "not run")
        assert (c["paper"] == "not printed") == (not c["printed"])
    assert (report.root / "results/coverage.json").read_text() == (
        jsonl.write_json(report.root / "again.json", coverage.coverage(Report(report.root)))
        or (report.root / "again.json").read_text()
    )


def test_a_missing_run_and_a_missing_embedder_show(tmp_path):
    runs = {k: v for k, v in report_fixture.PARAMS["runs"].items() if k != "arag"}
    settings = {"minilm": report_fixture.PARAMS["settings"]["minilm"]}
    report = Report(report_fixture.build(tmp_path, runs=runs, settings=settings))
    content = coverage.of_paper(report)
    assert coverage.missing_items(content) == [
        "Table 6", "Table 7", "Table 8", "Table 14", "Table 15", "Table 16", "Figure 3"
    ]  # fmt: skip
    causes = {(c["system"], c["embedder"]): c for c in content["items"]["Table 12"]["cells"]}
    assert causes["arag", "main"]["missing"] == "no run arag in params.yaml"
    assert causes["executionrag", "main"]["status"] == "run"
    assert "stands for Qwen3-Embedding-0.6B" in content["items"]["Table 14"]["cells"][0]["missing"]


def test_nothing_is_covered_before_anything_ran(nothing):
    assert len(coverage.missing_items(coverage.of_paper(nothing))) == 24


def test_the_demo_is_never_compared(report):
    verdicts = set(coverage.comparison(report).frame["verdict"])
    assert verdicts <= {coverage.NOT_COMPARABLE, "not run", "undefined here"}


def test_the_papers_own_setting_is_compared_within_the_tolerance(tmp_path, monkeypatch):
    paper = expected.load(REPOSITORY)
    four = paper.own.model_copy(update={"questions": dict.fromkeys(report_fixture.TYPES, 4)})
    monkeypatch.setitem(paper.__dict__, "own", four)
    monkeypatch.setattr(expected, "load", lambda root, name: paper)
    report = Report(
        report_fixture.build(
            tmp_path,
            profile="executionrag-paper",
            source="hub",
            readers={"mini": {"endpoint": "embedded", "model": "gpt-4o-mini-2024-07-18"}},
            judge={"reader": "mini"},
            embedders={"minilm": {"preset": "minilm"}, "qwen": {"preset": "qwen3-embedding-0.6b"}},
            settings={e: {"reader": "mini", "embedder": e} for e in ("minilm", "qwen")},
            runs={r: {"method": r} for r in ("arag", "executionrag")},
        )
    )
    assert report.differences() == [] and "Not the paper's" not in report.note()
    verdicts = coverage.comparison(report).frame["verdict"]
    assert any(v.startswith("off by ") for v in verdicts)
    contain = report.expected.lookup("musique", "executionrag", "main", "contain")
    measured = measure(report, cell("executionrag", "contain"))
    for value, verdict in ((54.0, "ok"), (54.2, "off by 5.1"), (44.0, "off by 5.1")):
        changed = type(measured)(value, value, value, 4)
        assert coverage.verdict(report, contain, changed, cell("executionrag", "contain")) == verdict


# -- notebooks and rendering


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_is_stripped_and_only_shows(path, root, monkeypatch):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [c for c in notebook.cells if c.cell_type == "code"]
    assert len(code) <= 14
    assert code[0].metadata.tags == ["parameters"] and code[0].source == 'root = "."'
    assert all(not c.outputs and c.execution_count is None for c in code)
    for c in code:
        for node in ast.walk(ast.parse(c.source)):
            assert not isinstance(node, ast.For | ast.BinOp) or isinstance(getattr(node, "op", None), ast.Div)
            if isinstance(node, ast.ImportFrom):
                module = importlib.import_module(node.module)
                assert all(hasattr(module, a.name) or a.name in ("coverage", "tables", "cases") for a in node.names)
    monkeypatch.chdir(root)
    shown: list[object] = []
    namespace = {"display": lambda *values: shown.extend(values)}
    for c in code:
        exec(compile(c.source, path.name, "exec"), namespace)


def small_notebook(root: Path, source: str, name: str = "small") -> None:
    cell_one = nbformat.v4.new_code_cell('root = "."', metadata={"tags": ["parameters"]})
    cells = [cell_one, nbformat.v4.new_code_cell(source)]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    path = root / "notebooks" / f"{name}.ipynb"
    jsonl.write_text(path, nbformat.writes(nbformat.v4.new_notebook(cells=cells, metadata=kernel)))


def test_a_rendered_notebook_is_the_same_twice_and_loads_nothing(root):
    source = (
        "import sys\nfrom multihop.report.load import Report\nfrom multihop.report.tables import table_2\n"
        "print('a' * 20, file=sys.stderr)\ndisplay({'b', 'a', 'c'}, table_2(Report(root)))"
    )
    small_notebook(root, source)
    first = [p.read_bytes() for p in both(render.render(root, "small"))]
    second = [p.read_bytes() for p in both(render.render(root, "small"))]
    assert first == second
    text, page = (b.decode() for b in first)
    assert "Ablation on MuSiQue" in page and "<table" in page
    assert "a" * 20 not in text and "papermill" not in text and str(root) not in text
    assert not re.search(r"<(script|link|iframe)", page) and "://" not in page


def both(path: Path) -> list[Path]:
    return [path, path.with_suffix(".html")]


def test_a_misspelt_parameter_or_notebook_is_an_error(root):
    small_notebook(root, "1", "parametrised")
    with pytest.raises(ConfigError, match="unknown parameter rooot; known: root"):
        render.render(root, "parametrised", {"rooot": "."})
    with pytest.raises(ConfigError, match=r"known: .*parametrised"):
        render.render(root, "parameterised")
    assert not (root / "results/notebooks/parametrised.ipynb").exists()


def test_a_missing_kernel_says_what_to_do(root, monkeypatch):
    small_notebook(root, "1", "parametrised")
    monkeypatch.setattr(render, "KERNEL", "no-such-kernel")
    with pytest.raises(ConfigError, match=r"ipykernel install --sys-prefix"):
        render.render(root, "parametrised")


def test_a_failing_cell_leaves_no_file(root, monkeypatch):
    import papermill
    from papermill.exceptions import PapermillExecutionError

    def fail(*args, **kwargs):
        raise PapermillExecutionError(1, 2, "1/0", "ZeroDivisionError", "division by zero", [])

    monkeypatch.setattr(papermill, "execute_notebook", fail)
    small_notebook(root, "1/0", "failing")
    with pytest.raises(MultihopError, match=r"failing\.ipynb, code cell 2: ZeroDivisionError"):
        render.render(root, "failing")
    assert not (root / "results/notebooks/failing.ipynb").exists()


def test_a_page_that_loads_something_is_refused():
    bad = nbformat.v4.new_markdown_cell('<img src="https://example.org/pixel.png">')
    with pytest.raises(MultihopError, match=r"example\.org"):
        render.to_html(nbformat.v4.new_notebook(cells=[bad]), "bad")
    link = nbformat.v4.new_markdown_cell("[a link](https://example.org) loads nothing")
    assert "example.org" in render.to_html(nbformat.v4.new_notebook(cells=[link]), "good")


@pytest.mark.parametrize(("source", "refused"), [("local", True), ("demo", False)])
def test_no_benchmark_passage_is_shown(tmp_path, source, refused):
    report = Report(report_fixture.build(tmp_path, source=source))
    passage = next(jsonl.read(tmp_path / "data/prepared/musique/passages.jsonl"))["text"]
    output = nbformat.v4.new_output("display_data", {"text/html": f"<td>{passage.replace(' ', '&#32;')}</td>"})
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1", outputs=[output])])
    if not refused:
        return render.forbid_passages(report, "any", notebook)
    with pytest.raises(DataError, match="passage p0 of"):
        render.forbid_passages(report, "any", notebook)
