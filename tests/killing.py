"""Commands of ``multihop`` in processes of their own that kill themselves at a named point.

Nothing in src/ knows of it: a :class:`Point` replaces one function (SQLite's execute, open, os.replace, or any other)
in the child alone, so that the n-th pass ends in SIGKILL, or in a disk that is really full. A :class:`Zygote` imports
the package once and forks a child for each command; ``python tests/killing.py run NAME`` with the point in KILL_POINT
is the same without a zygote, for a DVC stage; ``python tests/killing.py dvc repro`` is DVC itself, with DVC_KILL_POINT.
"""

from __future__ import annotations

import atexit
import builtins
import functools
import importlib
import io
import json
import os
import re
import resource
import signal
import sqlite3
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SRC = str(Path(__file__).resolve().parents[1] / "src")
FULL_AT = 4000
"""Bytes that a file may have once the disk is full."""


@dataclass(frozen=True)
class Point:
    """Where a process ends. Passes are counted alone while ``nth`` is 0."""

    kind: str
    """sql (a statement of SQLite), write (to a file), replace (of a file by another), call (of a function), pages."""
    what: str
    """A pattern of the statement or of the path; ``module:name`` of a function."""
    moment: str = "before"
    """before, within or after; write: before the opening, within a write, or full (from the opening on)."""
    nth: int = 0
    """Of the passes, from 1 on. Kind pages: how many pages SQLite's file may have."""
    base: str = "store"
    """sql and pages: which SQLite file."""


class _Trap:
    """Counts the passes of a point and ends the process at the n-th."""

    def __init__(self, point: Point):
        self.point, self.passed = point, 0

    def pass_by(self) -> bool:
        """Whether this is the pass."""
        self.passed += 1
        return self.passed == self.point.nth

    def around(self, work: Callable[[], Any]) -> Any:
        """``work`` with death before or after it."""
        now = self.pass_by()
        if now and self.point.moment == "before":
            die()
        result = work()
        if now:
            die()
        return result


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def install(point: Point) -> _Trap:
    """Replace what ``point`` names, in this process."""
    trap = _Trap(point)
    {"sql": _sql, "pages": _sql, "write": _write, "replace": _replace, "call": _call}[point.kind](trap)
    return trap


def _sql(trap: _Trap) -> None:
    point, connect = trap.point, sqlite3.connect

    class Connection(sqlite3.Connection):
        def execute(self, sql: str, *rest: Any) -> Any:
            return self._watched(sql, functools.partial(super().execute, sql, *rest))

        def executemany(self, sql: str, *rest: Any) -> Any:
            return self._watched(sql, functools.partial(super().executemany, sql, *rest))

        def _watched(self, sql: str, work: Callable[[], Any]) -> Any:
            if not re.search(point.what, sql):
                return work()
            if point.moment != "within":
                return trap.around(work)
            if trap.pass_by():
                self.set_progress_handler(die, 4)  # at the statement's fourth instruction
            return work()

    def watched(path: Any, *args: Any, **options: Any) -> sqlite3.Connection:
        if Path(path).stem != point.base:
            return connect(path, *args, **options)
        if point.kind == "sql":
            return connect(path, *args, **{"factory": Connection} | options)
        db = connect(path, *args, **options)
        if point.nth:
            db.execute(f"PRAGMA max_page_count={point.nth}")
        return db

    sqlite3.connect = watched


