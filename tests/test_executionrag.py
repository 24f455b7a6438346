"""ExecutionRAG's loop: seed, register, guidance, readiness, nudge, reminder, and what a bad reply may not break."""

from __future__ import annotations

import json
import math
import re

import pytest
from fake_embedder import PASSAGES, small_retriever
from project_fixture import FakeClient, answer, events, prompts_of
from scripted_server import Say, act, conclude, for_kind, in_turn, kind_of, little_model, settle, turns

from multihop.retrieval.tokens import count_tokens

QUESTION = "Who is the mayor of the birthplace of Ilva Dorn?"
PROMPTS = prompts_of("executionrag")
BOTH = pytest.mark.parametrize("mode", ["native", "json_action"])
TWO = Say(
    json.dumps(
        {
            "requirements": [
                {"id": "R1", "question": "Where was Ilva Dorn born?", "depends_on": []},
                {"id": "R2", "question": "Who is the mayor of R1?", "depends_on": ["R1"]},
            ],
            "active_id": "R1",
        }
    )
)
NOTHING = Say('{"updates": [], "new_requirements": []}')
PROSE = Say("I would rather talk about the weather.")


@pytest.fixture(scope="module")
def retriever(tmp_path_factory):
    return small_retriever(tmp_path_factory.mktemp("executionrag"))


def run(
    retriever,
    *,
    mode="native",
    agent=None,
    init=TWO,
    update=NOTHING,
    verdict=PROSE,
    final=Say("Tomas Reed [p1]."),
    **options,
):
    """``agent`` and ``update``: one outcome, or a list played in turn (the last one stays)."""
    scripts = {"initialisation": _played(init), "update": _played(update), "verdict": verdict, "chat": final}
    client = FakeClient(for_kind(agent=_played(agent or _searches), **scripts), tool_calling=mode)
    _, trace, record = answer(retriever, "executionrag", client, QUESTION, **options)
    return client, trace, record


def _searches(body):
    return act(body, "semantic_search", f"search {turns(body)}")


def _played(outcomes):
    return in_turn(outcomes[:-1], then=_as_script(outcomes[-1])) if isinstance(outcomes, list) else _as_script(outcomes)


def _as_script(outcome):
    return outcome if callable(outcome) else lambda body: outcome


def read(*ids):
    return lambda body: act(body, "read_chunk", list(ids))


def said(body) -> list[str]:
    """What the guidance said before a turn: the user messages that hold no tool result."""
    tags = ("[Register]", "[Progress]", PROMPTS["nudge"].split("{left}")[1], PROMPTS["reminder"].split("\n")[0])
    return [m["content"] for m in body["messages"][2:] if m["role"] == "user" and any(t in m["content"] for t in tags)]


def agent_bodies(client) -> list[dict]:
    return [b for b in client.bodies if kind_of(b) == "agent"]


# -- seed and initialisation (eq. 3, 4)


def test_seed_grounds_the_register(retriever):
    client, trace, record = run(retriever, k=2)
    seed = events(trace, "retrieve")[0]
    assert (trace.events[0].step, seed["tool"], seed["query"], len(seed["chunk_ids"])) == (0, "seed", QUESTION, 2)
    init = client.asked("register")[0]
    assert init["messages"][0]["content"] == PROMPTS["init_system"] and init["temperature"] == 0.0
    shown = "\n\n".join(f"[{c}] {retriever.text(c)}" for c in seed["chunk_ids"])
    assert init["messages"][1]["content"] == PROMPTS["init_user"].format(question=QUESTION, evidence=shown)
    [first] = [e for e in trace.events if e.kind == "register" and e.data["source"] == "init"]
    assert [(i["id"], i["status"]) for i in first.data["items"]] == [("R1", "active"), ("R2", "pending")]
    assert record.seed_tokens > 0 and record.retrieved[0].tool == "seed" and record.retrieved[0].step == 0


