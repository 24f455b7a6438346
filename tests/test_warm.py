"""Warming in shards: a partition, nothing asked twice, merged stores replay to the bytes of an unsharded run."""

from __future__ import annotations

import asyncio
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from project_fixture import REPO, records_file, run_project

from multihop import config, jsonl, stages
from multihop.asked import Share
from multihop.entries import read_recording, write_recording
from multihop.errors import ConfigError, DataError, MultihopError
from multihop.scaling import exchange, plan, warming
from multihop.scaling.shards import Shard, chosen, dealt, number
from multihop.session import opened
from multihop.store import Store
from multihop.tables import Merged

RUNS = ("direct", "cot_rag", "executionrag")


# -- shards


def test_shards_are_a_partition():
    ids = [f"q{i}" for i in range(500)]
    parts = [[i for i in ids if Shard(n, 7).holds(i)] for n in range(7)]
    assert sorted(i for part in parts for i in part) == sorted(ids)


def test_shards_are_balanced():
    sizes = [sum(Shard(n, 8).holds(f"2hop__{i}_{i * 7}") for i in range(12_576)) for n in range(8)]
    assert statistics.pstdev(sizes) < 3 * (12_576 / 8) ** 0.5


def test_a_shard_is_the_same_on_every_machine():
    """sha256 by hand: `printf %s q1 | sha256sum` begins with these digits."""
    assert number("q1") == int("c75de8c1b7c3ae52", 16)
    assert [number(q) % 3 for q in ("0", "q1", "q2", "q3", "q4", "q5")] == [0, 1, 2, 1, 2, 0]


def test_a_command_is_for_one_shard_or_for_all():
    assert chosen(None, {}) == [Shard(0, 1)] and len(chosen(3, {})) == 3
    assert chosen(None, {"MULTIHOP_SHARD": "2/3"}) == chosen(3, {"MULTIHOP_SHARD": "2/3"}) == [Shard(2, 3)]
    for value in ("3/3", "1", "-1/3", "a/b", "0/0", "1/3 "):
        with pytest.raises(ConfigError, match=r"MULTIHOP_SHARD=.*from 0 to n - 1"):
            chosen(None, {"MULTIHOP_SHARD": value})
    with pytest.raises(ConfigError, match="disagree"):
        chosen(4, {"MULTIHOP_SHARD": "2/3"})


def test_ids_are_dealt_as_each_shard_would_choose_them():
    ids, shards = [f"q{i}" for i in range(100)], [Shard(2, 3), Shard(0, 3), Shard(1, 4)]
    assert dealt(ids, shards) == [[i for i in ids if shard.holds(i)] for shard in shards]
    assert dealt(iter(ids), [Shard(2, 3)]) == dealt(ids, shards)[:1] and dealt([], shards) == [[], [], []]


def test_a_runs_questions_are_read_once_and_divided_as_for_each_shard_alone(project, at_home, monkeypatch):
    settings = {name: {"reader": "scripted", "embedder": "lsa"} for name in ("small", "other")}
    root = project("project", settings=settings)
    at_home("one")
    read, questions_of = [], stages.questions_of

    def counted(session, run, dataset):
        read.append(run)
        return questions_of(session, run, dataset)

    monkeypatch.setattr(stages, "questions_of", counted)

    async def work(session):
        divided = warming.divided(session, ["direct", "vanilla"], chosen(3, {}), 2)
        assert read == ["direct", "vanilla"]
        expected = [  # as each shard would go through cells and questions by itself
            [
                warming.Chunk(run, "musique", setting, tuple(ids[start : start + 2]))
                for run in ("direct", "vanilla")
                for setting in settings
                for ids in [[q.id for q in questions_of(session, run, "musique") if shard.holds(q.id)]]
                for start in range(0, len(ids), 2)
            ]
            for shard in chosen(3, {})
        ]
        assert divided == expected and sum(map(len, divided)) >= 3 * 2 * 2
        assert [warming.chunks(session, ["direct", "vanilla"], shard, 2) for shard in chosen(3, {})] == divided

    in_project(root, work)


# -- warm, merge, replay


def in_project(root: Path, work):
    async def main():
        async with opened(config.load(root / "params.yaml"), root) as session:
            return await work(session)

    return asyncio.run(main())


def warm(root: Path, shards: list[Shard], size: int = 2) -> dict[str, int]:
    return in_project(root, lambda session: warming.warm(session, RUNS, shards, size))


def exported(store: Store, path: Path) -> int:
    return write_recording(path, store.added())


def export(root: Path, path: Path) -> int:
    async def work(session):
        return exported(session.store, path)

    return in_project(root, work)


def run_and_score(root: Path, name: str) -> dict[str, bytes]:
    """Records of RUNS, and what the judge said of them."""
    for run in RUNS:
        run_project(root, run)

    async def score(session):
        for run in RUNS:
            cell = stages.score_cell_of(session, "musique", "small", run)
            rows = await stages.score_records(session, cell, jsonl.read_records(records_file(root, run)))
            jsonl.write(root / f"{name}-{run}.jsonl", rows)

    in_project(root, score)
    files = [records_file(root, run) for run in RUNS] + [root / f"{name}-{run}.jsonl" for run in RUNS]
    return {f.name.removeprefix(f"{name}-") + f.parent.parent.name: f.read_bytes() for f in files}


