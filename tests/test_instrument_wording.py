"""The rule for what a run asked, on a simulated reader that does not ask the benchmark's sub-questions word by word."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from project_fixture import REPO

from multihop.analysis import probes, reachability
from multihop.blocks import Faults
from multihop.instrument import certified, simulate
from multihop.instrument.wording import VERBATIM, Wording

SEED = 3
NONE = Faults(**dict.fromkeys(Faults.model_fields, 0.0))
SOME = NONE.model_copy(update={"drift": 0.3, "dropped": 0.5, "unreachable": 0.2})


def fates(root, wording: Wording) -> dict:
    options = {"executionrag": {"seed_evidence": False}}
    made = simulate.simulate(REPO, root / "project", 20, SOME, SEED, options, wording)
    simulation = asyncio.run(made)
    queries = [q for log in simulation.logs["arag"].values() for tool, q in log.queries if tool == "semantic_search"]
    return {"queries": queries, **certified.compare(simulation, SOME)["fates"]["arag"]}


def test_a_wording_is_a_share_of_the_queries_and_the_same_whenever_asked():
    text, question = "Who wrote The Salt Road?", "Where was the author of The Salt Road born?"
    assert VERBATIM.of(text, question, 0) == text
    assert Wording(composed=1.0).of(text, question, 0) == f"{text} For: {question}"
    assert Wording(reworded=1.0).of("Where was Ines Havel of Dorvik born?", question, 0) == "dorvik havel ines"
    some = Wording(composed=0.3, reworded=0.2)
    words = [some.of(f"Who is {i}?", question, 0) for i in range(2000)]
    kinds = Counter("composed" if " For: " in w else "verbatim" if w[:3] == "Who" else "reworded" for w in words)
    assert abs(kinds["composed"] - 600) < 70 and abs(kinds["reworded"] - 400) < 60
    assert words == [some.of(f"Who is {i}?", question, 0) for i in range(2000)]


def test_queries_with_the_question_behind_them(tmp_path):
    """Every search carries the whole question: whatever was not asked must not count as asked for that."""
    found = fates(tmp_path, Wording(composed=1.0))
    assert all(" For: " in q for q in found["queries"])
    assert found["missing"] > 5 and found["agree"] == found["missing"], found["counts"]


def test_a_rule_that_reads_the_question_with_the_query_is_noticed(tmp_path, monkeypatch):
    def uncut(record):
        queries = [e.data["query"] for e in record.events if e.kind == "retrieve"]
        return [q if isinstance(q, str) else " ".join(q) for q in queries]

    monkeypatch.setattr(reachability, "own_words", uncut)
    found = fates(tmp_path, Wording(composed=1.0))
    assert found["counts"]["never_asked"]["asked_not_returned"] > 3 and found["agree"] < found["missing"]


def test_reworded_queries_are_told_apart_too(tmp_path):
    """Three quarters of a sub-question's content words, in another order; names also go to keyword search."""
    found = fates(tmp_path, Wording(reworded=1.0, kept=0.75))
    assert not any("?" in q for q in found["queries"])
    assert found["counts"]["asked_not_returned"]["asked_not_returned"] > 2 and found["agree"] == found["missing"]


@pytest.mark.parametrize(("kept", "known"), [(0.75, True), (0.4, False)])
def test_fewer_words_than_the_rule_asks_for_are_not_known(kept, known):
    """Where the title is not in the query either, a query of few words passes for not asked: a limit of the rule."""
    step = "Which river flows past Dorvik into Lake Orm?"
    query = Wording(reworded=1.0, kept=kept).of(step, "Where does the river end?", 0)
    assert probes.was_asked([query], "Arle", [step], 0.6) is known
