"""Which controller serves which dataset, and what the tuned baselines were tuned to (paper 2, Implementation details).

What a controller learned is in the controller notebook's figures; here is what it was trained on.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from multihop.report.frames import Table, frame, note
from multihop.report.load import Report

__all__ = ["controllers", "tuned_baselines"]
NO_CARD = "not trained: no results/trained/{}/{}/card.json"
BASELINES = "baselines"


def controllers(report: Report) -> Table:
    """One row per trained controller: whose train questions it learned from, how, what it serves, who uses it."""
    rows = {}
    used = [run.trained for run in report.params.runs.values() if run.trained]
    for name in dict.fromkeys([*report.params.controllers, *used]):
        if name == BASELINES or name in report.params.networks:
            continue
        runs = [r for r, run in report.params.runs.items() if run.trained == name]
        served = {d: report.served_by(name, d) for d in report.datasets}
        for trained_on in dict.fromkeys(served.values()):
            card = report.trained.get(name, {}).get(trained_on, {}).get("card")
            serves = [report.label_dataset(d) for d, by in served.items() if by == trained_on]
            row = {"serves": ", ".join(serves)}
            row |= _card(report, card) if card else {"trained in": NO_CARD.format(name, trained_on)}
            rows[name, report.label_dataset(trained_on)] = row | {"runs": ", ".join(runs)}
    text = (
        "Which controller serves which dataset. The paper trains one per dataset with its first backbone and uses it "
        "with the others as it is; here one may serve other datasets too, and every setting but its own by transfer. "
        "Fallbacks: how often a training could not do as planned; the model card says why."
    )
    return Table(text, frame(rows, ["controller", "trained on"]), note(report))


def _card(report: Report, card: dict[str, Any]) -> dict[str, str]:
    options, trainings, features = card["options"], card["trainings"], card["features"]
    fallbacks = Counter(text.partition(":")[0] for t in trainings for text in t["fallbacks"])
    return {
        "trained in": report.label_setting(card["setting"]),
        "train questions": f"{card['questions']:,}",
        "states": f"{card['states']:,}",
        "trainings (seeds)": ", ".join(str(t["seed"]) for t in trainings),
        "λ": f"{options['lambda']:g}",
        "β": f"{options['beta']:g}",
        "sufficiency target": options["s_target"],
        "features": f"{features['count']} + {features['action_count']}, {features['hash'][:8]}",
        "fallbacks": ", ".join(f"{what}: {n}" for what, n in fallbacks.items()) or "none",
    }


def tuned_baselines(report: Report) -> Table:
    """Fixed-K's depth and Adaptive-RAG's router: chosen on train questions; and where the router sent ours."""
    rows = {}
    for dataset in report.datasets:
        trained_on = report.served_by(BASELINES, dataset)
        found = report.trained.get(BASELINES, {}).get(trained_on, {})
        depth, router = found.get("fixed_k"), found.get("router")
        rows[report.label_dataset(dataset),] = {
            "trained on": report.label_dataset(trained_on),
            "K": _depth(depth) if depth else "not tuned",
            "F1 by K, train questions": _pairs(depth["grid"]) if depth else "",
            "router's labels": _labels(router["labels"]) if router else "not trained",
            "F1 by strategy, train questions": _pairs(router.get("mean_f1", {})) if router else "",
            "train questions": str((depth or router or {}).get("questions", "")),
            "routes of the evaluation questions": _routes(report, dataset),
        }
    text = (
        "Fixed-K: the depth with the best F1 on train questions, no gold evidence. Adaptive-RAG: A no search, B one, C "
        "several; a train question's label is the cheapest strategy that answers it, and C also where none does. With "
        "labels of one class the router is a constant: Adaptive-RAG is then that strategy for every question."
    )
    return Table(text, frame(rows, ["dataset"]), note(report))


def _depth(tuned: dict[str, Any]) -> str:
    """The depth, and which others did as well."""
    best = max(tuned["grid"].values(), default=None)
    tied = [k for k, f1 in tuned["grid"].items() if f1 == best]
    return f"{tuned['k']} (tie of {', '.join(tied)}: the smallest)" if len(tied) > 1 else str(tuned["k"])


def _labels(labels: dict[str, int]) -> str:
    """How many questions have each label; says so where the router had nothing to learn."""
    seen = [s for s, n in labels.items() if n]
    return _pairs(labels) + (f" (one class: a constant router, always {seen[0]})" if len(seen) == 1 else "")


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{k}: {v:.4f}" if isinstance(v, float) else f"{k}: {v}" for k, v in values.items())


def _routes(report: Report, dataset: str) -> str:
    """How many questions Adaptive-RAG sent to each strategy, by setting."""
    parts = []
    for setting in report.settings:
        chosen = [e.data["strategy"] for r in report.records("adaptive_rag", dataset, setting)
                  for e in r.events if e.kind == "route"]  # fmt: skip
        if chosen:
            parts.append(f"{report.label_setting(setting)}: {_pairs({s: chosen.count(s) for s in 'ABC'})}")
    return "; ".join(parts) or "not run"
