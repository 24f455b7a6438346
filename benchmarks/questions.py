"""Memory and time of the run and score stages as the questions grow; generated questions, a simulated model.

Each size and stage has a process of its own: ``python benchmarks/questions.py run 12000 FOLDER`` prints its figures.
The model answers in the process at once: everything else is the pipeline's own code, store and records included.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from invented import Words
from rows import Row, exponent, memory_mib, peak_mib, timed

ROOT = Path(__file__).parents[1]
QUICK, FULL = (200, 2_000), (1_000, 12_000, 100_000)
PASSAGES = 500
DATASET, SETTING, RUN = "musique", "small", "vanilla"
LIMIT_MIB, LIMIT_EXPONENT = 2048.0, 1.1
FLAT = 2048.0
"""Bytes a question of resident memory that still count as flat: 12,576 questions then add 25 MB."""


SETTLED = 10_000
"""Questions from which on the bounded caches are full."""


class Model:
    """Answers with the question's last words; every second verdict is "correct"."""

    def __init__(self) -> None:
        self.asked = 0

    def reply(self, request: dict[str, Any]) -> tuple[str | None, list[tuple[str, dict[str, Any]]]]:
        self.asked += 1
        last = request["messages"][-1]["content"]
        if last.rstrip().endswith("Verdict:"):
            return ("correct" if self.asked % 2 else "incorrect"), []
        question = last.rpartition("Question: ")[2].partition("\n")[0]
        return f"The passages say so.\nAnswer: {' '.join(question.rstrip('?').split()[-4:])}", []


def prepared(root: Path, questions: int) -> None:
    """A project with ``questions`` generated questions over PASSAGES passages."""
    from multihop import jsonl

    params = {
        "profile": "questions",
        "datasets": [DATASET],
        "data": {DATASET: {}},
        "endpoints": {"simulated": {}},
        "readers": {"simulated": {"endpoint": "simulated", "model": "simulated", "max_tokens": 300}},
        "embedders": {"lsa": {"preset": "lsa", "dim": 32}},
        "settings": {SETTING: {"reader": "simulated", "embedder": "lsa"}},
        "judge": {"reader": "simulated"},
        "runs": {RUN: {"method": "vanilla", "k": 3}},
    }
    root.mkdir(parents=True, exist_ok=True)
    (root / "prompts").symlink_to(ROOT / "prompts")
    (root / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    (root / "prices.yaml").write_text(
        yaml.safe_dump({"models": {"simulated": {"input": 0, "cached": 0, "output": 0}}}), encoding="utf-8"
    )
    words, folder = Words(), root / "data/prepared" / DATASET
    made = words.passages(PASSAGES)
    jsonl.write(folder / "passages.jsonl", ({"id": f"p{i}", "title": t, "text": x} for i, (t, x) in enumerate(made)))
    full = [f"{title}\n{text}" for title, text in made]
    chunks = (
        {"id": f"p{i}", "text": text, "spans": [{"passage_id": f"p{i}", "start": 0, "end": len(text)}]}
        for i, text in enumerate(full)
    )
    jsonl.write(folder / "chunks/passages.jsonl", chunks)
    ids = [f"q{i:06}" for i in range(questions)]
    texts = words.questions(questions)
    jsonl.write(folder / "questions.jsonl", ({"id": q, "text": f"{t}?"} for q, t in zip(ids, texts, strict=True)))
    gold = ({**GOLD, "id": q, "supporting": [f"p{i % PASSAGES}"]} for i, q in enumerate(ids))
    jsonl.write(folder / "gold.jsonl", gold)


GOLD = {
    "answers": ["nobody"],
    "type": "2hop",
    "hops": 2,
    "decomposition": [],
    "evidences": [],
    "exact": True,
    "supporting_sentences": [],
    "answer_id": None,
}


def encoded(session: Any) -> None:
    """Vectors of all questions in the store: encoding is not what is measured here."""
    from multihop.data import splits
    from multihop.opening import open_index

    retriever = open_index(session, DATASET, SETTING)
    space, dim = retriever.embedder.space_of("query"), retriever.chunk_vectors.shape[1]
    rng, texts = np.random.default_rng(0), [q.text for q in splits.questions(session.prepared(DATASET))]
    for start in range(0, len(texts), 1000):
        block = texts[start : start + 1000]
        session.store.put_vectors(space, dict(zip(block, rng.standard_normal((len(block), dim)), strict=True)))


def one(stage: str, questions: int, root: Path) -> dict[str, float]:
    """A stage in this process: processor seconds, and the highest resident memory (MiB) beside the one before it."""
    from multihop import config, running, stages
    from multihop.instrument.simulate import session_of

    if stage == "run":
        prepared(root, questions)
    session = session_of(config.load(root / "params.yaml"), root, "questions", Model())
    if stage == "run":
        stages.index(session, DATASET)
        encoded(session)
    before = memory_mib()
    with timed() as spent:
        asyncio.run(running.run(session, RUN) if stage == "run" else stages.score_all(session))
    session.store.close()
    return {"seconds": spent.cpu, "peak": peak_mib(), "before": before}


def grown(stage: str, found: dict[int, dict[str, float]]) -> list[Row]:
    """The rows of a stage from its figures by number of questions."""
    sizes = sorted(found)
    low, high = found[sizes[0]], found[sizes[-1]]
    span = f"{sizes[0]:,} to {sizes[-1]:,} questions"
    seconds = exponent(sizes, [found[n]["seconds"] for n in sizes])
    memory = exponent(sizes, [found[n]["peak"] for n in sizes])
    each = (high["peak"] - low["peak"]) * 2**20 / (sizes[-1] - sizes[0])
    rate = sizes[-1] / high["seconds"]
    # Below some thousand questions it is the bounded caches (token counts, query vectors) that fill up.
    judged = stage == "run" and sizes[-1] >= SETTLED
    held = "its text, and where its record lies" if stage == "run" else "its record and score row: one cell at a time"
    small = f"<= {LIMIT_EXPONENT}"
    return [
        Row("questions", f"{stage}: time, {span}", seconds, "exponent", target=small, met=seconds <= LIMIT_EXPONENT,
            note=f"{rate:,.0f} questions/s of processor time at {sizes[-1]:,}"),
        Row("questions", f"{stage}: memory, {span}", memory, "exponent", target=small, met=memory <= LIMIT_EXPONENT),
        Row("questions", f"{stage}: memory that a question adds, {span}", each, "bytes",
            target=f"<= {FLAT:,.0f}" if judged else "", met=each <= FLAT if judged else None, note=held),
        Row("questions", f"{stage}: highest resident memory at {sizes[-1]:,}", high["peak"], "MiB",
            target=f"<= {LIMIT_MIB:,.0f}", met=high["peak"] <= LIMIT_MIB),
    ]  # fmt: skip


def measure(quick: bool) -> list[Row]:
    found: dict[str, dict[int, dict[str, float]]] = {"run": {}, "score": {}}
    with tempfile.TemporaryDirectory() as folder:
        for questions in QUICK if quick else FULL:
            for stage in found:
                command = [sys.executable, __file__, stage, str(questions), str(Path(folder) / str(questions))]
                env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
                done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
                found[stage][questions] = json.loads(done.stdout.splitlines()[-1])
    return [row for stage, of in found.items() for row in grown(stage, of)]


if __name__ == "__main__":
    if len(sys.argv) == 4:
        print(json.dumps(one(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))))
    else:
        for row in measure("--full" not in sys.argv):
            print(f"{row.what}: {row.ours:.4g} {row.unit} {row.target} {row.met} {row.note}")
