"""Arrays of a structure's folder, read back with an error that says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from multihop.errors import DataError

if TYPE_CHECKING:
    from scipy import sparse


def save(folder: Path, **arrays: np.ndarray) -> None:
    """One ``<name>.npy`` each, without pickles."""
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)


def read(folder: Path, *names: str) -> list[np.ndarray]:
    """The arrays of that name, in order. Raises DataError for one that is missing or damaged."""
    found = []
    for name in names:
        path = folder / f"{name}.npy"
        try:
            found.append(np.load(path, allow_pickle=False))
        except (OSError, ValueError, EOFError) as e:
            raise DataError(f"{path}: missing or damaged ({e}); run `dvc repro`") from e
    return found


def csr(data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, shape: tuple[int, int]) -> sparse.csr_array:
    """A sparse matrix from its parts. Raises ValueError where they do not fit each other or the shape."""
    from scipy import sparse

    made = sparse.csr_array((data, indices, indptr), shape=shape)
    made.check_format(full_check=True)
    if indptr[-1] != len(indices):
        raise ValueError("indices that belong to no row")
    return made


def damaged(folder: Path) -> DataError:
    return DataError(f"{folder}: its files do not fit the corpus or each other; run `dvc repro`")