def test_seed_chunks_are_shown_up_to_1200_characters(tmp_path):
    long = [*PASSAGES, ("Mayor", "Who is the mayor of the birthplace of Ilva Dorn? " + "x " * 3000)]
    client, _, _ = run(small_retriever(tmp_path, long))
    parts = client.asked("register")[0]["messages"][1]["content"].split("\n\n[")
    assert max(len(p) for p in parts) < 1300 and any("x x x" in p for p in parts)


def test_question_only_does_no_seed_retrieval(retriever):
    client, trace, record = run(retriever, seed_evidence=False, max_loops=2)
    assert [e for e in trace.events if e.step == 0 and e.kind == "retrieve"] == []
    init = client.asked("register")[0]
    assert init["messages"][0]["content"] == PROMPTS["init_question_only_system"]
    assert not re.search(r"\[p\d\]", init["messages"][1]["content"])
    assert record.seed_tokens == 0 and record.retrieval_calls == 2


def test_the_seed_is_no_earlier_search_of_the_agent(retriever):
    _, trace, _ = run(retriever, agent=lambda body: act(body, "semantic_search", QUESTION), max_loops=2)
    assert [e["repeat"] for e in events(trace, "retrieve")] == [False, False, True]


def test_a_failed_initialisation_leaves_the_question_as_the_only_item(retriever):
    _, trace, record = run(retriever, init=PROSE, max_loops=1)
    assert events(trace, "update_failed")[0]["why"].startswith("initialisation: ")
    assert [i["question"] for i in events(trace, "register")[0]["items"]] == [QUESTION]
    assert record.usage["register"].repairs == 1 and record.status == "budget"


# -- guidance


@BOTH
def test_the_register_is_shown_after_the_warm_up(retriever, mode):
    client, _, _ = run(retriever, mode=mode, max_loops=3)
    first, second, third = agent_bodies(client)[:3]
    assert said(first) == [] and len(said(second)) == 1 and said(third)[:1] == said(second)
    assert said(second)[0] == (
        "[Register]\nR1 (active) Where was Ilva Dorn born?\nR2 (pending) Who is the mayor of R1?\n"
        f"Search for R1: Where was Ilva Dorn born? For: {QUESTION}"
    )
    assert second["messages"][-1]["content"] == said(second)[0]
    none, at_once = run(retriever, warmup_loops=9, max_loops=3), run(retriever, warmup_loops=0, max_loops=3)
    assert events(none[1], "inject") == [] and len(said(agent_bodies(at_once[0])[0])) == 1


def test_the_query_without_the_question(retriever):
    client, _, _ = run(retriever, query_with_question=False, max_loops=2)
    assert said(agent_bodies(client)[1])[0].endswith("\nSearch for R1: Where was Ilva Dorn born?")


def test_a_delta_follows_a_material_change_only(retriever):
    noted = settle("R1", ["p0"], "Ilva Dorn wrote a novel that sold well", status="active")
    same = settle("R1", ["p0"], "Ilva Dorn wrote a novel that sold well.", status="active")
    found = settle("R1", ["p0"], "born in Marrow Bay")
    searches = [read("p0"), read("p1"), read("p2"), read("p3"), read("p4")]
    client, trace, _ = run(retriever, agent=searches, update=[noted, same, found, NOTHING], max_loops=5, nudge_at=None)
    injected = [(e.step, e.data["inject"]) for e in trace.events if e.kind == "inject"]
    assert injected == [(2, "initial"), (3, "none"), (4, "delta"), (5, "none")]
    delta = said(agent_bodies(client)[3])[-1]
    assert delta == (
        "[Progress]\nR1 (resolved) Where was Ilva Dorn born? -> born in Marrow Bay\n"
        "R2 (active) Who is the mayor of R1?\n"
        f"Open: R2\nSearch for R2: Who is the mayor of born in Marrow Bay? For: {QUESTION}"
    )
    texts = events(trace, "inject")
    assert [event["tokens"] > 0 for event in texts] == [True, False, True, False]
    assert all(event["full_tokens"] > 0 for event in texts) and texts[0]["tokens"] == texts[0]["full_tokens"]
    assert texts[2]["tokens"] == count_tokens(delta)


