"""LinearRAG: the array form of its propagation against the plain one, its weights, its ranking and its fallback."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from entity_fixture import Capitalised, built
from fake_embedder import small_retriever
from hypothesis import given, settings
from hypothesis import strategies as st
from project_fixture import WORLD, FakeClient, answer, events
from scipy import sparse
from scripted_server import Say

from multihop.methods.linearrag import Activation, Params, _seeded, passage_weights, propagate
from multihop.structures import ppr

QUESTION = "Who is the mayor of the town where Oda Wren, author of The Lantern Ferry, lived?"
GOLDEN = ["p0", "p1", "p2", "p4", "p7"]
GOLDEN_ACTIVE = {"seeds": 2, "entities": 2}
READ = Say("Because: it says so.\nAnswer: Karla Möhn")


# -- propagation


def breadth_first(graph, seeds, cosines, p):
    """What ``propagate`` computes, as the authors' code does it: entity by entity."""
    active, used = _seeded(len(graph.entities), seeds), set()
    current = dict(sorted(seeds.items()))
    for tier in range(2, p.max_iterations + 1):
        reached: dict[int, float] = {}
        for entity, value in sorted(current.items()):
            if value < p.threshold:
                continue
            rows = [s for s in _row(graph.entity_sentences, entity) if s not in used]
            similar = dict(zip(rows, cosines(np.array(rows, dtype=int)).tolist(), strict=True))
            for sentence in sorted(rows, key=lambda s: (-similar[s], s))[: p.top_k_sentence]:
                used.add(sentence)
                gained = value * similar[sentence]
                if gained < p.threshold:
                    continue
                for other in _row(graph.sentence_entities, sentence):
                    active.weights[other] += gained
                    reached[other] = max(reached.get(other, 0.0), gained)
        for entity, value in reached.items():
            if not active.tiers[entity]:
                active.scores[entity], active.tiers[entity] = value, tier
        current = reached
    return active


def _row(links, row: int) -> list[int]:
    return links.indices[links.indptr[row] : links.indptr[row + 1]].tolist()


def links(rows: list[list[int]], sentences: int) -> SimpleNamespace:
    """A graph of entities only, by the sentences of each."""
    dense = np.zeros((len(rows), sentences))
    for entity, held in enumerate(rows):
        dense[entity, held] = 1
    made = sparse.csr_array(dense)
    return SimpleNamespace(
        entities=list(range(len(rows))), entity_sentences=made, sentence_entities=sparse.csr_array(made.T)
    )


@st.composite
def drawn(draw):
    """A graph, seeds, similarities (many equal ones, some negative) and params."""
    entities, sentences = draw(st.integers(1, 9)), draw(st.integers(1, 12))
    rows = draw(
        st.lists(
            st.lists(st.integers(0, sentences - 1), unique=True, max_size=sentences),
            min_size=entities,
            max_size=entities,
        )
    )
    values = st.sampled_from([-0.2, 0.0, 0.3, 0.4, 0.5, 0.5, 0.7, 0.9, 1.0])
    similar = np.array(draw(st.lists(values, min_size=sentences, max_size=sentences)))
    seeds = draw(st.dictionaries(st.integers(0, entities - 1), st.sampled_from([0.2, 0.6, 0.9, 1.0]), min_size=1))
    params = Params(
        max_iterations=draw(st.integers(1, 6)),
        threshold=draw(st.sampled_from([0.0, 0.1, 0.3, 0.4])),
        top_k_sentence=draw(st.integers(1, 4)),
    )
    return links(rows, sentences), seeds, similar, params


@given(drawn())
@settings(max_examples=150, deadline=None)
def test_the_fast_form_is_the_plain_one(case):
    graph, seeds, similar, params = case
    plain = breadth_first(graph, seeds, lambda rows: similar[rows], params)
    fast = propagate(graph, seeds, lambda rows: similar[rows], params)
    assert fast.tiers.tolist() == plain.tiers.tolist()
    assert np.allclose(fast.weights, plain.weights) and np.allclose(fast.scores, plain.scores)


