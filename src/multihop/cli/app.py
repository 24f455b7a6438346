"""The application, and what every sub-command begins with: checked params and an open session."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import typer

# Hubs stay closed unless the profile downloads; analytics and update checks stay off (also for child processes).
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("DVC_NO_ANALYTICS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from multihop import config, guard, messages
from multihop.errors import ConfigError, MultihopError
from multihop.session import Session, opened

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="One sub-command per DVC stage, and what a reader does by hand.",
    rich_markup_mode=None,
)
T = TypeVar("T")


def loaded() -> config.Params:
    """./params.yaml with every name in it checked. Raises ConfigError."""
    from multihop.methods import registry
    from multihop.retrieval import specs
    from multihop.structures import registry as structures

    params = config.load()
    for endpoint in params.endpoints.values():
        guard.keep_secrets_of(os.environ.get(endpoint.url_env or ""))
        guard.keep_secret(os.environ.get(endpoint.key_env or ""))
    registry.check(params)
    structures.check(params)
    known = sorted(p.stem for p in Path("notebooks").glob("*.ipynb"))
    for name in params.notebooks:
        if name not in known:
            raise ConfigError(f"params.yaml: notebooks: {messages.unknown('notebook', name, known)}")
    for name, embedder in params.embedders.items():
        try:
            specs.resolve(embedder.overrides())
        except MultihopError as e:
            raise ConfigError(f"params.yaml: embedders.{name}: {e}") from e
    return params


def in_session(work: Callable[[Session], Awaitable[T]]) -> T:
    """Run ``work`` in a session of ./params.yaml; hub access only where the profile downloads."""
    params = loaded()
    if params.source == "hub":
        os.environ["HF_HUB_OFFLINE"] = "0"

    async def main() -> T:
        async with opened(params) as session:
            return await work(session)

    return asyncio.run(main())
