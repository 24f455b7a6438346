"""What a question costs in USD, from prices.yaml by the exact model id."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from multihop.errors import ConfigError
from multihop.types import Usage

_FIELDS = ("input", "cached", "output")


@dataclass(frozen=True, slots=True)
class Price:
    """USD per million tokens."""

    input: float
    cached: float
    output: float
    batch: float = 1.0
    """Times this, where the call is one of a batch; 1: no discount."""


class Prices:
    """The price table. A model is found by its exact id: "gpt-4o-mini" is never priced as "gpt-4o"."""

    def __init__(self, models: dict[str, Price], source: str = "prices.yaml"):
        self._models = dict(models)
        self._source = source

    @staticmethod
    def load(path: Path) -> Prices:
        """Raises ConfigError for a missing file, a missing field, or a price that is no number >= 0."""
        if not path.is_file():
            raise ConfigError(f"{path}: no such file; restore it from git, every model needs a price there")
        try:
            table = yaml.safe_load(path.read_text(encoding="utf-8"))
        except yaml.YAMLError as e:
            raise ConfigError(f"{path}: not YAML ({str(e).splitlines()[0]})") from e
        models = table.get("models") if isinstance(table, dict) else None
        if not isinstance(models, dict):
            raise ConfigError(f"{path}: expected a mapping `models:` of model id to {', '.join(_FIELDS)}")
        return Prices({str(m): _price(path, m, row) for m, row in models.items()}, str(path))

    def of(self, model: str) -> Price:
        """Raises ConfigError naming the file and the key to add."""
        if model not in self._models:
            raise ConfigError(
                f"{self._source}: no price for model {model!r}; add under `models:` the line `  {_quoted(model)}: "
                "{input: …, cached: …, output: …}` with its USD per million tokens (0 for a local model)"
            )
        return self._models[model]

    def check(self, models: Mapping[str, str]) -> None:
        """Raises ConfigError for the first of ``models`` (where it is named -> its id) without a price."""
        for where, model in models.items():
            try:
                self.of(model)
            except ConfigError as e:
                raise ConfigError(f"{where}: {e}") from None

    def usd(self, usage: Usage, model: str, cached_tokens: int = 0) -> float:
        """USD of ``usage``; ``cached_tokens`` of its prompt tokens are billed at the cached price.

        Without ``cached_tokens`` this is the logical cost: the same live, replayed, cached or not.
        """
        price = self.of(model)
        cached = min(max(cached_tokens, 0), usage.prompt_tokens)
        total = (
            (usage.prompt_tokens - cached) * price.input
            + cached * price.cached
            + usage.completion_tokens * price.output
        )
        return total / 1e6


def _quoted(model: str) -> str:
    """A model id as a YAML key."""
    return model if re.fullmatch(r"[A-Za-z_][\w./-]*", model) else json.dumps(model, ensure_ascii=False)


def _price(path: Path, model: object, row: object) -> Price:
    values = {}
    for name in _FIELDS:
        value = row.get(name) if isinstance(row, dict) else None
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise ConfigError(f"{path}: models.{model}.{name} must be a number >= 0 (USD per million tokens)")
        values[name] = float(value)
    batch = row.get("batch", 1.0)
    if isinstance(batch, bool) or not isinstance(batch, int | float) or not 0 <= batch <= 1:
        raise ConfigError(f"{path}: models.{model}.batch must be a number from 0 to 1 (1: no discount)")
    if unknown := sorted(set(row) - {*_FIELDS, "batch"}):
        raise ConfigError(f"{path}: models.{model}.{unknown[0]}: known are {', '.join(_FIELDS)} and batch")
    return Price(**values, batch=float(batch))
