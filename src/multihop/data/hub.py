"""Verified downloads: streamed, resumed, checked against a hash before anything is opened or put in place.

A hash comes from sources.yaml (pinned) or from the lock file (recorded at the first download). Finished
archives and broken-off downloads are kept in a cache folder, so a second try moves only what is missing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from pathlib import Path
from typing import Any

import requests
import tenacity

from multihop import jsonl
from multihop.data import archives
from multihop.errors import DataError

log = logging.getLogger(__name__)
TIMEOUT = (15, 60)
"""Seconds to connect, and without any byte."""
BLOCK = 1 << 16
"""Bytes written at once; a break loses at most so many."""


class Broken(Exception):
    """A download broke off or the server failed: worth another try."""


def download_all(
    dataset: str, files: dict[str, Any], folder: Path, options: dict[str, Any], lock_path: Path
) -> list[Path]:
    """Put every file of ``files`` (name -> {sha256, sources}) into ``folder``, once all are there and right.

    Returns them in the cache, where they stay until the caller has ``folder`` in place and removes them. Raises
    DataError naming every address tried and how it failed.
    """
    cache = Path(options.get("cache") or lock_path.parent / "downloads") / dataset
    cache.mkdir(parents=True, exist_ok=True)
    attempts, wait_s = int(options.get("attempts", 4)), float(options.get("wait_s", 1.0))
    getter = Getter(dataset, cache, Lock(lock_path), attempts, wait_s)
    found = [getter.get(name, entry) for name, entry in files.items()]
    for path in found:
        try:
            os.link(path, folder / path.name)
        except OSError:  # another file system, or one without links
            shutil.copyfile(path, folder / path.name)
    return found


class Lock:
    """Hashes of files that no hash is known of: recorded once, asserted ever after."""

    def __init__(self, path: Path):
        self.path = path
        try:
            self.entries = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        except json.JSONDecodeError as e:
            raise DataError(f"{path}: not JSON ({e}); restore it from version control") from e

    def expected(self, key: str, pinned: str | None) -> str | None:
        recorded = self.entries.get(key, {}).get("sha256")
        if pinned and recorded and pinned != recorded:
            raise DataError(f"{self.path}: {key} is recorded as {recorded}, but pinned as {pinned}")
        return pinned or recorded

    def record(self, key: str, sha256: str, size: int, url: str) -> None:
        self.entries[key] = {"sha256": sha256, "bytes": size, "url": url}
        jsonl.write_json(self.path, self.entries)


class Getter:
    """Fetches the files of one dataset into its cache folder."""

    def __init__(self, dataset: str, cache: Path, lock: Lock, attempts: int, wait_s: float):
        self.dataset, self.cache, self.lock = dataset, cache, lock
        self.attempts, self.wait_s = attempts, wait_s

    def get(self, name: str, entry: dict[str, Any]) -> Path:
        """The verified file in the cache, from the first source that gives it with the right hash."""
        target, pinned, failures = self.cache / name, entry.get("sha256"), []
        if self._have(target, pinned):
            return target
        for source in entry["sources"]:
            source = {k: v.format(file=name) for k, v in source.items()}
            try:
                if "archive" in source:
                    self._unpack(source, target, pinned)
                else:
                    self._fetch(source["url"], target, pinned)
                return target
            except (DataError, Broken, requests.RequestException) as e:
                log.warning("%s: %s", source["url"], e)
                failures.append(f"\n  {source['url']}\n    {e}")
        raise DataError(
            f"{name} could not be fetched; nothing was put in place. Tried:{''.join(failures)}\n"
            f"Check the network, or put the file into a folder yourself and use `source: local`."
        )

    def _have(self, path: Path, pinned: str | None) -> bool:
        wanted = self.lock.expected(self._key(path), pinned)
        return wanted is not None and path.is_file() and jsonl.file_sha256(path) == wanted

    def _key(self, path: Path) -> str:
        return f"{self.dataset}/{path.name}"

    def _unpack(self, source: dict[str, str], target: Path, pinned: str | None) -> None:
        archive, archive_pinned = self.cache / source["archive"], source.get("archive_sha256")
        if not self._have(archive, archive_pinned):
            self._fetch(source["url"], archive, archive_pinned)
        temporary = target.with_name(f"{target.name}.unpacked")
        archives.extract(archive, source["member"], temporary)
        self._accept(temporary, target, pinned, f"{source['url']} ({source['member']})")

    def _fetch(self, url: str, target: Path, pinned: str | None) -> None:
        part = target.with_name(f"{target.name}.{hashlib.sha256(url.encode()).hexdigest()[:8]}.part")
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(self.attempts),
            wait=tenacity.wait_exponential(multiplier=self.wait_s, max=30),
            retry=tenacity.retry_if_exception_type((Broken, requests.ConnectionError, requests.Timeout)),
            reraise=True,
        )
        retrying(stream, url, part, self.lock.expected(self._key(target), pinned) is not None)
        self._accept(part, target, pinned, url)

    def _accept(self, path: Path, target: Path, pinned: str | None, origin: str) -> None:
        """Move ``path`` to ``target`` if its hash is the expected one or the first seen, else delete it."""
        found, size = jsonl.file_sha256(path), path.stat().st_size
        wanted = self.lock.expected(self._key(target), pinned)
        problem = ""
        if wanted and found != wanted:
            problem = f"sha256 {found} ({size} bytes), expected {wanted}; deleted"
        elif not wanted and (not size or _is_web_page(path)):
            problem = "a web page came instead of the file" if size else "an empty file came"
        if problem:
            path.unlink()
            raise DataError(f"{target.name}: {problem}")
        if not wanted:
            self.lock.record(self._key(target), found, size, origin)
        path.replace(target)


def _is_web_page(path: Path) -> bool:
    with path.open("rb") as f:
        return f.read(200).lstrip().lower().startswith((b"<!doctype html", b"<html"))


def stream(url: str, part: Path, trusted: bool) -> None:
    """Download ``url`` to ``part``, going on where an earlier try broke off.

    Going on is safe when the hash is known (``trusted``) or the server vouches that the file is still the
    same (ETag or Last-Modified in If-Range). Raises Broken when fewer bytes came than were announced, DataError for
    an answer that can't be trusted.
    """
    mark = part.with_suffix(".mark")
    have = part.stat().st_size if part.is_file() else 0
    vouched = mark.read_text(encoding="utf-8") if mark.is_file() else ""
    headers = {"Accept-Encoding": "identity"}
    if have and (vouched or trusted):
        headers["Range"] = f"bytes={have}-"
        if vouched:
            headers["If-Range"] = vouched
    log.info("fetching %s%s", url, f" from byte {have}" if "Range" in headers else "")
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as reply:
        plain = [r.url for r in (*reply.history, reply) if not r.url.startswith("https:")]
        if url.startswith("https:") and plain:
            raise DataError(f"led on to {plain[0]}, which is not encrypted; not followed")
        if reply.status_code == 416:
            if have and reply.headers.get("Content-Range") == f"bytes */{have}":
                mark.unlink(missing_ok=True)
                return  # all of it was here already
            part.unlink(missing_ok=True)
            raise Broken("the server can't go on from where the last download stopped")
        if reply.status_code >= 500 or reply.status_code == 429:
            raise Broken(f"the server answered {reply.status_code} {reply.reason}")
        reply.raise_for_status()
        start = have if reply.status_code == 206 else 0
        total = _total(reply, start, trusted)
        if not start:  # before the new mark: it must never vouch for old bytes
            part.unlink(missing_ok=True)
        etag = reply.headers.get("ETag", "")
        strong = etag if not etag.startswith("W/") else ""
        mark.write_text(strong or reply.headers.get("Last-Modified", ""), encoding="utf-8")
        with part.open("ab", buffering=0) as f:
            try:
                for block in reply.iter_content(BLOCK):
                    f.write(block)
                    if f.tell() > archives.LARGEST:
                        break
            except (requests.exceptions.ChunkedEncodingError, requests.ConnectionError) as e:
                raise Broken(f"the connection broke off ({type(e).__name__})") from e
    size = part.stat().st_size
    if size > archives.LARGEST or (total is not None and size > total):
        part.unlink()
        raise DataError(f"more came than the {total or archives.LARGEST} bytes that were announced or are allowed")
    if total is not None and size != total:
        raise Broken(f"truncated: {size} of {total} bytes came")
    mark.unlink(missing_ok=True)


def _total(reply: requests.Response, start: int, trusted: bool) -> int | None:
    """Bytes of the whole file; None where only a hash can tell. Raises Broken for a range that was not asked for."""
    announced = reply.headers.get("Content-Length")
    if reply.status_code == 206:
        found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", reply.headers.get("Content-Range", ""))
        if not found or int(found[1]) != start:
            raise Broken(f"asked to go on from byte {start}, the server sent another part")
        if found[2] != "*":
            return int(found[2])
    if announced:
        return start + int(announced)
    if not trusted and reply.headers.get("Transfer-Encoding") != "chunked":
        raise DataError("the server does not say how long the file is, and no hash of it is known")
    return None
