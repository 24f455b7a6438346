"""From facts to short encyclopedic passages: sentence forms, and the choice among them.

In a form, {relation} is replaced by the fact's object (as another passage names it) and the
fact counts as stated there; {relation.a} and {relation.b} are the years in office. {S} is the
full name, {s} the short form for later sentences, {He} {he} {His} {his} {him} the pronouns.
"""

from __future__ import annotations

import random
import re

from multihop.data.world.entities import Entity, Fact, Page, mention
from multihop.data.world.forms import BODY, OPEN
from multihop.data.world.graph import Graph
from multihop.data.world.names import article

LEAST, MOST, MOST_SENTENCES = 30, 60, 4
DETAIL = {
    "hobby",
    "letters",
    "pupils",
    "town_goods",
    "altitude",
    "firm_goods",
    "steps",
    "cost",
    "office_staff",
    "office_year",
    "songs",
    "minutes",
    "chapters",
    "copies",
    "entrants",
    "prize_value",
}
DETAIL_LAST = 0.6
_SLOT = re.compile(r"\{(\w+)(?:\.(a|b))?\}")
_WORDS = {
    "S",
    "s",
    "He",
    "he",
    "His",
    "his",
    "him",
    "man",
    "child",
    "wife",
    "occ",
    "Occ",
    "noun",
    "a_noun",
    "place",
}


def relations(form: str) -> tuple[str, ...]:
    """The relations that a form states."""
    return tuple(dict.fromkeys(name for name, _ in _SLOT.findall(form) if name not in _WORDS))


_NEEDS = {form: relations(form) for forms in (*OPEN.values(), *BODY.values()) for form in forms}


def _naming(form: str) -> str | None:
    """A later sentence's form turned into a first sentence, which names its subject; None if it can't."""
    for pronoun, name in (
        ("{He}", "{S}"),
        ("{His}", "{S}'s"),
        ("{he}", "{S}"),
        ("{his}", "{S}'s"),
        ("{him}", "{S}"),
    ):
        if pronoun in form:
            return form.replace(pronoun, name, 1)
    return "{S}" + form[2:] if form.startswith("It ") else None


class Writer:
    """Writes the passages of one graph and notes in each fact where it is stated."""

    def __init__(self, graph: Graph, rng: random.Random) -> None:
        self.graph, self.rng = graph, rng
        self._trade: dict[str, bool] = {}

    def write(self, page: Page, number: int, second: bool = False) -> list[str] | None:
        """Sentences of the page's (second) passage, or None where its facts do not fill one."""
        free = {f.relation: f for f in page.facts if f.passage is None}
        for _ in range(40):
            chosen = self._choose(page.entity.kind, free, second)
            sentences = [self._render(form, page, free, i, second) for i, form in enumerate(chosen)]
            words = sum(len(s.split()) for s in sentences)
            if len(sentences) >= 2 and LEAST <= words <= MOST:
                for i, form in enumerate(chosen):
                    for relation in _NEEDS[form]:
                        free[relation].passage, free[relation].sentence = number, i
                return sentences
        return None

    def _choose(self, kind: str, free: dict[str, Fact], second: bool) -> list[str]:
        rng = self.rng
        chosen: list[str] = []
        stated: set[str] = {"occupation"} if second else set()
        pool = [f for f in BODY[kind] if all(r in free for r in _NEEDS[f])]
        if not second:
            fit = [f for f in OPEN[kind] if all(r in free for r in _NEEDS[f])]
            if not fit:
                return []
            chosen.append(rng.choice(fit))
            stated.update(_NEEDS[chosen[0]])
        # small detail comes in where the facts that questions follow leave room
        pool.sort(key=lambda form: rng.random() + DETAIL_LAST * all(r in DETAIL for r in _NEEDS[form]))
        goal = rng.randint(34, 46)
        if second:
            first = next((f for f in pool if _naming(f)), None)
            if first is None:
                return []
            chosen.append(first)
            stated.update(_NEEDS[first])
        # {x} stands for about three words; the exact count is checked afterwards
        size = lambda: sum(len(f.split()) + len(_NEEDS[f]) for f in chosen)  # noqa: E731
        for form in pool:
            if len(chosen) >= MOST_SENTENCES or (size() >= goal and len(chosen) >= 2):
                break
            if not stated.intersection(_NEEDS[form]):
                chosen.append(form)
                stated.update(_NEEDS[form])
        if kind in ("person", "office"):  # a life, and a row of holders, is told in the order of time
            head = 0 if second else 1
            chosen[head:] = sorted(chosen[head:], key=BODY[kind].index)
        return chosen

    def _render(self, form: str, page: Page, free: dict[str, Fact], index: int, second: bool) -> str:
        e = page.entity
        if second and index == 0:
            form = _naming(form) or form
        words = self._words(e, page)

        def fill(match: re.Match[str]) -> str:
            name, part = match.groups()
            if name in words:
                return words[name]
            fact = free[name]
            if part:
                return str(fact.years[0 if part == "a" else 1])
            if fact.object is None:
                return fact.value
            return mention(self.graph.entities[fact.object], self._trade[name])

        # a quarter of the people are introduced with their trade, namesakes always
        self._trade = {name: self.rng.random() < 0.25 for name in free}
        text = _SLOT.sub(fill, form)
        return text[0].upper() + text[1:]

    def _words(self, e: Entity, page: Page) -> dict[str, str]:
        full = e.name if e.kind in ("novel", "film", "album", "person") else mention(e)
        short = {
            "person": e.name.split()[-1],
            "firm": "the company",
            "newspaper": "the paper",
            "office": "the office",
        }.get(e.kind, f"the {e.noun or e.kind}")
        him = (
            ("she", "her", "her", "daughter", "husband", "woman")
            if e.female
            else ("he", "his", "him", "son", "wife", "man")
        )
        he, his, him_, child, wife, man = him
        if e.kind != "person":
            he, his, him_ = short, "its", "it"
        place = self.graph.entities[page.facts[0].subject].name if e.kind == "office" else ""
        occ = f"{article(e.occupation)} {e.occupation}" if e.occupation else ""
        noun = e.noun or e.kind
        return {
            "S": full,
            "s": short,
            "He": he.capitalize(),
            "he": he,
            "His": his.capitalize(),
            "his": his,
            "him": him_,
            "man": man,
            "child": child,
            "wife": wife,
            "occ": occ,
            "Occ": occ.capitalize(),
            "noun": noun,
            "a_noun": f"{article(noun)} {noun}",
            "place": place,
        }
