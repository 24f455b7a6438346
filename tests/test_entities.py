"""Named entities by spaCy: names, what is kept in the store, what is said where spaCy is missing."""

from __future__ import annotations

import importlib.metadata
import importlib.util

import pytest
from entity_fixture import built
from fake_embedder import PASSAGES, small_retriever

from multihop.errors import ConfigError, DataError, ReplayMiss
from multihop.structures import entities
from multihop.structures.entities import Params, normal
from multihop.structures.registry import STRUCTURES


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Ines  Havel", "ines havel"),
        ("The Salt\nRoad", "salt road"),
        ("a Norr", "norr"),
        ("The", "the"),
        ('"Dorvik",', "dorvik"),
        ('"The Salt Road"', "salt road"),
        ("(the Arle)", "arle"),
        ("STRASSE Straße", "strasse strasse"),
        ("İzmir", "i̇zmir"),
        ("U.S.", "u.s"),
        (" . ", ""),
        ("", ""),
        ("the .", "the"),
    ],
)
def test_normal_names(text, name):
    assert normal(text) == name


@pytest.mark.parametrize("text", ['"The Salt Road"', "the (a) Arle", "A. The Norr"])
def test_a_normal_name_is_its_own(text):
    assert normal(normal(text)) == normal(text)


# -- the index, with a recogniser of capitalised words in spaCy's place


@pytest.fixture
def recognised(monkeypatch):
    """What was asked of the recogniser, batch by batch."""
    asked: list[list[str]] = []

    def recognise(params, texts):
        asked.append(list(texts))
        words = [[w.strip(".,!?") for w in text.split()] for text in texts]
        return [
            [[w, "CARDINAL" if w.isdigit() else "PERSON"] for w in found if w[:1].isupper() or w.isdigit()]
            for found in words
        ]

    monkeypatch.setattr(entities, "_recognise", recognise)
    return asked


def test_entities_once_each_in_order_without_dropped_labels(tmp_path, recognised):
    retriever = small_retriever(tmp_path, [("Arle", "Dorvik and 12 and arle and Dorvik and The."), ("b", "none here")])
    index, statistics = built("entities", retriever, tmp_path / "e")
    assert index.of("p0") == ("arle", "dorvik", "the") and index.of("p1") == ()
    assert statistics == {"passages": 2, "entities": 3, "mentions": 3, "passages_without_entities": 1}
    numbers, _ = built("entities", retriever, tmp_path / "n", drop=[])
    assert "12" in numbers.of("p0") and len(recognised) == 1  # labels are stored, what is dropped is not a new question


def test_a_question_goes_through_the_same_recogniser(tmp_path, recognised):
    index, _ = built("entities", small_retriever(tmp_path), tmp_path / "e")
    assert index.of_text("was it in Dorvik or in Dorvik?") == ("dorvik",)
    assert index.of_text("was it there?") == () == index.of_text("")
    with pytest.raises(KeyError):
        index.of("p99")


def test_what_is_stored_is_not_recognised_again(tmp_path, recognised):
    retriever = small_retriever(tmp_path)
    first, _ = built("entities", retriever, tmp_path / "a")
    second, _ = built("entities", retriever, tmp_path / "b")
    assert [len(batch) for batch in recognised] == [5] and first.of("p0") == second.of("p0")
    assert (tmp_path / "a/entities.jsonl").read_bytes() == (tmp_path / "b/entities.jsonl").read_bytes()
    built("entities", retriever, tmp_path / "c", model="another_model")
    assert len(recognised) == 2


def test_a_replay_needs_no_spacy_and_says_what_is_missing(tmp_path, recognised, monkeypatch):
    retriever = small_retriever(tmp_path)
    index, _ = built("entities", retriever, tmp_path / "a")
    retriever.allow = False
    assert built("entities", retriever, tmp_path / "b")[0].of("p1") == index.of("p1") and len(recognised) == 1
    with pytest.raises(ReplayMiss, match="MULTIHOP_LIVE"):
        index.of_text("Who is Tam Orrel?")


def test_a_stopped_build_goes_on_where_it_was(tmp_path, recognised, monkeypatch):
    monkeypatch.setattr(entities, "BLOCK", 2)
    retriever, works = small_retriever(tmp_path), entities._recognise

    def stopped(params, texts):
        if len(recognised) == 2:
            raise KeyboardInterrupt
        return works(params, texts)

    monkeypatch.setattr(entities, "_recognise", stopped)
    with pytest.raises(KeyboardInterrupt):
        built("entities", retriever, tmp_path / "a")
    monkeypatch.setattr(entities, "_recognise", works)
    built("entities", retriever, tmp_path / "b")
    assert [len(block) for block in recognised] == [2, 2, 1]


def test_another_spacy_is_another_question(tmp_path, recognised):
    retriever = small_retriever(tmp_path)
    for version in ("3.8.18", "9.0.0"):
        built("entities", retriever, tmp_path / version, spacy_version=version)
    assert len(recognised) == 2


def test_duplicate_passages_are_recognised_once(tmp_path, recognised):
    retriever = small_retriever(tmp_path, [("Dorvik", "Dorvik is a town.")] * 13)
    index, statistics = built("entities", retriever, tmp_path / "e")
    assert recognised == [["Dorvik\nDorvik is a town."]] and statistics["mentions"] == 13
    assert all(index.of(f"p{i}") == ("dorvik",) for i in range(13))


def test_a_missing_file_is_said(tmp_path):
    with pytest.raises(DataError, match=r"entities\.jsonl"):
        STRUCTURES.create("entities", {}, "test").load(tmp_path, small_retriever(tmp_path), None)


def test_unknown_params_are_refused():
    with pytest.raises(ConfigError, match="modle"):
        STRUCTURES.create("entities", {"modle": "x"}, "here")


# -- spaCy itself


@pytest.fixture(autouse=True)
def unloaded():
    entities._pipeline.cache_clear()


def test_without_spacy_or_the_model_it_says_what_to_install(tmp_path, monkeypatch):
    with pytest.raises(ReplayMiss, match=r"no_such_model.*requirements-spacy\.txt"):
        built("entities", small_retriever(tmp_path / "a"), tmp_path / "e", model="no_such_model")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ReplayMiss, match="pip install"):
        built("entities", small_retriever(tmp_path / "b"), tmp_path / "f")


def test_another_version_of_the_model_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "9.9.9")
    with pytest.raises(ReplayMiss, match=r"9\.9\.9.*3\.8\.0"):
        built("entities", small_retriever(tmp_path), tmp_path / "e")


def test_another_version_of_spacy_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "9.9.9" if name == "spacy" else "3.8.0")
    with pytest.raises(ReplayMiss, match=r"spacy 9\.9\.9.*spacy_version says 3\.8\.18"):
        built("entities", small_retriever(tmp_path), tmp_path / "e")


def test_the_real_recogniser(tmp_path, monkeypatch):
    spacy = pytest.importorskip("spacy")
    pytest.importorskip(Params().model)
    loaded, load = [], spacy.load
    monkeypatch.setattr(spacy, "load", lambda *args, **given: loaded.append(args) or load(*args, **given))
    index, statistics = built("entities", small_retriever(tmp_path, PASSAGES[:2]), tmp_path / "e")
    assert "tomas reed" in index.of("p1") and "1990" in index.of("p1") and statistics["passages"] == 2
    assert index.of_text("Who was mayor of London in 1990?") == ("london", "1990")
    assert len(loaded) == 1  # not once a question
    p = Params()
    assert entities._pipeline(p.model, p.version, p.spacy_version).pipe_names == ["ner"]  # the rest costs as much again
