"""What goes over the wire for one attempt: paced, limited in size, and checked before it counts as an answer.

The openai client owns the retries. It takes any 200 for an answer; here a 200 that is no chat completion becomes a
transport error, so that the client asks again as it does after a dropped connection. Connections are aiohttp's, asked
directly: openai's own bridge to it calls a refused connection a timeout, and costs more per call.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import time
from typing import Any
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx2

from multihop import guard
from multihop.llm.endpoints import CALL, Call
from multihop.llm.pace import Pace

BODY_BYTES = 16 * 2**20
CONNECT_S = 30.0
COMPLETION = "completion"
"""The extension of a checked 200 that holds its parsed JSON."""


class NotACompletion(httpx2.RemoteProtocolError):
    """A 200 whose body is no chat completion."""


class _Connector(aiohttp.TCPConnector):
    async def _get(self, *args: Any) -> Any:
        # A server that sent more than was asked for: what lies there would be read as the next request's answer.
        while (connection := await super()._get(*args)) is not None and connection.protocol.should_close:
            connection.close()
        return connection


class Transport(httpx2.AsyncBaseTransport):
    """httpx's side of it: one request in, one response out, whole and checked. ``timeout_s`` is for an attempt."""

    def __init__(self, pace: Pace, timeout_s: float, max_bytes: int = BODY_BYTES):
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(CONNECT_S, timeout_s))
        self._pace, self._max_bytes = pace, max_bytes
        self._session: aiohttp.ClientSession | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Raises httpx's errors: ConnectError, ReadTimeout, RemoteProtocolError (NotACompletion for a bad 200)."""
        call = CALL.get() or Call()
        chat = request.url.path.rstrip("/").endswith("/chat/completions")
        if call.stopped:
            raise asyncio.CancelledError
        ticket = await self._pace.enter()
        call.attempts += 1
        call.on_the_wire = True
        refused, wait = None, None
        try:
            response = await self._send(request, self._max_bytes if chat else None)
            if response.is_success:
                if chat:
                    response.extensions[COMPLETION] = checked(response.content)
                refused = False
            elif _quota_used_up(response.content):
                # Also a 429, but waiting does not bring a used-up quota back.
                response.headers["x-should-retry"] = "false"
            elif response.status_code in (429, 503):
                refused, wait = True, _retry_after(response.headers)
            call.last = f"HTTP {response.status_code}"
            return response
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as e:
            call.unreachable += 1
            call.last = str(e)
            raise httpx2.ConnectError(str(e)) from e
        except TimeoutError as e:
            call.lost += 1
            call.last = f"no answer within {self._timeout.total:g} s"
            raise httpx2.ReadTimeout(call.last) from e
        except (aiohttp.ClientError, OSError) as e:
            call.lost += 1
            call.last = f"the connection broke ({type(e).__name__})"
            raise httpx2.RemoteProtocolError(call.last) from e
        except NotACompletion as e:
            call.lost += 1
            call.last = str(e)
            raise
        except asyncio.CancelledError:
            call.lost += 1
            raise
        finally:
            call.on_the_wire = False
            self._pace.leave(ticket, refused, wait)

    async def _send(self, request: httpx2.Request, most: int | None) -> httpx2.Response:
        session = self._session or self._open(request.url)
        # A login in the address is in the Authorization header by now; aiohttp refuses to be told twice.
        url = request.url.copy_with(userinfo=b"") if request.url.userinfo else request.url
        sending = session.request(
            request.method,
            str(url),
            headers=request.headers,
            data=await request.aread(),
            allow_redirects=False,
            timeout=self._timeout,
        )
        async with sending as answer:
            body, size = [], 0
            async for part in answer.content.iter_any():
                size += len(part)
                if most is not None and size > most:
                    answer.close()
                    raise NotACompletion(f"the body is over {most} bytes")
                body.append(part)
            # aiohttp has unpacked the body, so what says that it is packed must not be passed on.
            headers = [(k, v) for k, v in answer.raw_headers if k.lower() not in _ABOUT_THE_BODY]
            return httpx2.Response(answer.status, headers=headers, content=b"".join(body), request=request)

    def _open(self, url: httpx2.URL) -> aiohttp.ClientSession:
        # A proxy in the environment is for the network: it does not know this machine's servers.
        local = url.host in ("127.0.0.1", "localhost", "::1") or proxy_bypass(url.host)
        proxies = {} if local else getproxies()
        # The pace is what bounds the connections.
        connector = _Connector(limit=0, ssl=httpx2.create_ssl_context() if url.scheme == "https" else True)
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            proxy=proxies.get(url.scheme) or proxies.get("all"),
        )
        return self._session

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()


_ABOUT_THE_BODY = (b"content-encoding", b"content-length", b"transfer-encoding")


def checked(body: bytes) -> dict[str, Any]:
    """The chat completion in ``body``. Raises NotACompletion, saying what is wrong."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as e:
        raise NotACompletion(f"the body is not JSON ({str(e)[:80]})" if body else "the body is empty") from None
    if not isinstance(value, dict):
        raise NotACompletion(f"the body is JSON, but no completion: a {type(value).__name__}")
    choices = value.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        said = f" ({guard.told(json.dumps(value['error']))[:120]})" if value.get("error") else ""
        raise NotACompletion(f"the completion has no choices{said}")
    message = choices[0].get("message")
    if not isinstance(message, dict) or not _texts(message.get("content"), message.get("refusal")):
        raise NotACompletion("the completion has no message of text")
    calls = message.get("tool_calls") or ()
    if not _texts(choices[0].get("finish_reason")) or not isinstance(calls, list | tuple) or not all(map(_call, calls)):
        raise NotACompletion("the completion's tool calls or finish reason are not as they must be")
    return value


def _quota_used_up(body: bytes) -> bool:
    try:
        error = json.loads(body)["error"]
        return "insufficient_quota" in (error.get("code"), error.get("type"))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return False


def _texts(*values: Any) -> bool:
    return all(value is None or isinstance(value, str) for value in values)


def _call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return False
    return all(isinstance(v, str) for v in (call.get("id"), function.get("name"), function.get("arguments")))


def _retry_after(headers: httpx2.Headers) -> float | None:
    """Seconds that the endpoint asks to wait (Retry-After in seconds or as a date, or retry-after-ms)."""
    for name, divisor in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            return float(headers.get(name, "")) / divisor
        except ValueError:
            continue
    try:
        return email.utils.parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - time.time()
    except (TypeError, ValueError):
        return None
