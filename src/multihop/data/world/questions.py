"""Questions drawn from the stated facts, each with the chain of facts that answers it."""

from __future__ import annotations

import random
from collections import defaultdict

from multihop.data.world.asked import Asked, Step, words
from multihop.data.world.comparisons import Comparer
from multihop.data.world.entities import Fact, mention
from multihop.data.world.model import World
from multihop.data.world.relations import FORWARD
from multihop.data.world.wordings import FAMILY, YEAR_OF

SHORTEST, LONGEST = 8, 25


class Asker(Comparer):
    """Draws questions of a kind. Every ``draw`` returns a valid question or None."""

    def __init__(self, world: World, rng: random.Random) -> None:
        super().__init__(world, rng)
        self._from: dict[int, list[Fact]] = defaultdict(list)
        self._to: dict[int, list[Fact]] = defaultdict(list)
        self._year: dict[int, list[Fact]] = defaultdict(list)
        for f in world.facts:
            if f.relation in FORWARD:
                self._from[f.subject].append(f)
                if f.object is not None and FORWARD[f.relation].np:
                    self._to[f.object].append(f)
            if f.relation in YEAR_OF:
                self._year[f.number].append(f)
        present = world.by_relation
        self._relations = [r for r in FORWARD if r in present]
        self._holders = [
            f for r in ("mayor_1", "mayor_2", "governor_1", "governor_2") for f in present.get(r, [])
        ]
        self._family = [f for r in ("father", "mother", "spouse") for f in present.get(r, [])]

    def draw(self, kind: str, want: int) -> Asked | None:
        """``want`` 0/1: first or second named, yes or no, where the question has two answers."""
        make = {
            "2hop": lambda: self._chain(kind, 2),
            "3hop1": lambda: self._chain(kind, 3),
            "4hop1": lambda: self._chain(kind, 4),
            "3hop2": lambda: self._branch(kind, 1, False),
            "4hop3": lambda: self._branch(kind, 2, False),
            "4hop2": lambda: self._branch(kind, 1, True),
            "bridge": lambda: self._chain(kind, 2),
            "compositional": lambda: self._chain(kind, 2, forward=True),
            "inference": self._inference,
            "comparison": lambda: self._compare(want),
            "same": lambda: self._same(want),
            "bridge_comparison": lambda: self._bridge(want),
            "bridge_same": lambda: self._bridge_same(want),
        }[kind]
        asked = make()
        return asked if asked and self._sound(asked) else None

    # -- checks ----------------------------------------------------------------------------

    def _sound(self, q: Asked) -> bool:
        titles = [self.world.passages[p][0] for p in q.passages]
        if len(set(titles)) < len(titles) or not SHORTEST <= len(q.text.split()) <= LONGEST:
            return False
        if not q.open:
            return True
        said = set(words(q.text))
        return not any(w in said for w in words(q.answer) if len(w) > 2 and w not in ("the", "and", "for"))

    # -- chains ----------------------------------------------------------------------------

    def _walk(self, n: int, forward: bool) -> list[tuple[Fact, bool]] | None:
        rng, present = self.rng, self.world.by_relation
        fact = rng.choice(present[rng.choice(self._relations)])
        edges, seen, where = [(fact, False)], {fact.subject}, {fact.passage}
        while len(edges) < n:
            last = edges[-1][0]
            if last.object is None or last.object in seen or not FORWARD[last.relation].np:
                return None
            seen.add(last.object)
            options = [(f, False) for f in self._from[last.object]]
            if len(edges) == n - 1 and not forward:
                options += [
                    (f, True)
                    for f in self._to[last.object]
                    if FORWARD[f.relation].inverse_ask
                    and len(self.world.inverse[f.relation, f.object]) == 1
                    and f.subject not in seen
                ]
            used = {f.relation.rstrip("12_") for f, _ in edges}
            options = [
                (f, i)
                for f, i in options
                if f.passage not in where
                and f.relation.rstrip("12_") not in used
                and (last.relation, f.relation) not in FAMILY
            ]
            if not options:
                return None
            relation = rng.choice(sorted({(f.relation, i) for f, i in options}))
            edges.append(rng.choice([(f, i) for f, i in options if (f.relation, i) == relation]))
            where.add(edges[-1][0].passage)
        return edges

    def _chain(self, kind: str, n: int, forward: bool = False) -> Asked | None:
        edges = self._walk(n, forward)
        if not edges:
            return None
        steps: list[Step] = []
        phrase = self._mention(edges[0][0].subject)
        for i, (fact, inverse) in enumerate(edges):
            year = self._in_office(fact)
            here = phrase if i == 0 else self._number_ref(edges[i - 1][0].object, i)
            steps.append(
                Step(
                    self._ask(fact, here, year, True, inverse),
                    self._entity(fact.subject).name if inverse else fact.value,
                    fact,
                    inverse,
                )
            )
            if i < n - 1:
                phrase = self._np(fact, phrase, year, i == 0)
            else:
                text = self._ask(fact, phrase, year, n == 2, inverse)
        return Asked(kind, text, steps[-1].answer, steps, fact.subject if inverse else fact.object)

    # -- two branches: the holder of an office in the year of something else -----------------

    def _branch(self, kind: str, path: int, onward: bool) -> Asked | None:
        rng = self.rng
        holder = rng.choice(self._holders)
        years = [f for y in range(holder.years[0] + 1, holder.years[1]) for f in self._year.get(y, [])]
        if not years:
            return None
        when = rng.choice(years)
        way: list[Fact] = []
        place = holder.subject
        for _ in range(path):
            options = [f for f in self._to.get(place, []) if not f.years]
            if not options:
                return None
            way.insert(0, rng.choice(options))
            place = way[0].subject
        last = self._from[holder.object] if onward else []
        if onward and not last:
            return None
        facts = [*way, when, holder, *([rng.choice(last)] if onward else [])]
        if len({f.passage for f in facts}) < len(facts) or when.subject in {f.subject for f in way}:
            return None
        return self._word_branch(kind, way, when, holder, facts[-1] if onward else None)

    def _word_branch(self, kind: str, way: list[Fact], when: Fact, holder: Fact, last: Fact | None) -> Asked:
        start = self._mention(way[0].subject)
        event = self._mention(when.subject)
        post = holder.relation[:-2]
        steps, phrase = [], start
        for i, fact in enumerate(way):
            here = start if i == 0 else self._number_ref(fact.subject, i)
            steps.append(Step(self._ask(fact, here, 0, True), fact.value, fact))
            phrase = self._np(fact, phrase, 0, i == 0)
        clause = YEAR_OF[when.relation].format(x=event)
        steps.append(
            Step(f"In what year was {clause.split(' was ')[0]} {clause.split(' was ')[1]}?", when.value, when)
        )
        n = len(way)
        steps.append(Step(f"Who was {post} of #{n} in #{n + 1}?", holder.value, holder))
        if last is None:
            text = f"In the year when {clause}, who was {post} of {phrase}?"
            return Asked(kind, text, holder.value, steps, holder.object)
        steps.append(Step(self._ask(last, self._number_ref(last.subject, n + 2), 0, True), last.value, last))
        person = f"the person who was {post} of {phrase} in the year when {clause}"
        return Asked(kind, self._ask(last, person, 0, False), last.value, steps, last.object)

    # -- family ----------------------------------------------------------------------------

    def _inference(self) -> Asked | None:
        first = self.rng.choice(self._family)
        options = [
            f
            for f in self._from[first.object]
            if (first.relation, f.relation) in FAMILY
            and f.passage != first.passage
            and f.object != first.subject
        ]
        if not options:
            return None
        second = self.rng.choice(options)
        name = FAMILY[first.relation, second.relation]
        who = self._mention(first.subject)
        if len(f"Who is the {name} of {who}?".split()) < SHORTEST:
            who = mention(self._entity(first.subject), trade=True)
        text = f"Who {self.rng.choice(('is', 'was'))} the {name} of {who}?"
        steps = [
            Step(self._ask(first, who, 0, True), first.value, first),
            Step(self._ask(second, self._number_ref(second.subject, 1), 0, True), second.value, second),
        ]
        return Asked("inference", text, second.value, steps, second.object)
