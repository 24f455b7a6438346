"""The sub-commands for more than one machine: shards fill stores, stores are merged. No logic lives here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from multihop.cli.app import app, in_session
from multihop.errors import ConfigError
from multihop.session import Session


@app.command()
def warm(
    runs: Annotated[list[str] | None, typer.Argument(help="runs of params.yaml; default: all")] = None,
    shards: Annotated[int | None, typer.Option(min=1, help="parts by a hash of the question id")] = None,
    chunk: Annotated[int | None, typer.Option(min=1, help="questions at a time; default 512, with Ray 128")] = None,
) -> None:
    """Ask what RUNS need, judge included, and write no result; MULTIHOP_SHARD=i/n: one part; RUNNER=ray: a cluster."""
    from multihop.scaling import cluster, warming
    from multihop.scaling import shards as sharding

    runner = os.environ.get("RUNNER") or "local"
    if runner not in ("local", "ray"):
        raise ConfigError(f"RUNNER={runner!r}: allowed are local, ray")
    wanted = sharding.chosen(shards)
    if runner == "ray":
        cluster.library()  # before anything is opened

    async def work(session: Session) -> str:
        if runner == "ray":
            return cluster.warm(session, runs or [], wanted, chunk or cluster.CHUNK).said()
        counts = await warming.warm(session, runs or [], wanted, chunk or warming.CHUNK)
        return f"{warming.said(counts)}; {session.meter.live_calls} live calls"

    print(in_session(work))


@app.command("export-store")
def export_store(path: Path) -> None:
    """Write what this checkout's store has beyond the recordings to PATH (.jsonl.zst), to be merged elsewhere."""
    from multihop.entries import write_recording

    async def work(session: Session) -> int:
        return write_recording(path, session.store.added())

    print(f"{path}: {in_session(work)} entries, {path.stat().st_size / 1e6:.1f} MB")


@app.command()
def merge(recordings: Annotated[list[Path], typer.Argument(exists=True, dir_okay=False)]) -> None:
    """Take the entries of RECORDINGS into this checkout's store; where two differ, the first stays and is counted."""
    from multihop.tables import Merged

    async def work(session: Session) -> Merged:
        return sum((session.store.merge(path) for path in recordings), Merged())

    print(in_session(work).said())


@app.command()
def plan(
    assume: Annotated[list[str] | None, typer.Option(help="NAME=NUMBER, an assumption of the first table")] = None,
    write: Annotated[Path | None, typer.Option(help="a page whose tables to replace, such as docs/scaling.md")] = None,
) -> None:
    """The papers at full size: calls, tokens, hours, USD and storage, at an API and on vLLM (docs/scaling.md)."""
    from multihop.scaling import plan as planning

    assumed = planning.Assumed.read(assume or [])
    if write:
        planning.write(Path("."), write, assumed)
    else:
        print(planning.tables(Path("."), assumed))
