"""What the controller sees: named features of the evidence state, each finite and rounded (paper 2, supplement).

The paper names the groups; the list is ours. Everything comes from the state, the texts and the index's vectors.
Missing values are -1. Features are rounded before they meet a forest, so that another processor decides the same.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from multihop.controller import text
from multihop.controller.bridge import cosine
from multihop.controller.state import ACTIONS, EvidenceState, Limits
from multihop.errors import DataError

DECIMALS = 6
MISSING = -1.0


@dataclass(frozen=True, slots=True)
class Feature:
    name: str
    unit: str
    low: float
    high: float
    """Range, inclusive; -1 stands for missing."""


def _f(name: str, unit: str, low: float = 0, high: float = math.inf) -> Feature:
    return Feature(name, unit, low, high)


STATE: tuple[Feature, ...] = (
    _f("question_words", "words"),
    _f("question_spans", "capitalised spans"),
    _f("wh_who", "0/1", 0, 1),
    _f("wh_when", "0/1", 0, 1),
    _f("wh_where", "0/1", 0, 1),
    _f("wh_which", "0/1", 0, 1),
    _f("wh_other", "0/1", 0, 1),
    _f("comparison_cue", "0/1", 0, 1),
    _f("conjunction", "0/1", 0, 1),
    _f("step", "control steps", 0),
    _f("steps_left", "control steps", 0),
    _f("documents", "documents", 0),
    _f("retrievals", "retrieval calls", 0),
    _f("model_calls", "control calls of the model", 0),
    _f("log_tokens", "log(1 + control tokens)", 0),
    _f("log_evidence", "log(1 + words of evidence)", 0),
    _f("cursor", "frontier positions", 0),
    _f("frontier_left", "frontier positions", 0),
    _f("frontier_next", "score of the next frontier document", -1),
    _f("frontier_top", "score of the first frontier document", -1),
    _f("frontier_ratio", "next / top score", -1),
    _f("frontier_drop", "next minus the following score", -1),
    _f("frontier_last", "mean score of the last frontier batch", -1),
    _f("cosine_max", "document-question cosine", -1, 1),
    _f("cosine_mean", "document-question cosine", -1, 1),
    _f("cosine_sd", "document-question cosine", -1, 1),
    _f("titles", "distinct titles", 0),
    _f("redundancy", "mean cosine of two documents", -1, 1),
    _f("new_last", "documents added by the last action", 0),
    _f("novelty_last", "1 - largest cosine of a new document to an earlier one", -1, 2),
    _f("covered_words", "share of the question's content words in the evidence", -1, 1),
    _f("covered_spans", "share of the question's capitalised spans in the evidence", -1, 1),
    _f("queries", "distinct queries", 0),
    _f("query_cosine", "latest query-question cosine", -1, 1),
    _f("query_dry", "the latest query brought nothing new, 0/1", 0, 1),
    _f("bridges", "candidates", 0),
    _f("bridge_best", "score of the best candidate", -1),
    _f("bridge_unseen", "the best candidate is the title of an unseen document, 0/1", -1, 1),
    _f("gap_known", "0/1", 0, 1),
    _f("gap_words", "words", 0),
    _f("gap_cosine", "largest gap-document cosine", -1, 1),
    _f("since_check", "steps since the last sufficiency check", -1),
    _f("last_action", "index in RGWBST", -1, 5),
    _f("failed", "actions so far that changed nothing", 0),
)
ACTION: tuple[Feature, ...] = (
    _f("expected_cost", "c_exec of the action: thousands of tokens + 0.25 per retrieval", 0),
    _f("action_cosine", "action query-question cosine", -1, 1),
    _f("action_evidence", "largest cosine of the action's query to a document", -1, 1),
)
"""Beside the one-hot action. The expected cost comes from the training trajectories (the model holds it)."""


def fingerprint() -> str:
    """Hash of the feature names: a model of another list refuses to load."""
    names = [f.name for f in STATE] + list(ACTIONS) + [f.name for f in ACTION]
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]


def state_vector(state: EvidenceState, limits: Limits, retriever: Any) -> list[float]:
    """The features of STATE, in its order. Raises DataError that names a feature that is not finite."""
    values = [
        *_question(state),
        *_progress(state, limits, retriever),
        *_frontier(state),
        *_evidence(state, retriever),
        *_query(state, retriever),
        *_bridge(state),
        *_gap(state, retriever),
        *_history(state),
    ]
    return _checked(values, STATE)


def action_vector(action: str, state: EvidenceState, retriever: Any) -> list[float]:
    """The features of ACTION without the expected cost: what is known of ``action`` before it runs."""
    query = action_query(action, state)
    if not query.strip():
        return [MISSING, MISSING]
    vector = retriever.query_vector(query)
    question = retriever.query_vector(state.question)
    return _checked([cosine(vector, question), _largest(vector, state.docs, retriever)], ACTION[1:])


def action_query(action: str, state: EvidenceState) -> str:
    """The query that the action would send; for a rewrite, which is not known before, the latest one."""
    if action == "R":
        return state.question
    if action == "G":
        return gap_text(state)
    if action == "W":
        return state.latest_query
    return state.bridges[0].query if action == "B" and state.bridges else ""


def gap_text(state: EvidenceState) -> str:
    """The gap as a query: with the question before it where it is too short to stand alone."""
    if not state.gap:
        return ""
    short = len(text.content_words(state.gap)) < 4
    return f"{state.question} {state.gap}" if short else state.gap


def _question(state: EvidenceState) -> list[float]:
    q = state.question
    wh = text.wh_class(q)
    return [
        len(text.words(q)),
        len(text.spans(q)),
        *(float(wh == kind) for kind in ("who", "when", "where", "which", "other")),
        float(bool(text.COMPARISON_CUES.search(q))),
        float(any(w in ("and", "or") for w in text.words(q))),
    ]


def _progress(state: EvidenceState, limits: Limits, retriever: Any) -> list[float]:
    evidence = sum(len(text.words(retriever.text(c))) for c in state.docs)
    return [
        state.step,
        limits.steps - state.step,
        len(state.docs),
        state.retrievals,
        state.llm_calls,
        math.log1p(state.tokens),
        math.log1p(evidence),
    ]


def _frontier(state: EvidenceState) -> list[float]:
    scores = [s for _, s in state.frontier]
    left = scores[state.cursor :]
    following = left[0] if left else MISSING
    top = scores[0] if scores else MISSING
    order = [c for c, _ in state.frontier]
    batch = next((s.new for s in reversed(state.history) if s.action == "R"), ())
    last = [scores[order.index(c)] for c in batch if c in order]
    return [
        state.cursor,
        len(left),
        following,
        top,
        following / top if left and top > 0 else MISSING,
        left[0] - left[1] if len(left) > 1 else MISSING,
        sum(last) / len(last) if last else MISSING,
    ]


def _evidence(state: EvidenceState, retriever: Any) -> list[float]:
    if not state.docs:
        return [MISSING, MISSING, MISSING, 0, MISSING, 0, MISSING, MISSING, MISSING]
    question = retriever.query_vector(state.question)
    vectors = {c: retriever.chunk_vector(c) for c in state.docs}
    near = [cosine(v, question) for v in vectors.values()]
    pairs = [cosine(vectors[a], vectors[b]) for a, b in combinations(state.docs, 2)]
    new = state.last_new
    earlier = [c for c in state.docs if c not in new]
    novelty = [1 - max(cosine(vectors[c], vectors[e]) for e in earlier) for c in new] if earlier else []
    evidence = " ".join(retriever.text(c) for c in state.docs)
    held = set(text.words(evidence))
    asked, names = text.content_words(state.question), text.spans(state.question)
    return [
        max(near),
        float(np.mean(near)),
        float(np.std(near)),
        len({retriever.title_of(c) for c in state.docs}),
        float(np.mean(pairs)) if pairs else MISSING,
        len(new),
        sum(novelty) / len(novelty) if novelty else MISSING,
        sum(w in held for w in asked) / len(asked) if asked else MISSING,
        sum(n.casefold() in evidence.casefold() for n in names) / len(names) if names else MISSING,
    ]


def _query(state: EvidenceState, retriever: Any) -> list[float]:
    latest = retriever.query_vector(state.latest_query)
    searched = [s for s in state.history if s.retrievals]
    return [
        len(set(state.queries)),
        cosine(latest, retriever.query_vector(state.question)),
        float(bool(searched) and not searched[-1].new),
    ]


def _bridge(state: EvidenceState) -> list[float]:
    if not state.bridges:
        return [0, MISSING, MISSING]
    return [len(state.bridges), state.bridges[0].score, float(state.bridges[0].unseen_title)]


def _gap(state: EvidenceState, retriever: Any) -> list[float]:
    checks = [n for n, s in enumerate(state.history) if s.action == "S"]
    near = _largest(retriever.query_vector(state.gap), state.docs, retriever) if state.gap else MISSING
    return [
        float(bool(state.gap)),
        len(text.words(state.gap)),
        near,
        state.step - 1 - checks[-1] if checks else MISSING,
    ]


def _history(state: EvidenceState) -> list[float]:
    last = ACTIONS.index(state.history[-1].action) if state.history else MISSING
    return [last, sum(s.failed for s in state.history)]


def _largest(vector: np.ndarray, docs: tuple[str, ...], retriever: Any) -> float:
    return max((cosine(vector, retriever.chunk_vector(c)) for c in docs), default=MISSING)


def _checked(values: list[float], features: tuple[Feature, ...]) -> list[float]:
    for value, feature in zip(values, features, strict=True):
        if not math.isfinite(value):
            raise DataError(f"controller feature {feature.name} is {value}: expected a finite number")
    return [round(float(v), DECIMALS) + 0.0 for v in values]
