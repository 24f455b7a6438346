"""Direct: the question alone, no retrieval (paper 1, Table 1)."""

from __future__ import annotations

from pydantic import Field

from multihop.methods.base import MethodParams, Tools
from multihop.methods.reading import read_and_answer
from multihop.types import Answer, Question


class Params(MethodParams):
    max_tokens: int = Field(512, gt=0)
    """Ceiling of the reply, tokens."""


class Direct:
    name = "direct"
    mode = "short"
    single_shot = True
    Params = Params

    def __init__(self, params: Params):
        self.params = params

    async def answer(self, question: Question, tools: Tools) -> Answer:
        return await read_and_answer(question, [], tools, max_tokens=self.params.max_tokens, prompt="direct")
