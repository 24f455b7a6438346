"""The download stage, against a server on 127.0.0.1 that can break off, refuse, lie and resume."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from multihop.data import archives, download, hub
from multihop.errors import DataError

BODY = json.dumps([{"title": "Lamp", "text": f"Invented passage {n}."} for n in range(400)]).encode()
SHA = hashlib.sha256(BODY).hexdigest()


class Server:
    """Serves ``files`` (path -> bytes). ``faults`` (path -> list) are used up one a request: an int status,
    ("cut", n): announce the whole length, send n bytes and hang up; ("shift", n): send the range n bytes early;
    ("to", address): lead on to there; ("extra", n): n bytes too many; ("mute", n): n bytes, no length; ("hang", n):
    n bytes, then nothing until ``let_go``."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.faults: dict[str, list[Any]] = {}
        self.seen: list[tuple[str, str | None, int]] = []
        self.etags = True
        self.let_go = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None: ...

            def do_GET(self) -> None:
                outer.answer(self)

        self.httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self.httpd.server_port}"
        threading.Thread(target=self.httpd.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path, asked = request.path, request.headers.get("Range")
        fault = self.faults[path].pop(0) if self.faults.get(path) else None
        if isinstance(fault, tuple) and fault[0] == "to":
            self.seen.append((path, asked, 302))
            request.send_response(302)
            request.send_header("Location", fault[1])
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        if isinstance(fault, int) or path not in self.files:
            code = fault or 404
            self.seen.append((path, asked, code))
            request.send_response(code)
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        body = self.files[path]
        etag = f'"{hashlib.sha256(body).hexdigest()[:8]}"' if self.etags else ""
        same = request.headers.get("If-Range") in (None, etag)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and same else 0
        kind, n = fault or ("", 0)
        if start and start >= len(body):
            self.seen.append((path, asked, 416))
            request.send_response(416)
            request.send_header("Content-Range", f"bytes */{len(body)}")
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        start -= n if kind == "shift" else 0
        self.seen.append((path, asked, 206 if start else 200))
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        if etag:
            request.send_header("ETag", etag)
        if kind != "mute":
            request.send_header("Content-Length", str(len(body) - start + (n if kind == "extra" else 0)))
        request.end_headers()
        sent = body[start:][: n if kind in ("cut", "mute", "hang") else None] + b"x" * (n if kind == "extra" else 0)
        request.wfile.write(sent)
        if kind == "hang":
            request.wfile.flush()
            self.let_go.wait(30)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.httpd.shutdown()
    made.httpd.server_close()


class Place:
    def __init__(self, folder: Path, server: Server):
        self.out, self.lock = folder / "raw/musique", folder / "hub.lock.json"
        self.cache, self.server = folder / "cache", server

    def fetch(self, sha256: str | None, *paths: str, attempts: int = 1, **source: str) -> list[Path]:
        sources = [{"url": self.server.base + path, **source} for path in paths]
        table = {"hipporag": {"musique": {"musique.json": {"sha256": sha256, "sources": sources}}}}
        options = {"table": table, "cache": self.cache, "attempts": attempts, "wait_s": 0}
        return download.fetch("hub", "musique", self.out, hub=options, lock_path=self.lock)

    def recorded(self) -> dict[str, Any]:
        return json.loads(self.lock.read_text()) if self.lock.exists() else {}

    def fails(self, words: str, *arguments: Any, **options: Any) -> None:
        with pytest.raises(DataError, match=words):
            self.fetch(*arguments, **options)
        assert not self.out.exists() and not list(self.out.parent.glob(".*"))


@pytest.fixture
def place(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Place:
    server.files["/good"] = BODY
    monkeypatch.setattr(hub, "BLOCK", 100)
    return Place(tmp_path, server)


def test_a_pinned_hash_is_checked_and_the_next_source_tried(place, server):
    server.files["/other"] = BODY[:-1] + b" "
    assert place.fetch(SHA, "/missing", "/other", "/good") == [place.out / "musique.json"]
    assert (place.out / "musique.json").read_bytes() == BODY
    assert [seen[::2] for seen in server.seen] == [("/missing", 404), ("/other", 200), ("/good", 200)]
    assert place.recorded() == {}  # a pinned hash is not recorded again


def test_a_wrong_hash_leaves_nothing_in_place(place, server):
    server.files["/other"] = b"other"
    place.fails(r"(?s)musique.json could not be fetched.*other\n.*sha256 .*expected " + SHA, SHA, "/other")
    assert not [p for p in place.cache.rglob("*") if p.is_file() and p.read_bytes() == b"other"]
    assert place.recorded() == {}


def test_an_unknown_hash_is_recorded_once_and_asserted_ever_after(place, server):
    place.fetch(None, "/good")
    entry = {"sha256": SHA, "bytes": len(BODY), "url": server.base + "/good"}
    assert place.recorded() == {"musique/musique.json": entry}
    server.files["/good"] = BODY + b" "
    with pytest.raises(DataError, match="expected " + SHA):
        place.fetch(None, "/good")
    assert (place.out / "musique.json").read_bytes() == BODY  # what was there before stays
    assert place.recorded() == {"musique/musique.json": entry}
    with pytest.raises(DataError, match=r"recorded as .*, but pinned as 00"):
        place.fetch("00", "/good")


def test_a_truncated_download_fails_and_is_gone_on_with(place, server):
    server.faults["/good"] = [("cut", 1000)]
    place.fails("truncated|broke off", SHA, "/good")
    place.fetch(SHA, "/good")
    assert (place.out / "musique.json").read_bytes() == BODY
    assert server.seen[-1] == ("/good", "bytes=1000-", 206)
    server.faults["/good"] = [("cut", 100), 503, ("cut", 500)]
    place.fetch(SHA, "/good", attempts=4)
    assert server.seen[-1] == ("/good", "bytes=600-", 206)


def test_an_unknown_file_is_gone_on_with_only_if_it_is_still_the_same(place, server):
    server.faults["/good"] = [("cut", 1000)]
    place.fails("truncated|broke off", None, "/good")
    server.files["/good"] = BODY.upper()  # another file now: the server sends all of it
    place.fetch(None, "/good")
    assert (place.out / "musique.json").read_bytes() == BODY.upper()
    assert server.seen[-1] == ("/good", "bytes=1000-", 200)


def test_without_a_hash_or_a_validator_a_download_starts_again(place, server):
    server.etags = False
    server.faults["/good"] = [("cut", 1000)]
    place.fetch(None, "/good", attempts=2)
    assert [seen[1:] for seen in server.seen] == [(None, 200), (None, 200)]


def test_another_part_than_the_one_asked_for_is_never_taken_for_the_file(place, server):
    for sha256 in (SHA, None):
        server.faults["/good"] = [("cut", 1000), ("shift", 500)]
        place.fails("another part", sha256, "/good", attempts=2)
        assert place.recorded() == {}
        place.fetch(sha256, "/good")  # what came first is still good
        assert (place.out / "musique.json").read_bytes() == BODY and server.seen[-1][1] == "bytes=1000-"
        shutil.rmtree(place.out)


def test_what_came_whole_is_not_fetched_again(place, server):
    """Killed between the last byte and the hash: the server says that there is no more."""
    server.faults["/good"] = [("cut", 1000)]
    place.fails("truncated|broke off", None, "/good")
    [part] = place.cache.rglob("*.part")
    part.write_bytes(BODY)
    place.fetch(None, "/good")
    assert server.seen[-1] == ("/good", f"bytes={len(BODY)}-", 416)
    assert (place.out / "musique.json").read_bytes() == BODY


def test_a_new_validator_never_vouches_for_old_bytes(place, server, monkeypatch):
    """Killed after the new file's mark, before its first byte: what is there of the old file must be gone."""
    server.faults["/good"] = [("cut", 1000)]
    place.fails("truncated|broke off", None, "/good")
    server.files["/good"] = BODY.upper()
    write = Path.write_text

    def killed(path, text, *args, **options):
        write(path, text, *args, **options)
        if path.suffix == ".mark":
            raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", killed)
    with pytest.raises(KeyboardInterrupt):
        place.fetch(None, "/good")
    monkeypatch.undo()
    place.fetch(None, "/good")
    assert (place.out / "musique.json").read_bytes() == BODY.upper()


def test_too_much_too_large_or_of_unknown_length(place, server, monkeypatch):
    server.faults["/good"] = [("extra", 5)]
    place.fails("expected " + SHA, SHA, "/good")
    server.faults["/good"] = [("mute", 1000)]
    place.fails("does not say how long", None, "/good")
    server.faults["/good"] = [("mute", 1000)]
    place.fails("expected " + SHA, SHA, "/good")
    monkeypatch.setattr(archives, "LARGEST", 2000)
    place.fails("more came than", SHA, "/good")
    assert place.recorded() == {} and not list(place.cache.rglob("*.part"))


def test_where_an_address_leads_to(place, server, monkeypatch):
    """The hash decides; a page to sign in on is no file; and nothing leads from https to http or to a local file."""
    server.files |= {"/page": b"<html>Sign in</html>"}
    server.faults["/good"] = [("to", server.base + "/page")]
    place.fails("expected " + SHA, SHA, "/good")
    server.faults["/good"] = [("to", server.base + "/page")]
    place.fails("a web page came", None, "/good")
    server.faults["/good"] = [("to", "file:///etc/hosts")]
    place.fails("file:///etc/hosts", SHA, "/good")
    server.faults["/good"] = [("to", server.base + "/good")]
    place.fetch(SHA, "/good")
    get = requests.get
    monkeypatch.setattr(hub.requests, "get", lambda url, **options: get(url.replace("https:", "http:"), **options))
    with pytest.raises(DataError, match="not encrypted"):
        hub.stream(server.base.replace("http:", "https:") + "/good", place.cache / "x.part", False)


def test_a_download_that_is_killed_goes_on(place, server, tmp_path):
    """kill -9 midway: the second try asks for the rest alone, and nothing half is put in place."""
    server.faults["/good"] = [("hang", 2000)]
    pid = os.fork()
    if not pid:
        try:
            place.fetch(SHA, "/good")
        finally:
            os._exit(1)
    deadline = time.monotonic() + 20
    while sum(p.stat().st_size for p in place.cache.rglob("*.part")) < 1900 and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL and not place.out.exists()
    server.let_go.set()
    [part] = place.cache.rglob("*.part")
    came = part.stat().st_size
    assert came >= 1900
    place.fetch(SHA, "/good")
    assert server.seen[-1] == ("/good", f"bytes={came}-", 206)
    assert (place.out / "musique.json").read_bytes() == BODY
    assert not list(place.out.parent.glob(".*")) and not list(place.cache.rglob("*.*"))


def test_what_was_fetched_outlives_a_kill_before_it_is_in_place(place, server, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        place.fetch(SHA, "/good")
    monkeypatch.undo()
    place.fetch(SHA, "/good")
    assert len(server.seen) == 1 and (place.out / "musique.json").read_bytes() == BODY


def test_a_web_page_or_nothing_is_not_recorded(place, server):
    server.files |= {"/page": b"\n<!DOCTYPE html><html>Sign in</html>", "/empty": b""}
    place.fails("a web page came", None, "/page")
    place.fails("an empty file came", None, "/empty")
    assert place.recorded() == {}


def test_an_unreachable_server_names_the_address(place):
    place.server = type("Nowhere", (), {"base": "http://127.0.0.1:9"})()
    place.fails(r"(?s)http://127.0.0.1:9/good.*source: local", SHA, "/good")


def test_all_or_nothing_over_several_files(place, server):
    server.files["/more"] = b"[]"
    files = {
        "musique.json": {"sha256": SHA, "sources": [{"url": server.base + "/good"}]},
        "musique_corpus.json": {"sha256": None, "sources": [{"url": server.base + "/{file}"}]},
    }
    options = {"table": {"official": {"musique": files}}, "release": "official", "cache": place.cache}
    options |= {"attempts": 1, "wait_s": 0}
    with pytest.raises(DataError, match=r"musique_corpus.json could not be fetched"):
        download.fetch("hub", "musique", place.out, hub=options, lock_path=place.lock)
    assert not place.out.exists()
    server.files["/musique_corpus.json"] = b"[]"
    found = download.fetch("hub", "musique", place.out, hub=options, lock_path=place.lock)
    assert [p.name for p in found] == ["musique.json", "musique_corpus.json"]
    assert [seen[0] for seen in server.seen].count(
        "/good"
    ) == 1  # the first file was kept and not asked again


# Archives


def zipped(**members: bytes) -> bytes:
    blob = io.BytesIO()
    with zipfile.ZipFile(blob, "w", zipfile.ZIP_DEFLATED) as z:
        for name, content in members.items():
            z.writestr(name.replace("__", "/"), content)
    return blob.getvalue()


def test_a_member_of_an_archive_whose_hash_is_checked_first(place, server):
    server.files["/zip"] = blob = zipped(data__musique=BODY, rest=b"")
    source = {
        "archive": "all.zip",
        "archive_sha256": hashlib.sha256(blob).hexdigest(),
        "member": "data/musique",
    }
    place.fetch(SHA, "/zip", **source)
    assert (place.out / "musique.json").read_bytes() == BODY
    place.fetch(SHA, "/zip", **source)
    assert len(server.seen) == 1  # the verified archive is kept
    (place.cache / "musique/all.zip").write_bytes(b"spoilt")
    server.files["/zip"] = zipped(data__musique=BODY)
    with pytest.raises(DataError, match=r"all.zip: sha256 .* expected"):
        place.fetch(None, "/zip", **source)
    assert (place.out / "musique.json").read_bytes() == BODY


def test_a_wrong_archive_is_never_opened(place, server, monkeypatch):
    server.files["/zip"] = b"not the archive"
    monkeypatch.setattr(archives, "extract", lambda *_: pytest.fail("opened before it was verified"))
    place.fails("expected 00", None, "/zip", archive="all.zip", archive_sha256="00", member="m")


@pytest.mark.parametrize("name", ["../evil", "/rooted/evil", "a/../../evil", "..\\evil", "C:\\evil", "C:evil"])
def test_an_archive_that_leads_out_of_its_folder_is_refused(tmp_path, name):
    inside = tmp_path / "inside"
    inside.mkdir()
    with zipfile.ZipFile(inside / "a.zip", "w") as z:
        z.writestr("good", b"g")
        z.writestr(name, b"evil")
    with tarfile.open(inside / "a.tar", "w") as t:
        for member in ("good", name):
            t.addfile(tarfile.TarInfo(member))
    for archive in ("a.zip", "a.tar"):
        for member in ("good", name):
            with pytest.raises(DataError, match="leads out of"):
                archives.extract(inside / archive, member, inside / "target")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a.tar", "a.zip", "inside"]


def test_links_damage_and_missing_members(tmp_path):
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as t:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hosts"
        t.addfile(link)
        t.addfile(real := tarfile.TarInfo("real"), io.BytesIO(b""))
        assert real.isfile()
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as z:
        info = zipfile.ZipInfo("link")
        info.external_attr = 0o120777 << 16
        z.writestr(info, "/etc/hosts")
    blob = bytearray(zipped(good=BODY))
    blob[100] ^= 0xFF
    (tmp_path / "bad.zip").write_bytes(blob)
    (tmp_path / "text").write_text("hello")
    for name, member, words in (
        ("a.tgz", "link", "is a link"),
        ("a.zip", "link", "is a link"),
        ("bad.zip", "good", "damaged"),
        ("text", "good", "neither a zip nor a tar"),
        ("a.tgz", "none", "no member 'none'; it holds link, real"),
    ):
        with pytest.raises(DataError, match=words):
            archives.extract(tmp_path / name, member, tmp_path / "target")
        assert not (tmp_path / "target").exists()
    archives.extract(tmp_path / "a.tgz", "real", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == b""


def test_hard_links_devices_and_folders(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as t:
        for name, kind in (("hard", tarfile.LNKTYPE), ("device", tarfile.CHRTYPE), ("pipe", tarfile.FIFOTYPE),
                           ("folder", tarfile.DIRTYPE)):  # fmt: skip
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/hosts"
            t.addfile(member)
    for name in ("hard", "device", "pipe", "folder"):
        with pytest.raises(DataError, match="is a link or folder"):
            archives.extract(tmp_path / "a.tar", name, tmp_path / "target")
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("lie", [False, True])
def test_a_member_that_grows_without_end_is_stopped(tmp_path, monkeypatch, lie):
    """A bomb: little in the archive, much on the disk; and one that declares a small size."""
    monkeypatch.setattr(archives, "LARGEST", 1 << 21)
    blob = bytearray(zipped(bomb=bytes(1 << 24)))
    assert len(blob) < 1 << 15
    if lie:
        at = blob.index(b"PK\x01\x02") + 24  # the central directory's uncompressed size
        blob[at : at + 4] = (100).to_bytes(4, "little")
    (tmp_path / "a.zip").write_bytes(blob)
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as t:
        member = tarfile.TarInfo("bomb")
        member.size = 1 << 24
        t.addfile(member, io.BytesIO(bytes(1 << 24)))
    for name, words in (("a.zip", "damaged" if lie else "is over .* GiB unpacked"), ("a.tgz", "is over .* GiB")):
        with pytest.raises(DataError, match=words):
            archives.extract(tmp_path / name, "bomb", tmp_path / "target")
        assert not (tmp_path / "target").exists()


def test_a_full_disk_is_not_taken_for_a_damaged_archive(tmp_path):
    (tmp_path / "a.zip").write_bytes(zipped(good=bytes(1 << 21)))
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    target = tmp_path / "target"
    target.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        archives.extract(tmp_path / "a.zip", "good", target)
    assert Path("/dev/full").exists() and not target.is_symlink()


# Local folders, the demo, and what is listed


def test_local_takes_the_datasets_folder_first_then_official_samples(tmp_path):
    base, out = tmp_path / "data", tmp_path / "raw/hotpotqa"
    (base / "official").mkdir(parents=True)
    for name in ("hotpot_dev_sample.json", "hotpot_train.json", "musique_dev.jsonl", "hotpot_notes.md"):
        (base / "official" / name).write_text("[]")
    found = download.fetch("local", "hotpotqa", out, local_dir=base)
    assert [p.name for p in found] == ["hotpot_dev_sample.json", "hotpot_train.json"]
    found = download.fetch("local", "musique", tmp_path / "raw/musique", local_dir=base / "official")
    assert [p.name for p in found] == ["musique_dev.jsonl"]
    (base / "hotpotqa").mkdir()
    for name in ("questions.jsonl", "corpus.jsonl", "README.md"):
        (base / "hotpotqa" / name).write_text("{}")
    found = download.fetch("local", "hotpotqa", out, local_dir=base)
    assert [p.name for p in found] == ["corpus.jsonl", "questions.jsonl"]  # and the old files are gone
    with pytest.raises(DataError, match=r"(?s)no questions of 2wiki.*2wikimultihopqa/.*official/2wiki\*"):
        download.fetch("local", "2wikimultihopqa", tmp_path / "raw/2w", local_dir=base)
    with pytest.raises(DataError, match="MULTIHOP_DATA_DIR"):
        download.fetch("local", "musique", out, local_dir=None)
    with pytest.raises(DataError, match="unknown source 'ftp'"):
        download.fetch("ftp", "musique", out)
    with pytest.raises(DataError, match="unknown dataset"):
        download.fetch("demo", "squad", out)


def test_demo_names_the_values_it_lacks(tmp_path):
    with pytest.raises(DataError, match="no value for passages, questions, train_questions"):
        download.fetch("demo", "musique", tmp_path / "raw", demo={"seed": 1})


def test_the_listed_sources_are_complete():
    table = yaml.safe_load(download.SOURCES.read_text(encoding="utf-8"))
    assert set(table) == {"hipporag", "official"}
    for release in table.values():
        assert set(release) == set(download.PREFIXES)
        for files in release.values():
            for name, entry in files.items():
                assert entry["sha256"] is None or len(bytes.fromhex(entry["sha256"])) == 32
                for source in entry["sources"]:
                    assert source["url"].format(file=name).startswith("http")
                    assert ("archive" in source) == ("member" in source) == ("archive_sha256" in source)
    corpus = table["hipporag"]["2wikimultihopqa"]["2wikimultihopqa_corpus.json"]
    assert corpus["sha256"] == "9d6e352952aafb18dab22bf8195039461321a44a949df902ae83bce134ad238a"
    with pytest.raises(DataError, match=r"release 'v9'. Known: hipporag: hotpotqa"):
        download.fetch("hub", "musique", Path("unused"), hub={"release": "v9"})


def test_a_damaged_lock_file_is_an_error(tmp_path):
    (tmp_path / "lock").write_text("{")
    with pytest.raises(DataError, match="restore it"):
        hub.Lock(tmp_path / "lock")
