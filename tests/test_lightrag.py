"""LightRAG behind its adapter: what is asked, what is written, what fails, and what another processor replays."""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
from pathlib import Path

import pytest
from fake_embedder import small_retriever
from project_fixture import WORLD, FakeClient, answer, events, prompts_of
from scripted_server import OVERFLOW, Say, little_model

from multihop import jsonl
from multihop.data.tokens import encoding
from multihop.errors import ConfigError, DataError, MultihopError, ReplayMiss
from multihop.llm.client import Refused
from multihop.retrieval.tokens import count_tokens
from multihop.structures import lightrag_adapter as adapter
from multihop.structures.base import Builder
from multihop.structures.lightrag import LightRag, Params
from multihop.structures.lightrag_graph import Entity, LightRagIndex

QUESTION = "Who is the mayor of the town where the author of The Lantern Ferry lived?"
NAMES = sorted((title for title, _ in WORLD), key=len, reverse=True)
D = "<|#|>"


@pytest.fixture(autouse=True)
def package(request):
    """The package, an extra; a test named ``absent`` does without."""
    if "absent" not in request.node.name:
        return pytest.importorskip("lightrag", reason="pip install -r requirements-lightrag.txt")


def records(body) -> Say:
    """The world's titles that a passage holds; each linked to the passage's own."""
    text = body["messages"][-1]["content"].removeprefix("Passage: ").removesuffix("\nRecords:")
    title = text.split("\n")[0]
    rows = [f"entity{D}{n}{D}other{D}{n} of {title}" for n in NAMES if n in text]
    rows += [f"relation{D}{title}{D}{n}{D}link{D}{title} with {n}" for n in NAMES if n in text and n != title]
    return Say("\n".join([*rows, "<|COMPLETE|>"]))


def asker(high=("mayor",), low=("The Lantern Ferry", "Oda Wren"), extract=records):
    def script(body):
        form = (body.get("response_format") or {}).get("json_schema", {}).get("name")
        if form == "keywords":
            return Say(json.dumps({"high_level": list(high), "low_level": list(low)}))
        return extract(body) if "Records:" in body["messages"][-1]["content"] else little_model(body)

    return script


def build(retriever, folder: Path, script=records, client=None, workers=1, **params):
    made = LightRag(Params(**{"prompt": "short", "summary_from": 0} | params))
    client = client or FakeClient(script)
    folder.mkdir(parents=True)
    builder = Builder(retriever, client, prompts_of("lightrag"), folder, workers=workers)
    statistics = asyncio.run(made.build(builder))
    return made.load(folder, retriever, None), statistics, client


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


class Late(FakeClient):
    """Answers after a random while: replies come in another order every time."""

    async def chat(self, messages, **given):
        await asyncio.sleep(random.random() / 50)
        return await super().chat(messages, **given)


def test_what_is_asked_and_written(tmp_path):
    index, statistics, client = build(small_retriever(tmp_path, WORLD), tmp_path / "out", extract_tokens=220)
    assert client.roles == ["indexer"] * 12
    system, user = client.bodies[1]["messages"]
    assert (system["role"], user["role"]) == ("system", "user") and client.bodies[1]["max_tokens"] == 220
    assert user["content"] == f"Passage: Oda Wren\n{WORLD[1][1]}\nRecords:"
    assert "{" not in system["content"] and f"entity{D}Dorvik{D}location" in system["content"]
    assert count_tokens(system["content"]) < 350
    one = next(e for e in index.entities if e.name == "Oda Wren")
    assert one.chunks == ("p0", "p1") and one.said == "Oda Wren of The Lantern Ferry; Oda Wren of Oda Wren"
    assert [(r.source, r.target) for r in index.relations if "p0" in r.chunks] == [
        ("Oda Wren", "The Lantern Ferry"),
        ("Skarholm", "The Lantern Ferry"),
    ]
    both = [f"{name}.{kind}" for name in ("entities", "relations") for kind in ("jsonl", "npy")]
    assert sorted(files(tmp_path / "out")) == sorted([*both, "failed.jsonl"])
    assert files(tmp_path / "out")["failed.jsonl"] == b""
    assert statistics["entities"] == len(index.entities) == 12
    assert statistics["chunks_without_entities"] == statistics["failed_calls"] == statistics["summary_calls"] == 0


