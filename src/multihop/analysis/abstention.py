"""Does an answer say that it gives none? The phrase list of the failure analysis (paper 1, App. E,
rule 2, which prints two examples; the rest of the list is ours).

``phrase_but_answer`` marks the known false positive, a phrase about a side detail beside an answer
("... not found, but the answer is X"); it is reported as a sensitivity and never moves a category.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_FIND = r"(?:find|determine|answer|locate)"
_FOUND = r"(?:found|determined|located|answered)"
_SUPPORT = r"(?:information|evidence)"
_COULD_NOT = r"(?:could not|couldn't|cannot|can not|can't)"
_ADVERB = r"(?:definitively |directly |conclusively |explicitly )?"
_PHRASES = (
    rf"\bunable to {_ADVERB}{_FIND}\b",
    rf"\b{_COULD_NOT} {_ADVERB}{_FIND}\b",
    rf"\b{_COULD_NOT} be {_ADVERB}{_FOUND}\b",
    r"\bnot found\b",
    rf"\bno {_SUPPORT} (?:[\w-]+ ){{0,10}}?(?:found|available|provided)\b",
    rf"\bno relevant (?:{_SUPPORT}|documents?)\b",
    rf"\bnot {_ADVERB}(?:mentioned|specified|stated|provided|available) in\b",
    rf"\b(?:does|do|did)(?: not|n't) {_ADVERB}(?:contain|mention|provide|specify)\b",
    rf"\binsufficient {_SUPPORT}\b",
    rf"\bnot enough {_SUPPORT}\b",
    r"\bi (?:do not|don't) know\b",
    r"\bremains? (?:unclear|uncertain)\b",
)
_PATTERN = re.compile("|".join(f"(?:{p})" for p in _PHRASES), re.IGNORECASE)
_WHOLE_UNKNOWN = re.compile(r"\W*unknown\W*", re.IGNORECASE)
_GIVEN = r"(?!\W*(?:not|unknown|unclear|uncertain|unavailable|undetermined)\b)"
_ANSWER_TOO = re.compile(
    r"\b(?:but|however|although|though|nevertheless|still|so|therefore|thus)\b[^.?!]{0,80}?"
    rf"\b(?:answer (?:is|was|would be)|it (?:is|was)|(?:is|was) (?:most )?(?:likely|probably))\b{_GIVEN}"
    rf"|\b(?:the|final|my|best) answer(?: is\b|:){_GIVEN}",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Abstention:
    """What was found in one answer."""

    phrase: str
    """The matched words, lower-cased."""
    phrase_but_answer: bool
    """An answer seems to be given beside the phrase: a possible false positive."""


def find_abstention(answer: str) -> Abstention | None:
    """The first abstention phrase in the whole answer, or None.

    Case and white space do not count; curly apostrophes are read as straight ones. "Unknown"
    abstains only when it is the whole answer ("The Unknown", a title, does not).
    """
    text = " ".join(answer.replace("’", "'").split())
    if _WHOLE_UNKNOWN.fullmatch(text):
        return Abstention("unknown", False)
    found = _PATTERN.search(text)
    if found is None:
        return None
    return Abstention(found[0].lower().strip(), _ANSWER_TOO.search(text) is not None)
