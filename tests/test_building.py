"""Indexes of structured methods: built, resumed, replayed, refused; by an invented structure and one over it."""

from __future__ import annotations

import asyncio
import importlib
import json
import shutil
import sys
from pathlib import Path

import project_fixture
import pytest
from fake_embedder import small_retriever
from project_fixture import REPO, first_of, make_project, params_for, records_of, run_project, write_params
from scripted_server import OVERFLOW, Fail, Say, little_model

import multihop.methods
import multihop.structures
from multihop import asking, building, cli, config, jsonl, recording
from multihop.errors import ConfigError, DataError, EndpointError, ReplayMiss
from multihop.opening import open_index, open_structure
from multihop.session import opened
from multihop.store import read_recording
from multihop.structures import registry
from multihop.structures.base import StructureParams, kept

FILES = {
    "structures/notes.py": '''
import numpy as np
from pydantic import BaseModel, Field
from multihop import jsonl
from multihop.structures.base import Cost, StructureParams, kept

class Params(StructureParams):
    tokens: int = Field(20, gt=0)

class Note(BaseModel):
    note: str

class Notes:
    """A note of every passage, its vector, and a value that a library could have computed."""
    name = "notes"
    Params = Params

    def __init__(self, params):
        self.params = params

    def estimate(self, retriever, prompts):
        return Cost(len(retriever.chunks), 7 * len(retriever.chunks), self.params.tokens * len(retriever.chunks))

    async def build(self, builder):
        chunks = builder.retriever.chunks

        async def ask(chunk):
            messages = builder.messages("note", text=chunk.text)
            return await builder.llm().json(messages, Note, max_tokens=self.params.tokens)

        rows = []
        for chunk, reply in zip(chunks, await builder.each(chunks, ask), strict=True):
            error = f"{type(reply).__name__}: {reply}" if isinstance(reply, Exception) else reply.error
            rows.append({"id": chunk.id, "note": "" if error else reply.value.note, "error": error or ""})
        lengths = kept(builder.retriever, "length/1", [c.text for c in chunks], lambda texts: [len(t) for t in texts])
        jsonl.write(builder.folder / "notes.jsonl", (r | {"length": n} for r, n in zip(rows, lengths, strict=True)))
        np.save(builder.folder / "notes.npy", builder.vectors([r["note"] for r in rows]), allow_pickle=False)
        return {"passages": len(rows), "failed": sum(bool(r["error"]) for r in rows)}

    def load(self, folder, retriever, over):
        return {row["id"]: row["note"] for row in jsonl.read(folder / "notes.jsonl")}
''',
    "structures/longest.py": '''
from multihop import jsonl
from multihop.structures.base import Cost, StructureParams

class Longest:
    """The passage with the longest note."""
    name = "longest"
    over = "notes"
    Params = StructureParams

    def __init__(self, params):
        self.params = params

    def estimate(self, retriever, prompts):
        return Cost()

    async def build(self, builder):
        best = max(builder.over, key=lambda chunk: (len(builder.over[chunk]), chunk))
        jsonl.write(builder.folder / "longest.jsonl", [{"id": best}])
        return {"notes": len(builder.over)}

    def load(self, folder, retriever, over):
        return [row["id"] for row in jsonl.read(folder / "longest.jsonl")]
''',
    "methods/noted.py": '''
from multihop.methods.base import MethodParams
from multihop.methods.reading import read_and_answer

class Noted:
    """Reads what the index names."""
    name = "noted"
    structure = "longest"
    Params = MethodParams

    def __init__(self, params):
        self.params = params

    async def answer(self, question, tools):
        return await read_and_answer(question, tools.structure, tools, max_tokens=50)
''',
}  # fmt: skip
PROMPTS = {"note_system": "Write a note as JSON.", "note_user": "NOTE THIS\n{text}"}
BLOCKS = {
    "structures": {"notes": {"structure": "notes", "settings": ["small"]}},
    "graphs": {"longest": {"structure": "longest", "over": "notes", "settings": ["small"]}},
    "structured_runs": {"noted": {"method": "noted", "structure": "longest"}},
}
WHERE = "data/structures/notes/musique/small"


