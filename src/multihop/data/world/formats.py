"""Questions in the official formats of the three benchmarks, and the shared corpus file."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from multihop import jsonl
from multihop.data.world.asked import Asked, words
from multihop.data.world.model import World
from multihop.data.world.questions import Asker
from multihop.data.world.relations import FORWARD
from multihop.errors import DataError

CYCLES = {  # the kinds, interleaved so that already four questions show the range
    "hotpotqa": ("bridge", "comparison", "bridge", "same", "bridge", "bridge"),
    "2wikimultihopqa": (
        "compositional",
        "comparison",
        "bridge_comparison",
        "inference",
        "compositional",
        "same",
        "bridge_same",
        "inference",
    ),
    "musique": ("2hop", "3hop1", "4hop1", "3hop2", "2hop", "4hop3", "3hop1", "4hop2"),
}
_TRIES = 1500


def sha(*parts: str) -> str:
    return hashlib.sha1("\n".join(parts).encode()).hexdigest()


class _Drawer:
    """Draws the splits of one dataset one after the other, without repeating a question."""

    def __init__(self, world: World, dataset: str, seed: int) -> None:
        self._asker = Asker(world, random.Random(f"{seed} {dataset} questions"))
        self._cycle = CYCLES[dataset]
        self._texts: set[str] = set()
        self._chains: set[tuple[int, ...]] = set()

    def split(self, size: int) -> list[Asked]:
        """``size`` questions, or fewer where the world has no more of any kind."""
        self._cap = max(1, size // 25)
        self._answers: Counter[str] = Counter()
        self._turns = Counter({"two": self._asker.rng.randrange(2), "yes": self._asker.rng.randrange(2)})
        drawn: list[Asked] = []
        spent: set[str] = set()
        while len(drawn) < size:
            kind = self._cycle[len(drawn) % len(self._cycle)]
            for option in dict.fromkeys((kind, *self._cycle)):
                if option not in spent and (asked := self._fresh(option)):
                    drawn.append(asked)
                    break
                spent.add(option)  # this world has no more of the kind (or hardly any)
            else:
                break
        return drawn

    def _fresh(self, kind: str) -> Asked | None:
        turn = "yes" if "same" in kind else "two"
        for _ in range(_TRIES):
            asked = self._asker.draw(kind, self._turns[turn] % 2)
            if not asked or (asked.open and self._answers[asked.answer] >= self._cap):
                continue
            text, chain = " ".join(words(asked.text)), tuple(sorted(s.fact.id for s in asked.steps))
            if text in self._texts or chain in self._chains:
                continue
            self._texts.add(text)
            self._chains.add(chain)
            self._answers[asked.answer] += asked.open
            self._turns[turn] += not asked.open
            return asked
        return None


def draw_questions(
    world: World, dataset: str, n: int, n_train: int, seed: int
) -> tuple[list[Asked], list[Asked]]:
    """``n`` dev and ``n_train`` train questions, no text and no chain of facts twice.

    An open answer is used at most once in 25 questions, so that no single guess scores above 5 %.
    Raises DataError, with the number it could make, when the world can't give so many.
    """
    drawer = _Drawer(world, dataset, seed)
    dev, train = drawer.split(n), drawer.split(n_train)
    if len(dev) < n or len(train) < n_train:
        raise DataError(
            f"demo world (seed {world.seed}, {len(world.passages)} passages): "
            f"it gives {len(dev) + len(train)} different {dataset} questions, "
            f"{n + n_train} were asked ({n} dev + {n_train} train); "
            "ask for fewer questions or for more passages"
        )
    return dev, train


def write_raw(world: World, dataset: str, out_dir: Path, n: int, n_train: int, seed: int) -> None:
    """Writes dev, train and corpus.json of one dataset, as its publishers lay them out.

    hotpotqa: dev.json, train.json; 2wikimultihopqa: these and id_aliases.json (JSON lines);
    musique: dev.jsonl, train.jsonl. Raises DataError for an unknown dataset or too many questions.
    """
    if dataset not in CYCLES:
        raise DataError(f"demo world: unknown dataset {dataset!r}; known are {', '.join(CYCLES)}")
    dev, train = draw_questions(world, dataset, n, n_train, seed)
    rng = random.Random(f"{seed} {dataset} contexts")
    row: Callable[..., dict[str, Any]] = {
        "hotpotqa": _hotpot,
        "2wikimultihopqa": _wiki2,
        "musique": _musique,
    }[dataset]
    rows = [[row(world, q, rng) for q in split] for split in (dev, train)]
    _assert_disjoint(*rows)
    for name, split in zip(("dev", "train"), rows, strict=True):
        if dataset == "musique":
            text = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in split)
            jsonl.write_text(out_dir / f"{name}.jsonl", text)
        else:
            jsonl.write_text(out_dir / f"{name}.json", json.dumps(split, ensure_ascii=False) + "\n")
    if dataset == "2wikimultihopqa":
        aliases = "".join(json.dumps(a, ensure_ascii=False) + "\n" for a in _aliases(world, dev + train))
        jsonl.write_text(out_dir / "id_aliases.json", aliases)
    corpus = [{"title": title, "text": text, "idx": i} for i, (title, text) in enumerate(world.passages)]
    jsonl.write_text(out_dir / "corpus.json", json.dumps(corpus, ensure_ascii=False, indent=0) + "\n")


def _assert_disjoint(dev: list[dict[str, Any]], train: list[dict[str, Any]]) -> None:
    for key in (lambda r: r.get("_id") or r["id"], lambda r: " ".join(words(r["question"]))):
        seen = [key(r) for r in dev + train]
        assert len(set(seen)) == len(seen), "the world's dev and train questions overlap"


def _context(world: World, q: Asked, rng: random.Random, size: int, titles_once: bool) -> list[int]:
    """The gold passages and distractors, shuffled: half of these share a name with the question's chain."""
    gold = q.passages
    chosen = list(gold)
    titles = {world.passages[p][0] for p in gold}

    def take(pool: list[int], upto: int) -> None:
        for p in rng.sample(pool, len(pool)) if len(pool) < 200 else rng.sample(pool, 200):
            if len(chosen) >= upto:
                return
            if p not in chosen and not (titles_once and world.passages[p][0] in titles):
                chosen.append(p)
                titles.add(world.passages[p][0])

    ends = dict.fromkeys(e for s in q.steps for e in (s.fact.subject, s.fact.object) if e is not None)
    take([p for e in ends for p in world.mentions.get(e, [])], len(gold) + (size - len(gold)) // 2)
    kinds = dict.fromkeys(world.entities[world.about[p]].kind for p in gold)
    take([p for k in kinds for p in world.same_kind[k]], size - 2)
    take(
        list(range(len(world.passages)))
        if len(world.passages) < 400
        else [rng.randrange(len(world.passages)) for _ in range(60)],
        size,
    )
    rng.shuffle(chosen)
    return chosen


def _supporting(world: World, q: Asked) -> list[list[Any]]:
    found = [(world.passages[s.fact.passage][0], s.fact.sentence) for s in q.steps]
    return [list(pair) for pair in dict.fromkeys(found)]


def _hotpot(world: World, q: Asked, rng: random.Random) -> dict[str, Any]:
    context = []
    for p in _context(world, q, rng, 10, titles_once=True):
        first, *rest = world.sentences[p]
        context.append([world.passages[p][0], [first, *(f" {s}" for s in rest)]])
    return {
        "_id": sha("hotpotqa", q.text, q.answer)[:24],
        "answer": q.answer,
        "question": q.text,
        "supporting_facts": _supporting(world, q),
        "context": context,
        "type": "comparison" if q.kind == "comparison" else "bridge",
        "level": rng.choice(("medium", "hard")),
    }


def entity_id(world: World, entity: int) -> str:
    """A content-derived stand-in for a knowledge base's id ("Q" and digits)."""
    e = world.entities[entity]
    return f"Q{int(sha(e.kind, e.title)[:8], 16)}"


def label(relation: str) -> str:
    """The relation's name in evidence triples."""
    return (
        FORWARD[relation].label
        if relation in FORWARD
        else {"minutes": "duration", "chapters": "number of chapters"}[relation]
    )


def _wiki2(world: World, q: Asked, rng: random.Random) -> dict[str, Any]:
    evidences, ids = [], []
    for s in q.steps:
        f = s.fact
        evidences.append([world.entities[f.subject].name, label(f.relation), f.value])
        target = (
            entity_id(world, f.object)
            if f.object is not None
            else ("date_information" if "date" in label(f.relation) else "literal")
        )
        ids.append([entity_id(world, f.subject), label(f.relation), target])
    return {
        "_id": sha("2wikimultihopqa", q.text, q.answer)[:32],
        "type": q.kind,
        "question": q.text,
        "context": [[world.passages[p][0], world.sentences[p]] for p in _context(world, q, rng, 10, True)],
        "entity_ids": "_".join(dict.fromkeys(entity_id(world, s.fact.subject) for s in q.steps)),
        "supporting_facts": _supporting(world, q),
        "evidences": evidences,
        "answer": q.answer,
        "evidences_id": ids,
        "answer_id": None if q.entity is None else entity_id(world, q.entity),
    }


def _aliases(world: World, asked: list[Asked]) -> list[dict[str, Any]]:
    initials = Counter(_initial(e.name) for e in world.entities if e.kind == "person")
    rows = []
    for n in sorted({q.entity for q in asked if q.entity is not None}):
        e = world.entities[n]
        short = _initial(e.name)
        alike = [short] if e.kind == "person" and initials[short] == 1 else []
        people = [e.name + "n" if e.name.endswith("a") else e.name + "ian"] if e.kind == "country" else []
        rows.append({"Q_id": entity_id(world, n), "aliases": alike, "demonyms": people})
    return rows


def _initial(name: str) -> str:
    return f"{name[0]}. {name.split()[-1]}"


def _musique(world: World, q: Asked, rng: random.Random) -> dict[str, Any]:
    context = _context(world, q, rng, 20, titles_once=False)
    gold = set(q.passages)
    paragraphs = [
        {
            "idx": i,
            "title": world.passages[p][0],
            "paragraph_text": world.passages[p][1],
            "is_supporting": p in gold,
        }
        for i, p in enumerate(context)
    ]
    parts = [
        {
            "id": int(sha(str(s.fact.passage), s.question, s.answer)[:7], 16),
            "question": s.question,
            "answer": s.answer,
            "paragraph_support_idx": context.index(s.fact.passage),
        }
        for s in q.steps
    ]
    return {
        "id": f"{q.kind}__{sha('musique', q.text, q.answer)[:16]}",
        "paragraphs": paragraphs,
        "question": q.text,
        "question_decomposition": parts,
        "answer": q.answer,
        "answer_aliases": other_forms(q.answer),
        "answerable": True,
    }


def other_forms(answer: str) -> list[str]:
    """Other ways to write a date, a number, a river or a mountain."""
    parts = answer.split()
    if len(parts) == 3 and parts[0].isdigit() and parts[2].isdigit():
        return [f"{parts[1]} {parts[0]}, {parts[2]}"]
    if parts[0] in ("River", "Mount"):
        return [" ".join(parts[1:])]
    return [answer.replace(",", "")] if "," in answer and answer.replace(",", "").isdigit() else []
