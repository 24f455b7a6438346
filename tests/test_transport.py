"""One attempt over the wire: what is taken for a completion, what for a fault; and the pace of an endpoint."""

from __future__ import annotations

import asyncio
import email.utils
import gzip
import json
import threading
import time
from collections import Counter
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest
from hostile_server import HostileServer, Plan, _Hostile
from project_fixture import URL_ENV, make_client
from scripted_server import Fail, Say, ScriptedServer

from multihop.llm import pace, transport
from multihop.llm.endpoints import CALL, Call
from multihop.llm.pace import Pace
from multihop.llm.transport import NotACompletion, Transport, checked
from multihop.llm.usage import usage_of

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
GOOD = {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}], "usage": {}}


def send(server_url: str, path: str = "/chat/completions", **options: Any) -> tuple[Any, Call]:
    """(the response, or the error; what the call's count says)."""
    call = Call()

    async def work() -> Any:
        CALL.set(call)
        sending = Transport(Pace(4), **{"timeout_s": 5.0} | options)
        async with httpx2.AsyncClient(transport=sending) as client:
            try:
                return await client.post(server_url + path, json=BODY)
            except httpx2.TransportError as e:
                return e

    return asyncio.run(work()), call


@contextmanager
def answering(content: bytes, status: int = 200, headers: dict[str, str] | None = None):
    class Raw(_Hostile):
        def answer(self, body, outcome):
            self.raw(content, status, headers)

    class Server(HostileServer):
        def handler(self):
            return Raw

    with Server(plan=Plan(share=0)) as server:
        yield server.url


# -- what is a completion


def test_a_good_body_is_parsed_once_and_kept():
    with answering(json.dumps(GOOD).encode()) as url:
        response, call = send(url)
    assert response.extensions[transport.COMPLETION] == GOOD and (call.attempts, call.lost) == (1, 0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b"1" * 5000,
        json.dumps(GOOD).encode() * 2,
        json.dumps(GOOD | {"choices": []}).encode(),
        json.dumps({"error": {"message": "overloaded"}}).encode(),
        json.dumps({"choices": [{"message": {"content": ["hi"]}}]}).encode(),
        json.dumps({"choices": [{"message": {"content": None, "tool_calls": [{"id": "a", "function": {}}]}}]}).encode(),
        json.dumps({"choices": [{"message": {"content": "hi"}, "finish_reason": 3}]}).encode(),
    ],
)
def test_a_200_that_is_no_completion_is_a_transport_error(body):
    with pytest.raises(NotACompletion):
        checked(body)
    with answering(body) as url:
        error, call = send(url)
    assert isinstance(error, httpx2.TransportError) and call.lost == 1 and call.last == str(error)


def test_what_is_no_chat_completion_is_not_looked_into():
    with answering(b"lines") as url:
        assert send(url, "/files")[0].content == b"lines"


def test_a_body_over_the_limit_is_not_read_to_its_end():
    body = json.dumps(GOOD).encode() + b" " * 5000
    with answering(body) as url:
        assert send(url, max_bytes=len(body))[0].status_code == 200
        error, call = send(url, max_bytes=len(body) - 1)
    assert "over" in str(error) and call.lost == 1


def test_the_limit_is_of_the_unpacked_body():
    body = json.dumps(GOOD).encode() + b" " * 10_000_000
    with answering(gzip.compress(body), headers={"Content-Encoding": "gzip"}) as url:
        assert send(url)[0].extensions[transport.COMPLETION] == GOOD
        assert "over" in str(send(url, max_bytes=1_000_000)[0])


# -- what goes wrong on the way


def test_a_refused_connection_is_no_lost_answer():
    with ScriptedServer() as gone:
        url = gone.url
    error, call = send(url)
    assert isinstance(error, httpx2.ConnectError) and (call.unreachable, call.lost) == (1, 0)


def test_a_server_that_does_not_answer_in_time_is_given_up():
    with ScriptedServer(lambda body: Say("late"), delay=0.5) as server:
        error, call = send(server.url, timeout_s=0.1)
    assert isinstance(error, httpx2.TimeoutException) and "0.1 s" in str(error)
    assert (call.unreachable, call.lost) == (0, 1)


