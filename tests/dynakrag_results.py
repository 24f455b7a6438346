"""Paper 2's part of the invented project of report_fixture.py: its params, run records with the controller's events,
and what training leaves behind."""

from __future__ import annotations

import copy
import functools
import random
from pathlib import Path
from typing import Any

from trajectory_fixture import NAMES, trajectories

from multihop import jsonl
from multihop.controller.fitting import FitOptions, fit
from multihop.controller.state import NAMES as OPERATIONS
from multihop.controller.state import RETRIEVING
from multihop.types import Event, Gold, Retrieved, Usage

SECOND_MODEL = "smollm2-135m-instruct-q4_1"
BOTH = ["minilm", "smollm"]
VARIANTS: dict[str, dict[str, Any]] = {
    "uniform_valid": {"ranking": "uniform"},
    "fixed_horizon": {"continuation": "fixed"},
    "uniform_fixed": {"ranking": "uniform", "continuation": "fixed"},
    "joint_uniform": {"ranking": "uniform", "continuation": "none"},
    "no_sufficiency": {"sufficiency": False},
    "no_compression": {"compression": False},
    **{f"cap{n}": {"retrieval_cap": n} for n in (1, 2, 3, 4)},
    "lambda0": {"trained": "controller_lambda0"},
    "lambda05": {"trained": "controller_lambda05"},
    "vote_any": {"vote": "any"},
    "vote_all": {"vote": "all"},
}
CONTROLLERS = {"controller": 1.0, "controller_lambda05": 0.5, "controller_lambda0": 0.0}
LABELS = {
    "ircot": "IRCoT", "s2g_rag": "S2G-RAG", "corag_s3": "CoRAG-s3", "par2_rag": "PAR2-RAG", "crag": "CRAG",
    "self_ask": "Self-Ask+Search",
}  # fmt: skip


def patch(params: dict[str, Any]) -> dict[str, Any]:
    """The blocks of params.yaml that differ from paper 1's: a second backbone, the baselines, what is learned."""
    raw = copy.deepcopy(params)
    minilm = {"settings": ["minilm"], "max_tokens": 64}
    baselines = {name: {"method": name.removesuffix("_s3"), "label": label, **minilm} for name, label in LABELS.items()}
    baselines["ircot"]["settings"] = BOTH
    dynakrag = {"method": "dynakrag", "trained": "controller", **minilm}
    return {
        "readers": raw["readers"] | {"tiny": {"endpoint": "embedded", "model": SECOND_MODEL}},
        "settings": raw["settings"]
        | {"smollm": {"reader": "tiny", "embedder": "minilm", "label": "SmolLM2-135M (second backbone)"}},
        "runs": {n: r | {"settings": ["minilm", "lsa"]} for n, r in raw["runs"].items()} | baselines,
        "training": {
            "main": {
                "setting": "minilm",
                "datasets": dict.fromkeys(raw["datasets"], "musique"),
                "questions": 12,
                "tuning_questions": 12,
                "seeds": [0, 1],
            }
        },
        "controllers": {name: {"lam": lam} for name, lam in CONTROLLERS.items()},
        "learned_runs": {
            "fixed_k": {"method": "fixed_k", "label": "Fixed-K", "trained": "baselines", "settings": BOTH},
            "adaptive_rag": {"method": "adaptive_rag", "label": "Adaptive-RAG", "trained": "baselines", **minilm},
            "dynakrag": dynakrag | {"label": "DynaKRAG", "settings": BOTH},
            **{f"dynakrag_{name}": dynakrag | options for name, options in VARIANTS.items()},
        },
    }


# -- run records


def trace(seed: str, name: str, options: dict[str, Any], passages: list[str], gold: Gold) -> dict[str, Any]:
    """Fields of a run record of one of paper 2's methods. The same seed, method and options give the same record, and
    the answer depends on what was done: a cap that binds nothing changes nothing."""
    rng = random.Random(f"{seed} {name}")
    found = rng.sample(passages, len(passages))
    done = _controlled(rng, options, found, gold) if name == "dynakrag" else _baseline(rng, name, found)
    right = random.Random(f"{seed} {done['events']}").random() < 0.5
    answer = gold.answers[0] if right else "a place nobody named"
    return {**done, "answer": answer, "short": answer}


def _baseline(rng: random.Random, name: str, found: list[str]) -> dict[str, Any]:
    searches = 1 if name in ("fixed_k", "crag") else rng.randint(1, 4)
    events, docs = [], []
    if name == "adaptive_rag":
        strategy = rng.choice("ABC")
        searches = {"A": 0, "B": 1, "C": searches}[strategy]
        events.append(Event(0, "route", {"strategy": strategy, "by": "trained"}))
    for step in range(1, searches + 1):
        new = found[3 * (step - 1) : 3 * step]
        docs += new
        events.append(_retrieve(step, "retrieve", new))
    usage = {"reader": Usage(1, 60 + 45 * len(docs), 12)}
    if name != "fixed_k":
        usage["control"] = Usage(searches, 90 * searches, 15 * searches)
    return _record(events, docs, usage, searches, "answered", 45 * len(docs), compressed=False)


