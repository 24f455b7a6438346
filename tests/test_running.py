"""A run as a whole: the same records whatever the order, workers and replays; errors are retried, never answers."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tracemalloc

import pytest
from project_fixture import (
    QUESTIONS,
    REPO,
    URL_ENV,
    FakeClient,
    gold_row,
    params_for,
    prompts_of,
    records_file,
    records_of,
    run_project,
)
from scripted_server import DROP, OVERFLOW, Fail, Say, little_model, question_of

from multihop import config, jsonl, running, stages
from multihop.analysis import failures
from multihop.environment import Environment
from multihop.errors import ConfigError, DataError, EndpointError, MultihopError, ReplayMiss
from multihop.evaluation import score
from multihop.session import Session, opened
from multihop.store import Store
from multihop.types import Answer, Question

pytestmark = pytest.mark.usefixtures("quick_retries")
METHODS = ["direct", "vanilla", "cot_rag", "arag", "executionrag"]


def failing(outcome, *texts: str):
    """The little model, except for questions that hold one of ``texts``."""

    def script(body):
        return outcome if any(t in question_of(body) for t in texts) else little_model(body)

    return script


# -- the same records


def records_bytes(root) -> dict[str, bytes]:
    """Answer every method's run; the bytes of their records."""
    for method in METHODS:
        assert run_project(root, method) == {"ok": 3}
    return {method: records_file(root, method).read_bytes() for method in METHODS}


def test_workers_and_order_do_not_change_a_byte(three, serve, at_home):
    server = serve()
    root, other = three("one"), three("eight")
    rows = list(jsonl.read(other / "data/prepared/musique/questions.jsonl"))
    jsonl.write(other / "data/prepared/musique/questions.jsonl", reversed(rows))
    at_home("one", MULTIHOP_WORKERS="1")
    alone = records_bytes(root)
    at_home("eight", MULTIHOP_WORKERS="8")
    server.delay = 0.01
    assert records_bytes(other) == alone
    assert [(r.qid, r.seed) for r in records_of(root, "arag")] == [("0", 0), ("q1", 0), ("q2", 0)]
    assert set(server.counts.values()) == {2}  # each store asked once


def test_a_second_run_asks_nothing_and_writes_the_same(project, serve):
    server, root = serve(), project()
    run_project(root, "executionrag")
    before, asked = records_file(root, "executionrag").read_bytes(), len(server.bodies)
    shutil.rmtree(root / "results")
    run_project(root, "executionrag")
    assert records_file(root, "executionrag").read_bytes() == before and len(server.bodies) == asked


def test_a_recording_replays_without_model_or_key(project, serve, at_home, monkeypatch, tmp_path):
    serve()
    root = project()
    at_home("live")
    run_project(root, "executionrag")
    before = records_file(root, "executionrag").read_bytes()
    store = Store(tmp_path / "home-live/store.sqlite")
    store.export(root / "data/recordings/demo.jsonl.zst")
    shutil.rmtree(root / "results")
    monkeypatch.delenv(URL_ENV)
    at_home("replay", MULTIHOP_LIVE="never")
    run_project(root, "executionrag")
    assert records_file(root, "executionrag").read_bytes() == before
    logs = [row for path in (tmp_path / "home-replay/logs").glob("*.jsonl") for row in jsonl.read(path)]
    assert logs and not any(row["live"] for row in logs)


def test_shuffled_gold_changes_no_record(three, serve, at_home):
    serve()
    plain, shuffled = three("plain"), three("shuffled")
    gold = shuffled / "data/prepared/musique/gold.jsonl"
    ids = [row["id"] for row in jsonl.read(gold)]
    answers = [QUESTIONS[q][1] for q in ids]
    rows = [
        gold_row(q, a) | {"type": "x", "hops": 4, "supporting": ["p9"]}
        for q, a in zip(ids, answers[1:] + answers[:1], strict=True)
    ]
    jsonl.write(gold, rows)
    at_home("plain")
    expected = records_bytes(plain)
    at_home("shuffled")
    assert records_bytes(shuffled) == expected
    gold.unlink()
    shutil.rmtree(shuffled / "results")
    assert records_bytes(shuffled) == expected


