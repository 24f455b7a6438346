"""What changes no result (keys, addresses, workers, paths): environment variables, read once."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multihop import messages
from multihop.errors import ConfigError

CEILINGS: dict[str, tuple[str, type]] = {
    "MULTIHOP_MAX_USD": ("usd", float),
    "MULTIHOP_MAX_CALLS": ("calls", int),
    "MULTIHOP_MAX_TOKENS": ("tokens", int),
    "MULTIHOP_MAX_RUN_USD": ("usd", float),
    "MULTIHOP_MAX_RUN_CALLS": ("calls", int),
    "MULTIHOP_MAX_RUN_TOKENS": ("tokens", int),
}
"""Ceiling -> (what it counts, its type): of all that a MULTIHOP_HOME spent, or (``_RUN_``) of one stage."""


@dataclass(frozen=True)
class Environment:
    """What changes no result: read from environment variables once, at the command line."""

    live: str
    """MULTIHOP_LIVE: never (replay only), auto (replay, else a model that is there), always (no recording)."""
    home: Path
    """MULTIHOP_HOME: store, models and side logs (default .multihop; git-ignored)."""
    recordings: Path
    workers: int | None
    """MULTIHOP_WORKERS: questions in flight; default 1 for the embedded model, 64 for servers."""
    timeout_s: float
    """MULTIHOP_TIMEOUT_S: seconds until an attempt at a model call is given up; default 600."""
    data_dir: Path | None
    """MULTIHOP_DATA_DIR: folder of benchmark files for ``source: local``."""
    ceilings: Mapping[str, float]
    """Those of ``CEILINGS`` that are set, by their variable: no live call begins whose reservation would pass one."""

    @staticmethod
    def read(environ: dict[str, str] | None = None) -> Environment:
        """Raises ConfigError for a value that can't be."""
        env = dict(os.environ if environ is None else environ)
        live = env.get("MULTIHOP_LIVE") or "auto"
        if live not in ("never", "auto", "always"):
            raise ConfigError(f"MULTIHOP_LIVE={live!r}: allowed are never, auto, always")

        for name in env:  # a ceiling that is misspelt is none
            if name.startswith("MULTIHOP_") and "_MAX" in name and name not in CEILINGS:
                raise ConfigError(messages.unknown("ceiling", name, CEILINGS))

        def number(name: str, kind: type) -> Any:
            if not env.get(name):
                return None
            try:
                value = kind(env[name])
            except ValueError:
                whole = " without a fraction" if kind is int else ""
                raise ConfigError(f"{name}={env[name]!r}: expected a number{whole}") from None
            if not 0 < value < math.inf:  # nan too
                raise ConfigError(f"{name}={env[name]!r}: expected a number above 0")
            return value

        folder = env.get("MULTIHOP_DATA_DIR")
        return Environment(
            live=live,
            home=Path(env.get("MULTIHOP_HOME") or ".multihop"),
            recordings=Path(env.get("MULTIHOP_RECORDINGS") or "data/recordings"),
            workers=number("MULTIHOP_WORKERS", int),
            timeout_s=number("MULTIHOP_TIMEOUT_S", float) or 600.0,
            data_dir=Path(folder) if folder else None,
            ceilings={name: value for name, (_, kind) in CEILINGS.items() if (value := number(name, kind))},
        )
