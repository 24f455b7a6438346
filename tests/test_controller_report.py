"""What the controller did and learned: figures, tables and ten traces from invented records and a real model card."""

from __future__ import annotations

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import report_fixture
import yaml
from matplotlib.text import Text

from multihop import jsonl
from multihop.report import controller_figures, controller_tables, dynakrag_training
from multihop.report.controller_data import all_decisions, cards, records
from multihop.report.controller_traces import ten_traces
from multihop.report.load import Report
from multihop.report.plotting import png

FIGURES = ("action_mix", "importances", "calibration", "targets")
TABLES = ("actions", "skill", "target_table", "sensitivity", "model_card")
CARD = "results/trained/controller/musique/card.json"


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    return report_fixture.build_dynakrag(tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="module")
def report(project) -> Report:
    return Report(project, "dynakrag")


@pytest.fixture(scope="module")
def card(project) -> dict[str, Any]:
    return json.loads((project / CARD).read_text())


@pytest.fixture(scope="module")
def empty(tmp_path_factory, project) -> Report:
    root = tmp_path_factory.mktemp("empty")
    shutil.copy(project / "params.yaml", root)
    shutil.copytree(project / "expected", root / "expected")
    return Report(root, "dynakrag")


def texts(figure) -> list[str]:
    return [t.get_text() for t in figure.findobj(Text) if t.get_text().strip()]


def said(figure) -> str:
    return " ".join(" ".join(texts(figure)).split())


def changed(project: Path, root: Path, change) -> Report:
    """A copy of the project with another card."""
    shutil.copytree(project, root)
    content = json.loads((root / CARD).read_text())
    change(content)
    jsonl.write_json(root / CARD, content)
    return Report(root, "dynakrag")


# -- everything


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_says_n_and_what_is_not_the_papers(report, name):
    text = said(getattr(controller_figures, name)(report))
    assert re.search(r"n = (4|12 train questions)", text)
    assert " ".join(report.note().split()) in text


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_says_that_nothing_ran(empty, name):
    assert "Not run:" in said(getattr(controller_figures, name)(empty))


@pytest.mark.parametrize("name", TABLES)
def test_a_table_says_n_or_that_nothing_ran(report, empty, name):
    table = getattr(controller_tables, name)(report)
    assert re.search(r"n = 12 train questions|n \((questions of the run|train questions)\): ", table.caption)
    assert "see the note at the page's head" in table.note and len(table.frame) > 0
    assert "not run" in repr(getattr(controller_tables, name)(empty))


def test_a_figure_repeats_to_the_byte(report):
    first, again = (controller_figures.importances(Report(report.root, "dynakrag")) for _ in range(2))
    assert png(first) == png(again)


# -- actions


def test_the_mix_counts_the_decisions(report):
    figure = controller_figures.action_mix(report)
    above, below = figure.axes[2], figure.axes[5]  # MuSiQue's column
    taken = all_decisions(report, "musique")
    steps = {d.step for d in taken}
    for step in steps:
        here = [p for p in above.patches if p.get_x() + p.get_width() / 2 == pytest.approx(step)]
        assert sum(p.get_height() for p in here) == pytest.approx(100)
        shares = [p.get_height() for p in here if p.get_facecolor()[:3] != (1, 1, 1)]
        assert sum(shares) == pytest.approx(100 * sum(d.step == step for d in taken) / 4)
    outlines = [p.get_height() for p in below.patches if not p.get_fill()]
    assert outlines[0] == pytest.approx(100)  # R can always be done here
    assert outlines[-1] == pytest.approx(100 * sum("T" in d.valid for d in taken) / len(taken))


