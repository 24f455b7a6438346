"""The agent's three tools: what the model reads, what is recorded, what is counted."""

from __future__ import annotations

import json
import re

import pytest
from fake_embedder import PASSAGES, small_retriever
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from multihop.retrieval.tokens import count_tokens
from multihop.retrieval.tools import TOOL_NAMES, TOOL_SPECS, AgentTools


@pytest.fixture(scope="module")
def retriever(tmp_path_factory):
    return small_retriever(tmp_path_factory.mktemp("tools"))


def test_specs_are_openai_functions():
    assert TOOL_NAMES == ("keyword_search", "semantic_search", "read_chunk")
    for spec in json.loads(json.dumps(TOOL_SPECS)):
        parameters = spec["function"]["parameters"]
        assert spec["type"] == "function" and spec["function"]["description"]
        assert set(parameters["required"]) <= set(parameters["properties"])


def test_keyword_search_text_record_and_tokens(retriever):
    tools = AgentTools(retriever)
    result = tools.call("keyword_search", {"keywords": ["Mayor", "Kelm"]}, 1)
    assert result.text == (
        "[p4] Tomas Reed studied law in Kelm … He has been mayor of Marrow Bay since 1990\n"
        "[p1] Its mayor since 1990 is Tomas Reed"
    )
    assert (result.kind, result.tool, result.query) == ("retrieve", "keyword_search", ["Mayor", "Kelm"])
    assert (result.chunk_ids, result.scores, result.repeat) == (("p4", "p1"), (9.0, 5.0), False)
    sentences = [
        "Tomas Reed studied law in Kelm",
        "He has been mayor of Marrow Bay since 1990",
        "Its mayor since 1990 is Tomas Reed",
    ]
    assert result.new_tokens == count_tokens("\n".join(sentences)) == tools.retrieved_tokens
    assert result.evidence == (("p4", " … ".join(sentences[:2])), ("p1", sentences[2]))


def test_arag_scoring_finds_art_in_party_and_bm25_does_not(retriever):
    assert AgentTools(retriever).call("keyword_search", {"keywords": ["art"]}, 1).chunk_ids == ("p3",)
    bm25 = AgentTools(retriever, keyword_scoring="bm25")
    assert bm25.call("keyword_search", {"keywords": ["art"]}, 1).text == "Nothing found."
    assert bm25.call("keyword_search", {"keywords": ["party"]}, 1).chunk_ids == ("p3",)


def test_no_score_enters_a_text(retriever):
    tools = AgentTools(retriever)
    result = tools.call("semantic_search", {"query": "a novel set to music"}, 1)
    assert result.scores and not re.search(r"\d\.\d", result.text)
    assert list(result.scores) == sorted(result.scores, reverse=True)


def test_a_chunk_found_twice_in_a_step_is_shown_once(retriever):
    tools = AgentTools(retriever)
    tools.call("keyword_search", {"keywords": ["Kelm"]}, 1)
    again = tools.call("keyword_search", {"keywords": ["Tomas Reed"], "top_k": 1}, 1)
    assert again.text == "[p4] (shown above)" and again.chunk_ids == ("p4",)
    assert again.new_tokens == 0 and again.evidence == ()
    assert "studied law" in tools.call("keyword_search", {"keywords": ["Tomas Reed"], "top_k": 1}, 2).text
    both = AgentTools(retriever, dedup_step=False)
    both.call("keyword_search", {"keywords": ["Kelm"]}, 1)
    assert "studied law" in both.call("keyword_search", {"keywords": ["Tomas Reed"], "top_k": 1}, 1).text