def test_neither_workers_nor_time_nor_place_decides_a_byte(tmp_path):
    retriever = small_retriever(tmp_path, WORLD)
    build(retriever, tmp_path / "one")
    bodies = []
    for name, batch in (("two", 100), ("three", 5), ("four", 5)):
        client = Late(records)
        build(retriever, tmp_path / name, client=client, workers=4, batch=batch)
        bodies.append(sorted(json.dumps(body) for body in client.bodies))
    assert files(tmp_path / "one") == files(tmp_path / "two") and files(tmp_path / "three") == files(tmp_path / "four")
    assert bodies[0] == bodies[1] == bodies[2]
    assert not re.search(rb"20\d\d-|created|tmp", files(tmp_path / "one")["entities.jsonl"])


@pytest.mark.parametrize("n", [1, 2, 12, 13])
def test_small_corpora(tmp_path, n):
    passages = [*WORLD, ("Note", "Nobody is named in this note.")][:n]
    index, statistics, _ = build(small_retriever(tmp_path, passages), tmp_path / "out", batch=5)
    assert statistics["inserted"] == n and statistics["chunks_without_entities"] == (n == 13)
    assert {i for e in index.entities for i in e.chunks} == {f"p{i}" for i in range(min(n, 12))}


def test_its_files_are_not_rewritten_after_every_document(tmp_path, monkeypatch):
    def written(*_):
        raise AssertionError("the whole graph, once a document: the square of the corpus")

    from lightrag.kg.networkx_impl import NetworkXStorage

    monkeypatch.setattr(NetworkXStorage, "write_nx_graph", written)
    assert build(small_retriever(tmp_path, WORLD), tmp_path / "out", batch=5)[1]["entities"] == 12


def test_identical_passages_stand_for_each_other(tmp_path):
    passages = [WORLD[0], WORLD[2], WORLD[0], WORLD[0]]
    index, statistics, client = build(small_retriever(tmp_path, passages), tmp_path / "out", batch=1)
    assert len(client.bodies) == statistics["inserted"] == 2 and statistics["chunks_without_entities"] == 0
    assert next(e for e in index.entities if e.name == "Oda Wren").chunks == ("p0", "p2", "p3")


def test_nothing_extracted_means_dense_retrieval(tmp_path):
    retriever = small_retriever(tmp_path, WORLD)
    index, statistics, _ = build(retriever, tmp_path / "out", lambda body: Say("<|COMPLETE|>"))
    assert (statistics["entities"], statistics["chunks_without_entities"]) == (0, 12)
    _, trace, record = answer(retriever, "lightrag", FakeClient(asker()), QUESTION, structure=index, k=3)
    assert events(trace, "fallback") == [{"what": "no_passages", "to": "dense"}] and record.status == "ok"
    assert list(trace.read) == [h.chunk_id for h in retriever.dense(QUESTION, 3)]


BROKEN = {
    "prose": "The passage is about a ferry.",
    "truncated": f"entity{D}Skar",
    "empty": "",
    "three fields": f"entity{D}Skarholm{D}location\n<|COMPLETE|>",
    "no names": f"entity{D}{D}location{D}a town\nrelation{D}{D}{D}x{D}y",
    "itself": f"relation{D}Tavik{D}Tavik{D}is{D}itself",
}


@pytest.mark.parametrize("said", BROKEN.values(), ids=BROKEN)
def test_broken_output_costs_its_passage_alone(tmp_path, said):
    def script(body):
        return Say(said) if "Passage: Skarholm" in body["messages"][-1]["content"] else records(body)

    index, statistics, _ = build(small_retriever(tmp_path, WORLD), tmp_path / "out", script)
    assert statistics["chunks_without_entities"] == 1 and statistics["failed_calls"] == (said == "")
    assert "p2" not in {i for e in index.entities for i in e.chunks} and len(index.entities) == 12


def test_a_passage_that_is_refused_or_too_long(tmp_path):
    def script(body):
        text = body["messages"][-1]["content"]
        if "Passage: Norr" in text:
            raise Refused("no")
        return OVERFLOW if "Passage: Lisse" in text else records(body)

    _, statistics, _ = build(small_retriever(tmp_path, WORLD), tmp_path / "out", script)
    assert statistics["failed_calls"] == statistics["chunks_without_entities"] == 2
    extraction, too_long = jsonl.read(tmp_path / "out/failed.jsonl")
    assert {(row["step"], *row["of"]) for row in (extraction, too_long)} == {("extraction", "p4"), ("extraction", "p9")}
    assert sorted(row["error"].partition(":")[0] for row in (extraction, too_long)) == ["ContextOverflow", "Refused"]


