"""The endpoints of params.yaml: an API, a vLLM server, the embedded llama.cpp server; opened when first needed."""

from __future__ import annotations

import asyncio
import os
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from multihop import guard
from multihop.config import Endpoint, Reader
from multihop.environment import Environment
from multihop.errors import EndpointError, ReplayMiss
from multihop.llm import embedded

RETRIES = 6
HEAR_OUT_S = 30.0
"""Seconds that a stopped run waits for what it has asked already."""
SERVER_WORKERS = 64
"""Questions in flight at a server; the pace decides how many of their requests go out."""


@dataclass
class Call:
    """What became of the attempts of one call."""

    attempts: int = 0
    unreachable: int = 0
    """Attempts that met no server: refused, no such name, no route."""
    lost: int = 0
    """Attempts whose answer may have been made, and paid for, and did not arrive whole."""
    last: str = ""
    """Why the last attempt gave no answer."""
    on_the_wire: bool = False
    stopped: bool = False
    """No further attempt is to be made."""


CALL: ContextVar[Call | None] = ContextVar("call", default=None)
"""The call that this task's attempts belong to."""


class Endpoints:
    """One client and one pace for each address; holds the embedded servers it started."""

    def __init__(self, endpoints: dict[str, Endpoint], env: Environment):
        self.endpoints = endpoints
        self.env = env
        self._servers: dict[str, embedded.EmbeddedServer] = {}
        self._clients: dict[tuple[str, str], Any] = {}
        self._heard_out: set[asyncio.Task[Any]] = set()

    def workers(self, endpoint: str) -> int:
        """Questions in flight: one for the embedded model (more brings nothing), 64 for servers."""
        return self.env.workers or (1 if self.endpoints[endpoint].kind == "embedded" else SERVER_WORKERS)

    def open(self, reader: Reader) -> Any:
        """An AsyncOpenAI client for ``reader``. Raises ReplayMiss where nothing is there to ask."""
        endpoint = self.endpoints[reader.endpoint]
        # One server process per model of an embedded endpoint; one client per address otherwise.
        key = (reader.endpoint, reader.model if endpoint.kind == "embedded" else "")
        if key not in self._clients:
            import openai

            from multihop.llm.pace import MOST, Pace
            from multihop.llm.transport import Transport

            url, api_key = self._address(reader, endpoint)
            # A question may have several requests in flight; ``MULTIHOP_WORKERS`` bounds these, too.
            pace = Pace(self.env.workers or (1 if endpoint.kind == "embedded" else MOST))
            transport = Transport(pace, self.env.timeout_s)
            # What aiohttp can unpack, rather than what httpx could.
            http = openai.DefaultAsyncHttpxClient(transport=transport, headers={"Accept-Encoding": "gzip, deflate"})
            self._clients[key] = openai.AsyncOpenAI(
                base_url=url, api_key=api_key, max_retries=RETRIES, timeout=self.env.timeout_s, http_client=http
            )
        return self._clients[key]

    async def ask(self, reader: Reader, body: dict[str, Any]) -> dict[str, Any]:
        """The completion (checked JSON) to a request body. Raises openai's errors once its retries are used up,
        EndpointError where the address leads elsewhere."""
        import httpx2

        from multihop.llm.transport import COMPLETION

        # Neither the request nor the response goes through openai's models: the body is what is sent.
        response = await self.open(reader).post("/chat/completions", body=body, cast_to=httpx2.Response)
        if COMPLETION not in response.extensions:
            where = guard.told(f"{response.url.host}{response.url.path}")
            raise EndpointError(f"endpoint {reader.endpoint!r} redirects to {where}: give its address as it is")
        return response.extensions[COMPLETION]

    def _address(self, reader: Reader, endpoint: Endpoint) -> tuple[str | None, str]:
        url = os.environ.get(endpoint.url_env) if endpoint.url_env else None
        key = os.environ.get(endpoint.key_env or "", "")
        guard.keep_secrets_of(url)
        guard.keep_secret(key)
        _check(endpoint, url, key)
        if endpoint.kind == "embedded":
            if url:
                return url, "none"
            weights = embedded.find_weights(reader.model, self.env.home / "models")
            if weights is None:
                raise ReplayMiss(f"the model {reader.model} is not installed: {embedded.HOW_TO_GET}")
            if reader.model not in self._servers:
                self._servers[reader.model] = embedded.EmbeddedServer(weights, context=reader.context)
            return self._servers[reader.model].url, "none"
        if endpoint.url_env and not url:
            raise ReplayMiss(
                f"endpoint {reader.endpoint!r} has no address: set {endpoint.url_env}, e.g. "
                f"{endpoint.url_env}=http://localhost:8000/v1"
            )
        if endpoint.key_env and not key:
            raise ReplayMiss(f"endpoint {reader.endpoint!r} has no key: set {endpoint.key_env}")
        return url, key or "none"

    def hear_out(self, asking: asyncio.Task[Any], call: Call) -> None:
        """Let the attempt that is on the wire end, and no other begin; ``close`` waits for it."""
        call.stopped = True
        if not call.on_the_wire:
            asking.cancel()
            return
        self._heard_out.add(asking)
        asking.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody else asks for it

    async def heard_out(self) -> None:
        """Wait for what a stopped run has on the wire, up to HEAR_OUT_S; its answers are stored as they come."""
        # What was cancelled a moment ago has had no turn to say that it is on the wire.
        await asyncio.sleep(0)
        if waiting := {task for task in self._heard_out if not task.done()}:
            _, late = await asyncio.wait(waiting, timeout=HEAR_OUT_S)
            for task in late:
                task.cancel()
        self._heard_out.clear()

    async def close(self) -> None:
        await self.heard_out()
        for client in self._clients.values():
            await client.close()
        for server in self._servers.values():
            server.close()
        self._clients.clear()
        self._servers.clear()


def _check(endpoint: Endpoint, url: str | None, key: str) -> None:
    """What can't be sent, refused before any call; neither value is quoted. Raises EndpointError."""
    try:
        parts = urlsplit(url or "http://default")
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 0) >= 0
    except ValueError:  # a port that is no number
        fine = False
    if not fine:
        raise EndpointError(f"{endpoint.url_env}: no address, such as http://localhost:8000/v1")
    if not (key.isascii() and key.isprintable() and key == key.strip()):
        raise EndpointError(f"{endpoint.key_env}: holds a blank, line break or other character that no key has")
