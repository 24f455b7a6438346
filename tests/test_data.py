"""The data layer: official formats, the prepared layout, chunks, the card, and every kind of bad input.

All text here is invented.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multihop import jsonl
from multihop.data import chunks, fingerprint, formats, hotpotqa, musique, plain, splits, tokens, wiki2
from multihop.data.card import normalise_answer
from multihop.data.hipporag import load_corpus
from multihop.data.prepare import prepare
from multihop.errors import DataError
from multihop.types import Chunk, Passage, Span

LAMP = ["Orlin Vash built the Tidal Lamp.", " He was born in Quell Harbour."]
TOWN = ["Quell Harbour lies on Lake Ombra.", " Its mayor is Ysolde Brandt."]
MOSS = ["Moss Street is a street."]


def hotpot_row(qid: Any = "h1", **changes: Any) -> dict[str, Any]:
    return {
        "_id": qid,
        "question": f"On which lake lies the birthplace of the builder of the Tidal Lamp ({qid})?",
        "answer": "Lake Ombra",
        "type": "bridge",
        "level": "hard",
        "supporting_facts": [["Tidal Lamp", 1], ["Quell Harbour", 0]],
        "context": [["Moss Street", MOSS], ["Quell Harbour", TOWN], ["Tidal Lamp", LAMP]],
    } | changes


def wiki_row(qid: Any = "w1", **changes: Any) -> dict[str, Any]:
    row = hotpot_row(qid, type="compositional", evidences=[["Tidal Lamp", "builder", "Orlin Vash"]])
    return row | {"answer_id": "Q77", "evidences_id": [], "entity_ids": "Q1_Q2"} | changes


def musique_row(qid: Any = "3hop1__1_2_3", **changes: Any) -> dict[str, Any]:
    paragraphs = [
        {"idx": 0, "title": "Harbour", "paragraph_text": "Its mayor is Ysolde.", "is_supporting": True},
        {"idx": 1, "title": "Noise", "paragraph_text": "Nothing here.", "is_supporting": False},
        {"idx": 2, "title": "Lamp", "paragraph_text": "Orlin built the lamp.", "is_supporting": True},
        {"idx": 3, "title": "Lamp", "paragraph_text": "Orlin came from Quell.", "is_supporting": True},
    ]
    steps = [
        {"id": 1, "question": "Who had the #1 lamp?", "answer": "Orlin", "paragraph_support_idx": 2},
        {"id": 2, "question": "Where did #1 come from?", "answer": "Quell", "paragraph_support_idx": 3},
        {"id": 3, "question": "#2 >> mayor", "answer": "Ysolde", "paragraph_support_idx": 0},
    ]
    return {
        "id": qid,
        "question": f"Who is mayor where the lamp's builder came from ({qid})?",
        "answer": "Ysolde",
        "answer_aliases": ["Mayor Ysolde", "Ysolde"],
        "answerable": True,
        "paragraphs": paragraphs,
        "question_decomposition": steps,
    } | changes


def plain_row(qid: Any = "q1", **changes: Any) -> dict[str, Any]:
    return {
        "id": qid,
        "question": f"Who built the lamp ({qid})?",
        "answer": "Orlin",
        "answer_aliases": [],
        "type": "2hop",
        "hops": 2,
        "supporting": [{"title": "Lamp", "text": "Orlin built it."}, {"title": "Lamp", "text": "It is old."}],
        "contexts": [],
    } | changes


CORPUS = [
    {"id": "x0", "title": "Lamp", "text": "Orlin built it."},
    {"id": "x1", "title": "Lamp", "text": "It is old."},
    {"id": "x2", "title": "Moss", "text": "A street."},
]


def put(folder: Path, **files: Any) -> Path:
    """Write raw files: ``dev_json=rows`` is dev.json with a list, ``dev_jsonl=rows`` is dev.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in files.items():
        stem, kind = name.rsplit("_", 1)
        lines = (
            json.dumps(rows, ensure_ascii=False)
            if kind == "json"
            else "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        )
        (folder / f"{stem}.{kind}").write_text(lines, encoding="utf-8")
    return folder


def run(raw: Path, dataset: str, **options: Any) -> tuple[Path, dict[str, Any]]:
    out = raw.parent / f"prepared-{raw.name}"
    options = {"limit": None, "limit_train": None, "variants": ["passages", "chunk1000"]} | options
    return out, prepare(raw, out, dataset, **options)


# Formats


def test_hotpotqa_joins_sentences_without_a_space_and_keeps_the_order_of_the_facts(tmp_path):
    split = hotpotqa.load(put(tmp_path, dev_json=[hotpot_row()]) / "dev.json")
    gold = split.gold[0]
    assert gold.supporting == (("Tidal Lamp", "".join(LAMP)), ("Quell Harbour", "".join(TOWN)))
    assert gold.supporting[0][1] == "Orlin Vash built the Tidal Lamp. He was born in Quell Harbour."
    assert gold.supporting_sentences[0] == (gold.supporting[0], "He was born in Quell Harbour.")
    assert (gold.type, gold.hops, gold.answers) == ("bridge", 2, ("Lake Ombra",))
    assert len(split.contexts[0]) == 3


def test_2wiki_joins_with_a_space_and_adds_aliases_and_demonyms(tmp_path):
    context = [["A", ["One.", "Two."]], ["A", ["One.", "Two."]], ["B", ["Three."]]]
    row = wiki_row(context=context, supporting_facts=[["B", 0], ["A", 5]])
    aliases = [{"Q_id": "Q77", "aliases": ["Ombra", "Lake Ombra"], "demonyms": ["Ombran"]}]
    raw = put(tmp_path / "raw", dev_json=[row], id_aliases_jsonl=aliases)
    (raw / "id_aliases.jsonl").rename(raw / "id_aliases.json")  # the official file is JSON lines
    gold = wiki2.load(raw / "dev.json").gold[0]
    assert gold.supporting == (("B", "Three."), ("A", "One. Two."))
    assert gold.evidences == (("Tidal Lamp", "builder", "Orlin Vash"),)
    assert gold.unresolved_sentences == 1  # sentence 5 of a paragraph of two
    out, report = run(raw, "2wikimultihopqa")
    assert splits.gold(out)[0].answers == ("Lake Ombra", "Ombra", "Ombran")
    assert splits.gold(out)[0].answer_id == "Q77"
    assert report["evaluation"]["supporting_facts_beyond_their_paragraph"] == 1
    assert report["evaluation"]["duplicates_collapsed"] == 1


def test_musique_fills_references_to_earlier_steps_only(tmp_path):
    gold = musique.load(put(tmp_path, dev_jsonl=[musique_row()]) / "dev.jsonl").gold[0]
    assert [h.question for h in gold.decomposition] == [
        "Who had the #1 lamp?",
        "Where did Orlin come from?",
        "Quell >> mayor",
    ]
    assert [text for _, text in gold.supporting] == [
        "Orlin built the lamp.",
        "Orlin came from Quell.",
        "Its mayor is Ysolde.",
    ]
    assert (gold.type, gold.hops, gold.answers) == ("3hop1", 3, ("Ysolde", "Mayor Ysolde"))


def test_plain_says_nothing_about_hops_whose_passage_is_not_named(tmp_path):
    steps = [{"question": "Who?", "answer": "Orlin"}, {"question": "Age of #1?", "answer": "old"}]
    named = [{**step, "title": "Lamp"} for step in steps]
    rows = [plain_row("a", decomposition=steps), plain_row("b", decomposition=named, gold_exact=False)]
    unnamed, parallel = plain.load(put(tmp_path, questions_jsonl=rows) / "questions.jsonl").gold
    assert [h.passage for h in unnamed.decomposition] == [None, None]
    assert [h.passage for h in parallel.decomposition] == list(parallel.supporting)
    assert unnamed.exact and not parallel.exact
    assert parallel.decomposition[1].question == "Age of Orlin?"


@pytest.mark.parametrize(
    ("dataset", "row"),
    [("hotpotqa", hotpot_row()), ("2wikimultihopqa", wiki_row()), ("musique", musique_row())],
)
def test_hipporag_protocol_takes_the_corpus_file_in_its_order(tmp_path, dataset, row):
    paragraphs = [(p["title"], p["paragraph_text"]) for p in row.get("paragraphs", [])]
    joint = " " if dataset == "2wikimultihopqa" else ""
    paragraphs += [(title, joint.join(lines)) for title, lines in row.get("context", [])]
    extra = [{"title": "Extra", "text": "More.", "idx": 0}]
    corpus = extra + [{"title": t, "text": x, "idx": n} for n, (t, x) in enumerate(paragraphs, 1)]
    raw = put(tmp_path / "raw", **{f"{dataset}_json": [row], f"{dataset}_corpus_json": corpus})
    out, report = run(raw, dataset)
    found = splits.passages(out)
    assert [(p.id, p.title) for p in found] == [(f"p{n}", c["title"]) for n, c in enumerate(corpus)]
    assert report["evaluation"]["corpus_from"] == f"{dataset}_corpus.json"
    assert all(pid in {p.id for p in found} for pid in splits.gold(out)[0].supporting)


# The prepared layout


def test_prepare_writes_the_layout_sorted_hashed_and_the_same_twice(tmp_path):
    rows = [hotpot_row("z"), hotpot_row("a"), hotpot_row("m")]
    raw = put(tmp_path / "raw", dev_json=rows, train_json=[hotpot_row("t", question="Another one?")])
    out, report = run(raw, "hotpotqa", limit=2)
    assert [q.id for q in splits.questions(out)] == ["a", "z"]  # the first two of the file, then sorted
    assert (out / "ids.txt").read_text() == "a\nz\n"
    assert report["ids_sha256"] == hashlib.sha256(b"a\nz\n").hexdigest()
    assert report["corpus_hash"] == jsonl.file_sha256(out / "passages.jsonl") == splits.corpus_hash(out)
    assert report["files"]["chunks/chunk1000.jsonl"] == jsonl.file_sha256(out / "chunks/chunk1000.jsonl")
    assert report["raw_files"] == {n: jsonl.file_sha256(raw / n) for n in ("dev.json", "train.json")}
    assert [q.id for q in splits.questions(out, "train")] == ["t"]
    assert len(splits.passages(out, "train")) == 3
    assert splits.card(out) == json.loads(json.dumps(report))
    before = {p: p.read_bytes() for p in sorted(out.rglob("*.*")) if p.is_file()}
    run(raw, "hotpotqa", limit=2)
    assert before == {p: p.read_bytes() for p in sorted(out.rglob("*.*")) if p.is_file()}
    run(raw, "hotpotqa", limit=2, variants=["passages"])
    assert not (out / "chunks/chunk1000.jsonl").exists()
    with pytest.raises(DataError, match=r"chunk1000.*not prepared.*passages"):
        splits.chunks(out, "chunk1000")


def test_identity_is_title_and_text(tmp_path):
    again = [*CORPUS, {"id": "x3", "title": "Lamp", "text": "It is old."}]
    raw = put(tmp_path / "raw", questions_jsonl=[plain_row()], corpus_jsonl=again)
    out, report = run(raw, "musique")
    assert [p.text for p in splits.passages(out)] == ["Orlin built it.", "It is old.", "A street."]
    assert splits.gold(out)[0].supporting == ("p0", "p1")
    assert report["evaluation"]["duplicates_collapsed"] == 1
    assert report["corpus"]["titles_shared_by_several_passages"] == 1
    assert report["corpus"]["passages_with_a_shared_title"] == 2
    assert splits.questions(out, "train") == splits.passages(out, "train") == []


def test_pool_of_all_or_of_the_selected_questions(tmp_path):
    other = hotpot_row("b", context=[*hotpot_row()["context"], ["Far", ["Away."]]])
    raw = put(tmp_path / "raw", dev_json=[hotpot_row("a"), other])
    assert run(raw, "hotpotqa", limit=1)[1]["corpus"]["passages"] == 4
    assert run(raw, "hotpotqa", limit=1, pool="selected")[1]["corpus"]["passages"] == 3


def test_a_sample_grows_with_its_size_and_ignores_the_order_of_the_file(tmp_path):
    ids = [f"q{n}" for n in range(50)]
    small, large = formats.sample(ids, 5, 3), formats.sample(ids, 9, 3)
    assert small < large and len(large) == 9
    assert formats.sample(ids[::-1], 5, 3) == small != formats.sample(ids, 5, 4)
    raw = put(
        tmp_path / "raw",
        dev_json=[hotpot_row(i) for i in ids],
        train_json=[hotpot_row(f"t{i}", question=f"Train {i}?") for i in ids],
    )
    out, report = run(raw, "hotpotqa", limit=5, limit_train=4, sample_seed=3)
    assert {q.id for q in splits.questions(out)} == small
    assert {q.id for q in splits.questions(out, "train")} == formats.sample([f"t{i}" for i in ids], 4, 3)
    assert report["evaluation"]["selection"] == "a sample of 5 with seed 3"


def test_subset_ids_are_taken_exactly(tmp_path):
    raw = put(tmp_path / "raw", dev_json=[hotpot_row(i) for i in ("a", "b", "c")])
    subset = tmp_path / "ids"
    subset.write_text("c\na\n")
    out, _ = run(raw, "hotpotqa", subset_ids=subset)
    assert [q.id for q in splits.questions(out)] == ["a", "c"]
    for text, words in (("c\nnope\n", "'nope'"), ("c\nc\n", "repeated.*'c'"), ("", "no evaluation question")):
        subset.write_text(text)
        with pytest.raises(DataError, match=words):
            run(raw, "hotpotqa", subset_ids=subset)
    with pytest.raises(DataError, match="no such file"):
        run(raw, "hotpotqa", subset_ids=tmp_path / "missing")


def test_id_zero_non_ascii_and_an_answer_that_normalises_to_nothing(tmp_path):
    corpus = [{"id": 0, "title": "Čapek’s Łódź", "text": "東京タワー — naïve 🗼."}, *CORPUS]
    row = plain_row(
        0,
        answer="The",
        question="東京 où?",
        supporting=[{"title": "Čapek’s Łódź", "text": "東京タワー — naïve 🗼."}],
    )
    raw = put(tmp_path / "raw", questions_jsonl=[row, plain_row("1", answer="ö")], corpus_jsonl=corpus)
    out, report = run(raw, "musique")
    assert [q.id for q in splits.questions(out)] == ["0", "1"]
    assert splits.gold(out)[0].supporting == ("p0",)
    assert report["evaluation"]["answers_normalising_to_empty"] == 1
    assert "東京タワー — naïve 🗼." in (out / "passages.jsonl").read_text(encoding="utf-8")
    assert splits.passages(out)[0].full == "Čapek’s Łódź\n東京タワー — naïve 🗼."
    assert splits.chunks(out, "passages")[0] == Chunk(
        "p0", splits.passages(out)[0].full, (Span("p0", 0, len(splits.passages(out)[0].full)),)
    )


def test_normalised_answers():
    assert normalise_answer("  The  Quell-Harbour, a town! ") == "quellharbour town"
    assert normalise_answer("An") == normalise_answer("!?") == ""


# Bad input


def raises(tmp_path: Path, dataset: str, words: str, **files: Any) -> None:
    with pytest.raises(DataError, match=words):
        run(put(tmp_path / "raw", **files), dataset)
    assert not (tmp_path / "prepared-raw").exists()  # nothing is written before all is checked


def test_ids_that_repeat_or_are_missing(tmp_path):
    raises(
        tmp_path,
        "hotpotqa",
        r"dev.json, item 2.*'0' occurs twice.*item 1",
        dev_json=[hotpot_row(0), hotpot_row("0")],
    )
    for bad in (None, "", " ", True, 1.5, ["a"], "a\nb"):
        raises(tmp_path, "hotpotqa", r"item 1 \(line 1\)", dev_json=[hotpot_row(bad)])
    without = {k: v for k, v in hotpot_row().items() if k != "_id"}
    raises(tmp_path, "hotpotqa", "no id", dev_json=[without])


def test_gold_that_is_not_in_the_corpus(tmp_path):
    corpus = [CORPUS[0], {"id": "y", "title": "Lamp", "text": "It is new."}]
    raises(
        tmp_path,
        "musique",
        r"line 1.*'Lamp' of question 'q1' is not in .*corpus.jsonl \(2 passages",
        questions_jsonl=[plain_row()],
        corpus_jsonl=corpus,
    )
    (tmp_path / "raw/corpus.jsonl").unlink()
    raises(tmp_path, "musique", "nothing to search in", questions_jsonl=[plain_row()])
    raises(
        tmp_path,
        "musique",
        "names no supporting",
        questions_jsonl=[plain_row(supporting=[])],
        corpus_jsonl=CORPUS,
    )


def test_a_passage_without_text(tmp_path):
    empty = hotpot_row(context=[*hotpot_row()["context"], ["Void", [" "]]])
    raises(
        tmp_path,
        "hotpotqa",
        r"item 2 \(line 1\): the passage 'Void' has no text",
        dev_json=[hotpot_row("a"), empty],
    )
    out, report = run(put(tmp_path / "raw", dev_json=[empty]), "hotpotqa", drop_empty=True)
    assert report["evaluation"]["empty_passages_dropped"] == 1
    assert "Void" not in {p.title for p in splits.passages(out)}
    path = put(tmp_path / "c", corpus_jsonl=[*CORPUS, {"id": 3, "title": "Void", "text": ""}])
    with pytest.raises(DataError, match=r"corpus.jsonl, line 4: the passage 'Void' has no text"):
        load_corpus(path / "corpus.jsonl")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("dev.jsonl", json.dumps(musique_row()) + '\n{"id": "2hop__', r"dev.jsonl, line 2: not JSON"),
        ("dev.jsonl", json.dumps(musique_row()) + "\n7\n", r"line 2: expected a JSON object, found int 7"),
        ("dev.json", '[\n{"id": 1,\n "x": }\n]', r"dev.json, item 1 \(starts in line 2\): not JSON"),
        ("dev.json", json.dumps([musique_row()])[:-1], r"line 1: the list breaks off"),
        ("dev.json", json.dumps([musique_row(), musique_row("b")])[:-40], r"item 2 .*breaks off"),
        ("dev.json", json.dumps([musique_row()]) + "x", r"line 1: something follows"),
        ("dev.json", "[]", "holds no questions"),
        ("dev.json", " \n", "the file is empty"),
        (
            "dev.json",
            '[{"id": 1, "text": "?"}]',
            r"no format of musique.*paragraphs, question_decomp.*Found: id",
        ),
        ("other.json", "[]", r"no questions of musique. Found: other.json. Expected:"),
        ("dev.json", json.dumps([hotpot_row()]), "no format of musique"),
    ],
)
def test_malformed_files_say_where(tmp_path, name, text, words):
    raw = put(tmp_path / "raw")
    (raw / name).write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=words):
        run(raw, "musique")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"question": 5}, "field 'question' should be a text, found int 5"),
        ({"question": " "}, "has no text"),
        ({"answer": None}, "field 'answer' should be a text, found NoneType null"),
        ({"answer": []}, "an empty list"),
        ({"answer": "a\ud800"}, "surrogate"),
        ({"context": [["A", "One."]]}, r"\[title, \[sentence"),
        ({"context": [["A", ["One.", None]]]}, "a sentence should be a text"),
        ({"supporting_facts": [["A"]]}, "supporting fact should be"),
        ({"supporting_facts": [["Nowhere", 0]]}, "not in the context"),
        ({"type": True}, "field 'type' should be a text"),
    ],
)
def test_malformed_rows_name_the_field(tmp_path, change, words):
    raw = put(tmp_path / "raw")
    (raw / "dev.json").write_text(json.dumps([hotpot_row("a"), hotpot_row("b", **change)]))
    with pytest.raises(DataError, match=rf"dev.json, item 2 \(line 1\).*{words}"):
        run(raw, "hotpotqa")