def model(body, **by_title):
    """Notes the title of a passage; ``by_title`` has its own outcome for some (spaces as _)."""
    text = body["messages"][1]["content"]
    if not text.startswith("NOTE THIS"):
        return little_model(body)
    title = text.splitlines()[1]
    return by_title.get(title.replace(" ", "_"), Say(json.dumps({"note": title})))


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    """The invented structures and their method, importable as if they stood in the package."""
    for path, text in FILES.items():
        (tmp_path / "plugins" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "plugins" / path).write_text(text)
    for package in (multihop.structures, multihop.methods):
        folder = tmp_path / "plugins" / package.__name__.split(".")[1]
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    importlib.invalidate_caches()
    yield tmp_path / "plugins"
    for path in FILES:
        sys.modules.pop(f"multihop.{path[:-3].replace('/', '.')}", None)


@pytest.fixture
def indexed(plugins, project):
    """The small project with one run over the invented graph."""

    def copy(name: str = "project", **changes) -> Path:
        root = project(name, **BLOCKS | changes)
        (root / "prompts").unlink()
        (root / "prompts/notes").mkdir(parents=True)
        for folder in ("shared", "judge", "extract"):
            (root / "prompts" / folder).symlink_to(REPO / "prompts" / folder)
        for prompt, text in PROMPTS.items():
            (root / f"prompts/notes/{prompt}.txt").write_text(text)
        return root

    return copy


def in_session(root: Path, work, **options):
    """What ``work(session, ...)`` gives in an own session; the first error of a group is raised by itself."""

    async def main():
        async with opened(config.load(root / "params.yaml"), root) as session:
            made = work(session, **options)
            return await made if asyncio.iscoroutine(made) else made

    try:
        return asyncio.run(main())
    except BaseExceptionGroup as group:
        raise first_of(group) from None


def build(root: Path, name: str = "notes"):
    """Each cell's statistics."""
    return {cell: built.statistics for cell, built in in_session(root, building.build, name=name).items()}


def metas(root: Path, name: str = "notes") -> list[Path]:
    return sorted(root.glob(f"results/structures/{name}/musique/small.json"))


def meta_of(root: Path, name: str = "notes"):
    return json.loads(metas(root, name)[0].read_text())


def contents(root: Path) -> dict[str, bytes]:
    """Every file of every index, by its path."""
    return {str(p.relative_to(root)): p.read_bytes() for p in root.glob("*/structures/**/*") if p.is_file()}


def load(session, name="notes"):
    return open_structure(session, name, "musique", "small", open_index(session, "musique", "small"))


# -- a build


def test_a_build_writes_its_files_statistics_and_what_it_cost(indexed, serve):
    server, root = serve(model), indexed()
    assert build(root) == {"musique/small": {"passages": 12, "failed": 0}}
    meta = meta_of(root)
    assert {p.name for p in (root / WHERE).iterdir()} == {"notes.jsonl", "notes.npy"}
    assert meta["estimated"] == {"calls": 12, "prompt_tokens": 84, "completion_tokens": 240}
    assert meta["actual"]["calls"] == len(server.bodies) == 12 and meta["repairs"] == 0
    assert meta["actual"]["prompt_tokens"] > 100 and meta["actual"]["completion_tokens"] > 12
    assert (meta["model"], meta["statistics"]) == ("scripted", {"passages": 12, "failed": 0})
    assert meta["bytes"] == sum((root / WHERE / n).stat().st_size for n in ("notes.jsonl", "notes.npy"))
    assert (meta["identity"]["structure"], meta["identity"]["options"]) == ("notes", {"tokens": 20})
    assert {b["max_tokens"] for b in server.bodies} == {20} and {b["temperature"] for b in server.bodies} == {0.0}
    assert in_session(root, load)["p8"] == "Jon Ekeby"


