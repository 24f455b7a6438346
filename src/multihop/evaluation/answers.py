"""Exact match, token F1 and Contain-Match, each by its benchmark's official rule.

The normaliser is the one that SQuAD, HotpotQA, 2WikiMultiHopQA, MuSiQue and paper 1's
peers share. Where the benchmarks differ (yes/no answers, aliases) the difference is a
line of ``score_answer``.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

from multihop.errors import DataError
from multihop.types import Gold

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_DELETE_PUNCTUATION = str.maketrans("", "", string.punctuation)
_SPACE_PUNCTUATION = str.maketrans(string.punctuation, " " * len(string.punctuation))
_CLOSED = frozenset({"yes", "no", "noanswer"})

YES_NO_RULE = frozenset({"hotpotqa", "2wikimultihopqa"})
"""Datasets whose official F1 is 0 when one side is yes/no/noanswer and the other differs."""
ALIASES_IN_HEADLINE = frozenset({"musique"})
"""Datasets whose headline EM and F1 take the best of the answer and its aliases."""
DATASETS = frozenset({"hotpotqa", "2wikimultihopqa", "musique"})


def normalise(text: str) -> str:
    """Lower case, ASCII punctuation deleted, whole words a/an/the dropped, spaces collapsed.

    Curly quotes, en-dashes and other non-ASCII marks survive, as in the official scripts.
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_DELETE_PUNCTUATION)).split())


def exact_match(prediction: str, gold: str) -> float:
    return float(normalise(prediction) == normalise(gold))


def token_f1(prediction: str, gold: str, *, yes_no_rule: bool) -> float:
    """F1 of the two bags of normalised tokens, 0..1.

    With ``yes_no_rule`` (HotpotQA, 2Wiki) a yes/no/noanswer on either side scores only against
    itself, and two empty sides share no token: 0. Without it (MuSiQue) two empty sides score 1.
    """
    predicted, expected = normalise(prediction), normalise(gold)
    if yes_no_rule and predicted != expected and (predicted in _CLOSED or expected in _CLOSED):
        return 0.0
    p, g = predicted.split(), expected.split()
    if not p or not g:
        return float(p == g and not yes_no_rule)
    shared = sum((Counter(p) & Counter(g)).values())
    return 2 * shared / (len(p) + len(g))


def contain_strict(prediction: str, gold: str) -> float:
    """The peers' Contain-Match: the normalised gold is a character substring of the prediction.

    No word boundary ("us" is in "russia"), and a gold that normalises to nothing is in everything.
    A blank prediction or gold is 0.
    """
    if not prediction.strip() or not gold.strip():
        return 0.0
    return float(normalise(gold) in normalise(prediction))


def contain(prediction: str, gold: str) -> float:
    """``contain_strict``, but a gold that normalises to nothing is contained in nothing."""
    return contain_strict(prediction, gold) if normalise(gold) else 0.0


def contain_word(prediction: str, gold: str) -> float:
    """``contain`` with word boundaries around the gold; never larger than ``contain``.

    Punctuation may also count as a boundary, so that "Oslo's" and "Oslo-born" hold "Oslo".
    """
    if not contain(prediction, gold):
        return 0.0
    forms = ((normalise(prediction), normalise(gold)), (_spaced(prediction), _spaced(gold)))
    return float(any(_holds_words(text, words) for text, words in forms))


def _spaced(text: str) -> str:
    return normalise(text.translate(_SPACE_PUNCTUATION))


def _holds_words(text: str, words: str) -> bool:
    return bool(words) and re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text) is not None


def best(scores: Iterable[float]) -> float:
    return max(scores, default=0.0)


def gold_answers(gold: Gold) -> tuple[str, ...]:
    """The gold answer, then its aliases (2Wiki: those of id_aliases.json, where it was prepared with it).

    Raises DataError when the question has no gold answer.
    """
    if not gold.answers:
        raise DataError(f"question {gold.id!r}: no gold answer in gold.jsonl; prepare the data again")
    return gold.answers


def score_answer(dataset: str, short: str, gold: Gold) -> dict[str, float]:
    """``em, f1`` by the dataset's official rule and ``em_aliases, f1_aliases`` with every alias.

    HotpotQA: yes/no rule, no aliases. 2WikiMultiHopQA: yes/no rule, aliases only in ``*_aliases``
    (its v1.1 rule; the papers do not name it). MuSiQue: no yes/no rule, best of answer and aliases.
    A blank short answer is no answer: 0. Raises DataError for an unknown dataset.
    """
    if dataset not in DATASETS:
        raise DataError(f"dataset {dataset!r} has no scoring rule; known: {', '.join(sorted(DATASETS))}")
    everything = gold_answers(gold)
    if not short.strip():
        return dict.fromkeys(("em", "f1", "em_aliases", "f1_aliases"), 0.0)
    rule = dataset in YES_NO_RULE
    headline = everything if dataset in ALIASES_IN_HEADLINE else everything[:1]
    return {
        "em": best(exact_match(short, g) for g in headline),
        "f1": best(token_f1(short, g, yes_no_rule=rule) for g in headline),
        "em_aliases": best(exact_match(short, g) for g in everything),
        "f1_aliases": best(token_f1(short, g, yes_no_rule=rule) for g in everything),
    }
