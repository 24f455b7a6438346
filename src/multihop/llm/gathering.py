"""Many questions to a model, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


async def gathered(items: Sequence[T], ask: Callable[[T], Awaitable[R]], workers: int) -> list[R]:
    """``ask`` of every item, ``workers`` at a time; results in the order of the items.

    The first error cancels the rest and comes out in an ExceptionGroup.
    """
    gate = asyncio.Semaphore(workers)

    async def one(item: T) -> R:
        async with gate:
            return await ask(item)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(item)) for item in items]
    return [t.result() for t in tasks]
