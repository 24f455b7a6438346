"""Batch mode (``endpoints.<name>.batch: true``): what a cell is about to ask, sent ahead as one batch, then replayed.

A first pass over the cell only notes the missing requests. They go to the endpoint's Batch API, their answers into the
store under the same keys, and the normal run replays them; what the batch did not answer it asks one by one. So
records are those of a run without batches.

Before a batch is made, the ledger holds what it can cost, and which requests are in it, under a mark that the batch
carries. A killed command, started again, finds its batch by the mark, however far it got or however it ended, and does
not pay for a second one. Only what is seen decides about the money: an ended batch is charged what it answered, the
rest of its reservation is free; of one whose end nobody has seen all stays reserved.
"""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from multihop import guard
from multihop.errors import BudgetExceeded, EndpointError
from multihop.llm.claiming import claims_of
from multihop.llm.client import PASSING, ChatClient, ContextOverflow, Deferred, NoAnswer, Refused, body_of, stored_form
from multihop.llm.transport import NotACompletion, checked

MOST_REQUESTS = 20_000
MOST_BYTES = 90 * 2**20
"""Of one batch; the API takes 50,000 requests and 200 MB."""
POLL_S = (2.0, 60.0)
"""Seconds between two looks at a batch: at first, and at most."""
TRIES = 4
"""To make a batch, where the answer to making it was lost."""
ENDED = ("completed", "failed", "expired", "cancelled")
"""Of these, all but the first are errors, once what was answered is taken in."""
_MARK = "multihop"
"""The name of the mark among a batch's metadata."""


def offered(client: ChatClient) -> bool:
    """Whether the client's endpoint takes batches and may be asked, and this home outlives the command: a batch may,
    and a ledger in memory (of a Ray worker) would forget it."""
    return client.endpoint.batch and client.endpoints.env.live != "never" and client.meter.ledger.path is not None


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
        answered += await _Batches(client, new).answers()


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


class _Batches:
    """Requests by key, on their way through batches: some may be in one already, of a command that was killed."""

    def __init__(self, client: ChatClient, requests: dict[str, dict[str, Any]]):
        self.client, self.requests = client, requests
        self.api = client.endpoints.open(client.reader)
        self.model = client.reader.model
        self.factor = client.meter.prices.of(self.model).batch

    async def answers(self) -> int:
        """How many were answered and stored."""
        count = 0
        for mark, keys in self._marked().items():
            batch = await self._ended(await self._sent(mark, keys), len(keys))
            count += self._taken_in(mark, keys, await self._outputs(batch))
            if batch.status != "completed":
                raise EndpointError(
                    f"endpoint {self.client.reader.endpoint!r}: batch {batch.id} ended as {batch.status}"
                    f"{_reason(batch)}; what it answered is stored: run the same command again, or set "
                    f"endpoints.{self.client.reader.endpoint}.batch: false"
                )
        return count

    def _marked(self) -> dict[str, list[str]]:
        """Mark of a batch -> its keys; the keys without one are divided among new ones."""
        ledger = self.client.meter.ledger
        known = ledger.marks(self.requests)
        for part in _parts({key: request for key, request in self.requests.items() if key not in known}):
            ledger.mark(part, uuid.uuid4().hex)
        marks: dict[str, list[str]] = {}
        for key, mark in ledger.marks(self.requests).items():
            marks.setdefault(mark, []).append(key)
        return marks

    async def _sent(self, mark: str, keys: list[str]) -> Any:
        """The batch of this mark: the one that was made before, else a new one. Raises BudgetExceeded."""
        async with claims_of(self.client.store.path).of(mark):  # another process may be making it now
            if batch := await self._found(mark):
                return batch
            meter = self.client.meter
            meter.ledger.free_batch(mark)  # of a command that was killed before it made one
            try:
                meter.reserve_batch(mark, self.model, (self.requests[key] for key in keys), self.factor)
            except BudgetExceeded as e:
                raise BudgetExceeded(f"a batch of {len(keys)} calls does not fit: {e}") from None
            return await self._made(mark, keys)

    async def _found(self, mark: str) -> Any:
        """The batch of this mark, or None."""
        with _translating(self.client):
            async for batch in self.api.batches.list(limit=100):
                if (batch.metadata or {}).get(_MARK) == mark:
                    return batch
        return None

    async def _made(self, mark: str, keys: list[str]) -> Any:
        """A new batch. Its reservation is freed where surely none was made."""
        import openai

        lines = b"".join(_line(key, self.requests[key]) for key in keys)
        try:
            with _translating(self.client):
                file = await self.api.files.create(file=("requests.jsonl", lines), purpose="batch")
        except BaseException:
            self.client.meter.ledger.free_batch(mark)
            raise
        with _translating(self.client):
            for left in reversed(range(TRIES)):
                try:
                    # No retry of the client's own: an answer that was lost may have made a batch.
                    return await self.api.with_options(max_retries=0).batches.create(
                        input_file_id=file.id,
                        endpoint="/v1/chat/completions",
                        completion_window="24h",
                        metadata={_MARK: mark},
                    )
                except openai.APIError as e:
                    status = getattr(e, "status_code", 500)
                    if status < 500 and status not in PASSING:
                        self.client.meter.ledger.free_batch(mark)
                        raise
                    if batch := await self._found(mark):
                        return batch
                    if not left:
                        raise
                    await asyncio.sleep(POLL_S[0])

    async def _ended(self, batch: Any, calls: int) -> Any:
        """The batch when it has ended, however that was."""
        wait, most = POLL_S
        print(f"  batch {batch.id}: {calls} calls sent or found; waiting for it", file=sys.stderr)
        while batch.status not in ENDED:
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

    def _taken_in(self, mark: str, keys: list[str], outputs: dict[str, Any]) -> int:
        """Charge all that the batch answered, then store what was asked for here; the rest is asked one by one.

        In this order: killed in between, the next command finds the batch again, and that it is charged.
        """
        client = self.client
        answers: dict[str, dict[str, Any]] = {}
        charged: list[tuple[dict[str, Any], dict[str, Any] | None]] = []
        like = max((self.requests[key] for key in keys), key=lambda request: len(str(request)))
        for key, output in outputs.items():
            if output.get("status_code") != 200:
                continue
            try:
                body = checked(json.dumps(output.get("body")).encode())
            except NotACompletion:
                charged.append((self.requests.get(key, like), None))
                continue
            # What another cell sent with it is not known here: its usage is read as that of the longest one that is.
            answer = stored_form(body, self.requests.get(key, like))
            charged.append((self.requests.get(key, like), answer["usage"]))
            if key in self.requests:
                answers[key] = answer
        client.meter.settle_batch(mark, self.model, charged, self.factor)
        for key, answer in answers.items():
            client.store.put(self.requests[key], answer, key)
        client.meter.ledger.unmark(keys, mark)
        return len(answers)


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
