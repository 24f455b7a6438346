"""The papers at full size in machines, hours and USD: the tables of docs/scaling.md, from `multihop estimate`'s lines.

What is measured (calls and tokens of an answer, bytes of a stored answer) comes from the demo; what is not (a GPU's
rate and price, an account's limits) is an assumption (:class:`Assumed`), printed as
one.
"""

from __future__ import annotations

import math
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from multihop import config, estimating, jsonl, messages, sizes
from multihop.asked import Share
from multihop.config import Params
from multihop.entries import read_recording, write_recording
from multihop.errors import ConfigError
from multihop.pricing import Prices
from multihop.report import expected
from multihop.store import Store
from multihop.types import Usage

RECORDING = "data/recordings/demo.jsonl.zst"
BEGIN, END = "<!-- multihop plan -->\n", "<!-- end of multihop plan -->\n"
REPLICAS = (1, 4, 16)


def _assume(value: float, what: str) -> Any:
    return field(default=value, metadata={"what": what})


@dataclass(frozen=True)
class Assumed:
    """Not measured here: `multihop plan --assume prompt_rate=20000`."""

    requests_per_minute: float = _assume(5_000, "of the account's tier at the API")
    tokens_per_minute: float = _assume(4_000_000, "of the account's tier at the API, prompt and output together")
    seconds_per_call: float = _assume(estimating.API_SECONDS_PER_CALL, "of the API, mean")
    calls_at_once: float = _assume(256, "at the API, over all client processes")
    prompt_rate: float = _assume(
        10_000, "prompt tokens a second that one vLLM replica reads (an 8B model in 16 bit on one 80 GB GPU)"
    )
    output_rate: float = _assume(1_500, "output tokens a second that one such replica writes, all requests together")
    gpu_usd_per_hour: float = _assume(2.5, "USD an hour for the GPU of one replica, rented")
    client_ms_per_call: float = _assume(10, "milliseconds of processor time that a client spends on a call")

    @staticmethod
    def read(given: Sequence[str]) -> Assumed:
        """From NAME=NUMBER. Raises ConfigError for an unknown name or no number above 0."""
        values = {}
        for each in given:
            name, _, number = each.partition("=")
            if name not in Assumed.__dataclass_fields__:
                raise ConfigError(f"--assume: {messages.unknown('assumption', name, Assumed.__dataclass_fields__)}")
            try:
                values[name] = float(number)
            except ValueError:
                values[name] = math.nan
            if not 0 < values[name] < math.inf:
                raise ConfigError(f"--assume {each}: expected a number above 0")
        return Assumed(**values)


@dataclass(frozen=True)
class Work:
    """What a profile asks of one model."""

    profile: str
    model: str
    share: Share
    usd: float

    @property
    def tokens(self) -> float:
        return self.share.prompt + self.share.completion

    def api(self, assumed: Assumed) -> tuple[float, str]:
        """(hours at an API, what limits them)."""
        limits = {
            "requests a minute": self.share.calls / assumed.requests_per_minute / 60,
            "tokens a minute": self.tokens / assumed.tokens_per_minute / 60,
            "calls at once": self.share.calls * assumed.seconds_per_call / assumed.calls_at_once / 3600,
        }
        slowest = max(limits, key=lambda name: limits[name])
        return limits[slowest], slowest

    def gpu_hours(self, assumed: Assumed) -> float:
        """Of one vLLM replica: reading and writing one after the other, nothing cached."""
        return (self.share.prompt / assumed.prompt_rate + self.share.completion / assumed.output_rate) / 3600


def profiles(root: Path) -> Iterator[tuple[str, Params]]:
    """Both papers' settings, the first one's also over the full official splits."""
    for name in ("executionrag-paper", "executionrag-paper, official splits", "dynakrag-paper"):
        path = root / "profiles" / f"{name.split(',')[0]}.yaml"
        raw: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        if "official" in name:
            raw["hub_release"] = "official"
            for data in raw["data"].values():
                data["questions"] = None
        yield name, config.parse(raw, str(path))


@dataclass(frozen=True)
class Estimated:
    """A profile's lines."""

    profile: str
    params: Params
    lines: list[estimating.Line]

    def works(self, prices: Prices) -> Iterator[Work]:
        shares: dict[str, Share] = defaultdict(Share)
        for line in self.lines:
            for model, share in line.models.items():
                shares[model] += share
        for model, share in shares.items():
            usd = prices.usd(Usage(0, round(share.prompt), round(share.completion)), model)
            yield Work(self.profile, model, share, usd)


def estimated(root: Path) -> list[Estimated]:
    """Raises DataError where nothing was measured, ConfigError for a model without a price."""
    with tempfile.TemporaryDirectory() as folder:  # as if nothing were prepared: this checkout's data are the demo's
        for name in ("prices.yaml", "results", "expected"):
            (Path(folder) / name).symlink_to((root / name).resolve())
        return [Estimated(name, params, estimating.lines(params, Path(folder))) for name, params in profiles(root)]


# -- the tables


def tables(root: Path, assumed: Assumed) -> str:
    """Markdown."""
    found = estimated(root)
    works = [w for e in found for w in e.works(Prices.load(root / "prices.yaml"))]
    parts = [_assumptions(assumed), _work(works), _api(works, assumed), _vllm(works, assumed)]
    return "\n".join([*parts, _printed(root, found[-1]), _storage(root, found)])


