"""Recording: what a real model answered, and the vectors that decided what it was asked, as one replayable file."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from multihop import stages
from multihop.errors import DataError
from multihop.session import Session
from multihop.store import read_recording, request_key


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
    """Re-ask some recorded requests and compare. Raises DataError without a recording, ReplayMiss without a model.

    The requests are those that a replay makes now, not the recording's text of them: a recording sorts the keys, and
    the order of a schema's fields is the order in which a model writes them.
    """
    paths = sorted((session.root / session.env.recordings).glob("*.jsonl.zst"))
    rows = [row for path in paths for row in read_recording(path) if row["kind"] == "response"]
    recorded = {request_key(row["request"]): row["response"] for row in rows}
    if not recorded:
        raise DataError(f"{session.env.recordings}: no recording there")
    made = await _requests(session)
    chosen = random.Random(seed).sample(sorted(recorded.keys() & made.keys()), k=min(requests, len(made)))
    readers = {reader.model: name for name, reader in session.params.readers.items()}
    same = 0
    for number, key in enumerate(chosen, 1):
        before = recorded[key]
        now = await session.client(readers[made[key]["model"]]).ask_live(made[key], "verify")
        if (now["content"], now["tool_calls"]) == (before["content"], before["tool_calls"]):
            same += 1
        else:
            print(f"--- {number}, recorded:\n{before['content']}\n--- {number}, now:\n{now['content']}", flush=True)
    print(f"{same} of {len(chosen)} re-asked answers are identical")


async def _requests(session: Session) -> dict[str, dict]:
    """Every request that the runs of params.yaml make, by key, as they are made."""
    made: dict[str, dict] = {}
    get = session.store.get

    def seen(request: dict) -> dict | None:
        made.setdefault(request_key(request), request)
        return get(request)

    session.store.get = seen  # type: ignore[method-assign]
    try:
        for run, dataset, setting in stages.cells(session):
            await stages.record_slice(session, run, dataset, setting, sys.maxsize)
    finally:
        session.store.get = get  # type: ignore[method-assign]
    return made
