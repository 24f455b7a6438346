"""Bridge candidates: entities of the evidence that lead to documents not yet held."""

from __future__ import annotations

import math
from itertools import repeat
from operator import contains
from typing import Any

import numpy as np

from multihop.controller import text
from multihop.controller.state import Bridge

MOST = 10
TITLE_BONUS = 0.2


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """In double precision, rounded to nine decimals; 0 for a zero vector."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    norm = math.sqrt(a @ a) * math.sqrt(b @ b)  # what np.linalg.norm computes, without its ways around
    return round(float(a @ b) / norm, 9) if norm else 0.0


def candidates(
    question: str, docs: tuple[str, ...], used: tuple[str, ...], retriever: Any, most: int = MOST
) -> tuple[Bridge, ...]:
    """At most ``most`` candidates, best first, ties by text.

    Document titles and capitalised spans of several words in the evidence (single words too where they are titles
    of the corpus), without what the question says and what was used. Score: the best cosine of a sentence that
    holds the entity with the question, times its rarity in the corpus's titles, plus 0.2 for the title of a document
    not yet held.
    """
    asked = question.casefold()
    gone = {u.casefold() for u in used}
    near = _mentions(question, docs, retriever)
    titles = retriever.titles
    relation = _relation_words(question)
    found: dict[str, Bridge] = {}
    for entity, similarity in near.items():
        key = entity.casefold()
        if key in asked or key in gone or key in found:
            continue
        unseen = any(chunk_id not in docs for chunk_id in titles.get(key, ()))
        score = round(similarity * _rarity(key, titles) + TITLE_BONUS * unseen, 6)
        found[key] = Bridge(entity, score, unseen, f"{entity} {relation}".strip())
    return tuple(sorted(found.values(), key=lambda b: (-b.score, b.text))[:most])


def _mentions(question: str, docs: tuple[str, ...], retriever: Any) -> dict[str, float]:
    """Entity -> the best cosine, with the question, of a sentence that holds it."""
    if not docs:
        return {}
    vector = retriever.query_vector(question)
    best: dict[str, float] = {}
    for chunk_id in docs:
        title = retriever.title_of(chunk_id)
        for sentence, sentence_vector in retriever.sentences_of(chunk_id):
            similarity = cosine(sentence_vector, vector)
            names = [s for s in text.spans(sentence) if " " in s or s.casefold() in retriever.titles]
            for entity in [title, *names] if title else names:
                best[entity] = max(best.get(entity, -1.0), similarity)
    return best


def _rarity(key: str, titles: Any) -> float:
    """Inverse document frequency among the corpus's titles, in [0, 1]: 1 where no title holds the entity."""
    total = len(titles)
    holding = sum(map(contains, titles, repeat(key)))
    return math.log((1 + total) / (1 + holding)) / math.log(1 + total) if total else 1.0


def _relation_words(question: str) -> str:
    """The question without stop words and without the entities that it names."""
    named = {w for span in text.spans(question) for w in text.words(span)}
    return " ".join(w for w in text.content_words(question) if w not in named)
