"""Invented names: pronounceable compounds, unique where they have to be, all from one seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

_GIVEN_HEADS = (
    "Abr Adv Alm Arv Bel Bess Bor Bram Cal Cath Cor Dav Del Dor Ebr Ed Elv Em Fen Ferr Gal Gav Hal Harv "
    "Ib Il Ing Iv Jar Jess Jor Kal Kest Lav Lem Lor Mab Mar Mel Mir Nad Nes Nol Ob Ol Orl Pal Per Pol "
    "Quell Rav Rem Ros Sab Sel Sor Tab Tam Tess Ul Um Ver Vin Wen Wil Yar Yev Zel Zor"
).split()
_MALE_TAILS = (
    "ok und evin ador aric ock osk eden umir avek othan isko ulf edan orrin emand uvik ivald"
).split()
_FEMALE_TAILS = (
    "ira una elka essa ovia ithe anka ulla emira isha avine oda ilune etta enka orva ymia asel"
).split()
_SURNAME_HEADS = (
    "Arven Bask Bell Birn Brask Bren Calder Carv Dask Dorn Drav Elder Esk Fald Farr Fesk Gald Garv Gosk "
    "Grell Hask Hend Holv Irv Jask Jern Kald Karr Kell Lund Lusk Mald Marv Mesk Morn Nald Nesk Norv "
    "Ockl Orm Osk Pald Pask Pell Quarn Rand Rask Rell Sard Selv Skarn Stav Sund Tarv Tesk Thorn Torl "
    "Ulv Varl Vask Vell Vorn Wald Wend Wisk Yarn Zand Zell"
).split()
_SURNAME_TAILS = (
    "arrow aby acre adine agan amy ander anby asper atch ebrook ekin eldry emond endal enfort ersley "
    "esworth igan iley imore ingate inthorpe isham istone oakes obury odell olfe omery onby orick oval "
    "umber undry ulfar ydell yman"
).split()
_TOWN_HEADS = (
    "Ald Amber Ash Bal Barrow Birk Black Bran Brin Cald Carn Clay Cor Crag Dal Dun Eld Elm Fal Fen Fern "
    "Gar Glen Gorse Grim Hart Hazel Hern Holm Ing Kel Kern Lang Lark Lin Lode Lor Mal Marl Mer Moss Nar "
    "Neth Oak Old Or Pen Quar Rav Red Ros Rush Sal Sedge Shel Sil Skel Stan Strath Tarn Thist Tor Ul "
    "Var Wal Whin Wyn Yar Zan"
).split()
_TOWN_TAILS = (
    "avven bannock becken borrow brae cairn combry dell drake essel firth gurrin gellan hallow harrin "
    "hythin inder kirrin lanter linden losk marrow mellow mirrin nessock oster pellin quay rennock "
    "roggin selkin skerry stow tarrin thorn ullin vellan warrick wether wold yarrow"
).split()
_MARK_HEADS = (
    "Ab Ag Ark Az Bev Bor Brem Cas Chand Cov Dak Dev Dram Ech Ep Ev Fab Fid Fox Gad Gem Glav Had Hex "
    "Hob Id Ign Ist Jad Jov Kad Kor Lag Lex Lum Mag Mox Nab Nim Nov Ob Oct Om Pav Pex Plov Qued Rad Rix "
    "Rud Sab Sev Sol Tad Tev Tox Ub Ur Vad Vex Vol Wex Xan Yad Zad Zev"
).split()
_MARK_TAILS = (
    "acre adane agor alune amber andor arco astel aval ebris edo egon elect emis endra erion esco ibran "
    "ido igel ilon imbus ion ista iva oban odine ogan olar omir onda oris oval ubel udo ulan umira unda "
    "urion"
).split()
_LAND_TAILS = ("avia essia onia orra undra imar ombria ethia istan orland uvia athen").split()
_REGION_TAILS = ("shire march land dale wold moor fells reach vale heath").split()
_ADJECTIVES = (
    "Amber Ashen Borrowed Brass Broken Burning Chalk Copper Crooked Distant Drowned Eleventh Empty "
    "Faithful Feathered Foggy Forgotten Frozen Gilded Glass Granite Hidden Hollow Idle Iron Ivory Jade "
    "Last Lonely Marble Midnight Mossy Nameless Narrow Painted Paper Patient Pewter Quiet Restless "
    "Rusted Salted Scarlet Second Seventh Silent Silver Sleeping Slow Smoky Stubborn Sunken Tangled "
    "Thirsty Tin Velvet Wandering Wax Wicker Winter Wooden Woven"
).split()
_NOUNS = (
    "Acorn Anchor Anvil Apron Badger Basket Beacon Bell Bramble Candle Carriage Cellar Chimney Clock "
    "Cloak Compass Cradle Crane Curtain Dial Ember Falcon Feather Fiddle Finch Flute Furnace Garden "
    "Glove Hammer Harp Heron Hinge Kettle Kite Ladder Lantern Ledger Lute Magpie Map Mill Mirror Needle "
    "Oar Orchard Otter Parrot Pebble Pigeon Plough Quilt Raven Ribbon Saddle Sail Satchel Scarf Shovel "
    "Shutter Sparrow Spindle Staircase Thimble Thistle Tinder Trumpet Tunnel Umbrella Violin Wagon "
    "Walnut Whistle Willow Window Wren"
).split()


def article(word: str) -> str:
    """ "a" or "an" (none of the words in use has a silent h or a "yoo" at its start)."""
    return "an" if word[0].lower() in "aeiou" else "a"


class Names:
    """A source of names. Every name that this object hands out, it hands out once."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._used: set[str] = set()
        self._longer = False

    def _fresh(self, make: Callable[[], str]) -> str:
        for attempt in range(2000):
            self._longer = attempt >= 20  # the short forms are getting rare: add a syllable
            name = make()
            if name.lower() not in self._used:
                self._used.add(name.lower())
                return name
        raise RuntimeError("the name generator is exhausted: a wider pool of syllables is needed")

    def _join(self, heads: Sequence[str], tails: Sequence[str]) -> str:
        head, tail = self._rng.choice(heads), self._rng.choice(tails)
        if self._longer:
            head += self._rng.choice(("an", "el", "or", "im", "ub", "ed", "il", "os"))
        # "Grell" + "linden" would give three equal letters in a row
        return head + (tail[1:] if head[-1] == tail[0] and head[-2:-1] == tail[0] else tail)

    def given(self, female: bool) -> str:
        return self._join(_GIVEN_HEADS, _FEMALE_TAILS if female else _MALE_TAILS)

    def surname(self) -> str:
        return self._join(_SURNAME_HEADS, _SURNAME_TAILS)

    def person(self, female: bool, surname: str | None = None) -> str:
        return self._fresh(lambda: f"{self.given(female)} {surname or self.surname()}")

    def near(self, name: str) -> str:
        """The same first name and a surname that begins alike."""
        first, last = name.split()
        heads = [h for h in _SURNAME_HEADS if last.startswith(h)] or [last[:4]]
        return self._fresh(lambda: f"{first} {self._join(heads, _SURNAME_TAILS)}")

    def town(self) -> str:
        return self._fresh(lambda: self._join(_TOWN_HEADS, _TOWN_TAILS))

    def mark(self) -> str:
        """An invented word, for firms, prizes, bridges, currencies, …"""
        return self._fresh(lambda: self._join(_MARK_HEADS, _MARK_TAILS))

    def country(self) -> str:
        return self._fresh(lambda: self._join(_MARK_HEADS, _LAND_TAILS))

    def region(self) -> str:
        return self._fresh(lambda: self._join(_SURNAME_HEADS, _REGION_TAILS))

    def river(self) -> str:
        return "River " + self._fresh(
            lambda: self._join(_GIVEN_HEADS, ("ane", "ley", "over", "usk", "ather", "inth"))
        )

    def work(self) -> str:
        """A title of three plain words that do not belong together."""
        rng = self._rng

        def make() -> str:
            one, two = rng.sample(_NOUNS, 2)
            adjective = rng.choice(_ADJECTIVES)
            while adjective[:4] in (one[:4], two[:4]):  # no "Feathered Feather"
                adjective = rng.choice(_ADJECTIVES)
            form = rng.randrange(4)
            if form == 0:
                return f"The {adjective} {one} {two}"
            if form == 1:
                return f"{adjective} {one} and {two}"
            if form == 2:
                return f"The {one} of the {adjective} {two}"
            return f"{article(one).capitalize()} {one} for the {adjective} {two}"

        return self._fresh(make)