def test_seeds_are_an_axis_of_a_run(project, serve):
    server = serve()
    warm = {"endpoint": "scripted", "model": "scripted", "max_tokens": 300, "context": 8000, "temperature": 1.0}
    root = project(
        seeds=[3, 0],
        readers={"scripted": warm},
        runs={"direct": {"method": "direct"}, "one": {"method": "direct", "seeds": [7], "questions": 2}},
    )
    assert run_project(root, "direct") == {"ok": 12}
    assert [(r.qid, r.seed) for r in records_of(root, "direct")] == [(q, s) for q in sorted(QUESTIONS) for s in (0, 3)]
    assert {b["seed"] for b in server.bodies} == {0, 3}
    run_project(root, "one")
    assert [(r.qid, r.seed) for r in records_of(root, "one")] == [("0", 7), ("q1", 7)]


def test_records_read_back(project, serve):
    serve()
    root = project()
    run_project(root, "executionrag")
    lines = records_file(root, "executionrag").read_text(encoding="utf-8").splitlines()
    assert [jsonl.dumps(r.to_json()) for r in records_of(root, "executionrag")] == lines
    first = records_of(root, "executionrag")[0]
    assert (first.qid, first.dataset, first.setting, first.run) == ("0", "musique", "small", "executionrag")
    assert first.question == QUESTIONS["0"][0] and set(first.usage) == {"reader", "register"}


def test_params_hash_follows_what_changes_a_record_and_nothing_else(project, serve, monkeypatch):
    serve()

    def hash_of(name: str, **changes) -> str:
        runs = {"x": {"method": "vanilla", "k": 3}} | changes.pop("runs", {})
        root = project(name, runs=runs, **changes)
        if text := changes.get("profile", "").removeprefix("prompt:").strip():
            (root / "prompts").unlink()
            shutil.copytree(REPO / "prompts", root / "prompts")
            (root / "prompts/shared" / f"{text}.txt").write_text("Changed. {passages} {question}")
        run_project(root, "x")
        return records_of(root, "x")[0].params_hash

    base = hash_of("base")
    monkeypatch.setenv("MULTIHOP_WORKERS", "3")
    same = [
        hash_of("label", runs={"x": {"method": "vanilla", "k": 3, "label": "named"}}),
        hash_of("other-run", runs={"y": {"method": "direct"}}),
        hash_of("statistics", statistics={"resamples": 10}),
    ]
    reader = params_for()["readers"]["scripted"]
    other = [
        hash_of("k", runs={"x": {"method": "vanilla", "k": 2}}),
        hash_of("temperature", readers={"scripted": reader | {"temperature": 0.5}}),
        hash_of("form", endpoints={"scripted": {"url_env": URL_ENV, "structured": "json_object"}}),
        hash_of("prompt", profile="prompt: reader_user"),
    ]
    assert set(same) == {base} and base not in other and len(set(other)) == len(other)


def test_the_random_generator_depends_on_run_seed_and_question_alone():
    drawn = []

    class Draws:
        name, params = "draws", None

        async def answer(self, question, tools):
            drawn.append((question.id, tools.seed, tools.rng.random()))
            return Answer("x", "answered")

    async def work():
        for qid, seed in (("a", 0), ("b", 0), ("a", 1), ("a", 0)):
            cell = running.Cell("r", "d", "s", Draws(), FakeClient(), None, prompts_of("direct"), "", "")
            await cell.answer(Question(qid, "?"), seed)

    asyncio.run(work())
    assert drawn[0] == drawn[3] and len({value for *_, value in drawn}) == 3


# -- memory


class Wordy:
    """A method whose records are large: some 20 kB."""

    name, params = "wordy", None

    async def answer(self, question, tools):
        for n in range(5):
            tools.trace.event(n, "said", text=f"{question.id} {n} " * 500)
        await asyncio.sleep(0)
        return Answer("x", "answered")


def test_what_a_run_holds_does_not_grow_with_its_questions(tmp_path):
    def most(count: int) -> int:
        cell = running.Cell("r", "d", "s", Wordy(), FakeClient(), None, prompts_of("direct"), "", "")
        jobs = ((Question(f"q{n:05}", "?"), 0) for n in reversed(range(count)))
        target = tmp_path / f"{count}.jsonl"
        tracemalloc.start()
        with running.Spool(target) as spool:
            asyncio.run(running._answer_all(cell, jobs, 8, running.Progress("x", count), spool.add))
            spool.finish()
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        ids = [row["qid"] for row in jsonl.read(target)]
        assert ids == sorted(ids) and len(ids) == count
        assert target.stat().st_size > count * 20_000
        return held

    most(10)  # imports
    assert most(400) - most(50) < 350 * 1000  # bytes; a record has more than 20 times as many


