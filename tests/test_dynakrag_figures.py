"""Paper 2's figures from invented results: they build, say what is missing, show our numbers and the printed ones, and
repeat to the byte."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import report_fixture
from matplotlib.figure import Figure
from matplotlib.text import Text

from multihop.controller.state import OPERATIONS
from multihop.report import dynakrag_figures, dynakrag_method
from multihop.report.dynakrag_tradeoff import BASELINES, CONTROLLERS, PANEL, spread
from multihop.report.expected import Cell
from multihop.report.load import Report
from multihop.report.plotting import apart, keep, png, undominated
from multihop.report.values import measure

MEASURED = ("figure_3", "figure_4", "figure_5", "quality_and_cost", "compression")
DRAW = {name: getattr(dynakrag_figures, name) for name in ("figure_1", "figure_2", *MEASURED)}


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    return report_fixture.build_dynakrag(tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="module")
def report(project) -> Report:
    return Report(project, "dynakrag")


@pytest.fixture(scope="module")
def drawn(report):
    """Name -> the picture of the complete project, each drawn once."""
    pictures = {}

    def get(name: str) -> Figure:
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
    return Report(root, "dynakrag")


def texts(figure) -> list[str]:
    return [t.get_text() for t in figure.findobj(Text) if t.get_text().strip()]


def said(figure) -> str:
    return " ".join(" ".join(texts(figure)).split())


def hollow(axes) -> list[float]:
    """Where the paper's marks stand."""
    return [line.get_ydata()[0] for line in axes.lines if line.get_marker() == "D"]


def bars(axes, width: float) -> list[float]:
    return [p.get_height() for p in axes.patches if p.get_fill() and p.get_width() == pytest.approx(width)]


def without(project: Path, root: Path, *runs: str) -> Report:
    """A copy of the project where these runs have no scores."""
    shutil.copytree(project, root)
    for run in runs:
        for path in (root / "results/scores").rglob(f"{run}.jsonl"):
            path.unlink()
    return Report(root, "dynakrag")


# -- all of them


@pytest.mark.parametrize("name", MEASURED)
def test_builds_and_says_what_it_is(report, drawn, name):
    figure = drawn(name)
    text = said(figure)
    assert "n = 4 questions a cell" in text and report_fixture.MODEL in text
    assert " ".join(report.note().split()) in text and "LLM-Acc" not in text  # paper 2 has no judge
    width, height = figure.get_size_inches()
    assert width == 10 and 3 < height < 12


@pytest.mark.parametrize("name", MEASURED)
def test_without_results_it_says_not_run(empty, name):
    assert "Not run:" in said(DRAW[name](empty))


def test_a_report_of_paper_1_draws_the_same(project, drawn):
    assert png(dynakrag_figures.figure_3(Report(project))) == png(drawn("figure_3"))


def test_repeats_to_the_byte_and_is_kept_where_the_page_says(report, drawn):
    first = png(drawn("figure_4"))
    again = keep(Report(report.root, "dynakrag"), "deep_4", dynakrag_figures.figure_4(Report(report.root, "dynakrag")))
    assert first == png(again) == (report.root / "figures/deep_4.png").read_bytes()


# -- Figures 1 and 2


def test_the_method_is_drawn_from_the_operation_table(report, monkeypatch):
    shown = {name: said(DRAW[name](report)) for name in ("figure_1", "figure_2")}
    for o in OPERATIONS:
        assert all(f"{o.name}: " in text for text in shown.values())
        assert o.effect in shown["figure_1"] and o.needs in shown["figure_1"]
    changed = tuple(replace(o, needs="a full moon") if o.code == "B" else o for o in OPERATIONS)
    monkeypatch.setattr(dynakrag_method, "OPERATIONS", changed)
    assert "valid with a full moon" in said(dynakrag_method.figure_1(report))


def test_every_baseline_has_its_line(report):
    assert set(dynakrag_method.PIPELINES) == set(report.expected.systems["strongest"].best_of)
    text = said(dynakrag_method.figure_1(report))
    assert all(report.label_run(run) in text for run in dynakrag_method.PIPELINES)


