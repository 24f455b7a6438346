"""The toy corpus that HippoRAG 2 is compared on: invented passages, their triples, a filter and an embedder by rule.

Read by hipporag2_package.py and by tests/test_hipporag2.py; both sides see the same extraction and the same vectors.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence

import numpy as np

PASSAGES = [
    ("The Salt Road", "The Salt Road is a novel by Ines Havel. It was printed in Dorvik in 1931."),
    ("Ines Havel", "Ines Havel was a novelist. She was born in Kelm and lived in Dorvik."),
    ("Dorvik", "Dorvik is a port on the river Arle. Its mayor is Tam Orrel."),
    ("Kelm", "Kelm is a mining town on the river Sey, north of Dorvik."),
    ("Arle", "The Arle rises in the Tarn Hills and ends in Brask Bay."),
    ("Tam Orrel", "Tam Orrel studied law in Kelm before he became mayor of Dorvik."),
    ("Sey", "The Sey flows from the Tarn Hills to the lake of Ostra."),
    ("Lake Ostra", "The lake of Ostra is known for its eels and its floating market."),
    ("Salt Road film", "A film of Salt Road was made by Jun Abeler in 1958."),
    ("Jun Abeler", "Jun Abeler directed nine films. He was buried in Ostra."),
    ("Eel market", "Every spring a market of boats sells eels and nets."),
]
TRIPLES: dict[str, list[tuple[str, str, str]]] = {
    "The Salt Road": [("The Salt Road", "written by", "Ines Havel"), ("The Salt Road", "printed in", "Dorvik")],
    "Ines Havel": [("Ines Havel", "born in", "Kelm"), ("Ines Havel", "lived in", "Dorvik")],
    "Dorvik": [("Dorvik", "lies on", "Arle"), ("Dorvik", "has mayor", "Tam Orrel")],
    "Kelm": [("Kelm", "lies on", "Sey"), ("Kelm", "north of", "Dorvik")],
    "Arle": [("Arle", "rises in", "Tarn Hills"), ("Arle", "ends in", "Brask Bay")],
    "Tam Orrel": [("Tam Orrel", "studied in", "Kelm"), ("Dorvik", "has mayor", "Tam Orrel")],
    "Sey": [("Sey", "rises in", "Tarn Hills"), ("Sey", "flows to", "Ostra")],
    "Lake Ostra": [("Ostra", "known for", "eels")],
    "Salt Road film": [("Salt Road", "filmed by", "Jun Abeler"), ("Salt Road", "filmed in", "1958")],
    "Jun Abeler": [("Jun Abeler", "buried in", "Ostra")],
    "Eel market": [],
}
QUESTIONS = {
    "On which river lies the town where the author of The Salt Road was born?": ["written by", "born in", "lies on"],
    "Who is the mayor of the town where The Salt Road was printed?": ["printed in", "has mayor"],
    "Where is the director of the film of Salt Road buried?": ["filmed by", "buried in"],
    "Where does the river of Dorvik rise?": ["north of", "flows to"],
    "Which market sells eels and nets?": [],
}
"""Question -> relations of the facts that the scripted filter keeps; none: the fallback to dense search."""
DIM = 64


def keeps(question: str, fact: Sequence[str]) -> bool:
    return fact[1] in QUESTIONS[question]


def vector(text: str) -> np.ndarray:
    """float16 (64,), unit length: the sum of a hash vector for each word. Punctuation and case do not count."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    rows = [np.frombuffer(hashlib.sha512(w.encode()).digest(), dtype=np.int8).astype(np.float64) for w in words]
    total = np.sum(rows, axis=0) if rows else np.ones(DIM)
    return (total / np.linalg.norm(total)).astype("<f2")


class Embedder:
    """The same as an embedder of this project."""

    space = "toy/64"

    def space_of(self, kind: str) -> str:
        return self.space

    def encode(self, texts: Sequence[str], kind: str) -> np.ndarray:
        return np.stack([vector(text) for text in texts])

    def truncated(self, texts: Sequence[str], kind: str) -> list[bool]:
        return [False] * len(texts)


def digest() -> str:
    """Of all that decides the ranking: a stored one for another toy is refused."""
    sample = vector("the salt road").astype(float).round(3).tolist()
    return hashlib.sha256(json.dumps([PASSAGES, TRIPLES, QUESTIONS, sample]).encode()).hexdigest()
