"""A small environment whose best policy is known, for the check of the trained controller.

Three kinds of question over an invented corpus. Best, after the first (forced) R: a one-hop question stops, a bridge
question does B (the town's page is found by the town's name, which only the author's page gives), a comparison does R
(the second person's page is further down the ranking of the question). Rewrites and gaps name what is missing without
the names, so that they find lists; sufficiency checks err as often as the environment says.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from dynakrag_fixture import kind as call_of
from fake_embedder import HashEmbedder, small_retriever
from project_fixture import FakeClient, events, prompts_of
from scripted_server import Say, question_of

from multihop import running
from multihop.controller import features, text
from multihop.controller.model import Gate
from multihop.controller.targets import RETRIEVAL_COST
from multihop.evaluation.answers import score_answer
from multihop.methods.dynakrag import Dynakrag, Params
from multihop.retrieval.embedders import to_half
from multihop.training import Trainer, _trajectories
from multihop.types import Gold, Question, RunRecord, Usage

KINDS = ("one_hop", "bridge", "comparison")
BEST = {"one_hop": "R", "bridge": "RB", "comparison": "RR"}
"""What the best policy does before it stops."""
UNKNOWN = "unknown"
PRICE = 0.1
"""Of a thousand tokens, four retrieval calls being as dear: five times the beta of training, so that waste shows."""
_DIM = 1024
_LISTS = 14
"""Pages of each kind of list: more than a question can gather, so that nothing behind them is found by chance."""


class WordEmbedder(HashEmbedder):
    """A text is the sum of its content words, each a sparse sign vector: nearness is shared words and little else."""

    space = f"words/{_DIM}"

    def __init__(self) -> None:
        super().__init__(longest=1000)

    def encode(self, texts: Sequence[str], kind: str) -> np.ndarray:
        self.calls.append((kind, list(texts)))
        return to_half(np.array([sum(map(_vector, text.content_words(t)), np.zeros(_DIM)) for t in texts]))


@lru_cache(maxsize=1 << 14)
def _vector(word: str) -> np.ndarray:
    drawn = random.Random(word)
    vector = np.zeros(_DIM)
    vector[drawn.sample(range(_DIM), 8)] = drawn.choices((-1, 1), k=8)
    return vector


# -- the world


@dataclass(frozen=True)
class Case:
    """A question with what an answer needs."""

    question: Question
    kind: str
    answer: str
    facts: tuple[str, ...]
    """The sentences that the answer needs, as they stand in the passages."""
    missing: str
    """What a negative check, or a rewrite, asks for: no name in it."""


@dataclass(repr=False)
class World:
    """Questions of each kind, and their corpus."""

    counts: tuple[int, int, int]
    """By KINDS."""
    seed: int = 0
    passages: list[tuple[str, str]] = field(default_factory=list)
    cases: dict[str, Case] = field(default_factory=dict)
    """By question text."""
    gold: dict[str, Gold] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = random.Random(f"world {self.seed}")
        self.names = _names(self.rng)
        for kind, count in zip(KINDS, self.counts, strict=True):
            for number in range(count):
                getattr(self, f"_{kind}")(f"{kind}-{self.seed}-{number:03}")
        for relation, (_, _, missing) in _RELATIONS.items():
            self._lists(relation, f"the {missing} of a town")
        self._lists("births", _SECOND)

    @property
    def questions(self) -> list[Question]:
        return [case.question for case in self.cases.values()]

    def _add(self, qid: str, kind: str, asked: str, answer: str, pages: list[tuple[str, str]], missing: str) -> None:
        """``pages``: the gold ones, each with the needed sentence first."""
        ids = tuple(f"p{len(self.passages) + n}" for n in range(len(pages)))
        self.passages += pages
        facts = tuple(page.partition(". ")[0] + "." for _, page in pages)
        self.cases[asked] = Case(Question(qid, asked), kind, answer, facts, missing)
        self.gold[qid] = Gold(qid, (answer,), ids, kind, len(ids))

    def _one_hop(self, qid: str) -> None:
        person, answer = f"{next(self.names)} {next(self.names)}", next(self.names)
        asked, fact, missing = self.rng.choice(_FACTS)
        page = f"{person} {fact} {answer}. {self._filler(5)} {person} kept bees."
        self._add(qid, "one_hop", asked.format(person), answer, [(person, page)], missing)

    def _bridge(self, qid: str) -> None:
        person, town, answer = f"{next(self.names)} {next(self.names)}", next(self.names), next(self.names)
        book = f"The {next(self.names)} {next(self.names)}"
        asked, fact, missing = self.rng.choice(list(_RELATIONS.values()))
        pages = [
            (book, f"{book} is a novel by {person}. {self._filler(2)}"),
            (person, f"{person}, author of {book}, was born in {town}. {self._filler(1)}"),
            (town, f"{fact.format(town)} {answer}. {town} has a market. {self._filler(2)}"),
        ]
        self._add(qid, "bridge", asked.format(book), answer, pages, missing)

    def _comparison(self, qid: str) -> None:
        """Three pages about the first person's belongings stand between the two pages that are needed."""
        one, other = (f"{next(self.names)} {next(self.names)}" for _ in range(2))
        asked, earlier = self.rng.choice(_COMPARED)
        years = self.rng.sample(range(1700, 1960), 2)
        pages = [
            (one, f"{one} was born in {years[0]}. {self._filler(1)}"),
            (other, f"{other} was born in {years[1]}. {self._filler(40)}"),
        ]
        answer = one if (years[0] < years[1]) == earlier else other
        self._add(qid, "comparison", asked.format(one, other), answer, pages, _SECOND)
        for thing in ("House", "Letters", "Garden"):
            self.passages.append((f"{thing} of {one}", f"The {thing.lower()} of {one} can be seen. {self._filler(4)}"))

    def _lists(self, topic: str, words: str) -> None:
        for n in range(_LISTS):
            self.passages.append((f"List {n} of {topic}", f"A list with {words}. {self._filler(10)}"))

    def _filler(self, words: int) -> str:
        return " ".join(next(self.names).lower() for _ in range(words)).capitalize() + "."


