"""The response store: what a key is made of, layers, recordings, several writers, damaged files."""

from __future__ import annotations

import multiprocessing
import random
import sqlite3
import tracemalloc

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from project_fixture import make_client

from multihop import entries, jsonl
from multihop.entries import Layer, read_recording, request_key, response_row
from multihop.errors import DataError
from multihop.store import Store
from multihop.tables import Merged


def request(text: str = "hello", **changes) -> dict:
    messages = [{"role": "user", "content": text}]
    return {"model": "m", "messages": messages, "temperature": 0.0, "max_tokens": 10, "sample": 0} | changes


def response(text: str = "hi") -> dict:
    return {"content": text, "usage": {"prompt_tokens": 3, "completion_tokens": 1}}


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "store.sqlite")
    yield store
    store.close()


# -- keys


@pytest.mark.parametrize(
    "change",
    [
        {"model": "other"},
        {"messages": [{"role": "system", "content": "hello"}]},
        {"messages": [{"role": "user", "content": "hello "}]},
        {"temperature": 0.7},
        {"max_tokens": 11},
        {"sample": 1},
        {"tools": [{"type": "function"}]},
        {"response_format": {"type": "json_object"}},
    ],
)
def test_every_field_that_changes_the_answer_changes_the_key(store, change):
    store.put(request(), response())
    assert request_key(request()) != request_key(request(**change))
    assert store.get(request(**change)) is None and store.get(request()) == response()


def test_the_order_of_fields_does_not_change_the_key():
    assert request_key(request()) == request_key(dict(reversed(request().items())))


def test_address_key_timeouts_and_workers_are_no_part_of_a_request(tmp_path, monkeypatch):
    """What the client asks the store for is the same whatever the environment says."""
    import asyncio

    keys = set()
    for number, (url, live, workers) in enumerate([("http://a:1/v1", "never", "1"), ("http://b:2/v1", "never", "8")]):
        monkeypatch.setenv("MULTIHOP_SCRIPTED_URL", url)
        monkeypatch.setenv("SOME_KEY", f"secret-{number}")
        client = make_client(
            tmp_path / str(number),
            {"MULTIHOP_LIVE": live, "MULTIHOP_WORKERS": workers},
            endpoint={"key_env": "SOME_KEY"},
        )
        client.store.track()
        with pytest.raises(Exception, match="recording"):
            asyncio.run(client.chat([{"role": "user", "content": "x"}], role="reader"))
        keys |= client.store.touched
        client.store.close()
    assert len(keys) == 1


# -- responses


def test_first_answer_stays(store):
    store.put(request(), response("first"))
    store.put(request(), response("second"))
    assert store.get(request())["content"] == "first"


def test_answers_survive_closing_and_unicode(tmp_path):
    store = Store(tmp_path / "s.sqlite")
    store.put(request("Çelik 日本 😀"), response("ø\u2028x"))
    store.close()
    again = Store(tmp_path / "s.sqlite")
    assert again.get(request("Çelik 日本 😀"))["content"] == "ø\u2028x"


def test_a_key_with_another_request_is_an_error_and_no_answer(store):
    store.put(request(), response())
    other = sqlite3.connect(store.path)
    other.execute("UPDATE responses SET request = ?", (jsonl.dumps(request("another")),))
    other.commit()
    other.close()
    with pytest.raises(DataError, match="holds another request"):
        store.get(request())


# -- vectors


def test_vectors_round_to_half_precision_and_the_first_stays(store):
    store.put_vectors("space", {"a": np.array([0.1, 0.2])})
    store.put_vectors("space", {"a": np.array([9.0, 9.0]), "b": np.array([1.0, 0.0])})
    found = store.get_vectors("space", ["a", "b", "c", "a"])
    assert set(found) == {"a", "b"} and found["a"].dtype == np.dtype("<f2")
    assert found["a"].tolist() == np.array([0.1, 0.2], dtype=np.float16).tolist()
    assert store.get_vectors("other space", ["a"]) == {}


def test_more_vectors_than_one_query_takes(store):
    texts = [f"t{n}" for n in range(1203)]
    store.put_vectors("space", {t: np.array([n % 7]) for n, t in enumerate(texts)})
    assert len(store.get_vectors("space", texts)) == 1203


# -- values


def test_values_of_any_json_come_back_and_the_first_stays(store):
    values = {"a": [["Çelik\u2028", "PERSON"]], "b": {"x": 1.5, "y": None}, "c": [], "d": 0, "e": None, "f": ""}
    store.put_values("space", values)
    store.put_values("space", {"a": "another", "g": True})
    assert store.get_values("space", ["f", "a", "zzz", "a", "b", "c", "d", "e"]) == values
    assert store.get_values("space", ["g"]) == {"g": True} and store.get_values("other", ["a"]) == {}


