"""Replay: stored answers through the client and a method's own code, a second; and what DVC adds.

The answers are those of the instrument's simulated reader over a generated world; the reference reads the same
entries with bare SQLite (or out of a dict) and ``json.loads``. DVC's cold seconds are those of ``dvc repro`` from the
recording in a fresh clone of HEAD, without installing anything: minutes, so only with ``--full``.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from cloning import cloned
from rows import Row, timed

ROOT = Path(__file__).resolve().parents[1]
QUESTIONS = 20
ROUNDS = 5
"""How often a recorded run's few questions are replayed."""
LEAST = 1000.0
"""Calls a second."""


def measure(quick: bool) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        rows = [*replayed(Path(folder) / "simulated"), opening()]
        if quick:
            return rows
        clone, environ = cloned(Path(folder) / "project")
        return [*rows, *cold_dvc(clone, environ), *recorded(clone)]


# -- the store


def replayed(root: Path) -> list[Row]:
    """A-RAG and ExecutionRAG over QUESTIONS questions: asked once, then replayed from the file and from a layer."""
    from multihop import config
    from multihop.blocks import Faults
    from multihop.instrument import simulate
    from multihop.store import Store

    asyncio.run(simulate.simulate(ROOT, root, QUESTIONS, Faults(), 0))
    params, rows = config.load(root / "params.yaml"), []
    for method in simulate.METHODS:
        file = root / f".multihop-{method}/store.sqlite"
        with closing(Store(file)) as store:
            store.export(root / f"recordings-{method}/all.jsonl.zst")
        for kind, home in (("store file", method), ("recording", f"{method}-empty")):
            calls, spent = asyncio.run(_replay(params, root, method, home, kind == "recording"))
            rows.append(_rate(f"replay of {method} from the {kind}", calls / spent, _bare(file)))
    return rows


async def _replay(params: Any, root: Path, method: str, home: str, layer: bool) -> tuple[int, float]:
    """(calls, processor seconds) of a run whose cell is open and whose index is loaded."""
    from multihop.environment import Environment
    from multihop.instrument.simulate import DATASET, SETTING
    from multihop.session import Session

    recordings = f"recordings-{method}" if layer else "none"
    environ = {"MULTIHOP_HOME": f".multihop-{home}", "MULTIHOP_RECORDINGS": recordings, "MULTIHOP_LIVE": "never"}
    with closing_session(Session(params, Environment.read(environ), root)) as session:
        return await answered(session, method, DATASET, SETTING)


async def answered(session: Any, run: str, dataset: str, setting: str, rounds: int = 1) -> tuple[int, float]:
    """(calls, processor seconds) of a cell's questions, one after another."""
    from multihop import running
    from multihop.data import splits
    from multihop.gathering import each

    cell = running.open_cell(session, run, dataset, setting)
    questions = splits.questions(session.prepared(dataset))[: session.params.run(run).questions]
    await cell.answer(questions[0], 0)
    session.log.rows.clear()
    with timed() as spent:
        await each(questions * rounds, lambda question: cell.answer(question, 0), 1)
    return len(session.log.rows), spent.cpu


@contextmanager
def closing_session(session: Any) -> Iterator[Any]:
    try:
        yield session
    finally:
        session.store.close()


def recorded(project: Path) -> list[Row]:
    """Every run of a project whose stages have run, from its recording; the rate over all, and the slowest run's."""
    from multihop import config
    from multihop.environment import Environment
    from multihop.session import Session

    environ = {"MULTIHOP_HOME": ".multihop-replay", "MULTIHOP_LIVE": "never"}
    found: dict[str, tuple[int, float]] = {}
    with closing_session(Session(config.load(project / "params.yaml"), Environment.read(environ), project)) as session:
        for run in session.params.runs:
            dataset, setting = next(iter(session.params.cells(run)))
            found[run] = asyncio.run(answered(session, run, dataset, setting, ROUNDS))
    rates = {run: calls / spent for run, (calls, spent) in found.items() if calls}
    slowest = min(rates, key=rates.get)
    whole = sum(calls for calls, _ in found.values()) / sum(spent for _, spent in found.values())
    target = f">= {LEAST:,.0f}"
    return [
        Row("replay", "replay of every run's first cell", whole, "calls/s", target=target, met=whole >= LEAST),
        Row("replay", f"the slowest run: {slowest}", rates[slowest], "calls/s", note=said(found[slowest])),
    ]


def said(found: tuple[int, float]) -> str:
    return f"{found[0]:,} calls in {found[1]:.2f} s of processor time, retrieval and controllers included"


def _bare(file: Path, rounds: int = 5) -> float:
    """Entries a second that SQLite and json alone read, by key."""
    with closing(sqlite3.connect(file)) as db:
        keys = [key for (key,) in db.execute("SELECT key FROM responses")]
        with timed() as spent:
            for key in keys * rounds:
                json.loads(db.execute("SELECT response FROM responses WHERE key=?", (key,)).fetchone()[0])
    return len(keys) * rounds / spent.cpu


def _rate(what: str, ours: float, bare: float) -> Row:
    return Row("replay", what, ours, "calls/s", bare, "SELECT by key + json.loads", f">= {LEAST:,.0f}", ours >= LEAST)


def opening() -> Row:
    """What each stage pays to open this checkout's recordings."""
    import zstandard

    from multihop.store import Store

    paths = sorted((ROOT / "data/recordings").glob("*.jsonl.zst"))
    with tempfile.TemporaryDirectory() as folder, timed() as ours:
        Store(Path(folder) / "store.sqlite", paths).close()
    with timed() as bare:
        for path in paths:
            data = zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())
            entries = [json.loads(line) for line in data.decode().split("\n") if line]
    note = f"{len(entries):,} entries, {len(data) / 1e6:.1f} MB of JSON lines"
    return Row("replay", "opening the recording", ours.cpu, "s", bare.cpu, "zstd + json.loads", note=note)


# -- DVC


def cold_dvc(clone: Path, environ: dict[str, str]) -> list[Row]:
    stages = len(_dvc("dvc stage list --all --name-only", clone, environ)[0].splitlines())
    cold = _dvc("dvc repro", clone, environ)[1]
    again, nothing = _dvc("dvc repro", clone, environ)
    if "Running stage" in again:
        raise SystemExit("dvc repro ran stages again")
    status = _dvc("dvc status", clone, environ)[1]
    return [
        Row("replay", "stages of dvc.yaml", stages, ""),
        Row("replay", "dvc repro, cold", cold, "s", note="everything from the recording; installing is not in it"),
        Row("replay", "dvc repro, nothing to do", nothing, "s"),
        Row("replay", "dvc status", status, "s"),
    ]


def _dvc(command: str, where: Path, environ: dict[str, str]) -> tuple[str, float]:
    """(what it printed, seconds of the clock)."""
    started = time.monotonic()
    done = subprocess.run(command.split(), cwd=where, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout, time.monotonic() - started


if __name__ == "__main__":
    for row in measure("--full" not in sys.argv):
        beside = f" beside {row.reference:,.4g} ({row.named})" if row.reference else ""
        print(f"{row.what}: {row.ours:,.4g} {row.unit}{beside} {row.target} {row.note}")
