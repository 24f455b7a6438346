"""kill -9 at seeded points of every kind of command, and the same command again: ``python benchmarks/kills.py``.

Plays tests/kill_cases.py and the slow ones here: DVC's stages and DVC itself (killed in a stage, beside it, together,
while dvc.lock is written), a disk that is full (a small tmpfs; needs root), and, beside the kills, one run twice at the
same time on one store. Writes results/kills.json and .md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent / "tests"
sys.path[:0] = [str(HERE.parent / "src"), str(TESTS)]

from kill_cases import CASES, RUN, Case, Outcome, Place, Stage, as_row, differing, two_at_once  # noqa: E402
from killing import Ended, Point  # noqa: E402
from rows import machine  # noqa: E402

from multihop import jsonl  # noqa: E402

FULL = "full disk: the store's device (tmpfs)"
TWICE = "two processes on one store"
REPRO = [sys.executable, str(TESTS / "killing.py"), "dvc", "repro"]


@dataclass(frozen=True)
class DvcCase:
    """A kill under ``dvc repro``."""

    name: str
    stage: Point | None = None
    """Where the stage's own process dies."""
    dvc: Point | None = None
    """Where DVC dies."""
    group: bool = False
    """From outside: DVC with its stage; else (no point at all) DVC alone, while its stage goes on."""
    remove: str = ""
    """A file that the user has to remove first: DVC writes its lock file in place, and refuses half of one."""


DVC_CASES = [
    DvcCase("dvc: a stage's process, in a response's INSERT", stage=Point("sql", "INTO responses", "within", 1)),
    DvcCase("dvc: a stage's process, before the records' replace", stage=Point("replace", "results/runs/", nth=1)),
    DvcCase("dvc: DVC and its stage, from outside", group=True),
    DvcCase("dvc: DVC alone; its stage goes on beside the second"),
    DvcCase("dvc: DVC, before it opens dvc.lock", dvc=Point("write", r"dvc\.lock$", "before", 1)),
    DvcCase("dvc: DVC, within dvc.lock's write (then `rm dvc.lock`)", dvc=Point("write", r"dvc\.lock$", "within", 1),
            remove="dvc.lock"),
]  # fmt: skip


def dvc_project(stage: Stage) -> Place:
    """Two stages over the small project: a run and its score."""
    place = stage.start("indexed")
    file = place.root / "params.yaml"
    params = yaml.safe_load(file.read_text(encoding="utf-8"))
    params["runs"] = {"executionrag": params["runs"]["executionrag"]}
    file.write_text(yaml.safe_dump(params, sort_keys=False), encoding="utf-8")
    multihop = f"{sys.executable} {TESTS / 'killing.py'}"
    stages = {
        "run": {"cmd": f"{multihop} {RUN}", "deps": ["params.yaml", "data/index"],
                "outs": ["results/runs/executionrag"]},
        "score": {"cmd": f"{multihop} score", "deps": ["results/runs/executionrag"],
                  "outs": ["results/scores", {"results/metrics.json": {"cache": False}}]},
    }  # fmt: skip
    (place.root / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}), encoding="utf-8")
    init = [sys.executable, "-m", "dvc", "init", "--no-scm", "--quiet"]
    subprocess.run(init, cwd=place.root, env=environment(stage, place), check=True)
    return place


def environment(stage: Stage, place: Place, **more: str) -> dict[str, str]:
    ours = {"DVC_NO_ANALYTICS": "1", "DVC_SITE_CACHE_DIR": str(stage.folder / "dvc-site")}
    paths = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    return place.environment(stage.server.url) | paths | ours | more


