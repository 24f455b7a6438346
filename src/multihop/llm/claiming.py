"""Two processes on one store do not pay twice for one answer: who asks holds a lock on the request's place in a file.

The locks are the operating system's, on single bytes of ``<store>.asking``, which stays empty: a killed process's are
gone with it, and nothing is ever stale. Where there are none (Windows), both ask and the first answer stays.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:
    fcntl = None

WAITS_S = (0.02, 0.25)
"""Between two tries, in seconds: the first, and what it grows to."""


class Claims:
    """The claims of this process on the requests of one store. Use ``claims_of``: closing one file drops the locks of
    all others that this process has on it."""

    def __init__(self, path: Path):
        self._path = path
        self._file = -1
        self._held = 0

    @asynccontextmanager
    async def of(self, key: str) -> AsyncIterator[None]:
        """Wait until no other process asks for ``key`` (a request's hash), then hold it."""
        if fcntl is None:
            yield
            return
        place, wait = int(key[:15], 16), WAITS_S[0]
        self._open()
        try:
            while not self._taken(place):
                await asyncio.sleep(wait)
                wait = min(1.5 * wait, WAITS_S[1])
            yield
        finally:
            self._close(place)

    def _taken(self, place: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            return True
        except (BlockingIOError, PermissionError):  # either one means: another process has it
            return False
        except OSError:  # a file system without locks
            return True

    def _open(self) -> None:
        if not self._held:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        self._held += 1

    def _close(self, place: int) -> None:
        with suppress(OSError):
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, place)
        self._held -= 1
        if not self._held:
            os.close(self._file)


@functools.cache
def claims_of(store: Path) -> Claims:
    """This process's claims on the requests of the store at ``store``."""
    return Claims(store.with_suffix(".asking"))
