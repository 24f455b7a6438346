"""One async client for every OpenAI-compatible endpoint: an API, a vLLM server, the embedded llama.cpp server.

Order of things for a request: the response store answers if it can; else, where live calls are allowed and
possible, the endpoint is asked (the openai client retries, and is the only one that does), the meter settles
the cost and the answer is stored. Usage is logical: the same whether an answer was live or replayed.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from multihop.config import Endpoint, Reader
from multihop.environment import Environment
from multihop.errors import EndpointError, MultihopError, ReplayMiss
from multihop.llm import embedded
from multihop.llm.meter import Meter
from multihop.store import Store, request_key
from multihop.types import Usage

RETRIES = 6
_OVERFLOW = "context_overflow"
TIMEOUT_S = 600.0


class Refused(Exception):
    """The model, or the endpoint's content filter, declined to answer."""


class ContextOverflow(Exception):
    """The messages do not fit the model's context window."""


@dataclass(frozen=True)
class ToolCall:
    id: str
    name: str
    arguments: str
    """As the model wrote them: JSON, or not."""


@dataclass(frozen=True)
class Reply:
    text: str
    """Empty where the model's content was null."""
    usage: Usage
    finish_reason: str
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass
class SideLog:
    """What no hash may see: live or replayed, cached tokens, seconds. One row per call."""

    rows: list[dict[str, Any]] = field(default_factory=list)


class Endpoints:
    """The endpoints of params.yaml, opened when first needed; holds the embedded servers it started."""

    def __init__(self, endpoints: dict[str, Endpoint], env: Environment):
        self.endpoints = endpoints
        self.env = env
        self._servers: dict[str, embedded.EmbeddedServer] = {}
        self._clients: dict[tuple[str, str], Any] = {}

    def open(self, reader: Reader) -> Any:
        """An AsyncOpenAI client for ``reader``. Raises ReplayMiss where nothing is there to ask."""
        endpoint = self.endpoints[reader.endpoint]
        # One server process per model of an embedded endpoint; one client per address otherwise.
        key = (reader.endpoint, reader.model if endpoint.kind == "embedded" else "")
        if key not in self._clients:
            import openai

            url, api_key = self._address(reader, endpoint)
            hooks = {"response": [_no_retry_without_quota]}
            # A proxy in the environment is for the network: it does not know this machine's servers.
            local = urlsplit(url or "").hostname in ("127.0.0.1", "localhost", "::1")
            self._clients[key] = openai.AsyncOpenAI(
                base_url=url,
                api_key=api_key,
                max_retries=RETRIES,
                timeout=TIMEOUT_S,
                http_client=openai.DefaultAsyncHttpxClient(event_hooks=hooks, trust_env=not local),
            )
        return self._clients[key]

    def _address(self, reader: Reader, endpoint: Endpoint) -> tuple[str | None, str]:
        url = os.environ.get(endpoint.url_env) if endpoint.url_env else None
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
        key = os.environ.get(endpoint.key_env or "", "")
        if endpoint.key_env and not key:
            raise ReplayMiss(f"endpoint {reader.endpoint!r} has no key: set {endpoint.key_env}")
        return url, key or "none"

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()
        for server in self._servers.values():
            server.close()
        self._clients.clear()
        self._servers.clear()


class ChatClient:
    """Chat completions of one reader (a model with its sampling), through store and meter."""

    def __init__(
        self, name: str, reader: Reader, endpoints: Endpoints, store: Store, meter: Meter, log: SideLog | None = None
    ):
        self.name = name
        self.reader = reader
        self.endpoint = endpoints.endpoints[reader.endpoint]
        self.endpoints = endpoints
        self.store = store
        self.meter = meter
        self.log = log or SideLog()
        self._asking: dict[str, asyncio.Lock] = {}

    async def chat(
        self,
        messages: list[dict[str, Any]],
        *,
        role: str,
        max_tokens: int | None = None,
        temperature: float | None = None,
        sample: int = 0,
        tools: list[dict[str, Any]] | None = None,
        response_format: dict[str, Any] | None = None,
    ) -> Reply:
        """One reply. ``sample`` tells repeated draws of the same request apart (and is sent as the seed).

        Raises Refused, ContextOverflow (both about this question), ReplayMiss, EndpointError,
        BudgetExceeded (all about the run), or openai's error once its retries are used up.
        """
        temperature_used = self.reader.temperature if temperature is None else temperature
        request: dict[str, Any] = {
            "model": self.reader.model,
            "messages": messages,
            "temperature": temperature_used,
            "max_tokens": min(max_tokens or self.reader.max_tokens, self.reader.max_tokens),
            # At temperature 0 there is one draw: seeds of a run share it, and pay once.
            "sample": sample if temperature_used else 0,
        }
        if tools:
            request["tools"] = tools
        if response_format:
            request["response_format"] = response_format
        started = time.monotonic()
        key = request_key(request)
        # Two questions that ask the same at once pay once: the second waits and finds the stored answer.
        async with self._asking.setdefault(key, asyncio.Lock()):
            response = self.store.get(request)
            live = response is None
            if response is None:
                response = await self.ask_live(request, role)
                self.store.put(request, response)
                # Where another process was first, its answer is the one that a replay gives.
                response = self.store.get(request) or response
        self._asking.pop(key, None)
        self.log.rows.append(
            {
                "role": role,
                "key": key,
                "live": live,
                "seconds": round(time.monotonic() - started, 3) if live else 0.0,
                "cached_tokens": response["usage"].get("cached_tokens", 0),
            }
        )
        return _reply(response)

    async def ask_live(self, request: dict[str, Any], role: str) -> dict[str, Any]:
        """The endpoint's response to a stored form of request, whatever the store holds."""
        if self.endpoints.env.live == "never":
            raise ReplayMiss(
                f"a {role} call is not in the recording and MULTIHOP_LIVE=never forbids asking a model; "
                f"unset it, then {embedded.HOW_TO_GET}"
            )
        try:
            client = self.endpoints.open(self.reader)
        except ReplayMiss as e:
            raise ReplayMiss(f"a {role} call is not in the recording, and {e}") from e
        body = {k: v for k, v in request.items() if k != "sample"} | {"seed": request["sample"]}
        reservation = self.meter.reserve(self.reader.model, request)
        usage = None
        try:
            completion = await client.chat.completions.create(**body)
            response = _response(completion)
            usage = response["usage"]
        except Exception as e:
            translated = _translated(e, self)
            if not isinstance(translated, ContextOverflow | Refused):
                raise translated from e
            # What the request itself caused would come again: it is an answer of the endpoint, and is stored.
            overflow = isinstance(translated, ContextOverflow)
            response = {
                "content": None,
                "refusal": None if overflow else str(translated)[:200],
                "tool_calls": [],
                "finish_reason": _OVERFLOW if overflow else "content_filter",
                "model": "",
                "fingerprint": None,
                "usage": {"prompt_tokens": 0, "completion_tokens": 0, "cached_tokens": 0},
            }
        finally:
            self.meter.settle(reservation, self.reader.model, usage)
        return response


