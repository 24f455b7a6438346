"""Structured output: strict JSON first, one lenient parse, one counted repair; then it is invalid, and said so."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import Any

import json_repair
from pydantic import BaseModel, ValidationError

from multihop.llm.client import Reply
from multihop.types import Usage

UNCLOSED = 100
"""More brackets left open than any cut-off reply has: mending thousands takes minutes and brings nothing."""


@dataclass(frozen=True)
class Structured:
    """A parsed reply, or why there is none."""

    value: BaseModel | None
    raw: str
    usage: Usage
    repaired: bool = False
    """True where the text had to be mended or asked for again."""
    error: str | None = None


def response_format(schema: dict[str, Any], name: str, mode: str) -> dict[str, Any] | None:
    """The request field for an endpoint's ``structured`` mode (json_schema, json_object or none)."""
    if mode == "json_schema":
        return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": True}}
    return {"type": "json_object"} if mode == "json_object" else None


@functools.lru_cache(maxsize=64)
def strict_schema(model: type[BaseModel], bounded: bool = False) -> dict[str, Any]:
    """The model's JSON schema as strict modes want it: all fields required, no additional ones, no defaults.

    ``bounded`` keeps maxLength, minItems and maxItems, which grammars understand and OpenAI's strict mode refuses.
    The same object for the same model: not to be changed.
    """
    dropped = {"title", "default", "description"} | (set() if bounded else {"maxLength", "minItems", "maxItems"})

    def tidy(node: Any) -> Any:
        if isinstance(node, list):
            return [tidy(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            return tidy(definitions[node["$ref"].rsplit("/", 1)[-1]])
        node = {k: v for k, v in node.items() if k not in dropped}
        if "properties" in node:
            node["properties"] = {k: tidy(v) for k, v in node["properties"].items()}
            node["required"] = list(node["properties"])
            node["additionalProperties"] = False
            return node
        return {k: tidy(v) for k, v in node.items()}

    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})
    return tidy(schema)


def parse(text: str, model: type[BaseModel]) -> tuple[BaseModel | None, bool, str]:
    """(value or None, whether the text had to be mended, the error)."""
    try:
        return model.model_validate(_encodable(json.loads(text))), False, ""
    except json.JSONDecodeError as e:
        error = f"not JSON: {e.msg}"
    except RecursionError:
        return None, False, "not JSON: nested too deeply"
    except ValidationError as e:
        return None, False, _brief(e)
    except ValueError:
        error = "not JSON: a number is too long"
    mended = _mended(text)
    if not isinstance(mended, dict):
        return None, False, error
    try:
        return model.model_validate(_encodable(mended)), True, ""
    except ValidationError as e:
        return None, False, _brief(e)


def _mended(text: str) -> Any:
    opened = sum(text.count(bracket) for bracket in "{[") - sum(text.count(bracket) for bracket in "}]")
    if "{" not in text or opened > UNCLOSED:
        return None
    try:
        return json_repair.loads(text)
    except (RecursionError, ValueError):  # nested deeper than it reads
        return None


def _encodable(value: Any) -> Any:
    """Without lone surrogates, which a cut emoji leaves behind and no file can hold."""
    return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def _brief(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


async def complete(ask: Any, messages: list[dict[str, Any]], model: type[BaseModel], repair_prompt: str) -> Structured:
    """``ask(messages) -> Reply`` until it parses: at most twice (temperature and format are ``ask``'s)."""
    reply: Reply = await ask(messages)
    value, mended, error = parse(reply.text, model)
    if value is not None:
        return Structured(value, reply.text, reply.usage + Usage(repairs=int(mended)), mended)
    again = [
        *messages,
        {"role": "assistant", "content": reply.text},
        {"role": "user", "content": repair_prompt.format(error=error)},
    ]
    second: Reply = await ask(again)
    usage = reply.usage + second.usage + Usage(repairs=1)
    value, _, error = parse(second.text, model)
    return Structured(value, second.text, usage, True, None if value is not None else error)
