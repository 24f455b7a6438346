"""The ``lightrag-hku`` package behind our client, vectors and tokenizer; the one place that imports it.

The package reads the clock where it orders descriptions, merges relations concurrently and picks chunks out of a
set. Each would let timing into later prompts: ``steady`` replaces these three functions while we use it. On import the
package also reads a .env file of the working directory; what matters here is given to it explicitly.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from multihop.data.tokens import PIECE, encoding, pieces
from multihop.errors import ConfigError, MultihopError

VERSION = "1.5.7"
SEPARATOR = "<SEP>"
"""Between the descriptions, and the chunk ids, of one entity or relation."""
NOTHING = "<|COMPLETE|>"
"""An extraction that holds no record."""
_SPLIT = "\n<<<SPLIT>>>\n"
_NEVER = 10**9
_LINES = re.compile(r"(?<=\}\n)(?=\{)")
"""Between two lines of JSON. No token of o200k goes on past a line break before a brace."""
_serial = itertools.count()
_PINNED = {
    "summary_max_tokens": 1200,
    "summary_context_size": 12000,
    "summary_length_recommended": 600,
    "max_source_ids_per_entity": 200,
    "max_source_ids_per_relation": 200,
    "source_ids_limit_method": "KEEP",
    "cosine_better_than_threshold": 0.2,
    "related_chunk_number": 5,
    "kg_chunk_pick_method": "VECTOR",
}
"""The package's defaults, which it would otherwise take from environment variables."""
_turns: list[tuple[asyncio.AbstractEventLoop, asyncio.Lock]] = []

Ask = Callable[[list[dict[str, str]]], Awaitable[str]]


def require() -> Any:
    """The package. Raises ConfigError that says what to install."""
    root = logging.getLogger()
    level = root.level
    try:
        import lightrag
        import nano_vectordb  # noqa: F401  (its store, which would be imported later)
    except ImportError as e:
        raise ConfigError(
            f"LightRAG needs the package lightrag-hku ({e}): pip install -r requirements-lightrag.txt; or take its "
            "run out of params.yaml"
        ) from e
    if lightrag.__version__ != VERSION:
        raise ConfigError(
            f"lightrag-hku {lightrag.__version__} is installed, {VERSION} is what the recording was made with: "
            "pip install -r requirements-lightrag.txt"
        )
    for name in ("lightrag", "nano-vectordb"):  # what fails is reported by status and exception
        _set_level(logging.getLogger(name), logging.CRITICAL)
    _set_level(root, level)  # the import of its store sets INFO: a line for each request and model of the whole process
    return lightrag


def _set_level(logger: logging.Logger, level: int) -> None:
    """Only where it is another: setting one empties the caches of every logger."""
    if logger.level != level:
        logger.setLevel(level)


def clean(text: str) -> str:
    """A passage as the package stores it: entities of HTML resolved, control characters and outer space gone."""
    from lightrag.utils import sanitize_text_for_encoding

    return sanitize_text_for_encoding(text).replace(_SPLIT.strip(), "SPLIT")


def described(prompt: str) -> tuple[str, str]:
    """(the entity or relation, its descriptions joined) of the package's prompt that asks to merge them."""
    head, _, listed = prompt.partition("\n\nDescription List:")
    rows = [json.loads(line)["Description"] for line in listed.split("\n") if line.startswith('{"Description": ')]
    return head.rpartition(" Name: ")[2], SEPARATOR.join(rows)


class _O200k:
    """The package's tokenizer interface. It must give back the very text, or passages are stored mutilated."""

    def encode(self, content: str) -> list[int]:
        # A search asks for the length of the same entities, relations and passages over and over, one on each line.
        parts = _LINES.split(content) if len(content) <= PIECE else [content]
        if len(parts) > 1:
            return [token for line in parts for token in _line(line)]
        return [token for piece in pieces(content) for token in encoding().encode_ordinary(piece)]

    def decode(self, tokens: Sequence[int]) -> str:
        return encoding().decode_bytes(list(tokens)).decode("utf-8", errors="replace")


@functools.lru_cache(maxsize=1 << 12)
def _line(text: str) -> tuple[int, ...]:
    return tuple(encoding().encode_ordinary(text))