def test_a_failed_round_of_gleaning_names_its_passage(tmp_path):
    def script(body):
        more = len(body["messages"]) == 4
        return Say("") if more else Say(f"entity{D}Tavik{D}other{D}a town\n<|COMPLETE|>")

    passages = [("Tavik", "Tavik."), ("Tavik", "Tavik. It is a town."), ("Tavik", "Tavik.")]
    retriever = small_retriever(tmp_path, passages)
    build(retriever, tmp_path / "out", script, prompt="package", gleaning=1)
    rows = list(jsonl.read(tmp_path / "out/failed.jsonl"))
    assert [row["of"] for row in rows] == [["p0", "p2"], ["p1"]]  # a passage that begins another is not taken for it
    assert {(row["step"], row["error"]) for row in rows} == {("extraction", "empty reply")}


def test_what_our_client_raises_stops_the_build_and_writes_nothing(tmp_path):
    def script(body):
        raise ReplayMiss("not recorded")

    before = dict(__import__("lightrag.prompt", fromlist=["PROMPTS"]).PROMPTS)
    with pytest.raises(ReplayMiss, match="not recorded"):
        build(small_retriever(tmp_path, WORLD), tmp_path / "out", script)
    assert files(tmp_path / "out") == {}
    assert __import__("lightrag.prompt", fromlist=["PROMPTS"]).PROMPTS == before


def test_a_lost_batch_is_named(tmp_path, monkeypatch):
    module = __import__("lightrag.lightrag", fromlist=["extract_entities"])
    real = module.extract_entities

    async def extract(chunks, *args, **kwargs):
        if any(key.startswith("batch-0001") for key in chunks):
            raise RuntimeError("dictionary changed size")
        return await real(chunks, *args, **kwargs)

    monkeypatch.setattr(module, "extract_entities", extract)
    with pytest.raises(MultihopError, match=r"batch-0001 is failed: .*dictionary changed size"):
        build(small_retriever(tmp_path, WORLD), tmp_path / "out", batch=5)
    assert files(tmp_path / "out") == {}


def test_absent_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lightrag", None)
    retriever = small_retriever(tmp_path, WORLD)
    one = Entity("Tavik", "place", "a town", ("p6",))
    vectors = retriever.chunk_vector("p6")[None]
    index = LightRagIndex(retriever, [one], [], vectors, vectors[:0])
    for work in (lambda: build(retriever, tmp_path / "out"), lambda: answer_with(index, retriever)):
        with pytest.raises(ConfigError, match=r"pip install -r requirements-lightrag\.txt"):
            work()


def answer_with(index, retriever):
    return answer(retriever, "lightrag", FakeClient(asker()), QUESTION, structure=index)


def test_what_is_stored_needs_no_package(tmp_path, monkeypatch):
    retriever = small_retriever(tmp_path, WORLD)
    index, _, _ = build(retriever, tmp_path / "out")
    _, _, first = answer_with(index, retriever)
    monkeypatch.setitem(sys.modules, "lightrag", None)
    assert answer_with(index, retriever)[2].retrieved == first.retrieved
    index.retriever.embedder.space = "another/24"
    index.__dict__.pop("_digest")
    with pytest.raises(ConfigError):
        answer_with(index, retriever)


def test_another_version_is_refused(package, monkeypatch):
    monkeypatch.setattr(package, "__version__", "1.4.0")
    with pytest.raises(ConfigError, match=r"1\.4\.0 is installed, 1\.5\.7"):
        adapter.require()


def hub(body) -> Say:
    title = body["messages"][-1]["content"].removeprefix("Passage: ").split("\n")[0]
    return Say(f"entity{D}Everywhere{D}other{D}in {title}\n<|COMPLETE|>")


def test_an_entity_in_every_passage(tmp_path):
    retriever = small_retriever(tmp_path, WORLD)
    index, statistics, _ = build(retriever, tmp_path / "out", hub, description_tokens=20, batch=4)
    (one,) = index.entities
    assert one.chunks == tuple(f"p{i}" for i in range(12)) and statistics["summary_calls"] == 0
    assert one.said.startswith("in The Lantern Ferry; in Oda Wren") and count_tokens(one.said) <= 24
    found = asyncio.run(index.search(QUESTION, ["all"], [one.content], mode="hybrid", chunk_top_k=20))
    # of the passages of one entity the package takes half of related_chunk_number, by their likeness to the question
    assert found.chunk_ids == [h.chunk_id for h in retriever.dense(QUESTION, 2)] and not found.relations


