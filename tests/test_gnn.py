"""GFM-RAG's graph network: against a plain loop, its files, a released checkpoint's layout, and learning."""

from __future__ import annotations

import json
from pathlib import PurePosixPath

import numpy as np
import pytest
from gnn_fixture import network_of, small_graph

from multihop.errors import DataError
from multihop.structures import gnn, gnn_fit
from multihop.structures.gnn_checkpoint import COMPUTED, read_checkpoint


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return small_graph(tmp_path_factory.mktemp("gnn"))


def slow_scores(network, graph, question, linked):
    """The same by hand: numpy, one edge and one node at a time."""
    w = {name: a.astype(np.float64) for name, a in network.weights.items()}

    def linear(name, x):
        return w[f"{name}.weight"] @ x + w[f"{name}.bias"]

    def relu(x):
        return np.maximum(x, 0)

    asked = linear("question_mlp", question.astype(np.float64))
    relations = [linear("rel_mlp", r) for r in graph.relations]
    boundary = [asked * graph.weights[i] if i in linked else asked * 0 for i in range(graph.nodes)]
    state = list(boundary)
    for i in range(network.sizes.layers):
        at = f"entity_model.layers.{i}"
        own = [linear(f"{at}.relation_projection.2", relu(linear(f"{at}.relation_projection.0", r))) for r in relations]
        received = [b.copy() for b in boundary]
        for s, t, kind in zip(graph.sources, graph.targets, graph.kinds, strict=True):
            received[t] += state[s] * own[kind]
        following = []
        for old, new in zip(state, received, strict=True):
            x = linear(f"{at}.linear", np.concatenate([old, new]))
            x = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
            x = x * w[f"{at}.layer_norm.weight"] + w[f"{at}.layer_norm.bias"]
            following.append(relu(x) + old)
        state = following
    hidden = [relu(linear("entity_model.mlp.0", np.concatenate([s, asked]))) for s in state]
    return np.array([linear("entity_model.mlp.2", h)[0] for h in hidden])


def test_scores_are_those_of_a_plain_loop(graph, monkeypatch):
    network, question = (
        network_of(layers=3),
        graph.retriever.query_vector("Where was the author of The Salt Road born?"),
    )
    whole = network.scores(graph, question, [0, 2])
    assert whole.shape == (len(graph.phrases),) and np.ptp(whole) > 1e-3
    np.testing.assert_allclose(whole, slow_scores(network, gnn.Graph.of(graph), question, [0, 2]), rtol=1e-10)
    monkeypatch.setattr(gnn, "EDGES", 3)
    monkeypatch.setattr(gnn, "NODES", 2)
    np.testing.assert_allclose(network.scores(graph, question, [0, 2]), whole, rtol=1e-12)


def test_what_is_asked_and_where_it_starts_decide_the_scores(graph):
    network = network_of()
    first = network.scores(graph, graph.retriever.query_vector("born where"), [0])
    assert not np.allclose(first, network.scores(graph, graph.retriever.query_vector("born where"), [1]))
    assert not np.allclose(first, network.scores(graph, graph.retriever.query_vector("village of potters"), [0]))
    potters = graph.phrases.index("potters")
    far = network.scores(graph, graph.retriever.query_vector("born where"), [2])
    assert far[potters] == pytest.approx(first[potters]), "another component hears nothing of the question's entities"


def test_the_graph_has_facts_synonyms_and_their_inverses(tmp_path):
    twice = {0: [("The Salt Road", "novel by", "Ines Havel")], 1: [("Salt Road The", "kept in", "Dorvik")]}
    kg = small_graph(tmp_path, triples=twice)
    assert [(i, j) for i, j, _ in kg.synonyms] == [(0, 2)]
    graph = gnn.Graph.of(kg)
    edges = list(zip(graph.sources.tolist(), graph.kinds.tolist(), graph.targets.tolist(), strict=True))
    assert edges == [(0, 0, 1), (2, 1, 3), (0, 2, 2), (1, 3, 0), (3, 4, 2), (2, 5, 0)]
    texts = ["novel by", "kept in", "equivalent", "inverse_novel by", "inverse_kept in", "inverse_equivalent"]
    np.testing.assert_array_equal(graph.relations, kg.retriever.embedder.encode(texts, "passage").astype(float))
    assert graph.weights.tolist() == [1.0] * 4


def test_rare_entities_count_more_and_their_scores_not(graph):
    at = {phrase: i for i, phrase in enumerate(graph.phrases)}
    scores = gnn.passage_scores(graph, [at["ines havel"], at["arle"], at["potters"]])
    assert scores.tolist() == [0.5, 0.5, 0.5, 0.5, 1.0, 0.0]
    assert gnn.passage_scores(graph, []).tolist() == [0.0] * 6