_FACTS = (
    ("Who taught {}?", "was taught by", "name of the music teacher of that person"),
    ("Which instrument did {} play before the war?", "played an instrument, the", "kind of old instrument"),
    ("Where did the painter {} spend the last winter?", "spent the last winter in", "place of that last cold winter"),
)
_RELATIONS = {
    "mayors": (
        "Who is the mayor of the town where the author of {} was born?",
        "{} is a town with a mayor,",
        "name of the mayor of that harbour town",
    ),
    "rivers": (
        "Which river flows through the birthplace of the author of {}?",
        "{} lies on the river",
        "name of the long river near the birthplace",
    ),
    "bridges": (
        "Who built the stone bridge of the town where the author of {} was born?",
        "{} has a stone bridge by",
        "builder of the old stone bridge",
    ),
}
"""Topic -> (question, sentence on the town's page, what is missing)."""
_COMPARED = (
    ("Who was born earlier, {} or {}?", True),
    ("Who was born later, {} or {}?", False),
    ("Who of the two is older, {} or {}?", True),
    ("Who of the two is younger, {} or {}?", False),
)
"""(question, the one with the smaller year is meant)"""
_SECOND = "exact year of birth of the second person"


def _names(rng: random.Random) -> Any:
    """Invented words without end, none twice."""
    seen: set[str] = set()
    while True:
        word = "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiouy") for _ in range(3)) + rng.choice("lnrsk")
        if word not in seen:
            seen.add(word)
            yield word.capitalize()


# -- its language model


