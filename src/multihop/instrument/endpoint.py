"""In place of the endpoint: the completions that it would send are written by a simulated model."""

from __future__ import annotations

import json
from typing import Any, Protocol

from multihop.config import Reader
from multihop.llm.endpoints import Endpoints

CHARACTERS_PER_TOKEN = 4


class Simulated(Protocol):
    def reply(self, request: dict[str, Any]) -> tuple[str | None, list[tuple[str, dict[str, Any]]]]:
        """(content, tool calls as (name, arguments))."""
        ...


class SimulatedEndpoints(Endpoints):
    """Everything but the model is the client's own code: requests, schemas, store, meter, usage, parsing."""

    def __init__(self, endpoints: dict[str, Any], env: Any, model: Simulated):
        super().__init__(endpoints, env)
        self.model = model

    def open(self, reader: Reader) -> Any:
        """Nothing to open."""

    async def ask(self, reader: Reader, body: dict[str, Any]) -> dict[str, Any]:
        content, calls = self.model.reply(body)
        made = [
            {
                "id": f"call{len(body['messages'])}_{i}",
                "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
            }
            for i, (name, arguments) in enumerate(calls)
        ]
        message = {"content": content, "refusal": None, "tool_calls": made}
        prompt = sum(len(m.get("content") or "") for m in body["messages"]) // CHARACTERS_PER_TOKEN
        written = len(content or "") + sum(len(call["function"]["arguments"]) for call in made)
        return {
            "choices": [{"message": message, "finish_reason": "tool_calls" if made else "stop"}],
            "usage": {"prompt_tokens": prompt + 1, "completion_tokens": written // CHARACTERS_PER_TOKEN + 1},
            "model": body["model"],
        }
