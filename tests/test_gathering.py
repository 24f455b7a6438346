"""Many questions, a few at a time."""

from __future__ import annotations

import asyncio

import pytest

from multihop.llm.gathering import gathered


def test_results_keep_their_order_and_only_so_many_are_asked_at_once():
    busy, most = 0, 0

    async def ask(n: int) -> int:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        for _ in range(10 - n):  # the later it starts, the sooner it is done
            await asyncio.sleep(0)
        busy -= 1
        return n * n

    assert asyncio.run(gathered(range(10), ask, 3)) == [n * n for n in range(10)]
    assert most == 3
    assert asyncio.run(gathered([], ask, 3)) == []


def test_the_first_error_stops_the_rest():
    asked = []

    async def ask(n: int) -> None:
        asked.append(n)
        if n == 1:
            raise ValueError("no")
        await asyncio.sleep(60)

    with pytest.raises(ExceptionGroup) as found:
        asyncio.run(gathered(range(9), ask, 2))
    assert [str(e) for e in found.value.exceptions] == ["no"]
    assert len(asked) < 9
