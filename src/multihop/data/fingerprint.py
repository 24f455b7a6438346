"""The peers' way to find a gold paragraph in a re-cut corpus: by 40 of its characters (paper 1, App. E).

Here it is a cross-check only, because chunks know their passages. Facts behind the choices: prefixes of 40
characters are not unique (several excerpts of one page), so ties go to the longest common prefix; a
literal prefix fails on re-spaced text, so a prefix of letters and digits is tried too.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from multihop.types import Chunk, Passage

LENGTH = 40


def literal(text: str) -> str:
    return text


def normalised(text: str) -> str:
    """NFKC, lower case, letters and digits only."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text).lower()))


def fingerprints(text: str) -> list[str]:
    """The first 40 characters, characters 41-80, the middle 40; fewer for a short text.

    A part below 40 characters would match anywhere, so it counts only where it is the whole text.
    """
    middle = max(0, (len(text) - LENGTH) // 2)
    parts = [text[:LENGTH], text[LENGTH : 2 * LENGTH], text[middle : middle + LENGTH]]
    return [part for part in parts if len(part) == LENGTH or (part and part == text)]


@dataclass(frozen=True, slots=True)
class Match:
    found: bool
    """Some chunk holds the fingerprint."""
    right: bool
    """The chunk that was chosen does hold the passage."""
    ambiguous: bool
    """Several chunks hold the fingerprint."""


Matches = dict[str, dict[str, Match]]
"""Way of taking the fingerprint -> passage id -> match."""


def match(passages: Iterable[Passage], chunks: Sequence[Chunk]) -> Matches:
    """Look each passage up in the chunks: by its literal prefix, by its normalised prefix, and by the
    latter with the two fallbacks. One pass over the chunks for each form of the text."""
    wanted = {p.id: p for p in passages}.values()
    found: Matches = {}
    for form, ways in ((literal, {"literal": 1}), (normalised, {"normalised": 1, "normalised_fallbacks": 3})):
        units = [form(c.text) for c in chunks]
        texts = {p.id: form(p.text) for p in wanted}
        holders = _holders({f for text in texts.values() for f in fingerprints(text)}, units)
        for way, tries in ways.items():
            found[way] = {
                pid: _match(pid, text, fingerprints(text)[:tries], holders, units, chunks)
                for pid, text in texts.items()
            }
    return found


def rates(matches: Matches, wanted: Sequence[str]) -> dict[str, dict[str, float | int]]:
    """Shares over ``wanted``, the ids of gold passages, one for each (question, gold passage)."""

    def row(of: dict[str, Match]) -> dict[str, float | int]:
        def share(test: Callable[[Match], bool]) -> float:
            return round(sum(test(of[pid]) for pid in wanted) / len(wanted), 6) if wanted else 0.0

        ambiguous = sum(of[pid].ambiguous for pid in wanted)
        return {"found": share(lambda m: m.found), "right": share(lambda m: m.right), "ambiguous": ambiguous}

    return {way: row(of) for way, of in matches.items()}


def _match(
    pid: str,
    text: str,
    tries: list[str],
    holders: dict[str, list[int]],
    units: list[str],
    chunks: Sequence[Chunk],
) -> Match:
    hits = next((h for f in tries if (h := holders.get(f))), [])
    if not hits:
        return Match(False, False, False)
    best = max(hits, key=lambda n: (_common_prefix(text, units[n]), -n))
    return Match(True, any(s.passage_id == pid for s in chunks[best].spans), len(hits) > 1)


def _holders(wanted: set[str], units: list[str]) -> dict[str, list[int]]:
    """Fingerprint -> numbers of the units that hold it, in order. Linear in the units' length."""
    full = {w for w in wanted if len(w) == LENGTH}
    short = wanted - full
    found: dict[str, list[int]] = {}
    for n, unit in enumerate(units):
        here = {w for i in range(len(unit) - LENGTH + 1) if (w := unit[i : i + LENGTH]) in full}
        for w in here.union(w for w in short if w in unit):
            found.setdefault(w, []).append(n)
    return found


def _common_prefix(text: str, unit: str) -> int:
    """How far ``text`` runs along ``unit``, at the place in the unit where it runs furthest."""
    best, at = 0, unit.find(text[:LENGTH])
    while at >= 0:
        best = max(best, _agreement(text, unit[at : at + len(text)]))
        at = unit.find(text[:LENGTH], at + 1)
    return best


def _agreement(a: str, b: str) -> int:
    """Length of the longest common prefix."""
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
