"""Figures and case studies from invented results: they build, say what is missing, repeat to the byte, and quote no
benchmark passage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import report_fixture
import yaml
from matplotlib.image import imread
from matplotlib.text import Text

from multihop import jsonl
from multihop.report import cases, figures, plotting
from multihop.report.expected import Cell
from multihop.report.load import Report
from multihop.report.plotting import DPI, png, save
from multihop.report.timeline import case_figure
from multihop.report.traces import WITHHELD, traces
from multihop.report.values import measure

ROOT = Path(__file__).parents[1]
DRAW = {f"figure {n}": getattr(figures, f"figure_{n}") for n in range(1, 7)}
DRAW |= {f"case {n}": (lambda report, n=n: case_figure(report, n)) for n in (1, 2, 3)}
NOTE = "the east road was laid by the seventh warden in spring"
"""Planted as a register note: evidence text, which may be shown of the demo world alone."""


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    return report_fixture.build(tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="module")
def report(project) -> Report:
    return Report(project)


@pytest.fixture(scope="module")
def drawn(report):
    """Name -> the picture of the complete project, each drawn once."""
    pictures = {}

    def get(name: str):
        if name not in pictures:
            pictures[name] = DRAW[name](report)
        return pictures[name]

    return get


@pytest.fixture(scope="module")
def empty(tmp_path_factory, project) -> Report:
    """A project where nothing ran yet."""
    root = tmp_path_factory.mktemp("empty")
    shutil.copy(project / "params.yaml", root)
    shutil.copytree(project / "expected", root / "expected")
    return Report(root)


def texts(figure) -> list[str]:
    return [t.get_text() for t in figure.findobj(Text) if t.get_text().strip()]


def said(figure) -> str:
    return " ".join(" ".join(texts(figure)).split())


def rewrite(root: Path, run: str, change) -> Report:
    """Apply ``change`` to every record of a run (rows as JSON) and read the project anew."""
    for path in sorted((root / "results/runs" / run).rglob("*.jsonl")):
        rows = list(jsonl.read(path))
        for row in rows:
            change(row)
        jsonl.write(path, rows)
    return Report(root)


@pytest.mark.parametrize("name", DRAW)
def test_builds_and_says_what_it_is(report, drawn, name):
    figure = drawn(name)
    text = said(figure)
    assert report.judge in text and "n = " in text
    assert any(report.label_setting(s) in text for s in report.settings)
    assert " ".join(report.note().split()) in text
    width, height = figure.get_size_inches()
    assert width == 10 and 2 < height < 16


@pytest.mark.parametrize("name", DRAW)
def test_without_results_it_says_not_run(empty, name):
    assert "Not run:" in said(DRAW[name](empty))


def test_a_missing_run_leaves_empty_slots(project, tmp_path, drawn):
    root = shutil.copytree(project, tmp_path / "p")
    for kind in ("scores", "failures"):
        (root / "results" / kind / "musique/lsa/arag.jsonl").unlink()
    partial = Report(root)
    assert texts(drawn("figure 2")).count("not run") == texts(drawn("figure 3")).count("not run") == 0
    assert texts(figures.figure_2(partial)).count("not run") == 8  # 4 groups x 2 rules
    assert texts(figures.figure_3(partial)).count("not run") == 4  # MuSiQue and the average, twice


def test_bars_and_paper_marks_have_the_values(report, drawn):
    axes = drawn("figure 3").axes[1]  # LLM-Acc by benchmark
    heights = [bar.get_height() for bar in axes.patches]
    systems = ("arag", "executionrag")
    cells = [Cell("", d, s, "second", "llm_acc", "all") for d in report.datasets for s in systems]
    assert heights == pytest.approx([measure(report, c).value for c in cells])
    marks = [line.get_ydata()[0] for line in axes.lines if line.get_marker() == "D"]
    assert marks == [76.4, 80.0, 55.2, 68.3, 42.3, 42.8]  # §4.5
    contain = drawn("figure 3").axes[0]
    assert not [line for line in contain.lines if line.get_marker() == "D"]  # not printed, so not drawn


def test_figure_2_stacks_to_100_and_shows_the_papers_shares(drawn):
    axes = drawn("figure 2").axes[0]
    ours = [p for p in axes.patches if p.get_width() == pytest.approx(0.27)]
    for x in {p.get_x() for p in ours}:
        assert sum(p.get_height() for p in ours if p.get_x() == x) == pytest.approx(100)
    printed = [p.get_height() for p in axes.patches if p.get_width() == pytest.approx(0.1) and p.get_fill()]
    assert printed == pytest.approx([69.3, 9.4, 6.5, 43.9, 25.9, 13.1, 62, 81, 55.3])


def test_save_repeats_to_the_byte(report, drawn, tmp_path):
    once = drawn("figure 6")
    first = save(once, tmp_path / "deep/a.png").read_bytes()
    assert first == save(once, tmp_path / "b.png").read_bytes() == figures.figure_6(report)._repr_png_()
    assert png(drawn("case 2")) == png(case_figure(Report(report.root), 2))
    assert b"Software" not in first and b"matplotlib" not in first
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a.png", "b.png", "deep"]
    width, height = once.get_size_inches() * DPI
    pixels = imread(tmp_path / "b.png")
    assert pixels.shape[:2] == (pytest.approx(height, abs=1), pytest.approx(width, abs=1))
    assert pixels[0, 0].min() == 1.0 and pixels[..., :3].min() < 0.3  # ink on white


def test_choice_is_the_same_every_time_and_follows_the_rules(report):
    chosen = cases.choose_cases(report)
    again = cases.choose_cases(Report(report.root))

    def key(case):
        return case.number, case.trace.dataset, case.trace.setting, case.trace.record.qid

    assert [key(c) for c in chosen] == [key(c) for c in again]
    assert [c.number for c in chosen] == [1, 2, 3]
    assert len({(c.trace.dataset, c.trace.record.qid) for c in chosen}) == 3
    first, second, third = (c.trace for c in chosen)
    assert third.retirements and "Retired: r" in chosen[2].why

    def others(*taken):
        return [t for t in traces(report) if t.record.qid not in {x.record.qid for x in taken}]

    def chain(t):
        return t.resolved >= 2, t.musique, t.gold.hops

    assert chain(second) == max(map(chain, others(third)))
    gains = [t.gain for t in others(second, third) if t.musique and t.namesakes and t.gain is not None]
    assert first.musique and first.gain == max(gains) > 0


def test_says_plainly_that_nothing_was_retired(project, tmp_path):
    root = shutil.copytree(project, tmp_path / "p")

    def keep_active(row):
        row["events"] = [e for e in row["events"] if e["data"].get("to") != "retired"]
        for event in row["events"]:
            for item in event["data"].get("items", ()):
                item["status"] = "active" if item["status"] == "retired" else item["status"]

    first, second, third = cases.choose_cases(rewrite(root, "executionrag", keep_active))
    assert first.trace.gain > 0 and second.trace.resolved >= 2  # they choose before one that has nothing to show
    assert third.why.startswith("No item was retired in any of these runs")
    assert "none is gold" in third.why and third.trace.premature > 0


def test_table_has_a_row_for_each_loop(report):
    trace = cases.case(report, 3).trace
    table = cases.case_table(report, 3)
    loops = max(trace.record.loops, trace.baseline.loops)
    assert list(table["step"]) == ["seed", *(f"loop {n}" for n in range(1, loops + 1)), "answer"]
    assert list(table.columns) == ["step", "A-RAG", "ExecutionRAG"]
    event = trace.retirements[0]
    row = table.set_index("step").loc[f"loop {event.step}", "ExecutionRAG"]
    assert f"{event.data['id']} → retired" in row
    searches = sum(e.kind == "retrieve" for e in trace.baseline.events)
    assert sum(cell.count("“") for cell in table["A-RAG"]) == searches


def changed_params(project: Path, root: Path, **patch) -> Path:
    """A copy of the project with other params."""
    shutil.copytree(project, root)
    params = yaml.safe_load((root / "params.yaml").read_text())
    (root / "params.yaml").write_text(yaml.safe_dump(params | patch, sort_keys=False))
    return root


def planted(root: Path) -> Report:
    """The project, its model quoting a passage wherever it can and writing notes."""
    quote = "Place 3 lies east of Place 4 and was founded in 1803"

    def quoting(row):
        row["retrieved"] = [{"chunk_id": "p3", "step": 1, "tool": "semantic_search"}, *row["retrieved"]]
        row["answer"] = quote
        for event in row["events"]:
            data = event["data"]
            for item in data.get("items", ()):
                item |= {"question": quote, "note": NOTE, "reason": NOTE}
            if event["kind"] == "retrieve":
                data["query"] = [quote] if data["tool"] == "keyword_search" else quote
            if event["kind"] == "transition":
                data["reason"] = NOTE
            if event["kind"] == "turn":
                data["thought"] = f"{quote}. {NOTE}"

    for path in sorted((root / "results/scores").rglob("*.jsonl")):
        jsonl.write(path, [{**row, "answer": quote, "short": quote} for row in jsonl.read(path)])
    rewrite(root, "arag", quoting)
    return rewrite(root, "executionrag", quoting)


def shown(report: Report) -> str:
    parts = [said(DRAW[name](report)) for name in ("figure 1", "case 2")]
    parts += [cases.case_table(report, n).to_string() for n in (1, 2, 3)]
    parts += [str(cases.step_table(report, 1)), *(c.why for c in cases.choose_cases(report))]
    return " ".join(" ".join(parts).split())


def test_no_passage_text_unless_it_is_the_demo(project, tmp_path):
    demo = shown(planted(changed_params(project, tmp_path / "demo")))
    assert "lies east of" in demo and "the east road was laid" in demo  # the demo world may be quoted
    text = shown(planted(changed_params(project, tmp_path / "local", source="local")))
    assert "lies east" not in text and "was founded" not in text and "east road" not in text
    assert WITHHELD in text and "Place 3" in text  # titles stay


def test_notebook_source_is_stripped_and_runs(project, tmp_path, monkeypatch):
    notebook = json.loads((ROOT / "notebooks/cases.ipynb").read_text())
    code = [c for c in notebook["cells"] if c["cell_type"] == "code"]
    assert len(code) <= 10
    assert all(not c["outputs"] and c["execution_count"] is None for c in code)
    assert code[0]["metadata"]["tags"] == ["parameters"]
    root = shutil.copytree(project, tmp_path / "p")
    monkeypatch.setattr(plotting, "png", lambda figure: b"a picture")
    names: dict = {}
    for cell in code:
        exec("".join(cell["source"]), names)
        names["root"] = str(root)
    drawn = sorted(p.name for p in (root / "figures").iterdir())
    assert drawn == ["case_1.png", "case_2.png", "case_3.png", "figure_1.png"]


def test_a_profile_with_one_embedder_still_draws(project, tmp_path):
    settings = {"minilm": report_fixture.PARAMS["settings"]["minilm"]}
    one = Report(changed_params(project, tmp_path / "p", settings=settings))
    assert "Not run:" in said(figures.figure_3(one))
    points = said(figures.figure_6(one))
    assert "not run: full" in points and "no such setting" in points
    assert texts(figures.figure_5(one)).count("not run") == 18  # 9 categories x 2 metrics, second embedder
