"""What `make repro` says at its end: what ran, with which model and how many questions, and where to look."""

from __future__ import annotations

import json
from pathlib import Path

from multihop import config, jsonl

LEGEND = (
    "Means over questions, 0 to 1. EM, F1: of the short answer; Contain: the gold answer is part of the answer; LLM,",
    "rule: judged right by a model, by a rule; recall: share of a question's gold passages that the run retrieved.",
)


def summary(root: Path) -> str:
    """A short table of the main runs. Raises DataError where nothing was scored yet."""
    params = config.load(root / "params.yaml")
    metrics = jsonl.read_json(root / "results/metrics.json", "run `make repro` (or `dvc repro`) first")
    lines = [
        f"profile {params.profile}, source {params.source}: judge {params.readers[params.judge.reader].model}",
        *LEGEND,
        f"{'dataset':<17}{'setting':<10}{'run':<28}{'n_ok/n':>7}{'EM':>6}{'F1':>6}{'Contain':>9}{'LLM':>6}{'rule':>6}{'recall':>8}",
    ]
    for dataset, settings in metrics.items():
        for setting, runs in settings.items():
            for run, m in runs.items():
                numbers = [m[k] for k in ("em", "f1", "contain", "llm_acc", "rule_acc", "support_recall")]
                widths = (6, 6, 9, 6, 6, 8)
                shown = "".join(
                    f"{'-' if v is None else f'{v:.2f}':>{w}}" for v, w in zip(numbers, widths, strict=True)
                )
                answered = f"{m['n_ok']}/{m['n']}"
                lines.append(f"{dataset:<17}{setting:<10}{run:<28}{answered:>7}{shown}")
    if params.source == "demo":
        lines.append(
            "A generated world, a 1.5B reader, few questions: it shows a working pipeline, not what the papers claim."
        )
    lines += _coverage(root / "results/coverage.json")
    lines.append(
        f"Read: {root / 'results/notebooks'}/*.html, {root / 'figures'}/*.png, {root / 'results/coverage.json'}"
    )
    return "\n".join(lines)


def _coverage(path: Path) -> list[str]:
    """How much of each paper has numbers of ours; nothing before the coverage stage."""
    papers = json.loads(path.read_text(encoding="utf-8")).get("papers", {}) if path.is_file() else {}
    return [
        f"{part['title']}: {part['summary']['run']:,} of {part['summary']['cells']:,} cells of its "
        f"{part['summary']['items']} tables and figures have numbers"
        for part in papers.values()
    ]