def test_shards_on_machines_of_their_own_then_a_replay(project, serve, at_home, tmp_path):
    server = serve()
    at_home("whole")
    whole = project("whole")
    expected = [*run_and_score(whole, "s").values()]
    needed = server.counts.copy()
    server.counts.clear()

    files = []
    for i in range(3):
        root = project(f"machine{i}")
        at_home(f"machine{i}")
        counts = warm(root, [Shard(i, 3)])
        assert counts == ({"ok": n} if (n := counts.total()) else {}) and not records_file(root, "direct").exists()
        files.append(tmp_path / f"shard-{i}.jsonl.zst")
        export(root, files[-1])
    assert server.counts == needed, "every request of the whole run, and none twice"

    root = project("merged")
    at_home("merged", MULTIHOP_LIVE="never")

    async def merge(session):
        return sum((session.store.merge(f) for f in files), Merged())

    done = in_project(root, merge)
    assert done.new == done.read > needed.total() and done.conflicts == 0
    assert [*run_and_score(root, "s").values()] == expected
    assert server.counts == needed, "the replay asked nothing"


def test_warming_again_asks_nothing(three, serve, at_home):
    server = serve()
    root = three("project")
    at_home("one")
    assert warm(root, chosen(2, {}), 1) == {"ok": 3 * len(RUNS)}
    asked = server.counts.total()
    assert warm(root, chosen(2, {}), 1) == {"ok": 3 * len(RUNS)} and server.counts.total() == asked


def test_what_rests_on_an_answer_that_did_not_stay_is_asked_by_one_more_warming(three, serve, at_home, tmp_path):
    """One machine's registers come first, then all that another has, which began with other ones."""
    from scripted_server import for_kind, little_model

    def other(body):
        said = little_model(body)
        return replace(said, content=said.content.replace('"question": "', '"question": "Perhaps: '))

    files = []
    for name, script in (("a", little_model), ("b", for_kind(initialisation=other))):
        serve(script)
        root = three(name)
        at_home(name)
        warm(root, [Shard()])
        files.append(tmp_path / f"{name}.jsonl.zst")
        export(root, files[-1])
    store = Store(tmp_path / "home-merged/store.sqlite")
    registers = [row for row in read_recording(files[0]) if "initialisation" in str(row.get("request"))]
    done = store.take(registers) + store.merge(files[1])
    store.close()
    assert done.conflicts == len(registers) == 3

    server = serve()
    root = three("replayed")
    at_home("merged")
    assert warm(root, [Shard()]) == {"ok": 9}
    assert 0 < server.counts.total() < 36 / 2, "a part of all requests"
    at_home("merged", MULTIHOP_LIVE="never")
    assert run_project(root, "executionrag") == {"ok": 3}


def test_errors_end_the_command_and_are_asked_again(three, serve, at_home, quick_retries):
    from scripted_server import Fail

    root = three("project")
    at_home("errors")
    serve(Fail(400, "odd", "no such thing"))
    with pytest.raises(MultihopError, match=r"9 of 9 answers ended in an error .* asks only those again"):
        warm(root, [Shard()])
    serve()
    assert warm(root, [Shard()]) == {"ok": 9}


def test_a_judgement_without_an_answer_leaves_the_other_chunks(three, serve, at_home, quick_retries):
    """Seven attempts at the first judgement fail; the rest is asked, and the next warming asks that one alone."""
    from scripted_server import Fail, for_kind, in_turn

    root = three("project")
    at_home("one", MULTIHOP_WORKERS="1")
    server = serve(for_kind(judge=in_turn([Fail(503)] * 7)))
    with pytest.raises(MultihopError, match=r"^1 chunks lack judgements; the first: run 'direct' on musique: 1 calls"):
        warm(root, [Shard()], 1)
    needed = len(server.counts)
    server.counts.clear()
    assert warm(root, [Shard()], 1) == {"ok": 9}
    assert server.counts.total() == 1 and needed > 9


def test_where_no_judgement_is_answered_the_command_ends_early(project, serve, at_home, quick_retries):
    from scripted_server import Fail, for_kind

    root = project("project")
    at_home("one")
    server = serve(for_kind(judge=Fail(400, "odd", "no such thing")))
    with pytest.raises(MultihopError, match=r"^5 chunks lack judgements; "):
        warm(root, [Shard()], 1)
    assert len(server.counts) == 5 * 2, "answer and judgement of five questions out of eighteen"


# -- stores on the move


def answer(text: str, **more) -> dict:
    usage = {"prompt_tokens": 5, "completion_tokens": 1, "cached_tokens": 0}
    return {"content": text, "refusal": None, "tool_calls": [], "finish_reason": "stop", "usage": usage} | more


