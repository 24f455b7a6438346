"""o200k_base token counts (GPT-4o's encoding) from data inside the package: no network."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import bpe_openai

PIECE = 50_000
"""Characters encoded at once: at most 4 tokens each, so never above the encoder's 200,000-token limit."""


@functools.cache
def encoding() -> bpe_openai.Encoding:
    import bpe_openai  # loading its table takes as long as a stage that counts nothing

    return bpe_openai.get_encoding("o200k_base")


def pieces(text: str) -> Iterator[str]:
    """Very long text, cut before a space where there is one near (a space opens a token)."""
    start = 0
    while len(text) - start > PIECE:
        end = start + PIECE
        space = text.rfind(" ", end - 1000, end)
        end = space if space > start else end
        yield text[start:end]
        start = end
    yield text[start:]


def count(text: str) -> int:
    return sum(len(encoding().encode_ordinary(piece)) for piece in pieces(text))


def token_ends(text: str) -> list[int]:
    """For each token, where it ends (offset in characters); a split character ends with its first token."""
    ids = (token for piece in pieces(text) for token in encoding().encode_ordinary(piece))
    return list(accumulate(map(_characters, ids)))


@functools.cache
def _characters(token: int) -> int:
    """Characters that the token opens: bytes other than UTF-8's continuation bytes (0b10xxxxxx)."""
    return sum(byte & 0xC0 != 0x80 for byte in encoding().decode_single_token_bytes(token))
