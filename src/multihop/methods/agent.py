"""The agent loop that A-RAG and ExecutionRAG share: written once, the register is the only difference.

A loop is one assistant turn with all its tool calls. The loop ends when the model makes no tool call (its message is
the answer), when a guide says that the evidence is complete, or when loops or tokens run out (forced answer,
tools off). Paper 1, Algorithm 1 and App. B.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import Field

from multihop.llm import structured, tool_calling
from multihop.llm.client import ToolCall
from multihop.llm.tool_calling import Turn
from multihop.methods.base import MethodParams, Tools
from multihop.retrieval.tokens import count_tokens
from multihop.retrieval.tools import TOOL_SPECS, AgentTools, ToolResult
from multihop.types import Answer, Question


class AgentParams(MethodParams):
    """What A-RAG and ExecutionRAG have in common; the same values in both make the comparison matched."""

    max_loops: int = Field(15, gt=0)
    token_budget: int = Field(128000, gt=0)
    """o200k tokens of all message contents, checked before each turn."""
    k: int = Field(5, gt=0, le=20)
    """Default top-k of both searches."""
    keyword_scoring: str = Field("arag", pattern="^(arag|bm25)$")
    dedup: bool = False
    """Answer an exact repeat of a search with a notice instead of the same results (App. B)."""
    turn_tokens: int = Field(16384, gt=0)
    answer_tokens: int = Field(16384, gt=0)


class Guide(Protocol):
    """What a register adds to the loop; A-RAG has none."""

    async def before_turn(self, step: int) -> list[str]:
        """Guidance to append as user messages before the turn of loop ``step``."""
        ...

    async def after_tools(self, step: int, results: list[ToolResult]) -> bool:
        """Take in what the loop found. True: stop searching and call ``final``."""
        ...

    def reminder(self, step: int) -> str | None:
        """A message where the agent answers too early, or None to accept its answer."""
        ...

    async def final(self, step: int) -> Answer:
        """The answer once the evidence is complete."""
        ...

    def forced(self, step: int) -> None:
        """The budget is used up: the forced answer follows."""
        ...


@dataclass
class Loop:
    """One question's run of the loop."""

    question: Question
    tools: Tools
    params: AgentParams
    guide: Guide | None = None

    def __post_init__(self) -> None:
        self.model = self.tools.llm()
        self.search = AgentTools(
            self.tools.retriever,
            k_default=self.params.k,
            dedup=self.params.dedup,
            keyword_scoring=self.params.keyword_scoring,
        )
        self.messages: list[dict[str, Any]] = []
        self.tokens = 0

    async def run(self) -> Answer:
        system = self.tools.prompts["agent_system"]
        if self.model.tool_mode != "native":
            system = f"{system}\n\n{self.tools.prompts['agent_json_action']}"
        self._say("system", system)
        self._say("user", self.tools.prompts["agent_question"].format(question=self.question.text))
        for step in range(1, self.params.max_loops + 1):
            if self.tokens > self.params.token_budget:
                return await self._forced(step, "tokens")
            if self.guide:
                for text in await self.guide.before_turn(step):
                    self._say("user", text)
            turn = await self.model.act(self.messages, list(TOOL_SPECS), max_tokens=self.params.turn_tokens)
            self.tools.trace.loops = step
            self._log_turn(step, turn)
            if not turn.calls:
                reminder = self.guide.reminder(step) if self.guide else None
                if reminder is None:
                    return final_answer(turn.text, "answered")
                self._say("assistant", turn.raw or turn.text)
                self._say("user", reminder)
                continue
            results = self._use_tools(step, turn)
            if self.guide and await self.guide.after_tools(step, results):
                return await self.guide.final(step)
        return await self._forced(self.params.max_loops, "loops")

    def _use_tools(self, step: int, turn: Turn) -> list[ToolResult]:
        results = [self._use(step, call) for call in turn.calls]
        self._append(tool_calling.assistant_message(turn, self.model.tool_mode))
        for message in tool_calling.result_messages(turn, [r.text for r in results], self.model.tool_mode):
            self._append(message)
        return results

    def _use(self, step: int, call: ToolCall) -> ToolResult:
        result = self.search.call(call.name, tool_calling.arguments(call), step)
        record(self.tools, step, call.name, result)
        return result

    async def _forced(self, step: int, why: str) -> Answer:
        """Out of budget: answer now, without tools (App. A.5)."""
        self.tools.trace.forced = True
        self.tools.trace.event(step, "forced", why=why)
        if self.guide:
            self.guide.forced(step)
        self._say("user", self.tools.prompts["agent_force"].format(question=self.question.text))
        reply = await self.model.chat(self.messages, max_tokens=self.params.answer_tokens)
        return final_answer(_unwrapped(reply.text), f"forced_{why}", forced=True)

    def _say(self, role: str, content: str) -> None:
        self._append({"role": role, "content": content})

    def _append(self, message: dict[str, Any]) -> None:
        self.messages.append(message)
        self.tokens += count_tokens(message["content"] or "")

    def _log_turn(self, step: int, turn: Turn) -> None:
        calls = [{"tool": c.name, "arguments": c.arguments} for c in turn.calls]
        self.tools.trace.event(step, "turn", thought=turn.thought, calls=calls, answer=not turn.calls)


def record(tools: Tools, step: int, name: str, result: ToolResult) -> None:
    """Put one tool call into the trace."""
    trace = tools.trace
    if result.error:
        trace.event(step, "tool_error", tool=name, message=result.error)
    elif result.kind == "read":
        trace.retrieved_tokens += result.new_tokens
        trace.surface(result.chunk_ids, step, name)
        trace.event(step, "read", chunk_ids=list(result.chunk_ids), new=list(result.new), unknown=list(result.unknown))
        trace.read.update(dict.fromkeys(result.new))
    else:
        trace.search(
            step, name, result.query, list(result.chunk_ids), list(result.scores), result.new_tokens, result.repeat
        )


def final_answer(text: str, stop: str, forced: bool = False, cited: tuple[str, ...] = ()) -> Answer:
    """A free-text answer; an empty one is invalid output, never an answer."""
    status = "invalid_output" if not text.strip() else "budget" if forced else "ok"
    return Answer(text.strip(), stop, status, mode="free", cited=cited)


def _unwrapped(text: str) -> str:
    """The answer inside a JSON action, where a model goes on in that form after tools are off."""
    action, _, _ = structured.parse(text, tool_calling.Action)
    return (action.answer or action.known) if action else text
