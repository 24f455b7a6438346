"""KGP: a model walks the passage graph by naming the evidence that is missing (Wang et al. 2024), controlled.

The authors' walker is a fine-tuned T5 or LLaMA that branches from each seed; here the run's own model writes one
line per hop over all passages visited, and the neighbours nearest to that line are followed.
"""

from __future__ import annotations

import re

from pydantic import Field

from multihop.methods.base import MethodParams, Tools
from multihop.methods.chain import next_sentence, search_words
from multihop.methods.reading import read_and_answer
from multihop.types import Answer, Hit, Question

_LABEL = re.compile(r"^\s*(?:still )?missing(?: evidence)?\s*:\s*", re.IGNORECASE | re.MULTILINE)
_NOTHING = re.compile(r"^\W*(?:nothing|none)(?: (?:else|more|further))?(?: is)?(?: missing)?\W*$", re.IGNORECASE)


class Params(MethodParams):
    start: int = Field(5, gt=0)
    """Passages of the first, dense search."""
    hops: int = Field(3, ge=0)
    """Steps along the graph at most, one model call each."""
    followed: int = Field(3, gt=0)
    """Neighbours visited per hop."""
    evidence_tokens: int = Field(64, gt=0)
    """Of the line that names the missing evidence."""
    k: int = Field(5, gt=0)
    """Passages shown to the reader: of all visited, those nearest to the question and the evidence looked for."""
    max_tokens: int = Field(512, gt=0)


class Kgp:
    name = "kgp"
    mode = "short"
    Params = Params
    structure = "passage_graph"

    def __init__(self, params: Params):
        self.params = params

    async def answer(self, question: Question, tools: Tools) -> Answer:
        p = self.params
        tools.trace.loops = 1
        visited = [hit.chunk_id for hit in tools.retrieve(question.text, p.start, step=1, tool=self.name)]
        evidences: list[str] = []
        # Nothing found is nothing to walk from; the reader then answers without passages, as elsewhere.
        stop, seen = await self._walk(question, tools, visited, evidences) if visited else ("no_documents", 0)
        shown = [h.chunk_id for h in tools.retriever.nearest(" ".join([question.text, *evidences]), visited, p.k)]
        for chunk_id in visited[seen:]:
            if chunk_id not in shown:
                tools.trace.read.pop(chunk_id)  # found by the last hop, shown to no model
        return await read_and_answer(question, shown, tools, max_tokens=p.max_tokens, stop=stop)

    async def _walk(
        self, question: Question, tools: Tools, visited: list[str], evidences: list[str]
    ) -> tuple[str, int]:
        """Extend ``visited`` and ``evidences`` hop by hop; returns why it stopped, and how many visited were shown.

        ``complete`` (the model misses nothing), ``repeat`` (it said nothing new), ``no_documents`` (nothing is left to
        visit) or ``limit``.
        """
        p, seen = self.params, 0
        for step in range(2, p.hops + 2):
            seen = len(visited)
            said, query = await self._missing(question, tools, visited, evidences)
            tools.trace.event(step, "thought", sentence=said, query=query)
            if _NOTHING.match(said):
                return "complete", seen
            if not query:
                return "repeat", seen
            evidences.append(said)
            hits = tools.retriever.nearest(query, tools.structure.neighbours(visited), p.followed)
            if not hits:
                tools.trace.event(step, "fallback", what="no_neighbours", to="dense")
                hits = _unvisited(tools.retriever.dense(query, len(visited) + p.followed), visited, p.followed)
            if not hits:
                return "no_documents", seen
            tools.trace.loops = step
            tools.record_search(hits, query, step, self.name)
            visited += [hit.chunk_id for hit in hits]
        return "limit", seen

    async def _missing(
        self, question: Question, tools: Tools, visited: list[str], evidences: list[str]
    ) -> tuple[str, str]:
        """(what the model misses, the same as a query); both "" where it says nothing that is new."""
        so_far = " ".join(evidences) or "(nothing yet)"
        messages = tools.messages(
            "evidence", passages=tools.numbered(visited), question=question.text, evidences=so_far
        )
        reply = await tools.llm("control").chat(messages, max_tokens=self.params.evidence_tokens)
        said = next_sentence(_LABEL.sub("", reply.text), evidences)
        return said, search_words(said)


def _unvisited(hits: list[Hit], visited: list[str], k: int) -> list[Hit]:
    new = [hit for hit in hits if hit.chunk_id not in visited][:k]
    return [Hit(hit.chunk_id, rank, hit.score) for rank, hit in enumerate(new, 1)]
