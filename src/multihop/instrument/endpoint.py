"""In place of the endpoint: an object of the openai client's shape, whose completions a simulated model writes."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, Protocol

from multihop.config import Reader
from multihop.llm.client import Endpoints

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
        create = SimpleNamespace(create=self._create)
        return SimpleNamespace(chat=SimpleNamespace(completions=create))

    async def _create(self, **body: Any) -> Any:
        content, calls = self.model.reply(body)
        made = [
            SimpleNamespace(
                id=f"call{len(body['messages'])}_{i}",
                function=SimpleNamespace(name=name, arguments=json.dumps(arguments, ensure_ascii=False)),
            )
            for i, (name, arguments) in enumerate(calls)
        ]
        message = SimpleNamespace(content=content, refusal=None, tool_calls=made)
        choice = SimpleNamespace(message=message, finish_reason="tool_calls" if made else "stop")
        prompt = sum(len(m.get("content") or "") for m in body["messages"]) // CHARACTERS_PER_TOKEN
        written = len(content or "") + sum(len(c.function.arguments) for c in made)
        usage = SimpleNamespace(prompt_tokens=prompt + 1, completion_tokens=written // CHARACTERS_PER_TOKEN + 1)
        return SimpleNamespace(choices=[choice], usage=usage, model=body["model"], system_fingerprint=None)
