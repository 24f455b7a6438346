"""A fast OpenAI-compatible server on loopback for benchmarks, in a process of its own, and the bare client beside it.

    python benchmarks/loopback.py [--delay SECONDS [--spread SHARE]] [--fixed]

prints ``listening <base address>`` and ends with its standard input. Its "model" answers by rules in whatever form
a request asks for, so that each method runs its own loop for a plausible number of steps; ``--fixed`` says the same
short text to everything, which costs the server next to nothing. What it thinks costs its own process, not the client.
``--spread 0.2``: each delay is drawn evenly from 20 % below to 20 % above. A GET tells the mean delay since the last
GET.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import threading
import urllib.request
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import rows

TESTS = Path(__file__).resolve().parents[1] / "tests"
CONNECTIONS = 1000


# -- the model, by rules


def reply_to(body: dict[str, Any]) -> Any:
    """The answer to a request, as tests/scripted_server.py's ``Say``."""
    import scripted_server as scripted

    kind = scripted.kind_of(body)
    form = (body.get("response_format") or {}).get("json_schema", {}).get("schema")
    if form and kind not in ("agent", "initialisation", "update", "verdict"):
        return scripted.Say(json.dumps(_filled(form, "", _Words(body))))
    return scripted.Say(_sentence(_Words(body))) if kind == "chat" else scripted.little_model(body)


class _Words:
    """Names and words of the request's last message, drawn by its checksum: equal requests get equal answers."""

    def __init__(self, body: dict[str, Any]):
        text = body["messages"][-1]["content"] or ""
        self.rng = random.Random(zlib.crc32(text.encode()))
        self.names = re.findall(r"\b[A-ZÀ-Þ]\w{2,}", text) or ["Nobody"]
        self.shown = len(re.findall(r"^\[[pc]\d+\]", text, re.MULTILINE))

    def some(self) -> str:
        return " ".join(self.rng.choice(self.names) for _ in range(3))


def _sentence(words: _Words) -> str:
    """A thought, a query or a short answer, whichever a method takes it for."""
    return f"{words.some()} is next to {words.some()}."


def _filled(schema: dict[str, Any], name: str, words: _Words) -> Any:
    """A value of a JSON schema: some of the names, true now and then, the middle of a choice."""
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][len(schema["enum"]) // 2]
    if schema["type"] == "object":
        return {key: _filled(value, key, words) for key, value in schema["properties"].items()}
    if schema["type"] == "array":
        count = min(words.shown or 2, schema.get("maxItems", 3))
        if schema["items"].get("type") == "integer" and "enum" not in schema["items"]:
            return list(range(1, 1 + min(count, 3)))
        return [_filled(schema["items"], name, words) for _ in range(count)]
    if schema["type"] == "boolean":
        # What ends a search comes true one time in four; what goes on with it is true otherwise.
        return (words.rng.random() < 0.25) == (name in ("sufficient", "enough"))
    if schema["type"] in ("number", "integer"):
        return 0.9 if schema["type"] == "number" else 1
    return words.some()[: schema.get("maxLength", 80)]


# -- the server


class _Connection(asyncio.Protocol):
    """HTTP/1.1 with keep-alive, as much of it as the openai client speaks."""

    delay = spread = 0.0
    fixed = False
    rng = random.Random(0)
    waited: list[float] = []  # noqa: RUF012  of all connections

    def connection_made(self, transport: Any) -> None:
        self.transport, self.buffer = transport, b""

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            if self.buffer.startswith(b"GET"):
                self.buffer = self.buffer[end + 4 :]
                self._write(_http({"mean_delay": sum(self.waited) / max(1, len(self.waited))}))
                self.waited.clear()
                continue
            found = re.search(rb"content-length: *(\d+)", self.buffer[:end], re.IGNORECASE)
            whole = end + 4 + (int(found[1]) if found else 0)
            if len(self.buffer) < whole:
                return
            body, self.buffer = self.buffer[end + 4 : whole], self.buffer[whole:]
            answer = _FIXED if self.fixed else _http(_completion(json.loads(body)))
            if self.delay:
                loop, factor = asyncio.get_running_loop(), self.rng.uniform(1 - self.spread, 1 + self.spread)
                loop.call_later(self.delay * factor, self._answer, answer, loop.time())
            else:
                self._write(answer)

    def _answer(self, answer: bytes, asked: float) -> None:
        self.waited.append(asyncio.get_running_loop().time() - asked)
        self._write(answer)

    def _write(self, answer: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(answer)


def _completion(body: dict[str, Any]) -> dict[str, Any]:
    from scripted_server import completion

    return completion(body, reply_to(body))


def _http(value: dict[str, Any]) -> bytes:
    data = json.dumps(value).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data)


_FIXED = _http(
    {
        "id": "chatcmpl-fixed",
        "object": "chat.completion",
        "created": 0,
        "model": "fixed",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Because: so.\nAnswer: so", "refusal": None},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 100, "completion_tokens": 8, "total_tokens": 108},
    }
)


async def _serve(delay: float, spread: float, fixed: bool) -> None:
    _Connection.delay, _Connection.spread, _Connection.fixed = delay, spread, fixed
    server = await asyncio.get_running_loop().create_server(_Connection, "127.0.0.1", 0, backlog=CONNECTIONS)
    print(f"listening http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()


class Loopback:
    """``with Loopback() as url:``: the server in a process of its own. ``delay``: seconds before each answer."""

    def __init__(self, delay: float = 0.0, spread: float = 0.0, fixed: bool = False):
        command = [sys.executable, __file__, "--delay", str(delay), "--spread", str(spread)] + ["--fixed"] * fixed
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> str:
        line = self._process.stdout.readline()
        if not line.startswith("listening "):
            raise RuntimeError("the loopback server did not start")
        return line.split()[1]

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.wait(timeout=10)
        self._process.stdout.close()


def mean_delay(url: str) -> float:
    """Seconds that the answers since the last call of this waited, as the server's own clock has it."""
    with urllib.request.urlopen(url) as answer:
        return json.load(answer)["mean_delay"]


# -- the reference


async def bare(url: str, bodies: Sequence[dict[str, Any]], workers: int) -> rows.Spent:
    """The openai client as its documentation shows it, ``workers`` requests at a time, nothing else.

    The time of all ``bodies``, after one request of each worker that opens its connection.
    """
    import openai

    async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:

        async def work(waiting: Iterator[dict[str, Any]]) -> None:
            for body in waiting:
                await client.chat.completions.create(**body)

        async def all_of(chosen: Sequence[dict[str, Any]]) -> None:
            waiting = iter(chosen)
            await asyncio.gather(*(work(waiting) for _ in range(workers)))

        await all_of(bodies[:1] * workers)
        with rows.timed() as spent:
            await all_of(bodies)
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--spread", type=float, default=0.0)
    parser.add_argument("--fixed", action="store_true")
    options = parser.parse_args()
    sys.path.insert(0, str(TESTS))
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    asyncio.run(_serve(options.delay, options.spread, options.fixed))


if __name__ == "__main__":
    main()
