"""The documentation can't rot: its example runs, and the keys, variables and paths it speaks of exist."""

from __future__ import annotations

import asyncio
import importlib
import re
import shutil
import sys
from pathlib import Path
from typing import Any, get_args, get_origin

import project_fixture
import pytest
import yaml
from pydantic import BaseModel
from scripted_server import ScriptedServer
from trajectory_fixture import NAMES, trajectories

import multihop.methods
import multihop.structures
from multihop import building, config, jsonl, stages
from multihop.controller import features, fitting, state
from multihop.methods import registry
from multihop.session import opened
from multihop.structures import registry as structures

REPO = project_fixture.REPO
PAGES = [REPO / "README.md", *sorted((REPO / "docs").glob("*.md"))]
PARAMS = [REPO / "params.yaml", *sorted((REPO / "profiles").glob("*.yaml"))]
TEXT = {page: page.read_text(encoding="utf-8") for page in PAGES}
ALL = "\n".join(TEXT.values())
RECIPE = TEXT[REPO / "docs/adding-a-method.md"]
FENCE = re.compile(r"^`([\w./-]+)`\n\n```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FIRST, SECOND = RECIPE.split("## Adding a structure")
EXAMPLES = {
    "two_step": {path: text for path, _, text in FENCE.findall(FIRST)},
    "title_graph": {path: text for path, _, text in FENCE.findall(SECOND)},
}
"""The page's two walk-throughs: their files by path."""


# -- the examples of docs/adding-a-method.md


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """An example's files in a project folder, its modules importable where the page says they are."""
    root = tmp_path / "project"
    for name in ("shared", "judge", "extract"):
        shutil.copytree(REPO / "prompts" / name, root / "prompts" / name)
    shutil.copyfile(REPO / "prices.yaml", root / "prices.yaml")
    monkeypatch.setattr(project_fixture, "REPO", root)
    packages = (multihop.methods, multihop.structures)

    def install(name: str) -> Path:
        for path, text in EXAMPLES[name].items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
        for package in packages:
            folder = root / "src" / package.__name__.replace(".", "/")
            monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
        importlib.invalidate_caches()
        return root

    yield install
    for package in packages:
        for name in EXAMPLES:
            sys.modules.pop(f"{package.__name__}.{name}", None)
            package.__dict__.pop(name, None)


def blocks_of(name: str) -> dict[str, Any]:
    """What an example adds to params.yaml, with the small project's setting in place of the demo's."""
    return yaml.safe_load(EXAMPLES[name]["params.yaml"].replace("[minilm]", "[small]"))


def example_tests(name: str) -> dict[str, Any]:
    path = f"tests/test_{name}.py"
    namespace: dict[str, Any] = {"__name__": f"test_{name}"}
    exec(compile(EXAMPLES[name][path], path, "exec"), namespace)
    return namespace


def test_the_page_has_all_files_of_the_examples():
    assert set(EXAMPLES["two_step"]) == {
        "src/multihop/methods/two_step.py", "prompts/two_step/missing_system.txt", "prompts/two_step/missing_user.txt",
        "params.yaml", "tests/test_two_step.py",
    }  # fmt: skip
    assert set(EXAMPLES["title_graph"]) == {
        "src/multihop/methods/title_graph.py", "src/multihop/structures/title_graph.py",
        "prompts/title_graph/README.txt", "params.yaml", "tests/test_title_graph.py",
    }  # fmt: skip
    for files in EXAMPLES.values():
        assert not [path for path in files if path != "params.yaml" and (REPO / path).exists()]
    assert len(EXAMPLES["two_step"]["params.yaml"].splitlines()) == 5, "three lines below the run's name"
    assert len(EXAMPLES["title_graph"]["params.yaml"].splitlines()) == 4


def test_the_first_example_is_a_method(installed):
    installed("two_step")
    assert "two_step" in registry.names()
    run = config.RunConfig(**blocks_of("two_step")["runs"]["two_step"])
    assert registry.create(run, "test").params.k == 3
    with pytest.raises(config.ConfigError, match="plan_tokens"):
        registry.create(config.RunConfig(method="two_step", plan_token=5), "test")


def test_the_second_example_is_a_structure_and_its_method(installed):
    installed("title_graph")
    params = config.parse(project_fixture.params_for(**blocks_of("title_graph")))
    registry.check(params)
    structures.check(params)
    assert params.structure_cells("title_graph") == [("musique", "small")]
    wrong = config.parse(project_fixture.params_for(**blocks_of("title_graph") | {
        "structures": {"title_graph": {"structure": "tree", "settings": ["small"], "layers": 1}}
    }))  # fmt: skip
    with pytest.raises(config.ConfigError, match="needs an entry whose structure is 'title_graph'"):
        registry.check(wrong)


KINDS = ("scores", "failures")


async def scored(root: Path) -> dict[str, Any]:
    async with opened(config.load(root / "params.yaml"), root) as session:
        return await stages.score_all(session)


def test_the_first_example_answers_and_is_scored(installed, monkeypatch):
    """From the page's blocks to records, scores, failures and metrics, through the stages themselves."""
    root = installed("two_step")
    project_fixture.make_project(root, questions=2, **blocks_of("two_step"))
    with ScriptedServer(example_tests("two_step")["planner"]("Oda Wren town")) as server:
        monkeypatch.setenv(project_fixture.URL_ENV, server.url)
        assert project_fixture.run_project(root, "two_step") == {"ok": 2}
        metrics = asyncio.run(scored(root))["musique"]["small"]["two_step"]
    records = project_fixture.records_of(root, "two_step")
    assert [r.qid for r in records] == ["0", "q1"]
    assert all(r.short and r.loops == 2 and r.retrieval_calls == 2 for r in records)
    assert {role: u.calls for role, u in records[0].usage.items()} == {"planner": 1, "reader": 1}
    assert (metrics["n"], metrics["n_ok"], metrics["llm_calls"]) == (2, 2, 2)
    rows = {kind: list(jsonl.read(root / "results" / kind / "musique/small/two_step.jsonl")) for kind in KINDS}
    described = [*rows["scores"][0], *rows["failures"][0], *metrics, *records[0].to_json()]
    assert sorted({name for name in described if not told(name)}) == []


def test_the_second_example_is_built_answers_and_is_scored(installed, monkeypatch):
    root = installed("title_graph")
    runs = {"vanilla": {"method": "vanilla"}}
    project_fixture.make_project(root, questions=3, runs=runs, **blocks_of("title_graph"))

    async def built() -> dict[str, Any]:
        async with opened(config.load(root / "params.yaml"), root) as session:
            return await building.build(session, "title_graph")

    with ScriptedServer() as server:
        monkeypatch.setenv(project_fixture.URL_ENV, server.url)
        statistics = asyncio.run(built())["musique/small"].statistics
        assert statistics == {"passages": 12, "edges": 1, "isolated": 10}
        assert server.bodies == [], "the index asks no model"
        project_fixture.run_project(root, "vanilla")
        assert project_fixture.run_project(root, "title_graph") == {"ok": 3}
        metrics = asyncio.run(scored(root))["musique"]["small"]["title_graph"]
    assert (metrics["n"], metrics["n_ok"], metrics["llm_calls"]) == (3, 3, 1)
    records = project_fixture.records_of(root, "title_graph")
    found = {r.tool for record in records for r in record.retrieved}
    assert found <= {"retrieve", "title_graph"} and all(len(r.cited) >= 3 for r in records)
    assert all(project_fixture.events(r, "fallback") or r.retrieval_calls == 2 for r in records)
    meta = yaml.safe_load(next(root.glob("results/structures/**/*.json")).read_text(encoding="utf-8"))
    assert sorted(name for name in meta if not told(name)) == []


OWN_TESTS = [
    (name, test)
    for name, files in EXAMPLES.items()
    for test in re.findall(r"^def (test_\w+)", files[f"tests/test_{name}.py"], re.MULTILINE)
]


@pytest.mark.parametrize(("name", "test"), OWN_TESTS)
def test_the_examples_own_tests_pass(installed, tmp_path, name, test):
    installed(name)
    example_tests(name)[test](tmp_path / "example")


# -- params and environment variables


def fields(model: type[BaseModel]) -> set[str]:
    """The field names of a block of params and of every block inside it."""
    found = set(model.model_fields)
    for field in model.model_fields.values():
        for inner in blocks(field.annotation):
            found |= fields(inner)
    return found


def blocks(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [block for argument in get_args(annotation) for block in blocks(argument)]


def code_words(text: str) -> set[str]:
    """Every word that stands in `code` outside of fenced blocks; a dotted key gives its parts."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    spans = [span for line in prose.splitlines() for span in line.split("`")[1::2]]
    return {word for span in spans for word in re.findall(r"[\w-]+", span)}


WORDS = code_words(ALL)


def told(word: str) -> bool:
    return word in WORDS


def keys(value: Any, depth: int = 0) -> set[str]:
    """Keys of a params file, without the names that a user chooses (of a reader, a setting, a run, ...)."""
    named = {
        "data", "endpoints", "readers", "embedders", "settings", "runs", "structured_runs", "learned_runs",
        "structures", "graphs", "networks", "controllers", "training",
    }  # fmt: skip
    found: set[str] = set()
    for key, inner in value.items() if isinstance(value, dict) else ():
        if isinstance(inner, dict) and key in named and depth == 0:
            found |= {key}.union(*(keys(block, 2) for block in inner.values()))
        else:
            found |= {key} | keys(inner, depth + 1)
    return found


@pytest.mark.parametrize("path", PARAMS, ids=lambda p: p.stem)
def test_every_key_of_the_params_files_is_documented(path):
    found = keys(yaml.safe_load(path.read_text(encoding="utf-8")))
    assert {"judge", "chunk_overlap", "questions"} <= found
    assert sorted(k for k in found if not told(k)) == []


def test_every_possible_param_is_documented():
    possible = fields(config.Params)
    assert {"agent_temperature", "sample_seed", "pooling", "confidence"} <= possible
    assert sorted(k for k in possible if not told(k)) == []


@pytest.mark.parametrize("method", registry.names())
def test_every_option_of_a_method_is_documented(method):
    assert sorted(k for k in registry.find(method).Params.model_fields if not told(k)) == []


@pytest.mark.parametrize("structure", structures.STRUCTURES.names())
def test_every_option_of_a_structure_is_documented(structure):
    options = structures.STRUCTURES.find(structure).Params.model_fields
    assert sorted(k for k in options if not told(k)) == []


SOURCES = "\n".join(
    path.read_text(encoding="utf-8") for path in [*(REPO / "src").rglob("*.py"), REPO / "Makefile", *PARAMS]
)


def test_every_environment_variable_is_documented():
    read = set(re.findall(r"\b(?:MULTIHOP|OPENAI)_[A-Z_]+\b", SOURCES))
    assert {"MULTIHOP_LIVE", "MULTIHOP_LLM_THREADS", "MULTIHOP_DEVICE", "OPENAI_API_KEY"} <= read
    table = TEXT[REPO / "docs/how-the-numbers-are-made.md"]
    assert sorted(v for v in read if f"| `{v}`" not in table) == []


def test_no_environment_variable_is_invented():
    assert sorted(v for v in set(re.findall(r"\bMULTIHOP_[A-Z_]+\b", ALL)) if v not in SOURCES) == []


def test_every_event_is_documented():
    kinds = set(re.findall(r"event\([^\"()]*(?:\([^()]*\))?[^\"()]*\"([a-z_]+)\"", SOURCES))
    assert {"inject", "guards", "forced", "context_overflow"} <= kinds
    assert sorted(k for k in kinds if not told(k)) == []


def test_no_path_of_a_machine_is_in_the_pages():
    assert re.findall(r"(?<![\w.<>])/(?:work|home|root|tmp|usr|var|mnt|Users)\b\S*", ALL) == []


# -- paths, commands, links

TRACKED = ("src/", "prompts/", "profiles/", "tests/", "docs/", "expected/", "notebooks/", "benchmarks/", ".ci/")
MADE = ("data/", "results/", "figures/", "scratch/", ".multihop/")
"""What the pipeline writes: such a path can't be checked in a fresh clone."""
PATHLIKE = re.compile(r"`([\w.-]+(?:/[\w.-]+)*/?)`")
SUFFIXES = (".py", ".yaml", ".txt", ".toml", ".md", ".sh")
NO_FILES = {"name.txt", "ids.txt"}
"""A placeholder, and a file of the prepared data."""


def paths(text: str) -> set[str]:
    """Repository paths named in code, but for those the example itself adds."""
    named = {p for p in PATHLIKE.findall(text) if p.startswith(TRACKED) or ("/" not in p and p.endswith(SUFFIXES))}
    own = {path for files in EXAMPLES.values() for path in files}
    return {p for p in named if p not in own | NO_FILES and "two_step" not in p and not p.startswith(MADE)}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_every_path_named_exists(page):
    bare = {p.name for folder in ("src", "prompts", "tests") for p in (REPO / folder).rglob("*") if p.is_file()}
    missing = [p for p in paths(TEXT[page]) if not (REPO / p).exists() and ("/" in p or p not in bare)]
    assert sorted(missing) == []


def test_the_pages_name_paths():
    assert len(set().union(*map(paths, TEXT.values()))) > 30


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_every_link_leads_somewhere(page):
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", TEXT[page])
    assert sorted(t for t in links if "://" not in t and not (page.parent / t).exists()) == []


def test_every_command_named_exists():
    from multihop.cli import app

    known = {c.name or c.callback.__name__.replace("_", "-") for c in app.registered_commands}
    named = set(re.findall(r"(?:^|`)multihop ([a-z][a-z-]*)", ALL, re.MULTILINE))
    assert len(named) > 8 and sorted(named - known) == []
    targets = set(re.findall(r"^([a-z][\w-]*):", (REPO / "Makefile").read_text("utf-8"), re.MULTILINE))
    made = set(re.findall(r"(?:^|`)make ([a-z][a-z-]*)", ALL, re.MULTILINE))
    assert made >= {"repro", "test", "model"} and sorted(made - targets) == []


def test_every_table_has_even_rows():
    """A pipe in a cell would shift its row."""
    for page, text in TEXT.items():
        for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
            widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
            assert len(widths) == 1, f"{page.name}: {table[:80]}"


def test_the_table_of_stages_is_the_pipelines():
    stages_of = yaml.safe_load((REPO / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    first = TEXT[REPO / "docs/how-the-numbers-are-made.md"].split("## 2.")[0]
    assert re.findall(r"^\| (\w+) \| `multihop", first, re.MULTILINE) == list(stages_of)


# -- the controller's lists


def test_the_table_of_features_is_the_codes():
    page = TEXT[REPO / "docs/how-the-numbers-are-made.md"]
    section = page.split("| group | feature |")[1].split("\n\n")[0]
    told_rows = re.findall(r"^\| \w+ \| `(\w+)` \| (.+?) \| (.+?) \|$", section, re.MULTILINE)
    spans = {f: f"{f.low:g} or more" if f.high == float("inf") else f"{f.low:g} to {f.high:g}" for f in FEATURES}
    assert told_rows == [(f.name, f.unit, spans[f]) for f in FEATURES]
    assert f"the state's {len(features.STATE)} numbers" in page


def test_the_table_of_operations_is_the_codes():
    rows = [f"| `{o.code}` | `{o.name}` | {o.needs} | {o.cost} | {o.effect} |" for o in state.OPERATIONS]
    assert "\n".join(rows) in TEXT[REPO / "docs/architecture.md"]


def test_every_field_of_a_model_card_is_documented():
    facts = {"controller": "c", "trained_on": "d", "setting": "s", "profile": "p"}
    options = fitting.FitOptions(trees=5, oof_trees=5)
    _, card = fitting.fit(trajectories(6), options, facts=facts, names=NAMES)
    assert {"skill", "majority", "lambda"} <= names(card)
    assert sorted(name for name in names(card) - set(state.ACTIONS) if not told(name)) == []


def test_every_field_of_a_trajectory_is_documented():
    assert sorted(name for name in names(trajectories(1)) if not told(name)) == []


FEATURES = (*features.STATE, *features.ACTION)


def names(value: Any) -> set[str]:
    """Keys at any depth, numbers (a lambda, an action's step) left out."""
    if isinstance(value, list):
        return set().union(*map(names, value))
    if not isinstance(value, dict):
        return set()
    return {k for k in value if not re.fullmatch(r"[\d.]+", k)}.union(*map(names, value.values()))


# -- numbers that the pages take from the code


def test_numbers_in_the_pages_are_the_codes():
    from multihop import running
    from multihop.controller import bridge, calibration, model, targets
    from multihop.evaluation import judge
    from multihop.llm import endpoints
    from multihop.methods import dynakrag, guidance, operations, register, s2g_rag

    deviations = TEXT[REPO / "docs/deviations.md"]
    demo = config.load(REPO / "params.yaml")
    run = demo.runs["executionrag"].options
    learned = demo.runs["dynakrag"].options
    training = demo.the_training
    limits = dynakrag.Params().limits
    for said in (
        f"at most {register.MAX_INITIAL} items", f"at most {register.MAX_NEW} per update",
        f"{register.MAX_ITEMS} in all", f"after {register.STALE_LOOPS} loops", f"{judge.JUDGE_TOKENS} tokens",
        f"first {guidance.SEED_CHARACTERS:,} characters", f"loop limit {run['max_loops']}",
        f"{demo.demo.passages} passages",
        f"{endpoints.RETRIES} retries",
        f"the first {demo.data['musique'].questions} of {stages.DEMO_QUESTIONS} questions",
        f"rank {demo.embedders['lsa'].dim}",
        f"{training.questions} train questions of MuSiQue", f"made on {training.tuning_questions} of them",
        f"methods answers {learned['max_tokens']}, sufficiency checks {learned['check_tokens']}",
        "| {} and {} |".format(", ".join(map(str, training.fixed_k_grid[:-1])), training.fixed_k_grid[-1]),
        f"at most {limits.per_search} new documents a retrieval, {limits.steps} steps, {limits.docs} documents",
        f"{limits.tokens:,} tokens for the loop's own model calls", f"{operations.FRONTIER} deep",
        f"at most {bridge.MOST}. Score", f"plus {bridge.TITLE_BONUS} for the title",
        f"F1 below {targets.INADEQUATE}; a gain of at least {targets.IMPROVED}; F1 of at least {targets.SUCCESS}",
        f"{calibration.ISOTONIC_FROM} positives or more", "{}, {} and {} (continue".format(*model.DEFAULT_THRESHOLDS),
        f"plus {targets.RETRIEVAL_COST} for a retrieval",
        f"{features.DECIMALS} decimals".replace("6", "six"), f"At most {s2g_rag.PER_DOCUMENT} sentences a document",
    ):  # fmt: skip
        assert said in deviations, said
    assert f"learned from *{training.questions} questions*" in TEXT[REPO / "README.md"]
    assert f"first {running.FIRST_ERRORS} questions" in TEXT[REPO / "docs/how-the-numbers-are-made.md"]
