"""DynaKRAG's state, validity, operations and control loop, with a scripted model and a scripted controller."""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import replace

import pytest
from dynakrag_fixture import FakeController, kind, script
from fake_embedder import PASSAGES, small_retriever
from hypothesis import given, settings
from hypothesis import strategies as st
from project_fixture import FakeClient, events, prompts_of
from scripted_server import Say

from multihop import running
from multihop.controller import features
from multihop.controller.state import ACTIONS, OPERATIONS, Limits, Step, initial
from multihop.controller.validity import affordable, valid
from multihop.errors import ConfigError
from multihop.methods import registry
from multihop.methods.base import Tools, Trace
from multihop.methods.dynakrag import Dynakrag, Params
from multihop.methods.operations import Workspace, start
from multihop.types import Question

QUESTION = "Who is the mayor of the town where the author of The Glass Harbour was born?"
MORE = [*PASSAGES, *((f"Filler {n}", f"Filler {n} is a small place with {n} lamps.") for n in range(20))]


@pytest.fixture(scope="module")
def retriever(tmp_path_factory):
    return small_retriever(tmp_path_factory.mktemp("dynakrag"), MORE)


def tools_of(retriever, reply=None, controller=None):
    client = FakeClient(reply or script())
    return Tools(
        retriever,
        client,
        prompts_of("dynakrag"),
        Trace(),
        0,
        random.Random("0:q"),
        {"controller": controller or FakeController()},
    )


def run(retriever, reply=None, controller=None, **options):
    """(client, record) of one question."""
    client = FakeClient(reply or script())
    cell = running.Cell(
        "dynakrag",
        "set",
        "setting",
        Dynakrag(Params(**options)),
        client,
        retriever,
        prompts_of("dynakrag"),
        "h",
        "c",
        lambda seed: {"controller": controller or FakeController()},
    )
    return client, asyncio.run(cell.answer(Question("q", QUESTION), 0))


def chosen(record):
    return [d["chosen"] for d in events(record, "decision")]


# -- the state and what is valid in it


def test_the_seven_operations_and_the_six_of_the_loop():
    assert [o.code for o in OPERATIONS] == list("RGWBSTC") and ACTIONS == tuple("RGWBST")
    assert len({o.name for o in OPERATIONS}) == 7


def test_only_the_first_retrieval_is_valid_at_the_start(retriever):
    state = start(QUESTION, tools_of(retriever))
    assert valid(state, Limits()) == ("R",) and state.retrievals == 0
    assert len(state.frontier) == len(MORE)


def test_stop_is_what_is_left_where_nothing_was_found():
    assert valid(initial("Who?", ()), Limits()) == ("T",)
    assert affordable(("S",), initial("Who?", ()), Limits(tokens=10), {"S": 11.0}) == ("T",)


@pytest.mark.parametrize(
    "change, expected",
    [
        ({}, "RWT"),
        ({"gap": "the mayor"}, "RGWT"),
        ({"rewrite_spent": True}, "RT"),
        ({"checked_docs": -1}, "RWST"),
        ({"checked_docs": 0}, "RWST"),
        ({"cursor": 3}, "WT"),
    ],
)
def test_validity_rules(change, expected):
    base = initial("Who?", (("a", 0.9), ("b", 0.8), ("c", 0.7)))
    state = replace(base, docs=("a",), cursor=1, checked_docs=1)
    assert "".join(valid(replace(state, **change), Limits())) == expected


def test_frontier_documents_that_another_search_brought_do_not_make_it_valid():
    state = replace(initial("Who?", (("a", 0.9), ("b", 0.8))), docs=("a", "b"), cursor=1, checked_docs=2)
    assert "R" not in valid(state, Limits())


def test_caps_close_every_retrieving_action(retriever):
    state = replace(initial("Who?", tuple((f"d{n}", 0.5) for n in range(20))), docs=("d0",), cursor=1, gap="x")
    spent = replace(state, history=(Step("R", retrievals=1),))
    assert valid(spent, Limits(retrievals=1)) == ("S", "T")
    assert valid(state, Limits(docs=1)) == ("S", "T")
    assert "S" not in valid(state, Limits(sufficiency=False))


