"""Batched search gives what one query at a time gives: order, ties, blanks, depths; substrings as str.count counts."""

from __future__ import annotations

import random

import pytest
from fake_embedder import PASSAGES, HashEmbedder, small_retriever
from hypothesis import given, settings
from hypothesis import strategies as st

from multihop.errors import ConfigError, DataError, ReplayMiss
from multihop.retrieval import ranking
from multihop.retrieval.batch import TOOLS, BatchSearch
from multihop.retrieval.lexical import BM25, KeywordIndex
from multihop.retrieval.substrings import Substrings

WORDS = "salt road dorvik arle Ines Havel river mill art party smart town of the in is 1931 Øyvind".split()
DEPTHS = (1, 3, 5, 10)


def corpus(seed: int, size: int) -> list[tuple[str, str]]:
    """Random passages of few words, so that ties abound; a fifth repeat an earlier text under another title."""
    rng = random.Random(seed)
    made: list[tuple[str, str]] = []
    for i in range(size):
        sentences = [" ".join(rng.choices(WORDS, k=rng.randint(2, 7))) for _ in range(rng.randint(0, 6))]
        text = rng.choice(made)[1] if made and rng.random() < 0.2 else ". ".join(sentences)
        made.append((f"{rng.choice(WORDS)} {i % 7}", text))
    return made


def queries(seed: int) -> list[str]:
    rng = random.Random(seed)
    made = [" ".join(rng.choices(WORDS, k=rng.randint(1, 9))) for _ in range(25)]
    return [*made, made[0], " padded  mill ", "", "  ", "unheard-of", "the the the"]


def keyword_lists(seed: int) -> list[list[str]]:
    rng = random.Random(seed)
    parts = [*WORDS, "art", "a", "ol", "Ines Havel", "of the", ". ", "mill art", "", " ", "é", "Salt", "no such thing"]
    return [rng.choices(parts, k=rng.randint(1, 6)) for _ in range(30)] + [[], [""]]


def one_at_a_time(retriever, tool: str, query: str, keywords: list[str], k: int) -> list[int]:
    """The reference: the Retriever, and for the two sentence rankings that it lacks, a plain loop over its parts."""
    if tool in ("keyword_sentences", "bm25_sentences"):
        sentences = [(c.id, s) for c in retriever.chunks for s, _ in retriever.sentences_of(c.id)]
        texts = [s for _, s in sentences]
        p = retriever.params
        found = (
            KeywordIndex(texts).search(keywords, len(texts))
            if tool == "keyword_sentences"
            else BM25(texts, p.bm25_k1, p.bm25_b, p.bm25_epsilon).search(query, len(texts))
        )
        ids = list(dict.fromkeys(sentences[i][0] for i, _ in found))[:k]
    else:
        search = {"keyword_search": lambda: retriever.keyword_search(keywords, k)}
        hits = search.get(tool, lambda: getattr(retriever, tool)(query, k))()
        ids = [hit.chunk_id for hit in hits]
    return [retriever._position[i] for i in ids]


@pytest.mark.parametrize(("seed", "size"), [(0, 1), (1, 2), (2, 30), (3, 90), (4, 300)])
@pytest.mark.parametrize("tool", TOOLS)
def test_the_order_is_that_of_one_query_at_a_time_at_every_depth(tmp_path, tool, seed, size):
    retriever = small_retriever(tmp_path, corpus(seed, size))
    asked, keywords = queries(seed), keyword_lists(seed)
    found = BatchSearch(retriever).search(tool, asked, keywords, max(DEPTHS))
    count = len(keywords) if tool.startswith("keyword_") else len(asked)
    assert found.positions.shape == found.needs.shape == (count, max(DEPTHS))
    for q in range(count):
        for k in DEPTHS:
            query, words = asked[q % len(asked)], keywords[q % len(keywords)]
            assert found.at(q, k) == one_at_a_time(retriever, tool, query, words, k), (q, k)


