"""The instrument: known faults are recovered exactly, each alone is its category, a broken analysis is noticed."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections import Counter

import pytest
from project_fixture import REPO

from multihop import config, jsonl
from multihop.analysis import failures, reachability
from multihop.blocks import Faults, Instrument
from multihop.data import splits
from multihop.errors import ConfigError, MultihopError
from multihop.evaluation import statistics
from multihop.evaluation.support import ChunkMap
from multihop.instrument import bias, certified, measure, plan, recovery, repetitions, simulate, truth
from multihop.instrument.plan import ASKED, DROPPED, EARLY, SWAPPED
from multihop.instrument.reader import SimulatedReader, keywords
from multihop.types import Gold, Hop, Question

SEED = 3
NONE = Faults(**dict.fromkeys(Faults.model_fields, 0.0))
MANY = Faults(drift=0.12, early=0.1, stall=0.1, misread=0.2, unreachable=0.1, judge_error=0.1, judge_accept=0.1)


def run(root, faults, **options) -> simulate.Simulation:
    return asyncio.run(simulate.simulate(REPO, root / "project", 20, faults, SEED, options))


def compare(simulation, faults=MANY):
    return recovery.compare(simulation, faults, seed=0, resamples=99)


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> simulate.Simulation:
    """All faults together; ExecutionRAG with its seed retrieval, as the paper has it."""
    return run(tmp_path_factory.mktemp("many"), MANY)


# -- recovered


def test_twenty_questions_are_recovered_one_by_one(many):
    compared = compare(many)
    for method in simulate.METHODS:
        assert compared["methods"][method]["disagree"] == []
        assert compared["methods"][method]["agree"] == 20
    assert {r["points"] for r in compared["rates"] if r["exact"]} == {0.0}


def test_the_faults_really_happened(many):
    """So that the test above has something to recover."""
    kinds = {t.mechanism for m in simulate.METHODS for t in truth.truths(many, m)}
    assert {"right", "misread", "missing: unreachable"} <= kinds and len(kinds) >= 7
    said = {f["category"] for m in simulate.METHODS for f in many.failures[m]}
    assert {"gave_up", "reasoning_error", "missing_evidence"} <= said


def test_what_the_reader_saw_is_what_the_records_hold(many):
    for method in simulate.METHODS:
        for record in many.records[method]:
            surfaced = {r.chunk_id for r in record.retrieved}
            log = many.logs[method][record.qid]
            assert log.seen & set(many.gold[record.qid].supporting) == surfaced & set(many.gold[record.qid].supporting)
            issued = [e for e in record.events if e.kind == "retrieve" and e.data["tool"] != "seed"]
            assert len(issued) == len(log.queries)
            assert log.answer.strip() == record.answer


def test_requests_went_through_the_real_client(many):
    """Native tool calls, the register's schemas, usage and the store: nothing of the client is replaced."""
    for record in many.records["executionrag"]:
        assert record.usage["register"].calls >= 1 and record.usage["reader"].prompt_tokens > 0
        assert not [e for e in record.events if e.kind in ("update_failed", "tool_error", "format_fallback")]
    assert (many.root / ".multihop-arag/store.sqlite").is_file()


