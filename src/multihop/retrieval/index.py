"""The one ``Retriever`` that every method of a (dataset, setting) shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal

import numpy as np

from multihop import jsonl
from multihop.errors import ConfigError
from multihop.retrieval.dense import DECIMALS, DenseIndex
from multihop.retrieval.embedders import Embedder
from multihop.retrieval.lexical import BM25, KeywordIndex, contains_any, tokenize
from multihop.retrieval.sentences import Sentence
from multihop.retrieval.tokens import count_tokens
from multihop.retrieval.vectors import embed
from multihop.store import Store
from multihop.types import Chunk, Hit

QUERIES = 4096
"""Query vectors that a retriever holds at most; the store has the others."""


@dataclass(frozen=True, slots=True)
class RetrievalParams:
    """How units are cut and scored. The first two change the index, the others only the search."""

    splitter: str = "arag"
    title_in_sentences: bool = False
    bm25_k1: float = 1.5
    bm25_b: float = 0.75
    bm25_epsilon: float = 0.25
    oversample: int = 3
    """semantic_search looks at the best ``oversample * k`` sentences (A-RAG: 3)."""
    keyword_sentences: int = 5
    """keyword_search shows at most this many sentences of a chunk (A-RAG: 5)."""

    @staticmethod
    def of(params: RetrievalParams | Mapping[str, Any] | None) -> RetrievalParams:
        """From the ``retrieval`` block of params.yaml. Raises ConfigError for an unknown key."""
        if isinstance(params, RetrievalParams):
            return params
        allowed = [f.name for f in fields(RetrievalParams)]
        values = {k: v for k, v in (params or {}).items() if k not in ("chunk_tokens", "chunk_overlap")}
        for key in values:
            if key not in allowed:
                raise ConfigError(f"retrieval: unknown key {key!r}; allowed: {', '.join(allowed)}")
        return RetrievalParams(**values)


def corpus_digest(chunks: Sequence[Chunk]) -> str:
    """Of all ids and texts, in order."""
    return jsonl.digest_each([c.id, c.text] for c in chunks)


class Retriever:
    """Search over one corpus variant with one embedder. ``files.open_retriever`` opens one.

    Every search returns at most ``k`` hits, best first, equal scores in corpus order;
    a blank query finds nothing.
    """

    def __init__(
        self,
        chunks: Sequence[Chunk],
        sentences: Sequence[Sentence],
        chunk_vectors: np.ndarray,
        sentence_vectors: np.ndarray,
        embedder: Embedder,
        store: Store,
        params: RetrievalParams | None = None,
        allow: bool = True,
    ):
        self.chunks = tuple(chunks)
        self.params = params or RetrievalParams()
        self.embedder, self.store, self.allow = embedder, store, allow
        self._chunk_vectors, self._sentence_vectors = chunk_vectors, sentence_vectors
        self._position = {chunk.id: i for i, chunk in enumerate(self.chunks)}
        self._sentences = [s.text for s in sentences]
        self._owner = [self._position[s.chunk_id] for s in sentences]
        self._rows: dict[int, list[int]] = {}
        for row, owner in enumerate(self._owner):
            self._rows.setdefault(owner, []).append(row)
        self._queries: dict[str, np.ndarray] = {}

    # -- texts

    def has(self, chunk_id: str) -> bool:
        return chunk_id in self._position

    def text(self, chunk_id: str) -> str:
        """The whole text of a chunk. Raises KeyError for an unknown id."""
        return self.chunks[self._position[chunk_id]].text

    def tokens(self, chunk_id: str) -> int:
        """o200k tokens of a chunk's whole text. Raises KeyError for an unknown id."""
        return count_tokens(self.text(chunk_id))

    def passages_of(self, chunk_id: str) -> tuple[str, ...]:
        """Ids of the passages that a chunk is made of, in order. Raises KeyError for an unknown id."""
        spans = self.chunks[self._position[chunk_id]].spans
        return tuple(dict.fromkeys(span.passage_id for span in spans))

    # -- vectors, as the index has them

    def query_vector(self, query: str) -> np.ndarray:
        """float16 (dim,): encoded once per distinct text. Raises ReplayMiss where it can't be had."""
        return self._query_vector(query)

    def chunk_vector(self, chunk_id: str) -> np.ndarray:
        """float16 (dim,), from the index. Raises KeyError for an unknown id."""
        return self._chunk_vectors[self._position[chunk_id]]

    @property
    def chunk_vectors(self) -> np.ndarray:
        """float16 (chunks, dim), corpus order."""
        return self._chunk_vectors

    @property
    def sentence_vectors(self) -> np.ndarray:
        """float16 (sentences, dim), corpus and document order."""
        return self._sentence_vectors

    def sentences_of(self, chunk_id: str) -> list[tuple[str, np.ndarray]]:
        """(sentence, its float16 vector) of a chunk, in document order. Raises KeyError for an unknown id."""
        rows = self._rows.get(self._position[chunk_id], [])
        return [(self._sentences[row], self._sentence_vectors[row]) for row in rows]

    @cached_property
    def corpus(self) -> str:
        """Digest of the corpus: all ids and texts, in order."""
        return corpus_digest(self.chunks)

    # -- titles

    def title_of(self, chunk_id: str) -> str:
        """The first line of a chunk: the title of its (first) passage. Raises KeyError for an unknown id."""
        head, line, _ = self.text(chunk_id).partition("\n")
        return head.strip() if line else ""

    @cached_property
    def titles(self) -> dict[str, tuple[str, ...]]:
        """Case-folded title -> ids of the chunks that have it, in corpus order."""
        found: dict[str, list[str]] = {}
        for chunk in self.chunks:
            if title := self.title_of(chunk.id):
                found.setdefault(title.casefold(), []).append(chunk.id)
        return {title: tuple(ids) for title, ids in found.items()}

    # -- search over chunks

    def dense(self, query: str, k: int) -> list[Hit]:
        """The k chunks whose vectors are nearest to the query's (cosine)."""
        if not query.strip():
            return []
        found = self._chunk_index.search(self._query_vector(query), k)
        return [Hit(self.chunks[i].id, rank, score) for rank, (i, score) in enumerate(found, 1)]

    def nearest(self, query: str, chunk_ids: Sequence[str], k: int) -> list[Hit]:
        """Of these chunks the k nearest to the query (cosine); equal ones in the order given. Raises KeyError."""
        if not chunk_ids or not query.strip():
            return []
        vectors = self._chunk_vectors[[self._position[c] for c in chunk_ids]].astype(np.float64)
        scores = np.round(vectors @ self._query_vector(query).astype(np.float64), DECIMALS) + 0.0
        order = np.argsort(-scores, kind="stable")[: max(k, 0)]
        return [Hit(chunk_ids[i], rank, float(scores[i])) for rank, i in enumerate(order, 1)]

    def bm25(self, query: str, k: int) -> list[Hit]:
        """The k chunks with the best Okapi score, among those that share a word with the query."""
        found = self._bm25.search(query, k)
        return [Hit(self.chunks[i].id, rank, score) for rank, (i, score) in enumerate(found, 1)]

    # -- the agent's searches over sentences (A-RAG)

    def semantic_search(self, query: str, k: int) -> list[Hit]:
        """Of the best 3k sentences, by chunk, the k chunks with the best sentence (may be fewer)."""
        if not query.strip() or not self._sentences:
            return []
        found = self._sentence_index.search(self._query_vector(query), self.params.oversample * k)
        best: dict[int, float] = {}
        matched: dict[int, list[int]] = {}
        for row, score in found:  # best first: the first score of a chunk is its best
            best.setdefault(self._owner[row], score)
            matched.setdefault(self._owner[row], []).append(row)
        order = sorted(best, key=lambda i: (-best[i], i))[: max(k, 0)]
        return [self._hit(i, rank, best[i], sorted(matched[i])) for rank, i in enumerate(order, 1)]

    def keyword_search(
        self, keywords: Sequence[str], k: int, scoring: Literal["arag", "bm25"] = "arag"
    ) -> list[Hit]:
        """The k best chunks by keyword, each with up to 5 sentences that hold one, in document order.

        ``arag``: count x length of substrings; a match may lie outside every sentence, which then shows none.
        ``bm25``: Okapi over the keywords' words; sentences that share a word.
        """
        if scoring == "bm25":
            query = " ".join(keywords)
            found, words = self._bm25.search(query, k), set(tokenize(query))
            return [
                self._hit(i, rank, score, self._first(i, lambda text: not words.isdisjoint(tokenize(text))))
                for rank, (i, score) in enumerate(found, 1)
            ]
        found = self._keywords.search(keywords, k)
        return [
            self._hit(i, rank, float(score), self._first(i, lambda text: contains_any(text, keywords)))
            for rank, (i, score) in enumerate(found, 1)
        ]

    # -- inside

    def _hit(self, position: int, rank: int, score: float, rows: Sequence[int]) -> Hit:
        return Hit(self.chunks[position].id, rank, score, tuple(self._sentences[row] for row in rows))

    def _first(self, position: int, wanted: Any) -> list[int]:
        rows = [row for row in self._rows.get(position, []) if wanted(self._sentences[row])]
        return rows[: self.params.keyword_sentences]

    def _query_vector(self, query: str) -> np.ndarray:
        query = query.strip()
        vector = self._queries.pop(query, None)
        if vector is None:
            vector = embed(self.store, self.embedder, [query], "query", self.allow)[0]
        self._queries[query] = vector  # the last: the first is the one not asked for longest
        if len(self._queries) > QUERIES:
            del self._queries[next(iter(self._queries))]
        return vector

    @cached_property
    def _chunk_index(self) -> DenseIndex:
        return DenseIndex(self._chunk_vectors)

    @cached_property
    def _sentence_index(self) -> DenseIndex:
        return DenseIndex(self._sentence_vectors)

    @cached_property
    def _bm25(self) -> BM25:
        p = self.params
        return BM25([c.text for c in self.chunks], p.bm25_k1, p.bm25_b, p.bm25_epsilon)

    @cached_property
    def _keywords(self) -> KeywordIndex:
        return KeywordIndex([c.text for c in self.chunks])
