"""The money meter: reserve before a live call, settle after; no ceiling (USD, calls, tokens) is passed.

Under a ceiling both are transactions in the :mod:`ledger <multihop.llm.ledger>`, shared by all processes of a
MULTIHOP_HOME. Without one, spending is only noted there now and then, so that a ceiling set later knows of it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from multihop import jsonl
from multihop.environment import CEILINGS
from multihop.errors import BudgetExceeded, DataError
from multihop.llm.ledger import Cost, Ledger, Passed
from multihop.pricing import Prices
from multihop.types import Usage

BYTES_PER_TOKEN = 3.0
"""Below the usual four, so that a reservation errs on the dear side."""
_PROMPT = ("messages", "tools", "response_format")
"""What a provider counts as prompt tokens."""


@dataclass(eq=False, slots=True)
class Reservation:
    """One call that was let through (``number``: in the ledger, None without a ceiling)."""

    run: str
    model: str
    request: dict[str, Any]
    number: int | None = None
    factor: float = 1.0
    cost: Cost | None = None


class Meter:
    """Of one command. ``run`` names what it is at: the stage whose ceilings (``_RUN_``) count."""

    def __init__(self, prices: Prices, ceilings: Mapping[str, float] | None = None, ledger: Ledger | None = None):
        self.prices = prices
        self.limits = {name: (CEILINGS[name][0], "_RUN_" in name, most) for name, most in (ceilings or {}).items()}
        self.ledger = ledger or Ledger()
        self.run = "by hand"
        self.live_calls = 0
        self.spent = Cost()
        """By this process."""
        self.in_flight = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._unwritten = False
        """Whether the ledger could not be written when a call was settled: it keeps that and tries again."""

    def reserve(self, model: str, request: dict[str, Any], factor: float = 1.0) -> Reservation:
        """Let a call through; ``factor`` times its price. Raises BudgetExceeded where it could pass a ceiling,
        ConfigError for an unknown price, DataError where the ledger can't be written."""
        self.prices.of(model)
        self._write_again()
        reservation = Reservation(self.run, model, request, factor=factor)
        if self.limits:
            cost = reservation.cost = self._most(reservation)
            try:
                reservation.number = self.ledger.reserve(self.run, model, cost, self.limits)
            except Passed as e:
                raise self._exceeded(e, cost) from None
        self.live_calls += 1
        self.in_flight += 1
        return reservation

    async def reserve_in_turn(self, model: str, request: dict[str, Any]) -> Reservation:
        """As ``reserve``; but where this process has calls in flight, wait for them first.

        They free what they do not use, and nothing that is paid for is cancelled: BudgetExceeded comes only once all
        of them are answered and stored.
        """
        while True:
            try:
                return self.reserve(model, request)
            except BudgetExceeded:
                if not self.in_flight:
                    raise
            settled = asyncio.get_running_loop().create_future()
            self._waiting.append(settled)
            await settled

    def settle(self, reservation: Reservation, model: str, usage: Mapping[str, Any] | None, lost: int = 0) -> None:
        """What the call cost. ``usage`` None: it failed, and cost nothing but its ``lost`` answers (made and billed,
        but never seen whole), each as much as was reserved. Usage that is missing, or ``estimated``, is charged no
        less than the reservation.

        A ledger that can't be written now is no error here: the answer that was just paid for is to be stored first.
        It stops the command at its next call, or when the ledger is closed.
        """
        cost = self._most(reservation).times(lost) if lost else Cost()
        if usage is not None:
            cost += self._used(reservation, usage)
        self.in_flight -= 1
        self.spent += cost
        try:
            if reservation.number is not None:
                self.ledger.settle(reservation.number, reservation.run, model, cost)
            elif cost.calls:
                self.ledger.note(reservation.run, model, cost)
        except DataError:
            self._unwritten = True
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    def reserve_batch(self, mark: str, model: str, requests: Iterable[dict[str, Any]], factor: float) -> None:
        """Let a batch through, whole; with or without ceilings it is held in the ledger, under its mark, until
        ``settle_batch``: also when this process is gone. Raises as ``reserve``."""
        self.prices.of(model)
        self._write_again()
        cost = Cost()
        for request in requests:
            cost += self._most(Reservation(self.run, model, request, factor=factor))
        try:
            self.ledger.reserve_batch(mark, self.run, model, cost, self.limits)
        except Passed as e:
            raise self._exceeded(e, cost) from None

    def settle_batch(
        self, mark: str, model: str, answers: Iterable[tuple[dict[str, Any], Mapping[str, Any] | None]], factor: float
    ) -> None:
        """What a batch that has ended cost: its answers' requests with their usage (None: an answer that was made and
        can't be used, charged as reserved). What it did not answer is free. Once per mark, however often it is told."""
        cost = Cost()
        for request, usage in answers:
            call = Reservation(self.run, model, request, factor=factor)
            cost += self._most(call) if usage is None else self._used(call, usage)
        if self.ledger.settle_batch(mark, self.run, model, cost):
            self.live_calls += cost.calls
            self.spent += cost

    def _write_again(self) -> None:
        if self._unwritten:
            self.ledger.flush()
            self._unwritten = False

    @property
    def spent_usd(self) -> float:
        """By this process."""
        return self.spent.usd

    @property
    def reserved_usd(self) -> float:
        """By all processes."""
        return self.ledger.reserved().usd

    def _used(self, reservation: Reservation, usage: Mapping[str, Any]) -> Cost:
        prompt, completion = usage["prompt_tokens"], usage["completion_tokens"]
        used = Usage(1, prompt, completion)
        usd = self.prices.usd(used, reservation.model, usage.get("cached_tokens", 0)) * reservation.factor
        if prompt and not usage.get("estimated"):
            return Cost(1, prompt, completion, usd)
        most = self._most(reservation)
        return Cost(1, max(prompt, most.prompt), max(completion, most.completion), max(usd, most.usd))

    def _most(self, reservation: Reservation) -> Cost:
        """What the call can cost, erring on the dear side."""
        if reservation.cost is None:
            request = reservation.request
            asked = jsonl.dumps([request.get(key) for key in _PROMPT]).encode()
            used = Usage(1, math.ceil(len(asked) / BYTES_PER_TOKEN), request["max_tokens"])
            usd = self.prices.usd(used, reservation.model) * reservation.factor
            reservation.cost = Cost(1, used.prompt_tokens, used.completion_tokens, usd)
        return reservation.cost

    def _exceeded(self, passed: Passed, cost: Cost) -> BudgetExceeded:
        unit, of_run, most = self.limits[passed.ceiling]
        spent, held, asked = (getattr(c, unit) for c in (passed.spent, passed.reserved, cost))
        whose = f"by {self.run}" if of_run else "in this MULTIHOP_HOME"
        calls = "the next call" if cost.calls == 1 else f"the next {cost.calls} calls, one batch"
        return BudgetExceeded(
            f"the ceiling {passed.ceiling}={most:.15g} is reached: {spent:.6g} {_UNITS[unit]} spent {whose}, "
            f"{held:.6g} reserved, up to {asked:.6g} for {calls}; all answers so far are stored: raise it and "
            "run the same command again (`multihop spending` shows what was spent)"
        )


_UNITS = {"usd": "USD", "calls": "calls", "tokens": "tokens"}