@dataclass(frozen=True)
class Reader:
    """Answers where the prompt holds every fact, else "unknown"; a sufficiency check errs with a given chance."""

    world: World
    misses: float = 0.15
    """Chance of "insufficient" about complete evidence."""
    fancies: float = 0.15
    """Chance of "sufficient" about incomplete evidence."""

    def __call__(self, body: dict[str, Any]) -> Say:
        prompt, case = body["messages"][-1]["content"], self.world.cases[question_of(body)]
        complete = all(fact in prompt for fact in case.facts)
        what = call_of(body)
        if what == "check":
            draw = int(hashlib.sha256(f"{body['seed']}{prompt}".encode()).hexdigest()[:8], 16) / 16**8
            sufficient = draw >= self.misses if complete else draw < self.fancies
            missing = "" if sufficient else case.missing
            return Say(json.dumps({"found": "", "sufficient": sufficient, "missing": missing}))
        if what == "rewrite":
            return Say(case.missing)
        return Say(f"Because: so.\nAnswer: {case.answer if complete else UNKNOWN}")


# -- the parts put together


@dataclass(repr=False)
class Environment:
    """The world with its index and its reader: what a Trainer and a Cell are made of."""

    folder: Path
    world: World
    reader: Callable[[dict[str, Any]], Say]

    def __post_init__(self) -> None:
        self.retriever = small_retriever(self.folder, self.world.passages, WordEmbedder(), splitter="simple")
        self.prompts = prompts_of("dynakrag")

    def cell(self, controller: Any = None, **options: Any) -> running.Cell:
        """Without compression: it is outside the ranking, and would cost every policy the same."""
        method, client = Dynakrag(Params(compression=False, **options)), FakeClient(self.reader)
        where = ("dynakrag", "musique", "known")
        trained = {"controller": controller}
        return running.Cell(*where, method, client, self.retriever, self.prompts, "h", "c", lambda seed: trained)

    def trainer(self, gold: dict[str, Gold] | None = None) -> Trainer:
        return Trainer(None, "musique", self.cell(), self.world.questions, gold or self.world.gold)

    def trajectories(self, trainer: Trainer | None = None, seed: int = 0) -> list[dict[str, Any]]:
        trainer = trainer or self.trainer()

        async def all_of_them() -> list[dict[str, Any]]:
            return [row for q in trainer.questions for row in await _trajectories(trainer, q, seed)]

        return asyncio.run(all_of_them())

    def run(self, controller: Any, **options: Any) -> list[RunRecord]:
        cell = self.cell(controller, **options)

        async def all_of_them() -> list[RunRecord]:
            return [await cell.answer(q, 0) for q in self.world.questions]

        records = asyncio.run(all_of_them())
        assert not [r.error for r in records if r.error]
        return records

    def run_best(self) -> list[RunRecord]:
        """Each question by the known best policy."""
        cells = {kind: self.cell(Known(actions)) for kind, actions in BEST.items()}
        return [asyncio.run(cells[c.kind].answer(c.question, 0)) for c in self.world.cases.values()]

    def utility(self, record: RunRecord) -> float:
        """F1 less PRICE times what the control loop spent."""
        f1 = score_answer("musique", record.short, self.world.gold[record.qid])["f1"]
        control = record.usage.get("control", Usage())
        return f1 - price(control.prompt_tokens + control.completion_tokens, record.retrieval_calls)


@dataclass(frozen=True)
class Known:
    """A controller that does ``actions`` and stops."""

    actions: str
    expected_tokens: dict[str, float] = field(default_factory=dict)

    def gate(self, vector: Sequence[float], vote: str = "majority") -> Gate:
        go_on = _step(vector) < len(self.actions)
        return Gate(go_on, float(go_on), 0.0, 0.0, 3 * go_on)

    def advantage(self, vector: Sequence[float], actions: Sequence[str], rows: Any) -> dict[str, float]:
        return {a: float(a == self.actions[_step(vector)]) for a in actions}


def _step(vector: Sequence[float]) -> int:
    return int(vector[[f.name for f in features.STATE].index("step")])


def price(tokens: int, retrievals: int) -> float:
    return PRICE * (tokens / 1000 + RETRIEVAL_COST * retrievals)


def kind_of(record: RunRecord) -> str:
    return record.qid.split("-")[0]


def chosen(record: RunRecord) -> str:
    """The codes of its decisions, in order."""
    return "".join(d["chosen"] for d in events(record, "decision"))
