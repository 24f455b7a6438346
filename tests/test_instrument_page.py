"""The instrument's page: its tables hold the stored numbers, and say what to run where there are none."""

from __future__ import annotations

import json
import shutil

import pytest
from project_fixture import REPO

from multihop.errors import DataError
from multihop.report import figure_instrument, instrument, instrument_bias
from multihop.report.load import Report
from multihop.report.plotting import png

TABLES = {
    "confusion": lambda r, s: instrument.confusion(r, "executionrag", s),
    "rates": instrument.rates,
    "set_rates": instrument.set_rates,
    "certificates": instrument.certificates,
    "alike": instrument.alike,
    "register_bias": instrument_bias.register_bias,
    "order_bias": instrument_bias.order_bias,
    "coverage": instrument_bias.coverage,
    "levels": instrument_bias.levels,
}


@pytest.fixture
def bare(tmp_path) -> Report:
    """A project in which nothing has run, and nothing is stored."""
    shutil.copy(REPO / "params.yaml", tmp_path)
    (tmp_path / "expected").mkdir()
    return Report(tmp_path)


@pytest.fixture(scope="module")
def stored() -> dict:
    return json.loads((REPO / instrument.STORED).read_text(encoding="utf-8"))


@pytest.fixture
def report(bare) -> Report:
    """With the stored run, which also plays the part of the small one."""
    shutil.copy(REPO / instrument.STORED, bare.root / "expected")
    content = json.loads((REPO / instrument.STORED).read_text(encoding="utf-8"))
    for part in instrument.PARTS:
        path = bare.root / instrument.HERE / f"{part}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content[part]), encoding="utf-8")
    return bare


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("is_stored", [True, False])
def test_what_is_not_there_says_how_it_is_made(bare, name, is_stored):
    table = TABLES[name](bare, is_stored)
    assert len(table.frame) == 0 and f"Not there: run `{instrument.command(is_stored)}`" in table.caption
    assert "not there" in instrument.what_ran(bare).text


@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_its_rows_and_its_size(report, name):
    for is_stored in (True, False):
        table = TABLES[name](report, is_stored)
        assert len(table.frame) > 1 and table.note and ("Stored run." in table.caption) is is_stored


@pytest.mark.parametrize("method", instrument.METHODS)
def test_the_confusion_matrix_holds_every_question_once(report, stored, method):
    frame = instrument.confusion(report, method).frame
    counts = [int(c) for c in frame[list(instrument.LABELS.values())].to_numpy().ravel() if c]
    assert sum(counts) == stored["recovery"]["questions"]


def test_rules_say_no_certificate_and_never_unreachable(report):
    table = instrument.certificates(report)
    assert "said: no certificate" in table.frame and not any("unreachable" in c for c in table.frame)
    assert "not asked, unreachable" in table.frame.index.get_level_values(1)


def test_rates_go_by_their_labels_and_the_sizes_are_explained(report, stored):
    assert not any("_" in name for name in instrument.rates(report).frame.index.get_level_values(0))
    hops, distinct = stored["recovery"]["hops"], stored["recovery"]["certificates"]["set_rates"][0]["n"]
    assert f"{distinct:,} are distinct passages of {hops:,} hops" in instrument.set_rates(report).note


def test_labels_alone_are_shown_as_what_they_are(report, stored):
    rows = {(r["measure"], r["symmetric"]): r for r in stored["recovery"]["paired"]["rows"]}
    shown = instrument.alike(report).frame
    missing = rows["missing_evidence", False]
    line = shown.loc["missing evidence, paper's rule"]
    assert line.iloc[0] == f"{missing['first']:,}" and line.iloc[1] == f"{missing['second']:,}"
    assert missing["second"] < missing["first"] and rows["correct", False]["first"] == rows["correct", False]["second"]
    assert rows["wrong_and_missing", False]["p"] == 1.0


def test_the_pages_sentences_hold_the_stored_numbers(report, stored):
    cells = json.loads((REPO / "notebooks/instrument.ipynb").read_text(encoding="utf-8"))["cells"]
    prose = " ".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    rows = {(r["measure"], r["symmetric"]): r for r in stored["recovery"]["paired"]["rows"]}
    papers, fair = rows["missing_evidence", False], rows["missing_evidence", True]
    assert f"from {papers['first']} to {papers['second']}" in prose
    assert f"from {fair['first']} to {fair['second']} (p = {fair['p']:.3f})" in prose
    assert f"{fair['first']} → {fair['second']} (p = {fair['p']:.2g})" in instrument.alike(report).note
    coverage = stored["repetitions"]["coverage"]
    outside = sum(not r["in_band"] for r in coverage)
    assert f"{outside} of {len(coverage)} cells" in prose
    assert all(r["in_band"] for r in coverage if r["n"] == 1000) and "All five at n = 1,000 are inside" in prose
    note = instrument_bias.coverage(report).note
    assert f"{outside} of {len(coverage)} cells" in note and "At n = 1,000 5 of 5 are inside" in note


def test_order_bias_shows_what_the_rules_hide(report):
    frame = instrument_bias.order_bias(report).frame
    last = frame.iloc[-1]
    injected, missing, hidden = (
        [int(n) for n in last[key].split(" → ")]
        for key in ("injected: wrong for want of a passage", "missing evidence", "hidden as gave up")
    )
    assert injected[0] == injected[1] == missing[1] + hidden[1] and missing[1] < missing[0]


def test_coverage_outside_of_the_band_is_marked(report, stored):
    cells = instrument_bias.coverage(report).frame.to_numpy().ravel()
    outside = sum(not r["in_band"] for r in stored["repetitions"]["coverage"])
    assert sum(c.endswith("*") for c in cells) == outside and len(cells) == len(stored["repetitions"]["coverage"])


def test_figures_are_the_same_bytes_twice_and_say_what_is_missing(report, tmp_path):
    for draw in (figure_instrument.recovered, figure_instrument.labels_alone):
        assert png(draw(report)) == png(draw(report))
    (report.root / instrument.STORED).unlink()
    assert png(figure_instrument.recovered(report)) != png(figure_instrument.recovered(report, stored=False))


def test_a_damaged_file_is_refused(report):
    (report.root / instrument.STORED).write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match="not JSON"):
        instrument.rates(report)
    (report.root / instrument.STORED).write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match="no recovery"):
        instrument.rates(report)
