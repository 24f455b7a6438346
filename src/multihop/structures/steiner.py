"""The prize-collecting Steiner tree by moat growing (Goemans and Williamson 1995), unrooted, one tree.

What G-Retriever takes from the package pcst_fast, whose wheels (1.0.10) return one index over and over under NumPy 2.
Plain Python in double precision: the same tree on every processor.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np

DECIMALS = 9
"""Times are rounded to this before they are compared; of equal ones a cluster's end comes before an edge's."""
_TIGHT = 1e-9
_NEVER = float("inf")
_WHOLE = 1.5 * 2.0**52
"""What is added to a smaller number has no digits after the point: IEEE rounds it, half to even."""

Merge = tuple[int, tuple[int, int], list[int] | None]
"""(edge, its ends, nodes of the side that had stopped growing, or None where both grew)."""


def steiner(ends: np.ndarray, prizes: Sequence[float], costs: Sequence[float]) -> tuple[list[int], list[int]]:
    """(nodes, edges) of a connected subtree, ascending: at most twice the least (costs of its edges + prizes missed).

    ``ends``: int (edges, 2), ``costs``: (edges,) >= 0, ``prizes``: (nodes,) >= 0. Without any prize nothing is chosen.
    Time grows with the edges near prizes, times their logarithm.
    """
    ends = np.asarray(ends, dtype=np.int64).reshape(-1, 2)
    return _pruned(*_grown(ends, [*map(float, prizes)], [*map(float, costs)]))


def _grown(ends: np.ndarray, left: list[float], costs: list[float]) -> tuple[list[Merge], list[int]]:
    """(merges in order, nodes of the last growing cluster): clusters with prize ``left`` grow at the same speed; where
    two meet over an edge they become one, known by one of its nodes.

    One function and flat lists, because this is most of a question's time: Python reads a local name fastest.
    """
    count, flat = len(left), ends.ravel()
    at = [0, *np.cumsum(np.bincount(flat, minlength=count)).tolist()]
    incident = (np.argsort(flat, kind="stable") // 2).tolist()
    ones, others = ends.T.tolist()
    of = list(range(count))
    # A node is covered as far as its shift and its cluster's growth, which is that at the time of the stamp.
    shift, grown, stamp = [0.0] * count, [0.0] * count, [0.0] * count
    active = [prize > 0 for prize in left]
    members = [[node] if grows else None for node, grows in enumerate(active)]  # None: a node without prize, alone
    # (time, 0, cluster) or (time, 1, edge); ``due``: the last time entered for an edge that waits. A time may prove too
    # early, since a cluster gets more or stops: what comes up is looked at again.
    heap: list[tuple[float, int, int]] = []
    due = [_NEVER] * len(costs)
    merges: list[Merge] = []

    def covered(edge: int, a: int, b: int, now: float) -> bool:
        """Whether the edge between two clusters is covered; if it will be, it comes up again then."""
        one, other, wait = shift[ones[edge]] + grown[a], shift[others[edge]] + grown[b], 1.0
        if active[a]:
            one += now - stamp[a]
            if active[b]:
                other += now - stamp[b]
                wait = 0.5
        elif active[b]:
            other += now - stamp[b]
        else:
            return False
        slack = costs[edge] - (one + other)
        if slack <= _TIGHT:
            return True
        wait *= slack
        # Later by at least one step of the rounding: what is rounded back to now would come up for ever.
        again = _rounded(now + (wait if wait > _TIGHT else _TIGHT))
        if again < due[edge]:
            due[edge] = again
            heappush(heap, (again, 1, edge))
        return False

    def wake(nodes: Sequence[int], now: float) -> None:
        """Look at the edges of nodes that begin to grow. One that is covered already has its turn now."""
        for node in nodes:
            for edge in incident[at[node] : at[node + 1]]:
                a, b = of[ones[edge]], of[others[edge]]
                if a != b and due[edge] > now and covered(edge, a, b, now):
                    due[edge] = now
                    heappush(heap, (now, 1, edge))

    def settle(cluster: int, now: float) -> None:
        if active[cluster]:
            since = now - stamp[cluster]
            grown[cluster] += since
            left[cluster] = max(left[cluster] - since, 0.0)
        stamp[cluster] = now

    started = [node for node in range(count) if active[node]]
    for node in started:
        heappush(heap, (_rounded(left[node]), 0, node))
        wake([node], 0.0)
    growing = len(started)
    while growing > 1:
        now, is_edge, index = heappop(heap)
        if not is_edge:
            if active[index] and (end := _rounded(stamp[index] + left[index])) > now:
                heappush(heap, (end, 0, index))  # it got more in the meantime
            elif active[index]:
                settle(index, now)
                active[index] = False
                growing -= 1
            continue
        due[index] = _NEVER
        a, b = of[ones[index]], of[others[index]]
        if a == b or not covered(index, a, b, now):
            continue
        grower, met = (a, b) if active[a] else (b, a)
        stopped = None if active[met] else [met] if members[met] is None else members[met].copy()
        merges.append((index, (ones[index], others[index]), stopped))
        growing -= stopped is None
        if members[met] is None and (grower == a or len(members[b]) > 1):
            # Most often: what the growing cluster has stays as it is.
            shift[met] -= grown[grower] + (now - stamp[grower])
            of[met] = grower
            members[grower].append(met)
            wake(stopped, now)
            continue
        members[met] = members[met] or [met]
        settle(a, now)
        settle(b, now)
        if len(members[a]) < len(members[b]):
            a, b = b, a
        more = grown[b] - grown[a]
        for node in members[b]:
            shift[node] += more
            of[node] = a
        members[a] += members[b]
        left[a] += left[b]
        if not active[a]:
            heappush(heap, (_rounded(now + left[a]), 0, a))
        active[a], active[b] = True, False
        wake(stopped or (), now)
    return merges, next((members[c] for c in dict.fromkeys(of[i] for i in started) if active[c]), [])


def _rounded(time: float) -> float:
    """``round(time, DECIMALS)``, in a third of its time where no tie is near."""
    scaled = time * 1e9
    whole = (scaled + _WHOLE) - _WHOLE
    return whole / 1e9 if -0.4999 < scaled - whole < 0.4999 else round(time, DECIMALS)


def _pruned(merges: Sequence[Merge], survivors: Sequence[int]) -> tuple[list[int], list[int]]:
    """Last merges first: a cluster that had stopped stays only where a later edge leaves from it."""
    alive, needed, chosen = set(survivors), set(), []
    merges = [merge for merge in merges if merge[1][0] in alive]
    for edge, ends, stopped in reversed(merges):
        if alive.isdisjoint(ends):
            continue
        if stopped is not None and needed.isdisjoint(stopped):
            alive.difference_update(stopped)
            continue
        needed.update(ends)
        chosen.append(edge)
    return sorted(alive), sorted(chosen)
