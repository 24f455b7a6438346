"""RAPTOR's search of the collapsed tree: which nodes are shown, and which passages count as retrieved."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from fake_embedder import small_retriever
from project_fixture import WORLD, FakeClient, events, prompts_of
from scripted_server import Say

from multihop import config
from multihop.methods import registry
from multihop.retrieval.tokens import count_tokens
from multihop.running import Cell
from multihop.structures.tree import LoadedTree, Node
from multihop.types import Question

QUESTION = "Where is the painter Emil Wren buried?"
FINAL = Say("Because: he is (p5).\nAnswer: Tavik")
SUMMARIES = {  # text -> children
    "Emil Wren the painter is buried in Tavik.": (1, 5, 6),
    "Jon Ekeby the composer was born in Norr.": (7, 8, 9),
}


@pytest.fixture(scope="module")
def retriever(tmp_path_factory):
    return small_retriever(tmp_path_factory.mktemp("raptor"), WORLD)


def tree_of(retriever, leaves=None, summaries=SUMMARIES) -> LoadedTree:
    """Leaves (default: the passages), then summaries, then one of all summaries."""
    leaves = leaves or [(c.id, c.text) for c in retriever.chunks]
    nodes = [Node(i, 0, text, chunk) for i, (chunk, text) in enumerate(leaves)]
    for text, children in summaries.items():
        nodes.append(Node(len(nodes), 1, text, None, children))
    if summaries:
        children = tuple(range(len(leaves), len(nodes)))
        nodes.append(Node(len(nodes), 2, "Weavers and bees.", None, children))
    vectors = [retriever.query_vector(node.text) for node in nodes]
    return LoadedTree(tuple(nodes), np.stack(vectors))


def run(retriever, tree, question=QUESTION, **options):
    client = FakeClient(lambda body: FINAL)
    method = registry.create(config.RunConfig(method="raptor", **options), "test")
    prompts = prompts_of("raptor")
    cell = Cell("run", "set", "s", method, client, retriever, prompts, "h", "c", lambda seed: None, tree)
    record = asyncio.run(cell.answer(Question("q", question), 0))
    assert record.error is None, record.error
    return record, client


def shown(client) -> str:
    [body] = client.bodies
    return body["messages"][1]["content"].rsplit("\nQuestion:", 1)[0]


def test_golden(retriever):
    record, client = run(retriever, tree_of(retriever), k=3)
    summary = next(iter(SUMMARIES))
    assert shown(client) == "\n\n".join(
        [f"[summary] {summary}", f"[p5] {retriever.text('p5')}", f"[p7] {retriever.text('p7')}"]
    )
    assert [(r.chunk_id, r.step, r.tool) for r in record.retrieved] == [("p5", 1, "raptor"), ("p7", 1, "raptor")]
    assert record.cited == record.read == ("p5", "p7") and record.short == "Tavik"
    assert events(record, "summary") == [{"node": 12, "layer": 1, "chunk_ids": ["p1", "p5", "p6"]}]
    assert (record.retrieval_calls, record.loops, list(record.usage)) == (1, 1, ["reader"])
    texts = [summary, retriever.text("p5"), retriever.text("p7")]
    assert record.retrieved_tokens == sum(map(count_tokens, texts))
    assert [e.kind for e in record.events] == ["retrieve", "summary", "final"]


def test_nodes_are_taken_while_they_fit_and_the_best_always(retriever):
    tree, summary = tree_of(retriever), next(iter(SUMMARIES))
    for room, nodes in ((1, 1), (count_tokens(summary), 1), (count_tokens(summary) + retriever.tokens("p5"), 2)):
        record, client = run(retriever, tree, context_tokens=room)
        assert len(record.cited) == nodes - 1 and shown(client).count("[") == nodes


def test_only_summaries(retriever):
    record, client = run(retriever, tree_of(retriever), k=1)
    assert record.cited == record.read == record.retrieved == () and record.status == "ok"
    assert shown(client) == f"[summary] {next(iter(SUMMARIES))}"
    assert record.retrieval_calls == 1 and len(events(record, "summary")) == 1


def test_a_summary_of_summaries_leads_to_all_its_passages(retriever):
    record, _ = run(retriever, tree_of(retriever), "Weavers and bees.", k=1)
    [event] = events(record, "summary")
    assert event == {"node": 14, "layer": 2, "chunk_ids": ["p1", "p5", "p6", "p7", "p8", "p9"]}


def test_pieces_of_one_passage_are_one_retrieved_passage_not_read_whole(retriever):
    leaves = [("p5", "Emil Wren was a painter."), ("p5", "Emil Wren is buried in Tavik."), ("p9", retriever.text("p9"))]
    record, client = run(retriever, tree_of(retriever, leaves, {}), k=2)
    assert shown(client).count("[p5]") == 2 and record.cited == ("p5",) and record.read == ()
    [search] = events(record, "retrieve")
    assert search["chunk_ids"] == ["p5"] and len(search["scores"]) == 1


def test_a_corpus_of_one_passage(tmp_path):
    small = small_retriever(tmp_path, WORLD[:1])
    record, _ = run(small, tree_of(small, summaries={}))
    assert record.cited == ("p0",)


def test_equal_scores_come_in_order(tmp_path):
    same = small_retriever(tmp_path, [WORLD[0]] * 5)
    record, _ = run(same, tree_of(same, summaries={}), k=3)
    assert record.cited == ("p0", "p1", "p2")


def test_a_blank_question_finds_nothing_and_says_so(retriever):
    record, client = run(retriever, tree_of(retriever), " ")
    assert record.cited == () and events(record, "fallback") == [{"what": "no_nodes", "to": "the question alone"}]
    assert len(client.bodies) == 1