@pytest.fixture(params=[breadth_first, propagate])
def form(request):
    """Each test of what propagation does holds for both forms."""

    def run(rows, similar, seeds, **params):
        similar = np.array(similar)
        return request.param(links(rows, len(similar)), seeds, lambda chosen: similar[chosen], Params(**params))

    return run


def test_scores_pass_through_sentences(form):
    #        s0: a b   s1: b c
    active = form([[0], [0, 1], [1]], [0.8, 0.9], {0: 1.0}, threshold=0.1)
    assert active.tiers.tolist() == [1, 2, 3]
    assert active.scores == pytest.approx([1.0, 0.8, 0.72])
    assert active.weights == pytest.approx([1.8, 0.8 + 0.72, 0.72])  # who passes on gets a share too: it is in there


def test_it_stops_at_the_threshold_and_at_the_last_tier(form):
    rows, similar = [[0], [0, 1], [1]], [0.8, 0.5]
    assert form(rows, similar, {0: 1.0}, threshold=0.41).tiers.tolist() == [1, 2, 0]
    assert form(rows, similar, {0: 1.0}, threshold=0.4).tiers.tolist() == [1, 2, 3]
    assert form(rows, similar, {0: 1.0}, threshold=0.1, max_iterations=2).tiers.tolist() == [1, 2, 0]
    assert form(rows, similar, {0: 1.0}, max_iterations=1).weights.tolist() == [1, 0, 0]
    weak = form(rows, [1.0, 1.0], {0: 0.3}, threshold=0.4)
    assert weak.tiers.tolist() == [1, 0, 0] and weak.weights.tolist() == [0.3, 0, 0]


def test_only_the_best_sentences_carry_and_each_once(form):
    # a: s0 s1 s2; b, c, d one each; e shares s0 with a
    rows, similar = [[0, 1, 2], [0], [1], [2], [0]], [0.5, 0.9, 0.9]
    active = form(rows, similar, {0: 1.0}, top_k_sentence=2, max_iterations=2)
    assert active.tiers.tolist() == [1, 0, 2, 2, 0]
    # Both seeds hold s0 alone: the first takes it, the second finds it taken.
    both = form([[0], [0]], [0.9], {0: 0.5, 1: 1.0}, threshold=0.1)
    assert both.weights == pytest.approx([0.5 + 0.45, 1.0 + 0.45])


def test_who_finds_a_sentence_taken_takes_the_next(form):
    #  a and b both like s0 best; b goes on to s1, where c is
    active = form([[0], [0, 1], [1]], [0.9, 0.8], {0: 1.0, 1: 1.0}, top_k_sentence=1, max_iterations=2)
    assert active.tiers.tolist() == [1, 1, 2] and active.scores[2] == pytest.approx(0.8)


def test_entities_without_sentences(form):
    active = form([[], [0]], [1.0], {0: 1.0})
    assert active.tiers.tolist() == [1, 0]


# -- weights of passages


def test_passage_weights_by_hand():
    logs = np.log1p(np.array([[2.0, 0, 0], [1, 1, 0]])).T
    active = Activation(np.array([1.0, 0.6]), np.array([1.0, 0.6]), np.array([1, 2]))
    found = passage_weights(sparse.csr_array(logs), active, np.array([0.2, 0.4, 0.3]), Params(passage_ratio=2.0))
    bonus = np.array([np.log(3) + 0.3 * np.log(2), 0.3 * np.log(2), 0])
    assert found == pytest.approx((2 * np.array([0, 1, 0.5]) + np.log(1 + bonus)) * 0.05)


# -- the method


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    retriever = small_retriever(tmp_path_factory.mktemp("linear"), WORLD)
    return retriever, built("tri_graph", retriever, tmp_path_factory.mktemp("g"), Capitalised(retriever))[0]


def run(retriever, graph, question: str = QUESTION, **options):
    client = FakeClient(lambda body: READ)
    _, trace, record = answer(retriever, "linearrag", client, question, structure=graph, **options)
    return client, trace, record


