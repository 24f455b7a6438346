"""ExecutionRAG: A-RAG's loop guided by a requirement register (paper 1, §3, Algorithm 1, App. A-B).

The agent issues every search; the register is guidance in its context (App. G). With ``use_register``, ``dedup`` and
``nudge_at`` off this is A-RAG to the byte. With ``controller`` on, the register itself searches, as Algorithm 1 is
printed. Choices that the paper leaves open: docs/deviations.md.
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from multihop.methods.agent import Loop, record
from multihop.methods.base import Tools
from multihop.methods.guidance import Nudge, RegisterGuide, RegisterParams
from multihop.retrieval.tools import AgentTools, ToolResult
from multihop.types import Answer, Question


class Params(RegisterParams):
    controller: bool = False
    """Algorithm 1 to the letter: the register's query is searched in every loop, and no agent takes part."""
    controller_reads: int = Field(2, ge=0)
    """How many of a search's chunks that are not read yet the controller reads in full."""


class Executionrag:
    name = "executionrag"
    mode = "free"
    Params = Params

    def __init__(self, params: Params):
        self.params = params

    async def answer(self, question: Question, tools: Tools) -> Answer:
        if self.params.controller:
            return await self._controlled(question, tools)
        loop = Loop(question, tools, self.params)
        if self.params.use_register:
            guide = RegisterGuide(question, tools, self.params, loop.search)
            await guide.start()
            loop.guide = guide
        elif self.params.nudge_at:
            loop.guide = Nudge(tools, self.params)
        return await loop.run()

    async def _controlled(self, question: Question, tools: Tools) -> Answer:
        """Algorithm 1: while the register is not ready, search its query, update it; the answer is G(q, S)."""
        search = AgentTools(tools.retriever, k_default=self.params.k, dedup=self.params.dedup)
        guide = RegisterGuide(question, tools, self.params, search)
        await guide.start()
        for step in range(1, self.params.max_loops + 1):
            if guide.register.ready():
                return await guide.final(step)
            tools.trace.loops = step
            if await guide.after_tools(step, self._searched(step, guide)):
                return await guide.final(step)
        tools.trace.forced = True
        tools.trace.event(self.params.max_loops, "forced", why="loops")
        answer = await guide.final(self.params.max_loops)
        return replace(answer, stop_reason="forced_loops", status="budget" if answer.status == "ok" else answer.status)

    def _searched(self, step: int, guide: RegisterGuide) -> list[ToolResult]:
        """u_t (eq. 5) by semantic search, then the best unread chunks in full, as an agent would read them."""
        tools, search = guide.tools, guide.search
        query = guide.register.compose(guide.question.text, self.params.query_with_question)
        found = search.call("semantic_search", {"query": query, "top_k": self.params.k}, step)
        record(tools, step, "semantic_search", found)
        unread = [c for c in found.chunk_ids if c not in tools.trace.read][: self.params.controller_reads]
        if not unread:
            return [found]
        read = search.call("read_chunk", {"chunk_ids": unread}, step)
        record(tools, step, "read_chunk", read)
        return [found, read]
