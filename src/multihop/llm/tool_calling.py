"""How an agent's turn is asked for and read: native function calling, or one JSON-schema action a turn.

Both give the loop the same thing, a :class:`Turn`; A-RAG and ExecutionRAG share whichever the endpoint has.
A small local model stops and goes on as it should only when it writes what is known and what is missing before
it decides, so those fields come first in the JSON action.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from multihop.llm.client import Reply, ToolCall
from multihop.types import Usage

FIELD_CHARACTERS = 200
ANSWER_CHARACTERS = 400


@dataclass(frozen=True)
class Turn:
    """One assistant turn: tool calls, or (without any) the final answer."""

    text: str
    calls: tuple[ToolCall, ...]
    usage: Usage
    thought: str = ""
    raw: str = ""
    """The message as the model wrote it, where ``text`` is only its answer."""


class Action(BaseModel):
    """The JSON action, leniently read: only what the branch taken needs must be there."""

    model_config = ConfigDict(extra="ignore")

    known: str = ""
    missing: str = ""
    enough: bool
    answer: str = ""
    tool: str = ""
    argument: str = ""


CHUNK_IDS = r"^[a-z][0-9]{1,7}(, [a-z][0-9]{1,7}){0,4}$"
"""What ``read_chunk`` takes: one to five ids."""


def action_schema(tools: list[dict[str, Any]]) -> dict[str, Any]:
    """Three branches: the answer where enough is known; else a search and its query; or ids to read."""

    def branch(enough: bool, rest: dict[str, Any]) -> dict[str, Any]:
        text = {"type": "string", "maxLength": FIELD_CHARACTERS}
        fields = {"known": text, "missing": text, "enough": {"const": enough}, **rest}
        return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}

    names = [tool["function"]["name"] for tool in tools]
    searches = [name for name in names if name != "read_chunk"]
    answer = {"answer": {"type": "string", "maxLength": ANSWER_CHARACTERS}}
    search = {"tool": {"enum": searches}, "argument": {"type": "string", "maxLength": FIELD_CHARACTERS}}
    read = {"tool": {"const": "read_chunk"}, "argument": {"type": "string", "pattern": CHUNK_IDS}}
    return {"anyOf": [branch(True, answer), branch(False, search), branch(False, read)]}


def action_turn(action: Action, raw: str, usage: Usage) -> Turn:
    thought = f"known: {action.known} | missing: {action.missing}"
    if action.enough:
        return Turn(action.answer or action.known, (), usage, thought, raw)
    name = "keywords" if action.tool == "keyword_search" else "chunk_ids" if action.tool == "read_chunk" else "query"
    value: Any = action.argument
    if name != "query":
        value = [part.strip(" []'\"") for part in action.argument.split(",") if part.strip(" []'\"")]
    return Turn(raw, (ToolCall("action", action.tool, json.dumps({name: value}, ensure_ascii=False)),), usage, thought)


def native_turn(reply: Reply) -> Turn:
    return Turn(reply.text, reply.tool_calls, reply.usage, reply.text if reply.tool_calls else "")


def arguments(call: ToolCall) -> dict[str, Any]:
    """A call's arguments; empty where the model wrote no JSON object, which the tool then says."""
    try:
        value = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):  # no JSON, a number of thousands of digits, thousands of brackets
        return {}
    return value if isinstance(value, dict) else {}


def assistant_message(turn: Turn, mode: str) -> dict[str, Any]:
    if mode != "native":
        return {"role": "assistant", "content": turn.text}
    calls = [
        {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in turn.calls
    ]
    return {"role": "assistant", "content": turn.text or None, "tool_calls": calls}


def result_messages(turn: Turn, texts: list[str], mode: str) -> list[dict[str, Any]]:
    """The tools' results, as the endpoint expects them: one tool message a call, or one user message."""
    if mode != "native":
        return [{"role": "user", "content": "\n".join(texts)}]
    return [
        {"role": "tool", "tool_call_id": call.id, "content": text} for call, text in zip(turn.calls, texts, strict=True)
    ]
