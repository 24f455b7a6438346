"""The demo world: what it writes is well-formed, and every question follows from its gold passages alone."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from multihop.data.world import Asked, World, build_world, draw_questions, write_raw
from multihop.data.world.blocks import MONTHS
from multihop.errors import DataError

DATASETS = ("hotpotqa", "2wikimultihopqa", "musique")
SEED, ASK = 11, 7


@cache
def world(passages: int = 180) -> World:
    return build_world(seed=SEED, passages=passages)


@cache
def asked(dataset: str, passages: int = 180, n: int = 20, train: int = 40) -> tuple[list[Asked], list[Asked]]:
    return draw_questions(world(passages), dataset, n, train, ASK)


@pytest.fixture(scope="module")
def raw(tmp_path_factory) -> dict[str, dict]:
    """The written files of each dataset, read back."""
    out = {}
    for dataset in DATASETS:
        folder = tmp_path_factory.mktemp("raw") / dataset
        write_raw(world(), dataset, folder, 20, 40, ASK)
        files = {}
        for path in folder.iterdir():
            text = path.read_text(encoding="utf-8")
            lines = path.suffix == ".jsonl" or path.name == "id_aliases.json"
            files[path.stem] = [json.loads(x) for x in text.splitlines()] if lines else json.loads(text)
        out[dataset] = files
    return out


def paragraphs(dataset: str, row: dict) -> list[tuple[str, str]]:
    if dataset == "musique":
        return [(p["title"], p["paragraph_text"]) for p in row["paragraphs"]]
    joint = "" if dataset == "hotpotqa" else " "
    return [(title, joint.join(sentences)) for title, sentences in row["context"]]


# -- the passages ------------------------------------------------------------------------------


def test_same_arguments_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        fresh = build_world(seed=5, passages=150)
        for dataset in DATASETS:
            write_raw(fresh, dataset, tmp_path / name / dataset, 8, 8, 3)
    files = sorted(p.relative_to(tmp_path / "one") for p in (tmp_path / "one").rglob("*.json*"))
    assert len(files) == 10
    for path in files:
        assert (tmp_path / "one" / path).read_bytes() == (tmp_path / "two" / path).read_bytes()


def test_another_seed_gives_another_world() -> None:
    assert not set(world().passages) & set(build_world(seed=SEED + 1, passages=180).passages)


@pytest.mark.parametrize("passages", [60, 180, 700])
def test_size_and_form_of_the_passages(passages: int) -> None:
    made = world(passages)
    assert passages - 2 <= len(made.passages) <= passages
    assert len(set(made.passages)) == len(made.passages)
    for (_, text), sentences in zip(made.passages, made.sentences, strict=True):
        assert 2 <= len(sentences) <= 4 and text == " ".join(sentences)
        assert 30 <= len(text.split()) <= 60
        assert all(s[0].isupper() or s[0].isdigit() for s in sentences) and text.endswith(".")
        assert not re.search(r"\b[Aa] [aeiouAEIOU]\w", text) and not re.search(r"[{}]|  ", text), text
        assert not re.search(r"\ban [^aeiouAEIOU]", text), text


def test_names_are_unique_but_for_namesakes() -> None:
    made = world(700)
    bearers = Counter(e.name for e in made.entities)
    shared = [e for e in made.entities if bearers[e.name] > 1]
    assert shared and all(e.ambiguous and e.title != e.name for e in shared)
    assert len({e.title for e in made.entities}) == len(made.entities)
    about = Counter(made.about)
    for title, count in Counter(t for t, _ in made.passages).items():
        assert count <= 2, title  # a second excerpt at most
    assert 2 in about.values(), "no entity has a second excerpt"


def test_the_demo_world_has_namesakes_and_successive_holders() -> None:
    made = world()
    persons = Counter(made.entities[i].name for i in set(made.about) if made.entities[i].kind == "person")
    assert 2 in persons.values()
    both = [p for p, _ in made.forward if (p, "mayor_1") in made.forward and (p, "mayor_2") in made.forward]
    assert both, "no office with an older and a newer holder"


@pytest.mark.parametrize("passages", [180, 700])
def test_each_fact_stands_in_its_sentence_and_in_no_other_passage(passages: int) -> None:
    made = world(passages)
    assert len({(f.subject, f.relation) for f in made.facts}) == len(made.facts)
    for fact in made.facts:
        title, text = made.passages[fact.passage]
        sentence = made.sentences[fact.passage][fact.sentence]
        assert fact.value in sentence
        assert made.entities[fact.subject].name in f"{title} {text}"
        assert all(str(year) in sentence for year in fact.years or ())
        if fact.object is not None and made.entities[fact.object].ambiguous:
            bearer = made.entities[fact.object]
            assert f"{bearer.occupation or bearer.kind} {bearer.name}" in sentence
    for (_, text), about in zip(made.passages, made.about, strict=True):
        first = text.split(". ")[0] + "."
        name = made.entities[about].name
        assert name.split(" of ")[-1] in first, "a passage names its subject in its first sentence"


# -- the files ---------------------------------------------------------------------------------

FIELDS = {
    "hotpotqa": {"_id", "question", "answer", "type", "level", "supporting_facts", "context"},
    "2wikimultihopqa": {"_id", "question", "answer", "answer_id", "type", "supporting_facts", "evidences",
                        "evidences_id", "entity_ids", "context"},
    "musique": {"id", "question", "answer", "answer_aliases", "answerable", "paragraphs",
                "question_decomposition"},
}  # fmt: skip


@pytest.mark.parametrize("dataset", DATASETS)
def test_official_fields_and_contexts(raw, dataset: str) -> None:
    corpus = [(row["title"], row["text"]) for row in raw[dataset]["corpus"]]
    assert corpus == world().passages
    assert [row["idx"] for row in raw[dataset]["corpus"]] == list(range(len(corpus)))
    for row in raw[dataset]["dev"] + raw[dataset]["train"]:
        assert set(row) == FIELDS[dataset]
        found = paragraphs(dataset, row)
        assert len(found) == len(set(found)) == (20 if dataset == "musique" else 10)
        assert set(found) <= set(corpus)
        assert 8 <= len(row["question"].split()) <= 25 and row["question"].endswith("?")
        if dataset != "musique":
            titles = [title for title, _ in row["context"]]
            assert len(set(titles)) == len(titles)
            for title, index in row["supporting_facts"]:
                assert 0 <= index < len(dict(row["context"])[title])


def test_hotpot_sentences_after_the_first_begin_with_a_space(raw) -> None:
    for row in raw["hotpotqa"]["dev"]:
        assert row["type"] in ("bridge", "comparison")
        for _, (first, *rest) in row["context"]:
            assert first[0] != " " and all(s[0] == " " for s in rest)


def test_musique_decompositions_point_at_gold_paragraphs_and_earlier_steps(raw) -> None:
    for row in raw["musique"]["dev"] + raw["musique"]["train"]:
        steps = row["question_decomposition"]
        assert row["id"].split("__")[0] in ("2hop", "3hop1", "3hop2", "4hop1", "4hop2", "4hop3")
        assert int(row["id"][0]) == len(steps) and steps[-1]["answer"] == row["answer"]
        gold = {p["idx"] for p in row["paragraphs"] if p["is_supporting"]}
        assert {s["paragraph_support_idx"] for s in steps} == gold and len(gold) == len(steps)
        for i, step in enumerate(steps):
            assert all(int(n) <= i for n in re.findall(r"#(\d)", step["question"]))
            assert step["answer"] in row["paragraphs"][step["paragraph_support_idx"]]["paragraph_text"] or (
                step["answer"] in row["paragraphs"][step["paragraph_support_idx"]]["title"]
            )
        used = set(re.findall(r"#(\d)", " ".join(s["question"] for s in steps)))
        assert used == {str(i) for i in range(1, len(steps))}, "a hop that no later hop needs"


def test_wiki2_evidences_and_aliases(raw) -> None:
    aliases = {row["Q_id"]: row for row in raw["2wikimultihopqa"]["id_aliases"]}
    for row in raw["2wikimultihopqa"]["dev"] + raw["2wikimultihopqa"]["train"]:
        text = " ".join(f"{t} {p}" for t, p in paragraphs("2wikimultihopqa", row))
        assert (
            len(row["evidences"])
            == len(row["evidences_id"])
            == (4 if row["type"].startswith("bridge") else 2)
        )
        assert all(subject in text and value in text for subject, _, value in row["evidences"])
        if row["answer_id"] is not None:
            assert set(aliases[row["answer_id"]]) == {"Q_id", "aliases", "demonyms"}


@pytest.mark.parametrize("dataset", DATASETS)
def test_train_and_dev_are_disjoint(raw, dataset: str) -> None:
    rows = raw[dataset]["dev"] + raw[dataset]["train"]
    assert len(rows) == 60
    for key in (lambda r: r.get("_id") or r["id"], lambda r: re.sub(r"\W+", " ", r["question"].lower())):
        assert len({key(r) for r in rows}) == 60
    dev, train = asked(dataset)
    assert len({tuple(sorted(s.fact.id for s in q.steps)) for q in dev + train}) == 60


def test_the_first_four_questions_show_the_range(raw) -> None:
    assert {r["id"][0] for r in raw["musique"]["dev"][:4]} == {"2", "3", "4"}
    assert len({r["type"] for r in raw["2wikimultihopqa"]["dev"][:4]}) == 4
    assert Counter(r["type"] for r in raw["hotpotqa"]["dev"][:4])["bridge"] in (2, 3)


# -- the answers: an independent reading of the facts ---------------------------------------------

LITTLE = {"the", "a", "an", "of", "and", "for"}
LEAST = ("first", "older", "earlier", "fewer", "smaller", "shorter")
MOST = ("later", "younger", "more", "larger", "longer")


def measure(value: str) -> int:
    """A printed date, year or number as a number that can be compared."""
    if found := re.fullmatch(r"(\d+) (\w+) (\d{4})", value):
        return int(found[3]) * 10000 + MONTHS.index(found[2]) * 100 + int(found[1])
    return int(value.replace(",", ""))


def follow(made: World, q: Asked, passages: set[int] | None) -> set[str]:
    """Every answer that the facts of these passages (None: of the world) allow."""
    facts = [f for f in made.facts if passages is None or f.passage in passages]
    if not q.open:
        return compare(made, q, facts)
    reached: list[set] = []  # after each step: entity ids, or printed literals
    for step in q.steps:
        relation = step.fact.relation
        refs = [reached[int(n) - 1] for n in re.findall(r"#(\d)", step.question)]
        starts = refs[0] if refs else {step.fact.object if step.inverse else step.fact.subject}
        if step.fact.years:  # whoever held the office in that year, whatever the fact's own name
            years = refs[1] if len(refs) > 1 else {re.search(r"\b(\d{4})\b", step.question)[1]}
            post = relation[:-2]
            hits = {f.object for f in facts for y in years if f.relation in (f"{post}_1", f"{post}_2")
                    and f.subject in starts and f.years[0] < int(y) < f.years[1]}  # fmt: skip
        elif step.inverse:
            hits = {f.subject for f in facts if f.relation == relation and f.object in starts}
        else:
            hits = {f.value if f.object is None else f.object
                    for f in facts if f.relation == relation and f.subject in starts}  # fmt: skip
        reached.append(hits)
    return {made.entities[x].name if isinstance(x, int) else x for x in reached[-1]}


def compare(made: World, q: Asked, facts: list) -> set[str]:
    known = {(f.subject, f.relation): f for f in facts}
    sides = [known.get((s.fact.subject, s.fact.relation)) for s in q.steps[:2]]
    ends = list(sides)
    if len(q.steps) == 4 and all(sides):
        ends = [known.get((f.object, s.fact.relation)) for f, s in zip(sides, q.steps[2:], strict=True)]
    if None in ends:
        return set()
    if q.answer in ("yes", "no"):
        return {"yes" if ends[0].object == ends[1].object else "no"}
    said = set(
        re.findall(r"[a-z]+", q.text.split(",")[0] if not q.text.startswith("Of ") else q.text.split(",")[1])
    )
    least, most = said & set(LEAST), said & set(MOST)
    assert bool(least) != bool(most), q.text
    best = (min if least else max)(range(2), key=lambda i: measure(ends[i].value))
    return {made.entities[sides[best].subject].name}


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize(("passages", "n"), [(180, 20), (700, 200)])
def test_every_answer_follows_from_the_gold_passages_and_from_no_fewer(
    dataset, passages: int, n: int
) -> None:
    made = world(passages)
    for q in [q for split in asked(dataset, passages, n, 40) for q in split]:
        gold = set(q.passages)
        assert follow(made, q, gold) == {q.answer}, q.text
        assert follow(made, q, None) == {q.answer}, q.text
        for left_out in gold:
            assert q.answer not in follow(made, q, gold - {left_out}), q.text


@pytest.mark.parametrize("dataset", DATASETS)
def test_questions_name_where_they_start_and_tell_namesakes_apart(dataset: str) -> None:
    made = world(700)
    for q in [q for split in asked(dataset, 700, 200, 40) for q in split]:
        starts = [s for s in q.steps if "#" not in s.question][: 2 if not q.open else None]
        for step in starts:
            start = made.entities[step.fact.object if step.inverse else step.fact.subject]
            assert start.name in q.text
            if start.ambiguous:
                assert (start.occupation or start.kind) in q.text, q.text


@pytest.mark.parametrize("dataset", DATASETS)
def test_open_answers_are_neither_given_away_nor_frequent(dataset: str) -> None:
    dev, train = asked(dataset, 700, 200, 40)
    answers = Counter(q.answer for q in dev if q.open)
    assert max(answers.values()) <= 0.05 * len(dev)
    for q in dev + train:
        if q.open:
            assert not set(q.answer.lower().split()) & set(q.text.lower().rstrip("?").split()) - LITTLE


@pytest.mark.parametrize("dataset", DATASETS[:2])
def test_two_way_answers_are_balanced(dataset: str) -> None:
    dev, _ = asked(dataset, 700, 200, 40)
    yes = Counter(q.answer for q in dev if q.answer in ("yes", "no"))
    assert abs(yes["yes"] - yes["no"]) <= 1 and sum(yes.values()) >= 20
    two = [q for q in dev if not q.open and q.answer not in ("yes", "no")]
    first = sum(q.text.find(q.answer) < len(q.text) - len(q.answer) - 3 for q in two)
    assert abs(2 * first - len(two)) <= 8


def test_too_much_asked_is_an_error_that_says_how_many_there_are(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gives \d+ different 2wikimultihopqa questions, 4000 were"):
        write_raw(build_world(2, 60), "2wikimultihopqa", tmp_path, 2000, 2000, 1)
    assert not list(tmp_path.iterdir())
    with pytest.raises(DataError, match="at least 60"):
        build_world(1, 10)
    with pytest.raises(DataError, match="unknown dataset"):
        write_raw(world(), "squad", tmp_path, 1, 1, 1)
