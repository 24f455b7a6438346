"""S2G-RAG: judge the evidence, turn its gaps into the next query, keep only selected sentences (Li et al. 2026).

A controlled implementation: the answer model itself is judge and selector, where the authors train a judge.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field

from multihop.methods.base import Tools
from multihop.methods.documents import DocumentParams, Documents, by_document, numbered_sentences, titled_sentences
from multihop.methods.reading import read_and_answer
from multihop.retrieval.arguments import normalise
from multihop.retrieval.sentences import simple_spans
from multihop.types import Answer, Question

GAPS, SELECTED, PER_DOCUMENT = 3, 6, 40
"""Gaps of one judgement, sentences of one selection, sentences of one document that are offered."""
_VERDICTS = {"true": True, "yes": True, "false": False, "no": False}


class Params(DocumentParams):
    max_turns: int = Field(4, gt=0)
    """Searches at most."""
    judge_tokens: int = Field(160, gt=0)
    select_tokens: int = Field(48, gt=0)


def _verdict(value: Any) -> bool:
    """A JSON bool, or its name: never the truth value of whatever the model wrote."""
    verdict = _VERDICTS.get(value.strip().lower()) if isinstance(value, str) else value
    if not isinstance(verdict, bool):
        raise ValueError("must be true or false")
    return verdict


class Gap(BaseModel):
    target: str = Field("", json_schema_extra={"maxLength": 60})
    slot: str = Field("", json_schema_extra={"maxLength": 40})
    description: str = Field("", json_schema_extra={"maxLength": 80})

    @property
    def query(self) -> str:
        return " ".join(f"{self.target} {self.slot}".split()) or " ".join(self.description.split())


class Judgement(BaseModel):
    sufficient: Annotated[bool, BeforeValidator(_verdict)]
    gap_items: list[Gap] = Field([], json_schema_extra={"maxItems": GAPS})


class Selection(BaseModel):
    """Numbers of the sentences shown; unknown ones are ignored."""

    sentences: list[int] = Field(json_schema_extra={"maxItems": SELECTED})


class S2gRag:
    name = "s2g_rag"
    mode = "short"
    Params = Params

    def __init__(self, params: Params):
        self.params = params

    async def answer(self, question: Question, tools: Tools) -> Answer:
        p = self.params
        documents = Documents(tools, p.per_search, p.max_docs)
        evidence: dict[str, list[str]] = {}
        stop = await self._gather(question, tools, documents, evidence)
        return await read_and_answer(
            question,
            list(evidence),
            tools,
            max_tokens=p.max_tokens,
            stop=stop,
            context=titled_sentences(evidence, tools),
        )

    async def _gather(
        self, question: Question, tools: Tools, documents: Documents, evidence: dict[str, list[str]]
    ) -> str:
        """Fill ``evidence`` (chunk id: its selected sentences); why it stopped."""
        query, gaps, asked = question.text, [], set()
        for turn in range(1, self.params.max_turns + 1):
            tools.trace.loops = turn
            asked.add(normalise(query))
            new = documents.search(query, turn)
            if not new:
                return "no_documents"
            evidence |= await self._select(question, gaps, new, tools)
            if turn == self.params.max_turns or len(documents.ids) >= documents.cap:
                break  # the verdict could lead to no search
            judgement = await self._judge(question, evidence, tools)
            if judgement.sufficient:
                return "sufficient"
            gaps = [gap.query for gap in judgement.gap_items[:GAPS] if gap.query]
            query = " ".join([question.text, *(gaps or _last(evidence))])
            if normalise(query) in asked:
                return "repeat"
        return "limit"

    async def _judge(self, question: Question, evidence: dict[str, list[str]], tools: Tools) -> Judgement:
        """The verdict on the evidence; not sufficient, without gaps, where the reply can't be read."""
        messages = tools.messages("judge", evidence=titled_sentences(evidence, tools), question=question.text)
        reply = await tools.llm("control").json(messages, Judgement, max_tokens=self.params.judge_tokens)
        if reply.value is None:
            tools.trace.event(tools.trace.loops, "parse_failed", what="judge", error=reply.error)
        judgement = reply.value or Judgement(sufficient=False)
        tools.trace.event(tools.trace.loops, "judge", **judgement.model_dump())
        return judgement

    async def _select(self, question: Question, gaps: list[str], new: list[str], tools: Tools) -> dict[str, list[str]]:
        """Chunk id -> selected sentences, both in the order shown; all sentences where none was selected."""
        offered = [(c, n, s) for c in new for n, s in enumerate(_sentences(tools.text(c))[:PER_DOCUMENT])]
        messages = tools.messages(
            "select",
            sentences=numbered_sentences(offered, tools),
            question=question.text,
            gaps="; ".join(gaps) or "all facts",
        )
        reply = await tools.llm("control").json(messages, Selection, max_tokens=self.params.select_tokens)
        if reply.value is None:
            tools.trace.event(tools.trace.loops, "parse_failed", what="select", error=reply.error)
        wanted = dict.fromkeys(reply.value.sentences if reply.value else [])
        numbers = [n for n in wanted if 1 <= n <= len(offered)][:SELECTED]
        kept = [offered[n - 1] for n in sorted(numbers)] or offered
        tools.trace.event(
            tools.trace.loops, "select", kept=[[c, n] for c, n, _ in kept], fallback=not numbers, offered=len(offered)
        )
        return by_document(kept)


def _sentences(text: str) -> list[str]:
    """The sentences of a chunk without its first line, the title; the whole text where that leaves none."""
    body = text.partition("\n")[2] or text
    return [body[a:b] for a, b in simple_spans(body)] or [" ".join(text.split())]


def _last(evidence: dict[str, list[str]]) -> list[str]:
    """The sentence that was selected last: the query's new part where no gap is named."""
    return [list(evidence.values())[-1][-1]] if evidence else []
