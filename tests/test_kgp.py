"""KGP: which calls it makes, which passages it visits and shows, and why it stops."""

from __future__ import annotations

import asyncio

import pytest
from entity_fixture import Capitalised, built, names_of
from fake_embedder import small_retriever
from project_fixture import WORLD, FakeClient, answer, events, prompts_of, records_of, run_project
from scripted_server import Say, in_turn

from multihop import building, config
from multihop.session import opened
from multihop.structures import entities
from multihop.types import Retrieved

QUESTION = "Who is the mayor of the town where the author of The Lantern Ferry lived?"
FIRST, SECOND = "The town of the author Oda Wren.", "The mayor of Skarholm, the town."
GOLDEN = [["p0", "p7"], ["p6", "p4"], ["p2", "p3"]]
GOLDEN_SHOWN = ("p0", "p4", "p7")
READ = Say("Because: it says so.\nAnswer: Karla Möhn")


@pytest.fixture(scope="module")
def retriever(tmp_path_factory):
    return small_retriever(tmp_path_factory.mktemp("kgp"), WORLD)


@pytest.fixture(scope="module")
def graph(retriever, tmp_path_factory):
    return built("passage_graph", retriever, tmp_path_factory.mktemp("g"), Capitalised(retriever), nearest=0)[0]


class Islands:
    """A graph without a link."""

    def neighbours(self, chunk_ids):
        return []


def run(retriever, graph, *said: str, question: str = QUESTION, **options):
    client = FakeClient(in_turn([Say(s) for s in said], then=lambda body: READ))
    options = {"start": 2, "followed": 2, "k": 3} | options
    _, trace, record = answer(retriever, "kgp", client, question, structure=graph, **options)
    return client, trace, record


def test_golden(retriever, graph):
    client, trace, record = run(retriever, graph, FIRST, SECOND, hops=2)
    assert client.roles == ["control", "control", "reader"]
    searches = events(trace, "retrieve")
    assert [(s["tool"], s["query"]) for s in searches] == [("kgp", QUESTION), ("kgp", FIRST), ("kgp", SECOND)]
    assert [s["chunk_ids"] for s in searches] == GOLDEN
    assert record.cited == GOLDEN_SHOWN and record.stop_reason == "limit"
    assert (record.loops, record.retrieval_calls, record.short, record.status) == (3, 3, "Karla Möhn", "ok")
    assert record.retrieved[0] == Retrieved(GOLDEN[0][0], 1, "kgp") and len(record.retrieved) == 6
    assert record.read == ("p0", "p7", "p6", "p4")  # the last hop's are not among the three that the reader saw


def test_each_hop_is_what_it_claims(retriever, graph):
    _, trace, record = run(retriever, graph, FIRST, SECOND, hops=2)
    visited: list[str] = []
    for search in events(trace, "retrieve"):
        if visited:
            expected = nearest_of(retriever, search["query"], graph.neighbours(visited), 2)
            assert search["chunk_ids"] == expected and not set(expected) & set(visited)
        visited += search["chunk_ids"]
    assert list(record.cited) == nearest_of(retriever, f"{QUESTION} {FIRST} {SECOND}", visited, 3)


def nearest_of(retriever, query, chunk_ids, k):
    """By the retriever's own search over the whole corpus."""
    return [h.chunk_id for h in retriever.dense(query, len(WORLD)) if h.chunk_id in chunk_ids][:k]


def test_requests(retriever, graph):
    client, trace, _ = run(retriever, graph, FIRST, SECOND, hops=2, evidence_tokens=31)
    prompts, searches = prompts_of("kgp"), events(trace, "retrieve")
    seeds = searches[0]["chunk_ids"]
    numbered = [
        "\n\n".join(f"[{c}] {retriever.text(c)}" for c in ids) for ids in (seeds, seeds + searches[1]["chunk_ids"])
    ]
    for body, passages, evidences in zip(client.bodies, numbered, ("(nothing yet)", FIRST), strict=False):
        user = prompts["evidence_user"].format(passages=passages, question=QUESTION, evidences=evidences)
        assert [m["content"] for m in body["messages"]] == [prompts["evidence_system"], user]
        assert body["max_tokens"] == 31
    assert client.bodies[1]["messages"][1]["content"].startswith(numbered[0])  # a server reads the old part once


@pytest.mark.parametrize(
    ("said", "stop", "calls"),
    [
        (["Nothing."], "complete", 1),
        (["None is missing"], "complete", 1),
        ([FIRST, "Missing: nothing"], "complete", 2),
        ([""], "repeat", 1),
        ([" \n ... "], "repeat", 1),
        ([FIRST, FIRST], "repeat", 2),
        ([FIRST, f"Missing evidence: {FIRST.upper()}"], "repeat", 2),
        ([FIRST, SECOND, "Her year of birth.", "never asked"], "limit", 3),
    ],
)
def test_why_it_stops(retriever, graph, said, stop, calls):
    client, trace, record = run(retriever, graph, *said)
    assert (record.stop_reason, client.roles) == (stop, ["control"] * calls + ["reader"])
    assert len(events(trace, "thought")) == calls and not events(trace, "fallback") and record.error is None


