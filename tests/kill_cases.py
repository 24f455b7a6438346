"""The kills: where a process dies, and what must hold when the same command is given again.

tests/test_kills.py plays the quick ones, ``python benchmarks/kills.py`` all of them.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import sqlite3
import sys
import time
from collections import Counter
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import nbformat
from killing import SRC, Ended, Point, Zygote
from project_fixture import URL_ENV, make_project, params_for
from scripted_server import ScriptedServer, body_hash

from multihop import jsonl
from multihop.entries import as_sent
from multihop.store import Store

WORKERS = 2
RUN, RECORDS = "run executionrag", r"results/runs/executionrag/"
MERGED = r"INTO (responses|kept|vectors)"
TREE = {"tree": {"structure": "tree", "settings": ["small"]}}


@dataclass(frozen=True)
class Case:
    """One kill. ``point`` None: from outside, at a seeded moment."""

    name: str
    command: str
    point: Point | None = None
    start: str = "indexed"
    """What is there: bare (prepared data), indexed, answered (two runs and their store), recorded (a recording)."""
    dies: bool = True
    """False: the disk is full, and the command ends by itself with a line that says so."""
    ceiling: bool = False
    """Under a ceiling that is far away, so that each call is reserved and settled; the ledger's sums are checked."""


CASES = [
    Case("store: before a response's INSERT", RUN, Point("sql", "INTO responses")),
    Case("store: in the middle of a response's INSERT", RUN, Point("sql", "INTO responses", "within")),
    Case("store: a response is stored, not used yet", RUN, Point("sql", "INTO responses", "after")),
    Case("store: before a vector's BEGIN", RUN, Point("sql", "^BEGIN")),
    Case("store: vectors, between INSERT and COMMIT", RUN, Point("sql", "INTO vectors", "after")),
    Case("store: vectors are committed, not used yet", RUN, Point("sql", "^COMMIT", "after")),
    Case("spending: before its COMMIT", RUN, Point("sql", "^COMMIT", base="spending")),
    Case("ceiling: in a reservation, before its COMMIT", RUN, Point("sql", "INTO reserved", "after", base="spending"),
         ceiling=True),
    Case("ceiling: in a settlement, before its COMMIT", RUN,
         Point("sql", "DELETE FROM reserved", "after", base="spending"), ceiling=True),
    Case("ceiling: reserved or settled, nothing done with it yet", RUN,
         Point("sql", "^COMMIT", "after", base="spending"), ceiling=True),
    Case("run: between two records", RUN, Point("call", "multihop.spool:Progress.step", "after")),
    Case("run: after a record, before it is kept", RUN, Point("call", "multihop.spool:Spool.add")),
    Case("run: within the writing of records", RUN, Point("write", RECORDS, "within")),
    Case("run: before the records' replace", RUN, Point("replace", RECORDS)),
    Case("run: after the records' replace", RUN, Point("replace", RECORDS, "after")),
    Case("build: values, between INSERT and COMMIT", "build tree", Point("sql", "INTO kept", "after")),
    Case("build: before a summary's INSERT", "build tree", Point("sql", "INTO responses")),
    Case("build: between the files of a structure", "build tree", Point("write", "data/structures/", "within")),
    Case("build: before the facts' replace", "build tree", Point("replace", "results/structures/")),
    Case("index: vectors, in the middle of an INSERT", "index musique", Point("sql", "INTO vectors", "within"), "bare"),
    Case("index: between the .npy files", "index musique", Point("call", "numpy:save", "after"), "bare"),
    Case("index: an old index, between the .npy files", "index musique", Point("call", "numpy:save", "after")),
    Case("index: before meta.json's replace", "index musique", Point("replace", "meta.json"), "bare"),
    Case("merge: before an entry's INSERT", "merge given.jsonl.zst", Point("sql", MERGED), "recorded"),
    Case("merge: in the middle of an INSERT", "merge given.jsonl.zst", Point("sql", MERGED, "within"), "recorded"),
    Case("record: within the recording's write", "record --questions 2 --out out.jsonl.zst",
         Point("write", r"out\.jsonl", "within"), "answered"),
    Case("record: before the recording's replace", "record --questions 2 --out out.jsonl.zst",
         Point("replace", r"out\.jsonl"), "answered"),
    Case("score: in the middle of a verdict's INSERT", "score", Point("sql", "INTO responses", "within"), "answered"),
    Case("score: between scores and failures", "score", Point("replace", "results/failures/"), "answered"),
    Case("score: before metrics.json's replace", "score", Point("replace", "metrics.json"), "answered"),
    Case("render: within a notebook's write", "render tiny", Point("write", "results/notebooks", "within"), "answered"),
    Case("render: between notebook and page", "render tiny", Point("replace", r"tiny\.html"), "answered"),
    Case("full disk: SQLite", RUN, Point("pages", ""), dies=False),
    Case("full disk: the records' file", RUN, Point("write", RECORDS, "full"), dies=False),
    *[Case(f"from outside, {n}", RUN) for n in (1, 2, 3)],
]  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """One row of the table."""

    case: str
    moment: str
    asked_before: int
    """Calls that reached the endpoint until the process ended, and from the second start on."""
    asked_after: int
    asked_again: int
    """Of the calls asked before and after: those in flight when the process ended, whose answers were lost."""
    stored_asked_again: int
    """Those whose answer was stored: none may be."""
    equal: bool
    """Every file of the project, and every entry of the store, as after an uninterrupted run."""
    integrity: bool
    """``PRAGMA integrity_check`` after the kill and at the end."""
    problem: str = ""
    charged: int | None = None
    """Under a ceiling: the calls in the ledger at the end."""

    @property
    def ok(self) -> bool:
        in_flight = self.asked_again <= WORKERS and not self.stored_asked_again
        return self.equal and self.integrity and in_flight and not self.problem


