"""Appendix E's rules, the symmetric table, the events, and the abstention phrases."""

import pytest

from multihop.analysis import failures as F
from multihop.analysis.abstention import find_abstention
from multihop.errors import DataError
from multihop.evaluation.support import ChunkMap, Support
from multihop.types import Chunk, Event, Gold, Retrieved, RunRecord, Span

CHUNKS = ChunkMap(Chunk(f"p{i}", "x" * 10, (Span(f"p{i}", 0, 10),)) for i in range(5))
GOLD = {"q": Gold("q", ("Kesta",), ("p0", "p1"), "2hop", 2)}

ABSTENTIONS = [
    "I was unable to find the spouse of the publisher.",
    "The date is not found in the passages.",
    "The birthplace could not be determined from the results.",
    "I couldn't find any passage on the firm.",
    "It cannot be determined which of the two is older.",
    "I can’t answer this with what was retrieved.",
    "No information about the mother of Pim Aldous was found.",
    "There is no evidence available for the second part.",
    "The director is not mentioned in the corpus.",
    "Her school is not explicitly stated in any passage.",
    "The passages do not mention his father.",
    "The text doesn't specify the year.",
    "There is insufficient information to say.",
    "Not enough evidence was retrieved.",
    "No relevant documents turned up.",
    "I don't know.",
    "Unknown.",
    "The founder's name remains   unclear.",
]
ANSWERS = [
    "The Unknown",
    "The answer is The Unknown, a film of 1927.",
    "Kesta",
    "The mayor, whose name was unknown for years, is Edwin Hale.",
    "Harlow Press published it, and no other firm did.",
    "No, the towns lie in different countries.",
    "She found the manuscript in Orlin.",
    "The Lost and Not Foundered",
    "It is able to find its way: the Tarn pigeon.",
    "He provided evidence in the trial; the judge was Ada Hale.",
    "Information Age",
    "The clear remains of the abbey stand in Kesta.",
]


@pytest.mark.parametrize("text", ABSTENTIONS)
def test_abstentions(text):
    assert find_abstention(text) is not None


@pytest.mark.parametrize("text", ANSWERS)
def test_answers_are_no_abstentions(text):
    assert find_abstention(text) is None


def test_thirty_labelled_answers():
    assert len(ABSTENTIONS) + len(ANSWERS) == 30


def test_a_phrase_beside_an_answer_is_flagged_only():
    both = find_abstention("Her birth date was not found, but the answer is Kesta.")
    assert (both.phrase, both.phrase_but_answer) == ("not found", True)
    assert not find_abstention("The spouse was not found.").phrase_but_answer
    assert not find_abstention("Not found, so the answer is unknown.").phrase_but_answer


def record(retrieved=("p0",), *, answer="Orlin", events=(), forced=False, status="ok", qid="q", run="arag"):
    return RunRecord(
        qid=qid,
        dataset="musique",
        setting="s",
        run=run,
        seed=0,
        params_hash="",
        corpus_hash="",
        question="?",
        answer=answer,
        short=None,
        mode="free",
        status=status,
        stop_reason="answered",
        forced=forced,
        retrieved=tuple(Retrieved(c, 1, "semantic_search") for c in retrieved),
        events=tuple(events),
    )


def score(r, *, llm=0.0, rule=0.0, contain=0.0):
    return {
        "qid": r.qid, "seed": r.seed, "answer": r.answer, "contain": contain, "llm_acc": llm, "rule_acc": rule
    }  # fmt: skip


def register(*items, kind="register", step=1):
    rows = [
        {"id": i, "question": "?", "status": s, "note": "", "passages": list(p), "reason": ""}
        for i, s, p in items
    ]
    return Event(step, kind, {"items": rows})


CLOSED = [register(("i1", "resolved", ["p3"]), ("i2", "retired", []), kind="final_register")]
OPEN = [register(("i1", "resolved", ["p0"]), ("i2", "active", []), kind="final_register")]


def one(r, **kw):
    (row,) = [
        f for f in F.classify_cell([r], [score(r, rule=1.0, **kw)], GOLD, CHUNKS) if f["judge"] == "llm"
    ]
    return row


@pytest.mark.parametrize(
    ("r", "kw", "category", "reason", "symmetric"),
    [
        (record(forced=True, answer="not found"), {"contain": 1.0}, "judge_error", "contain", "judge_error"),
        (record(("p0", "p1"), answer="Not found."), {}, "gave_up", "phrase", "gave_up"),
        (record(("p0", "p1"), forced=True), {}, "gave_up", "forced", "gave_up"),
        (record(("p0", "p1")), {}, "reasoning_error", "3a", "reasoning_error"),
        (record(("p0", "p1"), events=CLOSED), {}, "reasoning_error", "3a", "reasoning_error"),
        (record(("p0",), events=CLOSED), {}, "reasoning_error", "3b", "missing_evidence"),
        (record(("p0",), events=OPEN), {}, "missing_evidence", "missing", "missing_evidence"),
        (record(("p0",)), {}, "missing_evidence", "missing", "missing_evidence"),
        (record((), status="error", answer=""), {}, "system_error", "error", "system_error"),
    ],
)
def test_first_match_wins(r, kw, category, reason, symmetric):
    row = one(r, **kw)
    assert (row["category"], row["reason"], row["category_symmetric"]) == (category, reason, symmetric)


