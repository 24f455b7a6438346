"""Comparisons of two things, or of the makers of two things: two-way and yes/no."""

from __future__ import annotations

from multihop.data.world.asked import Asked, Step, words
from multihop.data.world.entities import Fact, mention
from multihop.data.world.speaker import WORKS, Speaker
from multihop.data.world.wordings import BRIDGE, BRIDGE_SAME, COMPARE, CREATOR, SAME

_MAKER = {
    "novel": "author",
    "film": "director",
    "album": "performer",
    "newspaper": "founder",
    "building": "architect",
}


class Comparer(Speaker):
    """Draws comparison questions; ``want`` says which of the two answers is wanted."""

    def _pair(self, relations: list[str]) -> tuple[Fact, Fact] | None:
        options = [r for r in relations if len(self.world.by_relation.get(r, [])) > 1]
        if not options:
            return None
        one, two = self.rng.sample(self.world.by_relation[self.rng.choice(options)], 2)
        a, b = self._entity(one.subject), self._entity(two.subject)
        overlap = set(words(a.name)) & set(words(b.name)) - {"the", "a", "an", "of", "and", "for"}
        if (
            (a.kind == "person" and overlap)
            or one.passage == two.passage
            or a.name == b.name
            or a.kind != b.kind
        ):
            return None
        return one, two

    def _short(self, n: int) -> str:
        e = self._entity(n)
        return e.name if e.kind in WORKS else mention(e)

    def _two_way(
        self, forms: tuple[str, str], low: int, high: int, want: int, **words_
    ) -> tuple[str, int, str]:
        """(text, the answer's entity, rule); ``low`` has the smaller value."""
        pick = self.rng.randrange(2)
        answer, other = (low, high) if pick == 0 else (high, low)
        a, b = (answer, other) if want == 0 else (other, answer)
        form = self.rng.choice(forms[pick].split("/"))
        return form.format(a=self._short(a), b=self._short(b), **words_), answer, ("least", "greatest")[pick]

    def _compare(self, want: int) -> Asked | None:
        pair = self._pair(list(COMPARE))
        if not pair:
            return None
        low, high = sorted(pair, key=lambda f: f.number)
        dates = low.number > 10_000_000
        if (low.number // 10_000 == high.number // 10_000) if dates else low.number == high.number:
            return None
        text, answer, rule = self._two_way(COMPARE[low.relation], low.subject, high.subject, want)
        steps = [self._single(f) for f in pair]
        return Asked("comparison", text, self._entity(answer).name, steps, answer, False, rule)

    def _same(self, want: int) -> Asked | None:
        pair = self._alike(list(SAME), want)
        if not pair:
            return None
        form = self.rng.choice(SAME[pair[0].relation].split("/"))
        a, b = (mention(self._entity(f.subject)) for f in pair)
        kind = self._entity(pair[0].subject).kind
        if kind in WORKS:  # "the films A and B"
            a, b = a.replace(f"the {kind} ", f"the {kind}s ", 1), self._entity(pair[1].subject).name
        text = form.format(a=a, b=b)
        return Asked(
            "comparison", text, ("yes", "no")[want], [self._single(f) for f in pair], None, False, "same"
        )

    def _alike(self, relations: list[str], want: int) -> tuple[Fact, Fact] | None:
        """Two facts of one relation with the same object (want 0) or with two (want 1)."""
        pair = self._pair(relations)
        if pair and want == 0:
            peers = [
                f
                for f in self.world.inverse[pair[0].relation, pair[0].object]
                if f.passage != pair[0].passage
                and self._entity(f.subject).kind == self._entity(pair[0].subject).kind
                and self._entity(f.subject).name != self._entity(pair[0].subject).name
            ]
            return (pair[0], self.rng.choice(peers)) if peers else None
        return pair if pair and pair[0].object != pair[1].object else None

    def _made(self, relation: str, group: str = "") -> tuple[Fact, Fact] | None:
        """A work's maker and the maker's own fact of the relation."""
        kinds = [k for k in _MAKER if CREATOR[k] in self.world.by_relation and group in ("", k)]
        made = self.rng.choice(self.world.by_relation[CREATOR[self.rng.choice(kinds)]])
        own = self.world.forward.get((made.object, relation))
        return (made, own) if own and own.passage != made.passage else None

    def _bridge(self, want: int) -> Asked | None:
        relation = self.rng.choice(("birth_date", "birth_date", "death_date"))
        one = self._made(relation)
        two = self._made(relation, self._entity(one[0].subject).kind) if one else None
        if not two or len({f.passage for f in one + two}) < 4:
            return None
        low, high = sorted((one, two), key=lambda pair: pair[1].number)
        if low[1].number // 10_000 == high[1].number // 10_000 or low[0].object == high[0].object:
            return None
        if (
            low[0].value == high[0].value
            or self._entity(low[0].subject).name == self._entity(high[0].subject).name
        ):
            return None
        kind = self._entity(low[0].subject).kind
        text, answer, rule = self._two_way(
            BRIDGE[relation], low[0].subject, high[0].subject, want, kind=kind, maker=_MAKER[kind]
        )
        return Asked(
            "bridge_comparison",
            text,
            self._entity(answer).name,
            self._bridge_steps(one, two),
            answer,
            False,
            rule,
        )

    def _bridge_steps(self, one: tuple[Fact, Fact], two: tuple[Fact, Fact]) -> list[Step]:
        return [self._single(one[0]), self._single(two[0]), self._single(one[1]), self._single(two[1])]

    def _bridge_same(self, want: int) -> Asked | None:
        relation = self.rng.choice(list(BRIDGE_SAME))
        one, two = self._made(relation), self._made(relation)
        if not one or not two or len({f.passage for f in one + two}) < 4 or one[0].object == two[0].object:
            return None
        if (one[1].object == two[1].object) != (want == 0) or one[0].value == two[0].value:
            return None
        a, b = (self._entity(x[0].subject) for x in (one, two))
        text = BRIDGE_SAME[relation].format(maker="{m1}", a=mention(a), b=mention(b))
        text = text.replace("{m1}", _MAKER[a.kind], 1).replace("{m1}", _MAKER[b.kind], 1)
        return Asked(
            "bridge_comparison", text, ("yes", "no")[want], self._bridge_steps(one, two), None, False, "same"
        )
