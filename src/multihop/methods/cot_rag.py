"""CoT-RAG: "CoT-augmented retrieval", which the paper does not define.

``variant: reader`` (default): vanilla top-k with a reader that reasons step by step. ``variant: query``: the model
first writes a chain of thought, which is added to the question as the search query.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from multihop.methods.base import MethodParams, Tools
from multihop.methods.reading import read_and_answer
from multihop.types import Answer, Question


class Params(MethodParams):
    k: int = Field(5, gt=0)
    variant: Literal["reader", "query"] = "reader"
    max_tokens: int = Field(1024, gt=0)
    rationale_tokens: int = Field(128, gt=0)


class CotRag:
    name = "cot_rag"
    mode = "short"
    single_shot = True
    Params = Params

    def __init__(self, params: Params):
        self.params = params

    async def answer(self, question: Question, tools: Tools) -> Answer:
        query = question.text
        if self.params.variant == "query":
            messages = [
                {"role": "system", "content": tools.prompts["rationale_system"]},
                {"role": "user", "content": question.text},
            ]
            rationale = await tools.llm().chat(messages, max_tokens=self.params.rationale_tokens)
            query = f"{question.text} {rationale.text.strip()}"
        hits = tools.retrieve(query, self.params.k)
        return await read_and_answer(
            question, [h.chunk_id for h in hits], tools, max_tokens=self.params.max_tokens, prompt="cot"
        )
