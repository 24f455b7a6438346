"""Batched search at the size of a benchmark's corpus beside one query at a time, the vectors given, in the same run:
milliseconds of processor time a query.

    python benchmarks/certificates.py [passages] [queries] [one_at_a_time]
    python benchmarks/certificates.py --project <folder> <dataset> [one_at_a_time]

By default 10,000 invented passages of about 90 words, 4,000 queries in batches, 100 of them one at a time; with
--project the corpus and the probes (T0 to T3) of a project whose index is there, under its first certified index. Both
sides rank for k = 10 with all six tools, on one thread each where OPENBLAS_NUM_THREADS and OMP_NUM_THREADS say so. The
rankings are compared; a difference ends the script. The Retriever has no search for keyword_sentences and
bm25_sentences: there a plain loop over its parts stands for it, and a second total leaves the two out.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from multihop import certifying, config
from multihop.environment import Environment
from multihop.opening import open_certificate_index
from multihop.retrieval.batch import TOOLS, BatchSearch
from multihop.retrieval.index import Retriever
from multihop.retrieval.lexical import BM25, KeywordIndex
from multihop.retrieval.sentences import split_chunks
from multihop.session import Session
from multihop.store import Store
from multihop.types import Chunk

K, DIM = 10, 384


class Made:
    """Vectors drawn beforehand, by text."""

    space = "made"

    def __init__(self) -> None:
        self.vectors: dict[str, np.ndarray] = {}

    def space_of(self, kind: str) -> str:
        return self.space

    def encode(self, texts, kind):
        raise AssertionError("all vectors are given")

    truncated = encode


def halves(n: int, rng: np.random.Generator) -> np.ndarray:
    vectors = rng.standard_normal((n, DIM), dtype=np.float32)
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype("<f2")


def words(rng: np.random.Generator, vocabulary: np.ndarray, count: int) -> list[str]:
    """By Zipf's law, as in any language."""
    return vocabulary[np.minimum(rng.zipf(1.15, count) - 1, len(vocabulary) - 1)].tolist()


def corpus(passages: int, rng: np.random.Generator) -> tuple[list[Chunk], np.ndarray]:
    letters = np.array(list("aeioulnrstdmk"))
    vocabulary = np.array(["".join(rng.choice(letters, rng.integers(2, 11))) for _ in range(60_000)])
    made = []
    for i in range(passages):
        sentences = [" ".join(words(rng, vocabulary, int(rng.integers(10, 30)))).capitalize() for _ in range(4)]
        made.append(Chunk(f"p{i}", f"{' '.join(words(rng, vocabulary, 2)).title()}\n{'. '.join(sentences)}.", ()))
    return made, vocabulary


def sentence_search(index, owner: list[int], query, k: int) -> list[int]:
    """The two rankings over sentences that the Retriever lacks, one query at a time."""
    return list(dict.fromkeys(owner[i] for i, _ in index.search(query, len(owner))))[:k]


def main(passages: int = 10_000, queries: int = 4_000, one_at_a_time: int = 100) -> None:
    rng = np.random.default_rng(0)
    chunks, vocabulary = corpus(passages, rng)
    sentences = split_chunks(chunks)
    asked = [" ".join(words(rng, vocabulary, int(rng.integers(4, 20)))) for _ in range(queries)]
    rare = vocabulary[100:]  # keywords are no function words
    lists = [[*rng.choice(rare, 5).tolist(), " ".join(rng.choice(rare, 2))] for _ in asked]
    with tempfile.TemporaryDirectory() as folder:
        embedder, store = Made(), Store(Path(folder) / "store.sqlite")
        store.put_vectors("made", dict(zip(asked, halves(queries, rng), strict=True)))
        vectors = halves(len(chunks), rng), halves(len(sentences), rng)
        retriever = Retriever(chunks, sentences, *vectors, embedder, store, allow=False)
        compare(retriever, asked, lists, one_at_a_time)
        store.close()


