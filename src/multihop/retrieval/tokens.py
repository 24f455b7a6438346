"""Token counts in o200k_base: GPT-4o's encoding, and the unit of A-RAG's counters. No network."""

from __future__ import annotations

from functools import lru_cache

from multihop.data import tokens


@lru_cache(maxsize=1 << 13)  # evidence is counted once and never again: a larger cache is memory for nothing
def count_tokens(text: str) -> int:
    """Number of o200k_base tokens; text that looks like a special token counts as plain text."""
    return tokens.count(text) if text else 0


def truncate_tokens(text: str, limit: int) -> str:
    """The beginning of ``text`` that at most ``limit`` tokens spell, in whole characters."""
    if count_tokens(text) <= limit:
        return text
    return text[: tokens.token_ends(text)[limit - 1]] if limit > 0 else ""
