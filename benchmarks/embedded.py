"""The embedded model in the pipeline against llama.cpp alone, and how much of each method's prompts was cached.

    python benchmarks/run.py embedded
    python benchmarks/embedded.py [--small] [--questions N] [METHOD ...]

Each method answers questions of the project live; then a bare loop sends a fresh server the same requests in the same
order; that server is started with the settings of the pipeline's. Both are loaded before the clock starts. Methods that
are not among CHOSEN answer with the small reader, and only their share of tokens from the cache is told: it hardly
depends on the model.
What a cache that keeps every earlier prompt of the run with its
answer could have given is counted with the server's own template and tokenizer: of each prompt, the longest beginning
that it shares with one of them. The project has to be there: ``make repro`` and ``make model`` first.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import overhead
import rows

from multihop import jsonl, running
from multihop.config import Params
from multihop.entries import as_sent, request_key
from multihop.environment import Environment
from multihop.llm import embedded
from multihop.session import Session

REPO = Path(__file__).resolve().parents[1]
RATE, HITS = 0.95, 0.9
SMALL = "smollm2"
"""The reader of params.yaml that quick forms ask."""
CHOSEN = ("arag", "ircot", "dynakrag")
QUICK = ("vanilla", "arag")
TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Call:
    """One request as it was answered in the pipeline, in order."""

    body: dict[str, Any]
    content: str
    prompt_tokens: int
    completion_tokens: int
    cached: int


@dataclass(frozen=True)
class Measured:
    calls: list[Call]
    ours: rows.Spent
    bare: rows.Spent
    same: int
    """Answers of the bare loop that equal the pipeline's."""
    possible: list[int]
    """Tokens of each prompt that an earlier prompt of the run (with its answer) begins with."""

    def total(self, name: str) -> int:
        return sum(getattr(call, name) for call in self.calls)


# -- in the pipeline


async def in_pipeline(session: Session, cell: running.Cell) -> tuple[list[Call], rows.Spent]:
    """The run's live calls in the order in which they were asked, and its time."""
    session.endpoints.open(cell.client.reader)
    cell.retriever.dense("Which model is loaded by now?", 1)
    with overhead.prepared_cell(session, cell), rows.timed() as spent:
        await running.run(session, cell.run)
    await session.endpoints.close()
    stored = {request_key(as_sent(r["request"])): r for r in session.store.rows() if r["kind"] == "response"}
    logs = sorted((session.root / session.env.home / "logs").glob("*.jsonl"))
    logged = [row for log in logs for row in jsonl.read(log) if row["live"]]
    return [_call(stored[row["key"]], row["cached_tokens"]) for row in logged], spent


def _call(stored: dict[str, Any], cached: int) -> Call:
    response = stored["response"]
    usage = response["usage"]
    body, content = overhead.body_of(stored["request"]), response["content"] or ""
    return Call(body, content, usage["prompt_tokens"], usage["completion_tokens"], cached)


# -- llama.cpp alone


def alone(weights: Path, context: int, calls: Sequence[Call]) -> tuple[rows.Spent, int, list[int]]:
    """(time of the same requests, how many answers are the same, the tokens that each prompt shares with earlier)."""
    server = embedded.EmbeddedServer(weights, context=context)
    same = 0
    try:
        with httpx.Client(base_url=server.url, timeout=TIMEOUT_S, trust_env=False) as client:
            with rows.timed() as spent:
                for call in calls:
                    answer = client.post("/chat/completions", json=call.body).raise_for_status().json()
                    same += (answer["choices"][0]["message"]["content"] or "") == call.content
            return spent, same, shared(client, server.url.removesuffix("/v1"), calls)
    finally:
        server.close()


