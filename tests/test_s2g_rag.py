"""S2G-RAG on a scripted model: its calls, its stopping rules, and what odd replies do."""

from __future__ import annotations

import copy
import json

import pytest
from fake_embedder import small_retriever
from project_fixture import WORLD, FakeClient, answer, events, prompts_of
from scripted_server import Say, in_turn

from multihop.methods.s2g_rag import Gap, Judgement, _sentences

QUESTION = "Who is the mayor of the town where the author of The Lantern Ferry lived?"
FINAL = Say("Because: she is (p2).\nAnswer: Karla Möhn")


@pytest.fixture(scope="module")
def retriever(tmp_path_factory):
    return small_retriever(tmp_path_factory.mktemp("s2g"), WORLD)


def select(*numbers) -> Say:
    return Say(json.dumps({"sentences": list(numbers)}))


def judge(sufficient, *gaps: tuple[str, str, str]) -> Say:
    items = [dict(zip(("target", "slot", "description"), gap, strict=True)) for gap in gaps]
    return Say(json.dumps({"sufficient": sufficient, "gap_items": items}))


def run(retriever, outcomes, **options):
    client = FakeClient(in_turn(outcomes, then=lambda body: FINAL))
    _, trace, record = answer(retriever, "s2g_rag", client, QUESTION, **options)
    assert record.error is None, record.error
    return client, trace, record


def forms(client) -> list[str]:
    """The shape that each call asked for; "text" for the reader."""
    return [(b.get("response_format") or {}).get("json_schema", {}).get("name", "text") for b in client.bodies]


def user(client, call: int) -> str:
    return client.bodies[call]["messages"][-1]["content"]


def queries(trace) -> list[str]:
    return [e["query"] for e in events(trace, "retrieve")]


def test_select_judge_search_until_sufficient(retriever):
    gaps = [("Oda Wren", "town", "where Oda Wren lived"), ("", "", "who its mayor is")]
    outcomes = [select(1), judge(False, *gaps), select(2, 1), judge(True), FINAL]
    client, trace, record = run(retriever, outcomes)
    assert forms(client) == ["selection", "judgement", "selection", "judgement", "text"]
    assert client.roles == ["control"] * 4 + ["reader"]
    assert queries(trace) == [QUESTION, f"{QUESTION} Oda Wren town who its mayor is"]
    assert (record.stop_reason, record.loops, record.short) == ("sufficient", 2, "Karla Möhn")
    assert [b["max_tokens"] for b in client.bodies] == [48, 160, 48, 160, 64]
    prompts = prompts_of("s2g_rag")
    assert [b["messages"][0]["content"] for b in client.bodies[:2]] == [
        prompts["select_system"],
        prompts["judge_system"],
    ]
    assert "Missing: all facts" in user(client, 0)
    assert "Missing: Oda Wren town; who its mayor is" in user(client, 2)


def test_reader_and_judge_see_the_selected_sentences_under_their_titles(retriever):
    client, trace, record = run(retriever, [select(2), judge(False, ("x", "y", "")), select(1, 3), judge(True)])
    [first, second] = events(trace, "select")
    assert [len(e["kept"]) for e in (first, second)] == [1, 2] and not first["fallback"]
    blocks: dict[str, list[str]] = {}
    for chunk_id, n in first["kept"] + second["kept"]:
        blocks.setdefault(chunk_id, []).append(_sentences(retriever.text(chunk_id))[n])
    shown = "\n\n".join(f"[{c}] {retriever.title_of(c)}\n{' '.join(s)}" for c, s in blocks.items())
    assert user(client, 3) == prompts_of("s2g_rag")["judge_user"].format(evidence=shown, question=QUESTION)
    assert user(client, 4) == prompts_of("s2g_rag")["reader_user"].format(passages=shown, question=QUESTION)
    assert record.cited == tuple(blocks) and events(trace, "final")[0]["compressed"] is True


def test_selector_sees_the_new_documents_only_numbered_from_one(retriever):
    client, trace, _ = run(retriever, [select(1), judge(False, ("Tavik", "bridges", "")), select(1), judge(True)])
    new = events(trace, "retrieve")[1]["chunk_ids"]
    lines, number = [], 0
    for chunk_id in new:
        lines.append(f"# {retriever.title_of(chunk_id)}")
        for sentence in _sentences(retriever.text(chunk_id)):
            number += 1
            lines.append(f"{number}. {sentence}")
    assert user(client, 2).startswith("\n".join(lines) + "\nQuestion: ")
    assert not set(new) & set(events(trace, "retrieve")[0]["chunk_ids"])


def test_four_turns_and_twelve_documents_at_most(retriever):
    never = [outcome for n in range(9) for outcome in (select(1), judge(False, (f"target {n}", "slot", "")))]
    client, _, record = run(retriever, never)
    assert (record.stop_reason, record.loops, record.retrieval_calls) == ("limit", 4, 4)
    assert forms(client) == ["selection", "judgement"] * 3 + ["selection", "text"]
    assert len(record.retrieved) == 12
    client, _, record = run(retriever, never, max_docs=5)
    assert (record.stop_reason, len(record.retrieved), record.loops) == ("limit", 5, 2)
    assert forms(client)[-2:] == ["selection", "text"]