def test_a_repeated_line_is_passed_over_where_a_new_one_follows(retriever, graph):
    _, trace, record = run(retriever, graph, FIRST, f"{FIRST} {SECOND}", hops=2)
    assert events(trace, "thought")[1] == {"sentence": SECOND, "query": SECOND} and record.stop_reason == "limit"


def test_no_hop_is_dense_retrieval(retriever, graph):
    client, _, record = run(retriever, graph, hops=0, start=3)
    assert client.roles == ["reader"]
    assert list(record.cited) == [h.chunk_id for h in retriever.dense(QUESTION, 3)] == list(record.read)
    assert run(retriever, graph, hops=0, start=3, k=1)[2].read == record.cited[:1]


def test_what_the_reader_is_shown_of_the_last_hop_is_read(retriever, graph):
    _, _, record = run(retriever, graph, FIRST, SECOND, hops=2, k=6)
    assert set(record.read) == {c for hop in GOLDEN for c in hop}
    _, _, record = run(retriever, graph, FIRST, "Nothing.", hops=2, k=1)  # the model saw all before it stopped
    assert set(record.read) == {*GOLDEN[0], *GOLDEN[1]}


def test_an_isolated_seed_falls_back_to_a_search_and_says_so(retriever):
    _, trace, record = run(retriever, Islands(), FIRST, SECOND, hops=2)
    assert events(trace, "fallback") == [{"what": "no_neighbours", "to": "dense"}] * 2
    seeds, second, third = (s["chunk_ids"] for s in events(trace, "retrieve"))
    ranked = [h.chunk_id for h in retriever.dense(FIRST, len(WORLD)) if h.chunk_id not in seeds]
    assert second == ranked[:2] and not set(third) & {*seeds, *second} and record.stop_reason == "limit"


def test_once_everything_is_visited_it_stops(tmp_path):
    one = small_retriever(tmp_path, WORLD[:1])
    graph, _ = built("passage_graph", one, tmp_path / "g", Capitalised(one))
    _, trace, record = run(one, graph, FIRST)
    assert (record.stop_reason, record.cited, record.loops) == ("no_documents", ("p0",), 1)
    assert len(events(trace, "fallback")) == 1 and len(events(trace, "retrieve")) == 1


def test_a_search_that_finds_nothing(retriever, graph):
    client, _, record = run(retriever, graph, question="  ")
    assert client.roles == ["reader"] and (record.stop_reason, record.cited) == ("no_documents", ())


def test_equal_similarities_keep_the_order_given(tmp_path):
    same = small_retriever(tmp_path, [("x", "one text")] * 4)

    hits = same.nearest("one", ["p3", "p1", "p2"], 2)
    assert [(h.chunk_id, h.rank) for h in hits] == [("p3", 1), ("p1", 2)] and hits[0].score == hits[1].score
    assert same.nearest("one", [], 2) == [] == same.nearest(" ", ["p1"], 2)


# -- through the stages: KGP and LinearRAG over one index of entities


def test_from_params_to_records(project, serve, monkeypatch):
    found = lambda params, texts: [[[name, "PERSON"] for name in names_of(text)] for text in texts]  # noqa: E731
    monkeypatch.setattr(entities, "_recognise", found)
    serve()
    root = project(
        structures={"entities": {"structure": "entities", "settings": ["small"]}},
        graphs={g: {"structure": g, "over": "entities", "settings": ["small"]} for g in ("passage_graph", "tri_graph")},
        structured_runs={
            "kgp": {"method": "kgp", "structure": "passage_graph", "hops": 1, "start": 2},
            "linearrag": {"method": "linearrag", "structure": "tri_graph", "threshold": 0.1},
        },
    )

    async def build():
        async with opened(config.load(root / "params.yaml"), root) as session:
            return [await building.build(session, s) for s in ("entities", "passage_graph", "tri_graph")]

    made = [found["musique/small"].statistics for found in asyncio.run(build())]
    assert [s[key] for s, key in zip(made, ("passages", "nodes", "passages"), strict=True)] == [12] * 3
    for run_name, roles in (("kgp", {"control", "reader"}), ("linearrag", {"reader"})):
        assert run_project(root, run_name) == {"ok": 6}
        for record in records_of(root, run_name):
            assert set(record.usage) == roles and record.error is None and 0 < len(record.cited) <= 5
            assert {r.tool for r in record.retrieved} == {run_name}
