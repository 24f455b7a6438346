"""The whole instrument: a simulated run compared with its truth, repetitions, grids of bias; as plain data."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from multihop import jsonl
from multihop.blocks import Faults, Instrument
from multihop.errors import MultihopError
from multihop.instrument import bias, certified, recovery, repetitions, simulate

FOLDER = "results/instrument"
PARTS = ("recovery", "repetitions", "bias")
FULL = {
    "questions": 1000,
    "repetitions": 1000,
    "sizes": [20, 50, 100, 200, 500, 1000],
    "resamples": 1999,
    "grid_questions": 1000,
    "scale_questions": 300,
}
"""Sizes at which the rates are recovered within what is asked of them (docs); the demo's are smaller."""
OPTIONS = {"executionrag": {"seed_evidence": False}}
"""Without the seed retrieval both methods search alike, so that what differs between them is the register alone."""
Measured = dict[str, dict[str, Any]]


async def recover(project: Path, used: Instrument) -> dict[str, Any]:
    """A simulated run in a temporary folder, and how far its faults were recovered."""
    bootstrap = {"seed": used.seed, "resamples": used.resamples}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "project"
        simulation = await simulate.simulate(project, root, used.questions, used.faults, used.seed, OPTIONS)
        compared = recovery.compare(simulation, used.faults, **bootstrap)
        compared["certificates"] = certified.compare(simulation, used.faults)
    return {"seed": used.seed, "faults": used.faults.model_dump(mode="json"), **compared}


async def recover_grid(project: Path, used: Instrument) -> list[dict[str, Any]]:
    """Smaller simulated runs, all faults times each of the scales: methods' agreement and rates."""
    points = []
    for scale in used.scales:
        faults = scaled(used.faults, scale)
        point = await recover(project, used.model_copy(update={"questions": used.scale_questions, "faults": faults}))
        agree = {method: found["agree"] for method, found in point["methods"].items()}
        points.append({"scale": scale, "questions": point["questions"], "agree": agree, "rates": point["rates"]})
    return points


def scaled(faults: Faults, scale: float) -> Faults:
    """All rates times ``scale``, at most 1; the share of drifts that are dropped stays as it is."""
    rates = {k: min(1.0, scale * v) for k, v in faults.model_dump().items() if k != "dropped"}
    return faults.model_copy(update=rates)


async def measure(project: Path, used: Instrument) -> Measured:
    """Everything, by PARTS; the same for the same params, whatever the machine."""
    options = {"seed": used.seed, "resamples": used.resamples}
    return {
        "recovery": {**await recover(project, used), "grid": await recover_grid(project, used)},
        "repetitions": repetitions.repeat(used.repetitions, used.sizes, used.shares, **options),
        "bias": _bias(used),
    }


def _bias(used: Instrument) -> dict[str, Any]:
    points = bias.grids(used.grid_questions, seed=used.seed, resamples=used.resamples)
    return {"paper": bias.PAPER, "points": points, "labels_alone": bias.labels_alone(points)}


def again(project: Path, used: Instrument, out: Path) -> Measured:
    """The parts of ``out`` with what needs no simulated run made anew: the grids of bias, and what is expected of the
    rates of hops not asked for, from the draws. Raises MultihopError where ``out`` is damaged or of other params."""
    stored = jsonl.read_json(out, "run without --again", ["params", *PARTS])
    found, params = stored["recovery"], used.model_dump(mode="json")
    if other := [key for key in sorted(params) if stored["params"].get(key) != params[key]]:
        raise MultihopError(f"{out}: made with another {other[0]} than these params; run without --again")
    with tempfile.TemporaryDirectory() as folder:
        cases, hidden = simulate.draws(project, Path(folder) / "project", used.questions, used.faults, used.seed)
    unasked, hops = certified.drawn_unasked(cases, set(hidden))
    made = found["certificates"]
    rates = [row for row in made["set_rates"] if "method" not in row]
    for method, fates in made["fates"].items():
        rates.append({"method": method} | certified.unasked_rate(used.faults, fates["counts"], unasked, hops))
    restated = {**found, "certificates": {**made, "set_rates": rates}}
    return {"recovery": restated, "repetitions": stored["repetitions"], "bias": _bias(used)}


def sized(block: Instrument, questions: int | None, repetitions: int | None, full: bool) -> Instrument:
    """params.yaml's block; ``full``: with FULL's sizes; numbers of the command line come last."""
    given = {"questions": questions, "repetitions": repetitions}
    given = {key: value for key, value in given.items() if value is not None}
    return block.model_copy(update=(FULL if full else {}) | given)


def write(root: Path, measured: Measured, used: Instrument, out: Path | None = None) -> None:
    """results/instrument/, one file a part; or all in the one file ``out``, with the params used."""
    if out is None:
        for part in PARTS:
            jsonl.write_json(root / FOLDER / f"{part}.json", measured[part])
    else:
        jsonl.write_json(out, {"params": used.model_dump(mode="json"), **measured})


def said(measured: Measured) -> str:
    """A line or two for the terminal."""
    recovery, repetitions = measured["recovery"], measured["repetitions"]
    lines = [
        f"{method}: {found['agree']} of {recovery['questions']} questions recovered as what happened"
        for method, found in recovery["methods"].items()
    ]
    rates = [*recovery["set_rates"], *recovery["certificates"]["set_rates"]]
    worst = max(abs(r["points"]) for r in recovery["rates"] if r["exact"])
    lines.append(f"realised rates: at most {worst:.2f} points off; set rates: {sum(r['within'] for r in rates)} of "
                 f"{len(rates)} within 3 standard errors")  # fmt: skip
    inside = sum(row["in_band"] for row in repetitions["coverage"])
    lines.append(f"95 % intervals: {inside} of {len(repetitions['coverage'])} cells cover in 93.5 to 96.5 %")
    return "\n".join(lines)
