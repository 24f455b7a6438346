"""What the demo's runs, indexes and trainings asked (expected/asked.json), and which of it others had asked already.

A request is paid once, whoever asks it first: the second embedder's runs, a method's variants, a judge that sees the
same answer again ask much that is stored. ``benchmarks/estimate.py --measure`` writes the file from a replay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multihop import jsonl

FILE = "expected/asked.json"


@dataclass(frozen=True)
class Share:
    """Of one answer, on average: what is paid for it."""

    calls: float = 0.0
    prompt: float = 0.0
    completion: float = 0.0

    def __add__(self, other: Share) -> Share:
        return Share(self.calls + other.calls, self.prompt + other.prompt, self.completion + other.completion)


@dataclass(frozen=True)
class Asked:
    requests: list[list[int]]
    """[prompt tokens, completion tokens] of each distinct request."""
    settings: dict[str, str]
    """Setting -> its reader's model, in the order of the demo's params."""
    lines: dict[str, dict[str, dict[str, Any]]]
    """Line -> setting -> ``answers`` and, as numbers of requests, ``asked`` and ``judged``."""

    @staticmethod
    def load(*roots: Path) -> Asked | None:
        """From the first root that has the file."""
        for root in roots:
            if (root / FILE).is_file():
                content = jsonl.read_json(root / FILE)
                return Asked(content["requests"], dict(content["settings"]), content["lines"])
        return None

    def cost(self, numbers: Iterable[int], answers: int = 1) -> Share:
        """Of these requests, divided by ``answers``."""
        found = [self.requests[n] for n in numbers]
        return Share(len(found) / answers, sum(p for p, _ in found) / answers, sum(c for _, c in found) / answers)

    def stands_for(self, line: str, setting: str, model: str, place: int) -> str:
        """The demo's setting for one of a profile: the same one, else the one at the same ``place`` among those of
        one reader (the second embedder asks part of what the first one did)."""
        cells = self.lines[line]
        if setting in cells and self.settings.get(setting) == model:
            return setting
        first = next(m for s, m in self.settings.items() if s in cells)
        alike = [s for s, m in self.settings.items() if s in cells and m == first]
        return alike[min(place, len(alike) - 1)]


class Counting:
    """One pass over the lines of an estimate: what a line asks, less what the lines before it have asked."""

    def __init__(self, asked: Asked):
        self.asked = asked
        self._seen: dict[tuple[str, str], dict[tuple[str, str], set[int]]] = defaultdict(lambda: defaultdict(set))

    def share(
        self, names: Sequence[str], setting: str, model: str, place: int, together: bool, kind: str = "asked"
    ) -> Share | None:
        """What an answer of a line costs in a setting; ``names``: of the line, then of those that may stand for it.
        None where none of them was measured. ``kind``: "asked", or "judged" with the judge's ``model``. ``together``:
        settings share, as they did in the demo; else each setting shares with itself alone."""
        line = next((name for name in names if name in self.asked.lines), None)
        if line is None:
            return None
        stand = self.asked.stands_for(line, setting, model, place)
        cell = self.asked.lines[line][stand]
        new = set(cell[kind])
        if line == names[0]:
            for (other, its_stand), numbers in self._seen[kind, model].items():
                # Two settings that one setting stands for: nothing is known of what they share.
                if other == setting or (together and its_stand != stand):
                    new -= numbers
            self._seen[kind, model][setting, stand] |= set(cell[kind])
        return self.asked.cost(new, max(cell["answers"], 1))