def turn() -> asyncio.Lock:
    """Held by whoever opens the package or replaces its functions: both reach the whole process."""
    from lightrag.kg.shared_storage import finalize_share_data

    loop = asyncio.get_running_loop()
    if not _turns or _turns[0][0] is not loop:
        if _turns:
            finalize_share_data()  # its process-wide locks belong to the loop before
        _turns[:] = [(loop, asyncio.Lock())]
    return _turns[0][1]


async def open_rag(
    folder: Path, name: str, ask: Ask, embed: Callable[..., np.ndarray], dim: int, **options: Any
) -> Any:
    """A LightRAG over empty stores in ``folder``.

    ``embed(texts, context)`` -> float (n, dim); context is "document" or "query".
    """
    lightrag = require()
    from lightrag.utils import EmbeddingFunc, Tokenizer

    async def model(prompt: str, system_prompt: str | None = None, history_messages: Any = None, **_: Any) -> str:
        head = [{"role": "system", "content": system_prompt}] if system_prompt else []
        return await ask([*head, *(history_messages or ()), {"role": "user", "content": prompt}])

    async def vectors(texts: list[str], context: str = "document", **_: Any) -> np.ndarray:
        return embed(texts, context)

    rag = lightrag.LightRAG(
        working_dir=str(folder),
        workspace=f"{name}{next(_serial)}",  # its memory is shared by workspaces of one name
        llm_model_func=model,
        llm_model_name="multihop",
        embedding_func=EmbeddingFunc(dim, vectors, supports_asymmetric=True),
        tokenizer=Tokenizer("o200k_base", _O200k()),
        enable_llm_cache=False,
        enable_llm_cache_for_entity_extract=False,
        entity_extraction_use_json=False,
        default_llm_timeout=_NEVER,
        default_embedding_timeout=_NEVER,
        max_parallel_insert=1,
        vlm_process_enable=False,
        user_prompt_prefix="",
        addon_params={"language": "English"},
        **_PINNED | options,
    )
    await rag.initialize_storages()
    return rag


def merging(summary_from: int) -> dict[str, int]:
    """The package's thresholds, above which it asks the model to merge descriptions; 0: it never asks."""
    if summary_from:
        return {"force_llm_summary_on_merge": summary_from}
    return dict.fromkeys(("force_llm_summary_on_merge", "summary_max_tokens", "summary_context_size"), _NEVER)


def keep_in_memory(rag: Any) -> None:
    """Spare the package rewriting all its files after every document, which would grow with the corpus' square.

    They are thrown away: the graph is written as ours, and answers to the model's calls are in the store.
    """

    async def written(**_: Any) -> None:
        return None

    rag._insert_done = written


async def insert(rag: Any, document: str, texts: Sequence[str]) -> list[str]:
    """Insert one document of distinct, cleaned passages; returns the chunk id of each.

    Raises MultihopError naming the document where it failed or was cut otherwise: nothing is lost silently.
    """
    await rag.ainsert(
        _SPLIT.join(texts),
        split_by_character=_SPLIT,
        split_by_character_only=True,
        ids=document,
        file_paths=f"{document}.txt",
    )
    status = await rag.doc_status.get_by_id(document)
    state = getattr(status["status"], "value", status["status"]) if status else "missing"
    if state != "processed":
        raise MultihopError(f"LightRAG: {document} is {state}: {(status or {}).get('error_msg')}; nothing was written")
    ids = [f"{document}-chunk-{i:03d}" for i in range(len(texts))]
    kept = await rag.text_chunks.get_by_ids(ids)
    if status["chunks_count"] != len(texts) or [k and k["content"] for k in kept] != list(texts):
        raise MultihopError(f"LightRAG: {document} was cut into other chunks than the corpus has; nothing was written")
    return ids


