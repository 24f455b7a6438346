"""LinearRAG's tri-graph (Zhuang et al. 2025, section 3): entities, sentences and passages, without a language model.

An entity is linked to the sentences that hold its name and to the passages it was found in; the weight of the latter
is its share of the passage's mentions. Sentences only carry scores from entity to entity (methods/linearrag.py);
PageRank runs over entities and passages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from multihop import jsonl
from multihop.retrieval.dense import DenseIndex
from multihop.retrieval.index import Retriever
from multihop.retrieval.vectors import embed
from multihop.structures import arrays
from multihop.structures.base import Builder, Cost, StructureParams
from multihop.structures.entities import EntityIndex
from multihop.structures.ppr import Graph

if TYPE_CHECKING:  # imported where it is used: names of structures and methods are listed without it
    from scipy import sparse


class Params(StructureParams):
    """No options."""


class TriGraph:
    """The links, by position: entities as in ``entities``, sentences and passages in corpus order."""

    def __init__(
        self,
        retriever: Retriever,
        index: EntityIndex,
        entities: Sequence[str],
        vectors: np.ndarray,
        sentences: sparse.csr_array,
        mentions: sparse.csr_array,
    ):
        self._retriever, self._index = retriever, index
        self.entities, self._vectors = entities, vectors
        self.entity_sentences = sentences
        """(entities, sentences): 1 where the sentence holds the entity's name."""
        self.sentence_entities = sentences.T.tocsr()
        self.mentions = mentions
        """(entities, passages): how often the passage holds the name, at least 1 where it was found."""

    def seeds(self, question: str) -> dict[int, float]:
        """Entity -> cosine: for each entity of the question the most similar one here; two for the same: the larger.

        Empty where the question has no entity, the graph has none, or no cosine is positive.
        """
        names = self._index.of_text(question)
        if not names or not self.entities:
            return {}
        kept: dict[int, float] = {}
        r = self._retriever
        for vector in embed(r.store, r.embedder, names, "passage", r.allow):
            [(entity, cosine)] = self._entity_index.search(vector, 1)
            if cosine > 0:
                kept[entity] = max(kept.get(entity, 0.0), cosine)
        return dict(sorted(kept.items()))

    def sentence_cosines(self, question: str, rows: np.ndarray) -> np.ndarray:
        """Of sentences, by position, with the question: (len(rows),)."""
        return _cosines(self._retriever.sentence_vectors[rows], self._retriever.query_vector(question))

    def passage_cosines(self, question: str) -> np.ndarray:
        """Of all passages with the question: (passages,)."""
        return _cosines(self._retriever.chunk_vectors, self._retriever.query_vector(question))

    @cached_property
    def mention_logs(self) -> sparse.sparray:
        """(passages, entities): log(1 + mentions)."""
        logs = self.mentions.copy()
        logs.data = np.log1p(logs.data)
        return logs.T

    @cached_property
    def graph(self) -> Graph:
        """Entities, then passages; for PageRank."""
        return _graph(self.mentions)

    @cached_property
    def _entity_index(self) -> DenseIndex:
        return DenseIndex(self._vectors)


class TriGraphBuilder:
    name = "tri_graph"
    over = "entities"
    Params = Params

    def __init__(self, params: Params):
        self.params = params

    def estimate(self, retriever: Retriever, prompts: Mapping[str, str]) -> Cost:
        return Cost()

    async def build(self, builder: Builder) -> dict[str, Any]:
        retriever, index = builder.retriever, builder.over
        names = sorted({name for chunk in retriever.chunks for name in index.of(chunk.id)})
        sentences, mentions = _links(retriever, index, {name: i for i, name in enumerate(names)})
        jsonl.write(builder.folder / "entities.jsonl", ({"entity": name} for name in names))
        arrays.save(
            builder.folder,
            entity_vectors=builder.vectors(names),
            sentence_indptr=sentences.indptr.astype("<i8"),
            sentence_indices=sentences.indices.astype("<i4"),
            passage_indptr=mentions.indptr.astype("<i8"),
            passage_indices=mentions.indices.astype("<i4"),
            mentions=mentions.data.astype("<i4"),
        )
        return _graph(mentions).statistics() | {
            "entities": len(names),
            "passages": mentions.shape[1],
            "sentences": sentences.shape[1],
            "sentence_links": int(sentences.nnz),
            "passage_links": int(mentions.nnz),
            "entities_without_sentence": int((np.diff(sentences.indptr) == 0).sum()),
        }

    def load(self, folder: Path, retriever: Retriever, over: Any) -> TriGraph:
        names = [row["entity"] for row in jsonl.read(folder / "entities.jsonl")]
        vectors, *rest = arrays.read(
            folder,
            *("entity_vectors", "sentence_indptr", "sentence_indices"),
            *("passage_indptr", "passage_indices", "mentions"),
        )
        shape = len(names), len(retriever.sentence_vectors)
        try:
            sentences = arrays.csr(np.ones(len(rest[1])), rest[1], rest[0], shape)
            mentions = arrays.csr(rest[4].astype(float), rest[3], rest[2], (len(names), len(retriever.chunks)))
        except ValueError as e:
            raise arrays.damaged(folder) from e
        if len(vectors) != len(names):
            raise arrays.damaged(folder)
        return TriGraph(retriever, over, names, vectors, sentences, mentions)


def _links(
    retriever: Retriever, index: EntityIndex, position: Mapping[str, int]
) -> tuple[sparse.csr_array, sparse.csr_array]:
    """(entities x sentences, entities x passages with counts). Names are looked up in case-folded text, as whole words:
    "us" is not in "house"."""
    pattern = {name: re.compile(rf"(?<!\w){re.escape(name)}(?!\w)") for name in position}
    in_sentence: tuple[list[int], list[int]] = ([], [])
    in_passage: tuple[list[int], list[int]] = ([], [])
    counts: list[int] = []
    offset = 0
    for place, chunk in enumerate(retriever.chunks):
        text, sentences = _folded(chunk.text), [_folded(s) for s, _ in retriever.sentences_of(chunk.id)]
        for name in index.of(chunk.id):
            in_passage[0].append(position[name])
            in_passage[1].append(place)
            counts.append(max(len(pattern[name].findall(text)), 1))
            holding = [offset + i for i, sentence in enumerate(sentences) if pattern[name].search(sentence)]
            in_sentence[0].extend([position[name]] * len(holding))
            in_sentence[1].extend(holding)
        offset += len(sentences)
    n, chunks = len(position), len(retriever.chunks)
    return _matrix([1] * len(in_sentence[0]), in_sentence, (n, offset)), _matrix(counts, in_passage, (n, chunks))


def _matrix(values: list[int], place: tuple[list[int], list[int]], shape: tuple[int, int]) -> sparse.csr_array:
    from scipy import sparse

    rows, columns = (np.array(x, dtype=np.int64) for x in place)
    made = sparse.csr_array((np.array(values, dtype=float), (rows, columns)), shape=shape)
    made.sort_indices()
    return made


def _graph(mentions: sparse.csr_array) -> Graph:
    entities, passages = mentions.shape
    links = mentions.tocoo()
    totals = mentions.sum(axis=0)
    rows, columns = links.coords
    return Graph(entities + passages, rows, columns + entities, links.data / totals[columns])


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _cosines(vectors: np.ndarray, query: np.ndarray) -> np.ndarray:
    return np.round(vectors.astype(np.float64) @ query.astype(np.float64), 9)