def test_figure_2_says_what_was_trained(report, empty):
    assert "Trained in this project on MuSiQue: n = 12 questions" in said(dynakrag_method.figure_2(report))
    assert "No controller is trained in this project yet" in said(dynakrag_method.figure_2(empty))


# -- Figures 3 to 5


def test_caps_have_our_f1_and_the_printed_one(report, drawn):
    axes = drawn("figure_3").axes[2]
    cells = [Cell("", "musique", s, "first", "f1", "all") for s in dynakrag_figures.CAPS]
    line = next(line for line in axes.lines if line.get_marker() == "None" and len(line.get_xdata()) == 5)
    assert list(line.get_ydata()) == pytest.approx([measure(report, c).value for c in cells])
    assert [hollow(a) for a in drawn("figure_3").axes[:3]] == [[0.5998], [0.5340], [0.3061]]  # Table 1, uncapped
    ticks = [t.get_text() for t in axes.get_xticklabels()]
    calls = measure(report, cells[0]._replace(metric="retrieval_calls")).value
    assert ticks[0] == f"1\n({calls:.2g})" and ticks[-1].startswith("none")


def test_a_cap_that_did_not_run_is_named(project, tmp_path):
    figure = dynakrag_figures.figure_3(without(project, tmp_path / "p", "dynakrag_cap2"))
    ticks = [t.get_text() for axes in figure.axes for t in axes.get_xticklabels()]
    assert ticks.count("2\nnot run") == 3


def test_allocation_is_the_mean_of_the_retrieval_calls(report, drawn):
    axes = drawn("figure_4").axes[0]
    wanted = []
    for hops in (2, 3, 4):
        for run in ("dynakrag", "dynakrag_uniform_valid"):
            calls = [r["retrieval_calls"] for r in report.score_rows("musique", "minilm", run) if r["hops"] == hops]
            wanted.append(sum(calls) / len(calls))
    assert bars(axes, 0.36) == pytest.approx(wanted)
    assert hollow(axes) == [2.81, 3.06]
    band = [p for p in axes.patches if p.get_alpha() == 0.25]
    assert [(p.get_y(), round(p.get_y() + p.get_height(), 6)) for p in band] == [(2.25, 2.62)] * 3
    assert "3 hops\nn = 2" in texts(drawn("figure_4"))


def test_a_missing_comparator_leaves_slots(project, tmp_path):
    figure = dynakrag_figures.figure_4(without(project, tmp_path / "p", "dynakrag_uniform_valid"))
    assert texts(figure).count("not run") == 3 + 4 + 3 + 2


def test_gains_are_paired_by_type(report, drawn):
    axes = drawn("figure_5").axes[0]
    rows = {run: {r["type"]: r["f1"] for r in report.score_rows("2wikimultihopqa", "minilm", run)}
            for run in ("dynakrag", "fixed_k", "dynakrag_joint_uniform")}  # fmt: skip
    heights = bars(axes, 0.19)
    assert heights[0] == pytest.approx(100 * (rows["dynakrag"]["comparison"] - rows["fixed_k"]["comparison"]))
    joint = rows["dynakrag_joint_uniform"]["comparison"]
    assert heights[1] == pytest.approx(100 * (rows["dynakrag"]["comparison"] - joint))
    assert hollow(axes)[:4] == [7.95, 12.97, 24.31, 7.68]  # over Fixed-K, in the panel's order


# -- quality against cost


def test_who_is_beaten():
    points = {"cheap": (1.0, 0.2), "twin": (1.0, 0.2), "good": (3.0, 0.6), "dear": (4.0, 0.6), "bad": (2.0, 0.1)}
    assert undominated(points) == ["cheap", "twin", "good"]
    assert undominated({}) == [] and undominated({"only": (9.0, 0.0)}) == ["only"]


