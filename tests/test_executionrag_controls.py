"""The controls that separate causes: whole register each step, resolutions verified, Algorithm 1 to the letter."""

from __future__ import annotations

import json

import pytest
from fake_embedder import small_retriever
from project_fixture import events
from scripted_server import Say, settle
from test_executionrag import PROMPTS, QUESTION, TWO, _searches, agent_bodies, read, run, said

YES, NO = (Say(json.dumps({"stated": "", "supported": verdict})) for verdict in (True, False))


@pytest.fixture(scope="module")
def retriever(tmp_path_factory):
    return small_retriever(tmp_path_factory.mktemp("controls"))



# -- the whole register each step


def test_full_replay_shows_the_whole_register_before_every_turn(retriever):
    updates = [settle("R1", ["p0"], "Marrow Bay"), Say('{"updates": [], "new_requirements": []}')]
    searches = [read("p0"), _searches]
    client, trace, _ = run(retriever, agent=searches, update=updates, full_replay=True, max_loops=4)
    shown = [[t for t in said(body) if t.startswith("[")] for body in agent_bodies(client)]
    assert [len(texts) for texts in shown] == [0, 1, 2, 3]
    assert all(text.startswith("[Register]") and "R1" in text and "R2" in text for text in shown[-1])
    injected = events(trace, "inject")
    assert [e["inject"] for e in injected] == ["initial", "full", "full"]
    assert all(e["tokens"] == e["full_tokens"] > 0 for e in injected)


def test_deltas_cost_less_than_the_whole_register(retriever):
    updates = [settle("R1", ["p0"], "Marrow Bay"), Say('{"updates": [], "new_requirements": []}')]
    tokens = {}
    for replay in (False, True):
        _, trace, _ = run(retriever, agent=[read("p0"), _searches], update=updates, full_replay=replay, max_loops=4)
        tokens[replay] = sum(e["tokens"] for e in events(trace, "inject"))
    assert tokens[False] < tokens[True]


# -- verified


def verified(retriever, verdict, **options):
    update = settle("R1", ["p0"], "Marrow Bay")
    return run(retriever, agent=read("p0"), update=update, verdict=verdict, verify=True, **options)


def test_a_resolution_that_its_passages_bear_out_stands(retriever):
    client, trace, record = verified(retriever, YES, max_loops=2)
    [check] = client.asked("verifier")
    assert check["messages"][0]["content"] == PROMPTS["verify_system"]
    text = PROMPTS["verify_user"].format(
        passages=f"[p0] {retriever.text('p0')}", question="Where was Ilva Dorn born?", note="Marrow Bay"
    )
    assert check["messages"][1]["content"] == text and check["temperature"] == 0.0
    assert events(trace, "verify")[0] == {"id": "R1", "passages": ["p0"], "supported": True, "why": None}
    assert events(trace, "final_register")[0]["items"][0]["status"] == "resolved"
    assert record.usage["verifier"].calls == 1


@pytest.mark.parametrize("verdict", [NO, Say("I would rather not say.")])
def test_what_is_not_borne_out_or_gets_no_verdict_stays_open(retriever, verdict):
    _, trace, record = verified(retriever, verdict, max_loops=2)
    [item, _] = events(trace, "final_register")[0]["items"]
    assert (item["status"], item["note"], item["passages"]) == ("active", "Marrow Bay", ["p0"])
    assert not any(e["supported"] for e in events(trace, "verify"))
    assert [bool(e["why"]) for e in events(trace, "verify")] == [verdict is not NO] * len(events(trace, "verify"))
    assert record.stop_reason == "forced_loops"


@pytest.mark.parametrize(
    "update", [settle("R1", [], "guess"), settle("R9", ["p0"], "x"), settle("R1", ["p0"], "x", status="active")]
)
def test_nothing_is_checked_that_would_not_be_resolved(retriever, update):
    client, trace, _ = run(retriever, agent=read("p0"), update=update, verdict=NO, verify=True, max_loops=1)
    assert client.asked("verifier") == [] and events(trace, "verify") == []


def test_a_resolved_item_is_not_checked_again(retriever):
    _, trace, _ = run(
        retriever, agent=[read("p0"), read("p1")], update=settle("R1", ["p0"]), verdict=YES, verify=True, max_loops=2
    )
    assert len(events(trace, "verify")) == 1


# -- Algorithm 1


def controlled(retriever, **options):
    return run(retriever, controller=True, **{"k": 2} | options)


def test_the_controller_searches_the_registers_query_and_reads(retriever):
    client, trace, record = controlled(retriever, max_loops=2)
    searches = [e for e in events(trace, "retrieve") if e["tool"] == "semantic_search"]
    assert searches[0]["query"] == f"Where was Ilva Dorn born? For: {QUESTION}"
    assert agent_bodies(client) == [] and events(trace, "turn") == []
    assert events(trace, "read")[0]["new"] == searches[0]["chunk_ids"]
    assert (record.loops, record.forced, record.stop_reason, record.status) == (2, True, "forced_loops", "budget")
    assert client.bodies[-1]["messages"][0]["content"] == PROMPTS["final_system"]


def test_the_controller_answers_as_soon_as_the_register_is_ready(retriever):
    first = settle("R1", ["p0"], "Marrow Bay")
    both = [first, settle("R2", ["p1"], "Tomas Reed")]
    _, trace, record = controlled(retriever, update=both, k=5, max_loops=5)
    searches = [e["query"] for e in events(trace, "retrieve") if e["tool"] == "semantic_search"]
    assert searches[1] == f"Who is the mayor of Marrow Bay? For: {QUESTION}"
    assert (record.loops, record.forced, record.stop_reason, record.status) == (2, False, "ready", "ok")
    assert len(events(trace, "final_register")) == 1


def test_an_empty_answer_of_the_controller_is_invalid(retriever):
    _, _, record = controlled(retriever, final=Say(" "), max_loops=1)
    assert (record.status, record.forced) == ("invalid_output", True)


def test_nothing_new_means_no_update(retriever):
    client, trace, _ = controlled(retriever, init=TWO, controller_reads=0, max_loops=3)
    assert len(events(trace, "update_skipped")) + len(client.asked("register")) - 1 == 3
    assert events(trace, "read") == [] and len(events(trace, "update_skipped")) >= 1