@given(
    docs=st.integers(0, 13),
    gap=st.sampled_from(["", "the town"]),
    retrievals=st.integers(0, 5),
    cap=st.one_of(st.none(), st.integers(1, 4)),
    frontier=st.integers(0, 15),
    checked=st.integers(-1, 13),
    left=st.integers(0, 100),
)
def test_no_state_is_without_an_action(docs, gap, retrievals, cap, frontier, checked, left):
    state = replace(
        initial("Who?", tuple((f"d{n}", 0.5) for n in range(frontier))),
        docs=tuple(f"e{n}" for n in range(docs)),
        gap=gap,
        checked_docs=checked,
        history=tuple(Step("R", retrievals=1) for _ in range(retrievals)),
    )
    limits = Limits(retrievals=cap, tokens=left)
    found = valid(state, limits)
    assert found and affordable(found, state, limits, dict.fromkeys(ACTIONS, 50.0))


# -- operations


def test_each_retrieval_adds_at_most_three_unseen_documents(retriever):
    tools = tools_of(retriever)
    work = Workspace(tools, Limits())
    one = asyncio.run(work.run("R", start(QUESTION, tools)))
    two = asyncio.run(work.run("R", one))
    assert [len(one.docs), len(two.docs)] == [3, 6] and one.docs == two.docs[:3]
    assert list(two.docs) == [c for c, _ in two.frontier[:6]] and two.cursor == 6
    assert one.history[-1].retrievals == 1 and one.step == 1


def test_a_bridge_search_goes_around_an_entity_that_the_question_does_not_name(retriever):
    tools = tools_of(retriever)
    work = Workspace(tools, Limits())
    state = asyncio.run(work.run("R", start(QUESTION, tools)))
    best = state.bridges[0]
    after = asyncio.run(work.run("B", state))
    assert best.text.casefold() not in QUESTION.casefold() and best.text in best.query
    assert after.latest_query == best.query and best.text in after.used_entities
    assert best.text not in [b.text for b in after.bridges]


def test_a_negative_check_records_the_gap_and_the_gap_query_uses_it_up(retriever):
    tools = tools_of(retriever)
    work = Workspace(tools, Limits())
    state = asyncio.run(work.run("S", asyncio.run(work.run("R", start(QUESTION, tools)))))
    assert (state.sufficient, state.gap) == (False, "the mayor of Marrow Bay town")
    assert "S" not in valid(state, Limits()) and "G" in valid(state, Limits())
    after = asyncio.run(work.run("G", state))
    # Three content words: too short to stand alone.
    assert after.history[-1].query == f"{QUESTION} the mayor of Marrow Bay town" or after.history[-1].query == state.gap
    assert after.gap == "" and "G" not in valid(after, Limits())


@pytest.mark.parametrize("reply", ["", "no idea", '{"sufficient": "perhaps"}', "{broken"])
def test_an_unusable_check_is_negative_without_a_gap(retriever, reply):
    tools = tools_of(retriever, script(check=(reply,)))
    work = Workspace(tools, Limits())
    state = asyncio.run(work.run("S", asyncio.run(work.run("R", start(QUESTION, tools)))))
    assert (state.sufficient, state.gap, state.history[-1].failed) == (False, "", True)
    assert events(tools.trace, "parse_failed")[0]["what"] == "sufficiency"
    assert "G" not in valid(state, Limits())


@pytest.mark.parametrize("reply", ["", "   \n", QUESTION.lower() + " "])
def test_a_rewrite_that_brings_no_new_query_is_spent(retriever, reply):
    tools = tools_of(retriever, script(rewrite=reply))
    work = Workspace(tools, Limits())
    before = asyncio.run(work.run("R", start(QUESTION, tools)))
    state = asyncio.run(work.run("W", before))
    assert state.rewrite_spent and state.docs == before.docs and state.history[-1].failed
    assert state.retrievals == before.retrievals and "W" not in valid(state, Limits())
    assert events(tools.trace, "parse_failed")[0]["what"] == "rewrite"


def test_a_rewrite_is_searched(retriever):
    tools = tools_of(retriever, script(rewrite='Query: "mayor of Marrow Bay"\nmore text'))
    work = Workspace(tools, Limits())
    state = asyncio.run(work.run("W", asyncio.run(work.run("R", start(QUESTION, tools)))))
    assert state.latest_query == "mayor of Marrow Bay" and len(state.docs) == 6


