"""Queries that look for a gold passage, in tiers of how much one must know to ask them; and what runs really asked.

T0      the question itself
issued  a query that some run asked for this question
T1      the passage's gold sub-question with its true intermediate answers filled in
T2      the passage's title
T3      the passage's own first sentence

T1 is MuSiQue's step; in 2WikiMultiHopQA "subject relation" of an evidence triple; in HotpotQA, which has neither, the
passage's title and the question's content words. A probe that a search answers with the passage is a witness: the
passage can be reached by that tool. Probes that all fail prove nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from multihop.controller.text import content_words, spans
from multihop.evaluation.answers import contain_word, normalise
from multihop.types import Gold, Passage, RunRecord

TIERS = ("T0", "issued", "T1", "T2", "T3")
"""In ascending order of what one must know."""
ASKABLE = ("T0", "issued", "T1")
"""Those that a method could ask before it has found the passage; T2 and T3 rather show that the index holds it."""
SEARCHES = {
    "retrieve": "dense",
    "retrieve_more": "dense",
    "gap_query": "dense",
    "rewrite_query": "dense",
    "bridge_entity_expand": "dense",
    "semantic_search": "semantic_search",
    "keyword_search": "keyword_search",
    "seed": "semantic_search",
    "lag": "dense",
}
"""Tool of a ``retrieve`` event -> the tool that a certificate is for; any other one searches an index of its own."""
AGENT = ("semantic_search", "keyword_search")
"""What every agent can call, called or not."""
_BRACKETS = re.compile(r"\s*\([^()]*\)\s*$")
_FULL_STOP = re.compile(r"[.!?][\"'”’)\]]*\s+(?=[^\sa-z])")
_SHORTEST_KEYWORD = 3
_SHORTEST = 25
"""A first sentence has at least so many characters, so that it does not end at an initial."""


@dataclass(frozen=True, slots=True)
class Query:
    """One search, as it goes to both kinds of tools."""

    text: str
    keywords: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Probe:
    tier: str
    query: Query
    runs: tuple[str, ...] = ()
    """``issued``: the runs that asked it for this question, sorted."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What one run's searches are, over all questions of a cell."""

    tools: tuple[str, ...] = ()
    """The tools that it has, as certificates name them; empty for a run without searches."""
    depth: int | None = 0
    """Hits of its longest list; None for an agent, which may ask for any number."""
    own_index: bool = False
    """It (also) searches an index of its own, of which no certificate speaks."""
    queries: Mapping[str, tuple[Query, ...]] = field(default_factory=dict)
    """Question id -> its queries in the order asked, without repetition."""


def keywords_of(text: str, most: int) -> tuple[str, ...]:
    """At most ``most`` keywords of a text: its capitalised spans, then content words outside of them, in order.

    A word of one or two letters is none: keyword search looks for substrings, and would find it everywhere.
    """
    capitals = [re.sub(r"['’]s$", "", s) for s in spans(text)]
    inside = {w for span in capitals for w in content_words(span)}
    words = [w for w in content_words(text) if len(w) >= _SHORTEST_KEYWORD]
    rest = [w for w in words if w not in inside and re.sub(r"['’]s$", "", w) not in inside]
    return tuple(dict.fromkeys([*capitals, *rest]))[:most]


def query_of(text: str, most: int) -> Query:
    return Query(text, keywords_of(text, most))


def bare_title(title: str) -> str:
    """Without a bracket at its end that only tells namesakes apart."""
    return _BRACKETS.sub("", title).strip() or title.strip()


def first_sentence(text: str) -> str:
    """Up to the first full stop before a space that is not followed by a lower-case letter; line breaks end it, too."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    for stop in _FULL_STOP.finditer(line):
        if stop.end() >= _SHORTEST:
            return line[: stop.end()].strip()
    return line


def steps_of(gold: Gold, passage: Passage) -> list[str]:
    """The benchmark's sub-questions that a gold passage answers, in order, intermediate answers filled in: MuSiQue's
    steps, 2Wiki's "subject relation". Empty where it has none (HotpotQA)."""
    if gold.decomposition:
        steps = [hop.question for hop in gold.decomposition if hop.passage_id == passage.id]
        return list(dict.fromkeys(" ".join(step.replace(">>", " ").split()) for step in steps))
    return list(dict.fromkeys(f"{subject} {relation}" for subject, relation, _ in _triples_of(gold, passage)))


def sub_questions(question: str, gold: Gold, passage: Passage) -> list[str]:
    """The T1 probes of a gold passage; without any steps (HotpotQA) its title and the question's content words."""
    if gold.decomposition or gold.evidences:
        return steps_of(gold, passage)
    return [" ".join([passage.title, *content_words(question)])]


