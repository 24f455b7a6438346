"""The instrument's parts: draws, the reader turn by turn, repetitions, grids of bias, params and stored numbers."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter

import pytest
from project_fixture import REPO

from multihop import config
from multihop.blocks import Faults, Instrument
from multihop.errors import ConfigError, MultihopError
from multihop.evaluation import statistics
from multihop.instrument import bias, certified, measure, plan, repetitions
from multihop.instrument.plan import ASKED, DROPPED, EARLY, SWAPPED
from multihop.instrument.reader import SimulatedReader, keywords
from multihop.types import Gold, Hop, Question

SEED = 3
NONE = Faults(**dict.fromkeys(Faults.model_fields, 0.0))


# -- draws


def test_draws_are_uniform_and_belong_to_their_key():
    values = [plan.drawn(1, f"q{i}", i % 3, "fate") for i in range(4000)]
    counts = Counter(int(10 * v) for v in values)
    assert min(values) >= 0 and max(values) < 1
    assert sum((c - 400) ** 2 / 400 for c in counts.values()) < 27.9  # chi-square, 9 degrees of freedom, 0.001
    assert plan.drawn(1, "q", 0, "fate") == plan.drawn(1, "q", 0, "fate") != plan.drawn(1, "q", 1, "fate")
    assert plan.drawn(1, "q", 0, "fate") != plan.drawn(2, "q", 0, "fate") != plan.drawn(1, "q", 0, "dropped")


def test_fates_have_their_rates_and_never_drop_everything():
    faults = Faults(drift=0.3, dropped=0.5, early=0.2)
    counts = Counter(f for i in range(3000) for f in plan.fates_of(faults, 0, f"q{i}", 4))
    for fate, rate in ((DROPPED, 0.15), (SWAPPED, 0.15), (EARLY, 0.2), (ASKED, 0.5)):
        assert abs(counts[fate] / 12000 - rate) < 0.015
    assert plan.fates_of(Faults(drift=1.0, dropped=1.0, early=0.0), 0, "q", 3) == (SWAPPED, DROPPED, DROPPED)


def _case() -> plan.Case:
    chain = (Hop("Who wrote The Salt Road?", "Ines Havel", "p1"), Hop("Where was Ines Havel born?", "Dorvik", "p2"))
    gold = [Gold("q1", ("Dorvik",), ("p1", "p2"), "2hop", 2, chain)]
    gold.append(Gold("q2", ("the Arle",), ("p3",), "2hop", 1, (Hop("Which river?", "the Arle", "p3"),)))
    asked = [Question("q1", "Where was the author of The Salt Road born?"), Question("q2", "Which river is it?")]
    return plan.draw(asked, gold, NONE, 0)[asked[0].text]


def test_a_question_of_another_world_is_refused():
    case = _case()
    reader = SimulatedReader({case.question.text: case}, 0)
    with pytest.raises(MultihopError, match="no question of its world"):
        reader.reply({"messages": [{"role": "user", "content": "Question: What is this?"}], "tools": []})


def test_the_reader_asks_hop_by_hop_and_answers_from_what_it_saw():
    case = _case()
    reader = SimulatedReader({case.question.text: case}, 0)
    messages = [{"role": "user", "content": f"Question: {case.question.text}"}]
    _, calls = reader.reply({"messages": messages, "tools": []})
    assert calls == [("semantic_search", {"query": "Who wrote The Salt Road?", "top_k": 1})]
    call = {"function": {"name": calls[0][0], "arguments": json.dumps(calls[0][1])}}
    messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
    messages.append({"role": "tool", "content": "[p1] The Salt Road is by Ines Havel."})
    _, calls = reader.reply({"messages": messages, "tools": []})
    assert calls[0] == ("read_chunk", {"chunk_ids": ["p1"]}) and calls[1][1]["query"] == "Where was Ines Havel born?"
    text, _ = reader.reply({"messages": [*messages, {"role": "tool", "content": "[p2] She"}]})
    assert text.startswith("Dorvik\n") and reader.logs["q1"].forced and reader.logs["q1"].kind == "right"


def test_keywords_are_the_names_in_a_question():
    assert keywords("Which town is home to the Gadudo Messenger?") == ["Gadudo Messenger"]
    assert keywords("In 1911, who was governor of Arvenwold?") == ["Arvenwold"]
    assert keywords("who was it?") == ["who was it?"]


# -- repetitions


def test_intervals_and_tests_over_drawn_outcomes():
    found = repetitions.repeat(60, [60], [0.5], seed=1, resamples=199)
    assert {r["of"] for r in found["coverage"]} == {"share 0.5", "F1", "paired difference"}
    assert all(r["low"] <= 0.95 <= r["high"] or abs(r["covered"] - 0.95) < 0.06 for r in found["coverage"])
    levels = {r["test"]: r for r in found["levels"]}
    assert levels["McNemar, no difference"]["low"] <= 0.05 and levels["Holm over 6, no difference"]["low"] <= 0.05


def test_too_narrow_an_interval_does_not_cover(monkeypatch):
    original = statistics.bootstrap_mean

    def narrow(values, **options):
        i = original(values, **options)
        return statistics.Interval(i.mean, i.mean - (i.mean - i.low) / 3, i.mean + (i.high - i.mean) / 3, i.n)

    monkeypatch.setattr(statistics, "bootstrap_mean", narrow)
    found = repetitions.repeat(60, [60], [0.5], seed=1, resamples=199)
    assert not any(r["in_band"] for r in found["coverage"]) and all(r["high"] < 0.95 for r in found["coverage"])


def test_a_test_without_level_is_noticed(monkeypatch):
    original = statistics.mcnemar
    monkeypatch.setattr(
        statistics, "mcnemar", lambda a, b: dataclasses.replace(original(a, b), p=original(a, b).p / 10)
    )
    found = repetitions.repeat(60, [60], [0.5], seed=1, resamples=99)
    assert next(r for r in found["levels"] if r["test"] == "Holm over 6, no difference")["low"] > 0.05


# -- bias


@pytest.fixture(scope="module")
def points():
    return bias.grids(120, seed=SEED, resamples=99)


def test_labels_alone_make_a_drop_and_the_symmetric_rule_none(points):
    for p in points:
        assert p["symmetric"][0] + p["gave_up"][0] == p["missing"][0] + p["gave_up"][0] == p["injected"][0]
        assert p["injected"] == p["wrong_and_missing"]
        if p["grid"] in ("early", "dropped"):
            assert p["symmetric"][0] == p["symmetric"][1] and p["gave_up"][0] == p["gave_up"][1] > 0
            assert (p["drop"] > 0) == (p["rate"] > 0)
            assert p["wrong_and_missing"][0] == p["wrong_and_missing"][1]


def test_giving_up_hides_what_is_missing(points):
    for p in points:
        if p["grid"] in ("stall", "abstain_missing"):
            assert p["injected"][0] == p["injected"][1]  # the same passages: the bias is what the rules hide of it
            assert p["missing"][0] - p["missing"][1] == p["gave_up"][1] and p["gave_up"][0] == 0
            assert (p["drop"] > 0) == (p["rate"] > 0) and p["low"] <= p["drop"] <= p["high"]


def test_the_rate_at_which_labels_make_the_papers_drop():
    rates = ((0.0, 0.0), (0.1, 0.5))
    line = [{"grid": "early", "drift": 0.1, "rate": r, "drop_share": s} for r, s in rates]
    found = bias.labels_alone(line)
    assert found == {"0.05": None, "0.1": pytest.approx(0.1 * (148 / 382) / 0.5, abs=1e-4), "0.2": None}


# -- params, files, stored results


def test_impossible_faults_and_sizes_are_refused():
    params = config.load(REPO / "params.yaml").model_dump(mode="json")
    for block in ({"faults": {"drift": 0.7, "early": 0.5}}, {"questions": 3}, {"faults": {"misread": 1.5}}, {"n": 1}):
        with pytest.raises(ConfigError, match="instrument"):
            config.parse({"profile": "x", **_least(params), "instrument": block})


def _least(params):
    return {k: params[k] for k in ("datasets", "data", "endpoints", "readers", "embedders", "settings", "judge")} | {
        "runs": {"direct": {"method": "direct"}}
    }


def test_sizes_of_the_command_line_come_last():
    block = Instrument(seed=9, faults=NONE)
    assert measure.sized(block, None, None, False) == block
    full = measure.sized(block, 40, None, True)
    assert (full.questions, full.repetitions, full.seed, full.faults) == (40, 1000, 9, NONE)
    some = Faults(early=0.1)
    assert measure.scaled(some, 2.0).early == 0.2 and measure.scaled(some, 2.0).dropped == some.dropped


def test_the_stored_run_recovers_what_is_asked_of_it():
    """expected/instrument.json: 1,000 questions, rates to half a point, set rates within 3 standard errors."""
    stored = json.loads((REPO / "expected/instrument.json").read_text(encoding="utf-8"))
    found = stored["recovery"]
    assert found["questions"] == 1000 and stored["params"]["seed"] == config.load(REPO / "params.yaml").instrument.seed
    assert all(abs(r["points"]) <= 0.5 for r in found["rates"] if r["exact"])
    assert all(r["within"] for r in [*found["set_rates"], *found["certificates"]["set_rates"]])
    assert stored["repetitions"]["repetitions"] == 1000
    for row in stored["repetitions"]["levels"]:
        assert "at_most" not in row or row["low"] <= row["at_most"]


def test_what_is_expected_of_drift_leaves_out_what_surfaced():
    """400 hops drawn as not asked for of 2,000 at a rate of 0.2; 40 passages surfaced: 0.18 is expected, not 0.2."""
    counts = {fate: dict.fromkeys(certified.FATES, 0) for fate in certified.FATES}
    counts["never_asked"]["never_asked"] = 360
    found = certified.unasked_rate(Faults(drift=0.15, early=0.05), counts, 400, 2000)
    assert found["expected"] == 0.18 and found["z"] == 0 and found["surfaced"] == 40
    counts["asked_not_returned"]["never_asked"] = 90  # a rule that says it too often is noticed
    assert not certified.unasked_rate(Faults(drift=0.15, early=0.05), counts, 400, 2000)["within"]


def test_a_run_of_other_params_is_not_added_to(tmp_path):
    measure.write(tmp_path, {part: {} for part in measure.PARTS}, Instrument(seed=1), tmp_path / "one.json")
    with pytest.raises(MultihopError, match="another seed"):
        measure.again(REPO, Instrument(seed=2), tmp_path / "one.json")


def test_files_are_written_where_they_are_asked_for(tmp_path):
    parts = {part: {"x": 1} for part in measure.PARTS}
    measure.write(tmp_path, parts, Instrument())
    assert sorted(p.name for p in (tmp_path / measure.FOLDER).iterdir()) == sorted(f"{p}.json" for p in measure.PARTS)
    measure.write(tmp_path, parts, Instrument(), tmp_path / "one.json")
    whole = json.loads((tmp_path / "one.json").read_text(encoding="utf-8"))
    assert whole["params"]["seed"] == Instrument().seed and whole["bias"] == {"x": 1}