# -- files


def test_saved_and_loaded_it_is_the_same_to_the_byte(tmp_path):
    network = network_of(label="trained here on 3 train questions")
    card = gnn.save(tmp_path / "a", network, {"network": "x"})
    found = gnn.load(tmp_path / "a")
    assert found.sizes == network.sizes and found.label == network.label == card["label"]
    assert all(np.array_equal(found.weights[n], w) for n, w in network.weights.items())
    assert card["parameters"] == sum(w.size for w in network.weights.values()) and card["network"] == "x"
    gnn.save(tmp_path / "b", found, {"network": "x"})
    for name in ("model.npz", "card.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_damaged_or_missing_files_are_refused(tmp_path):
    with pytest.raises(DataError, match="no graph network"):
        gnn.load(tmp_path)
    card = gnn.save(tmp_path, network_of(), {})
    path = tmp_path / "card.json"
    path.write_text(json.dumps(card | {"sizes": {"features": 24, "hidden": 8, "layers": 3}}))
    with pytest.raises(DataError, match="missing, unknown or of another shape"):
        gnn.load(tmp_path)
    path.write_text("{")
    with pytest.raises(DataError, match="damaged"):
        gnn.load(tmp_path)
    path.write_text(json.dumps(card))
    model = tmp_path / "model.npz"
    model.write_bytes(model.read_bytes()[:-1] + b"x")
    with pytest.raises(DataError, match="sha256"):
        gnn.load(tmp_path)


def test_another_dimension_is_refused(graph):
    with pytest.raises(DataError, match=r"768 dimensions.*gives 24"):
        network_of(features=768).scores(graph, graph.retriever.query_vector("x"), [0])


# -- a released checkpoint


def write_checkpoint(folder, network, model_config=None, rename=None, **config):
    """As the authors' code lays it out."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    stated = {"feat_dim": network.sizes.features, "entity_model": {"input_dim": network.sizes.hidden}}
    stated["entity_model"] |= {"message_func": "distmult", "aggregate_func": "sum", "short_cut": True}
    stated["entity_model"] |= {"layer_norm": True, "hidden_dims": [network.sizes.hidden] * network.sizes.layers}
    stated["entity_model"] |= model_config or {}
    text = {"text_emb_model_config": {"text_emb_model_name": "mpnet"}, "model_config": stated, **config}
    (folder / "config.json").write_text(json.dumps(text))
    state = {(rename or {}).get(n, n): torch.from_numpy(w) for n, w in network.weights.items()}
    torch.save({"model": state}, folder / "model.pth")


def test_a_checkpoint_gives_the_network_it_holds(tmp_path, graph):
    network = network_of(layers=6)
    write_checkpoint(tmp_path / "released", network)
    found, about = read_checkpoint(tmp_path / "released", 24)
    assert (found.sizes, found.label) == (network.sizes, "released checkpoint")
    assert about == {"embedder": {"text_emb_model_name": "mpnet"}}
    question = graph.retriever.query_vector("born where")
    np.testing.assert_array_equal(found.scores(graph, question, [1]), network.scores(graph, question, [1]))


def test_the_released_size_has_eight_million_parameters():
    sizes = gnn.Sizes(768, 512, 6)
    assert 8.0e6 < sum(int(np.prod(s)) for s in sizes.shapes().values()) < 8.3e6


@pytest.mark.parametrize("missing", ["", "config.json", "model.pth"])
def test_a_missing_checkpoint_is_refused_with_what_to_do(tmp_path, missing):
    folder = tmp_path / "released"
    if missing:
        write_checkpoint(folder, network_of())
        (folder / missing).unlink()
    with pytest.raises(DataError, match=f"{missing}.*not there.*leave `checkpoint` out"):
        read_checkpoint(folder, 24)


def test_a_checkpoint_of_another_dimension_is_refused(tmp_path):
    write_checkpoint(tmp_path, network_of(features=768))
    with pytest.raises(DataError, match=r"768 dimensions.*mpnet.*gives 384"):
        read_checkpoint(tmp_path, 384)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_config": {"aggregate_func": "pna"}}, "aggregate_func is 'pna'"),
        ({"model_config": {"short_cut": False}}, "short_cut is False"),
        ({"model_config": {"num_mlp_layer": 3}}, "num_mlp_layer is 3"),
        ({"rename": {"rel_mlp.bias": "relation_mlp.bias"}}, "2 parameters are missing, unknown"),
        ({"rename": {"rel_mlp.weight": "x"}}, "no rel_mlp.weight"),
        ({"rename": {"entity_model.layers.1.linear.bias": "entity_model.layers.2.linear.bias"}}, "missing, unknown"),
    ],
)
def test_another_architecture_is_refused(tmp_path, change, message):
    write_checkpoint(tmp_path, network_of(), **change)
    with pytest.raises(DataError, match=message):
        read_checkpoint(tmp_path, 24)
    assert set(COMPUTED) >= set(change.get("model_config", {}))


def test_a_file_that_runs_code_or_holds_no_weights_is_refused(tmp_path):
    import torch

    write_checkpoint(tmp_path, network_of())
    for content in ({"model": {"rel_mlp.weight": 3}}, {"weights": {}}, [1], {"model": {"x": PurePosixPath("y")}}):
        torch.save(content, tmp_path / "model.pth")
        with pytest.raises(DataError, match="no file of plain weights"):
            read_checkpoint(tmp_path, 24)
    (tmp_path / "model.pth").write_bytes(b"not a checkpoint")
    with pytest.raises(DataError, match="no file of plain weights"):
        read_checkpoint(tmp_path, 24)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(DataError, match="model_config"):
        read_checkpoint(tmp_path, 24)


# -- learning

OPTIONS = gnn_fit.Options(hidden=8, layers=2, epochs=25, learning_rate=0.01, seed=0)


def lesson(graph):
    """The entity two steps away is right."""
    at = {phrase: i for i, phrase in enumerate(graph.phrases)}
    vector = graph.retriever.query_vector
    rows = [
        ("Where was the author of The Salt Road born?", ["the salt road"], ["ines havel", "dorvik"]),
        ("On which river lies the town of Ines Havel?", ["ines havel"], ["dorvik", "arle"]),
        ("Where rises the river of Dorvik?", ["dorvik"], ["arle", "kemp hills"]),
    ]
    return [vector(r[0]) for r in rows], [[at[x] for x in r[1]] for r in rows], [[at[x] for x in r[2]] for r in rows]


def test_it_learns_what_it_is_shown(graph):
    vectors, linked, positives = lesson(graph)
    network, losses = gnn_fit.fit(gnn.Graph.of(graph), vectors, linked, positives, OPTIONS)
    assert len(losses) == 25 and losses[-1] < 0.6 * losses[0]
    for vector, start, right in zip(vectors, linked, positives, strict=True):
        scores = network.scores(graph, vector, start)
        assert set(np.argsort(-scores)[:2].tolist()) == set(right)
    assert network.label == "trained here on 3 train questions"


def test_training_twice_gives_the_same_weights_and_another_seed_others(graph):
    first, second = (gnn_fit.fit(gnn.Graph.of(graph), *lesson(graph), OPTIONS) for _ in range(2))
    assert first[1] == second[1]
    assert all(np.array_equal(w, second[0].weights[n]) for n, w in first[0].weights.items())
    other = gnn_fit.fit(gnn.Graph.of(graph), *lesson(graph), gnn_fit.Options(8, 2, 2, 0.01, 1))[0]
    assert not np.array_equal(other.weights["rel_mlp.weight"], first[0].weights["rel_mlp.weight"])
    assert all(w.dtype == np.float32 for w in first[0].weights.values())


def test_every_entity_being_right_teaches_nothing_and_breaks_nothing(graph):
    vectors, linked, _ = lesson(graph)
    everything = [list(range(len(graph.phrases)))] * 3
    _, losses = gnn_fit.fit(gnn.Graph.of(graph), vectors, linked, everything, gnn_fit.Options(8, 2, 3, 0.01, 0))
    assert np.isfinite(losses).all()


def test_the_losses_by_hand():
    import torch

    logits, target = torch.tensor([[2.0], [0.0], [-1.0]]).double(), torch.tensor([[1.0], [0.0], [0.0]]).double()
    s = 1 / (1 + np.exp(-np.array([2.0, 0.0, -1.0])))
    hard = np.exp(np.array([0.0, -1.0]) / 0.2)
    hard /= hard.sum()
    cross = (-np.log(s[0]) + hard @ -np.log(1 - s[1:])) / 2
    ranking = -np.log(s[0] / (s.sum() + 1e-5) + 1e-5)
    assert gnn_fit._loss(torch, logits, target).item() == pytest.approx(0.3 * cross + 0.7 * ranking)


def test_spreading_without_learning(graph):
    edges = gnn.Graph.of(graph)
    at = {phrase: i for i, phrase in enumerate(graph.phrases)}
    scores = gnn_fit.spread(edges, [at["the salt road"]], 1)
    assert scores[at["the salt road"]] == 1 and scores[at["ines havel"]] == 0.5 and scores[at["dorvik"]] == 0
    assert gnn_fit.spread(edges, [at["the salt road"]], 2)[at["dorvik"]] == 0.25