# -- updates (eq. 6)


@BOTH
def test_an_update_sees_the_new_evidence_and_changes_the_register(retriever, mode):
    client, trace, _ = run(
        retriever, mode=mode, agent=read("p0"), update=[settle("R1", ["p0"], "Marrow Bay"), NOTHING], max_loops=2
    )
    update = client.asked("register")[1]
    assert update["messages"][0]["content"] == PROMPTS["update_system"] and update["temperature"] == 0.0
    assert update["messages"][1]["content"] == PROMPTS["update_user"].format(
        question=QUESTION,
        register="R1 (active) Where was Ilva Dorn born?\nR2 (pending) Who is the mayor of R1?",
        evidence=f"[p0] {retriever.text('p0')}",
    )
    changes = [(e.step, e.data["id"], e.data["from"], e.data["to"]) for e in trace.events if e.kind == "transition"]
    assert changes == [(1, "R1", "active", "resolved"), (1, "R2", "pending", "active")]
    updates = [e for e in events(trace, "register") if e["source"] == "update"]
    assert len(updates) == 1 and updates[0]["items"][0]["passages"] == ["p0"]


def evidence(body) -> str:
    return body["messages"][1]["content"].split("New evidence:\n")[1]


def test_searched_chunks_are_shown_as_sentences(retriever):
    client, _, _ = run(retriever, agent=lambda body: act(body, "keyword_search", "mayor"), max_loops=1)
    assert evidence(client.asked("register")[1]).splitlines() == [
        "[p1] Its mayor since 1990 is Tomas Reed",
        "[p4] He has been mayor of Marrow Bay since 1990",
    ]


def test_what_was_read_in_an_earlier_loop_is_not_shown_again(retriever):
    agent = [read("p1"), lambda body: act(body, "keyword_search", "mayor"), read("p1", "p4")]
    client, _, _ = run(retriever, agent=agent, max_loops=3)
    first, second, third = map(evidence, client.asked("register")[1:])
    assert "[p1]" in first and "[p1]" not in second and "[p4]" in second
    assert "[p1]" not in third and third == f"[p4] {retriever.text('p4')}"


def test_a_chunk_found_and_read_in_one_loop_is_shown_whole_once(retriever):
    calls = (("keyword_search", '{"keywords": ["Kelm"]}'), ("read_chunk", '{"chunk_ids": ["p4"]}'))
    client, _, _ = run(retriever, agent=Say(None, calls), max_loops=1)
    assert evidence(client.asked("register")[1]) == f"[p4] {retriever.text('p4')}"


@pytest.mark.parametrize(
    "agent",
    [
        [read("p0"), read("p0")],
        [read("p0"), read("p99")],
        [read("p0"), lambda body: act(body, "browse", "x")],
        [read("p0"), lambda body: act(body, "keyword_search", "Zzyzx")],
        [lambda body: act(body, "keyword_search", "Kelm")] * 2,
    ],
)
def test_no_new_evidence_no_update(retriever, agent):
    client, trace, _ = run(retriever, agent=agent, max_loops=2)
    assert [e.step for e in trace.events if e.kind == "update_skipped"] == [2]
    assert len(client.asked("register")) == 2  # the initialisation, and one update


@pytest.mark.parametrize("reply", [PROSE, Say('{"colour": "red"}'), Say(None), Say('{"updates": [{"id": "R1"}]}')])
def test_a_failed_update_keeps_the_register(retriever, reply):
    _, trace, record = run(retriever, agent=read("p0"), update=reply, max_loops=1)
    assert len(events(trace, "update_failed")) == 1 and events(trace, "transition") == []
    assert [i["status"] for i in events(trace, "final_register")[0]["items"]] == ["active", "pending"]
    assert (record.usage["register"].calls, record.usage["register"].repairs, record.status) == (3, 1, "budget")


