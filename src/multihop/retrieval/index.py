"""The index stage, and the one ``Retriever`` that every method of a (dataset, setting) shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from multihop import jsonl
from multihop.errors import ConfigError, DataError
from multihop.retrieval.dense import DECIMALS, DenseIndex
from multihop.retrieval.embedders import Embedder, make_embedder
from multihop.retrieval.lexical import BM25, KeywordIndex, contains_any, tokenize
from multihop.retrieval.sentences import Sentence, split_chunks
from multihop.retrieval.specs import EmbedderSpec
from multihop.retrieval.tokens import count_tokens
from multihop.retrieval.vectors import embed, truncated_share
from multihop.store import Store
from multihop.types import Chunk, Hit, Span

EmbedderConfig = str | Mapping[str, Any] | EmbedderSpec | Embedder
"""A preset's name, a mapping with overrides, a spec, or an embedder that is there already."""


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


def read_chunks(prepared_dir: Path, variant: str) -> list[Chunk]:
    """The chunks of a corpus variant, in corpus order. Raises DataError with file and row for a bad row."""
    path = prepared_dir / "chunks" / f"{variant}.jsonl"
    chunks, seen = [], set()
    for number, row in enumerate(jsonl.read(path), 1):
        try:
            spans = tuple(Span(s["passage_id"], s["start"], s["end"]) for s in row["spans"])
            chunk = Chunk(row["id"], row["text"], spans)
        except (KeyError, TypeError) as e:
            raise DataError(
                f"{path}, row {number}: expected id, text and spans ({e}); run the prepare stage"
            ) from e
        if chunk.id in seen:
            raise DataError(f"{path}, row {number}: chunk id {chunk.id!r} twice; run the prepare stage again")
        seen.add(chunk.id)
        chunks.append(chunk)
    if not chunks:
        raise DataError(f"{path}: the corpus is empty; run the prepare stage with passages")
    return chunks


def corpus_digest(chunks: Sequence[Chunk]) -> str:
    return jsonl.digest([[c.id, c.text] for c in chunks])


def _sentences(prepared_dir: Path, chunks: Sequence[Chunk], params: RetrievalParams) -> list[Sentence]:
    titles = {}
    if params.title_in_sentences:
        titles = {row["id"]: row["title"] for row in jsonl.read(prepared_dir / "passages.jsonl")}
    return split_chunks(chunks, params.splitter, params.title_in_sentences, titles)


def _embedder(
    config: EmbedderConfig, chunks: Sequence[Chunk], sentences: Sequence[Sentence], hub: bool
) -> Embedder:
    if isinstance(config, (str, Mapping, EmbedderSpec)):
        return make_embedder(config, [c.text for c in chunks] + [s.text for s in sentences], hub)
    return config


def build_index(
    prepared_dir: Path,
    variant: str,
    embedder: EmbedderConfig,
    store: Store,
    out_dir: Path,
    params: RetrievalParams | Mapping[str, Any] | None = None,
    allow: bool = True,
    hub: bool = False,
) -> dict[str, Any]:
    """Write chunks.npy, sentences.jsonl, sentences.npy and meta.json to ``out_dir``; returns the meta.

    The arrays are float16 (n, dim), rows in corpus order. The bytes depend on the corpus, the params and the
    stored vectors alone. ``allow``: whether missing vectors may be computed; ``hub``: whether a model may be
    downloaded. Raises DataError, ConfigError, ReplayMiss (vectors computed so far stay in the store).
    """
    params = RetrievalParams.of(params)
    chunks = read_chunks(prepared_dir, variant)
    sentences = _sentences(prepared_dir, chunks, params)
    model = _embedder(embedder, chunks, sentences, hub)
    chunk_texts, sentence_texts = [c.text for c in chunks], [s.text for s in sentences]
    chunk_vectors = embed(store, model, chunk_texts, "passage", allow)
    sentence_vectors = embed(store, model, sentence_texts, "passage", allow).reshape(
        -1, chunk_vectors.shape[1]
    )
    meta = {
        "variant": variant,
        "space": model.space,
        "query_space": model.space_of("query"),
        "dim": int(chunk_vectors.shape[1]),
        "chunks": len(chunks),
        "sentences": len(sentences),
        "truncated_share": {
            "chunks": round(truncated_share(store, model, chunk_texts), 6),
            "sentences": round(truncated_share(store, model, sentence_texts), 6),
        },
        "splitter": params.splitter,
        "title_in_sentences": params.title_in_sentences,
        "corpus": corpus_digest(chunks),
    }
    out_dir.mkdir(parents=True, exist_ok=True)
    np.save(out_dir / "chunks.npy", chunk_vectors, allow_pickle=False)
    np.save(out_dir / "sentences.npy", sentence_vectors, allow_pickle=False)
    jsonl.write(out_dir / "sentences.jsonl", (asdict(s) for s in sentences))
    jsonl.write_json(out_dir / "meta.json", meta)
    return meta


class Retriever:
    """Search over one corpus variant with one embedder. Build it with ``open_retriever``.

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
        if query not in self._queries:
            self._queries[query] = embed(self.store, self.embedder, [query], "query", self.allow)[0]
        return self._queries[query]

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


def open_retriever(
    prepared_dir: Path,
    index_dir: Path,
    variant: str,
    embedder: EmbedderConfig,
    store: Store,
    params: RetrievalParams | Mapping[str, Any] | None = None,
    allow: bool = True,
    hub: bool = False,
) -> Retriever:
    """Open what ``build_index`` wrote. ``allow``: whether a query that has no stored vector may be encoded.

    Raises DataError where the index is missing, or was built from another corpus, embedder or splitter.
    """
    params = RetrievalParams.of(params)
    chunks = read_chunks(prepared_dir, variant)
    sentences = [Sentence(row["chunk_id"], row["text"]) for row in jsonl.read(index_dir / "sentences.jsonl")]
    model = _embedder(embedder, chunks, sentences, hub)
    meta = jsonl.read_json(index_dir / "meta.json", "run the index stage")
    expected = {
        "variant": variant,
        "space": model.space,
        "splitter": params.splitter,
        "title_in_sentences": params.title_in_sentences,
        "corpus": corpus_digest(chunks),
    }
    for key, value in expected.items():
        if meta.get(key) != value:
            raise DataError(
                f"{index_dir}: {key} is {meta.get(key)!r}, expected {value!r}; run the index stage again"
            )
    arrays = [np.load(index_dir / name, allow_pickle=False) for name in ("chunks.npy", "sentences.npy")]
    if len(arrays[0]) != len(chunks) or len(arrays[1]) != len(sentences):
        raise DataError(f"{index_dir}: arrays and texts differ in length; run the index stage again")
    return Retriever(chunks, sentences, *arrays, embedder=model, store=store, params=params, allow=allow)