@pytest.mark.parametrize(
    "said", [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\nbody", b"\x00" * 900]
)
def test_what_is_no_http_is_a_lost_answer(said):
    class Raw(_Hostile):
        def answer(self, body, outcome):
            self.wfile.write(said)
            self.wfile.flush()
            self.drop()

    class Server(HostileServer):
        def handler(self):
            return Raw

    with Server(plan=Plan(share=0)) as server:
        error, call = send(server.url)
    assert isinstance(error, httpx2.TransportError) and call.lost == 1


def test_what_arrives_unasked_on_an_idle_connection_is_nobodys_answer():
    """Else the next request on that connection would get it."""

    class Twice(_Hostile):
        def answer(self, body, outcome):
            self.raw(json.dumps(GOOD).encode())
            if len(self.owner.bodies) == 1:
                time.sleep(0.05)
                self.raw(json.dumps(GOOD | {"stale": True}).encode())

    class Server(HostileServer):
        def handler(self):
            return Twice

    async def work(url: str) -> list[Any]:
        async with httpx2.AsyncClient(transport=Transport(Pace(4), 5.0)) as client:
            first = await client.post(url + "/chat/completions", json=BODY)
            await asyncio.sleep(0.3)
            return [first, await client.post(url + "/chat/completions", json=BODY)]

    with Server(plan=Plan(share=0)) as server:
        responses = asyncio.run(work(server.url))
    assert [r.extensions[transport.COMPLETION] for r in responses] == [GOOD, GOOD]


def test_a_proxy_of_the_environment_is_used_but_not_for_loopback(monkeypatch):
    with answering(json.dumps(GOOD).encode()) as proxy:
        monkeypatch.setenv("http_proxy", proxy.removesuffix("/v1"))
        response, _ = send("http://models.example/v1")
        assert response.extensions[transport.COMPLETION] == GOOD
        monkeypatch.setenv("no_proxy", "models.example")
        with pytest.raises(RuntimeError, match="loopback"):
            send("http://models.example/v1")


# -- usage


def used(usage: Any, content: str = "one two three", max_tokens: int = 20) -> dict[str, Any]:
    completion = {"choices": [{"message": {"content": content}}], "usage": usage}
    return usage_of(completion, BODY | {"max_tokens": max_tokens})


def test_usage_that_can_be_is_kept():
    said = {"prompt_tokens": 9, "completion_tokens": 30, "prompt_tokens_details": {"cached_tokens": 4}}
    assert used(said) == {"prompt_tokens": 9, "completion_tokens": 30, "cached_tokens": 4}
    assert used({"prompt_tokens": 9, "completion_tokens": 0})["cached_tokens"] == 0


@pytest.mark.parametrize("prompt", [None, 0, -1, "9", 9.5, True, 10**6])
def test_prompt_tokens_that_cannot_be_are_estimated(prompt):
    expected = {"prompt_tokens": 5, "completion_tokens": 3, "cached_tokens": 0, "estimated": True}
    assert used({"prompt_tokens": prompt, "completion_tokens": 3}) == expected


@pytest.mark.parametrize("written", [None, -1, "3", 10**6])
def test_completion_tokens_that_cannot_be_are_estimated(written):
    assert used({"prompt_tokens": 9, "completion_tokens": written})["estimated"] is True


def test_a_long_prompt_may_have_as_many_tokens_as_bytes():
    completion = {"choices": [{"message": {"content": ""}}], "usage": {"prompt_tokens": 50_000, "completion_tokens": 1}}
    request = {"messages": [{"role": "user", "content": "x" * 50_000}], "max_tokens": 5}
    assert "estimated" not in usage_of(completion, request)
    request["messages"][0]["content"] = "x" * 30_000
    assert usage_of(completion, request)["estimated"]


# -- Retry-After


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Fri, 99 Nov 2099 00:00:00 GMT"}, None),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after": "-4"}, -4.0),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
    ],
)
def test_retry_after_in_seconds_or_milliseconds(headers, seconds):
    assert transport._retry_after(httpx2.Headers(headers)) == seconds


@pytest.mark.parametrize(("ahead", "low", "high"), [(30, 27, 30), (-3600, -3603, -3600)])
def test_retry_after_as_a_date(ahead, low, high):
    date = email.utils.formatdate(time.time() + ahead, usegmt=True)  # whole seconds
    assert low <= transport._retry_after(httpx2.Headers({"retry-after": date})) <= high


def test_what_an_endpoint_asks_to_wait_is_waited_for_by_all_its_requests(tmp_path, monkeypatch, quick_retries):
    """The openai client's own waiting is off: what is waited for here is the pace's."""
    wait, arrived = 0.4, []

    def script(body):
        arrived.append(time.monotonic())
        return Say("hi")

    async def work(client) -> None:
        ask = lambda text: client.chat([{"role": "user", "content": text}], role="reader")  # noqa: E731
        first = asyncio.create_task(ask("refused at first"))
        while not arrived:
            await asyncio.sleep(0.002)
        await asyncio.sleep(0.05)  # by now the refusal is here
        await asyncio.gather(first, ask("another"))
        await client.endpoints.close()

    plan = Plan(("status 429, Retry-After",), seed=0, share=0.5, attempts=1)
    with HostileServer(script, plan=plan, pause_s=wait) as server:
        monkeypatch.setenv(URL_ENV, server.url)
        asyncio.run(work(make_client(tmp_path)))
        assert server.tried == {"status 429, Retry-After": 1, "none": 2}
    assert min(arrived[1:]) - arrived[0] >= wait