def test_the_table_has_the_same_counts_and_those_of_training(report, card):
    frame = controller_tables.actions(report).frame
    taken = [d for d in all_decisions(report, "hotpotqa") if d.step == 2]
    row = frame.loc[("run dynakrag", "HotpotQA", "2")]
    assert row["states"] == str(len(taken))
    for code, name in (("S", "S sufficiency_check"), ("T", "T stop_answer")):
        chosen, valid = (100 * sum(test(d) for d in taken) / len(taken)
                         for test in (lambda d, c=code: d.chosen == c, lambda d, c=code: c in d.valid))  # fmt: skip
        assert row[name] == f"{chosen:.0f} / {valid:.0f}"
    trained = card["actions"]["steps"][1]
    shown = frame.loc[("train trajectories", "MuSiQue", "2"), "B bridge_entity_expand"]
    assert shown == f"{100 * trained['chosen'].get('B', 0):.0f} / {100 * trained['valid']['B']:.0f}"
    assert ("train trajectories", "MuSiQue", "5") not in frame.index  # nothing can be done in a last state


# -- the card


def test_importances_are_the_cards(report, card):
    axes = controller_figures.importances(report).axes[0]
    each = [{row["feature"]: row["mean"] for row in t["importances"]["advantage"]} for t in card["trainings"]]
    top = axes.get_yticklabels()[0].get_text()
    mean = sum(t[top] for t in each) / len(each)
    assert axes.patches[0].get_width() == pytest.approx(mean)
    assert mean == max(sum(t[f] for t in each) / len(each) for f in each[0])


def test_curves_are_the_cards(report, card):
    axes = controller_figures.calibration(report).axes[0]
    lines = [line for line in axes.lines if line.get_linestyle() == "-"]
    wanted = [[row["observed"] for row in t["calibration"]["continuation"]] for t in card["trainings"]]
    assert [list(line.get_ydata()) for line in lines] == wanted


def test_one_class_only_is_no_curve_and_no_skill(project, tmp_path):
    def constant(content):
        for t in content["trainings"]:
            t["calibration"]["continuation"] = []
            t["importances"]["continuation"] = []
            t["skill"]["continuation"]["model"] = None
        said = "continuation: one class only (0) among the fit questions; a constant classifier"
        content["trainings"][0]["fallbacks"] = [said]

    report = changed(project, tmp_path / "p", constant)
    assert "undefined: nothing was held out" in texts(controller_figures.calibration(report))
    (why,) = [t for t in texts(controller_figures.importances(report)) if t.startswith("no feature matters")]
    assert why.split("\n")[1:] == ["held-out rows of one class (2 of 2)", "a constant classifier (1 of 2)"]
    row = controller_tables.skill(report).frame.loc[("controller", "MuSiQue", "continuation")]
    assert row["training 1"] == "undefined" and row["better than a constant"] == "0 of 2"
    assert "one class only" in repr(controller_tables.model_card(report))


def test_a_panel_without_importances_says_why(card):
    """Each reason by itself, in a training that would otherwise have none."""
    own = {"fallbacks": [], "calibration_questions": 3, "importances": {"gain": [{"feature": "step", "mean": -0.1}]}}
    said = {
        "nothing held out": own | {"calibration_questions": 0, "importances": {}},
        "held-out targets all equal": own | {"importances": {"gain": []}},
        "shuffling changes nothing": own,
        "a constant classifier": own | {"fallbacks": ["gain: one class only (0) among the fit questions; a constant"]},
    }
    for reason, training in said.items():
        text = controller_figures._why_none("gain", [training])
        assert text.startswith(reason) and text.endswith("(1 of 1)"), text


def test_labels_of_lines_that_end_together_are_moved_apart(report):
    out = controller_figures._apart({"G": 0.21, "R": 0.20, "B": 0.5}, 0.05)
    assert out["G"] - out["R"] == pytest.approx(0.05) and out["B"] == 0.5
    axes = controller_figures.targets(report).axes[1]
    heights = sorted(t.xy[1] for t in axes.texts)
    low, high = axes.get_ylim()
    assert min(b - a for a, b in pairwise(heights)) > 0.06 * (high - low)


