"""How the pages read: one long note each, rows that say nothing folded, words to the left, no figure over another."""

from __future__ import annotations

import html
import shutil
from pathlib import Path

import pandas as pd
import pytest
import report_fixture
from matplotlib.text import Text

from multihop import jsonl, summary
from multihop.report import cases, figures, frames, render, tables
from multihop.report.figure_tokens import _frontier_note, _pair
from multihop.report.load import Report

TABLES = [name for name in tables.__all__ if name not in ("per_category", "setup")]


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return report_fixture.build(tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="module")
def report(root) -> Report:
    return Report(root)


def texts(figure) -> list[str]:
    return [t.get_text() for t in figure.findobj(Text) if t.get_text().strip()]


# -- tables


def test_table_1_names_the_rows_that_have_nothing_in_one_line(report):
    table = tables.table_1(report)
    shown = {system for _, system in table.frame.index}
    left_out = table.note.split(": ", 1)[1].split(". ")[0]
    assert "KGP, G-Retriever" in left_out and not shown & {"KGP", "G-Retriever"}
    # LAG has a printed value on the other two datasets, and keeps its rows there.
    assert "LAG (HotpotQA)" in left_out and ("HotpotQA", "LAG") not in table.frame.index
    systems = {report.expected.systems[c.system].label for c in report.expected.cells("Table 1")}
    assert all(s in shown or s in left_out for s in systems)


def test_a_run_that_is_asked_for_keeps_its_row_before_it_ran(root, tmp_path):
    shutil.copytree(root / "expected", tmp_path / "expected")
    shutil.copy(root / "params.yaml", tmp_path)
    assert ("MuSiQue", "Direct") in tables.table_1(Report(tmp_path)).frame.index


@pytest.mark.parametrize("paper", ["executionrag", "dynakrag"])
def test_the_long_note_stands_once(root, paper):
    report = Report(root, paper)
    head = frames.how_to_read(report)
    assert report.note() in head.text and "bootstrap" in head.text
    assert head.text in html.unescape(head._repr_html_())


@pytest.mark.parametrize("name", TABLES)
def test_every_table_points_to_it(report, name):
    below = getattr(tables, name)(report).note
    assert "see the note at the page's head" in below
    assert report.note() not in below and "bootstrap" not in below


def test_columns_of_words_are_aligned_to_the_left():
    frame = pd.DataFrame({"words": ["a <td> search", ""], "numbers": ["25.0 [0.0, 75.0]", "—"], "n": ["4 of 12", "3"]})
    page = frames.Table("", frame)._repr_html_()
    assert page.count('<td class="words">') == 2 and page.count("<td>") == 4
    assert '<td class="words">a &lt;td&gt; search' in page
    assert "td.words {{ text-align: left; }}" in render._PAGE
    frames.Table("", pd.DataFrame())._repr_html_()


def test_recall_rows_that_repeat_are_merged(root):
    def row(n: int, mean: float) -> dict:
        return {"n": n, "recall@2": {"mean": mean, "low": 0.0, "high": 1.0}}

    groups = {"2 hops": row(3, 0.5), "4 hops": row(1, 0.5), "all": row(4, 0.5), "labelled gold": row(4, 0.5)}
    report = Report(root)
    report.__dict__["retrieval"] = {
        "musique": {"minilm": {"bm25": groups, "dense": groups},
                    "lsa": {"bm25": groups, "dense": groups | {"all": row(4, 0.25)}}}
    }  # fmt: skip
    found = [key[1:] for key in tables.retrieval_recall(report).frame.index]
    both = " = ".join(map(report.label_setting, ("minilm", "lsa")))
    assert [g for _, tool, g in found if tool == "bm25"] == ["all = labelled gold", "2 hops", "4 hops"]
    assert {setting for setting, tool, _ in found if tool == "bm25"} == {both}  # BM25 has no embedder
    assert len({setting for setting, tool, _ in found if tool == "dense"}) == 2


def test_an_export_begins_with_what_a_row_is(report):
    columns = list(report.scores.columns)
    assert columns[:7] == ["dataset", "setting", "run", "qid", "seed", "type", "hops"]
    assert columns.index("short") < columns.index("em") < columns.index("f1") < columns.index("llm_acc")
    assert len(set(columns)) == len(columns)
    assert set(columns) == set(report.score_rows("musique", "minilm", "arag")[0])
    assert list(report.failures.columns)[:5] == columns[:5]


def test_the_summary_defines_what_it_prints(root):
    text = summary.summary(root)
    assert "recall: share of a question's gold passages that the run retrieved" in text


# -- figures and cases


def test_a_case_says_in_text_why_it_was_chosen(report):
    for number in (1, 2, 3):
        caption = cases.step_table(report, number).caption
        assert f"Why this trace: {cases.case(report, number).why}" in caption and "(n = 1)" in caption


def test_sub_questions_that_differ_late_do_not_look_alike(root, tmp_path):
    shutil.copytree(root, tmp_path / "p")
    start = "Which town was the birthplace of the father of the person who led the opening ceremony of the lighthouse"
    for path in (tmp_path / "p/results/runs/executionrag").rglob("*.jsonl"):
        rows = list(jsonl.read(path))
        for row in rows:
            for event in row["events"]:
                for item in event["data"].get("items", ()):
                    item["question"] = f"{start} named {item['id'].upper()}NAME?"
        jsonl.write(path, rows)
    text = " ".join(" ".join(texts(figures.figure_1(Report(tmp_path / "p")))).split())
    assert "R1NAME?" in text and "R2NAME?" in text


def test_the_frontier_is_named_only_where_there_is_a_line(report):
    groups = {d: _pair(report, d) for d in report.datasets}
    for dataset, marks in groups.items():
        note = _frontier_note(report, {dataset: marks})
        lines = [m.place for m in marks]
        best = min(lines, key=lambda p: (-p[1], p[0]))
        alone = all(tokens >= best[0] for tokens, _ in lines)
        assert ("no frontier line" in note) == alone and ("Grey line" in note) != alone


def test_tokens_and_bars_of_the_ablations_have_their_own_axes(report):
    figure = figures.figure_4(report)
    tops, bars = figure.axes[3:5], figure.axes[5:7]
    assert all(not axes.patches and axes.lines for axes in tops)
    assert all(len(axes.patches) == 3 for axes in bars)
