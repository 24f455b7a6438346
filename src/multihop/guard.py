"""What may be shown and kept: no key in any text, no control character on a terminal, no formula in a table.

Passages, answers and errors come from others. They are data everywhere; here is what the last step before a person,
a file of errors or a child process does with them.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

SHORTEST = 6
"""A secret of fewer characters is a placeholder ("none", "EMPTY"); hiding it would garble ordinary text."""
HIDDEN = "[secret]"
_SECRET_NAME = re.compile(r"_(KEY|TOKEN|SECRET|PASSWORD)$", re.IGNORECASE)
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and newline: they steer a terminal
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # what turns the direction of text round
    "\u2028\u2029\ud800-\udfff]"  # line separators; surrogates, which no file can hold
)
_FORMULA = re.compile(r"[=+\-@\t\r]")
_PLAIN_NUMBER = re.compile(r"[+-]?[\d.,]+%?")
_secrets: dict[str, None] = {}


def keep_secret(value: str | None) -> None:
    """From here on ``value`` is hidden, as it stands, URL-encoded, in base64 and as JSON writes it."""
    if value and len(value) >= SHORTEST:
        forms = (value, quote(value, safe=""), base64.b64encode(value.encode()).decode(), json.dumps(value)[1:-1])
        _secrets.update(dict.fromkeys(forms))


def keep_secrets_of(address: str | None) -> None:
    """Hide what an address holds beside the place: user name and password, values of the query (but a version)."""
    try:
        parts = urlsplit(address or "")
    except ValueError:  # no address at all: whatever it is, it is not shown
        return keep_secret(address)
    login = parts.netloc.rpartition("@")[0] or (parts.netloc.partition(":")[2] if _no_port(parts.netloc) else "")
    password = login.partition(":")[2]
    for value in (login, password, *(value for name, value in parse_qsl(parts.query) if name != "api-version")):
        keep_secret(value)
        keep_secret(unquote(value))
    return None


def _no_port(netloc: str) -> bool:
    """``user:password`` without a host, as of an address typed wrongly."""
    rest = netloc.rpartition("]")[2].partition(":")[2]
    return bool(rest) and not rest.isdigit()


def keep_secrets_in(environ: Mapping[str, str]) -> None:
    """Hide what variables named as keys hold, and logins in any address (of a proxy, say)."""
    for name, value in environ.items():
        if _SECRET_NAME.search(name):
            keep_secret(value)
        elif "://" in value and "@" in value:
            keep_secrets_of(value)


def public_environment() -> dict[str, str]:
    """This process's environment without the variables that hold a secret: for children that need none."""
    return {k: v for k, v in os.environ.items() if not any(secret in v for secret in _secrets)}


def told(text: str) -> str:
    """Somebody else's words (an error, a refusal) for a record: no secret, and nothing that no file can hold."""
    for secret in _secrets:
        if secret in text:
            text = text.replace(secret, HIDDEN)
    return text.encode("utf-8", "replace").decode("utf-8")


def scrubbed(error: Exception) -> Exception:
    """``error`` with its words as ``told`` leaves them: an endpoint may quote the key that it refuses."""
    error.args = tuple(told(arg) if isinstance(arg, str) else arg for arg in error.args)
    return error


def printable(text: str) -> str:
    """``text`` for a terminal: control and direction characters as escapes (tab and newline stay)."""
    return _UNSAFE.sub(lambda m: f"\\x{ord(m[0]):02x}" if ord(m[0]) < 256 else f"\\u{ord(m[0]):04x}", text)


def cell(value: Any) -> Any:
    """A value of a CSV file: text that a spreadsheet would run as a formula gets an apostrophe before it."""
    if isinstance(value, str) and _FORMULA.match(value) and not _PLAIN_NUMBER.fullmatch(value):
        return f"'{value}"
    return value


class Screen:
    """Standard output or error, in which no secret and no control character of somebody else's text arrives.

    A carriage return at the head of a write stays: progress bars begin with it.
    """

    def __init__(self, stream: Any):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        head = "\r" if text.startswith("\r") else ""
        shown = head + told_printable(text[len(head) :])
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._stream.write(shown.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)


def told_printable(text: str) -> str:
    """``printable`` first: what ``told`` could not encode is shown as an escape."""
    return told(printable(text))
