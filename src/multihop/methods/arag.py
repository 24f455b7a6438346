"""A-RAG: the matched baseline, an agent with three search tools.

As its authors coded it, defects removed (docs/deviations.md): errors are never answers, chunk ids of every search are
recorded, the system prompt is counted once, similarity scores are not shown.
"""

from __future__ import annotations

from multihop.methods.agent import AgentParams, Loop
from multihop.methods.base import Tools
from multihop.types import Answer, Question


class Arag:
    name = "arag"
    mode = "free"
    Params = AgentParams

    def __init__(self, params: AgentParams):
        self.params = params

    async def answer(self, question: Question, tools: Tools) -> Answer:
        return await Loop(question, tools, self.params).run()