async def _no_retry_without_quota(response: Any) -> None:
    """A used-up quota is also a 429, and waiting does not bring it back."""
    if response.status_code == 429:
        await response.aread()
        if "insufficient_quota" in response.text:
            response.headers["x-should-retry"] = "false"


def _response(completion: Any) -> dict[str, Any]:
    """What is kept of a completion: enough to replay it, nothing that says where or when."""
    choice = completion.choices[0]
    message = choice.message
    usage = completion.usage
    details = getattr(usage, "prompt_tokens_details", None)
    return {
        "content": message.content,
        "refusal": getattr(message, "refusal", None),
        "tool_calls": [
            {"id": call.id, "name": call.function.name, "arguments": call.function.arguments}
            for call in message.tool_calls or ()
        ],
        "finish_reason": choice.finish_reason or "",
        # The embedded server names its file: only the name is kept, never a path.
        "model": str(completion.model or "").replace("\\", "/").rsplit("/", 1)[-1],
        "fingerprint": completion.system_fingerprint,
        "usage": {
            "prompt_tokens": getattr(usage, "prompt_tokens", 0) or 0,
            "completion_tokens": getattr(usage, "completion_tokens", 0) or 0,
            "cached_tokens": getattr(details, "cached_tokens", 0) or 0,
        },
    }


def _reply(response: dict[str, Any]) -> Reply:
    if response["finish_reason"] == _OVERFLOW:
        raise ContextOverflow("the messages do not fit the model's context window")
    if response.get("refusal") or response["finish_reason"] == "content_filter":
        raise Refused(response.get("refusal") or "the endpoint's content filter stopped the answer")
    return Reply(
        text=response["content"] or "",
        usage=Usage(1, response["usage"]["prompt_tokens"], response["usage"]["completion_tokens"]),
        finish_reason=response["finish_reason"],
        tool_calls=tuple(ToolCall(**call) for call in response["tool_calls"]),
    )


def _translated(error: Exception, client: ChatClient) -> Exception:
    """The openai client's errors as ours, where the whole run or just this question is meant."""
    import openai

    endpoint = client.reader.endpoint
    code = str(getattr(error, "code", "") or "")
    text = str(error).lower()
    if isinstance(error, MultihopError):
        return error
    if isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError):
        variable = client.endpoint.key_env or "the key"
        return EndpointError(f"endpoint {endpoint!r} refuses the key: check {variable}")
    if isinstance(error, openai.NotFoundError):
        return EndpointError(
            f"endpoint {endpoint!r} does not know the model {client.reader.model!r}: check readers.{client.name}.model"
        )
    if code == "insufficient_quota" or "insufficient_quota" in text:
        return EndpointError(f"endpoint {endpoint!r}: the account's quota is used up; what is answered stays stored")
    if isinstance(error, openai.BadRequestError):
        if code == "content_filter":
            return Refused(str(error))
        if code == "context_length_exceeded" or ("context" in text and ("exceed" in text or "length" in text)):
            return ContextOverflow(str(error))
        return error
    if isinstance(error, openai.APIConnectionError) and not isinstance(error, openai.APITimeoutError):
        where = f"check {client.endpoint.url_env}" if client.endpoint.url_env else "check the network"
        return EndpointError(f"endpoint {endpoint!r} can't be reached: {where}")
    return error
