"""IRCoT's loop (Trivedi et al. 2023): a search and one sentence of reasoning in turn; Adaptive-RAG runs it too."""

from __future__ import annotations

import re

from multihop.methods.base import Tools
from multihop.methods.documents import Documents
from multihop.retrieval.sentences import simple_spans
from multihop.types import Question

ANSWERED = re.compile(r"\banswer is\b", re.IGNORECASE)
_WH_WORD = re.compile(r"\b(?:who|whom|whose|what|when|where|why|which|how)\b", re.IGNORECASE)
_CITATION = re.compile(r"\s*[\[(](?:[pc]\d+(?:, ?)?)+[\])]")
_LABEL = re.compile(
    r"^\s*(?:(?:next )?(?:sentence|thought|reasoning)(?: so far)?\s*:|\d{1,2}[.)]\s|[-*•]\s)\s*", re.IGNORECASE
)


async def interleave(
    question: Question, tools: Tools, documents: Documents, *, max_steps: int, sentence_tokens: int
) -> str:
    """Fill ``documents``: step 1 searches with the question, each later step with the sentence thought before it.

    At most ``max_steps`` searches, with one model call (``sentence_tokens``, role ``control``) between two of them;
    a sentence that could lead to no search is not asked for. Returns why it stopped: ``answer`` (the sentence says
    that the answer is known), ``repeat`` (nothing new was said), ``no_documents`` (nothing new was found) or ``limit``.
    """
    query, thoughts = question.text, []
    for step in range(1, max_steps + 1):
        tools.trace.loops = step
        if not documents.search(query, step):
            return "no_documents"
        if step == max_steps or len(documents.ids) >= documents.cap:
            break
        sentence = await _think(question, tools, documents, thoughts, sentence_tokens)
        query = search_words(sentence)
        tools.trace.event(step, "thought", sentence=sentence, query=query)
        if ANSWERED.search(sentence):
            return "answer"
        if not query:
            return "repeat"
        thoughts.append(sentence)
    return "limit"


async def _think(question: Question, tools: Tools, documents: Documents, thoughts: list[str], max_tokens: int) -> str:
    messages = tools.messages(
        "ircot", passages=documents.text, question=question.text, thoughts=" ".join(thoughts) or "(nothing yet)"
    )
    reply = await tools.llm("control").chat(messages, max_tokens=max_tokens)
    return next_sentence(reply.text, thoughts)


def next_sentence(reply: str, thoughts: list[str]) -> str:
    """The first sentence of ``reply`` that ``thoughts`` does not hold, "" where there is none.

    Chat models often tell the chain again from its start before they continue it, hence not simply the first one.
    """
    known = {_key(t) for t in thoughts}
    lines = "\n".join(_LABEL.sub("", line) for line in reply.splitlines())
    for a, b in simple_spans(lines):
        if _key(lines[a:b]) not in known:
            return lines[a:b]
    return ""


def search_words(sentence: str) -> str:
    """The sentence as a query: without wh-words, which name no fact, and without citations of passages."""
    words = " ".join(_WH_WORD.sub(" ", _CITATION.sub("", sentence)).split())
    return words if any(c.isalnum() for c in words) else ""


def _key(sentence: str) -> str:
    return " ".join(re.findall(r"\w+", _CITATION.sub("", sentence).casefold()))
