"""Calls a second through our pool at a fixed latency, against concurrency / latency and beside the bare client.

    python benchmarks/run.py throughput
    python benchmarks/throughput.py --url http://localhost:8000/v1 --model NAME [--key-env VARIABLE]
        [--concurrency 1,8,64] [--calls 200] [--prompt-tokens 1500] [--max-tokens 128]

The first form asks a server on loopback that answers after 50 or 200 ms, each answer up to 20 % sooner or later, as no
endpoint takes the same time for all: where one does (two rows, without a target), all callers move in step and wait for
each other's processing. Ideal is concurrency / the mean delay on the server's own clock. The second form asks your own
server and prints its calls and tokens a second by concurrency: the figures that docs/scaling.md's plan is made from.
Every call goes through store, meter and client, as a run's calls do, with a store of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import loopback
import rows
import yaml

from multihop import config
from multihop.environment import Environment
from multihop.gathering import gathered
from multihop.llm.client import ChatClient, Reply
from multihop.session import Session

REPO = Path(__file__).resolve().parents[1]
URL_ENV = "MULTIHOP_BENCHMARK_URL"
TARGET, UP_TO = 0.95, 64
LATENCIES = {0.05: 80, 0.2: 40}
"""Seconds -> how often each of the concurrent callers asks."""
SPREAD = 0.2
WARM = 4
"""Times that each caller asks before the clock starts: by then the pace has opened, from 16 at once."""
CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64, 128)
BUSY = 0.9
"""Share of a core that the ideal rate would take, above which the client's processor is the limit, not the pool."""


@asynccontextmanager
async def client(url: str, model: str, key_env: str | None = None, context: int = 8192) -> Any:
    """A client of the endpoint at ``url`` as a run has one, with a home of its own that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        prices = yaml.safe_load((REPO / "prices.yaml").read_text(encoding="utf-8"))
        prices["models"][model] = {"input": 0, "cached": 0, "output": 0}
        (root / "prices.yaml").write_text(yaml.safe_dump(prices), encoding="utf-8")
        raw = yaml.safe_load((REPO / "params.yaml").read_text(encoding="utf-8"))
        raw["endpoints"] = {"measured": {"url_env": URL_ENV} | ({"key_env": key_env} if key_env else {})}
        reader = {"endpoint": "measured", "model": model, "max_tokens": 400, "context": context}
        raw["readers"] = {name: reader for name in raw["readers"]}
        (root / "params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False), encoding="utf-8")
        os.environ[URL_ENV] = url
        env = {"MULTIHOP_HOME": str(root / "home"), "MULTIHOP_LIVE": "always"}
        session = Session(config.load(root / "params.yaml"), Environment.read(env), root)
        try:
            yield session.client(next(iter(raw["readers"])))
        finally:
            await session.endpoints.close()
            session.store.close()


async def through_pool(pool: ChatClient, prompts: Sequence[str], workers: int, max_tokens: int) -> list[Reply]:
    """All prompts, ``workers`` at a time, as a run asks its questions."""

    async def ask(prompt: str) -> Reply:
        return await pool.chat([{"role": "user", "content": prompt}], role="reader", max_tokens=max_tokens)

    return await gathered(prompts, ask, workers)


def prompts(count: int, label: str, tokens: int = 400) -> list[str]:
    """Distinct prompts of about ``tokens`` tokens that share no beginning, so that no prefix cache helps."""
    filler = "The harbour town lies on the river. " * (tokens // 8)
    return [f"{label}-{n}. {filler}Which river?" for n in range(count)]


@dataclass(frozen=True)
class Measured:
    calls: int
    ours: rows.Spent
    bare: rows.Spent
    delay: float
    """The server's mean delay for our calls, in seconds."""
    bare_delay: float