# -- the pace


class Virtual(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next event: seconds pass at once, and the same way each time."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:
            self.now = max(self.now, self._scheduled[0].when())
        super()._run_once()


def simulated(capacity: int, workers: int, calls: int, *, latency: float = 1.0, retry_after: float | None = None):
    """(seconds, refusals, most in flight) of ``calls`` at an endpoint that refuses beyond ``capacity``."""
    loop, seen = Virtual(), Counter()

    async def work() -> None:
        gate = Pace(workers, clock=loop.time)
        left = iter(range(calls))

        async def worker() -> None:
            for _ in left:
                while True:
                    ticket = await gate.enter()
                    if seen["in flight"] >= capacity:
                        seen["refused"] += 1
                        gate.leave(ticket, True, retry_after)
                        await asyncio.sleep(0.5)
                        continue
                    seen["in flight"] += 1
                    seen["most"] = max(seen["most"], seen["in flight"])
                    await asyncio.sleep(latency)
                    seen["in flight"] -= 1
                    gate.leave(ticket, False)
                    break

        await asyncio.gather(*(worker() for _ in range(workers)))

    try:
        loop.run_until_complete(work())
        return loop.now, seen["refused"], seen["most"]
    finally:
        loop.close()


@pytest.mark.parametrize("capacity", [5, 20, 50])
def test_the_limit_finds_the_endpoints_own(capacity):
    calls = 100 * capacity
    seconds, refused, most = simulated(capacity, 128, calls)
    assert most == capacity and calls / seconds > 0.85 * capacity
    assert refused < 0.05 * calls


def test_without_refusals_the_whole_pool_is_soon_in_flight():
    seconds, refused, most = simulated(1000, 128, 12_800)
    assert (refused, most) == (0, 128) and seconds < 105


def test_a_cut_comes_once_a_round_trip():
    async def work() -> Pace:
        gate = Pace(16)
        tickets = [await gate.enter() for _ in range(16)]
        for ticket in tickets:
            gate.leave(ticket, True)
        return gate

    gate = asyncio.run(work())
    assert gate.limit == 8 and gate.in_flight == 0


def test_the_limit_never_falls_below_one_request():
    async def work() -> float:
        gate = Pace(16)
        for _ in range(20):
            gate.leave(await gate.enter(), True)
        return gate.limit

    assert asyncio.run(work()) == 1.0


@pytest.mark.parametrize(("asked", "paused"), [(3.0, 3.0), (None, 0.0), (-1.0, 0.0), (1e9, pace.LONGEST_PAUSE_S)])
def test_retry_after_holds_for_every_request_of_the_endpoint(asked, paused):
    slept = []

    async def work() -> None:
        now = 10.0

        async def sleep(seconds: float) -> None:
            nonlocal now
            slept.append(seconds)
            now += seconds

        gate = Pace(16, clock=lambda: now, sleep=sleep)
        gate.leave(await gate.enter(), True, asked)
        await gate.enter()

    asyncio.run(work())
    assert sum(slept) == paused


def test_who_is_cancelled_while_waiting_gives_the_place_on():
    async def work() -> None:
        gate = Pace(1)
        first = await gate.enter()
        waiting = [asyncio.create_task(gate.enter()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        gate.leave(first, False)
        waiting[1].cancel()  # at the moment when the place is its own
        await asyncio.wait_for(waiting[2], 1)
        assert gate.in_flight == 1

    asyncio.run(work())


def test_an_endpoint_that_takes_few_at_once_is_kept_busy_and_rarely_refuses(tmp_path, monkeypatch, quick_retries):
    capacity, calls = 8, 200
    now, lock = Counter(), threading.Lock()

    def limited(body):
        with lock:
            if now["in flight"] >= capacity:
                now["refused"] += 1
                return Fail(429, "rate_limit_exceeded")
            now["in flight"] += 1
            now["sum"] += now["in flight"]
        time.sleep(0.06)
        with lock:
            now["in flight"] -= 1
        return Say("hi")

    async def work(client) -> None:
        asked = [[{"role": "user", "content": f"q{n}"}] for n in range(calls)]
        gate = asyncio.Semaphore(64)

        async def one(messages) -> None:
            async with gate:
                await client.chat(messages, role="reader")

        await asyncio.gather(*map(one, asked))
        await client.endpoints.close()

    with ScriptedServer(limited) as server:
        monkeypatch.setenv(URL_ENV, server.url)
        asyncio.run(work(make_client(tmp_path)))
    assert now["sum"] / calls > 0.6 * capacity  # in flight, on average, when one is taken on
    assert now["refused"] < 0.15 * calls
