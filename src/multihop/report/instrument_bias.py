"""The instrument's page, second half: whether intervals and tests hold, and what the paper's rules do to counts."""

from __future__ import annotations

from typing import Any

from multihop.report.frames import Table
from multihop.report.instrument import measured, shown
from multihop.report.load import Report

Row = dict[str, Any]
HABITS = {
    "abstain_missing": "abstains where evidence is missing",
    "stall": "runs out of budget",
}


def coverage(report: Report, stored: bool = True) -> Table:
    """How often a 95 % interval holds the true value."""

    def rows(found: Row) -> dict:
        out: dict[str, Row] = {}
        for r in found["coverage"]:
            inside = "" if r["in_band"] else " *"
            cell = f"{100 * r['covered']:.1f} [{100 * r['low']:.1f}, {100 * r['high']:.1f}]{inside}"
            out.setdefault(r["of"], {})[f"n = {r['n']:,}"] = cell
        return out

    found = measured(report, "repetitions", stored) or {}
    cells = found.get("coverage", [])
    note = (
        f"{_outside(cells)}"
        f"% of {found.get('repetitions', 0):,} repetitions; brackets: Wilson's 95 % interval of that share. * outside "
        f"of 93.5 to 96.5 %. Bootstrap of {found.get('resamples', 0):,} resamples, first seed "
        f"{found.get('first_seed')}, written down before the first run. A share of so many questions takes few values, "
        "so that its coverage jumps with n. "
        "All repetitions of a cell resample with the same numbers, which Wilson's interval does not count."
    )
    heading = "Do 95 % intervals hold the true value in 95 % of repetitions?"
    return shown(report, "repetitions", stored, heading, note, rows, ["interval of"])


def _outside(cells: list[Row]) -> str:
    """How many cells, and which, are outside of the band; and how those at the largest n are."""
    if not cells:
        return ""
    out = [f"{r['of']} at n = {r['n']:,} ({100 * r['covered']:.1f})" for r in cells if not r["in_band"]]
    top = max(r["n"] for r in cells)
    largest = [r["in_band"] for r in cells if r["n"] == top]
    return (
        f"Outside of 93.5 to 96.5 %: {len(out)} of {len(cells)} cells{': ' if out else ''}{', '.join(out)}. At "
        f"n = {top:,} {sum(largest)} of {len(largest)} are inside. "
    )


def levels(report: Report, stored: bool = True) -> Table:
    """How often tests reject without a difference, and with one."""

    def rows(found: Row) -> dict:
        out: dict[str, Row] = {}
        for r in found["levels"]:
            should = f"at most {100 * r['at_most']:g}" if "at_most" in r else f"about {100 * r['about']:.1f}"
            cell = f"{100 * r['rejected']:.1f} [{100 * r['low']:.1f}, {100 * r['high']:.1f}]; {should}"
            out.setdefault(r["test"], {})[f"n = {r['n']:,}"] = cell
        return out

    note = (
        "% of repetitions in which the test rejects at 0.05, Wilson's interval, and what it should be. The exact "
        "McNemar test keeps below its level by more than it must at small n. With a true difference the target is the "
        "exact power that the page on pairs of runs uses for the smallest visible difference."
    )
    heading = "Do the tests keep their level?"
    return shown(report, "repetitions", stored, heading, note, rows, ["test"])


def register_bias(report: Report, stored: bool = True) -> Table:
    """The drop in missing evidence when the register changes nothing but labels (rule 3b)."""

    def rows(found: Row) -> dict:
        out: dict[tuple[str, str], Row] = {}
        for p in found["points"]:
            if p["grid"] == "early":
                key = "resolved too early", f"{100 * p['drift']:g} %, {100 * p['rate']:g} %"
            elif p["grid"] == "dropped":
                key = "left out of the register", f"{100 * p['drift']:g} %, of these {100 * p['rate']:g} %"
            else:
                continue
            out[key] = _line(p) | {"symmetric rule": f"{p['symmetric'][0]} → {p['symmetric'][1]}"}
        return out

    found = measured(report, "bias", stored)
    note = (
        "Same searches, same passages, same answers; only one of the two methods has a register. Hidden as gave up: "
        "wrong for want of a passage, but taken by rule 2 first, alike in both. "
    )
    if found:
        paper = found["paper"]
        said = ", ".join(
            f"{100 * float(drift):g} % drift: {'beyond the grid' if rate is None else f'{100 * rate:.1f} %'}"
            for drift, rate in found["labels_alone"].items()
        )
        share = 100 * (paper["first"] - paper["second"]) / paper["first"]
        note += (
            f"The paper's drop, {paper['first']} to {paper['second']} ({share:.0f} %), comes about by labels alone "
            f"where this share of hops is resolved too early: {said}. This says what the rule can do, not what it did "
            "there."
        )
    heading = "Rule 3b: missing evidence without → with a register that changes nothing but labels."
    return shown(report, "bias", stored, heading, note, rows, ["the register's fault", "drift of hops, rate"])


def order_bias(report: Report, stored: bool = True) -> Table:
    """The drop in missing evidence when the second method only gives up more often (rules 2 before 4)."""

    def rows(found: Row) -> dict:
        return {
            (HABITS[p["grid"]], f"{100 * p['rate']:g} %"): _line(p)
            for p in found["points"]
            if p["grid"] in HABITS
        }

    note = (
        "Two methods without a register, which miss the same passages; the second abstains, or runs out of its budget, "
        "in this share of questions. Both are wrong for want of a passage equally often; what the second seems to lack "
        "less is hidden as gave up. The symmetric rule does not help here, the count 'wrong, and a gold passage "
        "unretrieved' does."
    )
    heading = "The order of rules: missing evidence of two methods that search alike; the second gives up more often."
    return shown(report, "bias", stored, heading, note, rows, ["the second method", "in"])


def _line(p: Row) -> Row:
    share = "" if p["drop_share"] is None else f", {100 * p['drop_share']:.0f} %"
    return {
        "injected: wrong for want of a passage": f"{p['injected'][0]} → {p['injected'][1]}",
        "missing evidence": f"{p['missing'][0]} → {p['missing'][1]}",
        "drop [95 %]": f"{p['drop']} [{p['low']:.0f}, {p['high']:.0f}]{share}",
        "hidden as gave up": f"{p['gave_up'][0]} → {p['gave_up'][1]}",
        "wrong, gold passage unretrieved": f"{p['wrong_and_missing'][0]} → {p['wrong_and_missing'][1]}",
        "n": f"{p['questions']:,}",
    }
