"""Calls a second through our pool at a fixed latency, against concurrency / latency and beside the bare client.

    python benchmarks/run.py throughput
    python benchmarks/throughput.py --url http://localhost:8000/v1 --model NAME [--key-env VARIABLE]
        [--concurrency 1,8,64] [--calls 200] [--prompt-tokens 1500] [--max-tokens 128]

The first form asks a server on loopback that answers after 50 or 200 ms. The second asks your own server and prints
its calls and tokens a second by concurrency: the figures that docs/scaling.md's plan is made from. Every call goes
through store, meter and client, as a run's calls do, with a store of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from collections.abc import Sequence
from contextlib import asynccontextmanager
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
LATENCIES = {0.05: 40, 0.2: 20}
"""Seconds -> how often each of the concurrent callers asks."""
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


async def at(latency: float, concurrency: int, rounds: int) -> tuple[rows.Spent, rows.Spent, int]:
    """(our pool's time, the bare client's, calls) with ``concurrency`` callers that each ask ``rounds`` times."""
    calls = concurrency * rounds
    label = f"{latency}/{concurrency}"
    with loopback.Loopback(latency, fixed=True) as url:
        async with client(url, "fixed") as pool:
            await through_pool(pool, prompts(concurrency, f"warm {label}"), concurrency, 100)
            with rows.timed() as ours:
                await through_pool(pool, prompts(calls, label), concurrency, 100)
        bodies = [
            {"model": "fixed", "messages": [{"role": "user", "content": p}], "temperature": 0, "max_tokens": 100}
            for p in prompts(calls, label)
        ]
        bare = await loopback.bare(url, bodies, concurrency)
    return ours, bare, calls


def measure(quick: bool = False) -> list[rows.Row]:
    latencies = {0.2: 5} if quick else LATENCIES
    found = []
    for latency, rounds in latencies.items():
        for concurrency in (1, 16, 64) if quick else CONCURRENCIES:
            found.append(_row(latency, concurrency, *asyncio.run(at(latency, concurrency, rounds))))
    return found


def _row(latency: float, concurrency: int, ours: rows.Spent, bare: rows.Spent, calls: int) -> rows.Row:
    rate, ideal = calls / ours.wall, concurrency / latency
    busy = ours.cpu / ours.wall
    note = f"client's processor {100 * busy:.0f} % of a core ({1000 * ours.cpu / calls:.2f} ms a call)"
    note += f"; bare client {calls / bare.wall:.0f} calls/s at {100 * bare.cpu / bare.wall:.0f} %"
    if (needed := ideal * ours.cpu / calls) > BUSY:
        note += f"; the ideal rate would take {100 * needed:.0f} % of a core: the processor is the limit"
    target, met = (f"ratio >= {TARGET:g}", rate >= TARGET * ideal) if concurrency <= UP_TO else ("", None)
    what = f"{1000 * latency:.0f} ms, {concurrency} at once"
    return rows.Row("throughput", what, rate, "calls/s", ideal, "concurrency / latency", target, met, note)


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