def write(root: Path, path: Path, assumed: Assumed) -> None:
    """Replace the tables between the page's marks. Raises ConfigError for a page without them."""
    text = path.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise ConfigError(f"{path}: no lines {BEGIN.strip()!r} and {END.strip()!r}: the tables go between them")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    jsonl.write_text(path, f"{before}{BEGIN}\n{tables(root, assumed)}\n{END}{after}")


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, row))} |\n" for row in lines)


def _assumptions(assumed: Assumed) -> str:
    rows = [(f"`{f.name}`", f"{getattr(assumed, f.name):,.10g}", f.metadata["what"]) for f in fields(assumed)]
    return "Assumed, not measured:\n\n" + _table(("assumption", "value", "what"), rows)


def _work(found: Sequence[Work]) -> str:
    rows = [
        (w.profile, f"`{w.model}`", _n(w.share.calls / 1e6), _n(w.share.prompt / 1e6), _n(w.share.completion / 1e6))
        for w in found
    ]
    head = ("profile", "model", "calls (million)", "prompt tokens (million)", "output tokens (million)")
    return "What is asked (judge, indexes and trainings included):\n\n" + _table(head, rows)


def _api(found: Sequence[Work], assumed: Assumed) -> str:
    rows = []
    for w in (w for w in found if w.usd):
        hours, limit = w.api(assumed)
        busy = w.share.calls * assumed.client_ms_per_call / 1000 / 3600 / hours
        rows.append((w.profile, f"`{w.model}`", _n(w.usd), _n(hours), limit, math.ceil(busy)))
    head = ("profile", "model", "USD", "hours", "limited by", "client cores busy")
    return "At an API:\n\n" + _table(head, rows)


def _vllm(found: Sequence[Work], assumed: Assumed) -> str:
    rows = []
    for w in found:
        hours = w.gpu_hours(assumed)
        usd = hours * assumed.gpu_usd_per_hour
        rows.append((w.profile, f"`{w.model}`", *(_n(hours / r) for r in REPLICAS), _n(hours), _n(usd)))
    head = ("profile", "in place of, or", *(f"hours, {r} replica{'s' * (r > 1)}" for r in REPLICAS), "GPU hours", "USD")
    return "On vLLM replicas of an 8B model:\n\n" + _table(head, rows)


def _printed(root: Path, found: Estimated) -> str:
    """Paper 2 prints tokens a question: over its own splits, beside the estimate of the same runs."""
    paper, questions = expected.load(root, "dynakrag"), sizes.FULL_SIZES["official"]
    rows = []
    for role, setting in zip(("first", "second", "third"), found.params.settings, strict=True):
        model = found.params.readers[found.params.settings[setting].reader].model
        if model == found.params.readers[found.params.judge.reader].model:
            continue  # its tokens are the judge's too
        printed = ours = 0.0
        for line in found.lines:
            values = [paper.lookup(dataset, line.run, role, "total_tokens") for dataset in questions]
            if all(v and v.number for v in values):
                printed += sum(n * v.number for n, v in zip(questions.values(), values, strict=True))
                share = line.models[model]
                ours += (share.prompt + share.completion) / len(found.params.seeds_of(line.run))
        rows.append((f"`{model}`", _n(printed / 1e6), _n(ours / 1e6), f"{ours / printed:.2f}"))
    head = ("backbone", "million tokens, by Table 1", "estimated from the demo", "ratio")
    title = "Paper 2 prints tokens a question (Table 1; one training, without Fixed-K and the judge):"
    return f"{title}\n\n{_table(head, rows)}"


def _storage(root: Path, found: Sequence[Estimated]) -> str:
    """Of the demo's recorded calls, in a store and as a recording; prompts longer by the passages, as in estimate."""
    rows = [r for r in read_recording(root / RECORDING) if r["kind"] == "response"]
    longer = sizes.BENCHMARK_PASSAGE_TOKENS / sizes.DEMO_PASSAGE_TOKENS
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "store.sqlite")
        store.take(rows)
        store.close()
        kept = (Path(folder) / "store.sqlite").stat().st_size / len(rows)
        write_recording(Path(folder) / "rows.zst", rows)
        packed = (Path(folder) / "rows.zst").stat().st_size / len(rows)
    out: list[tuple[object, ...]] = [("the demo, a call", _n(kept / 1e3), _n(packed / 1e3), "")]
    for e in found:
        runs = [r for r in e.lines if r.questions]
        calls, answers = sum(r.calls for r in e.lines), sum(r.questions for r in runs)
        each = calls / answers * 1000 * longer
        whole = calls * longer * kept / 1e9
        out.append((f"{e.profile}, 1,000 answers", _n(each * kept / 1e3), _n(each * packed / 1e3), _n(whole)))
    head = ("", "in a store (kB)", "as a recording (kB)", "all of it in a store (GB)")
    return f"Storage, from {len(rows):,} recorded calls:\n\n" + _table(head, out)


def _n(value: float) -> str:
    """Two or three digits: an order of magnitude is meant."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 1 else f"{value:.1f}"
