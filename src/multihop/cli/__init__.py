"""The command line. What a command does lives elsewhere; here is how it ends."""

from __future__ import annotations

import sys

import typer

from multihop.cli import byhand, stages  # noqa: F401  (their sub-commands)
from multihop.cli.app import app
from multihop.errors import MultihopError


def main() -> None:
    """Errors that a user can act on are one message and exit code 1; anything else is a traceback."""
    try:
        app(standalone_mode=False)
    except typer.Exit as e:
        sys.exit(e.exit_code)
    except MultihopError as e:
        sys.exit(_fail(str(e)))
    except BaseExceptionGroup as group:
        known, rest = group.split(MultihopError)
        if rest is not None or known is None:
            raise
        sys.exit(_fail(str(_first(known))))
    except KeyboardInterrupt:
        sys.exit(_fail("stopped; every answer so far is stored: the same command goes on"))
    except Exception as e:
        if type(e).__module__.startswith(("click", "typer")):
            sys.exit(_fail(e.format_message() if hasattr(e, "format_message") else str(e), 2))
        raise


def _first(group: BaseException) -> BaseException:
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group


def _fail(message: str, code: int = 1) -> int:
    print(f"multihop: {message}", file=sys.stderr)
    return code
