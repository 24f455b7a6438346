"""Open information extraction: strict JSON, one repair, a failure for each passage alone, nothing lost."""

from __future__ import annotations

import asyncio
import json

import pytest
from fake_embedder import small_retriever
from project_fixture import REPO, FakeClient
from scripted_server import OVERFLOW, Say

from multihop import jsonl
from multihop.errors import DataError
from multihop.opening import load_prompts
from multihop.structures.base import ROLE, Builder
from multihop.structures.openie import Extraction, OpenIE, Params

PASSAGES = [
    ("Oda Wren", "Oda Wren lived in Skarholm."),
    ("Norr", "Norr is a village."),
    ("Tavik", "Tavik has {2} bridges."),
]
PROMPTS = load_prompts(REPO, "openie")
ENTITIES = '{"entities": ["Oda Wren", " Skarholm "]}'
TRIPLES = '{"triples": [["Oda Wren", "lived in", "Skarholm"]]}'


def form(body):
    return body["response_format"]["json_schema"]["name"]


def about(body, text: str) -> bool:
    return f"Passage: {text}\n" in body["messages"][1]["content"]


def usual(body):
    return Say(ENTITIES if form(body) == "named" else TRIPLES)


def build(tmp_path, script=usual, workers=1, passages=PASSAGES, **params):
    retriever = small_retriever(tmp_path / "index", passages)
    client, folder = FakeClient(script), tmp_path / f"openie{workers}"
    folder.mkdir()
    structure = OpenIE(Params(**params))
    builder = Builder(retriever, client, PROMPTS, folder, None, workers)
    statistics = asyncio.run(structure.build(builder))
    rows = list(jsonl.read(folder / "openie.jsonl"))
    return client, builder, rows, statistics, structure.load(folder, retriever, None)


def test_two_calls_a_passage_step_by_step(tmp_path):
    client, builder, rows, statistics, loaded = build(tmp_path, entity_tokens=90, triple_tokens=200)
    assert [form(b) for b in client.bodies] == ["named"] * 3 + ["triples"] * 3 and set(client.roles) == {ROLE}
    assert [b["max_tokens"] for b in client.bodies] == [90] * 3 + [200] * 3
    assert client.bodies[2]["messages"] == [
        {"role": "system", "content": PROMPTS["entities_system"]},
        {"role": "user", "content": "Passage: Tavik\nTavik has {2} bridges."},
    ]
    assert client.bodies[3]["messages"][1]["content"].endswith("\nEntities: Oda Wren; Skarholm")
    assert client.bodies[3]["temperature"] == 0.0
    assert [r["chunk_id"] for r in rows] == ["p0", "p1", "p2"] and list(loaded) == ["p0", "p1", "p2"]
    assert loaded["p1"] == Extraction("p1", ("Oda Wren", "Skarholm"), (("Oda Wren", "lived in", "Skarholm"),))
    assert statistics == {
        "passages": 3,
        "entities": 2,
        "mentions": 6,
        "triples": 3,
        "distinct_triples": 1,
        "malformed": 0,
        "failed_steps": 0,
        "passages_without_triples": 0,
    }
    assert builder.trace.usage[ROLE].calls == 6 and builder.trace.usage[ROLE].repairs == 0


def test_prose_is_repaired_once(tmp_path):
    def script(body):
        if about(body, "Norr") and form(body) == "named" and len(body["messages"]) == 2:
            return Say("The entities are Norr and others.")
        return usual(body)

    client, builder, rows, statistics, _ = build(tmp_path, script)
    [again] = [b for b in client.bodies if len(b["messages"]) == 4]
    assert again["messages"][2]["content"] == "The entities are Norr and others."
    assert again["messages"][3]["content"] == PROMPTS["repair"].format(error="not JSON: Expecting value")
    assert rows[1]["entities"] == ["Oda Wren", "Skarholm"] and rows[1]["errors"] == []
    assert (len(client.bodies), builder.trace.usage[ROLE].repairs, statistics["failed_steps"]) == (7, 1, 0)


@pytest.mark.parametrize("step", ["named", "triples"])
def test_prose_twice_fails_that_step_of_that_passage(tmp_path, step):
    def script(body):
        return Say("I would rather talk.") if about(body, "Norr") and form(body) == step else usual(body)

    client, _, rows, statistics, loaded = build(tmp_path, script)
    assert rows[1]["errors"] == ["not JSON: Expecting value"] and len(client.bodies) == 7
    assert rows[1]["triples" if step == "triples" else "entities"] == []
    assert [len(r["errors"]) for r in rows] == [0, 1, 0] and statistics["failed_steps"] == 1
    assert loaded["p2"].triples == (("Oda Wren", "lived in", "Skarholm"),)
    asked = [b["messages"][1]["content"] for b in client.bodies if form(b) == "triples" and about(b, "Norr")]
    assert asked[0].endswith("Entities: (none)" if step == "named" else "Entities: Oda Wren; Skarholm")


