"""Entities without spaCy: runs of capitalised words, the same everywhere; and a structure's build in one call."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

from project_fixture import FakeClient

from multihop.opening import load_prompts
from multihop.retrieval.index import Retriever
from multihop.structures.base import Builder
from multihop.structures.entities import normal
from multihop.structures.registry import STRUCTURES

REPO = Path(__file__).resolve().parents[1]
_NAME = re.compile(r"[^\W\d_a-zøç][\w]+(?: [^\W\d_a-zøç]\w+)*")
_FIRST = {"It", "Its", "He", "She", "Her", "His", "Who", "What", "Where", "Which", "Nobody", "In", "On"}


def names_of(text: str) -> tuple[str, ...]:
    found = (m for m in _NAME.findall(text) if m not in _FIRST)
    return tuple(dict.fromkeys(normal(m) for m in found))


class Capitalised:
    """Stands in for a loaded EntityIndex."""

    def __init__(self, retriever: Retriever):
        self.retriever = retriever

    def of(self, chunk_id: str) -> tuple[str, ...]:
        return names_of(self.retriever.text(chunk_id).replace("\n", ". "))

    def of_text(self, text: str) -> tuple[str, ...]:
        return names_of(text)


def built(name: str, retriever: Retriever, folder: Path, over: Any = None, **params: Any) -> tuple[Any, dict[str, Any]]:
    """(the loaded structure, its statistics)."""
    made = STRUCTURES.create(name, params, "test")
    folder.mkdir(parents=True, exist_ok=True)
    builder = Builder(retriever, FakeClient(), load_prompts(REPO, name), folder, over)
    statistics = asyncio.run(made.build(builder))
    return made.load(folder, retriever, over), statistics
