"""The named entities of a question, by one call: where HippoRAG and GFM-RAG begin."""

from __future__ import annotations

from multihop.methods.base import Tools
from multihop.structures.openie import Named


async def query_entities(question: str, tools: Tools, max_tokens: int) -> list[str]:
    """Distinct names in the order of the reply; none where it names none or can't be parsed (event parse_failed)."""
    messages = tools.messages("query_entities", question=question)
    reply = await tools.llm("control").json(messages, Named, max_tokens=max_tokens)
    if reply.value is None:
        tools.trace.event(1, "parse_failed", what="query_entities", error=reply.error)
        return []
    names = (name.strip() for name in reply.value.entities if isinstance(name, str))
    found = list(dict.fromkeys(name for name in names if name))
    tools.trace.event(1, "query_entities", found=found)
    return found