def compare(retriever: Retriever, asked: list[str], lists: list[list[str]], few: int) -> None:
    batch = BatchSearch(retriever)
    texts = [text for c in retriever.chunks for text, _ in retriever.sentences_of(c.id)]
    owner = [i for i, c in enumerate(retriever.chunks) for _ in retriever.sentences_of(c.id)]
    place = {c.id: i for i, c in enumerate(retriever.chunks)}
    keyword_index, bm25_index = KeywordIndex(texts), BM25(texts)
    vectors = batch.vectors(asked)
    for query in asked[:few]:  # the Retriever keeps them, so that they are given to it, too
        retriever.query_vector(query)

    def ids(hits) -> list[int]:
        return [place[hit.chunk_id] for hit in hits]

    single: dict[str, Callable[[int], list[int]]] = {
        "dense": lambda i: ids(retriever.dense(asked[i], K)),
        "semantic_search": lambda i: ids(retriever.semantic_search(asked[i], K)),
        "keyword_search": lambda i: ids(retriever.keyword_search(lists[i], K)),
        "keyword_sentences": lambda i: sentence_search(keyword_index, owner, lists[i], K),
        "bm25": lambda i: ids(retriever.bm25(asked[i], K)),
        "bm25_sentences": lambda i: sentence_search(bm25_index, owner, asked[i], K),
    }
    many = {
        "dense": lambda: batch.dense(vectors, K),
        "semantic_search": lambda: batch.semantic_search(vectors, K),
        "keyword_search": lambda: batch.keywords(lists, K),
        "keyword_sentences": lambda: batch.keywords(lists, K, sentences=True),
        "bm25": lambda: batch.bm25(asked, K),
        "bm25_sentences": lambda: batch.bm25(asked, K, sentences=True),
    }
    print(f"{len(retriever.chunks)} passages, {len(texts)} sentences, {len(asked)} queries, {few} one at a time")
    seconds: dict[str, tuple[float, float]] = {}
    for tool in TOOLS:
        batch.search(tool, asked[:1], lists[:1], K)  # indexes are built at the first query, on both sides
        single[tool](0)
        started = time.process_time()
        found = many[tool]()
        ours = (time.process_time() - started) / len(asked)
        started = time.process_time()
        expected = [single[tool](i) for i in range(few)]
        theirs = (time.process_time() - started) / few
        wrong = [i for i in range(few) if found.at(i, K) != expected[i]]
        if wrong:
            sys.exit(f"{tool}: query {wrong[0]}: {found.at(wrong[0], K)}, one at a time {expected[wrong[0]]}")
        seconds[tool] = ours, theirs
        print(f"{tool}: {1000 * ours:.3f} ms a query, one at a time {1000 * theirs:.2f} ms: {theirs / ours:.0f} times")
    for label, tools in {"all six": TOOLS, "the Retriever's own four": TOOLS[:3] + TOOLS[4:5]}.items():
        ours, theirs = (sum(seconds[tool][i] for tool in tools) for i in (0, 1))
        print(f"{label}: {1000 * ours:.3f} ms, {1000 * theirs:.2f} ms: {theirs / ours:.1f} times")


def project(folder: str, dataset: str, few: int = 100) -> None:
    """The same over a project's own corpus and probes."""
    root = Path(folder)
    session = Session(config.load(root / "params.yaml"), Environment.read(), root)
    world = certifying.World.open(session, dataset)
    targets = world.targets({}, session.params.certificates.keywords)
    asked = list(dict.fromkeys(probe.query for target in targets for probe in target.probes))
    name = next(iter(session.params.certificate_indexes()))
    retriever = open_certificate_index(session, dataset, name)
    started = time.process_time()
    BatchSearch(retriever).vectors([query.text for query in asked])
    spent = time.process_time() - started
    print(f"{dataset}, {name}: {len(targets)} gold passages; vectors of the probes: {spent:.0f} s")
    order = np.random.default_rng(0).permutation(len(asked))
    chosen = [asked[i] for i in order]
    compare(retriever, [q.text for q in chosen], [list(q.keywords) for q in chosen], few)
    session.store.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--project"]:
        project(*sys.argv[2:4], *(int(a) for a in sys.argv[4:]))
    else:
        main(*(int(a) for a in sys.argv[1:]))
