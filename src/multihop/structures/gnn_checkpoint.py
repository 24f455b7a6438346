"""Reading a released checkpoint of GFM-RAG's graph network: a folder with config.json and model.pth.

The layout is our reading of the authors' public code; no checkpoint was at hand. model.pth holds {"model": state
dict}; it is read without unpickling objects, its names and shapes must be those of our network, every one. What
config.json says of the architecture must be what :mod:`multihop.structures.gnn` computes. Anything else is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from multihop.errors import DataError
from multihop.structures.gnn import Network, Sizes, check_weights

LABEL = "released checkpoint"
COMPUTED = {
    "message_func": "distmult",
    "aggregate_func": "sum",
    "short_cut": True,
    "layer_norm": True,
    "concat_hidden": False,
    "num_mlp_layer": 2,
    "activation": "relu",
    "use_ent_emb": None,
}
"""What the network is; a config that says otherwise for one of these keys describes another one."""
UNSAID = {"short_cut": False, "layer_norm": False}
"""What the authors' code takes where the config does not say it."""
_ADVICE = (
    "the released weights are on their authors' hub (GFM-RAG-8M) and are not part of this project: put config.json and "
    "model.pth there, or leave `checkpoint` out to train a network here"
)


def read_checkpoint(folder: Path, features: int) -> tuple[Network, dict[str, Any]]:
    """(the network, what config.json says of its embedder), checked against an embedder of ``features`` dimensions.

    Raises DataError, before anything is asked, for a missing folder or file, a file that is not such a checkpoint,
    parameters that are missing, unknown or of another shape, another architecture, or another dimension.
    """
    for path in (folder, folder / "config.json", folder / "model.pth"):
        if not path.exists():
            raise DataError(f"checkpoint {path}: not there; {_ADVICE}")
    config = _config(folder / "config.json")
    weights = _weights(folder / "model.pth")
    sizes = _sizes(weights, folder)
    check_weights(weights, sizes, f"checkpoint {folder / 'model.pth'}")
    embedder = config.get("text_emb_model_config", config.get("text_emb_model"))
    if sizes.features != features:
        raise DataError(
            f"checkpoint {folder}: its network reads vectors of {sizes.features} dimensions (embedder: {embedder}), "
            f"the setting's embedder gives {features}; name a setting with that embedder in params.yaml: networks, or "
            "leave `checkpoint` out to train a network here"
        )
    return Network(sizes, weights, LABEL), {"embedder": embedder}


def _config(path: Path) -> dict[str, Any]:
    """config.json, with what it says of the architecture checked, at whatever depth it says it."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as e:
        raise DataError(f"checkpoint {path}: not JSON ({e})") from e
    if not isinstance(config, dict) or not isinstance(config.get("model_config"), dict):
        raise DataError(f"checkpoint {path}: expected an object with `model_config`")
    for key, value in (UNSAID | dict(_settings(config["model_config"]))).items():
        if key in COMPUTED and value != COMPUTED[key]:
            raise DataError(f"checkpoint {path}: {key} is {value!r}; only {COMPUTED[key]!r} is implemented")
    return config


def _settings(block: Mapping[str, Any]) -> list[tuple[str, Any]]:
    found = []
    for key, value in block.items():
        found += _settings(value) if isinstance(value, dict) else [(key, value)]
    return found


def _weights(path: Path) -> dict[str, np.ndarray]:
    import torch

    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
        return {name: tensor.to(torch.float32).numpy() for name, tensor in loaded["model"].items()}
    except Exception as e:  # torch raises many kinds; all of them mean: no such checkpoint
        raise DataError(
            f"checkpoint {path}: no file of plain weights under the key 'model' ({type(e).__name__}: {str(e)[:200]})"
        ) from e


def _sizes(weights: Mapping[str, np.ndarray], folder: Path) -> Sizes:
    """From the parameters themselves: what they are made for, whatever the config says."""
    first = weights.get("rel_mlp.weight")
    layers = {name.split(".")[2] for name in weights if name.startswith("entity_model.layers.")}
    if first is None or first.ndim != 2 or not layers:
        raise DataError(
            f"checkpoint {folder / 'model.pth'}: no rel_mlp.weight, or no entity_model.layers; "
            f"found {sorted(weights)[:4]}"
        )
    return Sizes(int(first.shape[1]), int(first.shape[0]), len(layers))
