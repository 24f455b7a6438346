"""Turning one fact into a phrase or a question."""

from __future__ import annotations

import random

from multihop.data.world.asked import Step
from multihop.data.world.entities import Entity, Fact, mention
from multihop.data.world.model import World
from multihop.data.world.relations import FORWARD

WORKS = ("novel", "film", "album")


class Speaker:
    """Words single facts of a world, with wordings chosen by the random generator."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world, self.rng = world, rng

    def _entity(self, n: int) -> Entity:
        return self.world.entities[n]

    def _mention(self, n: int) -> str:
        e = self._entity(n)
        return mention(e, trade=e.kind == "person" and self.rng.random() < 0.3)

    def _number_ref(self, entity: int, hop: int) -> str:
        """#hop, with what tells namesakes apart."""
        e = self._entity(entity)
        trade = f"the {e.occupation} " if e.ambiguous and e.kind == "person" else ""
        kind = f"the {e.kind} " if e.kind in WORKS else ""
        return f"{trade}{kind}#{hop}"

    def _np(self, fact: Fact, x: str, year: int, simple: bool) -> str:
        forms = [form for form in FORWARD[fact.relation].np if simple or form.endswith("{x}")]
        return self.rng.choice(forms).format(x=x, y=year)

    def _ask(self, fact: Fact, x: str, year: int, simple: bool, inverse: bool = False) -> str:
        r = FORWARD[fact.relation]
        forms = r.inverse_ask if inverse else (r.ask + r.short if simple else r.ask) or r.short
        return self.rng.choice(forms).format(x=x, y=year)

    def _in_office(self, fact: Fact) -> int:
        return self.rng.randint(fact.years[0] + 1, fact.years[1] - 1) if fact.years else 0

    def _single(self, fact: Fact) -> Step:
        if fact.relation in FORWARD:
            return Step(self._ask(fact, mention(self._entity(fact.subject)), 0, True), fact.value, fact)
        return Step(f"{self._entity(fact.subject).name} >> {fact.relation}", fact.value, fact)