def test_an_identical_query_stops(retriever):
    gap = ("Oda Wren", "town", "")
    _, trace, record = run(
        retriever, [select(1), judge(False, gap), select(1), judge(False, ("ODA  Wren", "town", ""))]
    )
    assert (record.stop_reason, len(queries(trace)), record.loops) == ("repeat", 2, 2)


@pytest.mark.parametrize("bad", [Say("I think so."), Say(""), Say('{"sufficient": "perhaps", "gap_items": []}')])
def test_an_unreadable_verdict_is_negative_and_asks_with_the_last_sentence(retriever, bad):
    client, trace, record = run(retriever, [select(1), bad, bad, select(1), judge(True)])
    assert forms(client) == ["selection", "judgement", "judgement", "selection", "judgement", "text"]  # one repair
    [[chunk_id, n]] = events(trace, "select")[0]["kept"]
    assert queries(trace)[1] == f"{QUESTION} {_sentences(retriever.text(chunk_id))[n]}"
    assert [e["what"] for e in events(trace, "parse_failed")] == ["judge"]
    assert record.stop_reason == "sufficient" and record.usage["control"].repairs == 1


def test_a_negative_verdict_without_gaps_asks_with_the_last_sentence(retriever):
    _, trace, _ = run(retriever, [select(1, 2), judge(False), select(1), judge(True)])
    chunk_id, n = events(trace, "select")[0]["kept"][-1]
    assert queries(trace)[1] == f"{QUESTION} {_sentences(retriever.text(chunk_id))[n]}"
    assert events(trace, "parse_failed") == []


@pytest.mark.parametrize(
    ("written", "verdict"),
    [(True, True), (False, False), ("true", True), ("False", False), (" YES ", True), ("no", False)],
)
def test_verdicts_are_parsed_strictly(written, verdict):
    assert Judgement.model_validate({"sufficient": written}).sufficient is verdict


@pytest.mark.parametrize("written", [None, 0, 1, "", "1", "maybe", [], "truely"])
def test_what_is_no_verdict_is_refused(written):
    with pytest.raises(ValueError, match="sufficient"):
        Judgement.model_validate({"sufficient": written, "gap_items": []})


def test_the_string_false_goes_on(retriever):
    _, trace, record = run(retriever, [select(1), judge("false", ("a", "b", "")), select(1), judge("yes")])
    assert (record.stop_reason, len(queries(trace))) == ("sufficient", 2)


def test_at_most_three_gaps_make_the_query(retriever):
    gaps = [(f"t{n}", "", "unused") for n in range(5)]
    _, trace, _ = run(retriever, [select(1), judge(False, *gaps), select(1), judge(True)])
    assert queries(trace)[1] == f"{QUESTION} t0 t1 t2"
    assert Gap(description=" the river  there ").query == "the river there"


@pytest.mark.parametrize(
    "reply", [[select()], [select(99, 0, -1)], [Say("none of them")] * 2, [Say('{"sentences": "all"}')] * 2]
)
def test_without_a_usable_selection_every_sentence_stays(retriever, reply):
    _, trace, record = run(retriever, [*reply, judge(True)])
    [selection] = events(trace, "select")
    new = events(trace, "retrieve")[0]["chunk_ids"]
    everything = [[c, n] for c in new for n in range(len(_sentences(retriever.text(c))))]
    assert selection["fallback"] and selection["kept"] == everything
    assert record.cited == tuple(new)
    assert [e["what"] for e in events(trace, "parse_failed")] == (["select"] if len(reply) == 2 else [])


def test_unknown_and_repeated_numbers_are_ignored_and_six_are_kept(retriever):
    _, trace, _ = run(retriever, [select(99, 2, 2, 1), judge(True)])
    assert [n for _, n in events(trace, "select")[0]["kept"]] == [0, 1]
    _, trace, _ = run(retriever, [select(*range(7, 0, -1)), judge(True)], per_search=6)
    [selection] = events(trace, "select")
    assert selection["offered"] > 6 == len(selection["kept"])


def test_a_retriever_that_finds_nothing_leads_straight_to_the_reader(retriever):
    empty = copy.copy(retriever)
    empty.dense = lambda query, k: []
    client, _, record = run(empty, [])
    assert forms(client) == ["text"] and record.stop_reason == "no_documents"
    assert (record.cited, record.short, record.loops) == ((), "Karla Möhn", 1)


def test_the_grammar_bounds_gaps_and_selection(retriever):
    client = FakeClient(in_turn([select(1), judge(True)], then=lambda body: FINAL))
    client.endpoint = client.endpoint.model_copy(update={"kind": "embedded"})
    answer(retriever, "s2g_rag", client, QUESTION)
    selection, judgement = (b["response_format"]["json_schema"]["schema"]["properties"] for b in client.bodies[:2])
    assert selection["sentences"]["maxItems"] == 6 and judgement["gap_items"]["maxItems"] == 3
    assert all("maxLength" in p for p in judgement["gap_items"]["items"]["properties"].values())
    assert list(judgement) == ["sufficient", "gap_items"] and judgement["sufficient"] == {"type": "boolean"}


def test_sentences_leave_the_title_out_and_never_a_document_empty():
    assert _sentences("Oda Wren\nDr. Wren kept bees. She wrote.") == ["Dr. Wren kept bees.", "She wrote."]
    assert _sentences("Only a title\n") == ["Only a title"] and _sentences("…") == ["…"]
