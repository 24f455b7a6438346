"""What a question costs in USD, from prices.yaml by the exact model id."""

from __future__ import annotations

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
                f"{self._source}: no price for model {model!r}; add `models: {{{model!r}: "
                f"{{input: …, cached: …, output: …}}}}` (USD per million tokens, 0 for a local model)"
            )
        return self._models[model]

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


def _price(path: Path, model: object, row: object) -> Price:
    values = {}
    for name in _FIELDS:
        value = row.get(name) if isinstance(row, dict) else None
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise ConfigError(f"{path}: models.{model}.{name} must be a number >= 0 (USD per million tokens)")
        values[name] = float(value)
    return Price(**values)