def test_how_much_of_the_advantage_is_stopping_is_said(project, report, tmp_path):
    def extreme(content):
        groups = {"R": (6, 0.0), "T": (2, 1.0)}
        content["targets"]["advantage"] = {
            c: {"n": n, "mean": mean, "sd": 0.0, "min": mean, "max": mean} for c, (n, mean) in groups.items()
        }

    caption = controller_tables.skill(changed(project, tmp_path / "p", extreme)).caption
    assert "λ = 1: 1.00 (controller, MuSiQue)" in caption and "λ = 0: " in caption
    assert controller_tables._stop_share({"targets": {"advantage": {"T": {"n": 2}}}}) is None
    flat = {c: {"n": 2, "mean": 0.5, "sd": 0.25} for c in "RT"}
    assert controller_tables._stop_share({"targets": {"advantage": flat}}) == 0


def test_the_states_add_up(report, card):
    caption = controller_tables.actions(report).caption
    total, here, ends, later, open_ = (
        int(re.search(p, caption)[1])
        for p in (r"card's (\d+) states", r"states (\d+) are here", r"here, (\d+) are end", r"end states with no step "
                  r"left; (\d+) come after", r"\((\d+) here, the others ends\)")
    )  # fmt: skip
    assert total == card["states"] == here + ends and later - open_ == ends and ends > 0
    shown = controller_tables.actions(report).frame.loc["train trajectories"]["states"]
    assert here == sum(map(int, shown)) and later == card["targets"]["gain"]["n"]


def test_ties_and_constant_routers_are_said(project, tmp_path):
    root = shutil.copytree(project, tmp_path / "p")
    folder = root / "results/trained/baselines/musique"
    depth, router = (json.loads((folder / f"{name}.json").read_text()) for name in ("fixed_k", "router"))
    jsonl.write_json(folder / "fixed_k.json", depth | {"k": 3, "grid": {"3": 0.5, "5": 0.5, "8": 0.4}})
    jsonl.write_json(folder / "router.json", router | {"labels": {"A": 0, "B": 0, "C": 12}})
    row = dynakrag_training.tuned_baselines(Report(root, "dynakrag")).frame.loc["MuSiQue"]
    assert row["K"] == "3 (tie of 3, 5: the smallest)"
    assert row["router's labels"] == "A: 0, B: 0, C: 12 (one class: a constant router, always C)"
    assert "C also where none does" in dynakrag_training.tuned_baselines(Report(root, "dynakrag")).caption


def test_skill_and_targets_are_the_cards(report, card):
    frame = controller_tables.skill(report).frame
    skill = card["trainings"][1]["skill"]["advantage"]
    assert frame.loc[("controller", "MuSiQue", "advantage"), "training 2"] == f"{skill['model']:.3f}"
    assert set(frame.index.get_level_values(0)) == {"controller", "controller_lambda0", "controller_lambda05"}
    targets = controller_tables.target_table(report).frame
    s = card["targets"]["advantage"]["S"]
    assert targets.loc[("MuSiQue", "advantage of S sufficiency_check"), "mean"] == f"{s['mean']:.3f}"
    positives = card["targets"]["premature"]["positives"]
    assert targets.loc[("MuSiQue", "premature stop"), "positives"].startswith(f"{positives} (")


def test_the_options_that_were_used_are_marked(report, card):
    frame = controller_tables.sensitivity(report).frame
    options = [option for _, option in frame.index]
    assert [o for o in options if o.endswith("(used)")] == ["s_target: full_only (used)", "λ = 1 (used)"]
    literal = card["s_target_sensitivity"]["literal"]["mean"]
    assert frame.loc[("MuSiQue", "s_target: literal"), "S sufficiency_check"] == f"{literal:.3f}"
    drawn = controller_figures.targets(report).axes[1]
    assert len([line for line in drawn.lines if line.get_marker() == "o"]) == 4  # R, B, S, T were tried


