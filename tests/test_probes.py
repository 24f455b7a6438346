"""Probe queries by tier and benchmark, keywords of a probe, what runs asked, and whether a query asks for a passage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from multihop.analysis import probes
from multihop.analysis.probes import Asked, Query
from multihop.types import Event, Gold, Hop, Passage, RunRecord

ROAD = Passage("p0", "The Salt Road (novel)", "The Salt Road is a novel by Ines Havel. It was printed in Dorvik.")
HAVEL = Passage("p1", "Ines Havel", "Ines Havel was a novelist from Dorvik. She kept bees.")
DORVIK = Passage("p2", "Dorvik", "Dorvik lies on the river Arle.")
QUESTION = "On which river lies the town where the author of The Salt Road was born?"
STEPS = (
    Hop("The Salt Road >> author", "Ines Havel", "p0"),
    Hop("Where was Ines Havel born?", "Dorvik", "p1"),
    Hop("On which river is Dorvik?", "Arle", "p2"),
    Hop("Dorvik >> river", "Arle", "p2"),
)
MUSIQUE = Gold("q", ("Arle",), ("p0", "p1", "p2"), "3hop1", 3, decomposition=STEPS)
CHAIN = (("The Salt Road", "author", "Ines Havel"), ("Ines Havel", "place of birth", "Dorvik"))
WIKI2 = Gold("q", ("Dorvik",), ("p0", "p1"), "compositional", 2, evidences=CHAIN)
HOTPOT = Gold("q", ("Arle",), ("p0", "p2"), "bridge", 2, supporting_sentences=(("p2", "Dorvik lies on the Arle."),))


def texts(gold: Gold, passage: Passage, tier: str) -> list[str]:
    return [p.query.text for p in probes.probes(QUESTION, gold, passage, 6) if p.tier == tier]


def record(qid: str = "q", run: str = "arag", seed: int = 0, **changes: Any) -> RunRecord:
    whole = RunRecord(
        qid, "musique", "small", run, seed, "h", "c", QUESTION, "Arle", None, "free", "ok", "answered", **changes
    )  # fmt: skip
    return whole


def searched(tool: str, query: Any, hits: int = 3) -> Event:
    data = {"tool": tool, "query": query, "chunk_ids": [f"p{i}" for i in range(hits)], "scores": [], "repeat": False}
    return Event(1, "retrieve", data)


# -- tiers


@pytest.mark.parametrize("gold", [MUSIQUE, WIKI2, HOTPOT])
def test_question_title_and_first_sentence_are_the_same_everywhere(gold):
    assert texts(gold, ROAD, "T0") == [QUESTION]
    assert texts(gold, ROAD, "T2") == ["The Salt Road (novel)"]
    assert texts(gold, ROAD, "T3") == ["The Salt Road is a novel by Ines Havel."]


def test_musique_gives_every_step_of_a_passage_and_its_number():
    assert texts(MUSIQUE, ROAD, "T1") == ["The Salt Road author"]
    assert texts(MUSIQUE, DORVIK, "T1") == ["On which river is Dorvik?", "Dorvik river"]
    assert [probes.hop_of(MUSIQUE, p) for p in (ROAD, HAVEL, DORVIK)] == [1, 2, 3]
    stray = Passage("p9", "Elsewhere", "Nothing is here.")
    assert texts(MUSIQUE, stray, "T1") == [] and probes.hop_of(MUSIQUE, stray) is None


def test_2wiki_gives_subject_and_relation_and_the_depth_in_the_chain():
    assert texts(WIKI2, ROAD, "T1") == ["The Salt Road author"], "the title's bracket is no hindrance"
    assert texts(WIKI2, HAVEL, "T1") == ["Ines Havel place of birth"]
    assert [probes.hop_of(WIKI2, p) for p in (ROAD, HAVEL)] == [1, 2]
    both = replace(WIKI2, evidences=(("The Salt Road", "author", "Ines Havel"), ("The Lamp", "author", "Jon Ek")))
    assert probes.hop_of(both, ROAD) == probes.hop_of(both, Passage("p5", "The Lamp", "A book.")) == 1


def test_2wiki_without_a_title_match_takes_the_triples_whose_two_ends_stand_in_the_passage():
    renamed = replace(HAVEL, title="Havel, Ines Maria")
    assert texts(WIKI2, renamed, "T1") == ["Ines Havel place of birth"]
    assert texts(WIKI2, Passage("p7", "Other", "Ines Havel kept bees."), "T1") == []


def test_a_circle_of_triples_ends():
    circle = replace(WIKI2, evidences=(("Ines Havel", "child", "Dorvik"), ("Dorvik", "father", "Ines Havel")))
    assert probes.hop_of(circle, HAVEL) == 2


def test_hotpotqa_gives_title_and_content_words_and_no_position():
    assert texts(HOTPOT, DORVIK, "T1") == ["Dorvik river lies town author salt road born"]
    assert probes.hop_of(HOTPOT, DORVIK) is None
    assert probes.steps_of(HOTPOT, DORVIK) == [], "the question's own words must not count as asking for the passage"


def test_blank_texts_are_no_probes():
    assert [p.tier for p in probes.probes(QUESTION, MUSIQUE, Passage("p8", " ", " \n "), 6)] == ["T0"]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("Dr. Ek taught in Norr. He wrote.", "Dr. Ek taught in Norr. He wrote."),
        ("Jon R. Ek was a composer born in Norr! He wrote.", "Jon R. Ek was a composer born in Norr!"),
        ("The river rose by 3.5 metres in spring. It fell.", "The river rose by 3.5 metres in spring."),
        ("A line without a stop\nand another", "A line without a stop"),
        ("", ""),
    ],
)
def test_first_sentences(text, first):
    assert probes.first_sentence(text) == first


def test_keywords_are_spans_then_content_words_at_most_so_many():
    found = probes.keywords_of("Where was Ines Havel's novel The Salt Road printed, and by which small press?", 6)
    assert found == ("Ines Havel", "Salt Road", "novel", "printed", "small", "press")
    assert probes.keywords_of("Where was Ines Havel's novel The Salt Road printed?", 1) == ("Ines Havel",)
    assert probes.keywords_of("of the", 6) == ()
    assert probes.keywords_of("is it no 7 or x in all bells", 6) == ("bells",), "one or two letters stand everywhere"


# -- what runs asked


def test_a_run_has_the_tools_and_the_depth_of_its_searches():
    dense = probes.asked([record(events=(searched("retrieve", "a b", 5), searched("gap_query", "c", 3)))], 6)
    assert (dense.tools, dense.depth, dense.own_index) == (("dense",), 5, False)
    agent = probes.asked([record(events=(Event(1, "turn", {}), searched("keyword_search", ["Arle"], 0)))], 6)
    assert (agent.tools, agent.depth) == (("keyword_search", "semantic_search"), None)
    assert agent.queries["q"] == (Query("Arle", ("Arle",)),)
    assert probes.asked([record(events=(searched("raptor", "x"),))], 6).own_index
    assert probes.asked([record()], 6) == Asked(queries={"q": ()}), "a method without events"
    assert probes.asked([], 6) == Asked()


def test_queries_are_kept_once_over_seeds_and_name_every_run_that_asked_them():
    both = [record(seed=s, events=(searched("retrieve", "Ines Havel born"),)) for s in (0, 1)]
    other = [record(run="b", events=(searched("retrieve", "Ines Havel born"), searched("retrieve", " ")))]
    runs = {"b": probes.asked(other, 6), "a": probes.asked(both, 6)}
    found = probes.issued(runs, "q")
    assert [(p.tier, p.query.text, p.runs) for p in found] == [("issued", "Ines Havel born", ("a", "b"))]
    assert probes.issued(runs, "another question") == []


def test_a_record_s_own_words_are_its_queries_without_the_question():
    sent = (QUESTION, f"Where was she born? For: {QUESTION}", ["Arle", "Dorvik"], " ", f"x{QUESTION}", QUESTION.upper())
    made = record(events=tuple(searched("seed", q) for q in sent))
    assert [t.split() for t in probes.own_words(made)] == [
        ["Where", "was", "she", "born?", "For:"], ["Arle", "Dorvik"], f"x{QUESTION}".split(),
    ]  # fmt: skip
    assert probes.own_words(replace(made, question=" ?", events=made.events[2:3])) == ["Arle Dorvik"], "no question"
    assert probes.own_words(record()) == []


@pytest.mark.parametrize(
    ("query", "asks"),
    [
        ("who wrote the salt road", True),  # the title, without its bracket
        ("the basalt roads", False),  # not as words
        ("author of the novel Salt", True),  # two of the three words salt, road, author
        ("author", False),
        ("", False),
    ],
)
def test_a_query_asks_for_a_passage_by_title_or_by_words_of_its_step(query, asks):
    assert probes.was_asked([query], ROAD.title, ["The Salt Road author"], 0.6) is asks


def test_without_steps_only_the_title_counts_and_without_queries_nothing_was_asked():
    assert not probes.was_asked(["author"], ROAD.title, [], 0.6)
    assert not probes.was_asked(["anything"], ROAD.title, ["of the"], 0.6), "a step without content"
    assert not probes.was_asked([], ROAD.title, ["The Salt Road author"], 0.6)
