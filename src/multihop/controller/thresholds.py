"""Thresholds of the gate's three votes, chosen on the calibration questions for each way of counting them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from multihop.controller.model import DEFAULT_THRESHOLDS, NEEDED
from multihop.controller.targets import prefix_f1

GRID: tuple[tuple[float, ...], ...] = (
    (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    (0.02, 0.05, 0.1, 0.15, 0.2, 0.3),
    (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7),
)
"""Of p_continue, gain, p_premature; the defaults are among them. A gain of 0 or less is in every state: as a threshold
it would switch its vote off."""
PER_TOKEN = 0.01 / 1000
"""F1 that a control token has to be worth."""


def choose(
    rows: Sequence[Mapping[str, Any]], outputs: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> dict[str, tuple[float, float, float]]:
    """Vote rule -> thresholds with the best mean of F1 - 0.01 per 1,000 tokens at the prefix where the gate stops.

    ``rows``: states with evidence, in the order of their roll-outs; ``outputs``: p_continue, gain, p_premature of
    each, (n,). A roll-out that the gate never stops ends at its last state. Among equals the thresholds nearest to
    the defaults win, in steps of the grid. The defaults where ``rows`` is empty.
    """
    if not rows:
        return dict.fromkeys(NEEDED, DEFAULT_THRESHOLDS)
    passed = [output >= np.array(grid)[:, None] for output, grid in zip(outputs, GRID, strict=True)]
    votes = passed[0][:, None, None].astype(np.int8) + passed[1][None, :, None] + passed[2][None, None, :]
    value = np.array([prefix_f1(row) - PER_TOKEN * row["tokens"] for row in rows])
    spans = _rollouts(rows)
    found = {}
    for rule, needed in NEEDED.items():
        go_on = votes >= needed
        go_on[..., [end - 1 for _, end in spans]] = False
        utility = sum(value[start + go_on[..., start:end].argmin(axis=-1)] for start, end in spans) / len(spans)
        found[rule] = _nearest(np.round(utility, 9))
    return found


def _rollouts(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """(start, end) of each run of rows of one roll-out."""
    runs = groupby(range(len(rows)), key=lambda n: (rows[n]["seed"], rows[n]["qid"], rows[n]["rollout"]))
    return [(index[0], index[-1] + 1) for index in (list(run) for _, run in runs)]


def _nearest(utility: np.ndarray) -> tuple[float, float, float]:
    """Of the best cells the one nearest to the defaults; of those the first."""
    middle = [grid.index(default) for grid, default in zip(GRID, DEFAULT_THRESHOLDS, strict=True)]
    best = np.argwhere(utility == utility.max())
    cell = best[np.abs(best - middle).sum(axis=1).argmin()]
    return tuple(grid[n] for grid, n in zip(GRID, cell, strict=True))
