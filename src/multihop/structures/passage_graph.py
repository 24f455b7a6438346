"""KGP's graph (Wang et al. 2024, section 3): passages that share an entity or a keyword, or whose vectors are near.

The authors build one graph per question, over its own candidates, with entities linked by a web service. This one is
over the whole corpus and is built without a model: entities by structures/entities.py, TF-IDF keywords, k nearest
vectors. What many passages share links none of them (``max_df``), and each passage keeps its strongest links
(``max_degree``), so that the graph grows with the corpus and not with its square.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from multihop.retrieval.index import Retriever
from multihop.structures import arrays
from multihop.structures.base import Builder, Cost, StructureParams

if TYPE_CHECKING:  # imported where it is used: names of structures and methods are listed without it
    from scipy import sparse

BLOCK = 256
"""Passages whose similarities with all others are held at a time."""
KINDS = ("entity_links", "keyword_links", "nearest_links")
"""Why a link is there; one may be there for several reasons."""


class Params(StructureParams):
    max_df: int = Field(50, ge=2)
    """An entity or keyword of more passages than this links none."""
    keywords: int = Field(10, ge=0)
    """Best TF-IDF words per passage, among those that 2 to ``max_df`` passages hold; 0: none."""
    nearest: int = Field(10, ge=0)
    """Nearest passages by cosine that each is linked to; 0: none."""
    max_degree: int = Field(100, gt=0)
    """Links that a passage keeps: those that share most and rarest (Adamic and Adar's weight 1/log df), or are near."""


class PassageGraph:
    """Who is linked to whom: ``indices[indptr[i]:indptr[i + 1]]`` are the positions that passage i lists, ascending."""

    def __init__(self, retriever: Retriever, indptr: np.ndarray, indices: np.ndarray):
        self._ids = [chunk.id for chunk in retriever.chunks]
        self._position = {chunk_id: i for i, chunk_id in enumerate(self._ids)}
        self.indptr, self.indices = indptr, indices

    def neighbours(self, chunk_ids: Sequence[str]) -> list[str]:
        """Chunks that any of these lists, without these, in corpus order. Raises KeyError for an unknown id."""
        places = [self._position[c] for c in chunk_ids]
        listed = [self.indices[self.indptr[i] : self.indptr[i + 1]] for i in places]
        found = np.setdiff1d(np.concatenate(listed), places) if listed else ()
        return [self._ids[i] for i in found]


class PassageGraphBuilder:
    name = "passage_graph"
    over = "entities"
    Params = Params

    def __init__(self, params: Params):
        self.params = params

    def estimate(self, retriever: Retriever, prompts: Mapping[str, str]) -> Cost:
        return Cost()

    async def build(self, builder: Builder) -> dict[str, Any]:
        p, chunks = self.params, builder.retriever.chunks
        entities = _incidence([builder.over.of(c.id) for c in chunks], p.max_df)
        words = _incidence(_keywords([c.text for c in chunks], p.keywords, p.max_df), p.max_df)
        near = _nearest(builder.retriever.chunk_vectors, p.nearest)
        graph, kinds = _links(entities, words, near, p.max_degree)
        arrays.save(builder.folder, indptr=graph.indptr.astype("<i8"), indices=graph.indices.astype("<i4"))
        linking = {"linking_entities": entities.shape[1], "linking_keywords": words.shape[1]}
        return _statistics(graph) | kinds | linking

    def load(self, folder: Path, retriever: Retriever, over: Any) -> PassageGraph:
        indptr, indices = arrays.read(folder, "indptr", "indices")
        n = len(retriever.chunks)
        try:
            arrays.csr(np.ones(len(indices)), indices, indptr, (n, n))
        except ValueError as e:
            raise arrays.damaged(folder) from e
        return PassageGraph(retriever, indptr, indices)


def _keywords(texts: Sequence[str], k: int, max_df: int) -> list[list[str]]:
    """Per text its k best words by tf · log(n/df), among those of 2 to ``max_df`` texts; equal ones by spelling."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    counts = [Counter(w for w in re.findall(r"\w{3,}", t.casefold()) if w not in ENGLISH_STOP_WORDS) for t in texts]
    df = Counter(word for count in counts for word in count)
    # Rounded: the last bits of a logarithm may differ between processors.
    rarity = {w: round(float(np.log(len(texts) / d)), 9) for w, d in df.items() if 2 <= d <= max_df}
    best = []
    for count in counts:
        known = [w for w in count if w in rarity]
        best.append(sorted(known, key=lambda w: (-round(count[w] * rarity[w], 9), w))[:k])
    return best


def _incidence(features: Sequence[Sequence[str]], max_df: int) -> sparse.csr_array:
    """(passages, features of 2..max_df passages): X · Xᵀ sums 1/log(df) over what two passages share."""
    from scipy import sparse

    df = Counter(f for found in features for f in set(found))
    column = {f: i for i, f in enumerate(sorted(f for f, d in df.items() if 2 <= d <= max_df))}
    rows, columns, values = [], [], []
    for row, found in enumerate(features):
        for feature in dict.fromkeys(f for f in found if f in column):
            rows.append(row)
            columns.append(column[feature])
            values.append(np.log(df[feature]) ** -0.5)
    place = (np.array(rows, dtype=np.int64), np.array(columns, dtype=np.int64))
    return sparse.csr_array((np.array(values, dtype=float), place), shape=(len(features), len(column)))


def _nearest(vectors: np.ndarray, k: int) -> sparse.csr_array:
    """(n, n), symmetric: 1 + cosine (at least 1) where one is among the other's k nearest; equal ones by position.

    ``vectors``: (n, dim) unit vectors. Single precision in blocks proposes, double precision decides.
    """
    from scipy import sparse

    n = len(vectors)
    k = min(k, n - 1)
    if k <= 0:
        return sparse.csr_array((n, n))
    single, double = vectors.astype(np.float32), vectors.astype(np.float64)
    rows, columns, values = [], [], []
    for start in range(0, n, BLOCK):
        rough = single[start : start + BLOCK] @ single.T
        rough[np.arange(len(rough)), np.arange(start, start + len(rough))] = -np.inf
        bar = np.partition(rough, n - k, axis=1)[:, n - k]
        for i, row in enumerate(rough):
            maybe = np.flatnonzero(row >= bar[i] - 1e-5)
            exact = np.round(double[maybe] @ double[start + i], 9)
            best = np.argsort(-exact, kind="stable")[:k]
            rows.append(np.full(k, start + i))
            columns.append(maybe[best])
            values.append(1 + np.maximum(exact[best], 0))
    place = (np.concatenate(rows), np.concatenate(columns))
    near = sparse.csr_array((np.concatenate(values), place), shape=(n, n))
    return sparse.csr_array(near.maximum(near.T))


def _links(
    entities: sparse.csr_array, words: sparse.csr_array, near: sparse.csr_array, max_degree: int
) -> tuple[sparse.csr_array, dict[str, int]]:
    """(each passage's strongest links by position, how many of each kind); equally strong ones by position."""
    from scipy import sparse

    n = near.shape[0]
    lengths, columns, kinds = [], [], dict.fromkeys(KINDS, 0)
    transposed = [entities.T.tocsr(), words.T.tocsr()]
    for start in range(0, n, BLOCK):
        stop = min(start + BLOCK, n)
        parts = [entities[start:stop] @ transposed[0], words[start:stop] @ transposed[1], near[start:stop]]
        for part in parts:
            part.sort_indices()
        strength = sparse.coo_array(parts[0] + parts[1] + parts[2])
        (row, column), weight = strength.coords, np.round(strength.data, 6)
        order = np.lexsort((column, -weight, row))
        order = order[row[order] + start != column[order]]
        rank = np.arange(len(order)) - np.searchsorted(row[order], row[order])
        kept = order[rank < max_degree]
        kept = kept[np.lexsort((column[kept], row[kept]))]
        lengths.append(np.bincount(row[kept], minlength=stop - start))
        columns.append(column[kept])
        for kind, part in zip(KINDS, parts, strict=True):
            kinds[kind] += int((part[row[kept], column[kept]] > 0).sum())
    indptr = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    indices = np.concatenate(columns)
    return sparse.csr_array((np.ones(len(indices)), indices, indptr), shape=(n, n)), kinds


def _statistics(graph: sparse.csr_array) -> dict[str, Any]:
    """Counts of directed links (a listing each), and of components where direction is left aside."""
    from scipy.sparse.csgraph import connected_components

    n = graph.shape[0]
    degrees = np.diff(graph.indptr)
    components, labels = connected_components(graph, directed=True, connection="weak")
    return {
        "nodes": n,
        "links": int(graph.nnz),
        "max_degree": int(degrees.max(initial=0)),
        "components": int(components),
        "largest_component": int(np.bincount(labels).max(initial=0)),
        "isolated": int(((degrees + np.bincount(graph.indices, minlength=n)) == 0).sum()),
    }
