"""GFM-RAG's graph network in plain torch: message passing over a knowledge graph, conditioned on the question.

Luo et al. 2025 (GFM-RAG), section 3.2, with the layers of NBFNet: the question is placed on its entities, then every
layer sends DistMult messages along facts, synonyms and their inverses, sums them, and scores every entity at the end.
Parameters have the names and shapes that we read from the authors' public code, so that their weights fit (strictly).

Everything is computed in double precision, by one thread, and scores are rounded before they are compared: another
processor then ranks alike. torch is loaded where it is needed and nowhere else.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from multihop import jsonl
from multihop.errors import DataError
from multihop.retrieval.vectors import embed
from multihop.structures.knowledge_graph import KnowledgeGraph

SYNONYM = "equivalent"
"""Text of the relation between synonyms (authors' code)."""
INVERSE = "inverse_"
"""What an inverse relation's text starts with (authors' code)."""
EDGES = 1 << 16
NODES = 1 << 13
"""Edges and nodes that are computed at once: what bounds memory on large graphs."""
_RETRAIN = "make it again: dvc repro"


@dataclass(frozen=True, slots=True)
class Sizes:
    features: int
    """Dimension of question and relation vectors: the embedder's."""
    hidden: int
    layers: int

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every parameter by name. A ``weight`` is (out, in)."""
        h = self.hidden
        linear = {"rel_mlp": (h, self.features), "question_mlp": (h, self.features)}
        shapes: dict[str, tuple[int, ...]] = {}
        for i in range(self.layers):
            layer = f"entity_model.layers.{i}"
            linear |= {f"{layer}.linear": (h, 2 * h)}
            linear |= {f"{layer}.relation_projection.{j}": (h, h) for j in (0, 2)}
            shapes |= {f"{layer}.layer_norm.{part}": (h,) for part in ("weight", "bias")}
        linear |= {"entity_model.mlp.0": (2 * h, 2 * h), "entity_model.mlp.2": (1, 2 * h)}
        for name, (rows, columns) in linear.items():
            shapes |= {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}
        return shapes


@dataclass(frozen=True, eq=False)
class Graph:
    """A knowledge graph as the network reads it: facts and synonyms as edges, then all of them the other way."""

    nodes: int
    sources: np.ndarray
    targets: np.ndarray
    kinds: np.ndarray
    """(edges,) each, int64; a kind is a row of ``relations``."""
    relations: np.ndarray
    """float64 (2 * (relations + 1), features): relations, the synonym relation, then the inverse of each."""
    weights: np.ndarray
    """float64 (nodes,): 1 / passages of a phrase; what the question is placed on it with."""

    @classmethod
    def of(cls, kg: KnowledgeGraph) -> Graph:
        """From a loaded knowledge graph. The vectors of relation names go through the store: may raise ReplayMiss."""
        facts = np.array(kg.facts, dtype=np.int64).reshape(-1, 3)
        synonyms = np.array([(i, j) for i, j, _ in kg.synonyms], dtype=np.int64).reshape(-1, 2)
        heads, tails = np.concatenate([facts[:, 0], synonyms[:, 0]]), np.concatenate([facts[:, 2], synonyms[:, 1]])
        names = [*kg.relations, SYNONYM]
        kinds = np.concatenate([facts[:, 1], np.full(len(synonyms), len(names) - 1)])
        texts = names + [INVERSE + name for name in names]
        r = kg.retriever
        vectors = embed(r.store, r.embedder, texts, "passage", r.allow)
        return cls(
            len(kg.phrases),
            np.concatenate([heads, tails]),
            np.concatenate([tails, heads]),
            np.concatenate([kinds, kinds + len(names)]),
            vectors.astype(np.float64),
            1 / np.maximum(kg.chunk_counts, 1),
        )


@dataclass(eq=False)
class Network:
    """Weights with their sizes; ready to score the entities of any knowledge graph."""

    sizes: Sizes
    weights: Mapping[str, np.ndarray]
    """float32, by the names of ``Sizes.shapes``."""
    label: str = ""
    """Where it comes from, as tables say it."""
    _graph: tuple[KnowledgeGraph, Graph] | None = field(default=None, repr=False)
    """The last one that was scored, and its edges."""

    def scores(self, kg: KnowledgeGraph, question: np.ndarray, linked: Sequence[int]) -> np.ndarray:
        """float64 (phrases,): a logit for every phrase of ``kg``; ``linked``: the question's phrases.

        Raises DataError for a question vector of another dimension than the network's features.
        """
        self.check(len(question))
        if self._graph is None or self._graph[0] is not kg:
            self._graph = kg, Graph.of(kg)
        graph = self._graph[1]
        with exact() as torch, torch.no_grad():
            weights = {name: torch.from_numpy(w.astype(np.float64)) for name, w in self.weights.items()}
            return forward(weights, self.sizes, graph, question[None], [linked])[:, 0].numpy()

    def check(self, features: int) -> None:
        """Raises DataError where vectors of ``features`` dimensions are not what the network was made for."""
        if features != self.sizes.features:
            raise DataError(
                f"the graph network ({self.label or 'no label'}) reads vectors of {self.sizes.features} dimensions, "
                f"this setting's embedder gives {features}; use a setting with its own embedder, or train one for this "
                "(params.yaml: networks)"
            )


# -- the computation


@contextmanager
def exact() -> Iterator[Any]:
    """torch with one thread and deterministic kernels: the same sums in the same order."""
    import torch

    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        yield torch
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(strict)


def forward(weights: Mapping[str, Any], sizes: Sizes, graph: Graph, questions: Any, linked: Sequence[Any]) -> Any:
    """Logits (nodes, questions). ``weights``: double tensors; ``questions``: (questions, features)."""
    import torch
    from torch.nn.functional import layer_norm, linear

    def apply(name: str, x: Any) -> Any:
        return linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    asked = apply("question_mlp", torch.from_numpy(np.asarray(questions, dtype=np.float64)))
    relations = apply("rel_mlp", torch.from_numpy(graph.relations))
    start = torch.zeros(graph.nodes, len(asked), 1, dtype=torch.float64)
    for column, nodes in enumerate(linked):
        start[list(nodes), column, 0] = torch.from_numpy(graph.weights)[list(nodes)]
    boundary = start * asked  # (nodes, questions, hidden): zero but on the questions' entities
    edges = [torch.from_numpy(part) for part in (graph.sources, graph.targets, graph.kinds)]
    state = boundary
    for i in range(sizes.layers):
        layer = f"entity_model.layers.{i}"
        projected = apply(f"{layer}.relation_projection.2", apply(f"{layer}.relation_projection.0", relations).relu())
        received = boundary.clone()
        for sources, targets, kinds in zip(*(part.split(EDGES) for part in edges), strict=True):
            received.index_add_(0, targets, state[sources] * projected[kinds][:, None])
        norm = [weights[f"{layer}.layer_norm.{part}"] for part in ("weight", "bias")]
        blocks = zip(state.split(NODES), received.split(NODES), strict=True)
        state = torch.cat(
            [
                layer_norm(apply(f"{layer}.linear", torch.cat([old, new], dim=-1)), (sizes.hidden,), *norm).relu() + old
                for old, new in blocks
            ]
        )
    scored = [
        apply("entity_model.mlp.2", apply("entity_model.mlp.0", torch.cat([s, asked.expand_as(s)], dim=-1)).relu())
        for s in state.split(NODES)
    ]
    return torch.cat(scored)[..., 0]


# -- from entities to passages


def passage_scores(kg: KnowledgeGraph, entities: Sequence[int]) -> np.ndarray:
    """float64 (chunks,): the sum of 1 / passages over those of ``entities`` that a chunk mentions.

    The authors' ranker: the best entities count by how rare they are, not by their scores.
    """
    weights = np.zeros(len(kg.phrases))
    chosen = list(entities)
    weights[chosen] = 1 / np.maximum(kg.chunk_counts[chosen], 1)
    return np.asarray((kg.mentions > 0) @ weights, dtype=np.float64)


# -- files


def save(folder: Path, network: Network, card: Mapping[str, Any]) -> dict[str, Any]:
    """Write model.npz (plain arrays, the same bytes for the same weights) and card.json; returns the card."""
    folder.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **{name: network.weights[name] for name in sorted(network.weights)})
    (folder / "model.npz").write_bytes(buffer.getvalue())
    whole = {
        **card,
        "label": network.label,
        "sizes": asdict(network.sizes),
        "parameters": sum(w.size for w in network.weights.values()),
        "sha256": hashlib.sha256(buffer.getvalue()).hexdigest(),
    }
    jsonl.write_json(folder / "card.json", whole)
    return whole


def load(folder: Path) -> Network:
    """Inverse of :func:`save`. Raises DataError for files that are missing, damaged or not what the card says."""
    try:
        card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
        data = (folder / "model.npz").read_bytes()
        sizes, label, expected = Sizes(**card["sizes"]), card["label"], card["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise DataError(f"{folder}: no graph network there, or a damaged one ({e}); {_RETRAIN}") from e
    if hashlib.sha256(data).hexdigest() != expected:
        raise DataError(f"{folder / 'model.npz'}: not the file that card.json describes (sha256); {_RETRAIN}")
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        weights = dict(file)
    check_weights(weights, sizes, str(folder / "model.npz"))
    return Network(sizes, weights, label)


def check_weights(weights: Mapping[str, np.ndarray], sizes: Sizes, where: str) -> None:
    """Raises DataError where names, shapes or values are not those of a network of ``sizes``."""
    shapes = sizes.shapes()
    wrong = sorted(set(shapes) ^ set(weights)) or sorted(n for n, w in weights.items() if w.shape != shapes[n])
    if wrong:
        raise DataError(f"{where}: {len(wrong)} parameters are missing, unknown or of another shape: {wrong[:4]}")
    if bad := sorted(name for name, w in weights.items() if not np.isfinite(w).all()):
        raise DataError(f"{where}: {bad[0]} holds values that are not finite")