def test_a_graph_is_built_over_its_structure_and_asks_nothing(indexed, serve):
    server, root = serve(model), indexed()
    with pytest.raises(DataError, match=r"notes/musique/small: not there yet; .*multihop build notes"):
        build(root, "longest")
    build(root)
    asked = len(server.bodies)
    assert build(root, "longest") == {"musique/small": {"notes": 12}} and len(server.bodies) == asked
    meta = meta_of(root, "longest")
    assert meta["identity"]["over"] == meta_of(root)["identity"] and meta["model"] is None
    assert meta["actual"] == {"calls": 0, "prompt_tokens": 0, "completion_tokens": 0}
    assert in_session(root, load, name="longest") == ["p0"]


def test_a_failed_passage_is_recorded_and_the_others_stay(indexed, serve):
    bad = {"Norr": Say(None, refusal="no"), "Lisse": OVERFLOW, "Tavik": Say("prose")}
    serve(lambda body: model(body, **bad))
    root = indexed()
    assert build(root) == {"musique/small": {"passages": 12, "failed": 3}}
    rows = {row["id"]: row for row in jsonl.read(root / WHERE / "notes.jsonl")}
    assert {i for i, row in rows.items() if row["error"]} == {"p4", "p6", "p9"} and rows["p0"]["note"]
    assert rows["p9"]["error"].startswith("Refused") and rows["p4"]["error"].startswith("ContextOverflow")
    assert meta_of(root)["repairs"] == 1


def test_the_same_bytes_twice_with_any_number_of_workers(indexed, serve, at_home):
    server, found = serve(model), []
    for workers in ("1", "8"):
        at_home(workers, MULTIHOP_WORKERS=workers)
        root = indexed(workers)
        build(root)
        first, asked = contents(root), len(server.bodies)
        build(root)
        assert contents(root) == first and len(server.bodies) == asked, "a second build asks nothing"
        found.append(first)
    assert found[0] == found[1] and f"{WHERE}/notes.npy" in found[0]


def test_a_build_replaces_what_an_earlier_one_left(indexed, serve):
    serve(model)
    root = indexed()
    (root / WHERE / "old").mkdir(parents=True)
    (root / WHERE / "old/file.json").write_text("{}")
    build(root)
    assert not (root / WHERE / "old").exists()


def test_a_killed_build_goes_on_where_it_was(indexed, serve, at_home):
    """It leaves no index that could be taken for a whole one, and loses the call in flight alone."""
    at_home("whole", MULTIHOP_WORKERS="1")
    server, whole, root = serve(model, delay=0.02), indexed("whole"), indexed("killed")
    build(whole)
    server.counts.clear(), server.answered.clear()
    at_home("killed")

    async def killed(session):
        task = asyncio.create_task(building.build(session, "notes"))
        while server.answered.total() < 5 and not task.done():
            await asyncio.sleep(0.002)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    in_session(root, killed)
    with pytest.raises(DataError, match="not there yet"):
        in_session(root, load)
    before = set(server.counts)
    assert len(before) < 12
    build(root)
    assert len(server.counts) == 12 and contents(root) == contents(whole)
    again = [key for key in before if server.counts[key] > 1]
    assert len(again) <= 1, "only what was in flight"


def test_an_endpoint_that_fails_stops_the_build(indexed, serve, at_home):
    """Also where an index was there: half of a new one is not taken for it."""
    root = indexed()
    serve(model)
    build(root)
    at_home("stopped", MULTIHOP_WORKERS="1")
    bad = Fail(401, "invalid_api_key", "Incorrect API key provided.")
    server = serve(lambda body: model(body, Lisse=bad))
    with pytest.raises(EndpointError):
        build(root)
    assert metas(root) == [] and len(server.bodies) == 5
    with pytest.raises(DataError, match="not there yet"):
        in_session(root, load)
    good = serve(model)
    build(root)
    assert len(good.bodies) == 8, "p0 to p3 are stored"


@pytest.mark.parametrize("passages", [1, 2])
def test_a_tiny_corpus(plugins, indexed, serve, monkeypatch, passages):
    serve(model)
    root = indexed()
    monkeypatch.setattr(project_fixture, "WORLD", project_fixture.WORLD[:passages])
    make_project(root, questions=1, **BLOCKS, embedders={"lsa": {"preset": "lsa", "dim": 1}})
    assert build(root)["musique/small"]["passages"] == passages
    assert build(root, "longest") and run_project(root, "noted") == {"ok": 1}


