"""How a relation is asked about and how it is used inside a longer question.

``np`` completes a noun phrase and ``ask`` a question, {x} being the subject (for an
inverse: the object) and {y} a year in office. Phrases that end in {x} can hold a long {x}.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Relation:
    """Wordings of one relation in one direction."""

    label: str
    """The name in evidence triples."""
    np: tuple[str, ...]
    ask: tuple[str, ...]
    inverse_ask: tuple[str, ...] = ()
    """Questions for the subject, {x} being the object; only where a unique subject makes sense."""
    short: tuple[str, ...] = ()
    """Questions that read well only with a short {x}."""


def _r(label: str, np: str, ask: str, inverse: str = "", short: str = "") -> Relation:
    cut = lambda text: tuple(part for part in text.split(" / ") if part)  # noqa: E731
    return Relation(label, cut(np), cut(ask), cut(inverse), cut(short))


FORWARD: dict[str, Relation] = {
    "author": _r(
        "author",
        "the author of {x} / the writer of {x}",
        "Who wrote {x}? / Who is the author of {x}?",
        "Which novel was written by {x}? / What is the title of the novel by {x}?",
    ),
    "illustrator": _r(
        "illustrator",
        "the illustrator of {x}",
        "Who drew the illustrations for {x}?",
        "Which novel was illustrated by {x}?",
    ),
    "publisher": _r(
        "publisher",
        "the publisher of {x} / the company that published {x}",
        "Which company published {x}? / What is the name of the publisher of {x}?",
    ),
    "novel_year": _r(
        "publication date",
        "",
        "What is the year of publication of {x}?",
        "",
        "In what year was {x} published?",
    ),
    "setting": _r(
        "narrative location",
        "the town that is the setting of {x}",
        "Which town is the setting of {x}?",
        "Which novel is set in {x}?",
    ),
    "director": _r(
        "director",
        "the director of {x} / the person who directed {x}",
        "Who directed {x}? / Who was the director of {x}?",
        "Which film was directed by {x}? / What is the title of the film by {x}?",
    ),
    "film_composer": _r(
        "composer",
        "the composer of the music for {x}",
        "Who composed the music for {x}?",
        "For which film was the music composed by {x}?",
    ),
    "studio": _r(
        "production company",
        "the studio behind {x} / the company that produced {x}",
        "Which company produced {x}? / Which studio was behind {x}?",
    ),
    "film_year": _r(
        "publication date", "", "What is the year of release of {x}?", "", "In what year was {x} released?"
    ),
    "filmed_in": _r(
        "filming location",
        "the filming location of {x} / the town where {x} was shot",
        "Which town was the filming location of {x}?",
        "Which film was shot in {x}?",
        "In which town was {x} filmed?",
    ),
    "based_on": _r(
        "based on",
        "the novel that inspired {x}",
        "Which novel was the basis for {x}?",
        "Which film is based on {x}?",
    ),
    "performer": _r(
        "performer",
        "the performer of {x} / the person who performed {x}",
        "Who performed {x}? / Who is the performer of {x}?",
        "Which album was performed by {x}?",
    ),
    "producer": _r(
        "producer", "the producer of {x}", "Who produced {x}?", "Which album was produced by {x}?"
    ),
    "label": _r(
        "record label",
        "the record label of {x} / the company that issued {x}",
        "Which company issued {x}? / What was the record label of {x}?",
    ),
    "album_year": _r(
        "publication date", "", "What is the year of release of {x}?", "", "In what year was {x} released?"
    ),
    "recorded_in": _r(
        "recorded at",
        "the town that saw the recording of {x} / the town where {x} was recorded",
        "Which town was the place of recording of {x}?",
        "Which album was recorded in {x}?",
        "In which town was {x} recorded?",
    ),
    "paper_founder": _r(
        "founded by",
        "the founder of {x} / the person who founded {x}",
        "Who founded {x}? / Who was the founder of {x}?",
        "Which newspaper was founded by {x}? / What is the name of the newspaper founded by {x}?",
    ),
    "paper_editor": _r(
        "editor",
        "the first editor of {x}",
        "Who was the first editor of {x}?",
        "Which newspaper had as its first editor {x}?",
    ),
    "owner": _r("owned by", "the owner of {x} / the company that owns {x}", "Which company owns {x}?"),
    "paper_year": _r(
        "inception", "", "What is the founding year of {x}?", "", "In what year was {x} founded?"
    ),
    "paper_town": _r(
        "headquarters location",
        "the town that is home to {x}",
        "Which town is home to {x}?",
        "Which newspaper is based in {x}?",
    ),
    "birth_date": _r(
        "date of birth",
        "",
        "What is the date of birth of {x}?",
        "",
        "When was {x} born? / On what date was {x} born?",
    ),
    "birthplace": _r(
        "place of birth",
        "the birthplace of {x} / the town where {x} was born",
        "Which town was the birthplace of {x}? / What is the birthplace of {x}?",
        "",
        "In which town was {x} born? / Where was {x} born?",
    ),
    "death_date": _r(
        "date of death",
        "",
        "What is the date of death of {x}?",
        "",
        "On what date did {x} die? / When did {x} die?",
    ),
    "death_place": _r(
        "place of death",
        "the place of death of {x} / the town where {x} died",
        "What was the place of death of {x}?",
        "",
        "In which town did {x} die? / Where did {x} die?",
    ),
    "father": _r("father", "the father of {x}", "Who was the father of {x}?"),
    "mother": _r("mother", "the mother of {x}", "Who was the mother of {x}?"),
    "spouse": _r("spouse", "the spouse of {x}", "Who was the spouse of {x}?", "", "Who was {x} married to?"),
    "teacher": _r(
        "student of",
        "the teacher of {x}",
        "Who was the teacher of {x}? / Who taught {x}?",
        "Who was a pupil of {x}?",
    ),
    "employer": _r(
        "employer",
        "the main employer of {x} / the company that employed {x}",
        "Which company was the main employer of {x}?",
        "",
        "Which company did {x} work for?",
    ),
    "firm_founder": _r(
        "founded by",
        "the founder of {x} / the person who founded {x}",
        "Who founded {x}? / Who was the founder of {x}?",
        "Which company was founded by {x}?",
    ),
    "firm_year": _r(
        "inception", "", "What is the founding year of {x}?", "", "In what year was {x} founded?"
    ),
    "hq": _r(
        "headquarters location",
        "the town with the head office of {x} / the town where {x} has its head office",
        "Which town has the head office of {x}?",
        "Which company has its head office in {x}?",
        "In which town does {x} have its head office?",
    ),
    "chair": _r(
        "chairperson",
        "the later chair of {x}",
        "Who later became chair of {x}?",
        "Which company was later chaired by {x}?",
    ),
    "employees": _r(
        "employees", "", "What is the number of employees of {x}?", "", "How many employees does {x} have?"
    ),
    "region": _r(
        "located in",
        "the region that contains {x} / the region that includes {x}",
        "Which region contains {x}? / What is the name of the region that includes {x}?",
        "",
        "In which region is {x}?",
    ),
    "river": _r(
        "located next to body of water", "", "Which river runs through {x}? / Which river flows past {x}?"
    ),
    "population": _r("population", "", "What is the population of {x}? / How many people live in {x}?"),
    "charter_year": _r(
        "inception",
        "",
        "What is the charter year of {x}?",
        "",
        "In what year did {x} receive its town charter?",
    ),
    "altitude": _r("elevation", "", "What is the height above the sea, in metres, of {x}?"),
    "country": _r(
        "country",
        "the country that contains {x}",
        "Which country contains {x}?",
        "",
        "To which country does {x} belong?",
    ),
    "region_capital": _r(
        "capital", "the capital of {x}", "What is the capital of {x}?", "Which region has as its capital {x}?"
    ),
    "peak": _r("highest point", "", "What is the highest mountain of {x}?"),
    "area": _r("area", "", "What is the area, in square kilometres, of {x}?"),
    "country_capital": _r("capital", "the capital of {x}", "What is the capital of {x}?"),
    "currency": _r("currency", "", "What is the name of the currency of {x}?"),
    "language": _r("official language", "", "What is the official language of {x}?"),
    "republic_year": _r("inception", "", "", "", "In what year did {x} become a republic?"),
    "architect": _r(
        "architect",
        "the architect of {x} / the person who designed {x}",
        "Who designed {x}? / Who was the architect of {x}?",
        "Which building was designed by {x}?",
    ),
    "opener": _r(
        "officially opened by",
        "the person who led the opening ceremony of {x}",
        "Who led the opening ceremony of {x}?",
    ),
    "building_town": _r(
        "located in",
        "the town that is the site of {x} / the town where {x} stands",
        "Which town is the site of {x}?",
        "",
        "In which town is {x}?",
    ),
    "building_year": _r(
        "inception", "", "What is the opening year of {x}?", "", "In what year was {x} opened?"
    ),
    "winner": _r(
        "winner",
        "the winner of {x} / the person who won {x}",
        "Who won {x}? / Who was the winner of {x}?",
        "Which contest was won by {x}?",
    ),
    "runner_up": _r("runner-up", "the person who came second in {x}", "Who came second in {x}?"),
    "event_town": _r(
        "location", "the town that hosted {x}", "Which town hosted {x}?", "", "In which town was {x} held?"
    ),
    "event_date": _r("point in time", "", "What is the date of {x}?", "", "On what date was {x} held?"),
    "sponsor": _r(
        "sponsor", "the sponsor of {x} / the company that sponsored {x}", "Which company sponsored {x}?"
    ),
    "entrants": _r("participants", "", "What was the number of entrants in {x}?"),
    "donor": _r(
        "endowed by",
        "the donor of {x} / the person who endowed {x}",
        "Who endowed {x}?",
        "Which science award was endowed by {x}?",
    ),
    "prize_year": _r("inception", "", "", "", "In what year was {x} first awarded?"),
    "first_winner": _r("first winner", "the first winner of {x}", "Who was the first winner of {x}?"),
    "second_winner": _r("second winner", "the second winner of {x}", "Who was the second winner of {x}?"),
    "prize_town": _r(
        "location", "the town that hosts the ceremony of {x}", "Which town hosts the ceremony of {x}?"
    ),
    "mayor_1": _r(
        "mayor",
        "the {y} mayor of {x} / the person who in {y} was mayor of {x}",
        "In {y}, who was mayor of {x}?",
        "",
        "Who was mayor of {x} in {y}?",
    ),
    "governor_1": _r(
        "governor",
        "the {y} governor of {x} / the person who in {y} was governor of {x}",
        "In {y}, who was governor of {x}?",
        "",
        "Who was governor of {x} in {y}?",
    ),
}
FORWARD["mayor_2"], FORWARD["governor_2"] = FORWARD["mayor_1"], FORWARD["governor_1"]