FAULTS = {
    "right": (NONE, {"arag": None, "executionrag": None}),
    "swapped": (NONE.model_copy(update={"drift": 1.0}), {"arag": "missing", "executionrag": "missing"}),
    "early": (NONE.model_copy(update={"early": 1.0}), {"arag": "missing", "executionrag": "3b"}),
    "abstain": (NONE.model_copy(update={"abstain": 1.0}), {"arag": "phrase", "executionrag": "phrase"}),
    "misread": (NONE.model_copy(update={"misread": 1.0}), {"arag": "3a", "executionrag": "3a"}),
    "stall": (NONE.model_copy(update={"misread": 1.0, "stall": 1.0}), {"arag": "forced", "executionrag": "3a"}),
    "abstain_missing": (
        NONE.model_copy(update={"drift": 1.0, "abstain_missing": 1.0}),
        {"arag": "phrase", "executionrag": "phrase"},
    ),
    "guess": (NONE.model_copy(update={"drift": 1.0, "guess": 1.0}), {"arag": None, "executionrag": None}),
}
"""Kind -> (its faults alone, method -> the rule that must fit; None: no failure)."""


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory) -> tuple[simulate.Simulation, dict[str, str]]:
    """A run in which every question has one kind of fault at rate 1, and the dropped last hop as a kind of its own."""
    kinds = [*FAULTS, "dropped"]
    chosen: dict[str, str] = {}

    def draw(questions, gold, faults, seed):
        cases = {}
        for number, question in enumerate(questions):
            kind = chosen[question.id] = kinds[number % len(kinds)]
            case = plan.draw(questions, gold, FAULTS.get(kind, FAULTS["right"])[0], seed)[question.text]
            if kind == "dropped":
                case = dataclasses.replace(case, fates=(*case.fates[:-1], DROPPED))
            cases[question.text] = case
        return cases

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulate.plan, "draw", _avoiding(draw))
        found = run(tmp_path_factory.mktemp("one"), NONE, executionrag={"seed_evidence": False})
    return found, chosen


def _avoiding(draw):
    original = plan.draw

    def patched(*args):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(simulate.plan, "draw", original)
            return draw(*args)

    return patched


@pytest.mark.parametrize("method", simulate.METHODS)
def test_each_fault_alone_is_its_category(one_by_one, method):
    simulation, chosen = one_by_one
    said = {f["qid"]: f["reason"] for f in simulation.failures[method] if f["judge"] == "llm"}
    expected = {kind: should[method] for kind, (_, should) in FAULTS.items()}
    # Left out of the register, the sub-question leaves nothing open: the paper's rule takes it for a false resolution.
    expected["dropped"] = "missing" if method == "arag" else "3b"
    for qid, kind in sorted(chosen.items()):
        assert said.get(qid) == expected[kind], (qid, kind)
    assert set(chosen.values()) == set(expected)


def test_unreachable_passages_are_missing_and_have_no_certificate(tmp_path):
    faults = NONE.model_copy(update={"unreachable": 1.0})
    simulation = run(tmp_path, faults)
    made = certified.compare(simulation, faults)
    assert made["passages"]["reachable"] == {"certified": 0, "no certificate": 0}
    assert made["passages"]["unreachable"]["certified"] == 0
    for method in simulate.METHODS:
        reasons = Counter(f["reason"] for f in simulation.failures[method] if f["judge"] == "llm")
        assert reasons == {"missing": 20}
        fates = made["fates"][method]
        assert fates["counts"]["asked_not_returned"]["asked_not_returned"] == fates["missing"] > 0


def test_a_judge_that_always_errs(tmp_path):
    simulation = run(tmp_path, NONE.model_copy(update={"judge_error": 1.0, "judge_accept": 1.0, "misread": 0.5}))
    for method in simulate.METHODS:
        known = truth.truths(simulation, method)
        said = {f["qid"]: f["category"] for f in simulation.failures[method] if f["judge"] == "llm"}
        assert {t.mechanism for t in known} == {"right, judge rejects", "wrong, judge accepts"}
        assert said == {t.qid: "judge_error" for t in known if t.mechanism == "right, judge rejects"}


def test_without_any_fault_there_is_nothing_to_find(tmp_path):
    """All right: no wrong answer to take shares of, no missing passage, and every question agrees."""
    simulation = run(tmp_path, NONE)
    compared = compare(simulation, NONE)
    assert [m["agree"] for m in compared["methods"].values()] == [20, 20]
    assert {r["recovered"] for r in compared["rates"]} == {0.0} and all(r["within"] for r in compared["set_rates"])
    made = certified.compare(simulation, NONE)
    assert made["fates"]["arag"]["missing"] == 0 and made["fates"]["arag"]["share"] is None