def test_reading_counts_once_and_names_unknown_ids(retriever):
    tools = AgentTools(retriever)
    first = tools.call("read_chunk", {"chunk_ids": ["p1", "p9", "p1"]}, 1)
    assert first.text == f"[p1] {retriever.text('p1')}\n\n[p9] not found; ids look like p0"
    assert (first.kind, first.chunk_ids, first.new, first.unknown) == ("read", ("p1",), ("p1",), ("p9",))
    assert first.new_tokens == count_tokens(retriever.text("p1"))
    second = tools.call("read_chunk", {"chunk_ids": "p1, [p2]"}, 2)
    assert second.text.startswith("[p1] already read, see above\n\n[p2] The Glass Harbour\n")
    assert (second.chunk_ids, second.new, tools.read) == (("p1", "p2"), ("p2",), ["p1", "p2"])
    assert tools.retrieved_tokens == sum(count_tokens(retriever.text(i)) for i in ("p1", "p2"))
    assert second.evidence == (("p2", retriever.text("p2")),)
    # A search in the same step doesn't show again what was just read in full.
    assert tools.call("keyword_search", {"keywords": ["Øyvind"]}, 2).text == "[p2] (shown above)"


def test_dedup_answers_an_exact_repeat_with_the_earlier_ids(retriever):
    tools = AgentTools(retriever, dedup=True)
    first = tools.call("keyword_search", {"keywords": ["Mayor", "Kelm"]}, 1)
    spent = tools.retrieved_tokens
    again = tools.call("keyword_search", {"keywords": ["ＫＥＬＭ ", "mayor"], "top_k": 1}, 2)
    assert again.repeat and again.chunk_ids == first.chunk_ids and again.scores == ()
    assert "p4, p1" in again.text and again.new_tokens == 0 and tools.retrieved_tokens == spent
    assert again.query == ["ＫＥＬＭ", "mayor"]
    tools.call("semantic_search", {"query": "Mayor  of\nSund"}, 3)
    assert tools.call("semantic_search", {"query": "mayor of sund"}, 4).repeat
    assert not tools.call("semantic_search", {"query": "mayor of sund?"}, 4).repeat
    # The same words through the other tool, or one keyword less, are another search.
    assert not tools.call("keyword_search", {"keywords": ["mayor of sund"]}, 5).repeat
    assert not tools.call("keyword_search", {"keywords": ["mayor"]}, 5).repeat
    tools.call("keyword_search", {"keywords": ["zzz"]}, 6)
    assert "found nothing" in tools.call("keyword_search", {"keywords": ["ZZZ"]}, 7).text


def test_without_dedup_a_repeat_is_a_search_and_the_seed_is_never_a_repeat(retriever):
    tools = AgentTools(retriever)
    results = [tools.call("semantic_search", {"query": "mayor"}, step) for step in (1, 2)]
    assert results[0].text == results[1].text and not results[1].repeat
    assert tools.retrieved_tokens == 2 * results[0].new_tokens
    seeded = AgentTools(retriever, dedup=True)
    seeded.call("semantic_search", {"query": "mayor"}, 0)
    assert not seeded.call("semantic_search", {"query": "mayor"}, 1).repeat
    assert seeded.call("semantic_search", {"query": "mayor"}, 2).repeat


@pytest.mark.parametrize(
    ("top_k", "count"),
    [
        (2, 2),
        ("2", 2),
        (2.0, 2),
        (None, 5),
        ("", 5),
        (0, 1),
        (-7, 1),
        (10**400, 20),
        (float("inf"), 20),
        ("1e9", 20),
    ],
)
def test_top_k_is_read_and_clipped(tmp_path, top_k, count):
    many = small_retriever(tmp_path, [(f"T{i}", f"A town called number {i} is here.") for i in range(25)])
    result = AgentTools(many).call("keyword_search", {"keywords": ["town"], "top_k": top_k}, 1)
    assert result.chunk_ids == tuple(f"p{i}" for i in range(count))


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("web_search", {"query": "x"}, "no tool 'web_search'"),
        (None, {}, "no tool 'None'"),
        (["a"], {}, "no tool"),
        ("semantic_search", {}, "'query'"),
        ("semantic_search", {"query": " \n"}, "'query'"),
        ("semantic_search", {"query": {"a": 1}}, "'query'"),
        ("semantic_search", {"query": "x", "top_k": "five"}, "'top_k'"),
        ("semantic_search", {"query": "x", "top_k": True}, "'top_k'"),
        ("semantic_search", {"query": "x", "top_k": "nan"}, "'top_k'"),
        ("semantic_search", None, "JSON object"),
        ("keyword_search", {"keywords": []}, "'keywords'"),
        ("keyword_search", {"keywords": ["", " "]}, "'keywords'"),
        ("keyword_search", {"keywords": [None]}, "'keywords'"),
        ("keyword_search", {"keywords": ["x"] * 101}, "at most 100"),
        ("read_chunk", {"chunk_ids": {"id": "p1"}}, "'chunk_ids'"),
        ("read_chunk", ["p1"], "JSON object"),
    ],
)
def test_bad_calls_are_answered_in_words(retriever, name, arguments, message):
    tools = AgentTools(retriever)
    result = tools.call(name, arguments, 3)
    assert (
        result.kind == "tool_error" and message in result.error and result.text == f"Error: {result.error}."
    )
    assert (result.chunk_ids, result.new_tokens, tools.retrieved_tokens) == ((), 0, 0)


