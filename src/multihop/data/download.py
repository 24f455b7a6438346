"""The download stage: data/raw/<dataset> from the generated world, a local folder or official addresses."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from multihop.data import hub as downloads
from multihop.data import rawfiles
from multihop.errors import DataError

log = logging.getLogger(__name__)

PREFIXES = {"hotpotqa": "hotpot", "2wikimultihopqa": "2wiki", "musique": "musique"}
"""How the official files of a dataset begin, for folders that hold several datasets."""

SOURCES = Path(__file__).with_name("sources.yaml")


def fetch(
    source: str,
    dataset: str,
    out: Path,
    *,
    local_dir: Path | None = None,
    demo: dict[str, Any] | None = None,
    hub: dict[str, Any] | None = None,
    lock_path: Path = Path("data/hub.lock.json"),
) -> list[Path]:
    """Fill ``out`` with the raw files of a dataset; returns them. A failure leaves ``out`` as it was.

    ``demo``: {seed, passages, questions, train_questions} of the generated world. ``local_dir``: the
    folder of benchmark files. ``hub``: {release: hipporag | official} and optionally ``table`` (in place
    of sources.yaml), ``cache`` (folder of finished and broken-off downloads; default beside the lock
    file), ``attempts`` and ``wait_s`` for each address.

    Raises DataError for an unknown source or dataset, missing files, and downloads that fail or don't
    have the hash that is pinned or was recorded first.
    """
    if dataset not in PREFIXES:
        raise DataError(f"unknown dataset {dataset!r}; known: {', '.join(PREFIXES)}")
    if source == "demo":
        return _in_one_go(out, lambda folder: _demo(dataset, folder, demo or {}))
    if source == "local":
        return _in_one_go(out, lambda folder: _local(dataset, folder, local_dir))
    if source == "hub":
        options = hub or {}
        files = _hub_table(dataset, options)
        cached: list[Path] = []
        found = _in_one_go(
            out, lambda folder: cached.extend(downloads.download_all(dataset, files, folder, options, lock_path))
        )
        for path in cached:  # only now: a kill before would have lost what came
            path.unlink(missing_ok=True)
        return found
    raise DataError(f"unknown source {source!r}; known: demo, local, hub")


def _in_one_go(out: Path, fill: Callable[[Path], object]) -> list[Path]:
    folder = out.with_name(f".{out.name}.new")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        fill(folder)
        shutil.rmtree(out, ignore_errors=True)
        folder.rename(out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return sorted(p for p in out.iterdir() if p.is_file())


def _demo(dataset: str, folder: Path, demo: dict[str, Any]) -> None:
    from multihop.data import world  # here, because the other two sources do without the generator

    missing = {"seed", "passages", "questions", "train_questions"} - demo.keys()
    if missing:
        raise DataError(f"source demo: no value for {', '.join(sorted(missing))}")
    made = world.build_world(demo["seed"], demo["passages"])
    world.write_raw(made, dataset, folder, demo["questions"], demo["train_questions"], demo["seed"])


def _local(dataset: str, folder: Path, local_dir: Path | None) -> None:
    """Copy the files that play a part from <dir>/<dataset>, <dir>/official or <dir>, whichever has them."""
    if local_dir is None:
        raise DataError(
            "source local needs a folder of benchmark files: set MULTIHOP_DATA_DIR to it, "
            "or choose `source: demo` or `source: hub`"
        )
    for place in (local_dir / dataset, local_dir / "official", local_dir):
        files = _files_of(dataset, place, own=place.name == dataset)
        if any(rawfiles.part_of(path, dataset) == "questions" for path in files):
            for path in files:
                shutil.copyfile(path, folder / path.name)
            rawfiles.find(folder, dataset)  # complains here, not a stage later, if two files claim one part
            log.info("%s: copied %s from %s", dataset, ", ".join(p.name for p in files), place)
            return
    prefix = PREFIXES[dataset]
    raise DataError(
        f"no questions of {dataset} under {local_dir}. Looked for {local_dir / dataset}/ with any names, "
        f"then {local_dir / 'official'}/{prefix}* and {local_dir}/{prefix}*. What is expected there:\n"
        f"{rawfiles.EXPECTED}"
    )


def _files_of(dataset: str, place: Path, own: bool) -> list[Path]:
    """Files of ``place`` that play a part; in a shared folder only those with the dataset's prefix."""
    if not place.is_dir():
        return []
    names = (PREFIXES[dataset], "id_aliases") if dataset == "2wikimultihopqa" else (PREFIXES[dataset],)
    return [
        path
        for path in sorted(place.iterdir())
        if path.is_file() and rawfiles.part_of(path, dataset) and (own or path.name.lower().startswith(names))
    ]


def _hub_table(dataset: str, hub: dict[str, Any]) -> dict[str, Any]:
    table = hub.get("table") or yaml.safe_load(SOURCES.read_text(encoding="utf-8"))
    release = hub.get("release", "hipporag")
    if release not in table or dataset not in table[release]:
        known = "; ".join(f"{r}: {', '.join(sets)}" for r, sets in table.items())
        raise DataError(f"source hub has no {dataset!r} in release {release!r}. Known: {known}")
    return table[release][dataset]