def test_certificates_tell_unreachable_from_unasked(many):
    made = certified.compare(many, MANY)
    assert made["passages"]["reachable"]["no certificate"] == made["passages"]["unreachable"]["certified"] == 0
    assert made["passages"]["unreachable"]["no certificate"] > 0
    for fates in made["fates"].values():
        assert fates["agree"] == fates["missing"] > 0
        assert sum(fates["counts"]["never_asked"].values()) > 0


# -- a broken analysis is noticed


def again(simulation: simulate.Simulation) -> simulate.Simulation:
    """The same run, classified anew by the rules as they are now."""
    chunks = ChunkMap(splits.chunks(simulation.root / "data/prepared" / simulate.DATASET, "passages"))
    rows = {
        m: failures.classify_cell(simulation.records[m], simulation.scores[m], simulation.gold, chunks)
        for m in simulate.METHODS
    }
    return dataclasses.replace(simulation, failures=rows)


def disagreements(simulation) -> int:
    return sum(len(m["disagree"]) for m in compare(again(simulation))["methods"].values())


def test_the_rules_as_they_are_disagree_nowhere(many):
    assert disagreements(many) == 0


BROKEN = {
    "abstentions unseen": ("find_abstention", lambda answer: None),
    "every register open": ("register_closed", lambda record: False),
    "every register closed": ("register_closed", lambda record: True),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_noticed(many, monkeypatch, name):
    monkeypatch.setattr(failures, *BROKEN[name])
    assert disagreements(many) > 0


def test_another_order_of_rules_is_noticed(many, monkeypatch):
    original = failures.classify

    def missing_first(**facts):
        if facts["support"].missing:
            return "missing_evidence", "missing"
        return original(**facts)

    monkeypatch.setattr(failures, "classify", missing_first)
    assert disagreements(many) > 0


def test_a_wrong_count_of_passages_is_noticed(many):
    """Score rows that take every passage for found: the realised rate is off, and a set rate too."""
    rows = {m: [s | {"hop_found": [True] * len(s["hop_found"])} for s in many.scores[m]] for m in simulate.METHODS}
    compared = compare(dataclasses.replace(many, scores=rows))
    off = {r["rate"] for r in compared["rates"] if abs(r["points"]) > 0.5}
    assert "gold passage unseen, of all" in off


def test_a_broken_reading_of_queries_is_noticed(many, monkeypatch):
    monkeypatch.setattr(reachability, "was_asked", lambda *args: False)
    made = certified.compare(many, MANY)
    assert all(f["agree"] < f["missing"] for f in made["fates"].values())


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
        assert p["missing"][0] == p["injected"][0]
        if p["grid"] in ("early", "dropped"):
            assert p["symmetric"][0] == p["symmetric"][1] == p["injected"][1]
            assert (p["drop"] > 0) == (p["rate"] > 0)
            assert p["wrong_and_missing"][0] == p["wrong_and_missing"][1]


def test_giving_up_hides_what_is_missing(points):
    for p in points:
        if p["grid"] in ("stall", "abstain_missing"):
            assert p["wrong_and_missing"][0] == p["wrong_and_missing"][1]
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
    assert measure.scaled(MANY, 2.0).early == 0.2 and measure.scaled(MANY, 2.0).dropped == MANY.dropped


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


def test_files_are_written_where_they_are_asked_for(tmp_path):
    parts = {part: {"x": 1} for part in measure.PARTS}
    measure.write(tmp_path, parts, Instrument())
    assert sorted(p.name for p in (tmp_path / measure.FOLDER).iterdir()) == sorted(f"{p}.json" for p in measure.PARTS)
    measure.write(tmp_path, parts, Instrument(), tmp_path / "one.json")
    whole = json.loads((tmp_path / "one.json").read_text(encoding="utf-8"))
    assert whole["params"]["seed"] == Instrument().seed and whole["bias"] == {"x": 1}
    assert jsonl.dumps(whole)