def test_the_card_says_whom_it_serves_and_which_file_it_is(report, card):
    column = controller_tables.model_card(report).frame["controller, trained on MuSiQue"]
    assert column["serves in this project"] == "HotpotQA, 2WikiMultiHopQA, MuSiQue"
    first = card["trainings"][0]
    assert column["training 1: file"].endswith(first["sha256"][:16]) and first["file"] in column["training 1: file"]
    assert "two of three: " in column["training 1: thresholds (continuation / gain / premature)"]


def test_only_the_controller_behind_the_run_is_drawn(report):
    assert list(cards(report)) == ["musique"]


# -- traces


def test_ten_traces_every_sequence_first(report):
    tables = ten_traces(report)
    assert len(tables) == 10
    found = {d: records(report, d) for d in report.datasets}
    everything = {" ".join(e.data["chosen"] for e in r.events if e.kind == "decision") for of in found.values()
                  for r in of}  # fmt: skip
    shown = [re.search(r"Operations: ([A-Z ]+) \(", t.caption)[1] for t in tables]
    first = shown[: min(10, len(everything))]
    assert len(set(first)) == len(first)


def test_fewer_than_ten_say_so(project, report, tmp_path):
    root = shutil.copytree(project, tmp_path / "p")
    for dataset in ("hotpotqa", "musique"):
        shutil.rmtree(root / "results/runs/dynakrag" / dataset)
    tables = ten_traces(Report(root, "dynakrag"))
    assert len(tables) == 4
    assert all(f"Trace {i} of 4 (up to ten; here all 4)" in t.caption for i, t in enumerate(tables, 1))
    assert not any("up to ten" in t.caption for t in ten_traces(report))


def test_a_trace_is_its_record_step_by_step(report):
    table = ten_traces(report)[1]
    dataset, qid = next((d, r.qid) for d in report.datasets for r in records(report, d) if f"{r.qid}," in table.caption)
    record = next(r for r in records(report, dataset) if r.qid == qid)
    steps = [e for e in record.events if e.kind == "decision"]
    assert list(table.frame.index) == [*(f"step {e.step}" for e in steps), "answer"]
    docs = 0
    for event, (_, row) in zip(steps, table.frame.iterrows(), strict=False):
        assert row["chosen"].split()[0] == event.data["chosen"]
        assert row["valid"].split() == [a for a in "RGWBST" if a in event.data["valid"]]
        assert row["state"].startswith(f"{docs} documents")
        assert ("not asked" in row["gate"]) == (event.data["gate"] is None)
        outcome = next((e for e in record.events if e.kind == "operation" and e.step == event.step), None)
        docs += len(outcome.data["new"]) if outcome else 0
    assert f"{docs} documents" in table.frame.loc["answer", "state"]
    assert "F1 " in table.frame.loc["answer", "what came of it"]


def test_no_trace_where_nothing_ran(empty):
    (only,) = ten_traces(empty)
    assert "not run" in repr(only)


def test_a_benchmarks_passages_are_not_quoted(project, tmp_path):
    quote = "Place 3 lies east of Place 4 and was founded in 1803"
    for source, seen in (("demo", True), ("local", False)):
        root = shutil.copytree(project, tmp_path / source)
        params = yaml.safe_load((root / "params.yaml").read_text())
        (root / "params.yaml").write_text(yaml.safe_dump(params | {"source": source}, sort_keys=False))
        for path in (root / "results/runs/dynakrag").rglob("minilm.jsonl"):
            rows = list(jsonl.read(path))
            for row in rows:
                row["retrieved"].append({"chunk_id": "p3", "step": 1, "tool": "retrieve_more"})
                for event in row["events"]:
                    if event["kind"] == "operation":
                        event["data"]["missing" if event["data"]["action"] == "S" else "query"] = quote
            jsonl.write(path, rows)
        shown = " ".join(map(str, ten_traces(Report(root, "dynakrag"))))
        assert ("lies east of" in shown) == seen
