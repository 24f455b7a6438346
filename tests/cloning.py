"""A clone of HEAD that uses this environment's packages and its own sources, and asks no model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def cloned(target: Path) -> tuple[Path, dict[str, str]]:
    """(``target``, which becomes the clone; the environment for commands in it)."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(target)], check=True, capture_output=True)
    return target, os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(target / "src"),
        "PYTHONHASHSEED": "0",
        "MULTIHOP_LIVE": "never",
        "MULTIHOP_HOME": str(target / ".multihop"),
        "DVC_NO_ANALYTICS": "1",
    }
