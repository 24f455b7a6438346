"""What an index of a structured method is, and what its build is given.

A structure has a ``name``, a pydantic ``Params``, ``estimate``, ``async build`` and ``load``. It reads the corpus and
its vectors through the retriever, asks the model through the builder, and writes its files into the builder's folder:
bytes that depend on the corpus, the params and the stored answers, vectors and values alone. It knows no dataset and
sees no gold. docs/adding-a-method.md walks through one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict

from multihop.errors import ReplayMiss
from multihop.gathering import gathered
from multihop.llm.client import ChatClient, ContextOverflow, Refused
from multihop.llm.model import Model, messages_of
from multihop.retrieval.index import Retriever
from multihop.retrieval.vectors import embed
from multihop.trace import Trace

T = TypeVar("T")
ROLE = "indexer"


class StructureParams(BaseModel):
    """Base of every structure's Params: unknown keys and wrong types are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


@dataclass(frozen=True)
class Cost:
    """What a build asks of a language model. Zero where it asks none."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass
class Builder:
    """Everything a structure may use while it is built over one (dataset, setting)."""

    retriever: Retriever
    """The corpus: ``retriever.chunks`` in corpus order, their vectors and sentences."""
    client: ChatClient
    prompts: Mapping[str, str]
    """Prompt texts by file name: the structure's own folder over prompts/shared."""
    folder: Path
    """Where its files go; empty at the start."""
    over: Any = None
    """The loaded structure that this one is built over (params.yaml: ``over``), or None."""
    workers: int = 1
    trace: Trace = field(default_factory=Trace)
    """Its ``usage`` becomes the actual index cost."""

    def messages(self, name: str, **fields: Any) -> list[dict[str, Any]]:
        """Prompt ``<name>_system`` as it stands, then ``<name>_user`` filled in with ``fields``."""
        return messages_of(self.prompts, name, **fields)

    def llm(self) -> Model:
        return Model(ROLE, self.client, self.trace, 0, self.prompts["repair"])

    async def each(self, items: Sequence[T], ask: Callable[[T], Awaitable[Any]]) -> list[Any]:
        """``ask`` of every item, ``workers`` at a time; results in order.

        What concerns one item alone (a refusal, too long a text) becomes that item's result, as an exception: the
        caller records it. Everything else stops the build; what was answered stays stored.
        """

        async def one(item: T) -> Any:
            try:
                return await ask(item)
            except (Refused, ContextOverflow) as e:
                return e

        return await gathered(items, one, self.workers)

    def vectors(self, texts: Sequence[str]) -> np.ndarray:
        """float16 (n, dim) of texts, as passages are encoded; through the store. Raises ReplayMiss."""
        return embed(self.retriever.store, self.retriever.embedder, texts, "passage", self.retriever.allow)


def kept(retriever: Retriever, space: str, keys: Sequence[str], make: Callable[[list[str]], list[Any]]) -> list[Any]:
    """A JSON value for each key, through the store, so that another processor replays the same.

    ``make`` computes the missing ones, in order, in one call; ``space`` names everything else that decides them
    (library, version, params). Raises ReplayMiss where something is missing and live computation is off.
    """
    store = retriever.store
    found = store.get_values(space, keys)
    missing = [k for k in dict.fromkeys(keys) if k not in found]
    if missing:
        if not retriever.allow:
            raise ReplayMiss(
                f"{len(missing)} values of {space} are not in the recording and MULTIHOP_LIVE=never forbids computing "
                "them; unset it, or restore the recording (git checkout data/recordings)"
            )
        store.put_values(space, dict(zip(missing, make(missing), strict=True)))
        found |= store.get_values(space, missing)
    return [found[k] for k in keys]


class Structure(Protocol):
    """Class attributes ``name`` and ``Params``; created with its params."""

    name: str
    Params: type[StructureParams]
    params: Any

    def estimate(self, retriever: Retriever, prompts: Mapping[str, str]) -> Cost:
        """What the build will ask, guessed from the corpus alone: before anything is paid."""
        ...

    async def build(self, builder: Builder) -> dict[str, Any]:
        """Write the files; returns statistics (counts, sizes) for the tables."""
        ...

    def load(self, folder: Path, retriever: Retriever, over: Any) -> Any:
        """What methods get as ``tools.structure``. Raises DataError for missing or damaged files."""
        ...