def test_descriptions_are_merged_by_the_model_from_the_packages_threshold_on(tmp_path):
    def script(body):
        return hub(body) if "Records:" in body["messages"][-1]["content"] else Say("It is in every passage.")

    index, statistics, client = build(small_retriever(tmp_path, WORLD), tmp_path / "out", script, summary_from=8)
    assert statistics["summary_calls"] == 1 and index.entities[0].said == "It is in every passage."
    (body,) = (b for b in client.bodies if b["messages"][0]["role"] == "user")
    said = body["messages"][0]["content"]
    assert [said.index(f"in {title}") for title, _ in WORLD] == sorted(said.index(f"in {title}") for title, _ in WORLD)


@pytest.mark.parametrize("outcome", [Say(" "), Refused("no"), OVERFLOW], ids=["empty", "refused", "too long"])
def test_a_merge_that_fails_leaves_the_descriptions_as_they_are(tmp_path, outcome):
    def script(body):
        if "Records:" in body["messages"][-1]["content"]:
            return hub(body)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    retriever = small_retriever(tmp_path, WORLD)
    index, statistics, _ = build(retriever, tmp_path / "out", script, summary_from=8)
    said = index.entities[0].said.split("; ")
    assert sorted(said) == sorted(f"in {title}" for title, _ in WORLD)
    assert statistics["failed_calls"] == statistics["summary_calls"] == 1
    [row] = jsonl.read(tmp_path / "out/failed.jsonl")
    assert (row["step"], row["of"]) == ("summary", "Everywhere") and row["error"]


def test_the_packages_own_prompt_and_gleaning(tmp_path):
    retriever = small_retriever(tmp_path, WORLD[:2])
    script = lambda body: Say(f"entity{D}Tavik{D}other{D}a town\n<|COMPLETE|>")  # noqa: E731
    _, statistics, client = build(retriever, tmp_path / "out", script, prompt="package", gleaning=1, summary_from=8)
    assert statistics["entities"] == 1 and len(client.bodies) == 4
    assert client.bodies[0]["messages"][0]["content"].startswith("---Role---\nYou are a Knowledge Graph Specialist")
    assert [m["role"] for m in client.bodies[1]["messages"]] == ["system", "user", "assistant", "user"]
    prompts = prompts_of("lightrag")
    long, short = (LightRag(Params(prompt=p)).estimate(retriever, prompts) for p in ("package", "short"))
    assert long.calls == short.calls == 2 and long.prompt_tokens > short.prompt_tokens + 2 * 1200


def test_the_tokenizer_gives_back_the_text():
    made = adapter._O200k()
    text = "Karla Möhn, <|endoftext|> 「川」 🜁\n<<<SPLIT>>>\n" + "Skarholm " * 20_000
    assert made.decode(made.encode(text)) == text


def test_the_tokenizer_keeps_lines_of_json_without_changing_a_token():
    rng = random.Random(0)
    for _ in range(2000):
        bits = [rng.choice(["}\n{", '}\n{"a": ', "}\n", "\n{", " }", "é漢 '", "\r\n", "ab 12"]) for _ in range(8)]
        text = "".join(bits)
        assert adapter._O200k().encode(text) == list(encoding().encode_ordinary(text))


def test_a_passage_that_holds_the_separator_or_markup(tmp_path):
    passages = [("A", "Tavik\n<<<SPLIT>>>\nNorr &amp; Lisse {curly}"), ("B", "Norr\x07 is small.")]
    _, statistics, client = build(small_retriever(tmp_path, passages), tmp_path / "out")
    assert statistics["inserted"] == len(client.bodies) == 2
    assert "Norr & Lisse {curly}" in client.bodies[0]["messages"][1]["content"]


# -- the method


def test_golden(tmp_path):
    retriever = small_retriever(tmp_path, WORLD)
    index, _, _ = build(retriever, tmp_path / "out")
    client = FakeClient(asker())
    budgets = {"entity_tokens": 90, "relation_tokens": 60, "chunk_tokens": 80, "max_tokens": 90}
    _, trace, record = answer(retriever, "lightrag", client, QUESTION, structure=index, keyword_tokens=80, **budgets)
    assert client.roles == ["control", "reader"] and [b["max_tokens"] for b in client.bodies] == [80, 90]
    assert client.bodies[0]["messages"][1]["content"] == f"Question: {QUESTION}"
    assert events(trace, "keywords") == [{"high_level": ["mayor"], "low_level": ["The Lantern Ferry", "Oda Wren"]}]
    graph = {"entities": ["The Lantern Ferry", "Tavik"], "relations": [["Oda Wren", "Skarholm"]], "chunks_found": 6}
    assert events(trace, "graph") == [graph] and list(trace.read) == ["p0", "p1"]
    shown = client.bodies[1]["messages"][1]["content"]
    assert shown.startswith(
        "Entities:\n- The Lantern Ferry (other): The Lantern Ferry of The Lantern Ferry\n- Tavik (other): Tavik of "
        "Karla Möhn; Tavik of Emil Wren; Tavik of Tavik; Tavik of The Salt Choir; Tavik of Grey Hills\n\n"
        f"Relations:\n- Oda Wren -- Skarholm (link): Oda Wren with Skarholm\n\n[p0] {retriever.text('p0')}\n\n[p1] "
    )
    assert record.cited == ("p0", "p1") and record.retrieval_calls == record.loops == 1 and record.status == "ok"


