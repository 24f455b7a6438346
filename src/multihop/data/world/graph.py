"""The world as a graph of typed facts, drawn part by part until it fills the asked passages."""

from __future__ import annotations

import random

from multihop.data.world.blocks import GROUP, OCCUPATIONS, Blocks
from multihop.data.world.entities import Entity

HOBBIES = (
    "beekeeping,chess,rowing,fencing,pottery,clock repair,bookbinding,skating,archery,bell ringing,"
    "kite making,mountain walking,"
    "wood carving,bird watching,sailing,letter writing,puppet making,gardening,swimming,"
    "map drawing,fishing,weaving,juggling,ballroom dancing,glass blowing,star gazing,baking,riding"
).split(",")
GOODS = (
    "barrels,bricks,lamps,ropes,stoves,gloves,paper,tiles,clocks,boots,pumps,carpets,needles,cheese,sails,glass,"
    "bicycles,umbrellas,candles,locks,soap,pianos,buttons,cutlery,hats,engines,sugar,furniture"
).split(",")
WORKS = {"novel": "press", "film": "pictures", "album": "records", "newspaper": "press"}


class Graph(Blocks):
    """Draws entities and facts until the pages make up the asked number of passages."""

    def __init__(self, rng: random.Random, passages: int) -> None:
        super().__init__(rng)
        n = passages
        share = {
            "town": 0.10,
            "firm": 0.08,
            "novel": 0.075,
            "film": 0.07,
            "album": 0.05,
            "newspaper": 0.035,
            "building": 0.055,
            "event": 0.055,
            "prize": 0.03,
            "office": 0.07,
        }
        count = {kind: max(2, round(n * part)) for kind, part in share.items()}
        count["country"] = max(2, round(n / 60)) if n < 600 else 10 + n // 500
        count["region"] = 2 * count["country"]
        self.second = round(n * 0.05)  # second excerpts, made by the prose from facts left over
        count["person"] = max(10, n - self.second - sum(count.values()))
        self._places(count)
        self._people(count["person"])
        self._firms(count["firm"])
        self._work(count)
        self._other(count)
        self._offices(count["office"])
        self._mark_namesakes()

    def _places(self, count: dict[str, int]) -> None:
        rng, names = self.rng, self.names
        countries = [self.entity("country", names.country()) for _ in range(count["country"])]
        regions = [self.entity("region", names.region()) for _ in range(count["region"])]
        towns = [self.entity("town", names.town()) for _ in range(count["town"])]
        for i, region in enumerate(regions):
            self.fact(region, "country", countries[i % len(countries)])
            self.fact(region, "region_capital", towns[i % len(towns)])
            self.fact(region, "peak", "Mount " + names.mark())
            self.count(region, "peak_height", 900, 4200)
            self.count(region, "area", 1200, 48000)
        for i, town in enumerate(towns):
            self.fact(town, "region", regions[i % len(regions)])
            self.fact(town, "river", names.river())
            self.count(town, "population", 1200, 240000)
            self.year(town, "charter_year", rng.randint(1190, 1790))
            self.fact(town, "town_goods", rng.choice(GOODS))
            self.count(town, "altitude", 12, 990)
        for i, country in enumerate(countries):
            # towns go round the regions and regions round the countries: this one lies in the country
            self.fact(country, "country_capital", (towns[len(regions) + i :] or towns)[0])
            self.fact(country, "currency", names.mark().lower())
            self.fact(country, "language", names.mark() + "ish")
            self.year(country, "republic_year", rng.randint(1805, 1925))
            self.count(country, "inhabitants", 300_000, 28_000_000)

    def _people(self, n: int) -> None:
        rng = self.rng
        spans = ((1836, 1862, 0.2), (1866, 1892, 0.3), (1896, 1922, 0.3), (1926, 1952, 0.2))
        couples: list[tuple[Entity, Entity]] = []
        made = 0
        for low, high, part in spans:
            size = n - made if low == 1926 else round(n * part)
            now = [self._new_person(made + i, rng.randint(low, high), couples) for i in range(size)]
            made += size
            men, women = [p for p in now if not p.female], [p for p in now if p.female]
            rng.shuffle(men), rng.shuffle(women)
            couples = list(zip(men, women, strict=False))[: max(1, int(min(len(men), len(women)) * 0.8))]
            for pair in couples:
                one, other = rng.sample(pair, 2)
                self.fact(one, "spouse", other)
        self._by_birth = sorted(self.by_kind["person"], key=lambda p: (p.born, p.id))
        self._births = [p.born for p in self._by_birth]
        for person in self.by_kind["person"]:
            teacher = self.person(person.born - 45, person.born - 12, GROUP[person.occupation])
            if rng.random() < 0.6:
                self.fact(person, "teacher", teacher)

    def _new_person(self, index: int, born: int, couples: list[tuple[Entity, Entity]]) -> Entity:
        rng = self.rng
        female = rng.random() < 0.5
        occupation = OCCUPATIONS[index % len(OCCUPATIONS)][0]
        parents = rng.choice(couples) if couples and rng.random() < 0.85 else None
        older = self.by_kind["person"]
        surname = parents[0].name.split()[-1] if parents and rng.random() < 0.4 else None
        twins = [
            p
            for p in rng.sample(older, min(6, len(older)))
            if p.female == female and p.occupation != occupation and not p.ambiguous
        ]
        turn = index % 20
        if turn == 19 and twins:  # a namesake: the same name, another trade
            name, twins[0].ambiguous = twins[0].name, True
        elif turn in (6, 13) and twins:  # nearly the same name
            name = self.names.near(twins[0].name)
        else:
            name = self.names.person(female, surname)
        made = self.entity(
            "person",
            name,
            female=female,
            occupation=occupation,
            born=born,
            ambiguous=turn == 19 and bool(twins),
        )
        self.fact(made, "occupation", occupation)
        self.date(made, "birth_date", born)
        self.fact(made, "birthplace", birthplace := self.town())
        if parents:
            self.fact(made, "father", parents[0])
            self.fact(made, "mother", parents[1])
        if born < 1915:
            self.date(made, "death_date", born + rng.randint(66, 88))
            self.fact(made, "death_place", self.town((birthplace,)))
        self.fact(made, "hobby", rng.choice(HOBBIES))
        self.count(made, "pupils", 3, 60) if rng.random() < 0.4 else self.count(made, "letters", 110, 990)
        return made

    def _firms(self, n: int) -> None:
        rng = self.rng
        nouns = ("press", "pictures", "records", "works", "press", "shipping", "pictures", "mills")
        for i in range(n):
            founder = self.person(1836, 1892, "trade") or self.by_kind["person"][0]
            year = founder.born + rng.randint(25, 48)
            noun = nouns[i % len(nouns)]
            firm = self.entity("firm", f"{self.names.mark()} {noun.capitalize()}", noun=noun, born=year)
            self._firms_by_noun[noun].append(firm)
            self.fact(firm, "firm_founder", founder)
            self.year(firm, "firm_year", year)
            self.fact(firm, "hq", self.town())
            self.fact(firm, "chair", self.person(year - 30, year + 6, "trade", (founder,)))
            self.count(firm, "employees", 14, 2900)
            self.fact(firm, "firm_goods", rng.choice(GOODS))
        everyone = self.by_kind["person"]
        for person in everyone:
            if rng.random() < 0.45:
                noun = rng.choice(nouns)
                self.fact(person, "employer", self.firm(noun, person.born + 25))

    def _creator(self, group: str, earliest: int = 1845) -> tuple[Entity, int]:
        person = self.person(earliest, 1952, group) or self.by_kind["person"][0]
        return person, person.born + self.rng.randint(25, 52)

    def _work(self, count: dict[str, int]) -> None:
        rng = self.rng
        plan = {
            "novel": ("writer", "author", "illustrator", "art", "publisher", "novel_year"),
            "film": ("film", "director", "film_composer", "music", "studio", "film_year"),
            "album": ("music", "performer", "producer", "music", "label", "album_year"),
            "newspaper": ("writer", "paper_founder", "paper_editor", "writer", "owner", "paper_year"),
        }
        for kind, (group, maker, helper, helpers, house, year_of) in plan.items():
            for _ in range(count[kind]):
                person, year = self._creator(group, 1882 if kind in ("film", "album") else 1845)
                novels = self.by_kind["novel"]
                source = rng.choice(novels) if kind == "film" and rng.random() < 0.5 else None
                name = (
                    self.names.mark()
                    + " "
                    + rng.choice(("Courier", "Herald", "Observer", "Gazette", "Messenger"))
                )
                if kind != "newspaper":
                    same = source if source and not source.ambiguous and rng.random() < 0.3 else None
                    name = same.name if same else self.names.work()
                work = self.entity(kind, name, ambiguous=kind != "newspaper" and bool(same))
                if work.ambiguous:
                    source.ambiguous = True
                self.fact(work, maker, person)
                self.fact(work, helper, self.person(year - 58, year - 24, helpers, (person,)))
                self.fact(work, house, self.firm(WORKS[kind], year))
                self.year(work, year_of, year)
                self.fact(
                    work,
                    {
                        "novel": "setting",
                        "film": "filmed_in",
                        "album": "recorded_in",
                        "newspaper": "paper_town",
                    }[kind],
                    self.town(),
                )
                if source and self._year_of(source) < year:
                    self.fact(work, "based_on", source)
                unit = {
                    "novel": ("chapters", 9, 64),
                    "film": ("minutes", 61, 178),
                    "album": ("songs", 7, 22),
                    "newspaper": ("copies", 900, 88000),
                }[kind]
                self.count(work, *unit)

    def _year_of(self, novel: Entity) -> int:
        return next(f.number for f in self._page[novel.id].facts if f.relation == "novel_year")

    def _other(self, count: dict[str, int]) -> None:
        rng, mark = self.rng, self.names.mark
        for _ in range(count["building"]):
            architect, year = self._creator("build")
            noun = rng.choice("bridge library museum lighthouse theatre observatory".split())
            made = self.entity("building", f"{mark()} {noun.capitalize()}", noun=noun)
            self.fact(made, "architect", architect)
            self.fact(made, "building_town", self.town())
            self.year(made, "building_year", year)
            self.fact(made, "opener", self.person(year - 60, year - 26, "public", (architect,)))
            self.count(made, "steps", 40, 990)
            self.count(made, "cost", 2100, 97000)
        for _ in range(count["event"]):
            winner, year = self._creator(rng.choice(("public", "art", "science")))
            noun = rng.choice(
                "regatta,chess tournament,cycle race,song contest,kite contest,balloon race".split(",")
            )
            made = self.entity("event", f"{mark()} {noun.title()}", noun=noun)
            self.fact(made, "winner", winner)
            self.fact(made, "runner_up", self.person(year - 56, year - 19, "", (winner,)))
            self.fact(made, "event_town", self.town())
            self.date(made, "event_date", year)
            self.fact(made, "sponsor", self.firm(rng.choice(("works", "shipping", "press")), year))
            self.count(made, "entrants", 12, 480)
        for _ in range(count["prize"]):
            donor, year = self._creator("science")
            noun = rng.choice("medal prize cup award".split())
            made = self.entity("prize", f"{mark()} {noun.capitalize()}", noun=noun)
            self.fact(made, "donor", donor)
            self.year(made, "prize_year", year)
            first = self.person(year - 58, year - 24, "science", (donor,))
            self.fact(made, "first_winner", first)
            self.fact(made, "prize_town", self.town())
            later = self.person(year - 40, year - 16, "art", (donor, first) if first else (donor,))
            self.fact(made, "second_winner", later)
            self.count(made, "prize_value", 120, 9900)

    def _offices(self, n: int) -> None:
        rng = self.rng
        places = [(r, "governor") for r in self.by_kind["region"]] + [
            (t, "mayor") for t in self.by_kind["town"]
        ]
        for place, post in places[:n]:
            office = self.entity("office", f"{post.capitalize()} of {place.name}", noun=post)
            page = self._page[office.id]
            start = rng.randint(1886, 1966)
            middle = start + rng.randint(7, 15)
            end = middle + rng.randint(7, 15)
            old = self.person(start - 60, start - 28, "public")
            new = self.person(middle - 58, middle - 28, "public", (old,) if old else ())
            self.fact(place, f"{post}_1", old, page, years=(start, middle))
            self.fact(place, f"{post}_2", new, page, years=(middle, end))
            self.fact(office, "office_year", rng.randint(1792, 1884), page)
            self.count(office, "office_staff", 6, 140)

    def _mark_namesakes(self) -> None:
        for e in self.entities:
            if e.ambiguous:
                e.title = f"{e.name} ({e.occupation or e.kind})"
