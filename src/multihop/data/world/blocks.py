"""The building blocks of a world: adding entities and facts, and finding somebody suitable."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections import defaultdict

from multihop.data.world.entities import Entity, Fact, Page
from multihop.data.world.names import Names

MONTHS = ("January February March April May June July August September October November December").split()
OCCUPATIONS = (
    ("novelist", "writer"),
    ("film director", "film"),
    ("singer", "music"),
    ("engineer", "build"),
    ("journalist", "writer"),
    ("merchant", "trade"),
    ("composer", "music"),
    ("lawyer", "public"),
    ("architect", "build"),
    ("poet", "writer"),
    ("stage director", "film"),
    ("banker", "trade"),
    ("pianist", "music"),
    ("physician", "public"),
    ("printer", "trade"),
    ("teacher", "public"),
    ("geologist", "science"),
    ("actor", "film"),
    ("violinist", "music"),
    ("botanist", "science"),
    ("painter", "art"),
    ("cartographer", "science"),
    ("sculptor", "art"),
    ("astronomer", "science"),
    ("historian", "writer"),
    ("shipbuilder", "trade"),
    ("chemist", "science"),
    ("judge", "public"),
)
GROUP = dict(OCCUPATIONS)


class Blocks:
    """The entities, facts and pages so far, and the ways to add to them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.names = rng, Names(rng)
        self.entities: list[Entity] = []
        self.facts: list[Fact] = []
        self.pages: list[Page] = []
        self.by_kind: dict[str, list[Entity]] = defaultdict(list)
        self._page: dict[int, Page] = {}
        self._roles: dict[int, int] = defaultdict(int)
        self._by_birth: list[Entity] = []
        self._births: list[int] = []
        self._firms_by_noun: dict[str, list[Entity]] = defaultdict(list)

    def entity(self, kind: str, name: str, **more) -> Entity:
        made = Entity(len(self.entities), kind, name, name, **more)
        self.entities.append(made)
        self.by_kind[kind].append(made)
        self._page[made.id] = Page(made)
        self.pages.append(self._page[made.id])
        return made

    def fact(
        self,
        subject: Entity,
        relation: str,
        value,
        page: Page | None = None,
        number: int = 0,
        years: tuple[int, int] | None = None,
    ) -> None:
        """Adds one fact; ``value`` None (nobody suitable was found) adds nothing."""
        if value is None:
            return
        is_entity = isinstance(value, Entity)
        made = Fact(
            len(self.facts),
            subject.id,
            relation,
            value.id if is_entity else None,
            value.name if is_entity else str(value),
            number,
            years,
        )
        self.facts.append(made)
        (page or self._page[subject.id]).facts.append(made)

    def year(self, subject: Entity, relation: str, year: int) -> None:
        self.fact(subject, relation, year, number=year)

    def count(self, subject: Entity, relation: str, low: int, high: int) -> None:
        n = self.rng.randint(low, high)
        self.fact(subject, relation, f"{n:,}", number=n)

    def date(self, subject: Entity, relation: str, year: int) -> None:
        month, day = self.rng.randrange(12), self.rng.randint(1, 28)
        self.fact(subject, relation, f"{day} {MONTHS[month]} {year}", number=year * 10000 + month * 100 + day)

    def person(self, low: int, high: int, group: str = "", avoid: tuple[Entity, ...] = ()) -> Entity | None:
        """Somebody born in low..high, of the group if there is one, the less used the likelier."""
        first, last = bisect_left(self._births, low), bisect_right(self._births, high)
        pool = self._by_birth[first:last]
        # a large world needs no list of thousands to choose four from
        near = [p for p in (pool if len(pool) < 120 else self.rng.sample(pool, 120)) if p not in avoid]
        fit = [p for p in near if GROUP[p.occupation] == group] or near
        if not fit:
            return None
        some = self.rng.sample(fit, min(4, len(fit)))
        chosen = min(some, key=lambda p: self._roles[p.id])
        self._roles[chosen.id] += 1
        return chosen

    def town(self, avoid: tuple[Entity, ...] = ()) -> Entity:
        return self.rng.choice(
            [t for t in self.rng.sample(self.by_kind["town"], 2) if t not in avoid] or self.by_kind["town"]
        )

    def firm(self, noun: str, before: int) -> Entity | None:
        fit = [f for f in self._firms_by_noun[noun] if f.born < before]
        return self.rng.choice(fit) if fit else None
