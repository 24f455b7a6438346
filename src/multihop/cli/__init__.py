"""The command line. What a command does lives elsewhere; here is how it ends."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout

from multihop import guard
from multihop.cli import byhand, scale, stages  # noqa: F401  (their sub-commands)
from multihop.cli.app import app
from multihop.errors import MultihopError, first_error
from multihop.llm.client import NoAnswer

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""No room: on the device, within a quota, within a limit on the size of files."""

_INTERRUPTED = 130
_STOPPED = "stopped; every answer so far is stored: the same command goes on"


def main() -> None:
    """Errors that a user can act on are one message and exit code 1; anything else is a traceback.

    What is printed, whoever wrote it, holds no key and steers no terminal.
    """
    guard.keep_secrets_in(os.environ)
    with redirect_stdout(guard.Screen(sys.stdout)), redirect_stderr(guard.Screen(sys.stderr)):
        try:
            _run()
        except Exception:
            traceback.print_exc()
            sys.exit(1)


def _run() -> None:
    try:
        # Typer catches Ctrl-C and what ends a command early, and returns the exit code; commands return nothing.
        if code := app(standalone_mode=False):
            sys.exit(_fail(_STOPPED, code) if code == _INTERRUPTED else code)
    except (MultihopError, NoAnswer) as e:
        sys.exit(_fail(_said(e)))
    except BaseExceptionGroup as group:
        known, rest = group.split((MultihopError, NoAnswer))
        if rest is not None or known is None:
            raise
        sys.exit(_fail(_said(first_error(known))))
    except OSError as e:
        if e.errno not in FULL:
            raise
        where = f"{e.filename}: " if e.filename else ""
        sys.exit(_fail(f"{where}{e.strerror}; make room on the disk and run the same command again"))
    except Exception as e:
        if type(e).__module__.startswith(("click", "typer")):
            sys.exit(_fail(e.format_message() if hasattr(e, "format_message") else str(e), 2))
        raise


def _said(error: BaseException) -> str:
    again = "; what is answered is stored: run the same command again" if isinstance(error, NoAnswer) else ""
    return f"{error}{again}"


def _fail(message: str, code: int = 1) -> int:
    print(f"multihop: {message}", file=sys.stderr)
    return code
