"""Fitting GFM-RAG's graph network: the authors' two losses, and a ranking without anything learned to compare with.

What a question should find comes as node positions; this module knows no gold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from multihop.structures.gnn import Graph, Network, Sizes, check_weights, exact, forward

BATCH = 8
TEMPERATURE = 0.2
"""Of the weights of negatives: the nearer to 0, the more the hardest count."""
BCE, RANKING = 0.3, 0.7
"""Shares of the two losses (all four: the authors' configuration)."""
DIGITS = 6


@dataclass(frozen=True)
class Options:
    hidden: int
    layers: int
    epochs: int
    learning_rate: float
    seed: int


def fit(
    graph: Graph,
    questions: Sequence[np.ndarray],
    linked: Sequence[Sequence[int]],
    positives: Sequence[Sequence[int]],
    options: Options,
) -> tuple[Network, list[float]]:
    """(network, mean loss of each epoch), from each question's vector, its nodes and the nodes it should find.

    Neither list of nodes may be empty. Depends on the arguments alone: AdamW, double precision, one thread; weights
    are rounded, so that the last bits of another processor do not show.
    """
    sizes = Sizes(len(questions[0]), options.hidden, options.layers)
    rng = np.random.default_rng(options.seed)
    vectors = np.stack(questions).astype(np.float64)
    target = np.zeros((graph.nodes, len(questions)))
    for column, nodes in enumerate(positives):
        target[list(nodes), column] = 1
    losses = []
    with exact() as torch:
        weights = {name: torch.from_numpy(w).requires_grad_() for name, w in initial(sizes, rng).items()}
        optimizer = torch.optim.AdamW(list(weights.values()), lr=options.learning_rate)
        for _ in range(options.epochs):
            order, total = rng.permutation(len(questions)), 0.0
            for start in range(0, len(order), BATCH):
                batch = order[start : start + BATCH]
                logits = forward(weights, sizes, graph, vectors[batch], [linked[i] for i in batch])
                loss = _loss(torch, logits, torch.from_numpy(target[:, batch]))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item() * len(batch)
            losses.append(round(total / len(questions), 4))
        found = {name: w.detach().numpy().round(DIGITS).astype(np.float32) for name, w in weights.items()}
    check_weights(found, sizes, "the trained network")
    return Network(sizes, found, f"trained here on {len(questions)} train questions"), losses


def initial(sizes: Sizes, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """float64 weights before training: uniform in +-1/sqrt(inputs), as torch has them; layer norms are the identity."""
    found = {}
    for name, shape in sizes.shapes().items():
        if ".layer_norm." in name:
            found[name] = np.full(shape, float(name.endswith("weight")))
        else:
            bound = sizes.shapes()[name.rsplit(".", 1)[0] + ".weight"][1] ** -0.5
            found[name] = rng.uniform(-bound, bound, shape)
    return found


def _loss(torch: Any, logits: Any, target: Any) -> Any:
    """0.3 binary cross-entropy + 0.7 ranking, of logits and targets (nodes, questions); the mean over questions.

    Cross-entropy: positives count alike, negatives by the softmax of their logits, so that the hardest count most.
    Ranking: the cross-entropy of each positive's share of all sigmoids.
    """
    share = target / target.sum(0)
    with torch.no_grad():
        hardest = torch.softmax((logits / TEMPERATURE).masked_fill(target > 0, -torch.inf), dim=0).nan_to_num()
    each = torch.nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="none")
    weight = share + hardest
    cross_entropy = (each * weight).sum(0) / weight.sum(0)
    chances = torch.sigmoid(logits)
    ranking = -(torch.log(chances / (chances.sum(0) + 1e-5) + 1e-5) * share).sum(0)
    return (BCE * cross_entropy + RANKING * ranking).mean()


def spread(graph: Graph, linked: Sequence[int], rounds: int) -> np.ndarray:
    """float64 (nodes,): weights on ``linked`` after ``rounds`` of adding the mean over neighbours: nothing learned."""
    degree = np.maximum(np.bincount(graph.targets, minlength=graph.nodes), 1)
    state = np.zeros(graph.nodes)
    state[list(linked)] = graph.weights[list(linked)]
    for _ in range(rounds):
        state = state + np.bincount(graph.targets, weights=state[graph.sources], minlength=graph.nodes) / degree
    return state
