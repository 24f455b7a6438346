"""The knowledge graph of HippoRAG, HippoRAG 2, G-Retriever and GFM-RAG: phrases, facts, synonyms, passages.

Made from the triples of ``openie`` without a language model. A phrase is a subject or object in its normal form; what
the extraction named and no triple of the passage holds is no phrase of that passage (as in HippoRAG's code).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from multihop import jsonl
from multihop.retrieval.dense import DenseIndex
from multihop.retrieval.index import Retriever
from multihop.retrieval.vectors import embed
from multihop.structures import arrays, ppr
from multihop.structures.base import Builder, Cost, StructureParams
from multihop.structures.openie import Extraction
from multihop.structures.synonyms import synonym_pairs
from multihop.types import Hit

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

ARRAYS = ("phrase_vectors", "relation_vectors", "fact_vectors", "mentions", "synonyms", "synonym_cosines")
Fact = tuple[int, int, int]
"""(subject phrase, relation, object phrase), positions."""


class Params(StructureParams):
    synonym_cosine: float = Field(0.8, gt=0, le=1)
    """Phrases at least this near are linked as synonyms."""
    synonyms: int = Field(100, ge=0)
    """Synonyms of a phrase at most."""
    pair_weight: float = Field(2.0, gt=0)
    """What a co-occurrence in a fact, or a cosine of 1, weighs beside a passage-phrase edge of 1. HippoRAG 2's code
    enters each pair of phrases once in either direction of an undirected graph: 2."""


def phrase_of(text: str) -> str:
    """Normal form of a phrase: lower-cased letters and digits (of any script) with single spaces; may be empty. Not
    structures/entities.py's ``normal``: HippoRAG's code and LinearRAG's differ."""
    return " ".join("".join(c if c.isalnum() else " " for c in text.lower()).split())