def test_golden(world):
    client, trace, record = run(*world, threshold=0.1)
    assert client.roles == ["reader"] and not events(trace, "fallback")
    [search] = events(trace, "retrieve")
    assert search["chunk_ids"] == list(record.cited) == list(record.read) == GOLDEN
    assert search["scores"] == sorted(search["scores"], reverse=True) and search["tool"] == "linearrag"
    assert search["scores"][0] == 1.0 and all(s == round(s, 6) for s in search["scores"])  # on every processor
    assert events(trace, "propagation") == [GOLDEN_ACTIVE]
    assert (record.short, record.stop_reason, record.loops, record.retrieval_calls) == ("Karla Möhn", "answered", 1, 1)


def test_the_ranking_is_pagerank_of_the_plain_form(world):
    graph = world[1]
    p = Params(threshold=0.1)
    seeds = graph.seeds(QUESTION)
    active = breadth_first(graph, seeds, lambda rows: graph.sentence_cosines(QUESTION, rows), p)
    reset = [*active.weights, *passage_weights(graph.mention_logs, active, graph.passage_cosines(QUESTION), p)]
    scores = graph.graph.pagerank(np.array(reset), 0.5)[len(graph.entities) :]
    assert [f"p{i}" for i in ppr.best(scores, 5)] == list(run(*world, threshold=0.1)[2].cited)


def test_it_finds_what_plain_search_does_not(tmp_path):
    """The second hop shares an entity with the first passage, and not a word with the question."""
    passages = [
        ("The Salt Road", "The Salt Road is a novel by Ines Havel."),
        ("Ines Havel", "Ines Havel came from Dorvik."),
        *((f"Filler {i}", f"The road of salt number {i} is a road by the sea.") for i in range(8)),
    ]
    retriever = small_retriever(tmp_path, passages)
    graph, _ = built("tri_graph", retriever, tmp_path / "g", Capitalised(retriever))
    question = "Whose novel is The Salt Road?"
    assert "p1" not in [h.chunk_id for h in retriever.dense(question, 3)]
    # The embedder of tests gives unrelated words any similarity: let entities alone decide.
    assert set(run(retriever, graph, question, passage_ratio=0.0, threshold=0.1, k=2)[2].cited) == {"p0", "p1"}


def test_passage_ratio_leads_back_to_plain_search(world):
    retriever, graph = world
    found = run(retriever, graph, passage_ratio=1e6, damping=0.0)[2].cited
    assert list(found) == [h.chunk_id for h in retriever.dense(QUESTION, 5)]


def test_a_question_without_entities_is_answered_by_plain_search_and_said(world):
    retriever, graph = world
    question = "which village lost its church to a fire?"
    client, trace, record = run(retriever, graph, question, k=3)
    assert events(trace, "fallback") == [{"what": "no_seeds", "to": "dense"}]
    assert list(record.cited) == [h.chunk_id for h in retriever.dense(question, 3)] and len(client.bodies) == 1
    assert {r.tool for r in record.retrieved} == {"linearrag"} and record.status == "ok"


def test_a_corpus_without_entities_or_without_anything_found(tmp_path, world):
    plain = small_retriever(tmp_path, [("a", "no name here"), ("b", "nor there")])
    graph, _ = built("tri_graph", plain, tmp_path / "g", Capitalised(plain))
    assert len(run(plain, graph)[2].cited) == 2
    _, trace, record = run(*world, question=" ")
    assert record.cited == () and record.status == "ok" and len(events(trace, "fallback")) == 1


def test_duplicates_rank_by_position(tmp_path):
    same = small_retriever(tmp_path, [("Dorvik", "Dorvik is a town.")] * 13)
    graph, _ = built("tri_graph", same, tmp_path / "g", Capitalised(same))
    assert run(same, graph, "Where is Dorvik?")[2].cited == ("p0", "p1", "p2", "p3", "p4")


def test_sentences_may_be_missing_altogether(tmp_path):
    short = small_retriever(tmp_path, [("Arle", "Arle."), ("Norr", "Norr.")])
    assert not any(short.sentences_of(c.id) for c in short.chunks)
    graph, _ = built("tri_graph", short, tmp_path / "g", Capitalised(short))
    record = run(short, graph, "Where is Arle?")[2]
    assert record.cited[0] == "p0" and record.error is None
