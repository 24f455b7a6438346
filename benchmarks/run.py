"""All benchmarks, or some: each part in a process of its own, then one table of all results there are.

    python benchmarks/run.py [--quick] [--out FOLDER] [PART ...]

Parts: overhead, throughput, search, replay, questions, passages, embedded. Each writes ``<part>.json`` into the folder
(default benchmarks/results), and README.md there is made anew from all of them. A part that fails leaves the others'
results and its own former one; the exit code says so. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import subprocess
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import rows

HERE = Path(__file__).resolve().parent
PARTS = ("overhead", "throughput", "search", "replay", "questions", "passages", "embedded")
TABLES = {
    "faults": "Faults: every kind of failure against its recovery",
    "kills": "Kills: a run killed at seeded points and finished by the same command",
    "ray": "Two nodes, one killed midway",
}
"""Benchmarks that count outcomes, not seconds: each writes a table of its own (``<name>.md``)."""
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def run(part: str, quick: bool, out: Path) -> bool:
    """Measure one part in a process of its own; whether it succeeded. What it prints goes to standard error."""
    command = [sys.executable, str(HERE / "run.py"), *(["--quick"] if quick else []), "--out", str(out), "--one", part]
    paths = [str(HERE.parent / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    started = time.perf_counter()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, env=env, cwd=HERE.parent).returncode == 0
    print(f"{part}: {'done' if done else 'FAILED'}, {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    return done


def measure(part: str, quick: bool, out: Path) -> None:
    """Measure ``part`` here and write its file. Raises ValueError where there is nothing, or no finite number."""
    found = importlib.import_module(part).measure(quick)
    if not found or not all(math.isfinite(row.ours) for row in found):
        raise ValueError(f"{part}: no rows, or a number that is not finite")
    result = {
        "part": part,
        "quick": quick,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": rows.machine() | {name: os.environ[name] for name in THREADS if name in os.environ},
        "rows": [asdict(row) for row in found],
    }
    write(out / f"{part}.json", json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def write(path: Path, text: str) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


# -- the table


def table(out: Path) -> str:
    """Markdown of all results in ``out``."""
    files = [out / f"{part}.json" for part in PARTS]
    results = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file()]
    lines = ["# Benchmarks", "", "Made by `python benchmarks/run.py` (or `make bench`); do not edit.", ""]
    missed = [f"{row['part']}: {row['what']}" for result in results for row in result["rows"] if row["met"] is False]
    lines += [f"Targets missed: {'; '.join(missed) if missed else 'none'}.", ""]
    lines += _machines(results)
    for result in results:
        note = ", quick form" if result["quick"] else ""
        lines += [f"## {result['part']} ({result['date']}{note})", ""]
        lines += ["| what | ours | reference | ratio | target | met | note |", "|---|--:|--:|--:|---|---|---|"]
        lines += [_line(rows.Row(**row)) for row in result["rows"]] + [""]
    for name, title in TABLES.items():
        if (out / f"{name}.md").is_file():
            lines += [f"* [{title}]({name}.md)"]
    return "\n".join(lines).rstrip() + "\n"


def _machines(results: list[dict[str, Any]]) -> list[str]:
    """Each machine once, with the parts measured on it where there are several."""
    by_machine: dict[str, list[str]] = {}
    for result in results:
        versions = ", ".join(f"{k} {v}" for k, v in result["machine"].items() if k != "processor")
        by_machine.setdefault(f"{result['machine']['processor']}; {versions}.", []).append(result["part"])
    if len(by_machine) == 1:
        return [*by_machine, ""]
    return [line for machine, parts in by_machine.items() for line in (f"{', '.join(parts)}: {machine}", "")]


def _line(row: rows.Row) -> str:
    reference = f"{figure(row.reference)} ({row.named})" if row.reference is not None else ""
    ratio = figure(row.ratio) if row.ratio is not None else ""
    met = {True: "yes", False: "**no**", None: ""}[row.met]
    cells = [row.what, f"{figure(row.ours)} {row.unit}", reference, ratio, row.target, met, row.note]
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def figure(value: float) -> str:
    """Three digits that count, and no fewer before the point."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes, and rougher")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--one", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        measure(options.one, options.quick, options.out)
        return 0
    if unknown := sorted(set(options.parts) - set(PARTS)):
        parser.error(f"unknown part {unknown[0]!r}; there are {', '.join(PARTS)}")
    failed = [part for part in options.parts or PARTS if not run(part, options.quick, options.out.resolve())]
    write(options.out / "README.md", table(options.out))
    print(f"written: {options.out / 'README.md'}" + (f"; FAILED: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
