"""Arrays of a structure's folder, read back with an error that says what to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from multihop.errors import DataError


def save(folder: Path, **arrays: np.ndarray) -> None:
    """One ``<name>.npy`` each; little-endian, without pickles."""
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


def damaged(folder: Path) -> DataError:
    return DataError(f"{folder}: its files do not fit the corpus or each other; run `dvc repro`")
