"""The instrument: known faults are recovered exactly, each alone is its category, a broken analysis is noticed."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter

import pytest
from project_fixture import REPO

from multihop.analysis import failures, reachability
from multihop.blocks import Faults
from multihop.data import splits
from multihop.evaluation.support import ChunkMap
from multihop.instrument import certified, plan, recovery, simulate, truth
from multihop.instrument.plan import DROPPED

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


def test_draws_without_a_run_are_the_runs_own(many, tmp_path):
    cases, hidden = simulate.draws(REPO, tmp_path / "project", 20, MANY, SEED)
    drawn = certified.drawn_unasked(cases, set(hidden))
    assert drawn == certified.drawn_unasked(many.cases.values(), many.unreachable) and 0 < drawn[0] < drawn[1]
    rate = certified.compare(many, MANY)["set_rates"][1]
    assert (rate["drawn"], rate["n"]) == drawn and rate["surfaced"] == rate["drawn"] - rate["count"]


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