@dataclass(frozen=True)
class KnowledgeGraph:
    """The loaded graph. Phrases, relations and facts are known by their positions, in order of first appearance;
    chunks by their positions in ``retriever.chunks``."""

    retriever: Retriever
    params: Params
    phrases: tuple[str, ...]
    relations: tuple[str, ...]
    facts: tuple[Fact, ...]
    """Distinct ones."""
    fact_chunks: tuple[tuple[int, ...], ...]
    """For each fact the chunks that it came from, ascending."""
    phrase_vectors: np.ndarray
    """float16 (phrases, dim); (0, 0) where there is none, as the two below."""
    relation_vectors: np.ndarray
    fact_vectors: np.ndarray
    """Of the texts "subject relation object"."""
    mentions: csr_matrix
    """(chunks, phrases): how many of the chunk's facts hold the phrase."""
    synonyms: tuple[tuple[int, int, float], ...]
    """(phrase, phrase, cosine), the first position being the smaller."""

    def parts(self, fact: int) -> tuple[str, str, str]:
        """The texts of a fact: subject, relation, object."""
        subject, relation, target = self.facts[fact]
        return self.phrases[subject], self.relations[relation], self.phrases[target]

    @cached_property
    def chunk_counts(self) -> np.ndarray:
        """int (phrases,): in how many chunks each phrase is."""
        return np.asarray(self.mentions.getnnz(axis=0))

    @cached_property
    def fact_parts(self) -> np.ndarray:
        """int64 (facts, 3): ``facts``."""
        return np.array(self.facts, dtype=np.int64).reshape(-1, 3)

    @cached_property
    def holds(self) -> csr_matrix:
        """(chunks, phrases): 1.0 where a fact of the chunk holds the phrase."""
        holds = self.mentions.copy()
        holds.data = np.ones(len(holds.data))
        return holds

    # -- search by vectors: exact, ties by position; for a graph without facts nothing is found

    def link(self, names: Sequence[str]) -> list[int]:
        """The phrases nearest to names, each once, in the order of the names. Raises ReplayMiss."""
        texts = [text for text in map(phrase_of, names) if text]
        if not texts or not self.phrases:
            return []
        r = self.retriever
        vectors = embed(r.store, r.embedder, texts, "passage", r.allow)
        return list(dict.fromkeys(self.phrase_index.search(v, 1)[0][0] for v in vectors))

    def nearest_facts(self, query: np.ndarray, k: int) -> list[tuple[int, float]]:
        """The k best (fact, score), scores scaled to [0, 1] over all facts; all 1 where all are equal."""
        if not self.facts:
            return []
        found = self.fact_index.search(query, k)
        high, low = found[0][1], -self.fact_index.search(-query, 1)[0][1]
        return [(fact, 1.0 if high <= low else (score - low) / (high - low)) for fact, score in found]

    @cached_property
    def phrase_index(self) -> DenseIndex:
        return DenseIndex(self.phrase_vectors)

    @cached_property
    def relation_index(self) -> DenseIndex:
        return DenseIndex(self.relation_vectors)

    @cached_property
    def fact_index(self) -> DenseIndex:
        return DenseIndex(self.fact_vectors)

    # -- walks

    @cached_property
    def phrase_graph(self) -> ppr.Graph:
        """Phrases alone, linked by facts and synonyms (HippoRAG)."""
        return ppr.Graph(len(self.phrases), *self._pairs)

    @cached_property
    def full_graph(self) -> ppr.Graph:
        """Phrases, then passages: the same and an edge of 1 from each passage to its phrases (HippoRAG 2)."""
        sources, targets, weights = self._pairs
        chunks, phrases = self.mentions.nonzero()
        return ppr.Graph(
            len(self.phrases) + len(self.retriever.chunks),
            np.concatenate([sources, chunks + len(self.phrases)]),
            np.concatenate([targets, phrases]),
            np.concatenate([weights, np.ones(len(chunks))]),
        )

    @cached_property
    def _pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Edges between phrases: once for each fact and passage it is in, and for each pair of synonyms."""
        ends = np.array([(s, o) for s, _, o in self.facts], dtype=np.int64).reshape(-1, 2)
        times = np.array([len(chunks) for chunks in self.fact_chunks], dtype=np.float64)
        ends, times = ends[ends[:, 0] != ends[:, 1]], times[ends[:, 0] != ends[:, 1]]
        pairs, index = np.unique(np.sort(ends, axis=1), axis=0, return_inverse=True)
        counts = np.bincount(index.reshape(-1), weights=times, minlength=len(pairs))
        alike = np.array([(i, j) for i, j, _ in self.synonyms], dtype=np.int64).reshape(-1, 2)
        pairs = np.concatenate([pairs, alike])
        weights = np.concatenate([counts, [cosine for _, _, cosine in self.synonyms]])
        return pairs[:, 0], pairs[:, 1], weights * self.params.pair_weight

    def hits(self, scores: np.ndarray, k: int) -> list[Hit]:
        """The k chunks of the best scores (chunks,): :func:`multihop.structures.ppr.hits`."""
        return ppr.hits(self.retriever.chunks, scores, k)


class KnowledgeGraphStructure:
    name = "knowledge_graph"
    over = "openie"
    Params = Params

    def __init__(self, params: Params):
        self.params = params

    def estimate(self, retriever: Retriever, prompts: Mapping[str, str]) -> Cost:
        return Cost()

    async def build(self, builder: Builder) -> dict[str, Any]:
        p = self.params
        chunks = builder.retriever.chunks
        phrases, relations, facts = _collect([builder.over[c.id] for c in chunks])
        texts = [f"{s} {r} {o}" for s, r, o in facts]
        vectors = builder.vectors(phrases)
        pairs, cosines = synonym_pairs(phrases, vectors, p.synonym_cosine, p.synonyms)
        at, by = {text: i for i, text in enumerate(phrases)}, {text: i for i, text in enumerate(relations)}
        rows = [{"fact": [at[s], by[r], at[o]], "chunks": where} for (s, r, o), where in facts.items()]
        made = (vectors, builder.vectors(relations), builder.vectors(texts), _mentions(rows), pairs, cosines)
        arrays.save(builder.folder, **dict(zip(ARRAYS, made, strict=True)))
        jsonl.write(builder.folder / "names.jsonl", [{"phrases": phrases, "relations": relations}])
        jsonl.write(builder.folder / "facts.jsonl", rows)
        return _statistics(self.load(builder.folder, builder.retriever, builder.over))

    def load(self, folder: Path, retriever: Retriever, over: Any) -> KnowledgeGraph:
        """Raises DataError where a file is missing or damaged, or they do not fit the corpus or each other."""
        from scipy.sparse import csr_matrix

        *vectors, mentions, pairs, cosines = arrays.read(folder, *ARRAYS)
        rows = list(jsonl.read(folder / "facts.jsonl"))
        try:
            [names] = jsonl.read(folder / "names.jsonl")
            chunks, phrases, counts = mentions.T
            shape = (len(retriever.chunks), len(names["phrases"]))
            graph = KnowledgeGraph(
                retriever,
                self.params,
                tuple(names["phrases"]),
                tuple(names["relations"]),
                tuple(tuple(row["fact"]) for row in rows),
                tuple(tuple(row["chunks"]) for row in rows),
                *vectors,
                csr_matrix((counts, (chunks, phrases)), shape=shape),
                tuple((i, j, cosine) for (i, j), cosine in zip(pairs.tolist(), cosines.tolist(), strict=True)),
            )
            fitting = _inside(graph, pairs)
        except (ValueError, KeyError, TypeError) as e:
            raise arrays.damaged(folder) from e
        if not fitting or [len(v) for v in vectors] != [len(graph.phrases), len(graph.relations), len(graph.facts)]:
            raise arrays.damaged(folder)
        return graph


def _inside(graph: KnowledgeGraph, pairs: np.ndarray) -> bool:
    """Whether every position in facts and synonyms is one of the graph (csr_matrix has checked the mentions')."""
    facts = np.array(graph.facts, dtype=np.int64).reshape(-1, 3)
    chunks = [chunk for found in graph.fact_chunks for chunk in found]
    limits = ((facts[:, ::2], graph.phrases), (facts[:, 1], graph.relations), (pairs, graph.phrases))
    bounded = [*limits, (np.array(chunks, dtype=np.int64), graph.retriever.chunks)]
    return all(not p.size or 0 <= p.min() <= p.max() < len(of) for p, of in bounded)


def _collect(extractions: Sequence[Extraction]) -> tuple[list[str], list[str], dict[tuple[str, str, str], list[int]]]:
    """(phrases, relations, fact -> positions of its chunks), all in order of first appearance.

    A triple with a part that has no letter or digit is left out.
    """
    facts: dict[tuple[str, str, str], list[int]] = {}
    for position, extraction in enumerate(extractions):
        for fact in dict.fromkeys(tuple(map(phrase_of, triple)) for triple in extraction.triples):
            if all(fact):
                facts.setdefault(fact, []).append(position)
    phrases = dict.fromkeys(phrase for subject, _, target in facts for phrase in (subject, target))
    return list(phrases), list(dict.fromkeys(relation for _, relation, _ in facts)), facts


def _mentions(rows: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """int32 (m, 3): chunk, phrase, facts of the chunk that hold it; ordered."""
    found: Counter[tuple[int, int]] = Counter()
    for row in rows:
        subject, _, target = row["fact"]
        for chunk in row["chunks"]:
            found.update({(chunk, phrase) for phrase in (subject, target)})
    return np.array([(*key, times) for key, times in sorted(found.items())], dtype=np.int32).reshape(-1, 3)


def _statistics(graph: KnowledgeGraph) -> dict[str, Any]:
    whole = graph.full_graph.statistics()
    per_chunk = graph.mentions.getnnz(axis=1)
    return {
        "phrases": len(graph.phrases),
        "relations": len(graph.relations),
        "facts": len(graph.facts),
        "synonym_edges": len(graph.synonyms),
        "passages": len(per_chunk),
        "isolated_passages": int((per_chunk == 0).sum()),
        "nodes": whole["nodes"],
        "edges": whole["edges"],
        "components": whole["components"],
        "largest_component": whole["largest_component"],
        "mean_degree": round(2 * whole["edges"] / whole["nodes"], 4),
    }