@dataclass
class Place:
    """A project with a store of its own."""

    root: Path
    home: Path

    def environment(self, url: str, **more: str) -> dict[str, str]:
        kept = {key: os.environ[key] for key in ("PATH", "HOME", "TMPDIR") if key in os.environ}
        ours = {"MULTIHOP_HOME": str(self.home), URL_ENV: url, "MULTIHOP_WORKERS": str(WORKERS)}
        return kept | ours | {"PYTHONPATH": SRC, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"} | more

    def files(self) -> dict[str, bytes]:
        """Every file of the project but DVC's own and a clock's."""
        found = {str(p.relative_to(self.root)): p for p in self.root.rglob("*") if p.is_file()}
        others = re.compile(r"\.dvc/|data/recordings/index_seconds\.json$")
        return {name: path.read_bytes() for name, path in found.items() if not others.match(name)}

    def intact(self) -> bool:
        """Whether SQLite finds nothing wrong in the store and in the ledger of spending."""
        found = []
        for path in self.home.glob("*.sqlite"):
            with closing(sqlite3.connect(path)) as db:
                found += db.execute("PRAGMA integrity_check").fetchall()
        return all(line == ("ok",) for line in found)

    def entries(self) -> list[dict[str, Any]]:
        store = Store(self.home / "store.sqlite")
        try:
            return list(store.rows())
        finally:
            store.close()

    def ledger(self) -> tuple[int, int]:
        """(calls spent, reservations left), read past the ledger, whose opening would sweep."""
        with closing(sqlite3.connect(self.home / "spending.sqlite")) as db:
            [(calls,)] = db.execute("SELECT total(calls) FROM spent")
            [(left,)] = db.execute("SELECT count(*) FROM reserved")
        return int(calls), left

    def stored(self) -> set[str]:
        """Hashes of the request bodies whose answers are stored."""
        return {asked_as(row["request"]) for row in self.entries() if row["kind"] == "response"}


def differing(place: Place, whole: Place) -> list[str]:
    """Names of files that are not the same in both projects."""
    files, expected = place.files(), whole.files()
    return sorted(name for name in {*files, *expected} if files.get(name) != expected.get(name))


def asked_as(request: dict[str, Any]) -> str:
    """The hash of the body that the client sends for a stored request."""
    request = as_sent(request)
    body = {k: v for k, v in request.items() if k != "sample"} | {"seed": request["sample"]}
    return body_hash(json.loads(json.dumps(body)))


class Stage:
    """The projects that kills begin with, the server they ask, and the zygote that runs their commands."""

    def __init__(self, folder: Path, seed: int = 0):
        self.folder, self.seed, self.count = folder, seed, 0
        self.zygote = Zygote(folder / "said")
        self.server = ScriptedServer().__enter__()
        self._starts: dict[str, Place] = {}

    def close(self) -> None:
        self.zygote.close()
        self.server.__exit__()

    def run(self, command: str, place: Place, point: Point | None = None, **environ: str) -> Ended:
        return self.zygote.run(command.split(), place.root, place.environment(self.server.url, **environ), point)

    def start(self, name: str) -> Place:
        """A fresh copy of a project."""
        if name not in self._starts:
            self._starts[name] = self._made(name)
        self.count += 1
        made, to = self._starts[name], self.folder / f"case-{self.count}"
        shutil.copytree(made.root, to / "project", symlinks=True)
        shutil.copytree(made.home, to / "home")
        return Place(to / "project", to / "home")

    def _made(self, name: str) -> Place:
        place = Place(self.folder / name / "project", self.folder / name / "home")
        place.home.mkdir(parents=True)
        make_project(place.root, **{"source": "demo", "structures": TREE, "notebooks": ["tiny"]})
        (place.root / "notebooks").mkdir()
        cells = [nbformat.v4.new_code_cell("import json\nprint(len(json.load(open('results/params/all.json'))))")]
        for number, cell in enumerate(cells):
            cell.id = f"cell{number}"
        nbformat.write(nbformat.v4.new_notebook(cells=cells), place.root / "notebooks/tiny.ipynb")
        if name == "bare":
            shutil.rmtree(place.root / "data/index")
        if name in ("answered", "recorded"):
            runs = params_for()["runs"]
            wanted = [f"run {run}" for run in (runs if name == "answered" else ["executionrag"])]
            for command in ["resolve", *wanted]:
                ended = self.run(command, place)
                assert ended.code == 0, ended.said
        if name == "recorded":
            store = Store(place.home / "store.sqlite")
            store.export(place.root / "given.jsonl.zst")
            store.close()
            shutil.rmtree(place.home)
            place.home.mkdir()
        return place

    def clear(self) -> Counter[str]:
        """What was asked since the last call."""
        asked = Counter(self.server.counts)
        self.server.counts.clear(), self.server.bodies.clear(), self.server.answered.clear()
        return asked

    def play(self, case: Case) -> Outcome:
        """An uninterrupted run, a killed one, the same command again; compared."""
        rng = random.Random(f"{self.seed}:{case.name}")
        environ = {"MULTIHOP_MAX_CALLS": "100000"} if case.ceiling else {}
        whole = self.start(case.start)
        self.clear()
        began = time.monotonic()
        ended = self.run(case.command, whole, case.point, **environ)
        seconds, needed = time.monotonic() - began, sum(self.clear().values())
        assert ended.code == 0, ended.said
        place = self.start(case.start)
        if case.point is None:
            first, moment = self._from_outside(case, place, rng.uniform(0.05, 0.9), seconds, needed)
        else:
            first, moment = self._at_point(case, place, case.point, whole, ended.passed, rng, environ)
        answered = self.server.answered.total()
        before, held, intact = self.clear(), place.stored(), place.intact()
        second = self.run(case.command, place, **environ)
        answered += self.server.answered.total()
        after = self.clear()
        differ = differing(place, whole)
        problem = _problem(case, first, second) or ", ".join(differ)
        charged = None
        if case.ceiling:
            charged, left = place.ledger()
            # What was reserved at the kill counts as spent, whether or not it had left the machine.
            if left or not answered <= charged <= before.total() + after.total() + WORKERS:
                problem = problem or f"the ledger has {charged} calls for {answered} answers, and {left} reservations"
        again = set(before) & set(after)
        return Outcome(
            case.name,
            moment,
            sum(before.values()),
            sum(after.values()),
            len(again),
            len(set(after) & held),
            not differ and place.entries() == whole.entries(),
            intact and place.intact(),
            problem,
            charged,
        )

    def _at_point(
        self,
        case: Case,
        place: Place,
        point: Point,
        whole: Place,
        passes: int,
        rng: random.Random,
        environ: dict[str, str],
    ) -> tuple[Ended, str]:
        if point.kind == "pages":
            empty, full = _pages(place), _pages(whole)
            nth, moment = rng.randint(empty + 1, full - 1), "page {} of " + str(full)
        else:
            assert passes, f"{case.name}: {case.command} does not pass there"
            nth, moment = rng.randint(1, passes), "pass {} of " + str(passes)
        return self.run(case.command, place, replace(point, nth=nth), **environ), moment.format(nth)

    def _from_outside(self, case: Case, place: Place, share: float, seconds: float, needed: int) -> tuple[Ended, str]:
        """SIGKILL once ``share`` of the calls was answered, and a moment more."""
        wanted = max(1, int(share * needed))
        pid, said = self.zygote.start(case.command.split(), place.root, place.environment(self.server.url))
        deadline = time.monotonic() + 60
        while self.server.answered.total() < wanted and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(share * seconds / needed)
        os.kill(pid, signal.SIGKILL)
        return self.zygote.wait(pid, said), f"after {wanted} of {needed} answers"


def two_at_once(stage: Stage) -> dict[str, Any]:
    """One run twice at the same time on one store: what was asked, and whether all is as after one undisturbed run.

    The first has one question in flight and has begun, the second three: neither just follows the other.
    """
    alone = stage.start("indexed")
    stage.server.delay = 0.02
    stage.clear()
    single = stage.run(RUN, alone)
    needed = stage.clear()
    places = [stage.start("indexed"), stage.start("indexed")]
    shared = [Place(place.root, places[0].home) for place in places]
    started = []
    for place, workers in zip(shared, "13", strict=True):
        environ = place.environment(stage.server.url, MULTIHOP_WORKERS=workers)
        started.append(stage.zygote.start(RUN.split(), place.root, environ))
        deadline = time.monotonic() + 60
        while not stage.server.bodies and time.monotonic() < deadline:
            time.sleep(0.005)
    ended = [stage.zygote.wait(*process) for process in started]
    stage.server.delay = 0.0
    asked, entries = stage.clear(), shared[0].entries()
    return {
        "codes": [e.code for e in (single, *ended)],
        "needed": needed.total(),
        "asked": asked.total(),
        "asked_twice": sum(n > 1 for n in asked.values()),
        "asked_by_each": [int(e.said.split(" live calls")[0].rsplit(" ", 1)[-1]) if not e.code else 0 for e in ended],
        "entries": len(entries),
        "equal": asked == needed
        and entries == alone.entries()
        and all(differing(place, alone) == [] for place in shared),
        "integrity": shared[0].intact(),
    }


def _pages(place: Place) -> int:
    """Of the store's file; three tables and their indexes where there is none yet."""
    with closing(sqlite3.connect(place.home / "store.sqlite")) as db:
        return max(db.execute("PRAGMA page_count").fetchone()[0], 7)


def _problem(case: Case, first: Ended, second: Ended) -> str:
    if second.code != 0:
        return f"the second time: {second.said[-300:]}"
    if case.dies and first.code != -signal.SIGKILL:
        return f"the process was not killed, but ended with {first.code}: {first.said[-300:]}"
    if not case.dies and not (first.code == 1 and "make room" in first.said and "Traceback" not in first.said):
        return f"no line that says why: {first.code}, {first.said[-300:]}"
    return ""


def as_row(outcome: Outcome) -> dict[str, Any]:
    return asdict(outcome) | {"ok": outcome.ok}


if __name__ == "__main__":  # one kill by hand: python tests/kill_cases.py FOLDER PART-OF-THE-NAME
    stage = Stage(Path(sys.argv[1]))
    for chosen in CASES:
        if sys.argv[2] in chosen.name:
            started = time.monotonic()
            result = stage.play(chosen)
            print(jsonl.dumps(as_row(result)), f"{time.monotonic() - started:.1f} s", flush=True)
    stage.close()