def test_a_run_that_fails_leaves_no_file(project, serve):
    serve(lambda body: Fail(400, "odd"))
    root = project()
    with pytest.raises(MultihopError, match="first 5"):
        run_project(root, "direct")
    assert [p for p in (root / "results/runs").rglob("*") if p.is_file()] == []


def test_the_side_log_is_written_in_blocks(project, serve, monkeypatch):
    serve()
    monkeypatch.setenv("MULTIHOP_WORKERS", "1")
    monkeypatch.setattr(running, "LOG_BLOCK", 2)
    waiting, written, real = [], [], Session.side_log

    def noted(session, name, least=0):
        real(session, name, least)
        waiting.append(len(session.log.rows))
        log = session.root / session.env.home / f"logs/{name}.jsonl"
        written[:] = jsonl.read(log) if log.exists() else []

    monkeypatch.setattr(Session, "side_log", noted)
    root = project()
    run_project(root, "direct")
    assert waiting == [1, 0, 1, 0, 1, 0, 0]
    assert len(written) == 6


def test_scores_and_categories_look_at_no_other_events(project, serve):
    serve()
    root = project()
    run_project(root, "executionrag")
    path = records_file(root, "executionrag")

    async def scored(events) -> list:
        async with opened(config.load(root / "params.yaml"), root) as session:
            cell = stages.score_cell_of(session, "musique", "small", "executionrag")
            records = jsonl.read_records(path, events)
            rows = await stages.score_records(session, cell, records)
            return [len(records[0].events), rows, failures.classify_cell(records, rows, cell.gold, cell.chunks)]

    (many, *whole), (few, *part) = asyncio.run(scored(None)), asyncio.run(scored({*score.EVENTS, *failures.EVENTS}))
    assert part == whole and whole[1] and few < many


# -- statuses and errors


def test_statuses_are_counted_and_only_errors_count_as_errors(project, serve):
    script = failing(Say(None, refusal="No."), "Lantern")
    serve(
        lambda body: (
            OVERFLOW if "buried" in question_of(body) else Say(None) if "taught" in question_of(body) else script(body)
        )
    )
    root = project()
    assert run_project(root, "vanilla") == {"refused": 2, "budget": 1, "invalid_output": 1, "ok": 2}
    assert all(r.answer == "" and r.error is None for r in records_of(root, "vanilla") if r.status != "ok")


@pytest.mark.parametrize("outcome", [Fail(500), Fail(400, "odd", "no idea"), Fail(429, "rate_limit")])
def test_an_error_is_recorded_retried_and_never_an_answer(project, serve, monkeypatch, at_home, outcome):
    monkeypatch.setattr("multihop.llm.endpoints.RETRIES", 1)
    clean = project("clean")
    server = serve()
    at_home("clean")
    run_project(clean, "arag")
    root = project()
    at_home("errors")
    server.script = failing(outcome, "Oda Wren buried")
    with pytest.raises(MultihopError, match=r"run arag: 1 of 6 questions.*same command again"):
        run_project(root, "arag")
    [row] = [r for r in records_of(root, "arag") if r.status == "error"]
    assert (row.qid, row.answer, row.stop_reason) == ("q3", "", "error") and row.error
    server.script = little_model
    asked = len(server.bodies)
    assert run_project(root, "arag") == {"ok": 6}
    assert {question_of(b) for b in server.bodies[asked:]} == {QUESTIONS["q3"][0]}  # nothing else is asked again
    assert records_file(root, "arag").read_bytes() == records_file(clean, "arag").read_bytes()


def test_a_share_of_errors_that_params_allow(project, serve):
    serve(failing(Fail(400, "odd"), "buried"))
    root = project(max_error_share=0.2)
    assert run_project(root, "direct") == {"ok": 5, "error": 1}
    with pytest.raises(MultihopError, match=r"max_error_share is 0.1"):
        run_project(project("strict", max_error_share=0.1), "direct")


def test_the_first_five_all_failing_stop_the_run(project, serve, monkeypatch):
    server = serve(lambda body: Fail(400, "odd", "this server is broken"))
    monkeypatch.setenv("MULTIHOP_WORKERS", "1")
    root = project()
    said = r"first 5 questions all failed: NoAnswer.*turns the request down.*this server is broken"
    with pytest.raises(MultihopError, match=said):
        run_project(root, "direct")
    assert len(server.bodies) == 5 and not records_file(root, "direct").exists()


