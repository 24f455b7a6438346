"""The words of texts and how often each text has them: what both lexical indexes are built on."""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from scipy import sparse

WORD = re.compile(r"\w+")
"""A run of letters, digits and underscores."""


def count_words(texts: Sequence[str]) -> tuple[dict[str, int], sparse.csr_array]:
    """({word: column} in order of first appearance, float64 (texts, words): whole numbers), of lower-case texts."""
    numbers: defaultdict[str, int] = defaultdict()
    numbers.default_factory = numbers.__len__  # an unknown word gets the next number
    flat, ends = array("i"), array("q", [0])
    for text in texts:
        flat.extend(map(numbers.__getitem__, WORD.findall(text)))
        ends.append(len(flat))
    indices = np.frombuffer(flat, dtype=np.int32) if flat else np.zeros(0, dtype=np.int32)
    shape = (len(texts), len(numbers))
    counts = sparse.csr_array((np.ones(len(flat)), indices, np.frombuffer(ends, dtype=np.int64)), shape=shape)
    counts.sum_duplicates()
    return dict(numbers), counts