def test_the_missing_passage_is_counted_whatever_the_label():
    assert one(record(("p0",), events=CLOSED))["wrong_and_missing"]
    assert one(record(("p0",)), contain=1.0)["wrong_and_missing"]
    assert not one(record(("p0", "p1")))["wrong_and_missing"]
    assert not one(record((), status="error", answer=""))["wrong_and_missing"]


def test_register_closed():
    retired_only = [register(("i1", "retired", []), kind="final_register")]
    later = [CLOSED[0], register(("i1", "pending", []))]
    assert F.register_closed(record(events=CLOSED)) is True
    assert F.register_closed(record(events=OPEN)) is False
    assert F.register_closed(record(events=retired_only)) is False
    assert F.register_closed(record(events=later)) is False
    assert F.register_closed(record()) is None


def test_unmapped_passages_are_left_out_and_never_reasoning():
    lost = Gold("q", ("Kesta",), ("p8", "p9"), "2hop", 2)
    half = Gold("q", ("Kesta",), ("p0", "p9"), "2hop", 2)
    r = record(("p0",), events=CLOSED)
    rows = F.classify_cell([r], [score(r, rule=1.0)], {"q": lost}, CHUNKS)
    assert (rows[0]["category"], rows[0]["gold_mapped"], rows[0]["wrong_and_missing"]) == (
        "unmappable",
        0,
        False,
    )
    rows = F.classify_cell([r], [score(r, rule=1.0)], {"q": half}, CHUNKS)
    assert (rows[0]["reason"], rows[0]["gold_total"], rows[0]["gold_mapped"]) == ("3a", 2, 1)


def test_premature_resolutions_are_read_off_the_snapshots():
    events = [
        register(("i1", "active", []), ("i2", "pending", [])),
        register(("i1", "resolved", ["p3"]), ("i2", "active", [])),  # no gold passage listed: 1
        register(("i1", "resolved", ["p3"]), ("i2", "resolved", ["p4", "p1"])),  # holds gold p1
        register(("i1", "active", ["p3"]), ("i2", "resolved", ["p4", "p1"])),
        register(("i1", "resolved", []), ("i2", "resolved", ["p4", "p1"])),  # resolved again: 2
        register(("i1", "resolved", []), ("i2", "resolved", ["p4", "p1"]), kind="final_register"),
    ]
    assert F.premature_resolutions(record(events=events), GOLD["q"], CHUNKS) == 2
    assert F.premature_resolutions(record(), GOLD["q"], CHUNKS) == 0


def test_categories_add_up_and_tables():
    cells = [
        record(qid=f"q{i}", events=e, forced=f)
        for i, (e, f) in enumerate([(CLOSED, False), ((), True), ((), False)])
    ]
    gold = {r.qid: Gold(r.qid, ("Kesta",), ("p0", "p1"), "2hop", 2 + i) for i, r in enumerate(cells)}
    scores = [score(cells[0]), score(cells[1], rule=1.0), score(cells[2], llm=1.0)]
    rows = F.classify_cell(reversed(cells), scores, gold, CHUNKS)
    assert [(r["qid"], r["judge"]) for r in rows] == [
        ("q0", "llm"),
        ("q0", "rule"),
        ("q1", "llm"),
        ("q2", "rule"),
    ]
    t = F.table(rows, "llm")
    assert t["failures"] == sum(t["counts"].values()) == 2
    assert (t["counts"]["reasoning_error"], t["reasoning_3b"], t["counts"]["gave_up"]) == (1, 1, 1)
    assert (t["shares"]["gave_up"], t["forced_share"], t["wrong_and_missing"]) == (0.5, 0.5, 2)
    symmetric = F.table(rows, "llm", symmetric=True)
    assert (symmetric["counts"]["missing_evidence"], symmetric["reasoning_3b"]) == (1, 0)
    free = F.both_forced(rows, "llm")["without_forced"]
    assert (free["failures"], free["forced"], free["forced_share"]) == (1, 1, 0.5)
    assert list(F.by_hops(rows, "rule")) == [2, 4]
    assert F.by_setting({"b": rows, "a": []}, "llm")["a"]["shares"]["gave_up"] is None
    with pytest.raises(DataError, match="categorised"):
        F.check_totals(rows[1:], scores)


def test_scores_of_other_predictions_are_refused():
    r = record()
    with pytest.raises(DataError, match="another answer"):
        F.classify_cell([r], [score(r) | {"answer": "else"}], GOLD, CHUNKS)
    with pytest.raises(DataError, match="different questions"):
        F.classify_cell([r], [], GOLD, CHUNKS)


def test_chunk_windows_any_major_piece_counts_a_sliver_does_not():
    chunks = ChunkMap([
        Chunk("c0", "", (Span("a", 0, 80), Span("b", 80, 100))),  # 20 characters of b: a sliver
        Chunk("c1", "", (Span("a", 0, 50), Span("b", 50, 150))),
    ])  # fmt: skip
    assert chunks.chunks_of("a") == {"c0", "c1"}
    assert chunks.chunks_of("b") == {"c1"}
    assert chunks.passages_of("c0") == {"a"}
    support = chunks.support(record(("c0",)), Gold("q", ("x",), ("b", "a", "z"), "2hop", 2))
    assert support == Support(("b", "a", "z"), (False, True, None), (False, False, None))
    assert (support.mapped, support.missing, support.recall) == (2, 1, 0.5)
