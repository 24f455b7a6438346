"""`multihop estimate`: what indexes and runs will cost, from invented measurements; the demo's beside its actual."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from multihop import config, estimating, jsonl
from multihop.errors import ConfigError, DataError

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY / "benchmarks"))
import estimate as benchmark  # noqa: E402

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


# -- what several lines ask alike


def asked(demo: Path, **lines: dict[str, list[int]]) -> None:
    """expected/asked.json: ten requests of 100 + 10 tokens; ``lines``: setting -> those that 2 answers asked."""
    cells = {
        line: {s: {"answers": 2, "asked": n, "judged": [9]} for s, n in found.items()}
        for line, found in lines.items()
    }
    settings = [["minilm", "demo-model"], ["lsa", "demo-model"], ["other", "another-model"]]
    content = {"requests": [[100, 10]] * 10, "settings": settings, "lines": cells}
    jsonl.write_json(demo / "expected/asked.json", content)


def runs(
    demo: Path, names: list[str], settings: list[str], source: str = "demo", **changes: Any
) -> dict[str, float]:
    """Calls of each run for 100 questions."""
    p = params(
        source=source,
        datasets=["musique"],
        data={"musique": {"questions": 100}},
        settings={s: {"reader": "mini", "embedder": "minilm"} for s in settings},
        runs={name: {"method": "vanilla"} for name in names},
        structures={},
        graphs={},
        structured_runs={},
        **changes,
    )
    return {r.run: r.calls for r in estimating.lines(p, demo) if r.run in names}


def test_a_request_that_an_earlier_run_made_is_not_paid_again(demo):
    asked(demo, a={"minilm": [0, 1, 2, 3]}, b={"minilm": [2, 3, 4, 5, 6, 7]})
    assert runs(demo, ["a", "b"], ["minilm"]) == {"a": 100 * 2.5, "b": 100 * 2.0}  # the judge's: in the first
    assert runs(demo, ["b", "a"], ["minilm"]) == {"b": 100 * 3.5, "a": 100 * 1.0}
    assert runs(demo, ["b"], ["minilm"]) == {"b": 100 * 3.5}


def test_a_second_embedder_asks_what_the_demos_second_asked_anew(demo):
    asked(demo, a={"minilm": [0, 1, 2, 3], "lsa": [0, 1, 4, 5], "other": [8]})
    assert runs(demo, ["a"], ["one"]) == {"a": 250}
    assert runs(demo, ["a"], ["one", "two"]) == {"a": 250 + 100}
    assert runs(demo, ["a"], ["one", "two", "three"]) == {"a": 250 + 100 + 100}
    asked(demo, a={"minilm": [0, 1, 2, 3]})
    assert runs(demo, ["a"], ["one", "two"]) == {"a": 250 + 250}  # nothing known of a second: as dear as the first


def test_in_another_corpus_a_second_embedder_shares_only_what_no_search_decides(demo):
    asked(demo, a={"minilm": [0, 1, 2, 3], "lsa": [0, 1, 4, 5]}, direct={"minilm": [6, 7], "lsa": [6, 7]})
    assert runs(demo, ["a"], ["one", "two"], source="hub") == {"a": 250 + 250}
    cells = {name: {"retrieval_calls": n} for name, n in (("a", 1.0), ("direct", 0.0))}
    jsonl.write_json(demo / "results/metrics.json", {"musique": {"minilm": cells}})
    assert runs(demo, ["direct"], ["one", "two"], source="hub") == {"direct": 150}
    assert runs(demo, ["a"], ["one", "two"], source="hub") == {"a": 250 + 250}


def test_a_run_of_another_name_is_estimated_by_its_method_and_shares_nothing(demo):
    asked(demo, a={"minilm": [0, 1, 2, 3]})
    assert runs(demo, ["a", "mine"], ["minilm"]) == {"a": 250, "mine": 250}


@pytest.mark.parametrize(("temperature", "times"), [(0.0, 1), (0.7, 3)])
def test_seeds_are_paid_where_there_is_more_than_one_draw(demo, temperature, times):
    asked(demo, a={"minilm": [0, 1]})
    readers = {"mini": {"endpoint": "openai", "model": MINI, "temperature": temperature}}
    assert runs(demo, ["a"], ["minilm"], readers=readers, seeds=[0, 1, 2]) == {"a": 150 * times}


def test_a_judge_is_paid_by_what_its_calls_were_measured_to_take(demo):
    measured = {"llm_calls": 1, "prompt_tokens": 500, "completion_tokens": 40, "n": 4, "judge_calls": 4,
                "judge_tokens": 728, "extract_tokens": 0}  # fmt: skip
    jsonl.write_json(demo / "results/metrics.json", {"musique": {"minilm": {"mine": measured}}})
    assert runs(demo, ["mine"], ["minilm"]) == {"mine": 200}
    p = params(datasets=["musique"], runs={"mine": {"method": "vanilla"}}, structures={}, graphs={}, structured_runs={})
    [r] = estimating.lines(p, demo)
    assert r.prompt + r.completion == pytest.approx(1000 * (540 + 182))


def test_a_reader_without_a_price_is_an_error_before_anything_is_computed(demo):
    with pytest.raises(ConfigError, match=r"readers\.mini: .*no price for model 'nobody/knows'"):
        estimating.lines(params(readers={"mini": {"endpoint": "openai", "model": "nobody/knows"}}), demo)


# -- the demo


def test_the_demo_is_estimated_within_a_quarter_of_what_it_asked():
    p = config.load(REPOSITORY / "params.yaml")
    estimated = estimating.total(estimating.lines(p, REPOSITORY))
    actual = benchmark.actual(p, REPOSITORY, REPOSITORY / "data/recordings")
    assert actual.calls > 2000
    for name in ("calls", "prompt", "completion"):
        assert 0.75 < getattr(estimated, name) / getattr(actual, name) < 1.25, name


def test_what_was_measured_is_the_recording_whole():
    """Every request of the recording is some line's; else the file is of another recording."""
    content = jsonl.read_json(REPOSITORY / "expected/asked.json")
    recording = REPOSITORY / "data/recordings/demo.jsonl.zst"
    todo = "run `python benchmarks/estimate.py --measure`"
    assert content["recording"] == jsonl.file_sha256(recording)[:16], todo
    cells = [cell for line in content["lines"].values() for cell in line.values()]
    used = set().union(*(cell[kind] for cell in cells for kind in ("asked", "judged")))
    assert used == set(range(len(content["requests"]))), todo
    actual = benchmark.actual(config.load(REPOSITORY / "params.yaml"), REPOSITORY, recording.parent)
    assert actual.calls == len(used) and actual.prompt == sum(prompt for prompt, _ in content["requests"])