def test_values_survive_closing(tmp_path):
    store = Store(tmp_path / "s.sqlite")
    store.put_values("space", {"日本 😀": [1]})
    store.close()
    assert Store(tmp_path / "s.sqlite").get_values("space", ["日本 😀"]) == {"日本 😀": [1]}


def test_a_value_that_is_no_json_stores_nothing(store):
    with pytest.raises(TypeError):
        store.put_values("space", {"a": 1, "b": {1, 2}})
    assert store.get_values("space", ["a", "b"]) == {}


def test_a_store_of_an_earlier_version_gets_the_table(tmp_path):
    path = tmp_path / "old.sqlite"
    store = Store(path)
    store.put(request(), response())
    store.close()
    old = sqlite3.connect(path)
    old.execute("DROP TABLE kept")
    old.commit()
    old.close()
    again = Store(path)
    assert again.get(request()) == response() and again.get_values("space", ["a"]) == {}
    again.put_values("space", {"a": 1})
    assert again.get_values("space", ["a"]) == {"a": 1}


# -- recordings


def filled(store: Store) -> Store:
    for n in range(20):
        store.put(request(f"q{n}"), response(f"a{n}"))
        store.put_vectors("space", {f"t{n}": np.array([n, 0.5])})
        store.put_values("names", {f"t{n}": [f"name {n}", n]})
    return store


def test_export_replays_the_same_answers_from_a_layer(store, tmp_path):
    filled(store)
    assert store.export(tmp_path / "r.jsonl.zst") == 60
    replay = Store(tmp_path / "empty.sqlite", [tmp_path / "r.jsonl.zst"])
    for n in range(20):
        assert replay.get(request(f"q{n}")) == response(f"a{n}")
        assert replay.get_vectors("space", [f"t{n}"])[f"t{n}"].tolist() == [n, 0.5]
        assert replay.get_values("names", [f"t{n}", "absent"]) == {f"t{n}": [f"name {n}", n]}
    assert replay.get(request("q99")) is None and replay.get_values("space", ["t0"]) == {}
    assert replay.export(tmp_path / "again.jsonl.zst") == 60
    assert (tmp_path / "again.jsonl.zst").read_bytes() == (tmp_path / "r.jsonl.zst").read_bytes()


def test_a_layer_comes_before_the_file_and_is_never_written(store, tmp_path):
    store.put(request(), response("recorded"))
    store.put_values("names", {"t": "recorded"})
    store.export(tmp_path / "r.jsonl.zst")
    before = (tmp_path / "r.jsonl.zst").read_bytes()
    own = Store(tmp_path / "own.sqlite")
    own.put(request(), response("own"))
    own.put_values("names", {"t": "own"})
    own.close()
    both = Store(tmp_path / "own.sqlite", [tmp_path / "r.jsonl.zst", tmp_path / "absent.jsonl.zst"])
    assert both.get(request())["content"] == "recorded"
    assert both.get_values("names", ["t"]) == {"t": "recorded"}
    assert [r["value"] if r["kind"] == "value" else r["response"]["content"] for r in both.rows()] == ["recorded"] * 2
    both.put(request("new"), response())
    both.put_values("names", {"new": 1})
    assert (tmp_path / "r.jsonl.zst").read_bytes() == before and len(list(both.rows())) == 4


def test_export_is_sorted_and_the_same_whatever_the_order_of_writing(tmp_path):
    files = []
    for order in (range(10), reversed(range(10))):
        store = Store(tmp_path / f"{len(files)}.sqlite")
        for n in order:
            store.put(request(f"q{n}"), response(f"a{n}"))
            store.put_vectors(f"s{n % 2}", {f"t{n}": np.array([n])})
            store.put_values(f"s{n % 2}", {f"t{n}": {"b": n, "a": 0}})
        path = tmp_path / f"{len(files)}.jsonl.zst"
        store.export(path)
        files.append(path.read_bytes())
    assert files[0] == files[1]


def test_merge_keeps_what_is_here_and_adds_the_rest(store, tmp_path):
    filled(store).export(tmp_path / "r.jsonl.zst")
    other = Store(tmp_path / "other.sqlite")
    other.put(request("q0"), response("mine"))
    other.put_values("names", {"t0": "mine"})
    assert other.merge(tmp_path / "r.jsonl.zst") == Merged(60, 58, 2)
    assert other.merge(tmp_path / "r.jsonl.zst") == Merged(60, 0, 2)  # again, as after a kill: nothing more
    assert len(list(other.rows())) == 60
    assert other.get_values("names", ["t0", "t1"]) == {"t0": "mine", "t1": ["name 1", 1]}
    assert other.get(request("q0"))["content"] == "mine" and other.get(request("q1"))["content"] == "a1"


