"""`multihop estimate`: what indexes and runs will cost, from invented measurements."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from multihop import config, estimating, jsonl
from multihop.errors import DataError

REPOSITORY = Path(__file__).parents[1]
MINI = "gpt-4o-mini-2024-07-18"


def params(**changes: Any) -> config.Params:
    """Two datasets of the hub, OpenIE and a graph over it, one run; nothing is prepared."""
    return config.parse(
        {
            "profile": "paper",
            "source": "hub",
            "datasets": ["hotpotqa", "musique"],
            "data": {d: {"questions": 1000} for d in ("hotpotqa", "musique")},
            "endpoints": {"openai": {"kind": "openai"}, "embedded": {"kind": "embedded"}},
            "readers": {"mini": {"endpoint": "openai", "model": MINI}},
            "embedders": {"minilm": {"preset": "minilm"}},
            "settings": {"minilm": {"reader": "mini", "embedder": "minilm"}},
            "judge": {"reader": "mini"},
            "runs": {},
            "structures": {"openie": {"structure": "openie", "settings": ["minilm"]}},
            "graphs": {"knowledge_graph": {"structure": "knowledge_graph", "over": "openie", "settings": ["minilm"]}},
            "structured_runs": {"hipporag": {"method": "hipporag", "structure": "knowledge_graph"}},
            **changes,
        }
    )


@pytest.fixture
def demo(tmp_path) -> Path:
    """A demo project that was run: 100 passages of 55 tokens, OpenIE of 2 calls each, a graph that asks nothing."""
    shutil.copy(REPOSITORY / "prices.yaml", tmp_path)
    measured = {"llm_calls": 2, "prompt_tokens": 900, "completion_tokens": 40, "loops": 1}
    jsonl.write_json(tmp_path / "results/metrics.json", {"musique": {"minilm": {"hipporag": measured}}})
    card(tmp_path, "musique", 100, 55.0)
    for entry, calls in (("openie", 200), ("knowledge_graph", 0)):
        built(tmp_path, entry, entry, calls)
    return tmp_path


def built(root: Path, entry: str, structure: str, calls: int, dataset: str = "musique") -> None:
    actual = {"calls": calls, "prompt_tokens": 300 * calls, "completion_tokens": 50 * calls}
    path = root / "results/structures" / entry / dataset / "minilm.json"
    corpus = {"passages": 100, "tokens": 5500}
    jsonl.write_json(path, {"identity": {"structure": structure}, "corpus": corpus, "actual": actual})


def card(root: Path, dataset: str, passages: int, tokens: float, corpus: str = "c") -> None:
    content = {"corpus": {"passages": passages, "tokens": {"mean": tokens}}, "corpus_hash": corpus}
    jsonl.write_json(root / "data/prepared" / dataset / "card.json", content)


def line(name: str, p: config.Params, root: Path) -> estimating.Line:
    return next(r for r in estimating.lines(p, root) if r.run == f"(index {name})")


def profile(demo: Path) -> Path:
    folder = demo / "work/paper"
    folder.mkdir(parents=True)
    shutil.copy(demo / "prices.yaml", folder)
    return folder


def test_a_profile_is_estimated_from_the_demo_two_folders_up(demo):
    r = line("openie", params(), profile(demo))
    passages = 9811 + 11656  # Nothing is prepared: the sizes of the release; passages twice as long as the demo's.
    assert r.cells == 2 and r.calls == pytest.approx(2 * passages)
    assert r.prompt == pytest.approx(2 * 600 * passages) and r.completion == pytest.approx(2 * 100 * passages)
    assert r.usd == pytest.approx((0.15 * r.prompt + 0.60 * r.completion) / 1e6, rel=1e-4)
    assert r.hours == pytest.approx(r.calls * 1.5 / 16 / 3600)


def test_an_index_that_asks_nothing_costs_nothing(demo):
    r = line("knowledge_graph", params(), profile(demo))
    assert (r.cells, r.calls, r.prompt, r.completion, r.usd, r.hours) == (2, 0, 0, 0, 0, 0)


def test_a_prepared_corpus_counts_as_it_is_and_once_where_it_is_shared(demo):
    folder = profile(demo)
    card(folder, "musique", 300, 30.0)
    card(folder, "hotpotqa", 500, 55.0, "another")
    assert line("openie", params(), folder).calls == 2 * (300 + 500)
    assert line("openie", params(), folder).prompt == 600 * (300 + 500)  # Shorter passages cost no less.
    card(folder, "hotpotqa", 300, 30.0)
    shared = line("openie", params(), folder)
    assert (shared.calls, shared.cells) == (2 * 300, 2)


def test_settings_that_ask_the_same_are_paid_once_and_a_tree_once_for_each_embedder(demo):
    readers = {"mini": {"endpoint": "openai", "model": MINI}}
    readers["mini-t0"] = readers["mini"] | {"agent_temperature": 0.0}
    readers["warm"] = readers["mini"] | {"temperature": 0.7}
    chosen = {"a": ("mini", "minilm"), "b": ("mini", "bge"), "c": ("mini-t0", "minilm"), "d": ("mini-t0", "bge")}

    def calls(name: str, **more: tuple[str, str]) -> int:
        settings = {s: {"reader": r, "embedder": e} for s, (r, e) in (chosen | more).items()}
        p = params(
            datasets=["musique"],
            readers=readers,
            embedders={"minilm": {"preset": "minilm"}, "bge": {"preset": "bge-large-en-v1.5"}},
            settings=settings,
            structures={s: {"structure": s, "settings": list(settings)} for s in ("openie", "lightrag", "tree")},
            graphs={},
            structured_runs={},
            runs={"hipporag": {"method": "direct"}},
        )
        r = line(name, p, demo)
        assert r.cells == len(settings)
        return r.calls

    for name in ("lightrag", "tree"):
        built(demo, name, name, 200)
    assert calls("openie") == calls("lightrag") == 2 * 100
    assert calls("tree") == 2 * 2 * 100
    assert calls("openie", e=("warm", "minilm")) == 2 * 2 * 100
    assert calls("tree", e=("warm", "minilm")) == 2 * 3 * 100


def test_an_entry_of_another_name_is_estimated_by_its_structure(demo):
    p = params(
        structures={"pass_one": {"structure": "openie", "settings": ["minilm"]}},
        graphs={"knowledge_graph": {"structure": "knowledge_graph", "over": "pass_one", "settings": ["minilm"]}},
    )
    assert line("pass_one", p, demo).calls > 0


def test_the_embedded_model_takes_time_and_no_money(demo):
    model = "qwen2.5-coder-1.5b-instruct-q4_k_m"
    r = line("openie", params(readers={"mini": {"endpoint": "embedded", "model": model}}), demo)
    assert r.usd == 0
    assert r.hours == pytest.approx((r.prompt / 45 + r.completion / 17) / 3600)


def test_an_index_that_was_never_measured_is_an_error(demo):
    shutil.rmtree(demo / "results/structures/openie")
    with pytest.raises(DataError, match=r"structures\.openie: no index of structure openie was measured.*make repro"):
        estimating.lines(params(), demo)


def test_the_table_has_a_line_per_index_and_run_and_their_sum(demo):
    rows = estimating.lines(params(), demo)
    assert [r.run for r in rows] == ["(index openie)", "(index knowledge_graph)", "hipporag"]
    text = estimating.report(params(), demo).splitlines()
    assert all(any(t.startswith(r.run) for t in text) for r in rows)
    total = next(t for t in text if t.startswith("total")).split()
    assert int(total[3]) == round(sum(r.calls for r in rows))
    assert sum(r.questions for r in rows) == 2000
