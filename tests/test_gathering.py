"""Many questions, a few at a time."""

from __future__ import annotations

import asyncio

import pytest

from multihop.gathering import each, gathered


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


def test_no_more_tasks_than_workers_and_an_item_is_drawn_when_its_turn_comes():
    drawn, done, most = 0, 0, 0

    def items():
        nonlocal drawn
        for n in range(500):
            drawn += 1
            yield n

    async def ask(n: int) -> None:
        nonlocal done, most
        most = max(most, len(asyncio.all_tasks()))
        assert drawn <= done + 3
        await asyncio.sleep(0)
        done += 1

    asyncio.run(each(items(), ask, 3))
    assert (drawn, done) == (500, 500) and most <= 4  # three workers, and the one that waits for them


def test_what_never_waits_lets_an_answer_of_another_through():
    finished = []

    async def ask(n: int) -> None:
        if n == 0:
            await asyncio.sleep(0)
        finished.append(n)

    asyncio.run(each(range(100), ask, 2))
    assert finished.index(0) < 5