def test_touched_is_what_this_process_used_and_restricts_the_recording(tmp_path):
    filled(Store(tmp_path / "s.sqlite")).close()
    store = Store(tmp_path / "s.sqlite")
    store.get(request("q1"))
    assert store.touched is None  # nothing grows where no recording is made
    store.track()
    store.get(request("q3"))
    store.get(request("absent"))
    store.put(request("new"), response())
    store.get_vectors("space", ["t4"])
    store.put_vectors("space", {"fresh": np.array([1.0])})
    store.get_values("names", ["t5"])
    store.put_values("names", {"fresh": 1})
    assert store.touched == {
        ("value", "names", "t5"),
        ("value", "names", "fresh"),
        ("response", request_key(request("q3"))),
        ("response", request_key(request("absent"))),
        ("response", request_key(request("new"))),
        ("vector", "space", "t4"),
        ("vector", "space", "fresh"),
    }
    store.export(tmp_path / "r.jsonl.zst", keep=store.touched)
    layer = Layer(tmp_path / "r.jsonl.zst")
    assert {r["request"]["messages"][0]["content"] for r in layer.responses.values()} == {"q3", "new"}
    assert set(layer.vectors) == {("space", "t4"), ("space", "fresh")}
    assert layer.values == {("names", "t5"): ["name 5", 5], ("names", "fresh"): 1}