def test_an_unknown_structure_is_refused(indexed):
    with pytest.raises(ConfigError, match="unknown structure 'note'; did you mean 'notes'"):
        build(indexed(), "note")


def test_the_command(indexed, serve, monkeypatch, capsys):
    serve(model)
    monkeypatch.chdir(indexed())
    cli.stages.build("notes")
    assert capsys.readouterr().out == "notes musique/small: passages 12, failed 0; 12 live calls\n"


# -- used by a run


def test_a_run_searches_its_index_and_its_records_know_which(indexed, serve):
    serve(model)
    hashes = []
    for tokens in (20, 30):
        entry = BLOCKS["structures"]["notes"] | {"tokens": tokens}
        root = indexed(f"t{tokens}", structures={"notes": entry})
        with pytest.raises(DataError, match=r"longest/musique/small: not there yet"):
            run_project(root, "noted")
        build(root), build(root, "longest")
        assert run_project(root, "noted") == {"ok": 6}
        record = records_of(root, "noted")[0]
        assert record.cited == ("p0",)
        hashes.append(record.params_hash)
    assert hashes[0] != hashes[1], "an option of the index below is part of the record's identity"


def test_a_question_asked_by_hand_searches_the_index_too(indexed, serve, capsys):
    serve(model)
    root = indexed()
    build(root), build(root, "longest")
    in_session(root, asking.ask, text="Who wrote it?", dataset="musique", run="noted", setting="")
    assert "The Lantern Ferry" in capsys.readouterr().out


def other_params(root, **changes):
    write_params(root, params_for(**BLOCKS | changes))


def other_corpus(root, monkeypatch):
    monkeypatch.setattr(project_fixture, "WORLD", [*project_fixture.WORLD[:-1], ("Kelm", "Kelm is a village.")])
    make_project(root, **BLOCKS)


def other_embedder(root, monkeypatch):
    make_project(root, **BLOCKS, embedders={"lsa": {"preset": "lsa", "dim": 5}})


def other_reader(root, monkeypatch):
    other_params(root, readers={"scripted": params_for()["readers"]["scripted"] | {"model": "another"}})


def other_options(root, monkeypatch):
    other_params(root, structures={"notes": {"structure": "notes", "settings": ["small"], "tokens": 21}})


def other_prompt(root, monkeypatch):
    (root / "prompts/notes/note_system.txt").write_text("Write a short note as JSON.")


@pytest.mark.parametrize("change", [other_corpus, other_embedder, other_reader, other_options, other_prompt])
def test_an_index_of_another_make_is_refused(indexed, serve, monkeypatch, change):
    serve(model)
    root = indexed()
    build(root), build(root, "longest")
    assert in_session(root, load, name="longest")
    change(root, monkeypatch)
    for name in ("notes", "longest"):
        with pytest.raises(DataError, match=rf"structures/{name}/.*built from another .*run `dvc repro`"):
            in_session(root, load, name=name)


@pytest.mark.parametrize("text", ["", "{", "{}"])
def test_a_damaged_index_is_refused(indexed, serve, text):
    serve(model)
    root = indexed()
    build(root)
    metas(root)[0].write_text(text)
    with pytest.raises(DataError, match=r"structures/notes/.*(damaged|built from another).*run `dvc repro`"):
        in_session(root, load)


# -- replay


def test_an_index_and_its_run_replay_from_the_recording_alone(indexed, serve, at_home, monkeypatch):
    at_home("live")
    server, root = serve(model), indexed()
    in_session(root, recording.record, questions=2, setting="", out=Path("data/recordings/r.jsonl.zst"))
    run_project(root, "noted")
    first, records = contents(root), records_of(root, "noted")
    assert {row["kind"] for row in read_recording(root / "data/recordings/r.jsonl.zst")} == {
        "response", "value", "vector"
    }  # fmt: skip
    asked = len(server.bodies)
    for folder in root.glob("*/structures"):
        shutil.rmtree(folder)
    make_small_questions(root, 2)
    at_home("replayed", MULTIHOP_LIVE="never")
    build(root), build(root, "longest")
    assert contents(root) == first
    run_project(root, "noted")
    assert records_of(root, "noted") == records[:2] and len(server.bodies) == asked


