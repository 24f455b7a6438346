"""The register's rules: what no model can break (paper 1, eq. 1-8; open points: docs/deviations.md)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multihop.methods.register import (
    MAX_INITIAL,
    MAX_ITEMS,
    Initialisation,
    Item,
    Register,
    Update,
    brief,
    material,
)

QUESTION = "Who is the mayor of the town where the author of The Lantern Ferry lived?"


def initial(*items: dict, active: str = "R1") -> Register:
    return Register.build(Initialisation(requirements=list(items), active_id=active), QUESTION)


def need(item_id: str, question: str, *depends_on: str) -> dict:
    return {"id": item_id, "question": question, "depends_on": list(depends_on)}


@pytest.fixture
def register() -> Register:
    """R1 active; R2 needs R1; R3 needs R2."""
    return initial(
        need("R1", "Who wrote The Lantern Ferry?"),
        need("R2", "Where did R1 live?", "R1"),
        need("R3", "Who is the mayor of R2?", "R2"),
    )


def change(item_id: str, status: str, note: str = "", chunks: tuple[str, ...] = (), reason: str = "") -> dict:
    return {"id": item_id, "status": status, "note": note, "supporting_chunk_ids": list(chunks), "reason": reason}


def apply(register: Register, *changes: dict, new: tuple[dict, ...] = (), seen: tuple[str, ...] = ("p1", "p2", "p3")):
    update = Update.model_validate({"updates": list(changes), "new_requirements": list(new)})
    return register.apply(update, set(seen))


def statuses(register: Register) -> dict[str, str]:
    return {i.id: i.status for i in register.items.values()}


# -- building (eq. 4)


def test_one_item_is_active_the_rest_pending_and_all_are_empty(register):
    assert statuses(register) == {"R1": "active", "R2": "pending", "R3": "pending"}
    assert all(not i.note and not i.passages for i in register.items.values())
    assert register.active.id == "R1" and not register.ready() and not register.void()


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (None, {"R1": (QUESTION, "active")}),
        ({"requirements": []}, {"R1": (QUESTION, "active")}),
        ({"requirements": [need("R1", "  ")]}, {"R1": (QUESTION, "active")}),
        ({"requirements": [need("", "a?"), need("", "b?")]}, {"R1": ("a?", "active"), "R2": ("b?", "pending")}),
        ({"requirements": [need("R1", "a?"), need("R1", "b?")]}, {"R1": ("a?", "active"), "R2": ("b?", "pending")}),
        (
            {"requirements": [need("R1", "a?"), need("R2", "b?")], "active_id": "R2"},
            {"R1": ("a?", "pending"), "R2": ("b?", "active")},
        ),
    ],
)
def test_odd_initial_replies(reply, expected):
    register = Register.build(Initialisation.model_validate(reply) if reply else None, QUESTION)
    assert {i.id: (i.question, i.status) for i in register.items.values()} == expected


def test_an_invalid_active_id_means_the_first_item_that_depends_on_nothing():
    register = initial(need("R1", "a?", "R2"), need("R2", "b?"), active="R9")
    assert register.active.id == "R2"


def test_at_most_six_items_start():
    assert len(initial(*(need(f"R{n}", f"q{n}?") for n in range(1, 12))).items) == MAX_INITIAL


def test_dependencies_on_nothing_and_on_oneself_are_dropped():
    register = initial(need("R1", "a?", "R1", "R7"), need("R2", "b?", "R1", "R3"), need("R3", "c?"))
    assert [i.depends_on for i in register.items.values()] == [(), ("R1", "R3"), ()]


def test_what_a_model_fills_in_too_early_is_ignored():
    reply = {"requirements": [need("R1", "a?") | {"status": "resolved", "note": "x", "passages": ["p1"]}], "hint": 3}
    item = Register.build(Initialisation.model_validate(reply), QUESTION).items["R1"]
    assert item == Item("R1", "a?", status="active")


# -- updates (eq. 6) under the guards


def test_an_item_is_resolved_with_its_passage(register):
    transitions, notes = apply(register, change("R1", "resolved", "Oda Wren", ("p1",)))
    assert register.items["R1"] == Item("R1", "Who wrote The Lantern Ferry?", (), "resolved", "Oda Wren", ("p1",))
    assert transitions == [{"id": "R1", "from": "active", "to": "resolved", "reason": ""}] and notes == []


def test_resolved_without_a_passage_stays_active(register):
    _, notes = apply(register, change("R1", "resolved", "Oda Wren"))
    assert register.items["R1"].status == "active" and register.items["R1"].note == "Oda Wren"
    assert "without a supporting passage" in notes[0]


def test_an_earlier_passage_is_support_enough(register):
    apply(register, change("R1", "active", "perhaps Oda", ("p1",)))
    apply(register, change("R1", "resolved", "Oda Wren"))
    assert (register.items["R1"].status, register.items["R1"].passages) == ("resolved", ("p1",))


def test_passages_only_grow_and_only_by_what_was_surfaced(register):
    apply(register, change("R1", "active", "", ("p2", "p2", "p1")))
    _, notes = apply(register, change("R1", "active", "", ("p3", "p99", "p1")))
    assert register.items["R1"].passages == ("p2", "p1", "p3")
    assert "did not surface" in notes[0]


def test_retiring_needs_a_reason(register):
    _, notes = apply(register, change("R1", "retired", reason="  "))
    assert register.items["R1"].status == "active" and "without a reason" in notes[0]
    transitions, _ = apply(register, change("R1", "retired", reason="it is a film, not a novel"))
    assert transitions == [{"id": "R1", "from": "active", "to": "retired", "reason": "it is a film, not a novel"}]


def test_retired_is_final(register):
    apply(register, change("R1", "retired", reason="wrong"))
    before = dict(register.items)
    _, notes = apply(register, change("R1", "active", "new note", ("p1",), "changed my mind"))
    assert register.items == before and "stays so" in notes[0]


def test_reopening_needs_a_reason_and_keeps_it(register):
    apply(register, change("R1", "resolved", "Oda Wren", ("p1",)))
    _, notes = apply(register, change("R1", "pending"))
    assert register.items["R1"].status == "resolved" and "reopened without a reason" in notes[0]
    transitions, _ = apply(register, change("R1", "pending", reason="another novel of that name"))
    assert register.items["R1"].passages == ("p1",)
    assert transitions == [{"id": "R1", "from": "resolved", "to": "pending", "reason": "another novel of that name"}]


def test_unknown_items_are_ignored_and_missing_ones_kept(register):
    before = dict(register.items)
    transitions, notes = apply(register, change("R9", "resolved", "x", ("p1",)))
    assert register.items == before and transitions == [] and "R9" in notes[0]


def test_at_most_one_item_is_active_the_first(register):
    apply(register, change("R3", "active"), change("R2", "active"))
    assert statuses(register) == {"R1": "active", "R2": "pending", "R3": "pending"}


def test_an_empty_note_keeps_the_old_one_and_a_long_one_is_cut(register):
    apply(register, change("R1", "active", "a note"))
    apply(register, change("R1", "active", "  "))
    assert register.items["R1"].note == "a note"
    apply(register, change("R1", "active", "word " * 100))
    assert len(register.items["R1"].note) <= 300


def test_new_requirements_are_added_up_to_a_bound(register):
    new = ({"question": "Who printed it?", "depends_on": ["R1", "R9"]}, {"question": "who wrote the lantern ferry?"})
    transitions, _ = apply(register, new=new)
    assert register.items["R4"] == Item("R4", "Who printed it?", ("R1",))
    assert transitions == [{"id": "R4", "from": None, "to": "pending", "reason": ""}] and len(register.items) == 4
    for n in range(6):
        apply(register, new=({"question": f"extra {n} a?"}, {"question": f"extra {n} b?"}, {"question": "third?"}))
    assert len(register.items) == MAX_ITEMS and "third?" not in {i.question for i in register.items.values()}


def test_a_replacement_takes_over_the_dependents_of_what_it_replaces(register):
    apply(
        register,
        change("R1", "retired", reason="a film"),
        new=({"question": "Who wrote the novel The Lantern Ferry?", "replaces": "R1"},),
    )
    assert register.items["R2"].depends_on == ("R4",)
    apply(register, change("R4", "resolved", "Oda Wren", ("p1",)))
    register.select(True)
    assert register.active.id == "R2"
    assert register.compose(QUESTION, with_question=False) == "Where did Oda Wren live?"


def test_an_item_that_is_not_retired_is_not_replaced(register):
    apply(register, new=({"question": "Something else?", "replaces": "R1"},))
    assert register.items["R2"].depends_on == ("R1",)


# -- reading


def test_ready_and_void():
    def of(*states: str) -> Register:
        return Register({f"R{n}": Item(f"R{n}", "q", status=s) for n, s in enumerate(states)})

    assert of("resolved", "retired").ready() and of("resolved").ready()
    assert not of("retired", "retired").ready() and of("retired", "retired").void()
    assert not of("resolved", "pending").ready() and not of("resolved", "active").ready()
    assert not of("resolved", "retired").void() and not of("retired", "active").void()


def test_snapshot_shows_every_item_as_json(register):
    apply(register, change("R1", "resolved", "Oda Wren", ("p1",)))
    assert register.snapshot()[0] == {
        "id": "R1",
        "question": "Who wrote The Lantern Ferry?",
        "status": "resolved",
        "note": "Oda Wren",
        "passages": ["p1"],
        "reason": "",
    }


# -- composing the query (eq. 5)


def test_compose_with_and_without_the_question(register):
    assert register.compose(QUESTION) == f"Who wrote The Lantern Ferry? For: {QUESTION}"
    assert register.compose(QUESTION, with_question=False) == "Who wrote The Lantern Ferry?"


def test_compose_holds_the_active_items_note(register):
    apply(register, change("R1", "active", "a novelist from Skarholm"))
    query = register.compose(QUESTION, with_question=False)
    assert query == "Who wrote The Lantern Ferry? Known: a novelist from Skarholm"


def test_compose_fills_in_what_is_resolved(register):
    apply(register, change("R1", "resolved", "Oda Wren", ("p1",)))
    register.select(True)
    assert register.compose(QUESTION, False) == "Where did Oda Wren live?"


@pytest.mark.parametrize("note", [r"C:\new \1 \g<0> \d", "a (b) [c] $d^", "R1 and #R1"])
def test_a_note_is_filled_in_as_it_is(register, note):
    apply(register, change("R1", "resolved", note, ("p1",)))
    register.select(True)
    assert register.compose(QUESTION, False) == f"Where did {note} live?"


def test_compose_leaves_an_unresolved_dependency_and_other_ids_alone():
    register = initial(need("R1", "Who is it?"), need("R2", "Is R1 older than #R1, R10 or R1?", "R1"), active="R2")
    assert register.compose("q", False) == "Is R1 older than #R1, R10 or R1?"
    apply(register, change("R1", "resolved", "Emil", ("p1",)))
    assert register.compose("q", False) == "Is Emil older than Emil, R10 or Emil?"


def test_compose_of_a_register_that_is_the_question_says_it_once():
    register = Register.build(None, QUESTION)
    assert register.compose(QUESTION) == QUESTION
    apply(register, change("R1", "resolved", "x", ("p1",)))
    assert register.compose(QUESTION) == QUESTION  # nothing is active


# -- selecting the active item


def test_an_open_active_item_is_kept(register):
    register.select(progressed=True)
    assert register.active.id == "R1"


def test_after_it_the_first_whose_dependencies_are_settled():
    register = initial(need("R1", "a?"), need("R2", "b?", "R3"), need("R3", "c?"), need("R4", "d?", "R1"))
    apply(register, change("R1", "resolved", "x", ("p1",)))
    register.select(True)
    assert register.active.id == "R3"
    apply(register, change("R3", "retired", reason="not needed"))
    register.select(True)
    assert register.active.id == "R2"


def test_where_none_is_settled_the_first_pending_one():
    register = initial(need("R1", "a?", "R2"), need("R2", "b?", "R1"))
    assert register.active.id == "R1"


def test_after_three_still_loops_the_next_item_gets_its_turn():
    register = initial(need("R1", "a?"), need("R2", "b?"), need("R3", "c?"))
    seen = []
    for _ in range(9):
        register.select(progressed=False)
        seen.append(register.active.id)
    assert seen == ["R1", "R1", "R2", "R2", "R2", "R3", "R3", "R3", "R1"]
    assert sum(i.status == "active" for i in register.items.values()) == 1


def test_progress_starts_the_count_again():
    register = initial(need("R1", "a?"), need("R2", "b?"))
    for progressed in (False, False, True, False, False):
        register.select(progressed)
        assert register.active.id == "R1"
    register.select(False)
    assert register.active.id == "R2"


def test_a_single_open_item_keeps_its_turn():
    register = initial(need("R1", "a?"))
    for _ in range(7):
        register.select(False)
    assert register.active.id == "R1"


# -- material changes


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (None, Item("R1", "q"), True),
        (Item("R1", "q"), Item("R1", "q"), False),
        (Item("R1", "q", status="active"), Item("R1", "q", status="resolved"), True),
        (Item("R1", "q", passages=("p1",)), Item("R1", "q", passages=("p1", "p2")), True),
        (Item("R1", "q", note="a b c d e f g"), Item("R1", "q", note="A, b c d e f g!"), False),
        (Item("R1", "q", note="a b c d e f g"), Item("R1", "q", note="a b c d e f x"), False),  # 6 of 8: 0.25
        (Item("R1", "q", note="a b c d e"), Item("R1", "q", note="a b c d x"), True),  # 4 of 6: 0.33
        (Item("R1", "q"), Item("R1", "q", note="a"), True),
        (Item("R1", "q", status="pending", reason="x"), Item("R1", "q", reason="y"), False),
    ],
)
def test_material(old, new, expected):
    assert material(old, new) is expected


def test_brief_cuts_at_a_word():
    assert brief("  two   words ") == "two words"
    assert brief("alpha beta gamma", 12) == "alpha beta"
    assert brief("x" * 20, 8) == "x" * 8


# -- whatever a model writes (eq. 7, 8)

IDS = st.sampled_from(["R1", "R2", "R3", "R4", "R9", "", "r1", "who"])
TEXTS = st.sampled_from(["", " ", "Oda Wren", r"\1 \d", "R1 R2", "ø" * 400, "who"]) | st.text(max_size=8)
CHANGES = st.fixed_dictionaries(
    {
        "id": IDS,
        "status": st.sampled_from(["pending", "active", "resolved", "retired"]),
        "note": TEXTS,
        "reason": TEXTS,
        "supporting_chunk_ids": st.lists(st.sampled_from(["p1", "p2", "p3", "p99", ""]), max_size=4),
    }
)
NEW = st.fixed_dictionaries({"question": TEXTS, "depends_on": st.lists(IDS, max_size=3), "replaces": IDS})
UPDATES = st.fixed_dictionaries(
    {"updates": st.lists(CHANGES, max_size=4), "new_requirements": st.lists(NEW, max_size=3)}
)
REQUIREMENTS = st.lists(
    st.fixed_dictionaries({"id": IDS, "question": TEXTS, "depends_on": st.lists(IDS, max_size=3)}), max_size=8
)


@given(REQUIREMENTS, IDS, st.lists(st.tuples(UPDATES, st.booleans()), max_size=6))
@settings(max_examples=150, deadline=None)
def test_no_update_breaks_the_invariants(requirements, active, loops):
    reply = Initialisation.model_validate({"requirements": requirements, "active_id": active})
    register = Register.build(reply, QUESTION)
    assert 1 <= len(register.items) <= MAX_INITIAL and register.active is not None
    seen = {"p1", "p2", "p3"}
    for update, progressed in loops:
        before = dict(register.items)
        register.apply(Update.model_validate(update), seen)
        register.select(progressed)
        items = register.items
        assert list(items)[: len(before)] == list(before) and len(items) <= max(MAX_ITEMS, len(before))
        assert sum(i.status == "active" for i in items.values()) <= 1
        assert (register.active is None) == (not register.open_items())
        for item_id, old in before.items():
            new = items[item_id]
            assert new.passages[: len(old.passages)] == old.passages
            if old.status == "retired":
                assert new.status == "retired" and new.note == old.note
        for item in items.values():
            assert item.status != "retired" or item.reason
            assert item.status != "resolved" or item.passages
            assert set(item.passages) <= seen and set(item.depends_on) <= set(items) and len(item.note) <= 300
        assert register.ready() == (not register.open_items() and "resolved" in statuses(register).values())
        assert register.void() == (set(statuses(register).values()) == {"retired"})
        assert register.compose(QUESTION) and register.compose(QUESTION, False)
        assert register.transitions(dict(items)) == []