def test_malformed_musique_and_plain_rows(tmp_path):
    step = {"question": "?", "answer": "a", "paragraph_support_idx": 9}
    raises(
        tmp_path,
        "musique",
        "step: paragraph_support_idx 9",
        dev_jsonl=[musique_row(question_decomposition=[step])],
    )
    raises(tmp_path, "musique", "unanswerable", dev_jsonl=[musique_row(answerable=False)])
    (tmp_path / "raw/dev.jsonl").unlink()
    for change, words in (
        ({"hops": "2"}, "'hops' should be a whole"),
        ({"supporting": ["x"]}, "an object"),
        ({"gold_exact": 1}, "true or false"),
        ({"evidences": [["a", "b"]]}, "subject"),
    ):
        raises(tmp_path, "musique", words, questions_jsonl=[plain_row(**change)], corpus_jsonl=CORPUS)


def test_not_utf8_missing_folder_and_two_files_for_one_part(tmp_path):
    raw = put(tmp_path / "raw")
    (raw / "dev.json").write_bytes(b'[{"id": "\xff"}]')
    with pytest.raises(DataError, match="not UTF-8"):
        run(raw, "musique")
    (raw / "musique.json").write_text("[]")
    with pytest.raises(DataError, match=r"dev.json and musique.json could both be the questions"):
        run(raw, "musique")
    with pytest.raises(DataError, match="no such folder"):
        run(tmp_path / "none", "musique")
    with pytest.raises(DataError, match="unknown dataset 'squad'"):
        run(raw, "squad")