def make_small_questions(root: Path, count: int) -> None:
    for file in ("questions", "gold"):
        path = root / f"data/prepared/musique/{file}.jsonl"
        jsonl.write(path, list(jsonl.read(path))[:count])


def test_without_a_recording_nothing_is_made_up(indexed, serve, at_home):
    server, root = serve(model), indexed()
    at_home("never", MULTIHOP_LIVE="never")
    with pytest.raises(ReplayMiss):
        build(root)
    assert server.bodies == [] and metas(root) == []


# -- values that steer prompts


def lengths(texts):
    return [len(text) for text in texts]


def test_kept_values_are_made_once_in_order_and_read_after(tmp_path):
    retriever, calls = small_retriever(tmp_path), []

    def make(missing):
        calls.append(list(missing))
        return lengths(missing)

    assert kept(retriever, "length/1", ["bb", "a", "bb"], make) == [2, 1, 2]
    assert kept(retriever, "length/1", ["a", "ccc", "bb"], make) == [1, 3, 2]
    assert calls == [["bb", "a"], ["ccc"]], "each missing key once, in order"
    assert kept(retriever, "length/2", ["a"], lambda missing: [7]) == [7], "another space is another value"
    assert kept(retriever, "length/1", ["a"], lambda missing: [7]) == [1]
    assert kept(retriever, "length/1", [], make) == []


def test_kept_gives_what_a_replay_reads(tmp_path):
    """Not what ``make`` returned: a tuple is a list in JSON, and both must steer the same."""
    retriever = small_retriever(tmp_path)
    assert kept(retriever, "pairs", ["a"], lambda missing: [("x", 1)]) == [["x", 1]]


def test_kept_stores_nothing_where_values_are_missing(tmp_path):
    retriever = small_retriever(tmp_path)
    with pytest.raises(ValueError):
        kept(retriever, "length/1", ["a", "bb"], lambda missing: [1])
    assert retriever.store.get_values("length/1", ["a", "bb"]) == {}


def test_kept_computes_nothing_under_never(tmp_path):
    retriever = small_retriever(tmp_path)
    kept(retriever, "length/1", ["a"], lengths)
    retriever.allow = False
    assert kept(retriever, "length/1", ["a"], lengths) == [1]
    with pytest.raises(ReplayMiss, match="1 values of length/1 are not in the recording and MULTIHOP_LIVE=never"):
        kept(retriever, "length/1", ["a", "bb"], lengths)


# -- plug-ins


def test_structures_are_found_by_name(plugins):
    assert {"notes", "longest", "openie"} <= set(registry.STRUCTURES.names())
    assert not {"base", "registry", "ppr"} & set(registry.STRUCTURES.names())
    with pytest.raises(ConfigError, match="unknown structure 'opnie'; did you mean 'openie'"):
        registry.STRUCTURES.find("opnie")


def test_a_file_without_its_class_is_an_error(plugins):
    (plugins / "structures/hollow.py").write_text("class Other:\n    name = 'other'\n")
    (plugins / "structures/borrowed.py").write_text("from multihop.structures.notes import Notes as borrowed\n")
    importlib.invalidate_caches()
    for name in ("hollow", "borrowed"):
        with pytest.raises(ConfigError, match=f"structures/{name}.py defines no class with name = '{name}'"):
            registry.STRUCTURES.find(name)


def test_every_structure_has_what_the_protocol_asks():
    for name in registry.STRUCTURES.names():
        cls = registry.STRUCTURES.find(name)
        assert issubclass(cls.Params, StructureParams), name
        assert all(callable(getattr(cls, part)) for part in ("estimate", "build", "load")), name
        assert asyncio.iscoroutinefunction(cls.build), name
