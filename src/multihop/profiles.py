"""Scratch checkouts: a profile runs in a copy that git ignores, so that params, lock and demo results stay."""

from __future__ import annotations

import difflib
import shutil
import subprocess
from pathlib import Path

from multihop import config
from multihop.errors import ConfigError

_CODE = ("src", "prompts", "expected", "notebooks", "profiles", "data/recordings")
_TRAINED = "results/trained"
"""Controllers of this checkout come along: a profile that trains none can use them (transfer)."""
_STRUCTURES = "results/structures"
_FILES = ("dvc.yaml", "prices.yaml", "pyproject.toml", "data/hub.lock.json")


def checkout(root: Path, profile: str) -> Path:
    """Copy what the pipeline reads to scratch/<profile>, with the profile as params.yaml; keep what ran there.

    Raises ConfigError for an unknown or invalid profile.
    """
    source = root / "profiles" / f"{profile}.yaml"
    known = sorted(p.stem for p in (root / "profiles").glob("*.yaml"))
    if profile not in known:  # so that no name leads out of scratch/
        near = difflib.get_close_matches(profile, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"no profile {profile!r}{hint} Known: {', '.join(known)}")
    config.load(source)
    target = root / "scratch" / profile
    target.mkdir(parents=True, exist_ok=True)
    for name in _CODE:
        if (root / name).is_dir():
            shutil.rmtree(target / name, ignore_errors=True)
            shutil.copytree(root / name, target / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in (_TRAINED, _STRUCTURES):  # a stage depends on them, also where nothing is trained or built
        (target / name).mkdir(parents=True, exist_ok=True)
    if (root / _TRAINED).is_dir() and not config.load(source).training:
        shutil.copytree(root / _TRAINED, target / _TRAINED, dirs_exist_ok=True)
    for name in _FILES:
        if (root / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / name, target / name)
    shutil.copyfile(source, target / "params.yaml")
    if not (target / ".dvc").is_dir():
        subprocess.run(["dvc", "init", "--no-scm", "--quiet"], cwd=target, check=True)
        subprocess.run(["dvc", "config", "core.analytics", "false"], cwd=target, check=True)
    (target / ".dvcignore").write_text("__pycache__\n", encoding="utf-8")
    return target