def test_guards_are_recorded(retriever):
    _, trace, _ = run(retriever, agent=read("p0"), update=settle("R1", ["p77"], "Marrow Bay"), max_loops=1)
    [guards] = events(trace, "guards")
    assert len(guards["notes"]) == 2 and events(trace, "final_register")[0]["items"][0]["status"] == "active"


def test_no_updates_makes_exactly_one_register_call(retriever):
    client, trace, record = run(retriever, updates=False, max_loops=4)
    assert record.usage["register"].calls == 1 and len(client.asked("register")) == 1
    assert [e["source"] for e in events(trace, "register")] == ["init"]
    assert {e["inject"] for e in events(trace, "inject")[1:]} == {"none"}


def test_a_register_that_is_all_retired_is_built_anew_once(retriever):
    gone = Say(
        json.dumps(
            {
                "updates": [
                    {
                        "id": i,
                        "note": "",
                        "supporting_chunk_ids": [],
                        "status": "retired",
                        "reason": f"{i} is about another person",
                    }
                    for i in ("R1", "R2")
                ]
            }
        )
    )
    client, trace, record = run(retriever, agent=[read("p0"), read("p1"), read("p2")], update=gone, max_loops=3)
    sources = [(e.step, e.data["source"]) for e in trace.events if e.kind == "register"]
    assert [s for s in sources if s[1] == "init"] == [(0, "init"), (1, "init")]
    reasons = [e["reason"] for e in events(trace, "transition") if e["to"] == "retired"]
    assert reasons.count("R1 is about another person") == 2  # both times: what was retired is never lost
    assert record.status == "budget" and record.loops == 3
    rebuilt = [b for b in client.asked("register") if kind_of(b) == "initialisation"][1]
    assert "[p0]" in rebuilt["messages"][1]["content"]


def test_evidence_beyond_its_budget_is_cut_not_dropped(tmp_path):
    long = [*PASSAGES, ("Archive", "Marrow Bay archive. " + " ".join(f"entry{n}" for n in range(4000)))]
    retriever = small_retriever(tmp_path, long)
    client, trace, _ = run(retriever, agent=read("p5", "p1"), max_loops=1, evidence_tokens=200)
    shown = evidence(client.asked("register")[1])
    assert shown.startswith("[p5] Archive\nMarrow Bay archive.") and count_tokens(shown) <= 220
    assert events(trace, "update_skipped") == []


# -- readiness and the final answer (§3.4)


@BOTH
def test_ready_asks_once_without_tools_from_register_and_passages(retriever, mode):
    update = [settle("R1", ["p0"], "Marrow Bay"), settle("R2", ["p1"], "Tomas Reed")]
    client, trace, record = run(retriever, mode=mode, agent=[read("p0"), read("p1")], update=update)
    assert (record.status, record.stop_reason, record.answer) == ("ok", "ready", "Tomas Reed [p1].")
    assert (record.loops, record.forced, record.cited) == (2, False, ("p0", "p1"))
    last = client.bodies[-1]
    assert "tools" not in last and "response_format" not in last
    assert [m["content"] for m in last["messages"]] == [
        PROMPTS["final_system"],
        PROMPTS["final_user"].format(
            passages=f"[p0] {retriever.text('p0')}\n\n[p1] {retriever.text('p1')}",
            register=(
                "R1 (resolved) Where was Ilva Dorn born? -> Marrow Bay\n"
                "R2 (resolved) Who is the mayor of R1? -> Tomas Reed"
            ),
            question=QUESTION,
        ),
    ]
    assert record.usage["reader"].calls == 3 and record.usage["register"].calls == 3
    assert [i["status"] for i in events(trace, "final_register")[0]["items"]] == ["resolved", "resolved"]


def test_ready_on_the_last_loop_is_an_answer_and_not_forced(retriever):
    init = Say('{"requirements": [{"id": "R1", "question": "Where?", "depends_on": []}], "active_id": "R1"}')
    _, _, record = run(retriever, agent=read("p0"), init=init, update=settle("R1", ["p0"], "there"), max_loops=1)
    assert (record.status, record.stop_reason, record.forced) == ("ok", "ready", False)