def play_dvc(stage: Stage, case: DvcCase) -> Outcome:
    rng = random.Random(f"{stage.seed}:{case.name}")
    whole = dvc_project(stage)
    stage.clear()
    subprocess.run(REPRO, cwd=whole.root, env=environment(stage, whole), check=True, capture_output=True)
    needed = sum(stage.clear().values())
    place = dvc_project(stage)
    given = {"KILL_POINT": case.stage, "DVC_KILL_POINT": case.dvc}
    points = {name: json.dumps(vars(point)) for name, point in given.items() if point}
    first = subprocess.Popen(
        REPRO, cwd=place.root, env=environment(stage, place, **points), stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    orphans, moment = [], "first pass"
    if not points:
        moment, orphans = _strike(stage, first, case.group, rng.randint(1, needed // 2), needed)
    said = first.communicate()[0].decode() if points else ""
    first.wait()
    before, held, intact = stage.clear(), place.stored(), place.intact()
    if case.remove:
        (place.root / case.remove).unlink()
    second = subprocess.run(REPRO, cwd=place.root, env=environment(stage, place), capture_output=True, text=True)
    while any(Path(f"/proc/{pid}").exists() for pid in orphans):
        time.sleep(0.05)
    after, differ = stage.clear(), differing(place, whole)
    problem = f"the second time: {(second.stdout + second.stderr)[-300:]}" if second.returncode else ", ".join(differ)
    if not points or case.dvc:
        problem = problem or ("" if first.returncode == -signal.SIGKILL else f"not killed: {said[-300:]}")
    elif first.returncode == 0:
        problem = problem or f"not killed: {said[-300:]}"
    equal = not differ and place.entries() == whole.entries()
    again, stored = len(set(before) & set(after)), len(set(after) & held)
    total = (sum(before.values()), sum(after.values()))
    return Outcome(case.name, moment, *total, again, stored, equal, intact and place.intact(), problem)


def _strike(
    stage: Stage, first: subprocess.Popen[bytes], group: bool, wanted: int, needed: int
) -> tuple[str, list[int]]:
    """Kill once ``wanted`` calls were answered; (when that was, processes that go on)."""
    deadline = time.monotonic() + 120
    while stage.server.answered.total() < wanted and time.monotonic() < deadline:
        time.sleep(0.001)
    children = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
    tasks = Path(f"/proc/{first.pid}/task").glob("*/children")
    children = children or [pid for task in tasks for pid in task.read_text().split()]
    if group:
        os.killpg(first.pid, signal.SIGKILL)
    else:
        os.kill(first.pid, signal.SIGKILL)
    return f"after {wanted} of {needed} answers", [] if group else [int(pid) for pid in children]


# -- a full disk


@contextmanager
def tmpfs(folder: Path, kib: int) -> Iterator[Path]:
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(folder)]
    subprocess.run(mount, check=True, capture_output=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def play_full(stage: Stage) -> Outcome | None:
    """The store on a device of its own, too small; then with room. None where no device can be mounted."""
    whole = stage.start("indexed")
    stage.clear()
    assert stage.run(RUN, whole).code == 0
    stage.clear()
    place = stage.start("indexed")
    try:
        with tmpfs(stage.folder / "small", 96) as device:
            small = replace(place, home=device)
            first: Ended = stage.run(RUN, small)
            before, held, intact = stage.clear(), small.stored(), small.intact()
            subprocess.run(["mount", "-o", "remount,size=64m", str(device)], check=True)
            second = stage.run(RUN, small)
            after, differ = stage.clear(), differing(small, whole)
            lines = first.code == 1 and "make room" in first.said and "Traceback" not in first.said
            problem = ", ".join(differ) or second.said[-300:] * (second.code != 0)
            problem = problem or ("" if lines else f"no line that says why: {first.code}, {first.said[-300:]}")
            equal = not differ and small.entries() == whole.entries()
            again, stored = len(set(before) & set(after)), len(set(after) & held)
            total = (sum(before.values()), sum(after.values()))
            return Outcome(FULL, "at 96 KiB", *total, again, stored, equal, intact and small.intact(), problem)
    except (subprocess.CalledProcessError, FileNotFoundError, PermissionError):
        return None


# -- the table


def table(rows: list[dict[str, Any]], twice: dict[str, Any], seed: int) -> str:
    done = [row for row in rows if "skipped" not in row]
    about = "; ".join(f"{name} {value}" for name, value in machine().items() if name in ("processor", "python", "dvc"))
    head = (
        f"# Kills\n\n`python benchmarks/kills.py --seed {seed}`: {_counted(done)}. {about}.\n\n"
        "Each line: the command is killed there (or the disk is full), then given again. *Asked*: calls that reached "
        "the endpoint before and after; *again*: of those, asked both times (in flight at the kill; at most two, the "
        "workers); *stored*: of those, answered and stored before, 0 or an error. *Equal*: every file of the project "
        "and every entry of the store as after an uninterrupted run. *Intact*: SQLite's integrity check, twice. "
        "*Ledger*, under a ceiling: the calls it holds in the end; none reserved, no fewer than were answered, no more "
        "than were asked or reserved at the kill.\n\n"
        "DVC writes dvc.lock in place and refuses half of one: `rm dvc.lock` (or `git checkout dvc.lock`) first; the "
        "stages then replay from the store.\n\n"
        "| where | when | asked | again | stored | equal | intact | ledger |\n|---|---|---:|---:|---:|---|---|---:|\n"
    )
    said = {True: "yes", False: "NO"}
    lines = [
        f"| {row['case']} | skipped: {row['skipped']} | | | | | | |" if "skipped" in row else
        f"| {row['case']} | {row['moment'].replace('|', ', ')} | {row['asked_before']} + {row['asked_after']} | "
        f"{row['asked_again']} | {row['stored_asked_again']} | {said[row['equal']]} | {said[row['integrity']]} | "
        f"{'' if row['charged'] is None else row['charged']} |{' ' + row['problem'] if row['problem'] else ''}"
        for row in rows
    ]  # fmt: skip
    both = (
        "\n## Two processes on one store\n\nOne run, started twice at the same time. *Equal*: both processes' records, "
        "every entry of the store, and every request that was asked, as with one undisturbed process.\n\n"
        "| requests needed | asked | by each | asked twice | entries | equal | intact |\n"
        "|---:|---:|---:|---:|---:|---|---|\n"
        f"| {twice['needed']} | {twice['asked']} | {' + '.join(map(str, twice['asked_by_each']))} | "
        f"{twice['asked_twice']} | {twice['entries']} | {said[twice['equal']]} | {said[twice['integrity']]} |\n"
    )
    return head + "\n".join(lines) + "\n" + both


def _counted(done: list[dict[str, Any]]) -> str:
    """How many ended as they should, and how."""
    good = [row for row in done if row["ok"]]
    first = Counter(row["first"] for row in good if row["first"])
    apart = "".join(f", {n} after `{command}`" for command, n in first.items())
    wrong = f"; {len(done) - len(good)} **not as it should be**" if len(good) < len(done) else ""
    return f"{len(good) - first.total()} of {len(done)} go on by the same command{apart}{wrong}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="cases whose name holds this; nothing is written then")
    options = parser.parse_args()
    chosen = [case for case in [*CASES, *DVC_CASES] if options.only in case.name]
    full, both = options.only in FULL, options.only in TWICE
    if not (chosen or full or both):
        parser.error(f"--only {options.only!r}: no case has that in its name")
    rows: list[dict[str, Any]] = []
    twice: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder), options.seed)
        try:
            for case in chosen:
                outcome = stage.play(case) if isinstance(case, Case) else play_dvc(stage, case)
                remove = f"rm {case.remove}" if isinstance(case, DvcCase) and case.remove else ""
                rows.append(as_row(outcome) | {"first": remove})
                print(jsonl.dumps(rows[-1]), flush=True)
            if full:
                outcome = play_full(stage)
                skipped = {"case": FULL, "skipped": "needs root to mount one"}
                rows.append(as_row(outcome) | {"first": ""} if outcome else skipped)
                print(jsonl.dumps(rows[-1]), flush=True)
            if both:
                twice = two_at_once(stage)
                print(jsonl.dumps(twice), flush=True)
        finally:
            stage.close()
    if not options.only:
        result = {"seed": options.seed, "machine": machine(), "rows": rows, "two_processes": twice}
        jsonl.write_json(HERE / "results/kills.json", result)
        jsonl.write_text(HERE / "results/kills.md", table(rows, twice, options.seed))
    return 0 if all(row.get("ok", True) for row in rows) and twice.get("equal", True) else 1


if __name__ == "__main__":
    if shutil.which("dvc", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}") is None:
        sys.exit("dvc is not installed: pip install -r requirements.txt")
    sys.exit(main())