def test_keywords_that_are_missing_or_no_keywords(tmp_path):
    retriever = small_retriever(tmp_path, WORLD)
    index, _, _ = build(retriever, tmp_path / "out")
    client = FakeClient(asker(high=[], low=[" ", 3]))
    _, trace, record = answer(retriever, "lightrag", client, QUESTION, structure=index)
    assert [e["what"] for e in events(trace, "fallback")] == ["high_level", "low_level"] and record.status == "ok"
    prose = lambda body: Say("The mayor.") if body.get("response_format") else little_model(body)  # noqa: E731
    _, trace, record = answer(retriever, "lightrag", FakeClient(prose), QUESTION, structure=index)
    assert len(events(trace, "parse_failed")) == 1 and len(events(trace, "fallback")) == 2 and record.status == "ok"
    assert record.usage["control"].repairs == 1


def test_the_shortest_question(tmp_path):
    retriever = small_retriever(tmp_path, WORLD)
    index, _, _ = build(retriever, tmp_path / "out")
    _, trace, record = answer(retriever, "lightrag", FakeClient(asker()), "?", structure=index)
    assert events(trace, "fallback") == [{"what": "no_passages", "to": "dense"}] and record.status == "ok"


def test_mix_adds_what_the_question_is_near_to(tmp_path):
    retriever = small_retriever(tmp_path, WORLD)
    index, _, _ = build(retriever, tmp_path / "out")
    near = retriever.dense(QUESTION, 1)[0].chunk_id
    found = asyncio.run(index.search(QUESTION, ["mayor"], ["Norr"], mode="mix", chunk_top_k=20))
    assert found.chunk_ids[0] == near


def test_a_search_is_replayed_and_never_computed_where_that_is_off(tmp_path):
    retriever = small_retriever(tmp_path, WORLD)
    index, _, _ = build(retriever, tmp_path / "out")
    first = asyncio.run(index.search(QUESTION, ["mayor"], ["Norr"], mode="hybrid"))
    retriever.allow = False
    again = LightRag(Params()).load(tmp_path / "out", retriever, None)
    assert asyncio.run(again.search(QUESTION, ["mayor"], ["Norr"], mode="hybrid")) == first
    with pytest.raises(ReplayMiss, match=r"lightrag-hku/1\.5\.7"):
        asyncio.run(again.search(QUESTION, ["mayor"], ["Lisse"], mode="hybrid"))


def test_searches_at_once_and_over_two_graphs(tmp_path):
    retriever = small_retriever(tmp_path, WORLD)
    index, _, _ = build(retriever, tmp_path / "out")
    other, _, _ = build(retriever, tmp_path / "other", hub)
    alone = {n: asyncio.run(index.search(QUESTION, ["town"], [n], mode="hybrid", top_k=4)) for n in NAMES}

    async def together():
        jobs = [i.search(QUESTION + " ", ["town"], [n], mode="hybrid", top_k=4) for n in NAMES for i in (index, other)]
        return await asyncio.gather(*jobs)

    found = asyncio.run(together())
    assert found[0::2] == [alone[n] for n in NAMES]
    assert all([e.name for e in f.entities] in ([], ["Everywhere"]) for f in found[1::2])


def test_damaged_files_are_refused(tmp_path):
    retriever = small_retriever(tmp_path, WORLD)
    build(retriever, tmp_path / "out")
    path = tmp_path / "out/entities.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(DataError, match="do not fit"):
        LightRag(Params()).load(tmp_path / "out", retriever, None)
    (tmp_path / "out/relations.npy").unlink()
    with pytest.raises(DataError, match="missing or damaged"):
        LightRag(Params()).load(tmp_path / "out", retriever, None)
