"""A tiny embedder and corpus for tests: hashed words, no model, the same everywhere."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from multihop import jsonl
from multihop.retrieval.embedders import to_half
from multihop.retrieval.files import build_index, open_retriever
from multihop.retrieval.index import Retriever
from multihop.store import Store


class HashEmbedder:
    """Adds up one pseudo-random vector per word; texts of more than ``longest`` words count as truncated."""

    space = "hash/24"

    def __init__(self, longest: int = 50, query_space: str | None = None):
        self.longest = longest
        self.query_space = query_space or self.space
        self.calls: list[tuple[str, list[str]]] = []

    def space_of(self, kind: str) -> str:
        return self.query_space if kind == "query" else self.space

    def encode(self, texts: Sequence[str], kind: str) -> np.ndarray:
        self.calls.append((kind, list(texts)))
        return to_half(
            np.array([sum(map(_word, t.lower().split()[: self.longest]), np.zeros(24)) for t in texts])
        )

    def truncated(self, texts: Sequence[str], kind: str) -> list[bool]:
        return [len(t.split()) > self.longest for t in texts]


def _word(word: str) -> np.ndarray:
    return np.frombuffer(hashlib.sha256(word.strip(".,!?").encode()).digest()[:24], dtype=np.int8).astype(
        float
    )


PASSAGES = [
    ("Ilva Dorn", "Ilva Dorn was born in Marrow Bay in 1912. She wrote The Glass Harbour! It sold well."),
    ("Marrow Bay", "Marrow Bay is a fishing town in Sund. Its mayor since 1990 is Tomas Reed."),
    ("The Glass Harbour", "The Glass Harbour is a novel by Ilva Dorn. It was set to music by Øyvind Çelik."),
    ("Feast", "A party was held in Sund by the smart guests of the town. Nobody sang."),
    ("Tomas Reed", "Tomas Reed studied law in Kelm. He has been mayor of Marrow Bay since 1990."),
]


def prepare(folder: Path, passages: Sequence[tuple[str, str]] = PASSAGES) -> Path:
    """Write passages.jsonl and chunks/passages.jsonl as the prepare stage does."""
    rows = [{"id": f"p{i}", "title": t, "text": x} for i, (t, x) in enumerate(passages)]
    jsonl.write(folder / "passages.jsonl", rows)
    chunks = []
    for row in rows:
        text = f"{row['title']}\n{row['text']}"
        chunks.append({"id": row["id"], "text": text, "spans": [_span(row["id"], text)]})
    jsonl.write(folder / "chunks" / "passages.jsonl", chunks)
    return folder


def _span(passage_id: str, text: str) -> dict[str, object]:
    return {"passage_id": passage_id, "start": 0, "end": len(text)}


def small_retriever(
    folder: Path,
    passages: Sequence[tuple[str, str]] = PASSAGES,
    embedder: HashEmbedder | None = None,
    **params,
) -> Retriever:
    """A retriever over ``passages``, through the index stage."""
    store = Store(folder / "store.sqlite")
    prepared, index = prepare(folder / "prepared", passages), folder / "index"
    embedder = embedder or HashEmbedder()
    build_index(prepared, "passages", embedder, store, index, params)
    return open_retriever(prepared, index, "passages", embedder, store, params)
