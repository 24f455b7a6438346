"""Batch mode (``endpoints.<name>.batch: true``): what a cell is about to ask, sent ahead as one batch, then replayed.

A first pass over the cell only notes the missing requests. They go to the endpoint's Batch API, their answers into the
store under the same keys, and the normal run replays them; what the batch did not answer it asks one by one. So
records are those of a run without batches. Every request keeps its batch's mark in the store before the batch is made,
so that a killed command finds its batch again, however far it got, and does not pay for a second one.
"""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from multihop import guard
from multihop.errors import BudgetExceeded, EndpointError
from multihop.llm.client import ChatClient, ContextOverflow, Deferred, NoAnswer, Refused, _response, body_of
from multihop.llm.meter import Reservation
from multihop.llm.transport import NotACompletion, checked

MOST_REQUESTS = 20_000
MOST_BYTES = 90 * 2**20
"""Of one batch; the API takes 50,000 requests and 200 MB."""
POLL_S = (2.0, 60.0)
"""Seconds between two looks at a batch: at first, and at most."""
TRIES = 4
"""To make a batch, where the answer to making it was lost."""
OPEN = ("validating", "in_progress", "finalizing")
_SPACE = "batch"
_MARK, _RESERVED = "multihop", "reserved"


def offered(client: ChatClient) -> bool:
    """Whether the client's endpoint takes batches and may be asked."""
    return client.endpoint.batch and client.endpoints.env.live != "never"


async def ahead(client: ChatClient, items: Iterable[Any], ask: Callable[[Any], Awaitable[Any]]) -> int:
    """Have everything that ``ask`` of the items asks answered by batches; returns how many answers came that way.

    Several passes, where a request follows from an answer. ``ask``'s other results and its failures about one item are
    the normal run's to see. Raises BudgetExceeded where a whole batch could pass a ceiling, EndpointError where the
    endpoint offers no batches or one failed.
    """
    tried: set[str] = set()
    answered, logged = 0, len(client.log.rows)
    everything = list(items)
    while True:
        missing: dict[str, dict[str, Any]] = {}
        client.deferring = missing
        try:
            for item in everything:
                try:
                    await ask(item)
                except (Deferred, Refused, ContextOverflow, NoAnswer):
                    continue
        finally:
            client.deferring = None
            del client.log.rows[logged:]
        new = {key: request for key, request in missing.items() if key not in tried}
        if not new:
            return answered
        tried |= set(new)
        for part in _parts(new):
            answered += await _Batch(client, part).answers()


def _parts(requests: dict[str, dict[str, Any]]) -> list[dict[str, dict[str, Any]]]:
    """Requests by key, divided so that each part fits one batch."""
    parts: list[dict[str, dict[str, Any]]] = [{}]
    size = 0
    for key, request in requests.items():
        length = len(_line(key, request))
        if parts[-1] and (len(parts[-1]) == MOST_REQUESTS or size + length > MOST_BYTES):
            parts.append({})
            size = 0
        parts[-1][key] = request
        size += length
    return parts


def _line(key: str, request: dict[str, Any]) -> bytes:
    line = {"custom_id": key, "method": "POST", "url": "/v1/chat/completions", "body": body_of(request)}
    return json.dumps(line, ensure_ascii=False).encode("utf-8") + b"\n"


