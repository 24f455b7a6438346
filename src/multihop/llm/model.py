"""One role's access to the language model: plain replies, replies of a given shape, an agent's turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from multihop.llm import structured
from multihop.llm.client import ChatClient, Reply
from multihop.llm.structured import Structured
from multihop.llm.tool_calling import Action, Turn, action_schema, action_turn, native_turn
from multihop.trace import Trace


def messages_of(prompts: Mapping[str, str], name: str, **fields: Any) -> list[dict[str, Any]]:
    """Prompt ``<name>_system`` as it stands, then ``<name>_user`` filled in with ``fields``."""
    user = prompts[f"{name}_user"].format(**fields)
    return [{"role": "system", "content": prompts[f"{name}_system"]}, {"role": "user", "content": user}]


@dataclass
class Model:
    """One role's access to the language model, on behalf of one question (or index); use is added to ``trace``."""

    role: str
    client: ChatClient
    trace: Trace
    sample: int
    repair_prompt: str

    async def chat(
        self, messages: list[dict[str, Any]], *, max_tokens: int | None = None, agent: bool = False
    ) -> Reply:
        """A plain reply. ``agent``: at the reader's agent temperature instead of its own."""
        temperature = self.client.reader.agent_temperature if agent else None
        reply = await self.client.chat(
            messages, role=self.role, max_tokens=max_tokens, temperature=temperature, sample=self.sample
        )
        self.trace.used(self.role, reply.usage)
        return reply

    async def json(
        self, messages: list[dict[str, Any]], model: type[BaseModel], *, max_tokens: int | None = None
    ) -> Structured:
        """A reply of the given shape, at temperature 0 (App. B); ``value`` is None where none came."""
        schema = structured.strict_schema(model, bounded=self.client.endpoint.kind == "embedded")
        form = structured.response_format(schema, model.__name__.lower(), self.client.endpoint.structured)

        async def ask(history: list[dict[str, Any]]) -> Reply:
            return await self.client.chat(
                history,
                role=self.role,
                max_tokens=max_tokens,
                temperature=0.0,
                sample=self.sample,
                response_format=form,
            )

        result = await structured.complete(ask, messages, model, self.repair_prompt)
        self.trace.used(self.role, result.usage)
        return result

    @property
    def tool_mode(self) -> str:
        return self.client.endpoint.tool_calling

    async def act(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], *, max_tokens: int | None = None
    ) -> Turn:
        """One turn of an agent: tool calls, or the final answer (no calls)."""
        temperature = self.client.reader.agent_temperature
        if self.tool_mode == "native":
            reply = await self.client.chat(
                messages,
                role=self.role,
                max_tokens=max_tokens,
                temperature=temperature,
                sample=self.sample,
                tools=tools,
            )
            self.trace.used(self.role, reply.usage)
            return native_turn(reply)
        form = structured.response_format(action_schema(tools), "action", self.client.endpoint.structured)

        async def ask(history: list[dict[str, Any]]) -> Reply:
            return await self.client.chat(
                history,
                role=self.role,
                max_tokens=max_tokens,
                temperature=temperature,
                sample=self.sample,
                response_format=form,
            )

        result = await structured.complete(ask, messages, Action, self.repair_prompt)
        self.trace.used(self.role, result.usage)
        if result.value is None:
            # Prose where an action was due is an answer, as it is with native tool calling; broken JSON is none.
            self.trace.event(self.trace.loops + 1, "format_fallback", error=result.error)
            text = "" if result.raw.lstrip().startswith(("{", "[")) else result.raw
            return Turn(text, (), result.usage, raw=result.raw)
        return action_turn(result.value, result.raw, result.usage)
