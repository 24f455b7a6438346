"""Raw files of a benchmark -> the prepared layout of :mod:`multihop.data.splits`, with its data card.

Everything is read and checked before the first file is written.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from multihop import jsonl
from multihop.data import card, hipporag, rawfiles, splits, wiki2
from multihop.data.chunks import build_chunks
from multihop.data.formats import LoadedSplit, Paragraph, RawGold, sample
from multihop.errors import DataError
from multihop.types import Chunk, Gold, Hop, Passage, Question

Pool = Literal["all", "selected"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """One split with its corpus, gold mapped to passage ids; questions and gold sorted by id."""

    questions: list[Question]
    gold: list[Gold]
    passages: list[Passage]
    facts: dict[str, Any]
    """What the card says about how it was read."""


def prepare(
    raw: Path,
    out: Path,
    dataset: str,
    *,
    limit: int | None,
    limit_train: int | None,
    subset_ids: Path | None = None,
    variants: Sequence[str] = ("passages",),
    window: int = 1000,
    overlap: int = 100,
    pool: Pool = "all",
    sample_seed: int | None = None,
    drop_empty: bool = False,
    check_leakage: bool = True,
) -> dict[str, Any]:
    """Write data/prepared/<dataset> from the files in ``raw``; returns the card.

    The evaluation set is the first ``limit`` questions of the file (None: all), or exactly the ids of
    ``subset_ids`` (one a line); the training set the first ``limit_train``. With ``sample_seed`` it is a
    fixed sample in place of the first ones, for official files that are sorted by type. The corpus is the
    corpus file, or else the pooled contexts of all questions (``pool="selected"``: of the chosen ones, as
    HippoRAG did). ``window`` and ``overlap`` are tokens of variant chunk1000. ``drop_empty`` leaves
    distractors without text out of a pool (counted in the card) instead of refusing them.

    Raises DataError for malformed rows, repeated or unknown ids, an empty passage, a gold passage that is
    not in the corpus, and training questions that are also evaluation questions (``check_leakage``).
    """
    if dataset not in hipporag.ALLOWED:
        raise DataError(f"unknown dataset {dataset!r}; known: {', '.join(hipporag.ALLOWED)}")
    files = rawfiles.find(raw, dataset)
    form, whole = hipporag.load(files.questions, dataset)
    chosen = _choose(whole, files.questions, limit, sample_seed, subset_ids)
    aliases = wiki2.load_aliases(files.aliases) if files.aliases and dataset == "2wikimultihopqa" else {}
    pooled = whole if pool == "all" else chosen
    dev = _assemble(chosen, pooled, files.questions, files.corpus, aliases, drop_empty)
    train = Prepared([], [], [], {})
    if files.train and limit_train != 0:
        train_form, loaded = hipporag.load(files.train, dataset, limit_train, sample_seed)
        train = _assemble(loaded, loaded, files.train, files.train_corpus, aliases, drop_empty)
        train.facts.update(format=train_form, selection=_selection(limit_train, sample_seed))
        if check_leakage:
            _refuse_leakage(dev.questions, train.questions, files.train)
    cut = {v: build_chunks(dev.passages, v, window=window, overlap=overlap) for v in variants}
    dev.facts["format"] = form
    dev.facts["selection"] = str(subset_ids.name) if subset_ids else _selection(limit, sample_seed)
    written = _write(out, dev, train, cut)
    hashes = card.file_hashes(written, out), card.file_hashes(files.present(), raw)
    report = _card(dataset, dev, train, cut, *hashes)
    jsonl.write_json(out / "card.json", report)
    return report


def _selection(limit: int | None, seed: int | None) -> str:
    if limit is None:
        return "all questions of the file"
    return f"the first {limit} of the file" if seed is None else f"a sample of {limit} with seed {seed}"


def _choose(
    split: LoadedSplit, path: Path, limit: int | None, seed: int | None, subset: Path | None
) -> LoadedSplit:
    if subset is None:
        ids = sample([q.id for q in split.questions], limit, seed)
        rows = [n for n, q in enumerate(split.questions) if q.id in ids]
    else:
        if not subset.is_file():
            raise DataError(f"{subset}: no such file (a list of question ids, one a line)")
        ids = [line.strip() for line in subset.read_text(encoding="utf-8").splitlines() if line.strip()]
        position = {q.id: n for n, q in enumerate(split.questions)}
        unknown = [i for i in ids if i not in position]
        if unknown:
            raise DataError(f"{subset}: {len(unknown)} ids are not in {path}: {splits.name_some(unknown)}")
        splits.same_ids(subset, ids, ids)
        rows = sorted(position[i] for i in ids)
    if not rows:
        raise DataError(f"{path}: no evaluation question is left (limit {limit}, subset {subset})")
    columns = (split.questions, split.gold, split.contexts, split.where)
    return LoadedSplit(*([column[n] for n in rows] for column in columns))


def _assemble(
    split: LoadedSplit,
    pooled: LoadedSplit,
    path: Path,
    corpus_file: Path | None,
    aliases: dict[str, tuple[str, ...]],
    drop_empty: bool,
) -> Prepared:
    if corpus_file:
        corpus, dropped = hipporag.load_corpus(corpus_file), 0
    else:
        corpus, dropped = _pool(pooled, path, drop_empty)
    passages = [Passage(f"p{n}", title, text) for n, (title, text) in enumerate(corpus.paragraphs)]
    ids = {(p.title, p.text): p.id for p in passages}
    place = corpus_file or f"the pooled contexts of {path}"
    gold = [_map(g, ids, w, place, aliases) for g, w in zip(split.gold, split.where, strict=True)]
    facts = {
        "corpus_from": corpus_file.name if corpus_file else "pooled contexts",
        "duplicates_collapsed": corpus.duplicates,
        "empty_passages_dropped": dropped,
        "supporting_facts_beyond_their_paragraph": sum(g.unresolved_sentences for g in split.gold),
    }
    by_id = {"key": lambda item: item.id}
    return Prepared(sorted(split.questions, **by_id), sorted(gold, **by_id), passages, facts)


def _pool(pooled: LoadedSplit, path: Path, drop_empty: bool) -> tuple[hipporag.Corpus, int]:
    """The pooled corpus, and how many paragraphs without text were left out of it."""
    corpus = hipporag.pool(pooled.contexts)
    if not corpus.paragraphs:
        raise DataError(f"{path}: no corpus file beside it and no contexts in it: nothing to search in")
    kept = [p for p in corpus.paragraphs if p[1].strip()]
    if not drop_empty and len(kept) < len(corpus.paragraphs):
        for context, where in zip(pooled.contexts, pooled.where, strict=True):
            for title, text in context:
                if not text.strip():
                    raise DataError(f"{where}: the passage {title!r} has no text; correct or remove it")
    return hipporag.Corpus(kept, corpus.duplicates), len(corpus.paragraphs) - len(kept)


def _map(
    raw: RawGold, ids: dict[Paragraph, str], where: str, place: object, aliases: dict[str, tuple[str, ...]]
) -> Gold:
    """Gold with passage ids in place of (title, text). Raises DataError naming question and title."""
    if not raw.supporting:
        raise DataError(f"{where}: question {raw.id!r} names no supporting passage")

    def passage_id(paragraph: Paragraph) -> str:
        if paragraph not in ids:
            same = sum(title == paragraph[0] for title, _ in ids)
            raise DataError(
                f"{where}: the gold passage {paragraph[0]!r} of question {raw.id!r} is not in {place} "
                f"({same} passages there have this title, with another text)"
            )
        return ids[paragraph]

    return Gold(
        id=raw.id,
        answers=tuple(dict.fromkeys([*raw.answers, *aliases.get(raw.answer_id or "", ())])),
        supporting=tuple(passage_id(p) for p in raw.supporting),
        type=raw.type,
        hops=raw.hops,
        decomposition=tuple(
            Hop(h.question, h.answer, passage_id(h.passage) if h.passage else None) for h in raw.decomposition
        ),
        evidences=raw.evidences,
        exact=raw.exact,
        supporting_sentences=tuple((passage_id(p), s) for p, s in raw.supporting_sentences),
        answer_id=raw.answer_id,
    )


def plain_text(text: str) -> str:
    """Case, punctuation and spacing removed: two such questions with one text are the same question."""
    kept = (c if c.isalnum() else " " for c in unicodedata.normalize("NFKC", text).lower())
    return " ".join("".join(kept).split())


def _refuse_leakage(dev: list[Question], train: list[Question], path: Path) -> None:
    ids, texts = {q.id for q in dev}, {plain_text(q.text) for q in dev}
    same = [q.id for q in train if q.id in ids or plain_text(q.text) in texts]
    if same:
        raise DataError(
            f"{path}: {len(same)} training questions are also evaluation questions, by id or by text: "
            f"{splits.name_some(same)}"
        )


def _write(out: Path, dev: Prepared, train: Prepared, cut: dict[str, list[Chunk]]) -> list[Path]:
    """Write all but the card; returns what was written. Chunks of variants no longer asked for go."""
    for stale in (out / "chunks").glob("*.jsonl"):
        if stale.stem not in cut:
            stale.unlink()
    content: dict[str, Sequence[Any]] = {}
    for prefix, split in (("", dev), ("train_", train)):
        content[f"{prefix}questions.jsonl"] = split.questions
        content[f"{prefix}gold.jsonl"] = split.gold
        content[f"{prefix}passages.jsonl"] = split.passages
    content |= {f"chunks/{variant}.jsonl": chunks for variant, chunks in cut.items()}
    if train.passages:  # the corpus that training searches, cut as variant `passages`
        content["chunks/train.jsonl"] = build_chunks(train.passages, "passages")
    for name, items in content.items():
        jsonl.write(out / name, map(asdict, items))
    jsonl.write_text(out / "ids.txt", "".join(q.id + "\n" for q in dev.questions))
    return [out / name for name in (*content, "ids.txt")]


def _card(
    dataset: str,
    dev: Prepared,
    train: Prepared,
    cut: dict[str, list[Chunk]],
    written: dict[str, str],
    raw: dict[str, str],
) -> dict[str, Any]:
    return {
        "dataset": dataset,
        "evaluation": card.split_card(dev.gold) | dev.facts,
        "training": card.split_card(train.gold) | train.facts | {"passages": len(train.passages)},
        "corpus": card.corpus_card(dev.passages),
        "corpus_hash": written["passages.jsonl"],
        "ids_sha256": written["ids.txt"],
        "variants": {variant: card.variant_card(chunks) for variant, chunks in cut.items()},
        "gold_mapping": card.mapping_card(dev.gold, dev.passages, cut),
        "files": written,
        "raw_files": raw,
    }