def test_compression_keeps_the_chosen_sentences_with_their_titles(retriever):
    tools = tools_of(retriever, script(compress={"keep": [2, 1, 99, 2]}))
    context = asyncio.run(Workspace(tools, Limits()).compress(QUESTION, ("p0", "p1"), 2))
    assert context.startswith("[p0] Ilva Dorn\n") and "p1" not in context
    [event] = events(tools.trace, "compress")
    assert event["kept"] == [["p0", 0], ["p0", 1]] and event["after_tokens"] < event["before_tokens"]


@pytest.mark.parametrize("reply", ["", "1, 2", '{"keep": []}', '{"keep": [77]}', '{"keep": "1"}'])
def test_unusable_compression_keeps_everything(retriever, reply):
    tools = tools_of(retriever, script(compress=reply))
    assert asyncio.run(Workspace(tools, Limits()).compress(QUESTION, ("p0", "p1"), 2)) is None
    [event] = events(tools.trace, "compress")
    assert event["fallback"] and event["before_tokens"] == event["after_tokens"]


# -- features


def walk(retriever, actions, reply=None):
    tools = tools_of(retriever, reply)
    work = Workspace(tools, Limits())
    state = start(QUESTION, tools)
    for action in actions:
        state = asyncio.run(work.run(action, state))
    return state


@pytest.mark.parametrize("path", ["", "R", "RS", "RSG", "RB", "RW", "RRR", "RBSG", "RWSR"])
def test_features_are_finite_named_and_in_range(retriever, path):
    state = walk(retriever, path)
    vector = features.state_vector(state, Limits(), retriever)
    assert len(vector) == len(features.STATE) == 44 and len({f.name for f in features.STATE}) == 44
    for value, feature in zip(vector, features.STATE, strict=True):
        assert math.isfinite(value) and value == round(value, 6), feature.name
        assert value == -1 or feature.low <= value <= feature.high, (feature.name, value)
    for action in ACTIONS:
        assert len(features.action_vector(action, state, retriever)) == len(features.ACTION) - 1


def test_some_features_by_hand(retriever):
    vector = features.state_vector(walk(retriever, "RS"), Limits(), retriever)
    named = dict(zip((f.name for f in features.STATE), vector, strict=True))
    assert (named["step"], named["steps_left"], named["documents"], named["retrievals"]) == (2, 2, 3, 1)
    assert (named["wh_who"], named["wh_other"], named["gap_known"], named["since_check"]) == (1, 0, 1, 0)
    assert named["last_action"] == ACTIONS.index("S") and named["new_last"] == 0 and named["cursor"] == 3


def test_nothing_is_encoded_but_queries_and_each_once(retriever):
    embedder = retriever.embedder
    embedder.calls.clear()
    retriever._queries.clear()
    run(retriever)
    assert {kind for kind, _ in embedder.calls} <= {"query"}
    texts = [t for _, batch in embedder.calls for t in batch]
    assert len(texts) == len(set(texts))


# -- the control loop


def test_the_scorer_decides_and_four_steps_end_it(retriever):
    client, record = run(retriever)
    # R is forced; then S (.7) before the gap is known; then the gap query (.9); then S again after new evidence.
    assert chosen(record) == ["R", "S", "G", "S"] and record.stop_reason == "steps" and record.loops == 4
    assert [kind(b) for b in client.bodies] == ["check", "check", "compress", "read"]
    assert record.retrieval_calls == 2 and record.usage["control"].calls == 3 and record.usage["reader"].calls == 1
    tools_used = [e["tool"] for e in events(record, "retrieve")]
    assert tools_used == ["retrieve_more", "gap_query"]
    assert events(record, "final")[0]["compressed"] is True


def test_a_positive_check_ends_the_search(retriever):
    yes = {"found": "all", "sufficient": True, "missing": ""}
    record = run(retriever, script(check=(yes,)))[1]
    assert chosen(record) == ["R", "S"] and record.stop_reason == "sufficient"


def test_the_gate_stops_or_goes_on(retriever):
    controller = FakeController(go_on=lambda v: False)
    record = run(retriever, controller=controller)[1]
    assert chosen(record) == ["R", "T"] and record.stop_reason == "stop" and record.loops == 1
    assert events(record, "decision")[0]["gate"] is None  # only R was valid: nothing to decide
    assert events(record, "decision")[1]["gate"]["continue"] is False