def _controlled(rng: random.Random, options: dict[str, Any], found: list[str], gold: Gold) -> dict[str, Any]:
    """At most four control steps as methods/dynakrag.py records them; deeper questions take more."""
    events: list[Event] = []
    docs: list[str] = []
    cap, checks = options.get("retrieval_cap", 4), 0
    stop, gap = "steps", False
    for step in range(1, 5):
        valid = [a for a in ("R", "W", "B") if len(docs) < 12 and _searches(events) < cap and (a == "R" or docs)]
        valid += ["G"] if gap and _searches(events) < cap else []
        valid += ["S", "T"] if docs and options.get("sufficiency", True) else ["T"] if docs else []
        others = [a for a in valid if a != "T"]
        go_on = bool(others) and (rng.random() < 0.5 + 0.1 * gold.hops or options.get("continuation") == "fixed")
        chosen = "R" if step == 1 else rng.choice(others) if go_on else "T"
        gate = {"continue": go_on, "p_continue": 0.6, "gain": 0.1, "p_premature": 0.2, "votes": 2 if go_on else 1}
        learned = options.get("ranking", "learned") == "learned" and go_on and len(others) > 1
        data = {
            "valid": valid,
            "candidates": valid,
            "gate": gate if step > 1 and options.get("continuation", "learned") == "learned" else None,
            "scores": {a: round(rng.random(), 6) for a in others} if learned else None,
            "chosen": chosen,
        }
        events.append(Event(step, "decision", data))
        if chosen == "T":
            stop = "stop"
            break
        operation: dict[str, Any] = {"action": chosen, "new": [], "failed": False}
        if chosen in RETRIEVING:
            new = found[len(docs) : len(docs) + 3]
            docs += new
            gap = gap and chosen != "G"
            events.append(_retrieve(step, OPERATIONS[chosen], new))
            operation |= {"new": new, "failed": not new, "query": f"place east of step {step}"}
        elif chosen == "S":
            checks += 1
            gap = rng.random() < 0.6
            operation |= {"sufficient": not gap, "missing": "the place further east" if gap else ""}
        events.append(Event(step, "operation", operation))
        if chosen == "S" and not gap:
            stop = "sufficient"
            break
    evidence = 45 * len(docs)
    compressed = options.get("compression", True)
    if compressed:
        kept = [[c, 0] for c in docs[:2]]
        after = 25 * len(kept)
        data = {"kept": kept, "fallback": False, "before_tokens": evidence, "after_tokens": after}
        events.append(Event(step, "compress", data))
        evidence = after
    usage = {"reader": Usage(1, 60 + evidence, 12)}
    if checks + compressed:
        usage["control"] = Usage(checks + compressed, 120 * (checks + compressed), 20 * (checks + compressed))
    return _record(events, docs, usage, step, stop, evidence, compressed)


def _searches(events: list[Event]) -> int:
    return sum(e.kind == "retrieve" for e in events)


def _retrieve(step: int, tool: str, new: list[str]) -> Event:
    data = {"tool": tool, "query": "place east", "chunk_ids": new, "scores": [0.5] * len(new), "repeat": False}
    return Event(step, "retrieve", data)


def _record(events, docs, usage, loops, stop, evidence, compressed) -> dict[str, Any]:
    tokens = usage["reader"].prompt_tokens
    final = Event(loops, "final", {"evidence_tokens": evidence, "prompt_tokens": tokens, "compressed": compressed})
    first: dict[str, Retrieved] = {}
    for event in events:
        if event.kind == "retrieve":
            for chunk_id in event.data["chunk_ids"]:
                first.setdefault(chunk_id, Retrieved(chunk_id, event.step, event.data["tool"]))
    return {
        "stop_reason": stop,
        "retrieved": tuple(first.values()),
        "read": tuple(docs),
        "cited": tuple(docs),
        "events": (*events, final),
        "usage": usage,
        "retrieved_tokens": 45 * len(docs),
        "retrieval_calls": _searches(events),
        "loops": loops,
    }


# -- what training leaves


def write_trained(root: Path) -> None:
    """A small controller's real card for each of three controllers, and the tuned baselines, all trained on musique."""
    for name, lam in CONTROLLERS.items():
        facts = {"controller": name, "trained_on": "musique", "setting": "minilm", "profile": "demo"}
        jsonl.write_json(root / f"results/trained/{name}/musique/card.json", facts | _card(lam))
    folder = root / "results/trained/baselines/musique"
    labels = {"A": 3, "B": 4, "C": 5}
    jsonl.write_json(
        folder / "router.json",
        {"strategies": list(labels), "coefficients": [[0.0]] * 3, "intercepts": [0.0] * 3, "labels": labels,
         "mean_f1": {"A": 0.2, "B": 0.4, "C": 0.5}, "questions": 12, "trained_on": "musique"},
    )  # fmt: skip
    grid = {"3": 0.4, "5": 0.5, "8": 0.45}
    jsonl.write_json(folder / "fixed_k.json", {"k": 5, "grid": grid, "questions": 12, "trained_on": "musique"})


@functools.cache
def _card(lam: float) -> dict[str, Any]:
    options = FitOptions(lam=lam, trees=4, oof_trees=3)
    return fit(trajectories(12), options, seeds=(0, 1), names=NAMES)[1]
