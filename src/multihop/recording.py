"""Recording: what a real model answered, and the vectors that decided what it was asked, as one replayable file."""

from __future__ import annotations

import json
import os
import platform
import random
import sys
import time
from pathlib import Path

from multihop import building, certifying, jsonl, stages, training, training_network
from multihop.entries import as_sent, read_recording, request_key
from multihop.errors import DataError
from multihop.session import Session
from multihop.types import RunRecord

SECONDS = Path("data/recordings/index_seconds.json")
"""What building took, measured while this profile's recording was made."""


async def record(session: Session, questions: int, setting: str, out: Path) -> None:
    """Ask everything that the first ``questions`` of each cell need, slice by slice, then export what was used.

    What the learned methods are trained on comes first, then the training itself and the structured methods' indexes,
    whose results decide what they ask. Run it alone: beside other load a local model slows down tenfold. Killed, it
    goes on where it was.
    """
    session.store.track()
    if session.params.training:
        for dataset, states in (await training.collect(session)).items():
            print(f"trajectories on {dataset}: {states} states", file=sys.stderr)
        await training.tune(session)
        for name in session.params.controllers:
            training.fit(session, name)
    for name in (*session.params.structures, *session.params.graphs):
        _note_seconds(session.root / SECONDS, session.params.profile, name, await building.build(session, name))
    for name in session.params.networks:
        await training_network.train(session, name)
    records: dict[tuple[str, str, str], list[RunRecord]] = {}
    for first in range(1, questions + 1):
        for run, dataset, chosen in stages.cells(session):
            if setting and chosen != setting:
                continue
            started = time.monotonic()
            records[run, dataset, chosen] = await stages.record_slice(session, run, dataset, chosen, first)
            live = sum(row["live"] for row in session.log.rows)
            session.side_log("record")
            if live:
                seconds = time.monotonic() - started
                print(
                    f"{first}/{questions} {dataset} {chosen} {run}: {live} live calls, {seconds:.0f} s", file=sys.stderr
                )
    if setting:
        print("one setting only: nothing is exported; run without --setting to write the recording")
        return
    for dataset in session.params.datasets:
        stages.index(session, dataset)
        certifying.embed_queries(session, dataset, records)
    count = session.store.export(session.root / out, keep=session.store.touched)
    print(f"{out}: {count} entries, {(session.root / out).stat().st_size / 1e6:.1f} MB")


def _note_seconds(path: Path, profile: str, name: str, built: dict[str, building.Built]) -> None:
    """Add what a build took where it really computed something; a build that was killed adds up over its parts.

    Another profile's seconds, which came along with its recording, are of other corpora: they go.
    """
    old = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    seconds = old["seconds"] if old.get("profile", profile) == profile and old else {}
    cells = seconds.setdefault(name, {})
    for cell, part in built.items():
        if part.computed:
            before = cells.get(cell, {"seconds": 0.0, "live_calls": 0})
            cells[cell] = {
                "seconds": round(before["seconds"] + part.seconds, 1),
                "live_calls": before["live_calls"] + part.live_calls,
            }
    if not cells:
        del seconds[name]
    jsonl.write_json(path, {"profile": profile, "machine": _machine(), "seconds": seconds})


def _machine() -> str:
    """This machine's processor and cores, as far as the system tells."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{model or platform.processor() or platform.machine()}, {os.cpu_count()} cores"


async def verify(session: Session, requests: int, seed: int) -> None:
    """Re-ask some recorded requests and compare. Raises DataError without a recording, ReplayMiss without a model."""
    paths = sorted((session.root / session.env.recordings).glob("*.jsonl.zst"))
    rows = [row for path in paths for row in read_recording(path) if row["kind"] == "response"]
    readers = {reader.model: name for name, reader in session.params.readers.items()}
    rows = [row for row in rows if row["request"]["model"] in readers]
    if not rows:
        raise DataError(f"{session.env.recordings}: no recording of a model of params.yaml there")
    session.begin("verify", {readers[row["request"]["model"]] for row in rows})
    rows.sort(key=lambda row: request_key(row["request"]))
    same = 0
    chosen = random.Random(seed).sample(rows, k=min(requests, len(rows)))
    for number, row in enumerate(chosen, 1):
        request, before = as_sent(row["request"]), row["response"]
        now = await session.client(readers[request["model"]]).ask_live(request, "verify")
        if (now["content"], now["tool_calls"]) == (before["content"], before["tool_calls"]):
            same += 1
        else:
            print(f"--- {number}, recorded:\n{before['content']}\n--- {number}, now:\n{now['content']}", flush=True)
    print(f"{same} of {len(chosen)} re-asked answers are identical")