def test_a_fixed_horizon_never_asks_the_gate_and_never_stops_early(retriever):
    controller = FakeController(go_on=lambda v: False, scores={"R": 1.0})
    record = run(retriever, controller=controller, continuation="fixed")[1]
    assert chosen(record) == ["R"] * 4 and all(d["gate"] is None for d in events(record, "decision"))
    assert len(record.read) == 12


def test_uniform_ranking_keeps_the_gate_and_is_seeded(retriever):
    records = [run(retriever, ranking="uniform")[1] for _ in range(2)]
    assert chosen(records[0]) == chosen(records[1])
    assert all(d["scores"] is None for d in events(records[0], "decision"))
    assert any(d["gate"] for d in events(records[0], "decision"))


def test_joint_uniform_may_draw_stop_without_a_gate(retriever):
    first = set()
    for n in range(30):
        tools = tools_of(retriever)
        tools.rng = random.Random(n)
        answer = asyncio.run(
            Dynakrag(Params(ranking="uniform", continuation="none")).answer(Question("q", QUESTION), tools)
        )
        first.add(events(tools.trace, "decision")[1]["chosen"])
        assert all(d["gate"] is None for d in events(tools.trace, "decision"))
        assert answer.stop_reason in ("stop", "steps", "sufficient")
    assert "T" in first and len(first) > 2


def test_without_sufficiency_there_are_no_gap_queries_either(retriever):
    record = run(retriever, sufficiency=False)[1]
    assert not {"S", "G"} & set(chosen(record)) and not any("S" in d["valid"] for d in events(record, "decision"))


def test_without_compression_the_documents_are_read_whole(retriever):
    client, record = run(retriever, compression=False)
    assert "compress" not in [kind(b) for b in client.bodies] and not events(record, "compress")
    assert events(record, "final")[0]["compressed"] is False


@pytest.mark.parametrize("cap", [1, 2, 3])
def test_retrieval_caps_hold(retriever, cap):
    controller = FakeController(scores={"R": 1.0})
    record = run(retriever, controller=controller, continuation="fixed", retrieval_cap=cap)[1]
    assert record.retrieval_calls == cap and len(record.read) == 3 * cap


@pytest.mark.parametrize("key", ["retrieval_cap", "steps", "max_docs", "per_search"])
def test_a_cap_of_zero_is_refused(key):
    from multihop.config import RunConfig

    with pytest.raises(ConfigError, match=key):
        registry.create(RunConfig(method="dynakrag", **{key: 0}), "params.yaml: learned_runs.x")


def test_what_is_not_affordable_is_not_done(retriever):
    controller = FakeController(tokens={"S": 500.0, "W": 500.0})
    record = run(retriever, controller=controller, token_budget=400)[1]
    assert not {"S", "W"} & set(chosen(record)) and "S" in events(record, "decision")[1]["valid"]
    assert "S" not in events(record, "decision")[1]["candidates"]


def test_a_retriever_that_returns_nothing_is_answered_without_evidence(retriever, monkeypatch):
    monkeypatch.setattr(type(retriever), "dense", lambda self, query, k: [])
    client, record = run(retriever)
    assert chosen(record) == ["T"] and record.stop_reason == "budget" and record.status == "ok"
    assert record.read == () and [kind(b) for b in client.bodies] == ["read"]


REPLIES = st.one_of(
    st.text(max_size=30),
    st.sampled_from(['{"sufficient": false, "missing": "", "found": ""}', '{"keep": [1, 500, -3]}', "null", "[]", "{"]),
)


@settings(max_examples=40, deadline=None)
@given(replies=st.lists(REPLIES, min_size=1, max_size=4), scores=st.lists(st.floats(-1, 1), min_size=5, max_size=5))
def test_whatever_the_model_says_the_limits_hold(retriever, replies, scores):
    turn = iter(range(10**6))
    controller = FakeController(scores=dict(zip("RGWBS", scores, strict=True)))
    record = run(retriever, lambda body: Say(replies[next(turn) % len(replies)]), controller)[1]
    assert record.status in ("ok", "invalid_output") and record.loops <= 4 and len(record.read) <= 12
    assert all(len(e["new"]) <= 3 for e in events(record, "operation"))
    assert all(
        d["chosen"] in d["candidates"] and set(d["candidates"]) <= set(d["valid"]) for d in events(record, "decision")
    )
