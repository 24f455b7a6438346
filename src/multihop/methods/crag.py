"""Corrective RAG (Yan et al. 2024): grade what was found, search again where it is poor, read only the best strips.

A controlled implementation: the grader is the answer model, and the "web search" a second retrieval in the corpus.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import BaseModel, Field

from multihop.methods.base import Tools
from multihop.methods.documents import DocumentParams, Documents, by_document
from multihop.methods.reading import read_and_answer
from multihop.types import Answer, Question

CORRECT, INCORRECT, AMBIGUOUS = "correct", "incorrect", "ambiguous"


class Params(DocumentParams):
    per_search: int = Field(6, gt=0, le=12)
    """Documents that each of the two searches adds at most."""
    strips: int = Field(6, gt=0)
    """Sentences kept of each search's documents."""
    grade_tokens: int = Field(48, gt=0)
    keyword_tokens: int = Field(32, gt=0)


class Grades(BaseModel):
    """One grade a document: 0 irrelevant, 1 partly relevant, 2 relevant."""

    grades: list[Literal[0, 1, 2]] = Field(max_length=12)


class Crag:
    name = "crag"
    mode = "short"
    Params = Params

    def __init__(self, params: Params):
        self.params = params

    async def answer(self, question: Question, tools: Tools) -> Answer:
        p = self.params
        documents = Documents(tools, p.per_search, p.max_docs)
        tools.trace.loops = 1
        pools = [documents.search(question.text, 1)]
        action = await self._judge(question, tools, pools[0])
        if action != CORRECT:
            tools.trace.loops = 2
            corrected = documents.search(await self._keywords(question, tools), 2)
            # Where the correction finds nothing, poor documents are better than none.
            pools = [corrected] if action == INCORRECT and corrected else [*pools, corrected]
        ids, context = self._refine(question, tools, pools)
        return await read_and_answer(question, ids, tools, max_tokens=p.max_tokens, stop=action, context=context)

    async def _judge(self, question: Question, tools: Tools, ids: list[str]) -> str:
        """The action: one grading call over all documents, none where there are none."""
        if not ids:
            return INCORRECT
        messages = tools.messages("grade", passages=tools.numbered(ids), question=question.text, count=len(ids))
        reply = await tools.llm("control").json(messages, Grades, max_tokens=self.params.grade_tokens)
        if reply.value is None:
            tools.trace.event(1, "parse_failed", what="grades", error=reply.error)
        grades = reply.value.grades[: len(ids)] if reply.value else []
        action = decide(grades, len(ids))
        tools.trace.event(1, "grades", grades=grades, action=action)
        return action

    async def _keywords(self, question: Question, tools: Tools) -> str:
        """The second search's query; the question where the model writes none."""
        messages = tools.messages("keywords", question=question.text)
        reply = await tools.llm("control").chat(messages, max_tokens=self.params.keyword_tokens)
        lines = (line.removeprefix("Keywords:").strip(" \t\"'") for line in reply.text.splitlines())
        return next((line for line in lines if any(c.isalnum() for c in line)), question.text)

    def _refine(self, question: Question, tools: Tools, pools: list[list[str]]) -> tuple[list[str], str | None]:
        """(documents shown, their strips under their titles); the whole documents where none has a sentence."""
        kept = [strip for pool in pools for strip in best_strips(question, tools, pool, self.params.strips)]
        tools.trace.event(tools.trace.loops, "strips", kept=[[c, n] for c, n, _ in kept])
        shown = by_document(kept)
        if not shown:
            return [c for pool in pools for c in pool], None
        blocks = ("\n".join([f"[{c}] {_title(tools, c)}".rstrip(), *lines]) for c, lines in shown.items())
        return list(shown), "\n\n".join(blocks)


def decide(grades: list[int], documents: int) -> str:
    """CRAG's action. A list that misses a document can't say that all of them are irrelevant."""
    if 2 in grades:
        return CORRECT
    return INCORRECT if len(grades) == documents and not any(grades) else AMBIGUOUS


def best_strips(question: Question, tools: Tools, ids: list[str], count: int) -> list[tuple[str, int, str]]:
    """The ``count`` sentences of the documents nearest to the question (cosine), in document order, each as
    (chunk id, position in the document, sentence). A passage's title is no sentence of it."""
    query = _unit(tools.retriever.query_vector(question.text))
    strips = [
        (round(float(_unit(vector) @ query), 6), (chunk_id, n, sentence))
        for chunk_id in ids
        for n, (sentence, vector) in enumerate(tools.retriever.sentences_of(chunk_id))
        if sentence not in _title(tools, chunk_id)
    ]
    best = sorted(range(len(strips)), key=lambda i: (-strips[i][0], i))[:count]
    return [strips[i][1] for i in sorted(best)]


def _title(tools: Tools, chunk_id: str) -> str:
    """A passage's title, "" for a window over several passages."""
    is_passage = tools.retriever.passages_of(chunk_id) == (chunk_id,)
    return tools.text(chunk_id).partition("\n")[0] if is_passage else ""


def _unit(vector: np.ndarray) -> np.ndarray:
    vector = vector.astype(np.float64)
    return vector / (np.linalg.norm(vector) or 1.0)
