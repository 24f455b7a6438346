"""A project folder full of invented results, for the tests of report/: every run, dataset and setting,
4 questions each, in the very formats that the stages write. ``build(tmp_path)`` makes one."""

from __future__ import annotations

import random
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import dynakrag_results
import yaml

from multihop import config, jsonl
from multihop.analysis import failures
from multihop.data import card
from multihop.evaluation import aggregate, score
from multihop.evaluation.judge import Verdict
from multihop.evaluation.support import ChunkMap
from multihop.pricing import Price, Prices
from multihop.types import Chunk, Event, Gold, Passage, Retrieved, RunRecord, Span, Usage

REPOSITORY = Path(__file__).parents[1]
MODEL = "qwen2.5-coder-1.5b-instruct-q4_k_m"
TYPES = {
    "hotpotqa": [("bridge", 2), ("bridge", 2), ("comparison", 2), ("comparison", 2)],
    "2wikimultihopqa": [("compositional", 2), ("comparison", 2), ("bridge_comparison", 4), ("inference", 2)],
    "musique": [("2hop", 2), ("3hop1", 3), ("3hop2", 3), ("4hop1", 4)],
}
PAPER_1 = ("direct", "vanilla", "cot_rag", "arag", "executionrag")
PARAMS: dict[str, Any] = {
    "profile": "demo",
    "source": "demo",
    "datasets": list(TYPES),
    "data": {d: {"questions": 4} for d in TYPES},
    "endpoints": {"embedded": {"kind": "embedded", "tool_calling": "json_action"}},
    "readers": {"small": {"endpoint": "embedded", "model": MODEL}},
    "embedders": {"minilm": {"preset": "minilm"}, "lsa": {"preset": "lsa", "dim": 64}},
    "settings": {
        "minilm": {"reader": "small", "embedder": "minilm", "label": "all-MiniLM-L6-v2"},
        "lsa": {"reader": "small", "embedder": "lsa", "label": "LSA (stand-in for Qwen3-Embedding-0.6B)"},
    },
    "judge": {"reader": "small"},
    "statistics": {"resamples": 199},
    "runs": {
        "direct": {"method": "direct", "label": "Direct"},
        "vanilla_k3": {"method": "vanilla", "label": "Vanilla RAG top-3", "k": 3},
        "vanilla_k5": {"method": "vanilla", "label": "Vanilla RAG top-5", "k": 5},
        "vanilla_k10": {"method": "vanilla", "label": "Vanilla RAG top-10", "k": 10},
        "cot_rag": {"method": "cot_rag", "label": "CoT-RAG", "k": 5},
        "arag": {"method": "arag", "label": "A-RAG", "max_loops": 6},
        "executionrag": {"method": "executionrag", "label": "ExecutionRAG", "max_loops": 6},
        "executionrag_question_only": {
            "method": "executionrag",
            "label": "ExecutionRAG: question-only register",
            "datasets": ["musique"],
            "max_loops": 6,
        },
        "executionrag_no_updates": {
            "method": "executionrag",
            "label": "ExecutionRAG: no updates",
            "datasets": ["musique"],
            "max_loops": 6,
        },
    },
}


def build(root: Path, *, seed: int = 0, price: float = 0.0, **patch: Any) -> Path:
    """Write params, expected figures, prepared data, records, scores, failures and metrics under ``root``; returns it.

    ``patch`` replaces whole top-level blocks of params (``runs=…``, ``source="local"``); ``price`` is the
    reader's in USD per million tokens.
    """
    raw = {**PARAMS, **patch}
    shutil.copytree(REPOSITORY / "expected", root / "expected", dirs_exist_ok=True)
    jsonl.write_text(root / "params.yaml", yaml.safe_dump(raw, sort_keys=False))
    params = config.parse(raw)
    rng = random.Random(seed)
    prices = Prices({r.model: Price(price, price, price) for r in params.readers.values()})
    metrics = {}
    worlds = {dataset: _world(root, dataset) for dataset in params.datasets}
    for run in params.runs:
        for dataset, setting in params.cells(run):
            gold, passages = worlds[dataset]
            records = [_record(rng, params, run, dataset, setting, g, passages, s)
                       for g in gold for s in params.seeds_of(run)]  # fmt: skip
            cell = _cell(params, prices, run, dataset, setting, gold, passages)
            rows = [_row(rng, r, cell) for r in records]
            place = Path(dataset) / setting / f"{run}.jsonl"
            wrong = failures.classify_cell(records, rows, cell.gold, cell.chunks)
            jsonl.write(root / "results/runs" / run / dataset / f"{setting}.jsonl", [r.to_json() for r in records])
            jsonl.write(root / "results/scores" / place, rows)
            jsonl.write(root / "results/failures" / place, wrong)
            metrics[dataset, setting, run] = aggregate.metrics(rows, params.readers[params.judge.reader].model)
    jsonl.write_json(root / "results/metrics.json", aggregate.nest(metrics))
    recall = {f"recall@{k}": {"mean": 0.5, "low": 0.25, "high": 0.75} for k in (10, 2, 5)}
    tools = {"dense": {"all": {"n": 4, **recall}}}
    jsonl.write_json(root / "results/retrieval.json", {d: dict.fromkeys(params.settings, tools) for d in TYPES})
    return root


