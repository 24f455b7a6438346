"""Fixed-K: one search of one depth, one reader call (paper 2, Table 1): the baseline without any control."""

from __future__ import annotations

from pydantic import Field

from multihop.errors import ConfigError
from multihop.methods.base import MethodParams, Tools
from multihop.methods.reading import read_and_answer
from multihop.types import Answer, Question


class Params(MethodParams):
    k: int | None = Field(None, gt=0)
    """Chunks shown to the reader, best first; null: the depth chosen on train questions, without gold evidence."""
    max_tokens: int = Field(64, gt=0)
    """Of the reader's answer."""


class FixedK:
    name = "fixed_k"
    mode = "short"
    Params = Params

    def __init__(self, params: Params):
        self.params = params
        # A depth of its own needs no training.
        self.trained_as = "baselines" if params.k is None else None

    async def answer(self, question: Question, tools: Tools) -> Answer:
        """Raises ConfigError where neither the params nor the training give a depth."""
        hits = tools.retrieve(question.text, self.params.k or _trained_depth(tools))
        return await read_and_answer(question, [h.chunk_id for h in hits], tools, max_tokens=self.params.max_tokens)


def _trained_depth(tools: Tools) -> int:
    if not tools.trained:
        raise ConfigError("fixed_k: k is null and nothing was trained; give the run a k, or trained: baselines")
    return tools.trained["k"]
