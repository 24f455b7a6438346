"""What of a run's missing gold passages the retriever could have returned: results/reachability.json, read."""

from __future__ import annotations

from typing import Any

from multihop.report.load import Report
from multihop.report.reachability import SUMMARY, summary
from multihop.report.values import Measured, absent, run_of

WIDER = "wider"
"""Key of ``Report.memo``: how much wider intervals should be than those of the file, which has one confidence only."""


def share(report: Report, dataset: str, role: str, system: str, group: str, fate: str) -> Measured:
    """The share, in percent, of the gold passages that a system missed which have this ``fate``; n counts the questions
    that miss one. Raises DataError for a damaged file."""
    run = run_of(report, system)
    if missing := absent(report, dataset, role, run):
        return Measured(missing=missing)
    setting = report.setting(role)
    if not (report.root / SUMMARY).is_file():
        return Measured(missing=f"{SUMMARY} is not there yet (multihop certify)")
    entry: dict[str, Any] = summary(report)["runs"].get(dataset, {}).get(run, {}).get(setting) or {}
    if not entry or entry["excuse"]:
        return Measured(missing=f"{run} on {dataset} / {setting}: {entry.get('excuse') or f'not in {SUMMARY} yet'}")
    found = entry["groups"].get(group, {fate: {"share": None}})
    if found[fate]["share"] is None:
        return Measured(remark="undefined: no gold passage is missing")
    value, low, high = (100 * found[fate][key] for key in ("share", "low", "high"))
    wider = report.memo.get(WIDER, 1.0)
    low, high = max(0.0, value - wider * (value - low)), min(100.0, value + wider * (high - value))
    return Measured(value, low, high, found["with_missing"])
