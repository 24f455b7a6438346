"""Reading a model's tool arguments: forgiving where the meaning is plain, in words where it is not."""

from __future__ import annotations

import json
import math
import unicodedata
from typing import Any

MAX_ITEMS = 100
"""Keywords or ids taken from one call."""


class BadArgument(Exception):
    """What is wrong with a call, in words for the model."""


def clean(value: Any) -> str:
    """A string without lone surrogates (a model's JSON can hold them, UTF-8 can't), trimmed."""
    return str(value).encode("utf-8", "replace").decode("utf-8").strip()


def normalise(text: str) -> str:
    """The key under which two queries are the same: NFKC, lower case, single spaces."""
    return " ".join(unicodedata.normalize("NFKC", text).lower().split())


def string(arguments: dict[str, Any], key: str, tool: str) -> str:
    """A non-blank string. Raises BadArgument."""
    value = arguments.get(key)
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, str) or not clean(value):
        raise BadArgument(f"{tool} needs {key!r}, a non-empty string")
    return clean(value)


def strings(arguments: dict[str, Any], key: str, tool: str) -> list[str]:
    """A non-empty list of non-blank strings; one string is split at commas. Raises BadArgument."""
    value = arguments.get(key)
    if isinstance(value, str):
        value = _split(value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        value = [value]
    fine = isinstance(value, list) and all(
        isinstance(item, (str, int, float)) and not isinstance(item, bool) for item in value
    )
    items = [text for item in value if (text := clean(item))] if fine else []
    if not items:
        raise BadArgument(f"{tool} needs {key!r}, a non-empty list of strings")
    if len(items) > MAX_ITEMS:
        raise BadArgument(f"{tool}: {key!r} has {len(items)} entries; at most {MAX_ITEMS} are allowed")
    return items


def _split(value: str) -> list[Any]:
    if value.strip().startswith("["):
        try:
            items = json.loads(value)
        except (ValueError, RecursionError):
            pass
        else:
            return items if isinstance(items, list) else [value]
    return [part.strip().strip("\"'") for part in value.strip().strip("[]").split(",")]


def top_k(value: Any, default: int, largest: int) -> int:
    """A number of results, clipped to 1..largest; digits in a string count, nothing means the default.

    Raises BadArgument for anything else.
    """
    if value is None or value == "":
        return default
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            value = math.nan
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise BadArgument(f"'top_k' must be a whole number from 1 to {largest}")
    return int(min(max(value, 1), largest))
