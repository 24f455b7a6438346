"""What runs on a node: a session with a store of its own, which answers chunks and gives back what is new."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from multihop import config, guard
from multihop.environment import Environment
from multihop.errors import BudgetExceeded, MultihopError, first_error
from multihop.evaluation.score import Unjudged
from multihop.llm.client import NoAnswer
from multihop.llm.ledger import Cost, Ledger
from multihop.llm.meter import Meter
from multihop.scaling import exchange
from multihop.scaling.warming import Chunk, Warmer
from multihop.session import Session
from multihop.store import Marks


@dataclass
class Done:
    """What a chunk gave: new entries (packed), records by status, what was spent.

    At most one of the three reasons why it is unfinished is set, each one line; what was answered is in ``entries``.
    """

    entries: bytes = b""
    counts: Counter[str] = field(default_factory=Counter)
    spent: list[tuple[str, str, Cost]] = field(default_factory=list)
    """(run, model, cost) as in a ledger."""
    live_calls: int = 0
    fatal: str = ""
    """An error that concerns the whole run."""
    stopped: str = ""
    """The chunk's own ceiling was reached."""
    unanswered: str = ""
    """A call that the chunk can't do without got no answer; later it may."""


@contextmanager
def _screened() -> Iterator[None]:
    """What is printed goes to files of Ray's: no key in it."""
    with redirect_stdout(guard.Screen(sys.stdout)), redirect_stderr(guard.Screen(sys.stderr)):
        yield


class Worker:
    """One session in a folder of this node that goes with the process. Knows nothing of Ray, but has no coroutine
    among its methods: Ray would then run all of them in an event loop of its own."""

    @_screened()
    def __init__(self, root: str, environ: Mapping[str, str], local_home: str | None = None):
        """``root``: the project's folder as this node sees it; it is read, never written."""
        os.environ.update(environ)
        guard.keep_secrets_in(os.environ)
        params = config.load(Path(root) / "params.yaml")
        for endpoint in params.endpoints.values():
            guard.keep_secret(os.environ.get(endpoint.key_env or ""))
            guard.keep_secrets_of(os.environ.get(endpoint.url_env or ""))
        self._folder = None if local_home else tempfile.TemporaryDirectory(prefix="multihop-")
        home = Path(local_home or self._folder.name)
        self.session = Session(params, replace(Environment.read(), home=home, ceilings={}), Path(root))
        self.session.meter.ledger = Ledger()  # in memory: the driver's knows what all have spent
        self.warmer = Warmer(self.session)
        self._runner = asyncio.Runner()  # one event loop for all chunks: the clients' connections live in it
        self._since = self.session.store.marks()
        self._unsent: list[tuple[Marks, Marks]] = []
        """Where in the store entries lie that the driver does not have, beside those from ``_since`` on."""

    def ready(self) -> str:
        """Once this returns, the session is open. Returns the folder of the store."""
        return str(self.session.env.home)

    @_screened()
    def take(self, entries: bytes) -> None:
        """Entries that others have: they are neither asked again nor given back."""
        self._unsent.append((self._since, self.session.store.marks()))  # of a chunk that failed, say
        try:
            self.session.store.take(exchange.unpack(entries))
        finally:
            self._since = self.session.store.marks()

    @_screened()
    def answer(self, chunk: Chunk, ceilings: Mapping[str, float]) -> Done:
        """Answer a chunk under ceilings of its own. Raises RuntimeError, in words without a key, for what is none of
        the expected errors; what was answered and spent then comes with the next chunk."""
        session, done, unexpected = self.session, Done(), ""
        meter, before = session.meter, session.meter.live_calls
        meter.limits = Meter(session.prices, ceilings).limits
        try:
            done.counts = self._runner.run(_asked(self.warmer, chunk))
        except* BudgetExceeded as group:
            done.stopped = _told(group)
        except* (NoAnswer, Unjudged) as group:
            done.unanswered = _told(group)
        except* MultihopError as group:
            done.fatal = _told(group)
        except* Exception as group:
            traceback.print_exception(group)
            unexpected = f"{type(first_error(group)).__name__}: {_told(group)}"
        if unexpected:
            raise RuntimeError(unexpected)
        if done.fatal:  # weighs more than what else happened
            done.stopped = done.unanswered = ""
        elif done.stopped:
            done.unanswered = ""
        now = session.store.marks()
        ranges = [*self._unsent, (self._since, now)]
        done.entries = exchange.pack(chain.from_iterable(session.store.added(*each) for each in ranges))
        self._since, self._unsent = now, []
        done.spent, meter.ledger = meter.ledger.rows(), Ledger()
        done.live_calls = meter.live_calls - before
        return done

    @_screened()
    def close(self) -> None:
        self._runner.run(self.session.endpoints.close())
        self._runner.close()
        self.session.store.close()
        if self._folder:
            self._folder.cleanup()


async def _asked(warmer: Warmer, chunk: Chunk) -> Counter[str]:
    try:
        return await warmer.ask(chunk)
    finally:  # after an error, what is on the wire is paid for: its answers and costs go back with this chunk
        await warmer.session.endpoints.heard_out()


def environ(session: Session) -> dict[str, str]:
    """What a worker needs of this environment. No key and no address with a login: those are set on each node, and are
    written to no message."""
    endpoints = session.params.endpoints.values()
    keys = {e.key_env for e in endpoints}
    mine = ("MULTIHOP_HOME", "MULTIHOP_SHARD", *session.meter.limits)
    wanted = {name for name in os.environ if name.startswith("MULTIHOP_")} | {e.url_env for e in endpoints if e.url_env}
    wanted |= {"HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM"}
    public = guard.public_environment()
    return {name: public[name] for name in sorted(wanted) if name in public and name not in {*keys, *mine}}


def _told(error: BaseException) -> str:
    """The first error of a group in one line without a key."""
    return " ".join(guard.told(str(first_error(error))).split())
