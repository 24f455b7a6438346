"""Many questions to a model, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")


async def each(items: Iterable[T], ask: Callable[[T], Awaitable[Any]], workers: int) -> None:
    """``ask`` of every item, ``workers`` at a time; an item is drawn when a worker is free for it.

    The first error cancels the rest and comes out in an ExceptionGroup.
    """
    source = iter(items)

    async def work() -> None:
        for item in source:
            await ask(item)
            # What the store answers never waits: the others' answers must come through all the same.
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(work())


async def gathered(items: Iterable[T], ask: Callable[[T], Awaitable[R]], workers: int) -> list[R]:
    """As :func:`each`; the results in the order of the items."""
    results: dict[int, R] = {}

    async def one(numbered: tuple[int, T]) -> None:
        results[numbered[0]] = await ask(numbered[1])

    await each(enumerate(items), one, workers)
    return [results[number] for number in range(len(results))]