def _write(trap: _Trap) -> None:
    real, point = io.open, trap.point

    def opened(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        ours = set(mode) & set("wax") and isinstance(file, str | Path) and re.search(point.what, str(file))
        if ours and point.moment == "before" and trap.pass_by():
            die()
        f = real(file, mode, *args, **options)
        if not ours or point.moment == "before":
            return f
        if point.moment == "full":
            if trap.pass_by():
                resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_AT, resource.RLIM_INFINITY))
            return f
        write = f.write

        def half(data: Any) -> int:
            if trap.pass_by():
                write(data[: len(data) // 2])
                f.flush()
                die()
            return write(data)

        f.write = half
        return f

    io.open = builtins.open = opened


def _replace(trap: _Trap) -> None:
    def watched(real: Callable[..., None], source: Any, target: Any, **options: Any) -> None:
        if not re.search(trap.point.what, str(target)):
            return real(source, target, **options)
        return trap.around(functools.partial(real, source, target, **options))

    os.replace, os.rename = functools.partial(watched, os.replace), functools.partial(watched, os.rename)


def _call(trap: _Trap) -> None:
    module, _, path = trap.point.what.partition(":")
    *owners, name = path.split(".")
    owner = functools.reduce(getattr, owners, importlib.import_module(module))
    real = getattr(owner, name)

    @functools.wraps(real)
    def watched(*args: Any, **options: Any) -> Any:
        return trap.around(functools.partial(real, *args, **options))

    setattr(owner, name, watched)


# -- one command in this process


def command(argv: list[str], point: Point | None = None, passes: str = "") -> int:
    """``multihop`` with ``argv`` (``dvc`` where that is its first word); how often the point was passed goes to the
    file ``passes``."""
    dvc = argv[:1] == ["dvc"]
    main = importlib.import_module("dvc.cli" if dvc else "multihop.cli").main
    sys.argv = argv if dvc else ["multihop", *argv]
    trap = install(point) if point else None
    try:
        code = main(argv[1:]) if dvc else main() or 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    if trap and passes:
        with open(passes, "w") as f:
            f.write(str(trap.passed))
    return code


# -- many commands, each in a child


@dataclass
class Ended:
    code: int
    """Of the process; -9: killed."""
    said: str
    passed: int


class Zygote:
    """A process that has imported the package and forks a child for each command."""

    def __init__(self, folder: Path):
        self.folder, self.count = folder, 0
        folder.mkdir(parents=True, exist_ok=True)
        env = os.environ | {"PYTHONPATH": SRC, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--zygote"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(20)

    def _ask(self, **request: Any) -> Any:
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(self, argv: list[str], cwd: Path, env: dict[str, str], point: Point | None = None) -> tuple[int, Path]:
        """(process id, what it says): a command that runs now."""
        self.count += 1
        said = self.folder / f"said-{self.count}"
        chosen = asdict(point) if point else None
        return self._ask(argv=argv, cwd=str(cwd), env=env, point=chosen, said=str(said)), said

    def wait(self, pid: int, said: Path, timeout: float = 120.0) -> Ended:
        code, passed = self._ask(wait=pid, timeout=timeout), said.with_suffix(".passes")
        text = said.read_text(encoding="utf-8", errors="replace") if said.exists() else ""
        return Ended(code, text, int(passed.read_text()) if passed.exists() else 0)

    def run(self, argv: list[str], cwd: Path, env: dict[str, str], point: Point | None = None) -> Ended:
        return self.wait(*self.start(argv, cwd, env, point))


def _zygote() -> None:
    for name in ("cli", "stages", "building", "recording", "report.render", "structures.tree", "retrieval.dense"):
        importlib.import_module(f"multihop.{name}")
    for name in ("aiohttp", "openai", "faiss", "sklearn.mixture", "sklearn.decomposition", "papermill", "nbconvert"):
        importlib.import_module(name)
    importlib.import_module("multihop.data.tokens").encoding()
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        request = json.loads(line)
        answer = _waited(request) if "wait" in request else _forked(request)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _waited(request: dict[str, Any]) -> int:
    deadline = time.monotonic() + request["timeout"]
    while not (found := os.waitpid(request["wait"], os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(request["wait"], signal.SIGKILL)
        time.sleep(0.003)
    return os.waitstatus_to_exitcode(found[1])


def _forked(request: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        for number in (1, 2):
            os.dup2(os.open(request["said"], os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        point = Point(**request["point"]) if request["point"] else None
        code = command(request["argv"], point, request["said"] + ".passes")
        atexit._run_exitfuncs()
        sys.stdout.flush(), sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    if sys.argv[1:] == ["--zygote"]:
        _zygote()
    else:
        chosen = os.environ.get("DVC_KILL_POINT" if sys.argv[1] == "dvc" else "KILL_POINT")
        sys.exit(command(sys.argv[1:], Point(**json.loads(chosen)) if chosen else None))
