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


def steiner(ends: np.ndarray, prizes: Sequence[float], costs: Sequence[float]) -> tuple[list[int], list[int]]:
    """(nodes, edges) of a connected subtree, ascending: at most twice the least (costs of its edges + prizes missed).

    ``ends``: int (edges, 2), ``costs``: (edges,) >= 0, ``prizes``: (nodes,) >= 0. Without any prize nothing is chosen.
    Time grows with the edges near prizes, times their logarithm.
    """
    growth = _Growth(np.asarray(ends, dtype=np.int64).reshape(-1, 2), list(map(float, prizes)), list(map(float, costs)))
    survivors = growth.run()
    return _pruned(growth.ends, growth.merges, survivors)


class _Growth:
    """Clusters of nodes with prize left grow at the same speed; where two meet over an edge they become one."""

    def __init__(self, ends: np.ndarray, prizes: list[float], costs: list[float]):
        count = len(prizes)
        self.ends: list[list[int]] = ends.tolist()
        self.costs = costs
        self._at = np.searchsorted(np.sort(ends.ravel()), np.arange(count + 1))
        self._incident = np.argsort(ends.ravel(), kind="stable") // 2
        self.of = list(range(count))
        self.members = [[i] for i in range(count)]
        self.shift, self.grown, self.stamp = [0.0] * count, [0.0] * count, [0.0] * count
        self.left = prizes
        self.active = [prize > 0 for prize in prizes]
        self.version = [0] * count
        self.heap: list[tuple[float, int, int, int]] = []
        self.due: set[tuple[float, int]] = set()
        """(time, edge) in the heap: an edge that is looked at twice at one time does nothing the second time."""
        self.merges: list[tuple[int, list[int] | None]] = []
        """(edge, nodes of the side that had stopped growing, or None where both grew), in order."""

    def run(self) -> list[int]:
        """The nodes of the last growing cluster."""
        started = [i for i, active in enumerate(self.active) if active]
        for node in started:
            self._watch(node, 0.0)
            self._wake([node], 0.0)
        growing = len(started)
        while growing > 1:
            now, is_edge, index, version = heappop(self.heap)
            if is_edge:
                self.due.discard((now, index))
                growing -= self._edge(index, now)
            elif self.active[index] and version == self.version[index]:
                self._settle(index, now)
                self.active[index] = False
                growing -= 1
        return next((self.members[c] for c in dict.fromkeys(self.of[i] for i in started) if self.active[c]), [])

    def _edge(self, edge: int, now: float) -> bool:
        """Join the ends of an edge that is covered, else look again later; whether two growing clusters became one."""
        one, other = self.ends[edge]
        a, b = self.of[one], self.of[other]
        rate = self.active[a] + self.active[b]
        if a == b or not rate:
            return False
        slack = self.costs[edge] - (self._covered(one, now) + self._covered(other, now))
        if slack > _TIGHT:
            # Later by at least one step of the rounding: what is rounded back to now would come up for ever.
            self._look(edge, now + max(slack / rate, _TIGHT))
            return False
        stopped = None if rate == 2 else list(self.members[b if self.active[a] else a])
        self.merges.append((edge, stopped))
        self._watch(self._merge(a, b, now), now)
        self._wake(stopped or (), now)
        return rate == 2

    def _merge(self, a: int, b: int, now: float) -> int:
        self._settle(a, now)
        self._settle(b, now)
        if len(self.members[a]) < len(self.members[b]):
            a, b = b, a
        for node in self.members[b]:
            self.shift[node] += self.grown[b] - self.grown[a]
            self.of[node] = a
        self.members[a] += self.members[b]
        self.left[a] += self.left[b]
        self.active[a], self.active[b] = True, False
        return a

    def _settle(self, cluster: int, now: float) -> None:
        if self.active[cluster]:
            self.grown[cluster] += now - self.stamp[cluster]
            self.left[cluster] = max(self.left[cluster] - (now - self.stamp[cluster]), 0.0)
        self.stamp[cluster] = now

    def _covered(self, node: int, now: float) -> float:
        cluster = self.of[node]
        since = now - self.stamp[cluster] if self.active[cluster] else 0.0
        return self.shift[node] + self.grown[cluster] + since

    def _watch(self, cluster: int, now: float) -> None:
        self.version[cluster] += 1
        heappush(self.heap, (round(now + self.left[cluster], DECIMALS), 0, cluster, self.version[cluster]))

    def _wake(self, nodes: Sequence[int], now: float) -> None:
        """Look at the edges of nodes that begin to grow."""
        for node in nodes:
            for edge in self._incident[self._at[node] : self._at[node + 1]].tolist():
                one, other = self.ends[edge]
                if self.of[one] != self.of[other]:
                    self._look(edge, now)

    def _look(self, edge: int, time: float) -> None:
        key = (round(time, DECIMALS), edge)
        if key not in self.due:
            self.due.add(key)
            heappush(self.heap, (key[0], 1, edge, 0))


def _pruned(
    ends: list[list[int]], merges: list[tuple[int, list[int] | None]], survivors: list[int]
) -> tuple[list[int], list[int]]:
    """Last merges first: a cluster that had stopped stays only where a later edge leaves from it."""
    alive, needed, chosen = set(survivors), set(), []
    merges = [merge for merge in merges if ends[merge[0]][0] in alive]
    for edge, stopped in reversed(merges):
        if not alive.intersection(ends[edge]):
            continue
        if stopped is not None and needed.isdisjoint(stopped):
            alive.difference_update(stopped)
            continue
        needed.update(ends[edge])
        chosen.append(edge)
    return sorted(alive), sorted(chosen)
