"""How many requests an endpoint is sent at once: more while all goes well, half as many when it says it is too much.

Additive increase, multiplicative decrease, as in TCP: the limit doubles every round trip until the endpoint first
refuses (429, 503); then it halves, comes back quickly to just below where it broke, and feels its way on, slowly at
first and faster the longer nothing is refused. What an endpoint asks for with Retry-After holds for all of its
requests, not only for the one refused.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable

START = 16
MOST = 256
LONGEST_PAUSE_S = 120.0
"""The openai client does not retry what asks for a longer one."""
BACK_TO = 0.9
"""Of the limit at which it broke."""
ROUND_TRIPS = 8
"""Until the limit is one above that; twice as many until it is four above, and so on."""


class Pace:
    """The gate before one endpoint. ``enter`` before an attempt, ``leave`` after it, in one event loop."""

    def __init__(
        self,
        most: int = MOST,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ):
        """``most``: the pool's size, and the limit's bound (at least 1, at most 256)."""
        self.most = max(1, min(most, MOST))
        self.limit = float(min(START, self.most))
        self.in_flight = 0
        self._threshold = float(self.most)
        self._round_trips = 0.0
        """Since the threshold was reached."""
        self._epoch = 0
        self._resume_at = 0.0
        self._clock, self._sleep = clock, sleep
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> int:
        """Waits for a place and for the end of a pause; returns the ticket that ``leave`` wants back."""
        first_in_line = False
        while True:
            await self._place(first_in_line)
            try:
                while (pause := self._resume_at - self._clock()) > 0:
                    await self._sleep(pause)
            except BaseException:
                self._free()
                raise
            if self.in_flight <= max(1, int(self.limit)):
                return self._epoch
            # The limit fell between the place and now.
            self.in_flight -= 1
            first_in_line = True

    async def _place(self, first_in_line: bool) -> None:
        if self.in_flight < int(self.limit) and not (self._waiting and not first_in_line):
            self.in_flight += 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.appendleft(place) if first_in_line else self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._free()  # the place came at the same moment: it is the next one's
            raise

    def leave(self, ticket: int, refused: bool | None, retry_after: float | None = None) -> None:
        """``refused``: True for a 429 or 503, False for an answer, None for what says nothing of the endpoint's
        limits. ``retry_after``: seconds, of a refusal."""
        if refused:
            self._cut(ticket)
            if retry_after is not None and retry_after > 0:
                self._resume_at = max(self._resume_at, self._clock() + min(retry_after, LONGEST_PAUSE_S))
        elif refused is False and self.in_flight >= int(self.limit):
            self._grow()  # only a limit that is used up has shown that it could be higher
        self._free()

    def _grow(self) -> None:
        if self.limit < self._threshold:
            self.limit = min(self._threshold, self.limit + 1.0)
        else:
            self._round_trips += 1.0 / self.limit
            self.limit = min(self.most, self._threshold + (self._round_trips / ROUND_TRIPS) ** 2)

    def _cut(self, ticket: int) -> None:
        if ticket != self._epoch:
            return  # sent before the last cut: it says what is known
        self._epoch += 1
        self._round_trips = 0.0
        self._threshold = max(1.0, self.limit * BACK_TO)
        self.limit = max(1.0, self.limit / 2)

    def _free(self) -> None:
        self.in_flight -= 1
        while self._waiting and self.in_flight < int(self.limit):
            place = self._waiting.popleft()
            if not place.done():
                self.in_flight += 1
                place.set_result(None)