@pytest.mark.parametrize(
    ("raw", "kept"),
    [
        ('{"entities": ["Oda Wren", "Skarh', ["Oda Wren"]),
        ('{"entities": ["Oda Wren", "Skarholm"', ["Oda Wren"]),
        ('{"entities": ["Oda Wren", "Skarholm"]', ["Oda Wren", "Skarholm"]),
        ('{"entities": ["Oda Wren", "Skarholm"]} I hope', ["Oda Wren", "Skarholm"]),
        ('{"entities": []}', []),
    ],
)
def test_half_a_name_at_the_ceiling_is_left_out(tmp_path, raw, kept):
    client, _, rows, _, _ = build(tmp_path, lambda b: Say(raw, finish="length") if form(b) == "named" else usual(b))
    assert rows[0]["entities"] == kept and len(client.bodies) == 6
    assert rows[0]["errors"] == []


@pytest.mark.parametrize("cut", ['"c", "is"', '"c", "is", "do'])
def test_a_triple_cut_off_is_left_out_and_counted(tmp_path, cut):
    raw = '{"triples": [["a", "is", "b"], [' + cut
    _, _, rows, statistics, _ = build(tmp_path, lambda b: Say(raw) if form(b) == "triples" else usual(b))
    assert rows[0]["triples"] == [["a", "is", "b"]] and rows[0]["malformed"] == 1 and statistics["malformed"] == 3


def test_malformed_triples_and_entities_are_counted_duplicates_are_not(tmp_path):
    triples = [["a", "is", "b"], ["a", "is", "b"], ["a", "is"], ["a", "b", "c", "d"], ["a", 1, "b"], ["a", " ", "b"]]
    given = {"named": {"entities": ["x", "x", 7, "", None]}, "triples": {"triples": [*triples, "a is b", {"s": "a"}]}}
    _, _, rows, statistics, loaded = build(tmp_path, lambda b: Say(json.dumps(given[form(b)])))
    assert loaded["p0"] == Extraction("p0", ("x",), (("a", "is", "b"),))
    assert rows[0]["malformed"] == 3 + 6 and statistics["malformed"] == 27 and rows[0]["errors"] == []


@pytest.mark.parametrize("outcome", [Say(None, refusal="No."), OVERFLOW])
def test_a_refusal_or_an_overflow_concerns_one_passage(tmp_path, outcome):
    def script(body):
        return outcome if about(body, "Norr") and form(body) == "named" else usual(body)

    client, _, rows, statistics, _ = build(tmp_path, script)
    assert len(rows[1]["errors"]) == 1 and rows[1]["errors"][0].startswith(("Refused: ", "ContextOverflow: "))
    assert rows[1]["entities"] == [] and rows[1]["triples"] and len(client.bodies) == 6
    assert (statistics["failed_steps"], statistics["triples"]) == (1, 3)


def test_another_error_stops_the_build(tmp_path):
    def script(body):
        raise RuntimeError("the server is gone")

    with pytest.raises(BaseExceptionGroup, match="unhandled"):
        build(tmp_path, script)


def test_the_files_do_not_depend_on_the_workers(tmp_path):
    build(tmp_path, workers=1)
    build(tmp_path, workers=3)
    assert (tmp_path / "openie1/openie.jsonl").read_bytes() == (tmp_path / "openie3/openie.jsonl").read_bytes()


def test_one_passage_and_duplicates(tmp_path):
    assert [r["chunk_id"] for r in build(tmp_path / "one", passages=PASSAGES[:1])[2]] == ["p0"]
    rows = build(tmp_path / "two", passages=[PASSAGES[0], PASSAGES[0]])[2]
    assert rows[0]["triples"] == rows[1]["triples"] and [r["chunk_id"] for r in rows] == ["p0", "p1"]


def test_the_estimate_is_two_calls_a_passage(tmp_path):
    cost = OpenIE(Params()).estimate(small_retriever(tmp_path, PASSAGES), PROMPTS)
    assert cost.calls == 6 and cost.prompt_tokens > 3 * 200 and cost.completion_tokens > 0


def test_a_missing_file_is_said(tmp_path):
    with pytest.raises(DataError, match=r"openie\.jsonl"):
        OpenIE(Params()).load(tmp_path, small_retriever(tmp_path, PASSAGES), None)