class _Batch:
    """Requests by key, on their way through one batch or, where some were under way already, more."""

    def __init__(self, client: ChatClient, requests: dict[str, dict[str, Any]]):
        self.client, self.requests = client, requests
        self.api = client.endpoints.open(client.reader)
        self.model = client.reader.model
        self.factor = client.meter.prices.of(self.model).batch

    async def answers(self) -> int:
        """How many were answered and stored."""
        count = 0
        for mark, keys in self._marked().items():
            batch = await self._found(mark)
            if batch is not None:
                # What it reserved is spent since the command that made it is gone; else what it cost is noted now.
                reserved = batch.metadata.get(_RESERVED) == "yes"
                count += self._stored(await self._outputs(await self._finished(batch)), keys, {}, charged=reserved)
                continue
            async with self._reserved(keys) as held:
                batch = await self._finished(await self._made(mark, keys))
                count += self._stored(await self._outputs(batch), keys, held)
            if batch.status != "completed":
                raise EndpointError(
                    f"endpoint {self.client.reader.endpoint!r}: batch {batch.id} ended as {batch.status}"
                    f"{_reason(batch)}; what it answered is stored: run the same command again, or set "
                    f"endpoints.{self.client.reader.endpoint}.batch: false"
                )
        return count

    def _marked(self) -> dict[str, list[str]]:
        """Mark of a batch -> its keys; the keys without one get a new one."""
        store = self.client.store
        store.put_values(_SPACE, dict.fromkeys(self.requests, uuid.uuid4().hex))  # a mark that is there stays
        marks: dict[str, list[str]] = {}
        for key, mark in store.get_values(_SPACE, self.requests).items():
            marks.setdefault(mark, []).append(key)
        return marks

    @asynccontextmanager
    async def _reserved(self, keys: list[str]) -> AsyncIterator[dict[str, Reservation]]:
        """Reservations by key. What is left of them at the end was not answered: free where the batch ended, spent
        where it is still on its way."""
        meter, held = self.client.meter, {}
        try:
            for key in keys:
                held[key] = meter.reserve(self.model, self.requests[key], self.factor)
        except BudgetExceeded as e:
            for reservation in held.values():
                meter.settle(reservation, self.model, None)
            raise BudgetExceeded(f"a batch of {len(keys)} calls does not fit: {e}") from None
        lost = 0
        try:
            yield held
        except EndpointError:
            raise
        except BaseException:
            lost = 1 if meter.limits else 0  # without ceilings who picks the batch up notes what it cost
            raise
        finally:
            for reservation in held.values():
                meter.settle(reservation, self.model, None, lost)

    async def _found(self, mark: str) -> Any:
        """The batch of this mark that is under way or completed, or None."""
        with _translating(self.client):
            async for batch in self.api.batches.list(limit=100):
                if (batch.metadata or {}).get(_MARK) == mark and batch.status in (*OPEN, "completed"):
                    return batch
        return None

    async def _made(self, mark: str, keys: list[str]) -> Any:
        import openai

        lines = b"".join(_line(key, self.requests[key]) for key in keys)
        with _translating(self.client):
            file = await self.api.files.create(file=("requests.jsonl", lines), purpose="batch")
            for left in reversed(range(TRIES)):
                try:
                    # No retry of the client's own: an answer that was lost may have made a batch.
                    return await self.api.with_options(max_retries=0).batches.create(
                        input_file_id=file.id,
                        endpoint="/v1/chat/completions",
                        completion_window="24h",
                        metadata={_MARK: mark, _RESERVED: "yes" if self.client.meter.limits else "no"},
                    )
                except (openai.APIConnectionError, openai.InternalServerError, openai.RateLimitError):
                    if batch := await self._found(mark):
                        return batch
                    if not left:
                        raise
                    await asyncio.sleep(POLL_S[0])

    async def _finished(self, batch: Any) -> Any:
        """The batch when it has ended, however that was."""
        wait, most = POLL_S
        print(f"  batch {batch.id}: {len(self.requests)} calls sent or found; waiting for it", file=sys.stderr)
        while batch.status in (*OPEN, "cancelling"):
            await asyncio.sleep(wait)
            wait = min(wait * 1.5, most)
            with _translating(self.client):
                batch = await self.api.batches.retrieve(batch.id)
        return batch

    async def _outputs(self, batch: Any) -> dict[str, Any]:
        """Responses (status and body) by key; of a batch that failed before it began, none."""
        if not batch.output_file_id:
            return {}
        with _translating(self.client):
            content = await self.api.files.content(batch.output_file_id)
        rows = [_parsed(line) for line in content.content.split(b"\n") if line.strip()]
        return {str(row.get("custom_id")): row["response"] for row in rows if isinstance(row.get("response"), dict)}

    def _stored(
        self, outputs: dict[str, Any], keys: list[str], held: dict[str, Reservation], charged: bool = False
    ) -> int:
        """Store what was answered and settle it (take it from ``held``); the rest is asked one by one afterwards."""
        client, count = self.client, 0
        for key in keys:
            result = outputs.get(key, {})
            if result.get("status_code") != 200:
                continue
            request = self.requests[key]
            try:
                body = checked(json.dumps(result.get("body")).encode())
            except NotACompletion:
                usage, lost = None, 1
            else:
                response = _response(body, request)
                client.store.put(request, response, key)
                usage, lost, count = response["usage"], 0, count + 1
            if key in held:
                client.meter.settle(held.pop(key), self.model, usage, lost)
            elif not charged:
                client.meter.note(self.model, request, usage, lost, self.factor)
        return count


class _translating:
    """The openai client's errors as ours: an endpoint without batches is named with the param that asked for them."""

    def __init__(self, client: ChatClient):
        self.client = client

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        import openai

        name = self.client.reader.endpoint
        if isinstance(error, openai.APIStatusError) and error.status_code in (404, 405, 501):
            raise EndpointError(
                f"endpoint {name!r} offers no batches (HTTP {error.status_code} at {error.request.url.path}): set "
                f"endpoints.{name}.batch: false"
            ) from error
        if isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError):
            raise EndpointError(
                f"endpoint {name!r} refuses the key for batches: check {self.client.endpoint.key_env or 'the key'}"
            ) from error
        if isinstance(error, openai.APIError):
            raise EndpointError(
                f"endpoint {name!r}: its batches can't be used now ({guard.told(str(error))[:200]}); run the same "
                f"command again, or set endpoints.{name}.batch: false"
            ) from error


def _parsed(line: bytes) -> dict[str, Any]:
    """A line of results; one that is none counts as missing."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _reason(batch: Any) -> str:
    errors = getattr(batch.errors, "data", None) or []
    return f" ({guard.told(str(errors[0].message))[:200]})" if errors else ""