def build_dynakrag(root: Path, **patch: Any) -> Path:
    """``build`` with paper 2's runs as well, a second backbone, and what training leaves."""
    build(root, **{**dynakrag_results.patch(PARAMS), **patch})
    dynakrag_results.write_trained(root)
    return root


def _world(root: Path, dataset: str) -> tuple[list[Gold], list[Passage]]:
    """Twelve invented passages and four questions, written as data/prepared/<dataset>."""
    passages = [
        Passage(f"p{i}", f"Place {i}", f"Place {i} lies east of Place {i + 1} and was founded in {1800 + i}.")
        for i in range(12)
    ]
    gold = []
    for i, (kind, hops) in enumerate(TYPES[dataset]):
        supporting = tuple(f"p{(i + j) % 12}" for j in range(hops))
        gold.append(Gold(f"{dataset}-{i}", (f"answer {i}", f"alias {i}"), supporting, kind, hops))
    folder = root / "data/prepared" / dataset
    questions = [{"id": g.id, "text": f"Which place is {g.hops} steps from Place {i}?"} for i, g in enumerate(gold)]
    jsonl.write(folder / "questions.jsonl", questions)
    jsonl.write(folder / "gold.jsonl", [asdict(g) for g in gold])
    jsonl.write(folder / "passages.jsonl", [asdict(p) for p in passages])
    jsonl.write(folder / "chunks/passages.jsonl", [asdict(c) for c in _chunks(passages)])
    jsonl.write_json(
        folder / "card.json",
        {
            "dataset": dataset,
            "evaluation": card.split_card(gold) | {"format": "invented", "selection": "all"},
            "corpus": card.corpus_card(passages),
            "corpus_hash": jsonl.file_sha256(folder / "passages.jsonl"),
            "ids_sha256": jsonl.digest([g.id for g in gold]),
            "gold_mapping": card.mapping_card(gold, passages, {"passages": _chunks(passages)}),
        },
    )
    return gold, passages


def _chunks(passages: list[Passage]) -> list[Chunk]:
    return [Chunk(p.id, p.full, (Span(p.id, 0, len(p.full)),)) for p in passages]


def _cell(params, prices, run, dataset, setting, gold, passages) -> score.Cell:
    return score.Cell(
        dataset=dataset,
        setting=setting,
        run=run,
        ids=tuple(g.id for g in gold),
        seeds=tuple(params.seeds_of(run)),
        gold={g.id: g for g in gold},
        chunks=ChunkMap(_chunks(passages)),
        reader_model=params.readers[params.settings[setting].reader].model,
        prices=prices,
    )


def _row(rng: random.Random, record: RunRecord, cell: score.Cell) -> dict[str, Any]:
    right = cell.gold[record.qid].answers[0] in record.answer
    verdict = Verdict(correct=right and rng.random() < 0.8, strict=False, reply="invented", usage=Usage(1, 90, 2))
    short = record.short if record.short is not None else record.answer.removeprefix("It is ").rstrip(".")
    return score.row(record, cell, short, Usage(), verdict)


