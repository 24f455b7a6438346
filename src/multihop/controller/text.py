"""Small reading aids of the controller: content words, capitalised spans, question words."""

from __future__ import annotations

import re
from functools import lru_cache

STOP_WORDS = frozenset(
    """a about after all also am an and any are as at be been before being between both but by can could did do does
    during each for from had has have having he her his how i if in into is it its more most no nor not of on one or
    other our out over own same she so some such than that the their them then there these they this those through to
    under until up was we were what when where which while who whom whose why will with would you your""".split()
)
COMPARISON_CUES = re.compile(
    r"\b(?:both|same|either|neither|than|older|younger|earlier|later|first|last|more|fewer|less|longer|shorter|larger|"
    r"smaller|higher|lower|taller|difference|compared)\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_CAPITALISED = r"[A-ZÀ-ÖØ-Þ][\w'’.-]*"
_SPAN = re.compile(rf"{_CAPITALISED}(?:\s+(?:(?:of|the|de|la|le|von|van|and|&)\s+)?{_CAPITALISED})*")


def words(text: str) -> list[str]:
    """Lower-cased words."""
    return [w.lower() for w in _WORD.findall(text)]


def content_words(text: str) -> list[str]:
    return [w for w in words(text) if w not in STOP_WORDS]


def spans(text: str) -> list[str]:
    """Capitalised spans, in order; question words and sentence openers that are stop words are cut off."""
    return list(_spans(text))


@lru_cache(maxsize=1 << 12)  # the sentences of a question's evidence are read again at every step
def _spans(text: str) -> tuple[str, ...]:
    found = []
    for match in _SPAN.finditer(text):
        parts = match.group().split()
        while parts and parts[0].lower().strip(".,") in STOP_WORDS:
            parts = parts[1:]
        span = " ".join(parts).rstrip(".,'’-")
        if span:
            found.append(span)
    return tuple(found)


def wh_class(question: str) -> str:
    """who, when, where, which (and what), or other: the first question word."""
    for word in words(question):
        if word in ("who", "whom", "whose"):
            return "who"
        if word in ("when", "where"):
            return word
        if word in ("which", "what"):
            return "which"
    return "other"