def test_marks_that_would_cover_each_other_stand_side_by_side():
    axes = Figure().subplots()
    axes.set(xlim=(0, 100), ylim=(0, 100))
    places = [(50, 50), (50, 50), (52, 50), (80, 50), (50, 90)]
    shifts = apart(axes, places, (2, 2), step=7)
    at = [(x / 100 * 144 + s, y / 100 * 144) for (x, y), s in zip(places, shifts, strict=True)]
    assert all(abs(a[0] - b[0]) > 6.9 or abs(a[1] - b[1]) >= 6.9 for a in at for b in at if a is not b)
    assert shifts[3:] == [0, 0] and sum(shifts[:3]) + 2 / 100 * 144 == pytest.approx(2 / 100 * 144, abs=1e-9)
    assert at[0][0] < at[1][0] < at[2][0]
    assert apart(axes, [], (2, 2)) == []


def test_the_undominated_are_blue(report, drawn):
    axes = drawn("quality_and_cost").axes[0]
    systems = (*CONTROLLERS, *BASELINES)
    cells = {s: Cell("", "hotpotqa", s, "first", "f1", "all") for s in systems}
    points = {s: (measure(report, c._replace(metric="total_tokens")).value, measure(report, c).value)
              for s, c in cells.items()}  # fmt: skip
    blue = {round(line.get_xdata()[0], 6) for line in axes.lines if line.get_marker() == "o"
            and line.get_color() == "#0072B2"}  # fmt: skip
    assert blue == {round(points[s][0], 6) for s in undominated(points)}
    numbers = [t.get_text() for t in axes.texts if t.get_text()]
    assert sorted(numbers, key=int) == [str(i) for i in range(1, len(systems) + 1)]


def test_marks_stand_at_their_true_cost(report, drawn):
    figure = drawn("quality_and_cost")
    for i, axes in enumerate(figure.axes[:6]):
        metric, dataset = ("total_tokens", "retrieval_calls")[i // 3], report.datasets[i % 3]
        cells = [Cell("", dataset, s, "first", metric, "all") for s in (*CONTROLLERS, *BASELINES)]
        wanted = sorted(axes.transData.transform((measure(report, c).value, 0))[0] for c in cells)
        marks = [line for line in axes.lines if line.get_marker() == "o"]
        places = [line.get_transform().transform(line.get_xydata())[0] for line in marks]
        assert sorted(x for x, _ in places) == pytest.approx(wanted)
        assert all(axes.bbox.contains(x, y) for x, y in places)
    assert "spread vertically" in said(figure)


def test_marks_that_would_cover_each_other_are_spread_vertically():
    axes = Figure().subplots()
    axes.set(xlim=(0, 100), ylim=(-0.06, 1.08))
    points = {"far": (80.0, 0.9), **{f"s{i}": (20.0 + i, 0.0) for i in range(6)}}
    shifts = spread(axes, points, ["s3"])
    assert shifts["s3"] == shifts["far"] == 0 and all(shifts[f"s{i}"] > 0 for i in (0, 1, 2, 4, 5))
    width, height = (72 * side for side in PANEL)
    at = [(x / 100 * width, (y + 0.06) / 1.14 * height + shifts[s]) for s, (x, y) in points.items()]
    assert all(math.dist(a, b) >= 11.4 for a in at for b in at if a is not b)
    assert all(0 < y < height for _, y in at)


def test_a_system_that_did_not_run_is_said_and_has_no_number(project, tmp_path):
    text = said(dynakrag_figures.quality_and_cost(without(project, tmp_path / "p", "crag", "self_ask")))
    assert "Not run: CRAG, Self-Ask+Search." in text


# -- compression


def test_compression_has_tokens_savings_and_f1(report, drawn):
    tokens, cut, quality = drawn("compression").axes[:3]
    rows = {run: report.score_rows("hotpotqa", "minilm", run) for run in ("dynakrag", "dynakrag_no_compression")}
    means = [sum(r["final_prompt_tokens"] for r in rows[run]) / 4 for run in rows]
    assert bars(tokens, 0.38)[:2] == pytest.approx(means)
    assert bars(cut, 0.5)[0] == pytest.approx(100 * (1 - means[0] / means[1]))
    assert hollow(cut) == [54.4, 66.3, 71.5]
    assert hollow(quality) == [0.5998, 0.5826, 0.5340, 0.4963, 0.3061, 0.3008]
    assert "In 0 of 12 compressions the reply was unusable" in said(drawn("compression"))