def filled(path: Path, answers: dict[str, str], layers: tuple[Path, ...] = ()) -> Store:
    store = Store(path, layers)
    for question, text in answers.items():
        store.put({"model": "m", "messages": [question]}, answer(text))
    return store


def test_an_export_has_the_stores_own_entries_only(tmp_path):
    first = filled(tmp_path / "a.sqlite", {"q": "a"})
    assert exported(first, tmp_path / "a.jsonl.zst") == 1
    second = filled(tmp_path / "b.sqlite", {"r": "b"}, (tmp_path / "a.jsonl.zst",))
    second.put_values("space", {"v": [1, 2]})
    second.put_vectors("space", {"w": [0.5, 1.0]})
    assert exported(second, tmp_path / "b.jsonl.zst") == 3
    third = Store(tmp_path / "c.sqlite")
    assert third.merge(tmp_path / "b.jsonl.zst") == Merged(3, 3, 0)
    assert third.merge(tmp_path / "b.jsonl.zst") == Merged(3, 0, 0)
    assert [r["kind"] for r in third.added()] == ["response", "value", "vector"]


def test_the_first_answer_stays_and_a_conflict_is_counted(tmp_path):
    other = filled(tmp_path / "b.sqlite", {"q": "other", "same": "x"})
    other.put_values("space", {"v": 2})
    other.put_vectors("space", {"w": [2.0]})
    exported(other, tmp_path / "b.jsonl.zst")
    store = filled(tmp_path / "a.sqlite", {"q": "first", "same": "x"})
    store.put({"model": "m", "messages": ["same"]}, answer("x", fingerprint="another server's"))
    store.put_values("space", {"v": 1})
    store.put_vectors("space", {"w": [1.0]})
    done = store.merge(tmp_path / "b.jsonl.zst")
    assert done == Merged(4, 0, 3) and "3 conflicts" in done.said()
    assert store.get({"model": "m", "messages": ["q"]})["content"] == "first"
    assert store.get_values("space", ["v"]) == {"v": 1}


def test_a_file_that_is_cut_off_is_refused_whole(tmp_path):
    exported(filled(tmp_path / "a.sqlite", {f"q{i}": "a" for i in range(50)}), tmp_path / "a.jsonl.zst")
    data = (tmp_path / "a.jsonl.zst").read_bytes()
    (tmp_path / "cut.jsonl.zst").write_bytes(data[: len(data) // 2])
    store = Store(tmp_path / "b.sqlite")
    with pytest.raises(DataError, match=r"cut\.jsonl\.zst"):
        store.merge(tmp_path / "cut.jsonl.zst")
    assert list(store.added()) == []


def test_what_was_added_since_is_told_in_order_whatever_its_number(tmp_path):
    store = filled(tmp_path / "a.sqlite", {f"q{i}": "a" for i in range(3)})
    since = store.marks()
    for i in range(1203):
        store.put({"model": "m", "messages": [f"new {i}"]}, answer("a"))
    until = store.marks()
    store.put({"model": "m", "messages": ["later"]}, answer("a"))
    rows = list(store.added(since, until))
    assert [r["request"]["messages"][0] for r in rows] == [f"new {i}" for i in range(1203)]
    assert sum(len(list(exchange.unpack(p))) for p in exchange.packs(rows, 500)) == 1203


# -- the plan


def test_the_tables_of_the_page_are_the_commands():
    """After new measurements: `multihop plan --write docs/scaling.md`."""
    page = (REPO / "docs/scaling.md").read_text(encoding="utf-8")
    assert page.split(plan.BEGIN)[1].split(plan.END)[0].strip() == plan.tables(REPO, plan.Assumed()).strip()


def test_hours_are_those_of_the_tightest_limit():
    work = plan.Work("p", "m", Share(calls=6e6, prompt=5e9, completion=1e9), 0.0)
    limits = {"requests_per_minute": 1e4, "tokens_per_minute": 1e7, "seconds_per_call": 1.0, "calls_at_once": 1000}
    assert work.api(plan.Assumed(**limits)) == (10.0, "requests a minute")
    assert work.api(plan.Assumed(**limits | {"tokens_per_minute": 1e6})) == (100.0, "tokens a minute")
    assert work.api(plan.Assumed(**limits | {"calls_at_once": 10})) == (pytest.approx(6e5 / 3600), "calls at once")
    assert work.gpu_hours(plan.Assumed(prompt_rate=5000, output_rate=1000)) == pytest.approx(2e6 / 3600)


def test_assumptions_are_read_or_refused():
    read = plan.Assumed.read(["prompt_rate=5", "gpu_usd_per_hour=0.5"])
    assert read == plan.Assumed(prompt_rate=5, gpu_usd_per_hour=0.5)
    for given in ("prompt_rat=5", "prompt_rate=0", "prompt_rate=fast", "prompt_rate"):
        with pytest.raises(ConfigError, match="--assume"):
            plan.Assumed.read([given])
