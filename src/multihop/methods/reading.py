"""Read-then-answer: the one reader call that all retrieve-then-read methods share (the *short* contract)."""

from __future__ import annotations

from multihop.methods.base import Tools, split_answer
from multihop.types import Answer, Question


async def read_and_answer(
    question: Question,
    chunk_ids: list[str],
    tools: Tools,
    *,
    max_tokens: int,
    prompt: str = "reader",
    stop: str = "answered",
) -> Answer:
    """One call over the passages, best first. Uses prompts ``<prompt>_system`` and ``<prompt>_user``.

    An empty reply gets status ``invalid_output``; a reply without the marker keeps its last line as short answer
    and is recorded as a ``format_fallback`` event.
    """
    user = tools.prompts[f"{prompt}_user"].format(passages=tools.numbered(chunk_ids), question=question.text)
    messages = [{"role": "system", "content": tools.prompts[f"{prompt}_system"]}, {"role": "user", "content": user}]
    reply = await tools.llm().chat(messages, max_tokens=max_tokens)
    short, marked = split_answer(reply.text)
    if not marked:
        tools.trace.event(1, "format_fallback", finish_reason=reply.finish_reason)
    status = "ok" if reply.text.strip() else "invalid_output"
    return Answer(reply.text, stop, status, short=short, mode="short", cited=tuple(chunk_ids))