async def at(latency: float, concurrency: int, rounds: int, spread: float = SPREAD) -> Measured:
    """``concurrency`` callers that each ask ``rounds`` times: our pool, then the bare client."""
    calls = concurrency * rounds
    label = f"{latency}/{concurrency}"
    with loopback.Loopback(latency, spread, fixed=True) as url:
        async with client(url, "fixed") as pool:
            await through_pool(pool, prompts(WARM * concurrency, f"warm {label}"), concurrency, 100)
            loopback.mean_delay(url)
            with rows.timed() as ours:
                await through_pool(pool, prompts(calls, label), concurrency, 100)
            delay = loopback.mean_delay(url)
        bodies = [
            {"model": "fixed", "messages": [{"role": "user", "content": p}], "temperature": 0, "max_tokens": 100}
            for p in prompts(calls, label)
        ]
        bare = await loopback.bare(url, bodies, concurrency)
        return Measured(calls, ours, bare, delay, loopback.mean_delay(url))


def measure(quick: bool = False) -> list[rows.Row]:
    latencies = {0.2: 5} if quick else LATENCIES
    found = []
    for latency, rounds in latencies.items():
        for concurrency in (1, 16, 64) if quick else CONCURRENCIES:
            m = asyncio.run(at(latency, concurrency, rounds))
            found.append(_row(f"{1000 * latency:.0f} ms, {concurrency} at once", concurrency, m, concurrency <= UP_TO))
        if not quick:
            m = asyncio.run(at(latency, 64, rounds, spread=0.0))
            found.append(_row(f"{1000 * latency:.0f} ms exactly, 64 at once", 64, m, judged=False))
    return found


def _row(what: str, concurrency: int, m: Measured, judged: bool) -> rows.Row:
    rate, ideal = m.calls / m.ours.wall, concurrency / m.delay
    bare, each = m.calls / m.bare.wall, m.ours.cpu / m.calls
    note = f"client's processor {100 * m.ours.cpu / m.ours.wall:.0f} % of a core ({1000 * each:.2f} ms a call)"
    note += f"; bare client {bare:.0f} calls/s, {bare * m.bare_delay / concurrency:.2f} of its ideal"
    note += f", at {100 * m.bare.cpu / m.bare.wall:.0f} %"
    if (needed := ideal * each) > BUSY:
        note += f"; the ideal rate would take {100 * needed:.0f} % of a core: the processor is the limit"
    target, met = (f"ratio >= {TARGET:g}", rate >= TARGET * ideal) if judged else ("", None)
    return rows.Row("throughput", what, rate, "calls/s", ideal, "concurrency / mean latency", target, met, note)


# -- somebody's own server


async def own_server(options: argparse.Namespace) -> None:
    """Print calls and tokens a second of the server at ``options.url``, by concurrency."""
    context = 2 * options.prompt_tokens + options.max_tokens + 512
    print(f"{'at once':>8}{'calls/s':>10}{'prompt tokens/s':>18}{'output tokens/s':>18}{'client CPU':>12}")
    for concurrency in map(int, options.concurrency.split(",")):
        async with client(options.url, options.model, options.key_env, context) as pool:
            label, calls = f"{os.getpid()}/{concurrency}", max(options.calls, concurrency)
            await through_pool(pool, prompts(concurrency, f"warm {label}"), concurrency, 1)
            with rows.timed() as spent:
                asked = prompts(calls, label, options.prompt_tokens)
                replies = await through_pool(pool, asked, concurrency, options.max_tokens)
        read = sum(reply.usage.prompt_tokens for reply in replies)
        written = sum(reply.usage.completion_tokens for reply in replies)
        rates = f"{calls / spent.wall:>10.2f}{read / spent.wall:>18.0f}{written / spent.wall:>18.0f}"
        print(f"{concurrency:>8}{rates}{spent.cpu / spent.wall:>12.0%}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="base address, e.g. http://localhost:8000/v1")
    parser.add_argument("--model", required=True)
    parser.add_argument("--key-env", help="environment variable that holds the key, where one is needed")
    parser.add_argument("--concurrency", default="1,8,64")
    parser.add_argument("--calls", type=int, default=200, help="at each concurrency")
    parser.add_argument("--prompt-tokens", type=int, default=1500, help="about; usage is what the server counts")
    parser.add_argument("--max-tokens", type=int, default=128)
    asyncio.run(own_server(parser.parse_args()))


if __name__ == "__main__":
    main()
