"""What a user reads where params are wrong: the place, the nearest valid key, the allowed values."""

from __future__ import annotations

import difflib
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from multihop.errors import ConfigError


def unknown(what: str, name: str, valid: Any) -> str:
    near = difflib.get_close_matches(str(name), [str(v) for v in valid], n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return f"unknown {what} {name!r}{hint} Known: {', '.join(map(str, valid))}"


def explain(error: ValidationError, model: type[BaseModel], source: str) -> ConfigError:
    """One line for each problem: where it is, what is wrong, what is allowed."""
    lines = []
    # Unknown keys first: a key that is missing is often the same one, misspelt.
    for problem in sorted(error.errors(), key=lambda p: p["type"] != "extra_forbidden"):
        where = ".".join(str(part) for part in problem["loc"] if part != "[key]") or "the file"
        if problem["type"] == "extra_forbidden":
            owner = _fields_at(model, problem["loc"][:-1])
            lines.append(f"{where}: " + unknown("key", str(problem["loc"][-1]), owner))
        elif problem["type"] == "missing":
            lines.append(f"{where}: this key is needed")
        elif problem["type"] == "value_error":
            message = problem["msg"].removeprefix("Value error, ")
            lines.append(message if problem["loc"] == () else f"{where}: {message}")
        else:
            lines.append(f"{where}: {problem['msg']} (found {str(problem.get('input'))[:60]!r})")
    return ConfigError(f"{source}: " + "\n  ".join(lines))


def _fields_at(model: Any, location: tuple[Any, ...]) -> list[str]:
    """The valid keys of the block at ``location``."""
    for part in location:
        if isinstance(model, type) and issubclass(model, BaseModel):
            model = model.model_fields[part].annotation if part in model.model_fields else None
        else:
            arguments = [a for a in get_args(model) if isinstance(a, type) and issubclass(a, BaseModel)]
            model = arguments[-1] if arguments else None
    return list(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else []
