"""Vanilla RAG: the top-k chunks of one search, one reader call (paper 1, Table 1)."""

from __future__ import annotations

from pydantic import Field

from multihop.methods.base import MethodParams, Tools
from multihop.methods.reading import read_and_answer
from multihop.types import Answer, Question


class Params(MethodParams):
    k: int = Field(5, gt=0)
    """Chunks shown to the reader, best first."""
    lexical: bool = False
    """BM25 instead of the setting's embedder."""
    max_tokens: int = Field(512, gt=0)


class Vanilla:
    name = "vanilla"
    mode = "short"
    single_shot = True
    Params = Params

    def __init__(self, params: Params):
        self.params = params

    async def answer(self, question: Question, tools: Tools) -> Answer:
        hits = tools.retrieve(question.text, self.params.k, lexical=self.params.lexical)
        return await read_and_answer(question, [h.chunk_id for h in hits], tools, max_tokens=self.params.max_tokens)