@pytest.mark.parametrize("problem", ["key", "model", "address", "drop"])
def test_what_concerns_the_whole_run_stops_it_with_one_line(project, serve, monkeypatch, problem):
    options = {"key": {"key": "right"}, "model": {"models": ("x",)}}.get(problem, {})
    server = serve(lambda body: DROP, **options)
    monkeypatch.setattr("multihop.llm.endpoints.RETRIES", 0)
    monkeypatch.setenv("MULTIHOP_WORKERS", "2")
    if problem == "address":
        monkeypatch.setenv(URL_ENV, "http://127.0.0.1:9/v1")
    root = project()
    # A connection that breaks could be this question's: the first five say that it is not.
    with pytest.raises(MultihopError if problem == "drop" else EndpointError) as error:
        run_project(root, "arag")
    assert "\n" not in str(error.value) and "scripted" in str(error.value)
    assert len(server.bodies) <= (6 if problem == "drop" else 2) and not records_file(root, "arag").exists()


def test_a_miss_stops_with_one_line_and_keeps_every_answer(project, serve, monkeypatch, tmp_path):
    server = serve()
    root = project(runs={"some": {"method": "direct", "questions": 3}, "all": {"method": "direct"}})
    run_project(root, "some")
    kept = records_file(root, "some").read_bytes()
    monkeypatch.setenv("MULTIHOP_LIVE", "never")
    assert run_project(root, "some") == {"ok": 3}
    with pytest.raises(ReplayMiss) as error:
        run_project(root, "all")
    message = str(error.value)
    assert "\n" not in message and "make model" in message and "OPENAI_API_KEY" in message
    assert not records_file(root, "all").exists() and records_file(root, "some").read_bytes() == kept
    monkeypatch.setenv("MULTIHOP_LIVE", "auto")
    assert run_project(root, "all") == {"ok": 6} and set(server.counts.values()) == {1}


def test_the_command_line_prints_errors_as_one_line(project, serve, monkeypatch, capsys):
    from multihop import cli

    serve(key="right")
    monkeypatch.chdir(project())
    monkeypatch.setattr(sys, "argv", ["multihop", "run", "direct"])
    with pytest.raises(SystemExit) as exit_code:
        cli.main()
    out, err = capsys.readouterr()
    assert exit_code.value.code == 1 and out == ""
    assert err == "multihop: endpoint 'scripted' refuses the key: check the key\n"


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("data/index/musique/lsa-passages/meta.json", "run the index stage"),
        ("data/prepared/musique/questions.jsonl", "no such file"),
        ("data/prepared/musique/chunks/passages.jsonl", "no such file"),
    ],
)
def test_missing_inputs_are_named(project, serve, broken, message):
    server, root = serve(), project()
    (root / broken).unlink()
    with pytest.raises(DataError, match=message):
        run_project(root, "vanilla")
    assert server.bodies == []


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"id": "0", "text": "again"}', "repeated ('0')"),
        ('{"id": "q9"}', "row 7"),
        ('{"id": "q9", "text": "x", "gold": "y"}', "row 7"),
        ("not json", "line 7: not JSON"),
        (b'{"id": "q9", "text": "\xff"}', "line 7: not UTF-8"),
        ("[]", "line 7: expected a JSON object"),
    ],
)
def test_malformed_questions_are_named_with_their_line(project, serve, row, message):
    root = project()
    with (root / "data/prepared/musique/questions.jsonl").open("ab") as f:
        f.write((row if isinstance(row, bytes) else row.encode()) + b"\n")
    serve()
    with pytest.raises(DataError) as error:
        run_project(root, "direct")
    assert message in str(error.value)


def test_progress_goes_to_standard_error_with_the_time_left(project, serve, monkeypatch, capsys):
    serve()
    monkeypatch.setattr(running.Progress.__init__, "__defaults__", (0.0,))
    run_project(project(), "direct")
    out, err = capsys.readouterr()
    assert out == "" and "direct musique small: 6/6, about 0 min left" in err


def test_keys_and_addresses_are_checked_before_a_download(project, monkeypatch):
    """The hub profile downloads gigabytes first; a missing key is said before that."""
    root = project(source="hub")
    monkeypatch.delenv(URL_ENV, raising=False)
    session = Session(config.load(root / "params.yaml"), Environment.read({"MULTIHOP_HOME": str(root / "home")}), root)
    with pytest.raises(ConfigError, match=rf"{URL_ENV} \(reader scripted\) before anything is downloaded"):
        stages.download(session, "musique")
    monkeypatch.setenv(URL_ENV, "http://127.0.0.1:9/v1")
    stages.check_access(session)
    session.store.close()
