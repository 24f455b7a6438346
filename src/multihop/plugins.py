"""Methods and structures by name: ``<package>/<name>.py`` holds a class that says ``name = "<name>"``."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from multihop import messages
from multihop.errors import ConfigError


@dataclass(frozen=True)
class Plugins:
    """One package of plug-ins; ``helpers`` are its modules that hold none."""

    what: str
    """As messages and params.yaml call it: method, structure."""
    package: str
    helpers: Collection[str]

    def names(self) -> list[str]:
        path = importlib.import_module(self.package).__path__
        return sorted(m.name for m in pkgutil.iter_modules(path) if m.name not in self.helpers)

    def find(self, name: str) -> type[Any]:
        """The class of that name. Raises ConfigError with the nearest known name."""
        if name not in self.names():
            raise ConfigError(messages.unknown(self.what, name, self.names()))
        module = importlib.import_module(f"{self.package}.{name}")
        for value in vars(module).values():
            if isinstance(value, type) and getattr(value, "name", None) == name and value.__module__ == module.__name__:
                return value
        place = f"src/{self.package.replace('.', '/')}/{name}.py"
        raise ConfigError(f"{place} defines no class with name = {name!r}")

    def create(self, name: str, options: Mapping[str, Any], where: str) -> Any:
        """An instance with its options. Raises ConfigError that names the key and the valid ones."""
        try:
            cls = self.find(name)
        except ConfigError as e:
            raise ConfigError(f"{where}.{self.what}: {e}") from e
        try:
            return cls(cls.Params.model_validate(dict(options)))
        except ValidationError as e:
            raise messages.explain(e, cls.Params, where) from e
