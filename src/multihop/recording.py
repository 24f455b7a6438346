"""Recording: what a real model answered, and the vectors that decided what it was asked, as one replayable file."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from multihop import stages
from multihop.errors import DataError
from multihop.session import Session
from multihop.store import read_recording


async def record(session: Session, questions: int, setting: str, out: Path) -> None:
    """Ask everything that the first ``questions`` of each cell need, slice by slice, then export what was used.

    Run it alone: beside other load a local model slows down tenfold. Killed, it goes on where it was.
    """
    for first in range(1, questions + 1):
        for run, dataset, chosen in stages.cells(session):
            if setting and chosen != setting:
                continue
            started = time.monotonic()
            await stages.record_slice(session, run, dataset, chosen, first)
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
    count = session.store.export(session.root / out, keep=session.store.touched)
    print(f"{out}: {count} entries, {(session.root / out).stat().st_size / 1e6:.1f} MB")


async def verify(session: Session, requests: int, seed: int) -> None:
    """Re-ask some recorded requests and compare. Raises DataError without a recording, ReplayMiss without a model."""
    paths = sorted((session.root / session.env.recordings).glob("*.jsonl.zst"))
    rows = [row for path in paths for row in read_recording(path) if row["kind"] == "response"]
    if not rows:
        raise DataError(f"{session.env.recordings}: no recording there")
    rows = random.Random(seed).sample(rows, min(requests, len(rows)))
    readers = {session.params.readers[name].model: name for name in session.params.readers}
    same = asked = 0
    for number, row in enumerate(rows, 1):
        model = row["request"]["model"]
        if model not in readers:
            print(f"{number}: model {model} is in no reader of params.yaml, left out")
            continue
        client = session.client(readers[model])
        response = await client.ask_live(row["request"], "verify")
        asked += 1
        if (response["content"], response["tool_calls"]) == (row["response"]["content"], row["response"]["tool_calls"]):
            same += 1
            continue
        print(f"--- {number}, recorded:\n{row['response']['content']}\n--- {number}, now:\n{response['content']}")
    print(f"{same} of {asked} re-asked answers are identical")