def test_a_semantic_search_for_fewer_is_not_the_first_hits_of_one_for_more(tmp_path):
    """One chunk owns the nine best sentences: a search for 3 returns it alone, one for 5 the second as well."""
    repeated = ". ".join(["salt road mill art"] * 12)
    passages = [("Dorvik", repeated), *[(f"Arle {i}", "salt road river river") for i in range(4)]]
    found = BatchSearch(small_retriever(tmp_path, passages)).search("semantic_search", ["salt road mill art"], [[]], 10)
    assert found.at(0, 1) == [0] and found.at(0, 3) == [0]
    assert len(found.at(0, 5)) > 1 and found.needs[0, 1] == 5, "rank 2, from k = 5 on"


@pytest.mark.parametrize("tool", TOOLS)
def test_small_blocks_change_nothing(tmp_path, tool, monkeypatch):
    retriever = small_retriever(tmp_path, corpus(5, 120))
    asked, keywords = queries(5), keyword_lists(5)
    whole = BatchSearch(retriever).search(tool, asked, keywords, 10)
    monkeypatch.setattr(ranking, "BLOCK_BYTES", 1)
    blocks = BatchSearch(retriever).search(tool, asked, keywords, 10)
    assert (whole.positions == blocks.positions).all() and (whole.needs == blocks.needs).all()


def test_words_of_no_or_negative_weight_still_make_a_hit(tmp_path):
    """A word in half of the texts has idf 0, one in more of them a negative one: shared, at a score of 0 or less."""
    retriever = small_retriever(tmp_path, [("a", "salt"), ("b", "salt"), ("c", "road"), ("d", "mill")])
    found = BatchSearch(retriever).search("bm25", ["salt", "salt road"], [], 4)
    assert found.at(0, 4) == [0, 1] == one_at_a_time(retriever, "bm25", "salt", [], 4)
    assert found.at(1, 4) == one_at_a_time(retriever, "bm25", "salt road", [], 4)


def test_no_query_no_sentence_and_bad_input(tmp_path):
    retriever = small_retriever(tmp_path, [("Mill", "salt"), ("Arle", "road")])  # no piece of eleven characters
    search = BatchSearch(retriever)
    for tool in TOOLS:
        assert search.search(tool, [], [], 5).positions.shape == (0, 5)
    for tool in ("semantic_search", "keyword_sentences", "bm25_sentences"):
        assert search.search(tool, ["salt"], [["salt"]], 5).at(0, 5) == []
    with pytest.raises(ConfigError, match="keyword_sentences"):
        search.search("grep", ["salt"], [], 5)
    retriever.allow = False
    with pytest.raises(ReplayMiss):
        search.search("dense", ["never asked"], [], 5)


def test_lexical_indexes_are_shared_between_embedders_of_one_corpus_only(tmp_path):
    first = BatchSearch(small_retriever(tmp_path / "a", PASSAGES))
    shared = BatchSearch(small_retriever(tmp_path / "b", PASSAGES, HashEmbedder(longest=3)), lexical=first)
    assert shared._words is first._words and shared._sentence_text is first._sentence_text
    assert shared.search("bm25", ["Marrow Bay"], [], 5).at(0, 5) == first.search("bm25", ["Marrow Bay"], [], 5).at(0, 5)
    with pytest.raises(DataError, match="another corpus"):
        BatchSearch(small_retriever(tmp_path / "c", PASSAGES[:2]), lexical=first)


ALPHABET = st.text(alphabet="abAB _-.éİß1\n", max_size=14)


@settings(max_examples=150, deadline=None)
@given(st.lists(ALPHABET, max_size=8), st.lists(ALPHABET.filter(str.strip), max_size=8))
def test_substrings_are_counted_as_str_counts_them(texts, needles):
    index = Substrings(texts)
    needles = [n.lower() for n in needles]
    expected = [[t.lower().count(n) for t in texts] for n in needles]
    assert index.counts(needles).toarray().tolist() == expected
    assert index.counts(needles).toarray().tolist() == expected, "the second time from what is kept"