def test_plain_meanings_are_understood(retriever):
    tools = AgentTools(retriever)
    for keywords in ("Mayor, Kelm", '["Mayor", "Kelm"]', "[Mayor, 'Kelm']"):
        assert tools.call("keyword_search", {"keywords": keywords}, 1).query == ["Mayor", "Kelm"]
    assert tools.call("keyword_search", {"keywords": [1990]}, 1).chunk_ids == ("p1", "p4")
    assert tools.call("semantic_search", {"query": ["mayor"]}, 1).query == "mayor"
    assert tools.call("semantic_search", {"query": "half \ud800 character"}, 1).query == "half ? character"
    assert tools.call("read_chunk", {"chunk_ids": 3}, 1).unknown == ("3",)


def test_a_huge_passage_is_bounded(tmp_path):
    huge = small_retriever(
        tmp_path, [("Huge", "fish and ships " * 40_000), ("Kelm", "A town without any fish in it.")]
    )
    tools = AgentTools(huge, snippet_tokens=50, read_tokens=100)
    found = tools.call("keyword_search", {"keywords": ["fish"]}, 1)
    assert found.chunk_ids == ("p0", "p1") and found.new_tokens <= 51 and found.text.endswith("\n[p1]")
    read = tools.call("read_chunk", {"chunk_ids": ["p0"]}, 1)
    assert read.new_tokens <= 101 and read.text.endswith("the rest is left out)")
    free = AgentTools(huge, read_tokens=None).call("read_chunk", {"chunk_ids": ["p0"]}, 1)
    assert free.new_tokens > 100_000


def test_one_call_reads_a_bounded_number_of_chunks(retriever):
    result = AgentTools(retriever, k_max=2).call("read_chunk", {"chunk_ids": ["p0", "p1", "p2"]}, 1)
    assert result.new == ("p0", "p1") and result.text.endswith("1 were left out.")


junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["p1", "mayor"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
calls = st.tuples(
    st.sampled_from(TOOL_NAMES) | st.text(max_size=5),
    st.fixed_dictionaries({}, optional=dict.fromkeys(("keywords", "query", "chunk_ids", "top_k"), junk))
    | junk,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(calls, max_size=6), st.booleans())
def test_any_arguments_give_text_and_a_consistent_record(retriever, sequence, dedup):
    tools = AgentTools(retriever, dedup=dedup)
    results = [tools.call(name, arguments, step) for step, (name, arguments) in enumerate(sequence, 1)]
    assert all(r.text and set(r.chunk_ids) <= {f"p{i}" for i in range(len(PASSAGES))} for r in results)
    assert tools.retrieved_tokens == sum(r.new_tokens for r in results)
    assert tools.read == [i for r in results for i in r.new] and len(set(tools.read)) == len(tools.read)
    for r in results:
        r.text.encode()
        assert (r.kind == "tool_error") == (r.error is not None)