def test_an_empty_final_answer_is_invalid(retriever):
    init = Say('{"requirements": [{"id": "R1", "question": "Where?", "depends_on": []}], "active_id": "R1"}')
    _, _, record = run(retriever, agent=read("p0"), init=init, update=settle("R1", ["p0"]), final=Say(" "))
    assert (record.status, record.stop_reason, record.answer) == ("invalid_output", "ready", "")


# -- nudge, reminder, budget


@pytest.mark.parametrize("loops", [1, 2, 3, 5, 6, 10, 15])
@pytest.mark.parametrize("register", [True, False])
def test_the_nudge_comes_once_at_80_percent(retriever, loops, register):
    client, trace, _ = run(retriever, use_register=register, max_loops=loops)
    at = math.ceil(loops * 8 / 10)
    assert [e.step for e in trace.events if e.kind == "nudge"] == [at]
    text = PROMPTS["nudge"].format(left=loops - at + 1)
    bodies = agent_bodies(client)
    assert [any(m["content"] == text for m in b["messages"]) for b in bodies] == [n + 1 >= at for n in range(loops)]


def test_the_nudge_can_be_off(retriever):
    assert events(run(retriever, nudge_at=None, max_loops=5)[1], "nudge") == []


@BOTH
def test_an_agent_that_answers_too_early_is_sent_back_once(retriever, mode):
    client, trace, record = run(retriever, mode=mode, agent=lambda body: conclude(body, "Marrow Bay?"), max_loops=5)
    assert (record.answer, record.status, record.stop_reason, record.loops) == ("Marrow Bay?", "ok", "answered", 2)
    assert events(trace, "reminder") == [{"open": ["R1", "R2"]}] and len(events(trace, "final_register")) == 1
    back = [m["content"] for m in agent_bodies(client)[1]["messages"] if m["role"] == "user"]
    lines = "R1 (active) Where was Ilva Dorn born?\nR2 (pending) Who is the mayor of R1?"
    assert any(text.startswith(PROMPTS["reminder"].format(open=lines)) for text in back)


@pytest.mark.parametrize("options", [{"reminders": 0}, {"updates": False}, {"max_loops": 1}])
def test_where_no_reminder_is_due_the_answer_is_taken(retriever, options):
    """Also on the last loop: sending the agent back there would turn its answer into a forced one."""
    _, trace, record = run(retriever, agent=lambda body: conclude(body, "Marrow Bay"), **{"max_loops": 4} | options)
    assert (record.answer, record.status, record.stop_reason, record.loops) == ("Marrow Bay", "ok", "answered", 1)
    assert events(trace, "reminder") == [] and len(events(trace, "final_register")) == 1


@BOTH
def test_an_endless_loop_ends_forced_with_the_register_as_it_stood(retriever, mode):
    client, trace, record = run(retriever, mode=mode, max_loops=4)
    assert (record.status, record.stop_reason, record.forced, record.loops) == ("budget", "forced_loops", True, 4)
    assert record.answer == "Tomas Reed [p1]." and len(events(trace, "final_register")) == 1
    assert client.bodies[-1]["messages"][-1]["content"] == PROMPTS["agent_force"].format(question=QUESTION)


def test_the_little_model_resolves_its_register(retriever):
    """The golden run of the whole method: seed, two loops, ready."""
    client = FakeClient(little_model)
    _, trace, record = answer(retriever, "executionrag", client, QUESTION, k=3)
    kinds = [(e.step, e.kind) for e in trace.events]
    assert kinds[:3] == [(0, "retrieve"), (0, "register"), (1, "turn")]
    assert kinds[-1] == (record.loops, "final_register") and record.stop_reason == "ready" and record.status == "ok"
    assert client.roles[0] == "register" and client.roles[-1] == "reader"
    assert record.usage["reader"].calls + record.usage["register"].calls == len(client.bodies)
