"""RAPTOR's clusters: UMAP, then Gaussian mixtures whose number BIC chooses, first globally, then within each cluster.

Everything is seeded, yet UMAP's floats differ between processors: callers keep what comes out.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from multihop.errors import ReplayMiss

LOCAL_NEIGHBOURS = 10
"""n_neighbors of the second UMAP, within a global cluster (RAPTOR's code)."""
PAIRWISE = 512
"""Up to so many nodes UMAP finds their neighbours itself, pair by pair in Python below 4,096 nodes: half of the time
at 2,000. Above it the same neighbours, exact ones, come from matrix products."""
UNSPLIT = 0.9
"""A cluster that holds this share of the nodes it was found among could not be split."""

BLOCK = 512
"""Nodes whose distances to all others are held at a time."""

Cluster = tuple[int, ...]
"""Positions of its nodes, ascending. A node may be in several clusters."""


@dataclass(frozen=True)
class Clustering:
    """How nodes are clustered; defaults in structures/tree.py."""

    components: int
    """Dimensions that vectors are reduced to; so many nodes + 1 are one cluster."""
    neighbours: int
    """Largest n_neighbors of the global UMAP: sqrt(n - 1) where that is smaller."""
    threshold: float
    """A node belongs to every cluster whose probability exceeds this, and to the most probable one."""
    max_clusters: int
    max_tokens: int
    """A cluster with more is clustered again."""
    seed: int

    def clusters(self, vectors: np.ndarray, tokens: Sequence[int]) -> list[Cluster]:
        """Overlapping clusters that cover all nodes; each set of nodes once.

        ``vectors``: (n, dim); ``tokens``: of each node's text. The same input gives the same clusters on one
        processor.
        """
        vectors = np.asarray(vectors, dtype=np.float64)
        found = self._divide(vectors, np.asarray(tokens), tuple(range(len(vectors))))
        return list(dict.fromkeys(found))

    def _divide(self, vectors: np.ndarray, tokens: np.ndarray, members: Cluster) -> list[Cluster]:
        out: list[Cluster] = []
        for cluster in self._once(vectors, members):
            if len(cluster) == 1 or tokens[list(cluster)].sum() <= self.max_tokens:
                out.append(cluster)
            elif len(cluster) >= UNSPLIT * len(members):
                out += self._cut(tokens, cluster)  # clustering it again would find the same again, for ever
            else:
                out += self._divide(vectors, tokens, cluster)
        return out

    def _cut(self, tokens: np.ndarray, cluster: Cluster) -> list[Cluster]:
        """Runs of neighbouring nodes within ``max_tokens``; a longer node stands alone."""
        runs, size = [[cluster[0]]], tokens[cluster[0]]
        for node in cluster[1:]:
            size += tokens[node]
            if size > self.max_tokens:
                runs.append([])
                size = tokens[node]
            runs[-1].append(node)
        return [tuple(run) for run in runs]

    def _once(self, vectors: np.ndarray, members: Cluster) -> list[Cluster]:
        """Global, then local clusters of ``members``."""
        if len(members) <= self.components + 1:
            return [members]
        wide = min(math.isqrt(len(members) - 1), self.neighbours)
        return [
            part
            for cluster in self._mixture(vectors, members, wide)
            for part in (
                self._mixture(vectors, cluster, LOCAL_NEIGHBOURS) if len(cluster) > self.components + 1 else [cluster]
            )
        ]

    def _mixture(self, vectors: np.ndarray, members: Cluster, neighbours: int) -> list[Cluster]:
        points = self._reduced(vectors[list(members)], neighbours)
        probabilities = self._probabilities(points)
        belongs = probabilities > self.threshold
        belongs[np.arange(len(points)), probabilities.argmax(axis=1)] = True
        found = (tuple(members[i] for i in np.flatnonzero(column)) for column in belongs.T)
        return [cluster for cluster in found if cluster]

    def _reduced(self, vectors: np.ndarray, neighbours: int) -> np.ndarray:
        """float64 (n, <= components): UMAP, or PCA where there are too few nodes for it (RAPTOR's issue 30)."""
        n, dim = vectors.shape
        components = min(self.components, dim, n - 2)
        if n < self.components + 3:
            left, sizes, _ = np.linalg.svd(vectors - vectors.mean(axis=0), full_matrices=False)
            return left[:, :components] * sizes[:components]
        import umap

        vectors, near = vectors.astype(np.float32), min(max(neighbours, 2), n - 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # single-threaded because seeded; a disconnected neighbour graph
            reducer = umap.UMAP(
                n_neighbors=near,
                n_components=components,
                metric="cosine",
                random_state=self.seed,
                n_jobs=1,
                **({"precomputed_knn": nearest(vectors, near)} if n > PAIRWISE else {}),
            )
            return np.asarray(reducer.fit_transform(vectors), dtype=np.float64)

    def _probabilities(self, points: np.ndarray) -> np.ndarray:
        """(n, clusters) under the mixture with the lowest BIC; the fewest clusters among equals."""
        most = min(self.max_clusters, len(points) - 1, len(np.unique(points, axis=0)))
        best: Any = None
        lowest = math.inf
        for count in range(1, most + 1):
            fitted = self._fit(points, count)
            score = fitted.bic(points) if fitted is not None else math.inf
            if score < lowest:
                best, lowest = fitted, score
        return best.predict_proba(points) if best is not None else np.ones((len(points), 1))

    def _fit(self, points: np.ndarray, count: int) -> Any:
        """A mixture, or None where a covariance is degenerate."""
        from sklearn.mixture import GaussianMixture

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # not converged: its BIC decides all the same
            try:
                return GaussianMixture(count, random_state=self.seed).fit(points)
            except ValueError:
                return None


def nearest(vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """(positions, cosine distances), each (n, k): every node's k nearest, itself first, equal ones by position."""
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    positions, distances = [], []
    for start in range(0, len(vectors), BLOCK):
        far = 1 - vectors[start : start + BLOCK] @ vectors.T
        rows = np.arange(len(far))[:, None]
        far[rows[:, 0], rows[:, 0] + start] = -1  # a duplicate is as near as the node is to itself
        found = np.sort(np.argpartition(far, k - 1, axis=1)[:, :k], axis=1)
        found = found[rows, np.argsort(far[rows, found], axis=1, kind="stable")]
        positions.append(found)
        distances.append(np.maximum(far[rows, found], 0))
    return np.concatenate(positions), np.concatenate(distances).astype(np.float32)


def check_libraries(umap: str, sklearn: str) -> None:
    """Raises ReplayMiss where a library is missing, or is not the version that stored clusters are named after."""
    for module, package, wanted in (("umap", "umap-learn", umap), ("sklearn", "scikit-learn", sklearn)):
        installed = importlib.metadata.version(package) if importlib.util.find_spec(module) else "none"
        if installed != wanted:
            raise ReplayMiss(
                f"tree: clusters need {package} {wanted}, found {installed}: pip install -r requirements.txt, or "
                f"set {module}_version in params.yaml to the one that is installed"
            )