@given(st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"])), st.text(max_size=5)), max_size=5))
@settings(max_examples=15, deadline=None)
def test_any_text_comes_back_from_a_recording(tmp_path_factory, pairs):
    folder = tmp_path_factory.mktemp("any")
    store = Store(folder / "s.sqlite")
    pairs = [(a, b.encode("utf-8", "replace").decode()) for a, b in pairs]
    for asked, answered in pairs:
        store.put(request(asked), response(answered))
    store.export(folder / "r.jsonl.zst")
    replay = Store(folder / "empty.sqlite", [folder / "r.jsonl.zst"])
    assert all(replay.get(request(asked)) == store.get(request(asked)) for asked, _ in pairs)


# -- damage


def recording(tmp_path, name: str = "r") -> bytes:
    path = tmp_path / f"{name}.jsonl.zst"
    store = filled(Store(tmp_path / f"{name}.sqlite"))
    store.export(path)
    store.close()
    return path.read_bytes()


def loads(tmp_path, data: bytes) -> None:
    path = tmp_path / "damaged.jsonl.zst"
    path.write_bytes(data)
    with pytest.raises(DataError, match="damaged"):
        Layer(path)


def test_a_file_that_is_no_recording(tmp_path):
    loads(tmp_path, b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(DataError, match="absent"):
        list(read_recording(tmp_path / "absent.jsonl.zst"))


def test_a_flipped_byte(tmp_path):
    data = bytearray(recording(tmp_path))
    data[len(data) // 2] ^= 255
    loads(tmp_path, bytes(data))


def test_a_line_that_is_not_json(tmp_path):
    loads(tmp_path, zstandard.compress(b'{"kind":"response"\n'))


@pytest.mark.parametrize("keep", [0.0, 0.25, 0.5, 0.9, 0.999])
def test_a_recording_that_is_cut_off(tmp_path, keep):
    data = recording(tmp_path)
    loads(tmp_path, data[: int(len(data) * keep)])


@pytest.mark.parametrize(
    "row",
    [
        b'{"a":1}',
        b"[1]",
        b"\xff\xfe",
        b'{"kind":"response","request":{}}',
        b'{"kind":"vector","space":"s","text":"t","vector":"%%%%"}',
        b'{"kind":"vector","space":"s","text":"t"}',
        b'{"kind":"value","space":"s","text":"t"}',
        b'{"kind":"value","space":"s","value":1}',
    ],
)
def test_a_row_that_is_no_entry(tmp_path, row):
    loads(tmp_path, zstandard.compress(row + b"\n"))


def test_a_store_file_that_is_no_database(tmp_path):
    path = tmp_path / "store.sqlite"
    path.write_bytes(b"not a database, but long enough to be looked at " * 100)
    with pytest.raises(DataError, match=r"store\.sqlite"):
        Store(path)


def test_a_damaged_recording_is_refused_before_any_entry_is_taken(store, tmp_path):
    data = recording(tmp_path)
    (tmp_path / "cut.jsonl.zst").write_bytes(data[: len(data) * 9 // 10])
    with pytest.raises(DataError, match="damaged"):
        store.merge(tmp_path / "cut.jsonl.zst")
    (tmp_path / "two.jsonl.zst").write_bytes(data + data)
    with pytest.raises(DataError, match="more follows"):
        store.merge(tmp_path / "two.jsonl.zst")
    assert list(store.rows()) == []


def test_check_finds_another_request_under_a_key_and_a_damaged_page(tmp_path):
    store = filled(Store(tmp_path / "s.sqlite"))
    assert store.check() == 60
    other = sqlite3.connect(store.path)
    other.execute("UPDATE responses SET request = ? WHERE rowid = 7", (jsonl.dumps(request("another")),))
    other.commit()
    with pytest.raises(DataError, match="holds another request"):
        store.check()
    store.close(), other.close()
    data = bytearray(store.path.read_bytes())
    for place in range(4096, len(data), 4096):
        data[place : place + 8] = b"\xff" * 8
    store.path.write_bytes(data)
    with pytest.raises(DataError, match="damaged"):
        Store(store.path).check()


def test_a_full_disk_stops_the_command_and_keeps_what_is_stored(store):
    filled(store)
    store._db.execute("PRAGMA max_page_count=1")  # as many as it has
    with pytest.raises(DataError, match="full; make room on the disk"):
        for n in range(2000):
            store.put(request(f"more {n}"), response("x" * 500))
    with pytest.raises(DataError, match="full"):
        store.put_values("space", {f"t{n}": "x" * 500 for n in range(2000)})
    assert store.get(request("q7")) == response("a7") and store.check() >= 60


# -- many entries


def test_a_large_recording_is_written_and_read_in_parts(store, tmp_path, monkeypatch):
    filled(store).export(tmp_path / "small.jsonl.zst")
    monkeypatch.setattr(entries, "HELD", 1000)
    assert store.export(tmp_path / "large.jsonl.zst") == 60
    assert list(read_recording(tmp_path / "large.jsonl.zst")) == list(read_recording(tmp_path / "small.jsonl.zst"))
    first = (tmp_path / "large.jsonl.zst").read_bytes()
    store.export(tmp_path / "large.jsonl.zst")
    assert (tmp_path / "large.jsonl.zst").read_bytes() == first != (tmp_path / "small.jsonl.zst").read_bytes()


def _kept(work) -> int:
    """The most bytes that were held at once."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_export_and_merge_hold_a_few_entries_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(entries, "HELD", 10_000)
    monkeypatch.setattr("multihop.store.BATCH", 50)
    most = {}
    for count in (500, 2000):
        store, path = Store(tmp_path / f"{count}.sqlite"), tmp_path / f"{count}.jsonl.zst"
        texts = (random.Random(n).randbytes(300).hex() for n in range(count))
        store.take(response_row(request(f"q{n}"), response(text)) for n, text in enumerate(texts))
        other = Store(tmp_path / f"{count}-other.sqlite")
        most[count] = [_kept(lambda s=store, p=path: s.export(p)), _kept(lambda o=other, p=path: o.merge(p))]
        assert other.check() == count
    assert all(large < small + 1500 * 200 for small, large in zip(most[500], most[2000], strict=True)), most


# -- several processes


def _write(path, first: int, count: int, start) -> None:
    start.wait()
    store = Store(path)
    for n in range(first, first + count):
        store.put(request(f"q{n}"), response(f"from {first}"))
        store.put_vectors("space", {f"t{n}": np.array([n])})
        store.put_values("space", {f"t{n}": first})
    store.close()


def test_two_processes_lose_and_double_nothing(tmp_path):
    path, context = tmp_path / "shared.sqlite", multiprocessing.get_context("fork")
    start = context.Event()
    writers = [context.Process(target=_write, args=(path, first, 60, start)) for first in (0, 30)]
    for writer in writers:
        writer.start()
    start.set()
    for writer in writers:
        writer.join(30)
    assert [w.exitcode for w in writers] == [0, 0]
    store = Store(path)
    asked = [row["request"]["messages"][0]["content"] for row in store.rows() if row["kind"] == "response"]
    assert sorted(asked) == sorted(f"q{n}" for n in range(90))
    assert len(store.get_vectors("space", [f"t{n}" for n in range(90)])) == 90
    assert len(store.get_values("space", [f"t{n}" for n in range(90)])) == 90
    for n in range(90):
        assert store.get(request(f"q{n}"))["content"] in ("from 0", "from 30")


def _open_once(path, start) -> None:
    start.wait()
    Store(path).close()


def test_several_processes_may_create_the_store_at_once(tmp_path):
    context = multiprocessing.get_context("fork")
    for attempt in range(3):
        start = context.Event()
        several = [context.Process(target=_open_once, args=(tmp_path / f"{attempt}.sqlite", start)) for _ in range(6)]
        for process in several:
            process.start()
        start.set()
        for process in several:
            process.join(30)
        assert [p.exitcode for p in several] == [0] * 6


def test_a_failed_write_leaves_the_store_usable(store):
    with pytest.raises(UnicodeEncodeError):
        store.put_vectors("space", {"a": np.array([1.0]), "\ud83d": np.array([1.0])})
    store.put_vectors("space", {"b": np.array([1.0])})
    assert "b" in store.get_vectors("space", ["b"])
