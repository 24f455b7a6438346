"""Results made to measure for the tests of the ledger: any number of questions, right and wrong as one likes, in a
project whose setting is, or is not, the paper's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import report_fixture
import yaml

from multihop import jsonl
from multihop.report.load import Report

MODEL = report_fixture.MODEL
SAMPLES = 499
SCORE = {
    "seed": 0, "judge_unparsed": False, "status": "ok", "stop_reason": "answered", "forced": False, "mode": "free",
    "type": "2hop", "hops": 2, "gold_exact": True, "support_total": 2, "support_unmapped": 0, "answer": "Dorvik",
}  # fmt: skip
FAILURE = {
    "seed": 0, "type": "2hop", "hops": 2, "gold_exact": True, "forced": False, "category": "missing_evidence",
    "category_symmetric": "missing_evidence", "reason": "missing", "wrong_and_missing": True, "register_closed": None,
    "premature_resolutions": 0,
}  # fmt: skip


def project(root: Path, claims: Sequence[dict[str, Any]], questions: int, *, reader: str = MODEL) -> Path:
    """A folder with params, the paper's figures, and these claims; ``reader`` and ``questions``: the paper's own."""
    names = ("arag", "executionrag", "vanilla_k5")
    runs = {n: report_fixture.PARAMS["runs"][n] for n in names}
    statistics = {"resamples": SAMPLES}
    report_fixture.build(root, runs=runs, source="local", statistics=statistics)
    path = root / "expected/executionrag.yaml"
    raw = yaml.safe_load(path.read_text())
    raw["own"] |= {"judge": MODEL, "limits": [], "questions": dict.fromkeys(report_fixture.TYPES, questions)}
    for role in raw["own"]["roles"].values():
        role["reader"] = reader
    path.write_text(yaml.safe_dump(raw))
    (root / "expected/claims.yaml").write_text(yaml.safe_dump({"controls": {}, "claims": list(claims)}))
    for dataset in report_fixture.TYPES:
        for setting in report_fixture.PARAMS["settings"]:
            for run in names:
                cell(root, run, [True] * questions, dataset=dataset, setting=setting)
    return root


def cell(
    root: Path,
    run: str,
    right: Sequence[bool],
    *,
    dataset: str = "musique",
    setting: str = "minilm",
    failure: dict[str, Any] | None = None,
    rows: Sequence[dict[str, Any]] | None = None,
    first: int = 0,
) -> None:
    """Scores and failures of one cell: question i is right or not; ``rows``: more columns of each; ``failure``: of each
    wrong answer's row; ``first``: the number of the first question's id."""
    scores, failures = [], []
    for i, ok in enumerate(right):
        own = rows[i] if rows else {}
        value = float(ok)
        same = dict.fromkeys(("llm_acc", "rule_acc", "contain", "em", "f1", "support_recall"), value)
        row = {**SCORE, "qid": f"q{first + i:05}", "run": run, "dataset": dataset, "setting": setting, **same}
        row |= {"retrieved_tokens": 100, "retrieval_calls": 3, "total_tokens": 500, "support_found": 2 * ok} | own
        scores.append(row)
        grouped = {"qid": row["qid"], "type": row["type"], "hops": row["hops"]}
        for judge, column in (("llm", "llm_acc"), ("rule", "rule_acc")):
            if row[column] == 0:
                failures.append({**FAILURE, **grouped, "judge": judge, **(failure or {})})
    place = f"{dataset}/{setting}/{run}.jsonl"
    jsonl.write(root / "results/scores" / place, scores)
    jsonl.write(root / "results/failures" / place, failures)


def claim(test: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A claim about the matched pair on MuSiQue, unless ``more`` says otherwise."""
    return {
        "id": "invented",
        "paper": "executionrag",
        "place": "§0",
        "says": "An invented claim.",
        "contradicted_by": "Its opposite.",
        "datasets": ["musique"],
        "settings": ["main"],
        **({"test": test} if test else {}),
        **more,
    }


def only(root: Path) -> dict[str, Any]:
    """What the ledger says of the project's one claim."""
    from multihop.report import claims

    (row,) = claims.claims(Report(root))["papers"]["executionrag"]["claims"]
    return row


def rewrite(root: Path, *claims: dict[str, Any]) -> None:
    (root / "expected/claims.yaml").write_text(yaml.safe_dump({"controls": {}, "claims": list(claims)}))