def _triples_of(gold: Gold, passage: Passage) -> list[tuple[str, str, str]]:
    """Triples about the passage's title; where none is, those whose two ends both stand in the passage."""
    title = normalise(bare_title(passage.title))
    about = [t for t in gold.evidences if normalise(bare_title(t[0])) == title]
    return about or [t for t in gold.evidences if all(contain_word(passage.full, end) for end in (t[0], t[2]))]


def hop_of(gold: Gold, passage: Passage) -> int | None:
    """The passage's place among the steps, from 1: MuSiQue's step, 2Wiki's depth in the chain of evidence triples.

    None where the benchmark gives no order (HotpotQA), or none for this passage.
    """
    if gold.decomposition:
        return next((i for i, hop in enumerate(gold.decomposition, 1) if hop.passage_id == passage.id), None)
    triples = _triples_of(gold, passage)
    return min((_depth(gold.evidences.index(t), gold.evidences) for t in triples), default=None)


def _depth(which: int, triples: Sequence[tuple[str, str, str]], seen: tuple[int, ...] = ()) -> int:
    """1 for a triple whose subject no other triple arrives at, else 1 more than that triple's; a circle ends."""
    seen = (*seen, which)
    subject = normalise(triples[which][0])
    before = [_depth(i, triples, seen) for i, t in enumerate(triples) if i not in seen and normalise(t[2]) == subject]
    return 1 + min(before, default=0)


def probes(question: str, gold: Gold, passage: Passage, most: int) -> list[Probe]:
    """T0 to T3 of one gold passage; a blank text is no probe."""
    texts = [("T0", question)]
    texts += [("T1", text) for text in sub_questions(question, gold, passage)]
    texts += [("T2", passage.title), ("T3", first_sentence(passage.text))]
    return [Probe(tier, query_of(text, most)) for tier, text in texts if text.strip()]


# -- what runs asked


def asked(records: Iterable[RunRecord], most: int, lexical: bool = False) -> Asked:
    """The searches of one cell's records (all seeds together). An error record's count: they were asked.

    ``lexical``: the run's params say that what its records call ``retrieve`` is BM25 (vanilla RAG's option).
    """
    searches = SEARCHES | {"retrieve": "bm25"} if lexical else SEARCHES
    tools: set[str] = set()
    depth, own, agent = 0, False, False
    queries: dict[str, dict[Query, None]] = {}
    for record in records:
        mine = queries.setdefault(record.qid, {})
        for event in record.events:
            agent |= event.kind == "turn"
            if event.kind != "retrieve":
                continue
            tool = searches.get(event.data["tool"])
            own |= tool is None
            tools.update([tool] if tool else [])
            depth = max(depth, len(event.data["chunk_ids"]))
            mine.setdefault(_issued(event.data["query"], most))
    tools.update(AGENT if agent else ())
    by_question = {qid: tuple(found) for qid, found in sorted(queries.items())}
    return Asked(tuple(sorted(tools)), None if agent else depth, own, by_question)


def _issued(query: str | Sequence[str], most: int) -> Query:
    if isinstance(query, str):
        return query_of(query, most)
    return Query(" ".join(query), tuple(query))


def issued(runs: Mapping[str, Asked], qid: str) -> list[Probe]:
    """Every query that a run of ``runs`` (by name) asked for a question, once each, with all runs that asked it."""
    by: dict[Query, list[str]] = {}
    for run in sorted(runs):
        for query in runs[run].queries.get(qid, ()):
            by.setdefault(query, []).append(run)
    return [Probe("issued", query, tuple(names)) for query, names in by.items() if query.text.strip()]


def own_words(record: RunRecord) -> list[str]:
    """What a record's own queries say beyond its question, in the order asked; blank ones are left out.

    The register appends the question to each query that it proposes, and its seed retrieval is the question: what only
    the question names was not set out for. So the question's text is cut out of a query, in either case, however its
    words are spaced, with or without the mark at its end.
    """
    question = r"\s+".join(map(re.escape, record.question.rstrip(" ?!.").split()))
    cut = re.compile(rf"(?<!\w){question}(?!\w)[?!.]*", re.IGNORECASE) if question else None
    texts = []
    for event in record.events:
        if event.kind == "retrieve":
            query = event.data["query"]
            text = query if isinstance(query, str) else " ".join(query)
            texts.append(cut.sub(" ", text) if cut else text)
    return [text for text in texts if text.strip()]


def was_asked(queries: Iterable[str], title: str, steps: Sequence[str], share: float) -> bool:
    """Whether one of a record's queries (``own_words``) asked for a passage: it holds the passage's title (as words,
    without a bracket at the end), or at least ``share`` of the content words of one of its ``steps_of``."""
    wanted = [set(words) for step in steps if (words := content_words(step))]
    for query in queries:
        if contain_word(query, bare_title(title)):
            return True
        words = set(content_words(query))
        if any(len(step & words) >= share * len(step) for step in wanted):
            return True
    return False
