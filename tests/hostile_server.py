"""A hostile endpoint: the scripted server, whose answers go wrong by a seeded plan.

What happens to an attempt is decided by (seed, request, number of the attempt), so that neither order nor concurrency
changes it. In a test: ``with HostileServer(plan=Plan(share=0.3)) as server``. As a program:
``python tests/hostile_server.py --plan passing --seed 1 [--share 0.3] [--port 0]`` prints ``listening <base address>``;
``GET /counts`` returns how often each kind of fault was played.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from scripted_server import QUOTA, Body, Fail, Handler, Say, ScriptedServer, body_hash, completion

PASSING = (
    *("slow", "drip", "status 408", "status 409", "status 429", "status 429, Retry-After", "status 500"),
    *("status 502", "status 503", "status 503, Retry-After", "dropped before", "dropped during", "dropped after"),
    *("malformed", "truncated", "empty", "duplicated", "sent twice", "oversized", "wrong JSON"),
)
"""Asking again helps (or nothing was wrong with the answer): the records are those of a fault-free run."""
HANGING = ("hanging",)
"""As PASSING, but costs the client its whole timeout."""
ALTERED = ("content null", "length stop", "content-filter stop", "usage missing", "usage absurd")
"""An answer all the same, another one than without the fault."""
FATAL = ("insufficient quota", "key expired")
"""No use in asking again, whatever the question."""
KINDS = PASSING + HANGING + ALTERED + FATAL
HARMLESS = ("slow", "drip", "dropped after", "sent twice")
"""The answer of this very attempt arrives whole."""


@dataclass(frozen=True)
class Plan:
    kinds: tuple[str, ...] = PASSING
    seed: int = 0
    share: float = 0.3
    """Of attempts that go wrong."""
    attempts: int | None = None
    """Only so many attempts of a request can; None: all."""

    def fault(self, request: str, attempt: int) -> str | None:
        """The kind for the ``attempt``-th (from 0) attempt at a request (its hash)."""
        rng = random.Random(f"{self.seed}:{request}:{attempt}")
        if (self.attempts is not None and attempt >= self.attempts) or rng.random() >= self.share:
            return None
        return rng.choice(self.kinds)


@dataclass
class HostileServer(ScriptedServer):
    plan: Plan = field(default_factory=Plan)
    pause_s: float = 0.05
    """Of a slow answer, and what Retry-After asks for."""
    hang_s: float = 30.0
    oversize: int = 17 * 2**20
    tried: Counter[str] = field(default_factory=Counter)
    """Attempts by what was done to them ("none" too)."""
    played: dict[str, list[str]] = field(default_factory=dict)
    """What was done to each attempt at a request (by its hash), in order; "" where nothing was."""

    @property
    def hit(self) -> set[str]:
        """Requests of which an attempt went wrong."""
        return {request for request, kinds in self.played.items() if any(kinds)}

    def handler(self) -> type[Handler]:
        return _Hostile

    def fault(self, body: Body) -> str | None:
        with self._lock:
            kind = self.plan.fault(body_hash(body), self.counts[body_hash(body)] - 1)
            self.tried[kind or "none"] += 1
            self.played.setdefault(body_hash(body), []).append(kind or "")
        return kind


class _Hostile(Handler):
    owner: HostileServer

    def do_GET(self) -> None:
        self._send(200, dict(self.owner.tried) if self.path == "/counts" else {"object": "list", "data": []})

    def answer(self, body: Body, outcome: Say | Fail) -> None:
        kind = self.owner.fault(body)
        if kind is None or not isinstance(outcome, Say):
            super().answer(body, outcome)
        elif kind.startswith("status "):
            status, _, header = kind.removeprefix("status ").partition(", ")
            wait = {header: f"{self.owner.pause_s:g}"} if header else {}
            self.raw(b"<html>not now</html>", int(status), {"Content-Type": "text/html"} | wait)
        elif kind in _OTHERWISE:
            super().answer(body, _OTHERWISE[kind](outcome))
        else:
            good = json.dumps(completion(body, outcome)).encode()
            _PLAYED[kind](self, good, random.Random(f"{self.owner.plan.seed}:{body_hash(body)}"))
            if kind in HARMLESS:
                self.owner.count_answer(body)

    def raw(
        self,
        content: bytes,
        status: int = 200,
        headers: dict[str, str] | None = None,
        length: int = -1,
        flush: bool = True,
    ) -> None:
        """``content`` with ``length`` (default: its own) as its Content-Length."""
        self.send_response(status)
        for name, value in ({"Content-Type": "application/json"} | (headers or {})).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content) if length < 0 else length))
        self.end_headers()
        self.wfile.write(content)
        if flush:
            self.wfile.flush()

    def reset(self) -> None:
        """Close so that the other side sees a reset."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.drop()


