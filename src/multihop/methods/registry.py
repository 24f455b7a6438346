"""Methods by name: ``src/multihop/methods/<name>.py`` holds a class ``<Name>`` that says ``name = "<name>"``."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from pydantic import ValidationError

from multihop import config, messages
from multihop.errors import ConfigError
from multihop.methods.base import Method

_NOT_METHODS = {"base", "registry", "agent", "register", "reading", "documents", "operations", "bridge", "chain"}


def names() -> list[str]:
    import multihop.methods as package

    return sorted(m.name for m in pkgutil.iter_modules(package.__path__) if m.name not in _NOT_METHODS)


def find(name: str) -> type[Any]:
    """The method's class. Raises ConfigError with the nearest known name."""
    if name not in names():
        raise ConfigError(messages.unknown("method", name, names()))
    module = importlib.import_module(f"multihop.methods.{name}")
    for value in vars(module).values():
        if isinstance(value, type) and getattr(value, "name", None) == name and value.__module__ == module.__name__:
            return value
    raise ConfigError(f"src/multihop/methods/{name}.py defines no class with name = {name!r}")


def create(run: config.RunConfig, where: str) -> Method:
    """The run's method with its overrides. Raises ConfigError that names the key and the valid ones."""
    try:
        cls = find(run.method)
    except ConfigError as e:
        raise ConfigError(f"{where}.method: {e}") from e
    try:
        return cls(cls.Params.model_validate(run.options))
    except ValidationError as e:
        raise messages.explain(e, cls.Params, where) from e


def check(params: config.Params) -> None:
    """Every run of params.yaml can be made: called before anything runs."""
    problems = []
    for name, run in params.runs.items():
        where = f"params.yaml: {params.where(name)}"
        try:
            method = create(run, where)
        except ConfigError as e:
            problems.append(str(e))
            continue
        kind = getattr(method, "trained_as", None)
        given = run.trained and ("baselines" if run.trained == "baselines" else "controller")
        if kind and given != kind:
            wanted = "baselines" if kind == "baselines" else "a name of controllers"
            problems.append(f"{where}.trained: method {run.method} needs {wanted}, found {run.trained!r}")
        elif given and not kind:
            problems.append(f"{where}: method {run.method} is not trained; it belongs under runs, without `trained`")
    if problems:
        raise ConfigError("\n".join(problems))
