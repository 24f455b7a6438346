"""One async client for every OpenAI-compatible endpoint: an API, a vLLM server, the embedded llama.cpp server.

Order of things for a request: the response store answers if it can; else, where live calls are allowed and
possible, the endpoint is asked (the openai client retries, and is the only one that does), the meter settles
the cost and the answer is stored. Usage is logical: the same whether an answer was live or replayed.
"""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from multihop import guard
from multihop.config import Reader
from multihop.errors import EndpointError, MultihopError, ReplayMiss
from multihop.llm import embedded
from multihop.llm.claiming import claims_of
from multihop.llm.endpoints import CALL, Call, Endpoints
from multihop.llm.meter import Meter
from multihop.llm.usage import usage_of
from multihop.store import Store, request_key
from multihop.types import Usage

_OVERFLOW = "context_overflow"
_TOO_LONG = re.compile(r"context (length|size|window)")
_FIRST_WORDS = 250
"""Characters of an endpoint's error in which it says what is wrong; what it quotes of the request comes later."""
_NAME_LENGTH = 200
PASSING = (408, 409, 429)
"""Statuses below 500 that the openai client retries."""


class Refused(Exception):
    """The model, or the endpoint's content filter, declined to answer."""


class ContextOverflow(Exception):
    """The messages do not fit the model's context window."""


class NoAnswer(Exception):
    """Every attempt broke off, brought no completion or was turned down: an error of this question, not stored, asked
    again later."""


class Deferred(MultihopError):
    """The call was noted, not made: a batch will ask it (:mod:`multihop.llm.batching`)."""


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
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.deferring: dict[str, dict[str, Any]] | None = None
        """Where not None, a missing answer is not asked for but noted here, by key."""
        self._claims = claims_of(store.path)

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

        Raises Refused, ContextOverflow, NoAnswer (all about this question), ReplayMiss, EndpointError,
        BudgetExceeded (all about the run), or openai's error for a status that its retries did not get past.
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
        asking = self._asking.setdefault(key, asyncio.Lock())
        async with asking:
            response, live = self.store.get(request, key), False
            if response is None:
                response, live = await self._ask_to_the_end(request, key, role)
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

    async def _ask_to_the_end(self, request: dict[str, Any], key: str, role: str) -> tuple[dict[str, Any], bool]:
        """(the answer, stored; whether it was asked for here rather than by another process).

        Where the run is stopped, the attempt on the wire is still heard out: it is paid for.
        """
        call = Call()

        async def ask() -> tuple[dict[str, Any], bool]:
            async with self._claims.of(key):  # two processes on one store pay once, too
                if (stored := self.store.get(request, key)) is not None:
                    return stored, False
                response = await self.ask_live(request, role, call)
                self.store.put(request, response, key)
                # Where another process was first all the same, its answer is the one that a replay gives.
                return self.store.get(request, key) or response, True

        asking = asyncio.create_task(ask())
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            self.endpoints.hear_out(asking, call)
            raise

    async def ask_live(self, request: dict[str, Any], role: str, call: Call | None = None) -> dict[str, Any]:
        """The endpoint's response to a stored form of request, whatever the store holds."""
        if self.endpoints.env.live == "never":
            raise ReplayMiss(
                f"a {role} call is not in the recording and MULTIHOP_LIVE=never forbids asking a model; "
                f"unset it, then {embedded.HOW_TO_GET}"
            )
        try:
            self.endpoints.open(self.reader)
        except ReplayMiss as e:
            raise ReplayMiss(f"a {role} call is not in the recording, and {e}") from e
        if self.deferring is not None:
            self.deferring[request_key(request)] = request
            raise Deferred(f"a {role} call is left to a batch")
        body = body_of(request)
        reservation = await self.meter.reserve_in_turn(self.reader.model, request)
        call, usage = call or Call(), None
        CALL.set(call)
        try:
            response = stored_form(await self.endpoints.ask(self.reader, body), request)
            usage = response["usage"]
        except Exception as e:
            translated = _translated(guard.scrubbed(e), self, call)
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
            self.meter.settle(reservation, self.reader.model, usage, call.lost)
        return response


def body_of(request: dict[str, Any]) -> dict[str, Any]:
    """What is sent of a request as it is stored."""
    return {k: v for k, v in request.items() if k != "sample"} | {"seed": request["sample"]}


def stored_form(completion: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a checked completion: enough to replay it, nothing that says where or when."""
    choice = completion["choices"][0]
    message = choice["message"]
    return {
        "content": _encodable(message.get("content")),
        "refusal": _encodable(message.get("refusal")),
        "tool_calls": [
            {
                "id": _encodable(call["id"]),
                "name": _encodable(call["function"]["name"]),
                "arguments": _encodable(call["function"]["arguments"]),
            }
            for call in message.get("tool_calls") or ()
        ],
        "finish_reason": _encodable(choice.get("finish_reason")) or "",
        # The embedded server names its file: only the name is kept, never a path.
        "model": _name(completion.get("model")).replace("\\", "/").rsplit("/", 1)[-1],
        "fingerprint": _name(completion.get("system_fingerprint")) or None,
        "usage": usage_of(completion, request),
    }


def _name(value: Any) -> str:
    return (_encodable(value) or "")[:_NAME_LENGTH] if isinstance(value, str) else ""


def _encodable(text: str | None) -> str | None:
    """Without lone surrogates, which a cut emoji leaves behind and no file can hold."""
    return text if text is None or text.isascii() else text.encode("utf-8", "replace").decode()


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


def _translated(error: Exception, client: ChatClient, call: Call) -> Exception:
    """The openai client's errors as ours, where the whole run or just this question is meant."""
    import openai

    endpoint = client.reader.endpoint
    code = str(getattr(error, "code", "") or "")
    text = str(error).lower()
    tried = f"no answer in {call.attempts} attempts, the last"
    if isinstance(error, MultihopError):
        return error
    if isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError):
        variable = client.endpoint.key_env or "the key"
        return EndpointError(f"endpoint {endpoint!r} refuses the key: check {variable}")
    if isinstance(error, openai.NotFoundError):
        return EndpointError(
            f"endpoint {endpoint!r} does not know the model {client.reader.model!r}: check readers.{client.name}.model"
        )
    if "insufficient_quota" in (code, getattr(error, "type", "")):
        return EndpointError(f"endpoint {endpoint!r}: the account's quota is used up; what is answered stays stored")
    if isinstance(error, openai.BadRequestError):
        if code == "content_filter":
            return Refused(str(error))
        if code == "context_length_exceeded" or _TOO_LONG.search(text[:_FIRST_WORDS]):
            return ContextOverflow(str(error))
    if isinstance(error, openai.APIConnectionError):
        if call.unreachable == call.attempts:
            where = f"check {client.endpoint.url_env}" if client.endpoint.url_env else "check the network"
            return EndpointError(f"endpoint {endpoint!r} can't be reached ({call.last}): {where}")
        return NoAnswer(f"endpoint {endpoint!r}: {tried}: {guard.told(call.last)}")
    if isinstance(error, openai.APIStatusError) and (error.status_code >= 500 or error.status_code in PASSING):
        return NoAnswer(f"endpoint {endpoint!r}: {tried}: {str(error)[:200]}")
    if isinstance(error, openai.APIStatusError):
        return NoAnswer(f"endpoint {endpoint!r} turns the request down: {str(error)[:200]}")
    return error
