"""RAPTOR: one search over passages and summaries alike, the collapsed tree (Sarthi et al. 2024).

A controlled implementation on the shared reader. Only passages count as retrieved; what a selected summary was made of
is recorded beside it, since no passage of it was seen.
"""

from __future__ import annotations

from pydantic import Field

from multihop.methods.base import MethodParams, Tools
from multihop.methods.reading import read_and_answer
from multihop.retrieval.tokens import count_tokens
from multihop.structures.tree import Node
from multihop.types import Answer, Question


class Params(MethodParams):
    k: int = Field(10, gt=0)
    """Nodes of any layer at most (RAPTOR's code: 10)."""
    context_tokens: int = Field(2000, gt=0)
    """Of their texts at most; a best node that is longer is shown all the same (paper: 2,000)."""
    max_tokens: int = Field(512, gt=0)


class Raptor:
    name = "raptor"
    mode = "short"
    Params = Params
    structure = "tree"

    def __init__(self, params: Params):
        self.params = params

    async def answer(self, question: Question, tools: Tools) -> Answer:
        tools.trace.loops = 1
        chosen = self._select(question, tools)
        if not chosen:
            tools.trace.event(1, "fallback", what="no_nodes", to="the question alone")
        chunk_ids = self._record(question, chosen, tools)
        context = "\n\n".join(_shown(node, tools) for node, _ in chosen)
        return await read_and_answer(question, chunk_ids, tools, max_tokens=self.params.max_tokens, context=context)

    def _select(self, question: Question, tools: Tools) -> list[tuple[Node, float]]:
        """The best nodes up to the first that no longer fits, as RAPTOR's code takes them; at least one."""
        if not question.text.strip():
            return []
        chosen: list[tuple[Node, float]] = []
        left = self.params.context_tokens
        for node, score in tools.structure.search(tools.retriever.query_vector(question.text), self.params.k):
            left -= count_tokens(node.text)
            if left < 0 and chosen:
                break
            chosen.append((node, score))
        return chosen

    def _record(self, question: Question, chosen: list[tuple[Node, float]], tools: Tools) -> list[str]:
        """Record the search and each summary's origin; returns the chunks that were shown (in part), best first.

        Tokens are those of the nodes shown. A chunk counts as read where all of its text was shown.
        """
        best: dict[str, float] = {}
        for node, score in chosen:
            if node.chunk_id is not None:
                best.setdefault(node.chunk_id, score)
        tokens = sum(count_tokens(node.text) for node, _ in chosen)
        tools.trace.search(1, self.name, question.text, list(best), list(best.values()), tokens)
        for node, _ in chosen:
            if node.chunk_id is None:
                chunks = tools.structure.descendants(node)
                tools.trace.event(1, "summary", node=node.id, layer=node.layer, chunk_ids=chunks)
            elif node.text == tools.text(node.chunk_id):
                tools.trace.read[node.chunk_id] = None
        return list(best)


def _shown(node: Node, tools: Tools) -> str:
    """A passage (or its piece) with its chunk's id, as every prompt shows one; a summary marked as such."""
    if node.chunk_id is None:
        return tools.prompts["summary"].format(text=node.text)
    return f"[{node.chunk_id}] {node.text}"
