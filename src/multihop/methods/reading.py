"""Read-then-answer: the one reader call that all retrieve-then-read methods share (the *short* contract)."""

from __future__ import annotations

from multihop.methods.base import Tools, split_answer
from multihop.retrieval.tokens import count_tokens
from multihop.types import Answer, Question


async def read_and_answer(
    question: Question,
    chunk_ids: list[str],
    tools: Tools,
    *,
    max_tokens: int,
    prompt: str = "reader",
    stop: str = "answered",
    context: str | None = None,
    notes: str = "",
) -> Answer:
    """One call over the passages, best first. Uses prompts ``<prompt>_system`` and ``<prompt>_user``.

    ``context`` stands in place of the passages' whole texts (selected sentences, snippets); ``notes`` follow them
    (a chain of earlier questions and answers). The size of what was shown is recorded as a ``final`` event.

    An empty reply gets status ``invalid_output``; a reply without the marker keeps its last line as short answer
    and is recorded as a ``format_fallback`` event.
    """
    shown = tools.numbered(chunk_ids) if context is None else context
    shown = "\n\n".join(part for part in (shown, notes) if part)
    messages = tools.messages(prompt, passages=shown, question=question.text)
    reply = await tools.llm().chat(messages, max_tokens=max_tokens)
    tools.trace.event(
        tools.trace.loops,
        "final",
        evidence_tokens=count_tokens(shown),
        prompt_tokens=reply.usage.prompt_tokens,
        compressed=context is not None,
    )
    short, marked = split_answer(reply.text)
    if not marked:
        tools.trace.event(1, "format_fallback", finish_reason=reply.finish_reason)
    status = "ok" if reply.text.strip() else "invalid_output"
    return Answer(reply.text, stop, status, short=short, mode="short", cited=tuple(chunk_ids))