def shared(client: httpx.Client, base: str, calls: Sequence[Call]) -> list[int]:
    """Of each prompt, the tokens of its longest beginning that an earlier prompt with its answer has too.

    At most all but one: the last token is always read, for the first of the answer to come from it.
    """

    def tokens(messages: list[dict[str, Any]]) -> list[int]:
        prompt = client.post(f"{base}/apply-template", json={"messages": messages}).raise_for_status().json()["prompt"]
        content = {"content": prompt, "add_special": True, "parse_special": True}
        return client.post(f"{base}/tokenize", json=content).raise_for_status().json()["tokens"]

    kept: list[list[int]] = []
    found = []
    for call in calls:
        prompt = tokens(call.body["messages"])
        found.append(min(max((common(prompt, earlier) for earlier in kept), default=0), len(prompt) - 1))
        kept.append(tokens([*call.body["messages"], {"role": "assistant", "content": call.content}]))
    return found


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning."""
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


# -- the table


def measure_run(root: Path, params: Params, name: str, small: bool) -> Measured:
    dataset, setting = next(iter(params.cells(name)))
    home = Path(tempfile.mkdtemp(dir=root))
    if (REPO / ".multihop/models").is_dir():
        (home / "models").symlink_to(REPO / ".multihop/models")
    env = {"MULTIHOP_HOME": str(home), "MULTIHOP_LIVE": "always", "MULTIHOP_WORKERS": "1"}
    session = Session(params, Environment.read(env), root)
    try:
        cell = running.open_cell(session, name, dataset, setting)
        if small:
            cell = replace(cell, client=session.client(SMALL))
        reader = cell.client.reader
        weights = embedded.find_weights(reader.model, session.root / session.env.home / "models")
        if weights is None:
            raise SystemExit(f"{reader.model} is not installed: {embedded.HOW_TO_GET}")
        calls, ours = asyncio.run(in_pipeline(session, cell))
    finally:
        session.store.close()
    bare, same, possible = alone(weights, reader.context, calls)
    return Measured(calls, ours, bare, same, possible)


def measure(
    quick: bool = False, methods: Sequence[str] = (), questions: int = 0, small: bool = False
) -> list[rows.Row]:
    small = small or quick
    found, measured = [], []
    with tempfile.TemporaryDirectory() as folder:
        params = overhead.project(Path(folder), REPO, questions or (1 if quick else 2), served=False)
        runs = overhead.first_runs(params)
        # The small reader's come last: one model is loaded after the other.
        for method in sorted(methods or (QUICK if quick else runs), key=lambda m: m not in CHOSEN):
            hits_only = not (small or methods or method in CHOSEN)
            m = measure_run(Path(folder), params, runs[method], small or hits_only)
            if hits_only:
                made = [_hits(f"{method} ({SMALL})", m)]
            else:
                measured.append(m)
                made = [_rate(method, m), _hits(method, m)]
            found += made
            for row in made:
                print(f"{row.what}: {row.ours:.3g} of {row.reference:.3g}; {row.note}", file=sys.stderr)
    whole = Measured(
        [c for m in measured for c in m.calls],
        rows.Spent(wall=sum(m.ours.wall for m in measured)),
        rows.Spent(wall=sum(m.bare.wall for m in measured)),
        sum(m.same for m in measured),
        [n for m in measured for n in m.possible],
    )
    return [_rate("all with one reader" if small else "all with the demo's reader", whole), *found]


def _rate(what: str, m: Measured) -> rows.Row:
    tokens = m.total("prompt_tokens") + m.total("completion_tokens")
    rate, bare = tokens / m.ours.wall, tokens / m.bare.wall
    note = f"{len(m.calls)} calls, {m.total('completion_tokens') / m.ours.wall:.1f} tokens written a second"
    note += f"; {m.same} of {len(m.calls)} answers the same"
    target, met = f"ratio >= {RATE:g}", rate >= RATE * bare
    return rows.Row("embedded", f"{what}: tokens/s", rate, "tokens/s", bare, "llama.cpp alone", target, met, note)


def _hits(method: str, m: Measured) -> rows.Row:
    read = m.total("prompt_tokens")
    hits, possible = 100 * m.total("cached") / read, 100 * sum(m.possible) / read
    target, met = f"ratio >= {HITS:g}", hits >= HITS * possible
    lost = sum(max(0, p - c.cached) for p, c in zip(m.possible, m.calls, strict=True))
    note = f"of {read} prompt tokens; {lost} that were shared were read again"
    named = "shared with an earlier prompt of the run"
    return rows.Row("embedded", f"{method}: prefix-cache hits", hits, "%", possible, named, target, met, note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", metavar="METHOD")
    parser.add_argument("--small", action="store_true", help=f"the reader {SMALL} in place of each setting's")
    parser.add_argument("--questions", type=int, default=2)
    options = parser.parse_args()
    measure(False, options.methods, options.questions, options.small)


if __name__ == "__main__":
    main()