def _slow(h: _Hostile, good: bytes, rng: random.Random) -> None:
    time.sleep(h.owner.pause_s)
    h.raw(good)


def _drip(h: _Hostile, good: bytes, rng: random.Random) -> None:
    step = len(good) // 5 + 1
    h.raw(good[:step], length=len(good))
    for start in range(step, len(good), step):
        time.sleep(h.owner.pause_s / 5)
        h.wfile.write(good[start : start + step])
        h.wfile.flush()


def _during(h: _Hostile, good: bytes, rng: random.Random) -> None:
    h.raw(good[: rng.randrange(len(good))], length=len(good))
    rng.choice((h.reset, h.drop))()


def _after(h: _Hostile, good: bytes, rng: random.Random) -> None:
    h.raw(good)
    h.drop()


def _malformed(h: _Hostile, good: bytes, rng: random.Random) -> None:
    at = rng.randrange(1, len(good) - 1)
    inside = good[:at] + b'"}{' + good[at:]
    h.raw(rng.choice((inside, b"\xff\xfe" + good, b"data: " + good, b"[" * 100_000, b"9" * 9999)))


def _twice(h: _Hostile, good: bytes, rng: random.Random) -> None:
    """The answer, then a whole response more that nobody asked for and that is another one."""
    h.raw(good, flush=False)
    h.raw(good.replace(b'"content": "', b'"content": "not asked for '))


def _wrong_json(h: _Hostile, good: bytes, rng: random.Random) -> None:
    whole = json.loads(good)
    message, said = whole["choices"][0]["message"], {"error": {"message": "internal", "code": 500}}
    choices = ([], "none", [None], [{"index": 0}], [{"message": None}], [{"message": message | {"content": 7}}])
    calls = [{"message": message | {"tool_calls": [{"id": 1}]}}]
    wrong = [*({**whole, "choices": c} for c in (*choices, calls)), [], None, "ok", 7, {}, said]
    h.raw(json.dumps(rng.choice(wrong)).encode())


def _absurd(h: _Hostile, good: bytes, rng: random.Random) -> None:
    counts = (-5, "many", None, 1.5, 10**9, True, [3])
    usage = {"prompt_tokens": rng.choice(counts), "completion_tokens": rng.choice((2, *counts))}
    h.raw(json.dumps(json.loads(good) | {"usage": rng.choice((usage, "much", [], 7))}).encode())


_PLAYED: dict[str, Callable[[_Hostile, bytes, random.Random], None]] = {
    "slow": _slow,
    "drip": _drip,
    "hanging": lambda h, good, rng: (time.sleep(h.owner.hang_s), h.drop())[1],
    "dropped before": lambda h, good, rng: rng.choice((h.reset, h.drop))(),
    "dropped during": _during,
    "dropped after": _after,
    "malformed": _malformed,
    "truncated": lambda h, good, rng: h.raw(good[: rng.randrange(1, len(good))]),
    "empty": lambda h, good, rng: h.raw(b""),
    "duplicated": lambda h, good, rng: h.raw(good + good),
    "sent twice": _twice,
    "oversized": lambda h, good, rng: h.raw(good[:1] + b" " * h.owner.oversize + good[1:]),
    "wrong JSON": _wrong_json,
    "usage absurd": _absurd,
}
_OTHERWISE: dict[str, Callable[[Say], Say | Fail]] = {
    "content null": lambda said: replace(said, content=None, tool_calls=()),
    "length stop": lambda said: Say((said.content or "")[:8], finish="length"),
    "content-filter stop": lambda said: Say((said.content or "")[:8], finish="content_filter"),
    "usage missing": lambda said: replace(said, usage=False),
    "insufficient quota": lambda said: QUOTA,
    "key expired": lambda said: Fail(401, "invalid_api_key", "The key has expired."),
}
PLANS = {"passing": PASSING, "altered": ALTERED, "fatal": FATAL, "all": KINDS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", default="passing", help=f"{', '.join(PLANS)}, or kinds with semicolons between")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=0.3)
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    kinds = PLANS.get(options.plan) or tuple(k.strip() for k in options.plan.split(";"))
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"unknown kinds {sorted(unknown)}; known: {'; '.join(KINDS)}")
    with HostileServer(port=options.port, plan=Plan(kinds, options.seed, options.share)) as server:
        print(f"listening {server.url}", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