async def fill(rag: Any, entities: Sequence[Any], relations: Sequence[Any], chunks: Sequence[Any]) -> None:
    """A graph as structures/lightrag.py holds it, and the corpus, into the stores that a search reads."""
    nodes, edges, of_nodes, of_edges = [], [], {}, {}
    for i, e in enumerate(entities):
        shared = {"source_id": SEPARATOR.join(e.chunks), "file_path": ""}
        nodes.append((e.name, shared | {"entity_id": e.name, "entity_type": e.type, "description": e.description}))
        of_nodes[f"ent-{i:07d}"] = shared | {"entity_name": e.name, "content": e.content}
    for i, r in enumerate(relations):
        shared = {"source_id": SEPARATOR.join(r.chunks), "file_path": ""}
        said = {"description": r.description, "keywords": r.keywords, "weight": r.weight}
        edges.append((r.source, r.target, shared | said))
        of_edges[f"rel-{i:07d}"] = shared | {"src_id": r.source, "tgt_id": r.target, "content": r.content}
    texts = {c.id: {"content": c.text, "file_path": "", "full_doc_id": ""} for c in chunks}
    await rag.chunk_entity_relation_graph.upsert_nodes_batch(nodes)
    await rag.chunk_entity_relation_graph.upsert_edges_batch(edges)
    await rag.entities_vdb.upsert(of_nodes)
    await rag.relationships_vdb.upsert(of_edges)
    await rag.chunks_vdb.upsert(texts)
    await rag.text_chunks.upsert({i: row | {"chunk_order_index": 0, "tokens": 0} for i, row in texts.items()})
    for store in (rag.entities_vdb, rag.relationships_vdb, rag.chunks_vdb):
        await store.index_done_callback()


async def freeze(rag: Any, chunk_ids: Sequence[str]) -> None:
    """Spare a search what only writing needs: a lock for each node and edge that it reads, deep copies of passages and
    settings."""
    graph, settings = rag.chunk_entity_relation_graph, rag._build_global_config()
    rows = dict(zip(chunk_ids, await rag.text_chunks.get_by_ids(list(chunk_ids)), strict=True))

    async def live() -> Any:
        return graph._graph

    async def copies(ids: Sequence[str]) -> list[Any]:
        return [rows[i].copy() if i in rows else None for i in ids]

    graph._get_graph, rag.text_chunks.get_by_ids, rag._build_global_config = live, copies, settings.copy
    for store in (rag.entities_vdb, rag.relationships_vdb, rag.chunks_vdb):
        store._storage_lock = nullcontext()


@contextmanager
def replaced(module: Any, **values: Any) -> Iterator[None]:
    """Names of a module, set for a while."""
    before = {name: getattr(module, name) for name in values}
    for name, value in values.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


@contextmanager
def prompts(system: str, user: str) -> Iterator[None]:
    """The package's extraction prompts, replaced as its source proposes, and put back."""
    from lightrag.prompt import PROMPTS

    before = dict(PROMPTS)
    PROMPTS.update(entity_extraction_system_prompt=system, entity_extraction_user_prompt=user)
    try:
        yield
    finally:
        PROMPTS.update(before)


@contextmanager
def steady(similar: Callable[[str, Sequence[str]], list[str]] | None = None) -> Iterator[None]:
    """The package without clock, race, set order and a thread for its token counts. ``similar(query, ids)``: ids, best
    first."""
    from lightrag import operate, pipeline, utils

    asked, merged = operate.use_llm_func_with_cache, pipeline.merge_nodes_and_edges

    async def timeless(*args: Any, chunk_id: str | None = None, **kwargs: Any) -> tuple[str, int]:
        reply, _ = await asked(*args, chunk_id=chunk_id, **kwargs)
        # The time of a reply orders the descriptions that are merged: the chunk's place stands for it.
        return reply, int((chunk_id or "-0").rpartition("-")[2])

    @functools.wraps(merged)
    async def in_turn(*args: Any, global_config: dict[str, Any], **kwargs: Any) -> Any:
        # It admits twice this many at once: one relation after another, in the order of their chunks.
        return await merged(*args, global_config=global_config | {"llm_model_max_async": 0.5}, **kwargs)

    async def picked(*, query: str, num_of_chunks: int, entity_info: list[dict[str, Any]], **_: Any) -> list[str]:
        ids = list(dict.fromkeys(i for entry in entity_info for i in entry.get("sorted_chunks", ())))
        return (similar(query, ids) if similar else ids)[:num_of_chunks]

    async def at_once(function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    with (
        replaced(utils, run_in_tokenizer_executor=at_once),
        replaced(operate, run_in_tokenizer_executor=at_once),
        replaced(operate, use_llm_func_with_cache=timeless, pick_by_vector_similarity=picked),
        replaced(pipeline, merge_nodes_and_edges=in_turn),
    ):
        yield
