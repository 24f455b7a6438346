"""The money meter: reserve before a live call, settle after, never pass the ceiling (MULTIHOP_MAX_USD)."""

from __future__ import annotations

from typing import Any

from multihop import jsonl
from multihop.errors import BudgetExceeded
from multihop.pricing import Prices
from multihop.types import Usage

BYTES_PER_TOKEN = 3.0
"""Below the usual four, so that a reservation errs on the dear side."""


class Meter:
    """Counts what live calls cost. Without a ceiling it only counts (and needs no price)."""

    def __init__(self, prices: Prices, max_usd: float | None = None):
        self.prices = prices
        self.max_usd = max_usd
        self.spent_usd = 0.0
        self.reserved_usd = 0.0
        self.live_calls = 0

    def reserve(self, model: str, request: dict[str, Any]) -> float:
        """Raises BudgetExceeded where this call could pass the ceiling, ConfigError for an unknown price."""
        self.live_calls += 1
        if self.max_usd is None:
            return 0.0
        prompt = int(len(jsonl.dumps([request["messages"], request.get("tools")]).encode()) / BYTES_PER_TOKEN)
        cost = self.prices.usd(Usage(1, prompt, request["max_tokens"]), model)
        if self.spent_usd + self.reserved_usd + cost > self.max_usd:
            raise BudgetExceeded(
                f"the ceiling MULTIHOP_MAX_USD={self.max_usd:g} is reached (spent {self.spent_usd:.4f} USD); "
                "all answers so far are stored: raise it and run the same command again"
            )
        self.reserved_usd += cost
        return cost

    def settle(self, reservation: float, model: str, usage: dict[str, int] | None) -> None:
        """``usage`` None: the call failed. A provider that reports no usage is charged the reservation."""
        self.reserved_usd -= reservation
        if usage is None or self.max_usd is None:
            return
        if not usage["prompt_tokens"]:
            self.spent_usd += reservation
        else:
            used = Usage(1, usage["prompt_tokens"], usage["completion_tokens"])
            self.spent_usd += self.prices.usd(used, model, usage.get("cached_tokens", 0))
