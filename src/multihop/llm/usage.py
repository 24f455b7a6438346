"""The tokens of a completion: as the endpoint says, or estimated where it says nothing or what can't be."""

from __future__ import annotations

from typing import Any

from multihop import jsonl
from multihop.data import tokens

PER_MESSAGE = 4
"""Tokens around a message and its role."""
TEMPLATE_TOKENS = 4096
"""What an endpoint may put around the messages itself: a chat template, its own system prompt."""
FAR_ABOVE = 10
"""Times max_tokens (hidden reasoning counts as written) that a completion can't have."""


def usage_of(completion: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """``prompt_tokens``, ``completion_tokens``, ``cached_tokens``; with ``estimated`` where the endpoint's can't be."""
    usage = completion.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    prompt, written = usage.get("prompt_tokens"), usage.get("completion_tokens")
    details = usage.get("prompt_tokens_details")
    cached = (details.get("cached_tokens") if isinstance(details, dict) else None) or 0
    most = FAR_ABOVE * request["max_tokens"] + TEMPLATE_TOKENS
    if not _between(0, written, most) or not (_between(1, prompt, TEMPLATE_TOKENS) or _fits(prompt, request)):
        return estimated(completion, request)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "cached_tokens": cached if _between(0, cached, prompt) else 0,
    }


def _between(low: int, value: Any, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _fits(prompt: Any, request: dict[str, Any]) -> bool:
    """Whether the request can have so many tokens: each is at least one byte of its texts or of the template."""
    asked = [request.get(key) for key in ("messages", "tools", "response_format")]
    return _between(1, prompt, len(jsonl.dumps(asked).encode()) + TEMPLATE_TOKENS)


def estimated(completion: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """Counted here in o200k_base tokens, whatever the model's own are."""
    message = completion["choices"][0]["message"]
    prompt = sum(PER_MESSAGE + _count(m) for m in request["messages"])
    prompt += _count([request.get("tools"), request.get("response_format")])
    written = _count([message.get("content"), message.get("refusal"), message.get("tool_calls")])
    return {"prompt_tokens": prompt, "completion_tokens": written, "cached_tokens": 0, "estimated": True}


def _count(value: Any) -> int:
    """Tokens of all texts in ``value``, names of fields included but for a message's own."""
    if isinstance(value, str):
        return tokens.count(value)
    if isinstance(value, dict):
        named = 0 if "role" in value else sum(tokens.count(str(key)) for key in value)
        return named + sum(_count(v) for key, v in value.items() if key != "role")
    return sum(_count(v) for v in value) if isinstance(value, list | tuple) else 0
