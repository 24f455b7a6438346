"""What one command shares: params, environment, store, meter, endpoints; and the places of all files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from multihop import config, jsonl
from multihop.config import Params
from multihop.environment import Environment
from multihop.llm.client import ChatClient, SideLog
from multihop.llm.endpoints import Endpoints
from multihop.llm.ledger import FILE, Ledger
from multihop.llm.meter import Meter
from multihop.pricing import Prices
from multihop.store import Store


@dataclass
class Session:
    """Open it once per command; everything is relative to ``root``, the project's folder."""

    params: Params
    env: Environment
    root: Path = Path(".")
    log: SideLog = field(default_factory=SideLog)

    def __post_init__(self) -> None:
        layers = [] if self.env.live == "always" else sorted((self.root / self.env.recordings).glob("*.jsonl.zst"))
        self.store = Store(self.root / self.env.home / "store.sqlite", layers)
        self.prices = Prices.load(self.root / "prices.yaml")
        self.meter = Meter(self.prices, self.env.ceilings, Ledger(self.root / self.env.home / FILE))
        self.endpoints = Endpoints(self.params.endpoints, self.env)

    @property
    def may_ask(self) -> bool:
        """Whether a missing answer or vector may be made now."""
        return self.env.live != "never"

    def begin(self, what: str, readers: Iterable[str]) -> None:
        """From now on what is asked is spent on ``what``. Where live calls are allowed, each of ``readers`` needs a
        price. Raises ConfigError for the first without one, before any call."""
        self.meter.run = f"{self.params.profile}: {what}"
        if self.may_ask:
            self.prices.check({f"readers.{name}": self.params.readers[name].model for name in readers})

    def client(self, reader: str) -> ChatClient:
        return ChatClient(reader, self.params.readers[reader], self.endpoints, self.store, self.meter, self.log)

    # -- places

    def raw(self, dataset: str) -> Path:
        return self.root / "data/raw" / dataset

    def prepared(self, dataset: str) -> Path:
        return self.root / "data/prepared" / dataset

    def index(self, dataset: str, setting: str) -> Path:
        return self.root / "data/index" / dataset / self.params.index_name(setting)

    def records(self, run: str, dataset: str, setting: str) -> Path:
        return self.root / "results/runs" / run / dataset / f"{setting}.jsonl"

    def structure(self, name: str, dataset: str, setting: str) -> Path:
        """The files of an index of ``structures`` or ``graphs``."""
        return self.root / "data/structures" / name / dataset / setting

    def structure_facts(self, name: str, dataset: str, setting: str) -> Path:
        """What such an index was made of, holds and cost: committed, so that a report needs no build."""
        return self.root / "results/structures" / name / dataset / f"{setting}.json"

    def trained(self, name: str, dataset: str) -> Path:
        """What training ``name`` (a controller, a network, or "baselines") gave on ``dataset``'s train questions."""
        return self.root / "results/trained" / name / dataset

    def retrieval_params(self) -> dict:
        return self.params.retrieval.model_dump(
            include={"splitter", "title_in_sentences", "bm25_k1", "bm25_b", "bm25_epsilon"}
        )

    def workers(self, reader: str) -> int:
        """Questions in flight: one for the embedded model (more brings nothing), 64 for servers."""
        return self.endpoints.workers(self.params.readers[reader].endpoint)

    def side_log(self, name: str, least: int = 0) -> None:
        """Append this command's calls (live or replayed, seconds, cached tokens) to a log no hash sees, where at
        ``least`` so many wait."""
        if len(self.log.rows) < least:
            return
        folder = self.root / self.env.home / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{name}.jsonl").open("a", encoding="utf-8") as f:
            f.writelines(jsonl.dumps(row) + "\n" for row in self.log.rows)
        self.log.rows.clear()


@asynccontextmanager
async def opened(params: Params | None = None, root: Path = Path(".")) -> AsyncIterator[Session]:
    """A session that closes its clients, servers and store, whatever happens."""
    session = Session(params or config.load(root / "params.yaml"), Environment.read(), root)
    async with AsyncExitStack() as closing:  # each is closed, though another fails: in the other order
        closing.callback(session.store.close)
        closing.callback(session.meter.ledger.close)
        closing.push_async_callback(session.endpoints.close)
        yield session
