"""What every part of the benchmark shares: a row of the table, processor time, memory, growth, the machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

PACKAGES = (
    "openai", "aiohttp", "faiss-cpu", "rank-bm25", "bm25s", "dvc", "xllamacpp", "sentence-transformers", "numpy",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One line of the table: a figure of ours beside a reference measured in the same run."""

    part: str
    what: str
    ours: float
    unit: str
    reference: float | None = None
    named: str = ""
    """What the reference is."""
    target: str = ""
    """As text, such as "ratio <= 3"; empty for a figure without one."""
    met: bool | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Ours over the reference."""
        return self.ours / self.reference if self.reference else None


@dataclass
class Spent:
    """Seconds of a ``with timed()`` block: this process's processor time, and the clock's."""

    cpu: float = 0.0
    wall: float = 0.0


@contextmanager
def timed() -> Iterator[Spent]:
    spent = Spent()
    cpu, wall = time.process_time(), time.perf_counter()
    try:
        yield spent
    finally:
        spent.cpu, spent.wall = time.process_time() - cpu, time.perf_counter() - wall


def memory_mib() -> float:
    """Resident memory of this process now (Linux), else its highest so far."""
    statm = Path("/proc/self/statm")
    if statm.is_file():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    return peak_mib()


def peak_mib() -> float:
    """The highest resident memory of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / 2**20 if platform.system() == "Darwin" else used / 2**10


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The b of values ~ a * sizes ** b, by least squares on logarithms (sizes and values above 0)."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def machine() -> dict[str, str]:
    """Processor, cores, memory, Python and the packages measured against, with their versions."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    found = {"processor": f"{model or platform.machine()}, {os.cpu_count()} logical cores, {pages:.0f} GiB"}
    found["python"] = platform.python_version()
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
