"""What runs on a node: a session with a store of its own, which answers chunks and gives back what is new."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from multihop import config, guard
from multihop.environment import Environment
from multihop.errors import MultihopError
from multihop.llm.ledger import Cost, Ledger
from multihop.llm.meter import Meter
from multihop.scaling import exchange
from multihop.scaling.warming import Chunk, Warmer
from multihop.session import Session


@dataclass
class Done:
    """What a chunk gave: new entries (packed), records by status, what was spent."""

    entries: bytes
    counts: Counter[str] = field(default_factory=Counter)
    spent: list[tuple[str, str, Cost]] = field(default_factory=list)
    """(run, model, cost) as in a ledger."""
    live_calls: int = 0
    fatal: str = ""
    """An error that concerns the whole run, in one line; what was answered before it is in ``entries``."""


class Worker:
    """One session in a folder of this node that goes with the process. Knows nothing of Ray."""

    def __init__(self, root: str, environ: Mapping[str, str], local_home: str | None = None):
        """``root``: the project's folder as this node sees it; it is read, never written."""
        os.environ.update(environ)
        self._folder = None if local_home else tempfile.TemporaryDirectory(prefix="multihop-")
        home = Path(local_home or self._folder.name)
        env = replace(Environment.read(), home=home, ceilings={})
        self.session = Session(config.load(Path(root) / "params.yaml"), env, Path(root))
        self.session.meter.ledger = Ledger()  # in memory: the driver's knows what all have spent
        self.warmer = Warmer(self.session)
        self._runner = asyncio.Runner()  # one event loop for all chunks: the clients' connections live in it
        self._sent = self.session.store.marks()

    def ready(self) -> str:
        """Once this returns, the session is open. Returns the folder of the store."""
        return str(self.session.env.home)

    def take(self, entries: bytes) -> None:
        """Entries that others have: they are neither asked again nor given back."""
        self.session.store.take(exchange.unpack(entries))
        self._sent = self.session.store.marks()

    def answer(self, chunk: Chunk, ceilings: Mapping[str, float]) -> Done:
        """Answer a chunk under ceilings of its own. Errors that are no MultihopError pass through."""
        session = self.session
        meter = session.meter
        meter.limits = Meter(session.prices, ceilings).limits
        before, counts, fatal = meter.live_calls, Counter[str](), ""
        try:
            counts = self._runner.run(self.warmer.ask(chunk))
        except* MultihopError as group:
            fatal = str(_first(group))
        now = session.store.marks()
        entries = exchange.pack(session.store.added(self._sent, now))
        self._sent = now
        spent, meter.ledger = meter.ledger.rows(), Ledger()
        return Done(entries, counts, spent, meter.live_calls - before, fatal)

    def close(self) -> None:
        self._runner.run(self.session.endpoints.close())
        self._runner.close()
        self.session.store.close()
        if self._folder:
            self._folder.cleanup()


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


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