def test_leakage_by_id_or_by_text_is_refused(tmp_path):
    text = "ON WHICH lake lies the birthplace of the builder of the Tidal-Lamp (a)"
    for leak in (hotpot_row("a", question="Another?"), hotpot_row("t", question=text)):
        raises(
            tmp_path,
            "hotpotqa",
            f"1 training questions are also.*{leak['_id']!r}",
            dev_json=[hotpot_row("a")],
            train_json=[leak],
        )
        assert run(tmp_path / "raw", "hotpotqa", limit_train=0)[1]["training"]["questions"] == 0
        out, _ = run(tmp_path / "raw", "hotpotqa", check_leakage=False)
        shutil.rmtree(out)


def test_a_long_list_is_read_in_windows_with_true_line_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(formats._Reader, "BLOCK", 16)
    path = tmp_path / "dev.json"
    path.write_text(json.dumps([{"id": n, "é": "x" * n} for n in range(40)], indent=1, ensure_ascii=False))
    rows = list(formats.read_rows(path))
    assert [row.data["id"] for row in rows] == list(range(40))
    assert rows[3].where.endswith("item 4 (line 14)")


def test_same_ids_names_what_is_missing_foreign_or_repeated():
    splits.same_ids("x", ["0", "1"], ["1", "0"])
    with pytest.raises(DataError, match=r"x: .*1 missing \('1'\); 1 foreign \('9'\); 1 repeated \('0'\)"):
        splits.same_ids("x", ["0", "1"], ["0", "0", "9"])