def _record(rng, params, run, dataset, setting, gold: Gold, passages, seed: int) -> RunRecord:
    agent = params.runs[run].method in ("arag", "executionrag")
    register = params.runs[run].method == "executionrag"
    loops = rng.randint(1, 6) if agent else 1
    forced = agent and loops == 6
    found = [] if run == "direct" else rng.sample([p.id for p in passages], rng.randint(3, 8))
    right = rng.random() < 0.5
    answer = rng.choice([gold.answers[0]] if right else ["a place nobody named", "I was unable to find the place"])
    events, retrieved = _events(rng, found, loops, gold, register, forced) if agent else ([], [])
    if not agent:
        retrieved = [Retrieved(p, 1, "retrieve") for p in found]
    tokens = sum(rng.randint(20, 60) for _ in found)
    record = RunRecord(
        qid=gold.id,
        dataset=dataset,
        setting=setting,
        run=run,
        seed=seed,
        params_hash="0" * 16,
        corpus_hash="1" * 16,
        question=f"Which place is {gold.hops} steps from here?",
        answer=f"It is {answer}." if agent else answer,
        short=None if agent else answer,
        mode="free" if agent else "short",
        status="ok",
        stop_reason="forced_loops" if forced else "ready" if register else "answered",
        retrieved=tuple(retrieved),
        read=tuple(found[:2]) if agent else tuple(found),
        events=tuple(events),
        usage={"reader": Usage(loops + 1, 400 * loops, 60 * loops)}
        | ({"register": Usage(loops, 250 * loops, 80 * loops)} if register else {}),
        retrieved_tokens=tokens,
        seed_tokens=tokens // 4 if register else 0,
        retrieval_calls=loops if found else 0,
        loops=loops,
        forced=forced,
    )
    if params.runs[run].method in PAPER_1:
        return record
    name, options = params.runs[run].method, params.runs[run].options
    where = f"{dataset} {setting} {gold.id} {seed}"
    return replace(record, **dynakrag_results.trace(where, name, options, [p.id for p in passages], gold))


def _events(rng, found: list[str], loops: int, gold: Gold, register: bool, forced: bool):
    """A trace as the agent loop writes it: searches, reads, and the register's life."""
    events: list[Event] = []
    retrieved: list[Retrieved] = []
    items = [
        {"id": f"r{i + 1}", "question": f"What is step {i + 1}?", "status": "pending", "note": "",
         "passages": [], "reason": ""} for i in range(gold.hops)
    ]  # fmt: skip
    items[0]["status"] = "active"

    def snapshot(step: int, kind: str, **more: Any) -> None:
        events.append(Event(step, kind, {"items": [dict(i) for i in items], **more}))

    def search(step: int, tool: str, query: Any, ids: list[str]) -> None:
        scores = [round(rng.uniform(0.2, 0.9), 3) for _ in ids]
        events.append(
            Event(step, "retrieve", {"tool": tool, "query": query, "chunk_ids": ids, "scores": scores, "repeat": False})
        )
        known = {r.chunk_id for r in retrieved}
        retrieved.extend(Retrieved(c, step, tool) for c in ids if c not in known)

    if register:
        search(0, "seed", "Which place is it?", found[:2])
        snapshot(0, "register", source="init")
    for step in range(1, loops + 1):
        if register:
            full = rng.randint(60, 90)
            kind = "initial" if step == 1 else "delta"
            events.append(Event(step, "inject", {"inject": kind, "tokens": rng.randint(20, 60), "full_tokens": full}))
        if step == 5:
            events.append(Event(step, "nudge", {}))
        tool = rng.choice(["semantic_search", "keyword_search"])
        query = ["place", "east"] if tool == "keyword_search" else f"place east of step {step}"
        calls = [{"tool": tool, "arguments": {"query": query}}]
        events.append(Event(step, "turn", {"thought": f"look for step {step}", "calls": calls, "answer": False}))
        search(step, tool, query, rng.sample(found, min(3, len(found))))
        if step % 2 == 0:
            ids = rng.sample(found, 1)
            events.append(Event(step, "read", {"chunk_ids": ids, "new": ids, "unknown": []}))
        current = next((i for i in items if i["status"] == "active"), None)
        if register and current and rng.random() < 0.7:
            status = rng.choice(["resolved", "resolved", "retired"])
            current |= {"status": status, "passages": rng.sample(found, 1), "note": "found", "reason": "invented"}
            events.append(
                Event(step, "transition", {"id": current["id"], "from": "active", "to": status, "reason": "invented"})
            )
            following = next((i for i in items if i["status"] == "pending"), None)
            if following:
                following["status"] = "active"
            snapshot(step, "register", source="update")
    if forced:
        events.append(Event(loops, "forced", {"why": "loops"}))
    if register:
        snapshot(loops, "final_register")
    return events, retrieved
