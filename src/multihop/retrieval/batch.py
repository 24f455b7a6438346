"""Many queries at once over one corpus: the order that ``Retriever`` gives one query at a time, many times faster.

A block of queries is scored against everything by one matrix product (BM25 apart), the few that can be among the best
are picked out, and those alone are scored as the ``Retriever`` does. Nothing of the size queries x corpus is ever held
whole.

A depth is enough for all smaller ones: of every tool but ``semantic_search`` a search for k is the first k hits of a
deeper one. ``semantic_search`` looks at the best 3k sentences. Its chunks stand in the order in which their best
sentences do, so a chunk at rank r whose best sentence is the s-th is found from k = max(r, ceil(s / 3)) on.
``Ranked.needs`` holds that number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse

from multihop.errors import ConfigError, DataError
from multihop.retrieval.index import Retriever
from multihop.retrieval.lexical import BM25
from multihop.retrieval.ranking import best, nearest, single_precision
from multihop.retrieval.substrings import Substrings
from multihop.retrieval.vectors import embed

TOOLS = ("dense", "semantic_search", "keyword_search", "keyword_sentences", "bm25", "bm25_sentences")


@dataclass(frozen=True, slots=True)
class Ranked:
    """Hits of each query, best first."""

    positions: np.ndarray
    """int64 (queries, k): positions of chunks in the corpus; -1 behind the last hit."""
    needs: np.ndarray
    """int64 (queries, k): the smallest k whose search returns the hit; 0 behind the last. Never below its rank."""

    def at(self, query: int, k: int) -> list[int]:
        """What a search for ``k`` returns (at most the depth searched)."""
        needs = self.needs[query]
        return [int(p) for p, n in zip(self.positions[query], needs, strict=True) if 0 < n <= k]


class BatchSearch:
    """The six searches over one retriever's corpus. Lexical indexes are built at first use, from the texts alone;
    ``lexical``: another batch over the same chunks and sentences (another embedder's), whose indexes are shared."""

    def __init__(self, retriever: Retriever, lexical: BatchSearch | None = None):
        self.retriever = retriever
        self._sentences = [s for chunk in retriever.chunks for s, _ in retriever.sentences_of(chunk.id)]
        owner = [i for i, c in enumerate(retriever.chunks) for _ in retriever.sentences_of(c.id)]
        self._owner = np.asarray(owner, dtype=np.int64)
        self._owners, self._starts = np.unique(self._owner, return_index=True)
        if lexical is not None:
            if lexical.retriever.chunks != retriever.chunks or lexical._sentences != self._sentences:
                raise DataError("batched search: the lexical indexes are of another corpus")
            self.__dict__ |= {n: getattr(lexical, n) for n in ("_words", "_sentence_words", "_text", "_sentence_text")}

    def search(self, tool: str, queries: Sequence[str], keywords: Sequence[Sequence[str]], k: int) -> Ranked:
        """``tool``'s best ``k`` chunks for each query, or, for the keyword tools, for each list of keywords.

        Raises ConfigError for an unknown tool, ReplayMiss for a query that has no vector and may not be encoded.
        """
        if tool in ("dense", "semantic_search"):
            vectors = self.vectors(queries)
            return self.dense(vectors, k) if tool == "dense" else self.semantic_search(vectors, k)
        if tool.startswith("keyword_"):
            return self.keywords(keywords, k, sentences=tool == "keyword_sentences")
        if tool.startswith("bm25"):
            return self.bm25(queries, k, sentences=tool == "bm25_sentences")
        raise ConfigError(f"batched search: no tool {tool!r}; the tools are {', '.join(TOOLS)}")

    def vectors(self, queries: Sequence[str]) -> np.ndarray:
        """float16 (queries, dim), through the store; a blank query's row is NaN: it finds nothing."""
        r = self.retriever
        stripped = [q.strip() for q in queries]
        found = embed(r.store, r.embedder, [q for q in stripped if q], "query", r.allow)
        out = np.full((len(stripped), r.chunk_vectors.shape[1]), np.nan, dtype="<f2")
        if len(found):
            out[[bool(q) for q in stripped]] = found
        return out

    # -- vectors

    def dense(self, vectors: np.ndarray, k: int) -> Ranked:
        """The k nearest chunks (cosine) of each row of ``vectors``, float16 (queries, dim)."""
        return _plain(nearest(vectors, self._chunk_matrix, k), k)

    def semantic_search(self, vectors: np.ndarray, k: int) -> Ranked:
        """Of the best 3k sentences, by chunk, the k chunks with the best sentence."""
        per_k = self.retriever.params.oversample
        if not len(self._owner):
            return _plain(np.zeros((len(vectors), 0), dtype=np.int64), k)
        rows = nearest(vectors, self._sentence_matrix, per_k * k)
        positions = np.full((len(rows), k), -1, dtype=np.int64)
        needs = np.zeros((len(rows), k), dtype=np.int64)
        for q, line in enumerate(rows):
            firsts: dict[int, int] = {}
            for place, owner in enumerate(self._owner[line[line >= 0]].tolist(), 1):
                firsts.setdefault(owner, place)
            for rank, (owner, place) in enumerate(list(firsts.items())[:k], 1):
                positions[q, rank - 1] = owner
                needs[q, rank - 1] = max(rank, -(-place // per_k))
        return Ranked(positions, needs)

    @cached_property
    def _chunk_matrix(self) -> np.ndarray:
        return single_precision(self.retriever.chunk_vectors)

    @cached_property
    def _sentence_matrix(self) -> np.ndarray:
        return single_precision(self.retriever.sentence_vectors)

    # -- words

    def keywords(self, lists: Sequence[Sequence[str]], k: int, sentences: bool = False) -> Ranked:
        """A-RAG's count x length score of each list over the chunks, or over sentences (a chunk: its best one)."""
        index = self._sentence_text if sentences else self._text
        distinct = sorted({w for words in lists for w in words if w.strip()})
        number = {w: i for i, w in enumerate(distinct)}
        counts = index.counts([w.lower() for w in distinct])
        cells = [(q, number[w], len(w)) for q, words in enumerate(lists) for w in words if w.strip()]
        queries = _csr(cells, (len(lists), len(distinct)), np.float64)
        scorer = lambda rows: (queries[rows] @ counts).toarray()  # noqa: E731
        if not sentences:
            return _plain(best(len(lists), scorer, counts.shape[1], k, counts.shape[1]), k)
        if not len(self._owner):
            return _plain(np.zeros((len(lists), 0), dtype=np.int64), k)
        by_chunk = lambda scores: np.maximum.reduceat(scores, self._starts, axis=1)  # noqa: E731
        found = best(len(lists), scorer, counts.shape[1], k, len(self._owners), by_chunk)
        return _plain(np.where(found < 0, -1, self._owners[found]), k)

    def bm25(self, queries: Sequence[str], k: int, sentences: bool = False) -> Ranked:
        """Okapi BM25 over the chunks, or over sentences (a chunk: its best one), of those that share a word. One query
        after the other: a query's words are few, which a product of matrices does not make use of."""
        out = np.full((len(queries), k), -1, dtype=np.int64)
        if not sentences or len(self._owner):
            index, starts = (self._sentence_words, self._starts) if sentences else (self._words, None)
            for q, query in enumerate(queries):
                found = index.best(query, k, starts)[0]
                out[q, : len(found)] = self._owners[found] if sentences else found
        return _plain(out, k)

    @cached_property
    def _words(self) -> BM25:
        return self._bm25_of([c.text for c in self.retriever.chunks])

    @cached_property
    def _sentence_words(self) -> BM25:
        return self._bm25_of(self._sentences)

    def _bm25_of(self, texts: Sequence[str]) -> BM25:
        p = self.retriever.params
        return BM25(texts, p.bm25_k1, p.bm25_b, p.bm25_epsilon)

    @cached_property
    def _text(self) -> Substrings:
        return Substrings([c.text for c in self.retriever.chunks])

    @cached_property
    def _sentence_text(self) -> Substrings:
        return Substrings(self._sentences)


def _plain(positions: np.ndarray, k: int) -> Ranked:
    """A tool whose search for k is the first k hits of any deeper one."""
    out = np.full((len(positions), k), -1, dtype=np.int64)
    out[:, : positions.shape[1]] = positions
    return Ranked(out, np.where(out < 0, 0, np.arange(1, k + 1)))


def _csr(cells: Sequence[tuple[int, int, float]], shape: tuple[int, int], dtype: type) -> sparse.csr_matrix:
    """A matrix of (row, column, value) cells; repeated ones add up."""
    rows, columns, values = zip(*cells, strict=True) if cells else ((), (), ())
    return sparse.csr_matrix((np.asarray(values, dtype=dtype), (rows, columns)), shape=shape)
