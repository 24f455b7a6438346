"""What a person sees of somebody else's text: pages, tables, pictures, terminals and spreadsheets show it as text."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser
from typing import Any

import nbformat
import pandas as pd
import pytest
import report_fixture
from hostile_texts import HOSTILE

from multihop import asking, guard, jsonl
from multihop.errors import MultihopError
from multihop.report import cases, page, plotting, render, timeline
from multihop.report.frames import Note, Table
from multihop.report.load import Report


class Elements(HTMLParser):
    """The elements of a page, and its visible text."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


ALLOWED = {"p", "b", "small", "table", "thead", "tbody", "tr", "th", "td", "html", "head", "meta", "title", "style",
           "body", "div", "pre", "span"}  # fmt: skip


def shown(text: str) -> nbformat.NotebookNode:
    """A notebook whose outputs show ``text`` in each way in which ours do."""
    frame = pd.DataFrame({text: [text, "1"], "n": [text, "2"]}, index=pd.Index([text, "b"], name=text))
    data = Table(text, frame, text)._repr_mimebundle_()
    output = nbformat.v4.new_output
    outputs = [
        output("display_data", data),
        output("display_data", {"text/html": Note(text)._repr_html_(), "text/plain": text}),
        output("stream", name="stdout", text=text),
        output("execute_result", {"text/plain": repr(text)}, execution_count=1),
    ]
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1", outputs=outputs)])


@pytest.mark.parametrize("name", list(HOSTILE))
def test_a_page_shows_a_hostile_text_as_text(name):
    text = HOSTILE[name].encode("utf-8", "replace").decode()
    html = render.to_html(render.normalise(shown(text)), text)
    found = Elements(html)
    assert {tag for tag, _ in found.tags} <= ALLOWED
    assert not [a for _, attrs in found.tags for a in attrs if a.startswith("on") or a in ("src", "href")]
    assert page.problems(html) == []
    if name in ("html", "braces", "formula", "shell"):
        assert found.text.count(text) >= 6


@pytest.fixture(scope="module")
def attacked(tmp_path_factory) -> Report:
    """A report of invented results in which every title, question, query, note and answer is an attack."""
    runs = {name: report_fixture.PARAMS["runs"][name] for name in ("arag", "executionrag")}
    root = report_fixture.build(tmp_path_factory.mktemp("report"), runs=runs)
    attack = "".join(t for k, t in HOSTILE.items() if k not in ("surrogate", "nul", "pickle"))

    def hostile(value: Any) -> Any:
        if isinstance(value, dict):
            words = {"title", "text", "question", "query", "note", "reason", "answer", "short", "message", "thought"}
            items = value.items()
            pairs = ((k, f"{attack} {v} {attack}" if k in words and isinstance(v, str) else v) for k, v in items)
            return {k: v if k in words else hostile(v) for k, v in pairs}
        return [hostile(v) for v in value] if isinstance(value, list) else value

    for path in [*(root / "results").rglob("*.jsonl"), *(root / "data").rglob("*.jsonl")]:
        jsonl.write(path, [hostile(row) for row in list(jsonl.read(path))])
    return Report(root)


@pytest.mark.filterwarnings("ignore:Glyph")
def test_cases_and_traces_of_attacks_are_pages_of_text(attacked):
    outputs = []
    for number in (1, 2, 3):
        table = cases.step_table(attacked, number)
        outputs.append(nbformat.v4.new_output("display_data", table._repr_mimebundle_()))
        assert "<script>" in str(table.frame) + repr(table)  # as text it is all there
    assert plotting.png(timeline.case_figure(attacked, 1)).startswith(b"\x89PNG")
    outputs.append(nbformat.v4.new_output("display_data", {"text/html": attacked_rows(attacked)._repr_html_()}))
    cells = [nbformat.v4.new_code_cell("1", outputs=outputs)]
    html = render.to_html(render.normalise(nbformat.v4.new_notebook(cells=cells)), "cases")
    found = Elements(html)
    assert {tag for tag, _ in found.tags} <= ALLOWED and "<script>alert(1)</script>" in found.text
    assert not [a for _, attrs in found.tags for a in attrs if a.startswith("on") or a in ("src", "href")]


def attacked_rows(report: Report) -> Table:
    frame = report.scores.head(3).astype(str)
    return Table("scores", frame)


@pytest.mark.parametrize(
    "markup",
    ["<script>1</script>", "<img src=x onerror=1>", "<svg/onload=1>", '<a href=" java\nscript:1">x</a>',
     '<a href="&#106;avascript:1">x</a>', "<form action=x>", '<base href="//x">', "<img src=//x/y>", "<object data=x>",
     '<meta http-equiv="refresh" content="0;url=//x">', "<style>@import '//x';</style>", "<iframe src=x>",
     '<p style="background:url(//x)">', '<a href="data:text/html,x">x</a>'],
)  # fmt: skip
def test_a_page_with_active_markup_is_refused(markup):
    """The second wall: were a text not escaped somewhere, its page would not be written."""
    output = nbformat.v4.new_output("display_data", {"text/html": markup})
    with pytest.raises(MultihopError, match="would run or load"):
        render.to_html(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1", outputs=[output])]), "bad")


@pytest.mark.filterwarnings("ignore")
def test_a_picture_draws_hostile_texts_as_text():
    texts = [text.encode("utf-8", "replace").decode() for text in HOSTILE.values()]
    with plotting.style():
        picture = plotting.Picture(" ".join(texts), texts, height=4, layout="none")
        axes = picture.body.subplots()
        axes.set_title(" ".join(texts))
        axes.set_xlabel(" ".join(texts))
        axes.set_yticks(range(len(texts)), texts)
        for number, text in enumerate(texts):
            axes.plot([0, number], label=f"{number} {text}")
            axes.text(0, number, text)
        axes.legend()
        assert plotting.png(plotting.finish(picture)).startswith(b"\x89PNG")
        assert not any(t.get_usetex() or t.get_parse_math() for t in [*axes.texts, *axes.get_yticklabels()])


@pytest.mark.parametrize("name", list(HOSTILE))
def test_a_terminal_gets_no_control_character(name):
    text = HOSTILE[name]
    for encoding in ("utf-8", "ascii"):
        raw = io.BytesIO()
        screen = guard.Screen(io.TextIOWrapper(raw, encoding=encoding))
        print(text, file=screen)
        print(asking.describe(1, "tool_error", {"tool": text, "message": text}), file=screen, flush=True)
        seen = raw.getvalue().decode(encoding)
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", seen)
    assert guard.printable("plain Ünïcode 漢字 text\twith\nlines") == "plain Ünïcode 漢字 text\twith\nlines"


def test_a_progress_bar_still_moves():
    out = io.StringIO()
    guard.Screen(out).write("\rembed: 10%")
    assert out.getvalue() == "\rembed: 10%"


@pytest.mark.parametrize(
    ("value", "kept"),
    [("=1+1", False), ("+cmd", False), ("-cmd", False), ("@x", False), ("\tx", False), ("\r=x", False), ("-5", True),
     ("+1,000.5", True), ("-12%", True), ("", True), ("a=b", True), ("Norr", True), (-5, True), (None, True)],
)  # fmt: skip
def test_a_spreadsheet_runs_no_cell(value, kept):
    assert guard.cell(value) == (value if kept else f"'{value}")
