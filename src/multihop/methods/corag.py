"""CoRAG with greedy decoding: a chain of simple queries, each searched and answered (Wang et al. 2025).

A controlled implementation: the untuned answer model writes the chain, where the authors fine-tune one on sampled
chains; a repeated query is asked for again with a list of queries to differ from, at temperature 0.
"""

from __future__ import annotations

import re

from pydantic import Field

from multihop.methods.base import Tools
from multihop.methods.documents import DocumentParams
from multihop.methods.reading import read_and_answer
from multihop.retrieval.arguments import normalise
from multihop.types import Answer, Question

NO_INFORMATION = "no relevant information"
_LABEL = re.compile(
    r"^\s*(?:[-*•]\s+)?(?:(?:(?:next|follow-up|sub)[ -])?(?:query|question|answer)(?: \d+)?\s*:)?\s*", re.I
)
_QUOTED = re.compile(r"^[\"'“`*]+([^\"“”`*]+)[\"'”`*]+$")


class Params(DocumentParams):
    steps: int = Field(3, gt=0)
    """Length of the chain (CoRAG's L): queries at most."""
    query_tokens: int = Field(64, gt=0)
    sub_answer_tokens: int = Field(64, gt=0)


class Corag:
    name = "corag"
    mode = "short"
    Params = Params

    def __init__(self, params: Params):
        self.params = params

    async def answer(self, question: Question, tools: Tools) -> Answer:
        chain: list[tuple[str, str]] = []
        ids: list[str] = []
        stop = await self._walk(question, tools, chain, ids)
        return await read_and_answer(
            question, ids, tools, max_tokens=self.params.max_tokens, stop=stop, notes=_lines(chain)
        )

    async def _walk(self, question: Question, tools: Tools, chain: list[tuple[str, str]], ids: list[str]) -> str:
        """Fill ``chain`` ((query, answer) pairs) and ``ids`` (documents, in acquisition order); why it stopped."""
        for step in range(1, self.params.steps + 1):
            room = min(self.params.per_search, self.params.max_docs - len(ids))
            if room <= 0:
                break
            tools.trace.loops = step
            query = await self._query(question, tools, chain)
            if not query and chain:
                return "repeat"
            query = query or question.text  # a chain has to start somewhere
            # The answer rests on this query's documents alone: documents that an earlier one found count too.
            shown = [h.chunk_id for h in tools.retrieve(query, room, step=step)]
            ids += [c for c in shown if c not in ids]
            chain.append((query, await self._sub_answer(query, shown, tools)))
            tools.trace.event(step, "sub_answer", query=query, answer=chain[-1][1])
        return "limit"

    async def _query(self, question: Question, tools: Tools, chain: list[tuple[str, str]]) -> str:
        """The next query, "" where it is empty or asked before even when asked for once more."""
        prompts = tools.prompts
        known = {normalise(query) for query, _ in chain}
        user = prompts["query_user"].format(question=question.text, chain=_lines(chain) or "(no queries yet)")
        again = prompts["query_again"].format(queries="\n".join(q for q, _ in chain) or "(none)")
        for text in (user, f"{user}\n{again}"):
            messages = [{"role": "system", "content": prompts["query_system"]}, {"role": "user", "content": text}]
            reply = await tools.llm("control").chat(messages, max_tokens=self.params.query_tokens)
            query = _one_line(reply.text)
            if query and normalise(query) not in known:
                return query
            why = "repeated query" if query else "empty query"
            tools.trace.event(tools.trace.loops, "parse_failed", what="query", error=why)
        return ""

    async def _sub_answer(self, query: str, shown: list[str], tools: Tools) -> str:
        """The answer to one query from its documents, best last; no call where there are none."""
        if not shown:
            return NO_INFORMATION
        messages = tools.messages("answer", passages=tools.numbered(shown[::-1]), query=query)
        reply = await tools.llm("control").chat(messages, max_tokens=self.params.sub_answer_tokens)
        text = _one_line(reply.text)
        return text if text and NO_INFORMATION not in text.lower() else NO_INFORMATION


def _lines(chain: list[tuple[str, str]]) -> str:
    return "\n".join(f"Query {n}: {query}\nAnswer {n}: {answer}" for n, (query, answer) in enumerate(chain, 1))


def _one_line(text: str) -> str:
    """The first line that says something, without its label and the quotation marks around it."""
    lines = (_QUOTED.sub(r"\1", " ".join(_LABEL.sub("", line).split())) for line in text.splitlines())
    return next((line for line in lines if any(c.isalnum() for c in line)), "")
