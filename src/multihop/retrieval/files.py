"""The files of an index: the index stage writes them, ``open_retriever`` reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from multihop import jsonl
from multihop.errors import DataError
from multihop.retrieval.embedders import Embedder, make_embedder
from multihop.retrieval.index import RetrievalParams, Retriever, corpus_digest
from multihop.retrieval.sentences import Sentence, split_chunks
from multihop.retrieval.specs import EmbedderSpec
from multihop.retrieval.vectors import embed, truncated_share
from multihop.store import Store
from multihop.types import Chunk, Span

EmbedderConfig = str | Mapping[str, Any] | EmbedderSpec | Embedder
"""A preset's name, a mapping with overrides, a spec, or an embedder that is there already."""


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
    # meta.json comes last and says that the rest is whole: a killed build is no index.
    np.save(out_dir / "chunks.npy", chunk_vectors, allow_pickle=False)
    np.save(out_dir / "sentences.npy", sentence_vectors, allow_pickle=False)
    jsonl.write(out_dir / "sentences.jsonl", ({"chunk_id": s.chunk_id, "text": s.text} for s in sentences))
    jsonl.write_json(out_dir / "meta.json", meta)
    return meta


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
    meta = jsonl.read_json(index_dir / "meta.json", "run the index stage")
    chunks = read_chunks(prepared_dir, variant)
    sentences = [Sentence(row["chunk_id"], row["text"]) for row in jsonl.read(index_dir / "sentences.jsonl")]
    model = _embedder(embedder, chunks, sentences, hub)
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
    try:
        arrays = [np.load(index_dir / name, allow_pickle=False) for name in ("chunks.npy", "sentences.npy")]
    except (OSError, ValueError, EOFError) as e:
        raise DataError(f"{index_dir}: missing or damaged ({e}); run the index stage again") from e
    if len(arrays[0]) != len(chunks) or len(arrays[1]) != len(sentences):
        raise DataError(f"{index_dir}: arrays and texts differ in length; run the index stage again")
    return Retriever(chunks, sentences, *arrays, embedder=model, store=store, params=params, allow=allow)
