"""Adaptive-RAG on a scripted model: routing, the three strategies, and what odd replies do."""

from __future__ import annotations

import asyncio
import copy

import numpy as np
import pytest
from fake_embedder import small_retriever
from project_fixture import WORLD, FakeClient, events, prompts_of, tools_for
from scripted_server import Say, in_turn

from multihop.config import RunConfig
from multihop.controller.router import Router
from multihop.errors import ConfigError
from multihop.methods import registry
from multihop.types import Question

QUESTION = "Who is the mayor of the town where the author of The Lantern Ferry lived?"
FINAL = Say("Because: she is (p2).\nAnswer: Karla Möhn")


@pytest.fixture(scope="module")
def retriever(tmp_path_factory):
    return small_retriever(tmp_path_factory.mktemp("adaptive"), WORLD)


class Fixed:
    """A router that always says the same and keeps what it was asked."""

    def __init__(self, strategy: str):
        self.strategy, self.asked = strategy, []

    def route(self, vector: np.ndarray) -> str:
        self.asked.append(vector)
        return self.strategy


def run(retriever, outcomes=(), trained=None, **options):
    client = FakeClient(in_turn(outcomes, then=lambda body: FINAL))
    tools = tools_for(retriever, client, "adaptive_rag")
    tools.trained = trained
    method = registry.create(RunConfig(method="adaptive_rag", **options), "test")
    return client, tools.trace, asyncio.run(method.answer(Question("q", QUESTION), tools))


def systems(client) -> list[str]:
    prompts = prompts_of("adaptive_rag")
    names = {text: name.removesuffix("_system") for name, text in prompts.items() if name.endswith("_system")}
    return [names[b["messages"][0]["content"]] for b in client.bodies]


def test_the_trained_router_reads_the_question_vector(retriever):
    router = Fixed("B")
    _, trace, _ = run(retriever, trained={"router": router, "k": 8})
    assert [v.tolist() for v in router.asked] == [retriever.query_vector(QUESTION).tolist()]
    assert events(trace, "route") == [{"strategy": "B", "by": "trained"}]


def test_a_fitted_router_decides(retriever):
    vector = retriever.query_vector(QUESTION)
    router = Router.fit([vector, -vector] * 4, ["C", "A"] * 4)
    _, trace, _ = run(retriever, trained={"router": router})
    assert events(trace, "route")[0]["strategy"] == "C"


@pytest.mark.parametrize("trained", [None, {}, {"k": 8}])
def test_without_a_trained_router_it_says_what_to_do(retriever, trained):
    with pytest.raises(ConfigError, match=r"tune stage, or set router: zero_shot"):
        run(retriever, trained=trained)


def test_a_answers_without_any_retrieval(retriever):
    client, trace, result = run(retriever, trained={"router": Fixed("A")})
    prompts = prompts_of("adaptive_rag")
    assert systems(client) == ["direct"] and client.roles == ["reader"]
    user = prompts["direct_user"].format(passages="", question=QUESTION)
    assert client.bodies[0]["messages"][1]["content"] == user
    assert (trace.retrieval_calls, trace.loops, result.cited) == (0, 0, ())
    assert (result.short, result.stop_reason) == ("Karla Möhn", "answered")


def test_a_asks_as_the_direct_method_does():
    ours, direct = prompts_of("adaptive_rag"), prompts_of("direct")
    assert {n: ours[n] for n in ("direct_system", "direct_user")} == {
        n: direct[n] for n in ("direct_system", "direct_user")
    }


def test_b_is_one_search_of_six(retriever):
    client, trace, result = run(retriever, trained={"router": Fixed("B")})
    ids = [h.chunk_id for h in retriever.dense(QUESTION, 6)]
    assert systems(client) == ["reader"] and result.cited == tuple(ids) and len(ids) == 6
    assert (trace.retrieval_calls, trace.loops, result.stop_reason) == (1, 1, "answered")


def test_c_is_ircot_to_the_byte(retriever):
    chain = [Say("The Lantern Ferry is by Oda Wren."), Say("Oda Wren lived in Skarholm."), Say("So the answer is: it.")]
    client, trace, result = run(retriever, chain, trained={"router": Fixed("C")})
    assert systems(client) == ["ircot"] * 3 + ["reader"] and client.roles == ["control"] * 3 + ["reader"]
    assert (trace.loops, trace.retrieval_calls, result.stop_reason, len(result.cited)) == (3, 3, "answer", 9)

    alone = FakeClient(in_turn(chain, then=lambda body: FINAL))
    tools = tools_for(retriever, alone, "ircot")
    method = registry.create(RunConfig(method="ircot"), "test")
    assert asyncio.run(method.answer(Question("q", QUESTION), tools)) == result
    assert alone.bodies == client.bodies


def test_c_keeps_its_caps(retriever):
    never = [Say(f"Fact number {n} about Tavik.") for n in range(20)]
    _, _, result = run(retriever, never, trained={"router": Fixed("C")}, max_steps=9, max_docs=7)
    assert len(result.cited) == 7 and result.stop_reason == "limit"
    _, trace, result = run(retriever, never, trained={"router": Fixed("C")}, max_steps=2)
    assert (trace.loops, len(result.cited), result.stop_reason) == (2, 6, "limit")


@pytest.mark.parametrize("strategy", ["A", "B", "C"])
def test_a_forced_strategy_asks_no_router(retriever, strategy):
    router = Fixed("B")
    _, trace, _ = run(retriever, [Say("So the answer is: x.")], trained={"router": router}, strategy=strategy)
    assert events(trace, "route") == [{"strategy": strategy, "by": "forced"}] and router.asked == []


@pytest.mark.parametrize(
    ("reply", "strategy", "readable"),
    [
        ("A", "A", True),
        (" b.\n", "B", True),
        ("**C**", "C", True),
        ("B: one search", "B", True),
        ("(A)", "A", True),
        ("A search is", "C", False),
        ("", "C", False),
        (None, "C", False),
        ("D", "C", False),
        ("Because", "C", False),
    ],
)
def test_the_zero_shot_router_is_one_letter(retriever, reply, strategy, readable):
    client, trace, _ = run(retriever, [Say(reply), Say("So the answer is: x.")], router="zero_shot")
    assert events(trace, "route") == [{"strategy": strategy, "by": "zero_shot"}]
    assert (events(trace, "parse_failed") == []) is readable
    first, prompts = client.bodies[0], prompts_of("adaptive_rag")
    assert [m["content"] for m in first["messages"]] == [
        prompts["route_system"],
        prompts["route_user"].format(question=QUESTION),
    ]
    assert first["max_tokens"] == 4 and client.roles[0] == "control"


@pytest.mark.parametrize(("strategy", "stop"), [("B", "answered"), ("C", "no_documents")])
def test_a_retriever_that_finds_nothing_leads_to_the_reader(retriever, strategy, stop):
    empty = copy.copy(retriever)
    empty.dense = lambda query, k: []
    client, _, result = run(empty, strategy=strategy)
    assert systems(client) == ["reader"] and (result.cited, result.stop_reason) == ((), stop)