# Chunks


def covered(passages: list[Passage], window: int, overlap: int) -> list[Chunk]:
    """The chunks, after checking that each is made of its spans and that the spans cover every passage
    in order, without a gap."""
    made = chunks.build_chunks(passages, "chunk1000", window=window, overlap=overlap)
    stream = chunks.Stream.of(passages)
    starts = dict(zip((p.id for p in passages), stream.starts, strict=True))
    inside = {i for p in passages for i in range(starts[p.id], starts[p.id] + len(p.full))}
    reached = dict.fromkeys(starts, 0)
    for chunk, (a, b) in zip(made, stream.windows(window, overlap), strict=True):
        at = min(inside.intersection(range(a, b)))
        assert stream.text[at : at + len(chunk.text)] == chunk.text
        assert chunk.spans[0].start == 0 and chunk.spans[-1].end == len(chunk.text)
        for span in chunk.spans:
            first, last = (at + edge - starts[span.passage_id] for edge in (span.start, span.end))
            assert 0 <= first <= reached[span.passage_id] and first < last
            reached[span.passage_id] = max(reached[span.passage_id], last)
    assert reached == {p.id: len(p.full) for p in passages}
    return made


WORDS = st.sampled_from(
    ["Orlin", "the", "lamp.", "Ünder", "東京。", "“Yes!”", "\n", "a", "x" * 40, "🗼", "3.5"]
)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.lists(st.lists(WORDS, min_size=1, max_size=60).map(" ".join), min_size=1, max_size=6),
    st.integers(5, 60),
    st.integers(0, 20),
)
def test_chunks_cover_every_passage_exactly(texts, window, overlap):
    overlap = min(overlap, (window - 1) // 2)
    passages = [Passage(f"p{n}", f"T{n}", f"{n} {text}") for n, text in enumerate(texts)]
    made = covered(passages, window, overlap)
    assert [c.id for c in made] == [f"c{n}" for n in range(len(made))]
    assert all(tokens.count(c.text) <= window + 4 for c in made)


def test_a_cut_just_at_the_end_of_a_passage_makes_no_empty_span():
    for words in range(1, 12):
        covered([Passage(f"p{n}", "Tide", " lamp" * words) for n in range(3)], 5, 0)


def test_chunks_end_where_sentences_end_and_overlap_by_whole_sentences():
    text = " ".join(f"Sentence number {n} says that lamp {n} is lit." for n in range(40))
    made = chunks.build_chunks([Passage("p0", "Lamps", text)], "chunk1000", window=100, overlap=20)
    assert len(made) > 3
    assert all(c.text.rstrip().endswith("lit.") for c in made)
    assert all(c.text.startswith("Sentence number") for c in made[1:])
    for a, b in pairwise(made):
        shared = next(n for n in range(len(b.text), -1, -1) if a.text.endswith(b.text[:n]))
        assert 0 < tokens.count(b.text[:shared]) <= 20


@pytest.mark.parametrize(
    ("unit", "count"),
    [(" tide", 100_000), ("x", 800_000), ("東", 100_000), ("Lamp lit. ", 34_000), ("\n", 1_600_000)],
)
def test_a_passage_of_100_000_tokens(unit, count):
    long = Passage("p1", "Long", "Start. " + unit * count + " End.")
    passages = [Passage("p0", "A", "Before it."), long, Passage("p2", "B", "After it.")]
    made = chunks.build_chunks(passages, "chunk1000")
    assert tokens.count(long.full) >= 100_000
    assert made[0].text.startswith("A\nBefore it.") and made[-1].text.endswith("B\nAfter it.")
    spans = [s for c in made for s in c.spans if s.passage_id == "p1"]
    assert sum(s.end - s.start for s in spans) >= len(long.full)
    assert max(tokens.count(c.text) for c in made) <= 1003


def test_chunk_arguments_are_checked():
    one = [Passage("p0", "A", "B.")]
    with pytest.raises(DataError, match="known: passages, chunk1000"):
        chunks.build_chunks(one, "chunk500")
    with pytest.raises(DataError, match="overlap 50"):
        chunks.build_chunks(one, "chunk1000", window=100, overlap=50)
    with pytest.raises(DataError, match="window 4"):
        chunks.build_chunks(one, "chunk1000", window=4, overlap=0)
    assert chunks.build_chunks(one, "chunk1000")[0].text == "A\nB."


@given(st.text(max_size=80))
def test_token_ends_reach_the_end_of_the_text(text):
    ends = tokens.token_ends(text)
    assert len(ends) == tokens.count(text) and (ends or [0])[-1] == len(text)
    assert ends == sorted(ends)


# Fingerprints


def holding(pid: str, text: str) -> Chunk:
    return Chunk(f"c-{pid}", text, (Span(pid, 0, len(text)),))


def test_fingerprint_finds_respaced_text_only_when_normalised():
    text = "The Tidal Lamp (built 1911) stands at Quell Harbour, on the far shore of Lake Ombra."
    passage = Passage("p0", "Lamp", text)
    found = fingerprint.match([passage], [holding("p0", "x " + text.lower().replace("(", "( "))])
    assert not found["literal"]["p0"].found
    assert found["normalised"]["p0"] == fingerprint.Match(True, True, False)
    assert fingerprint.rates(found, ["p0", "p0"])["literal"] == {"found": 0.0, "right": 0.0, "ambiguous": 0}


def test_fingerprint_ties_go_to_the_longest_common_prefix():
    start = "Quell Harbour is a town on the north shore of Lake Ombra. It "
    first, second = Passage("p0", "Q", start + "has a lamp."), Passage("p1", "Q", start + "has a mayor.")
    found = fingerprint.match([first, second], [holding("p0", first.full), holding("p1", second.full)])
    for way in ("literal", "normalised", "normalised_fallbacks"):
        assert found[way] == dict.fromkeys(("p0", "p1"), fingerprint.Match(True, True, True))


def test_fingerprint_fallbacks_find_a_paragraph_whose_beginning_is_lost():
    text = "".join(f"word{n:02d}" for n in range(30))
    passage, short = Passage("p0", "A", text), Passage("p1", "B", "Tiny one.")
    made = [holding("p0", text[30:]), holding("p1", "B Tiny one. And more."), holding("p2", "other")]
    found = fingerprint.match([passage, short], made)
    assert not found["normalised"]["p0"].found and found["normalised_fallbacks"]["p0"].right
    assert found["normalised"]["p1"].right  # a text below 40 characters is its own fingerprint
    assert fingerprint.fingerprints("") == []


def test_the_card_reports_mapping_for_all_and_for_labelled_gold(tmp_path):
    rows = [plain_row("a"), plain_row("b", gold_exact=False, hops=3, type="3hop1")]
    _, report = run(put(tmp_path / "raw", questions_jsonl=rows, corpus_jsonl=CORPUS), "musique")
    assert report["evaluation"]["by_type"] == {"2hop": 1, "3hop1": 1}
    assert report["evaluation"]["by_hops"] == {"2": 1, "3": 1}
    for variant in ("passages", "chunk1000"):
        mapping = report["gold_mapping"][variant]
        assert (mapping["all"]["gold_passages"], mapping["gold_exact"]["gold_passages"]) == (4, 2)
        assert mapping["all"]["exact"] == mapping["all"]["fingerprint"]["literal"]["right"] == 1.0
    assert report["corpus"]["tokens"]["max"] == max(
        tokens.count(f"{c['title']}\n{c['text']}") for c in CORPUS
    )
