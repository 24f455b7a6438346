"""IRCoT: retrieval interleaved with a chain of thought (Trivedi et al. 2023), a controlled implementation.

The chain only steers the searches; the answer comes from the shared reader over the documents gathered.
"""

from __future__ import annotations

from pydantic import Field

from multihop.methods.base import Tools
from multihop.methods.chain import interleave
from multihop.methods.documents import DocumentParams, Documents
from multihop.methods.reading import read_and_answer
from multihop.types import Answer, Question


class Params(DocumentParams):
    max_steps: int = Field(4, gt=0)
    """Searches at most."""
    sentence_tokens: int = Field(64, gt=0)
    """Of one sentence of the chain."""


class Ircot:
    name = "ircot"
    mode = "short"
    Params = Params

    def __init__(self, params: Params):
        self.params = params

    async def answer(self, question: Question, tools: Tools) -> Answer:
        p = self.params
        documents = Documents(tools, p.per_search, p.max_docs)
        stop = await interleave(question, tools, documents, max_steps=p.max_steps, sentence_tokens=p.sentence_tokens)
        return await read_and_answer(question, documents.ids, tools, max_tokens=p.max_tokens, stop=stop)
