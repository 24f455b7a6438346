"""Fixed-K on a scripted model: one search, one call, and where its depth comes from."""

from __future__ import annotations

import asyncio

import pytest
from fake_embedder import small_retriever
from project_fixture import FakeClient, answer, events, prompts_of, tools_for
from scripted_server import Say

from multihop.config import RunConfig
from multihop.errors import ConfigError
from multihop.methods import registry
from multihop.types import Question

QUESTION = "Who is the mayor of Marrow Bay?"
REPLY = Say("Because: it says so (p4).\nAnswer: Tomas Reed")
TOWNS = [(f"Town {n}", f"Town {n} has a mayor and {n + 2} wells.") for n in range(20)]


@pytest.fixture(scope="module")
def retriever(tmp_path_factory):
    return small_retriever(tmp_path_factory.mktemp("fixed_k"), TOWNS)


def with_training(retriever, trained, **options):
    tools = tools_for(retriever, FakeClient(lambda body: REPLY), "fixed_k")
    tools.trained = trained
    made = registry.create(RunConfig(method="fixed_k", **options), "test")
    return asyncio.run(made.answer(Question("q", QUESTION), tools)), tools


@pytest.mark.parametrize("k", [1, 3, 15])
def test_one_search_of_depth_k_and_one_call(retriever, k):
    client = FakeClient(lambda body: REPLY)
    _, trace, record = answer(retriever, "fixed_k", client, QUESTION, k=k)
    ids = [h.chunk_id for h in retriever.dense(QUESTION, k)]
    prompts = prompts_of("fixed_k")
    assert len(ids) == k and client.roles == ["reader"] and client.bodies[0]["max_tokens"] == 64
    assert client.bodies[0]["messages"] == [
        {"role": "system", "content": prompts["reader_system"]},
        {
            "role": "user",
            "content": prompts["reader_user"].format(
                passages="\n\n".join(f"[{c}] {retriever.text(c)}" for c in ids), question=QUESTION
            ),
        },
    ]
    assert [(e["query"], e["chunk_ids"]) for e in events(trace, "retrieve")] == [(QUESTION, ids)]
    assert record.cited == tuple(ids) and record.retrieval_calls == 1
    assert (record.short, record.stop_reason, record.status) == ("Tomas Reed", "answered", "ok")


def test_the_trained_depth_is_used_unless_the_params_give_one(retriever):
    assert len(with_training(retriever, {"k": 5})[0].cited) == 5
    assert len(with_training(retriever, {"k": 5}, k=2)[0].cited) == 2


@pytest.mark.parametrize("trained", [None, {}])
def test_no_depth_at_all_is_an_error_that_says_what_to_do(retriever, trained):
    with pytest.raises(ConfigError, match="trained: baselines"):
        with_training(retriever, trained)


@pytest.mark.parametrize("k", [0, -1, 2.5, "3"])
def test_a_depth_is_a_positive_integer(k):
    with pytest.raises(ConfigError, match=r"runs\.x.*k"):
        registry.create(RunConfig(method="fixed_k", k=k), "params.yaml: runs.x")


def test_a_retriever_that_finds_nothing_still_gets_an_answer(retriever, monkeypatch):
    monkeypatch.setattr(retriever, "dense", lambda query, k: [])
    client = FakeClient(lambda body: REPLY)
    record = answer(retriever, "fixed_k", client, QUESTION, k=3)[2]
    assert len(client.bodies) == 1 and record.cited == () and record.status == "ok" and record.retrieval_calls == 1
