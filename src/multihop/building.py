"""The stages that build indexes of structured methods: entities, triples, trees, graphs."""

from __future__ import annotations

import inspect
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from multihop import jsonl
from multihop.opening import load_prompts, open_index, open_structure, structure_identity
from multihop.session import Session
from multihop.structures import registry
from multihop.structures.base import ROLE, Builder, Cost
from multihop.types import Usage


@dataclass(frozen=True)
class Built:
    """One (dataset, setting) of a structure, as this process built it."""

    statistics: dict[str, Any]
    seconds: float
    live_calls: int
    """Calls that were answered now, not from the store."""
    computed: int
    """Answers, vectors and values that the store did not have."""


async def build(session: Session, name: str) -> dict[str, Built]:
    """Build a structure for every (dataset, setting) of its entry; returns each one by "dataset/setting".

    The folder in data/structures holds the structure's own files and is replaced whole; results/structures says what
    it was made of, holds and cost. A killed build loses only the calls in flight.
    """
    session.begin(f"build {name}", session.params.readers_of(session.params.structure_cells(name)))
    out = {}
    for dataset, setting in session.params.structure_cells(name):
        started, written = time.monotonic(), session.store.written
        try:
            facts = await _build_cell(session, name, dataset, setting)
        finally:
            live = sum(row["live"] for row in session.log.rows)
            session.side_log(f"build-{name}-{dataset}-{setting}")
        seconds = time.monotonic() - started
        print(f"  {name} {dataset} {setting}: {seconds:.1f} s, {live} live calls", file=sys.stderr)
        out[f"{dataset}/{setting}"] = Built(facts["statistics"], seconds, live, session.store.written - written)
    return out


async def _build_cell(session: Session, name: str, dataset: str, setting: str) -> dict[str, Any]:
    structure = registry.create(session.params, name)
    entry = session.params.structure(name)
    retriever = open_index(session, dataset, setting)
    prompts = load_prompts(session.root, entry.structure)
    folder = session.structure(name, dataset, setting)
    facts_file = session.structure_facts(name, dataset, setting)
    facts_file.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    reader = session.params.settings[setting].reader
    over = open_structure(session, entry.over, dataset, setting, retriever) if entry.over else None
    builder = Builder(retriever, session.client(reader), prompts, folder, over, session.workers(reader))
    estimated = structure.estimate(retriever, prompts)
    statistics = await structure.build(builder)
    used = builder.trace.usage.get(ROLE, Usage())
    facts = {
        "identity": structure_identity(session, name, setting, retriever),
        "model": session.params.readers[reader].model if used.calls else None,
        "corpus": {"passages": len(retriever.chunks), "tokens": sum(retriever.tokens(c.id) for c in retriever.chunks)},
        "statistics": statistics,
        "estimated": asdict(estimated),
        "actual": asdict(Cost(used.calls, used.prompt_tokens, used.completion_tokens)),
        "repairs": used.repairs,
        "bytes": _size(folder),
        "code": jsonl.file_sha256(Path(inspect.getfile(type(structure))))[:16],
    }
    jsonl.write_json(facts_file, facts)
    return facts


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
