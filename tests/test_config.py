"""params.yaml: what is wrong is said with place, nearest valid key and allowed values, before anything runs."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import yaml
from project_fixture import REPO, URL_ENV, params_for

from multihop import config
from multihop.environment import Environment
from multihop.errors import ConfigError
from multihop.methods import registry
from multihop.structures import registry as structures


def changed(place: str, value) -> dict:
    """The small project's params with the value at a dotted place replaced (or, ``...``, taken out)."""
    params = copy.deepcopy(params_for())
    *parents, last = place.split(".")
    block = params
    for key in parents:
        block = block.setdefault(key, {})
    if value is ...:
        del block[last]
    else:
        block[last] = value
    return params


def error_of(place: str, value) -> str:
    with pytest.raises(ConfigError) as error:
        registry.check(config.parse(changed(place, value)))
    return str(error.value)


# -- what is valid


PARAMS = [REPO / "params.yaml", *sorted((REPO / "profiles").glob("*.yaml"))]


@pytest.mark.parametrize("path", PARAMS, ids=lambda p: p.stem)
def test_the_shipped_params_are_valid(path):
    params = config.load(path)
    registry.check(params)
    assert all(list(params.cells(run)) for run in params.runs)


def test_the_demo_has_the_runs_and_settings_of_the_paper():
    params = config.load(REPO / "params.yaml")
    assert set(params.datasets) == {"hotpotqa", "2wikimultihopqa", "musique"} and list(params.settings) == [
        "minilm",
        "lsa",
        "smollm",
    ]
    everywhere = ["direct", "vanilla_k3", "vanilla_k5", "vanilla_k10", "cot_rag", "arag", "executionrag"]
    assert all(len(list(params.cells(run))) == 6 for run in everywhere)
    for run in ("executionrag_question_only", "executionrag_no_updates"):
        assert {dataset for dataset, _ in params.cells(run)} == {"musique"}
    second = ["ircot", "s2g_rag", "corag_s3", "par2_rag", "crag", "self_ask", "fixed_k", "adaptive_rag", "dynakrag"]
    assert all(("hotpotqa", "minilm") in params.cells(run) for run in second)
    assert ("musique", "smollm") in params.cells("dynakrag")


@pytest.mark.parametrize(
    "run, trained, message",
    [
        ("dynakrag", "baselines", "learned_runs.dynakrag.trained: method dynakrag needs a name of controllers"),
        ("fixed_k", "controller", "learned_runs.fixed_k.trained: method fixed_k needs baselines, found 'controller'"),
        ("adaptive_rag", "controller", "method adaptive_rag needs baselines"),
    ],
)
def test_a_training_suits_its_method(run, trained, message):
    raw = yaml.safe_load((REPO / "params.yaml").read_text(encoding="utf-8"))
    raw["learned_runs"][run]["trained"] = trained
    with pytest.raises(ConfigError, match=re.escape(message)):
        registry.check(config.parse(raw))


def test_a_method_without_training_is_no_learned_run():
    raw = yaml.safe_load((REPO / "params.yaml").read_text(encoding="utf-8"))
    raw["learned_runs"]["plain"] = {"method": "vanilla", "trained": "controller"}
    with pytest.raises(ConfigError, match="method vanilla is not trained; it belongs under runs"):
        registry.check(config.parse(raw))
    del raw["learned_runs"]["plain"]
    raw["runs"]["untrained"] = {"method": "dynakrag"}
    with pytest.raises(ConfigError, match="method dynakrag needs a name of controllers, found None"):
        registry.check(config.parse(raw))


def test_learned_runs_are_runs_with_a_training():
    params = config.load(REPO / "params.yaml")
    assert params.run("dynakrag").trained == "controller" and params.where("dynakrag") == "learned_runs.dynakrag"
    assert params.where("arag") == "runs.arag" and params.run("arag").trained is None
    raw = yaml.safe_load((REPO / "params.yaml").read_text(encoding="utf-8"))
    for change, message in (
        (lambda p: p["learned_runs"]["dynakrag"].pop("trained"), "learned_runs.dynakrag.trained: needed"),
        (lambda p: p["learned_runs"]["dynakrag"].update(trained="controler"), "did you mean 'controller'"),
        (lambda p: p["runs"]["arag"].update(trained="controller"), "belongs under learned_runs"),
        (lambda p: p["learned_runs"].update(arag=dict(p["learned_runs"]["dynakrag"])), "a run of this name already"),
        (lambda p: p["training"]["main"]["datasets"].pop("musique"), "training.datasets.musique"),
        (lambda p: p["learned_runs"]["dynakrag"].update(seeds=[9]), "no training has seed 9"),
        (lambda p: p.update(training={}), "training: needed, because controllers are trained"),
        (lambda p: p["training"].update(second=dict(p["training"]["main"])), "training: one is enough"),
        (lambda p: p["training"]["main"].update(questions=999), "data.musique.train_questions is 40"),
        (lambda p: p["controllers"]["controller"].update(lam=2.0), "controllers.controller.lam"),
    ):
        changed = copy.deepcopy(raw)
        change(changed)
        with pytest.raises(ConfigError, match=re.escape(message)):
            config.parse(changed)


# -- structured runs, structures, graphs, networks


def demo() -> dict:
    return yaml.safe_load((REPO / "params.yaml").read_text(encoding="utf-8"))


def replaced(raw: dict, place: str, value) -> dict:
    """``raw`` with the value at a dotted place replaced (or, ``...``, taken out)."""
    *parents, last = place.split(".")
    block = raw
    for key in parents:
        block = block[key]
    if value is ...:
        del block[last]
    else:
        block[last] = value
    return raw


KGP = {"method": "kgp", "structure": "passage_graph", "settings": ["minilm"]}
TREE = {"structure": "tree", "settings": ["minilm"]}


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("runs.kgp", KGP, "runs.kgp: a run with `structure` belongs under structured_runs"),
        ("structured_runs.kgp.structure", ..., "structured_runs.kgp.structure: needed: a name of structures or graphs"),
        (
            "structured_runs.kgp.structure",
            "pasage_graph",
            "structured_runs.kgp.structure: unknown name 'pasage_graph'; did you mean 'passage_graph'",
        ),
        ("structured_runs.kgp.trained", "gfm", "structured_runs.kgp: a run with `trained` belongs under learned_runs"),
        ("structured_runs.arag", KGP, "structured_runs.arag: there is a run of this name already"),
        ("learned_runs.kgp", KGP | {"trained": "gfm"}, "learned_runs.kgp: there is a run of this name already"),
        ("learned_runs.gfm_rag.structure", "graph", "learned_runs.gfm_rag.structure: unknown name 'graph'"),
        ("graphs.passage_graph.over", ..., "graphs.passage_graph.over: needed: a name of structures"),
        ("graphs.passage_graph.over", "entitys", "graphs.passage_graph.over: unknown name 'entitys'; did you mean"),
        ("graphs.passage_graph.over", "tri_graph", "graphs.passage_graph.over: unknown name 'tri_graph'"),
        ("graphs.tree", TREE | {"over": "openie"}, "graphs.tree: there is a structure of this name"),
        ("structures.tree.over", "openie", "structures.tree: an entry with `over` belongs under graphs"),
        ("structures.tree.settings", ["minlm"], "structures.tree.settings: unknown name 'minlm'; did you mean"),
        ("structures.tree.settings", [], "structures.tree.settings: at least one is needed"),
        ("structures.tree.settings", ["lsa", "lsa"], "structures.tree.settings: an entry is listed twice"),
        ("graphs.tri_graph.settings", ["big"], "graphs.tri_graph.settings: unknown name 'big'"),
        ("structures.tree.structure", ..., "structures.tree.structure: this key is needed"),
        ("structures.a/b", TREE, "structures.a/b: a name has letters"),
        ("graphs.a/b", TREE | {"over": "entities"}, "graphs.a/b: a name has letters"),
        ("networks.a/b", {"structure": "knowledge_graph"}, "networks.a/b: a name has letters"),
        ("controllers.a/b", {"lam": 1.0}, "controllers.a/b: a name has letters"),
        ("networks.gfm.structure", "openie", "networks.gfm.structure: unknown name 'openie'"),
        ("networks.gfm.setting", "minlm", "networks.gfm.setting: unknown name 'minlm'; did you mean 'minilm'"),
        ("networks.gfm.layer", 3, "networks.gfm.layer: unknown key 'layer'; did you mean 'layers'"),
        ("networks.controller", {"structure": "knowledge_graph"}, "networks.controller: a training of this name"),
        ("networks.baselines", {"structure": "knowledge_graph"}, "networks.baselines: a training of this name"),
        ("learned_runs.gfm_rag.trained", "gfn", "learned_runs.gfm_rag.trained: unknown name 'gfn'; did you mean 'gfm'"),
    ],
)
def test_a_structured_run_that_cannot_be_is_refused(place, value, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        config.parse(replaced(demo(), place, value))


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (
            "structured_runs.kgp.structure",
            "tree",
            "structured_runs.kgp.structure: method kgp needs an entry whose structure is 'passage_graph', found 'tree'",
        ),
        (
            "structured_runs.plain",
            {"method": "vanilla", "structure": "tree", "settings": ["minilm"]},
            "structured_runs.plain.structure: method vanilla uses none; leave it out",
        ),
        ("runs.plain", {"method": "kgp"}, "runs.plain.structure: method kgp needs an entry whose structure is"),
        ("learned_runs.gfm_rag.trained", "controller", "method gfm_rag needs a name of networks, found 'controller'"),
        ("learned_runs.gfm_rag.structure", ..., "learned_runs.gfm_rag.structure: method gfm_rag needs an entry"),
        ("structured_runs.kgp.hop", 3, "structured_runs.kgp: hop: unknown key 'hop'; did you mean 'hops'"),
    ],
)
def test_a_method_and_its_structure_agree(place, value, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        registry.check(config.parse(replaced(demo(), place, value)))


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (
            "graphs.passage_graph.over",
            "openie",
            "graphs.passage_graph.over: structure passage_graph is built over one whose structure is 'entities', found",
        ),
        (
            "graphs.second",
            TREE | {"over": "openie"},
            "graphs.second.over: structure tree is built over the corpus alone; leave it out",
        ),
        ("structures.kg", TREE | {"structure": "knowledge_graph"}, "one whose structure is 'openie', found None"),
        ("structures.tree.structure", "trie", "structures.tree.structure: unknown structure 'trie'; did you mean"),
        ("structures.tree.layer", 2, "structures.tree: layer: unknown key 'layer'; did you mean 'layers'"),
        ("structures.tree.layers", "3", "structures.tree: layers: Input should be a valid integer (found '3')"),
    ],
)
def test_a_structure_and_what_it_is_built_over_agree(place, value, message):
    params = config.parse(replaced(demo(), place, value))
    with pytest.raises(ConfigError, match=re.escape(message)):
        structures.check(params)


def test_a_network_without_a_training_needs_a_checkpoint_and_a_setting():
    raw = demo() | {"training": {}, "controllers": {}}
    with pytest.raises(ConfigError, match=r"networks\.gfm\.checkpoint: needed where training is empty"):
        config.parse(raw)
    raw["networks"]["gfm"]["checkpoint"] = "released"
    with pytest.raises(ConfigError, match=r"networks\.gfm\.setting: needed where training is empty"):
        config.parse(raw)
    raw["networks"]["gfm"]["setting"] = "minilm"
    params = config.parse(raw)
    assert params.network_setting(params.networks["gfm"]) == "minilm"


def test_the_pipeline_stays_small():
    """DVC's own cost grows faster than the number of stages."""
    params = yaml.safe_load((REPO / "params.yaml").read_text(encoding="utf-8"))
    stages = yaml.safe_load((REPO / "dvc.yaml").read_text(encoding="utf-8"))["stages"].values()
    each = [len(params[stage["foreach"].strip("${}")]) if "foreach" in stage else 1 for stage in stages]
    assert len(params["runs"]) in each and 50 < sum(each) <= 90


def test_structured_runs_are_runs_with_a_structure():
    params = config.load(REPO / "params.yaml")
    assert params.where("kgp") == "structured_runs.kgp" and params.run("kgp").structure == "passage_graph"
    assert params.where_structure("tri_graph") == "graphs.tri_graph" and params.where_structure("tree") == (
        "structures.tree"
    )
    order = list(params.runs)
    assert order.index("arag") < order.index("kgp") < order.index("dynakrag")
    with pytest.raises(ConfigError, match="unknown structure 'tre'; did you mean 'tree'"):
        params.structure("tre")


def test_trainings_are_of_three_kinds():
    params = config.load(REPO / "params.yaml")
    kinds = {name: params.kind_of_training(name) for name in (None, "baselines", "controller_lambda0", "gfm")}
    assert kinds == {None: None, "baselines": "baselines", "controller_lambda0": "controller", "gfm": "network"}


def _two_settings(**changes):
    """Two datasets, two settings; entities and a graph over them for one of each; changed by block."""
    blocks = {
        "datasets": ["musique", "hotpotqa"],
        "data": {"musique": {}, "hotpotqa": {}},
        "settings": {n: {"reader": "scripted", "embedder": "lsa"} for n in ("s1", "s2")},
        "structures": {"e": {"structure": "entities", "settings": ["s1"]}},
        "graphs": {"p": {"structure": "passage_graph", "over": "e", "settings": ["s1"]}},
        "structured_runs": {"a": {"method": "kgp", "structure": "p", "settings": ["s1"]}},
    }
    return config.parse(params_for(**blocks | changes))


def test_a_structure_is_built_for_the_settings_it_names():
    assert _two_settings().structure_cells("p") == [("musique", "s1"), ("hotpotqa", "s1")]
    wide = {"e": {"structure": "entities", "settings": ["s2", "s1"], "datasets": ["hotpotqa"]}}
    graph = {"p": {"structure": "passage_graph", "over": "e", "settings": ["s1"], "datasets": ["hotpotqa"]}}
    run = {"a": {"method": "kgp", "structure": "p", "settings": ["s1"], "datasets": ["hotpotqa"]}}
    params = _two_settings(structures=wide, graphs=graph, structured_runs=run)
    assert params.structure_cells("e") == [("hotpotqa", "s2"), ("hotpotqa", "s1")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"structured_runs": {"a": {"method": "kgp", "structure": "p"}}}, "structured_runs.a: musique with setting s2"),
        (
            {"graphs": {"p": {"structure": "passage_graph", "over": "e", "settings": ["s1", "s2"]}}},
            r"graphs.p: musique with setting s2 needs structures.e, .* add it to structures.e.settings",
        ),
        (
            {"structures": {"e": {"structure": "entities", "settings": ["s1"], "datasets": ["musique"]}}},
            "graphs.p: hotpotqa with setting s1 needs structures.e",
        ),
    ],
)
def test_what_uses_a_structure_must_find_it_built(changes, message):
    with pytest.raises(ConfigError, match=message):
        _two_settings(**changes)


def test_every_structure_of_the_profiles_fits_its_kind():
    for path in PARAMS:
        structures.check(config.load(path))


def test_arag_and_executionrag_are_matched_in_the_demo():
    """The register, its seed, dedup and nudge are the only differences."""
    params = config.load(REPO / "params.yaml")
    a, b = (registry.create(params.run(run), "x").params.model_dump() for run in ("arag", "executionrag"))
    assert {k for k in a if a[k] != b[k]} == {"dedup"}


def test_cells_seeds_and_indexes():
    settings = {"small": {"reader": "scripted", "embedder": "lsa"}, "big": {"reader": "scripted", "embedder": "lsa"}}
    runs = {"all": {"method": "direct"}, "one": {"method": "direct", "settings": ["big"], "seeds": [4]}}
    params = config.parse(params_for(settings=settings, runs=runs, seeds=[1, 2]))
    assert list(params.cells("all")) == [("musique", "small"), ("musique", "big")]
    assert list(params.cells("one")) == [("musique", "big")]
    assert (params.seeds_of("all"), params.seeds_of("one")) == ([1, 2], [4])
    assert params.index_name("small") == params.index_name("big") == "lsa-passages"
    with pytest.raises(ConfigError, match="unknown run 'al'; did you mean 'all'"):
        params.run("al")


# -- unknown keys


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("dataset", "dataset: unknown key 'dataset'; did you mean 'datasets'? Known: profile, source"),
        ("settings.small.embeder", "unknown key 'embeder'; did you mean 'embedder'? Known: reader, embedder, corpus"),
        ("readers.scripted.temprature", "did you mean 'temperature'"),
        ("endpoints.scripted.toolcalling", "did you mean 'tool_calling'"),
        ("data.musique.question", "did you mean 'questions'"),
        ("embedders.lsa.pool", "did you mean 'pooling'"),
        ("retrieval.bm25k1", "did you mean 'bm25_k1'"),
        ("judge.extract", "did you mean 'extract_reader'"),
        ("statistics.resample", "did you mean 'resamples'"),
        ("demo.passage", "did you mean 'passages'"),
        ("runs.arag.max_loop", "params.yaml: runs.arag: max_loop: unknown key 'max_loop'; did you mean 'max_loops'"),
        ("runs.vanilla.kk", "unknown key 'kk'; did you mean 'k'"),
        ("zzz", "unknown key 'zzz'. Known: profile"),
    ],
)
def test_an_unknown_key_names_its_nearest_neighbour(place, message):
    assert message in error_of(place, 1)


# -- wrong types and values


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("seeds", "0", "seeds: Input should be a valid list (found '0')"),
        ("seeds", ["0"], "seeds.0: Input should be a valid integer (found '0')"),
        ("seeds", [True], "seeds.0: Input should be a valid integer"),
        ("datasets", ["hotpot"], "'hotpotqa', '2wikimultihopqa' or 'musique'"),
        ("source", "web", "source: Input should be 'demo', 'local' or 'hub' (found 'web')"),
        ("readers.scripted.temperature", 3, "readers.scripted.temperature: Input should be less than or equal to 2"),
        ("readers.scripted.temperature", "0", "valid number"),
        ("readers.scripted.max_tokens", 0, "greater than 0"),
        ("readers.scripted.model", ..., "readers.scripted.model: this key is needed"),
        ("endpoints.scripted.kind", "azure", "'embedded' or 'openai'"),
        ("endpoints.scripted.tool_calling", "xml", "'native' or 'json_action'"),
        ("settings.small.corpus", "chunk500", "'passages' or 'chunk1000'"),
        ("max_error_share", 1.5, "max_error_share: Input should be less than or equal to 1"),
        ("embedders.lsa", {}, "embedders.lsa: give `preset` or `model`"),
        ("data", {"nq": {}}, "data.nq"),
        ("runs.arag.k", "five", "runs.arag: k: Input should be a valid integer (found 'five')"),
        ("runs.arag.method", ..., "runs.arag.method: this key is needed"),
        ("runs.arag.questions", 0, "runs.arag.questions: Input should be greater than 0"),
        ("judge", ..., "judge: this key is needed"),
    ],
)
def test_a_wrong_value_is_explained(place, value, message):
    assert message in error_of(place, value)


def test_all_problems_are_listed_at_once():
    params = changed("seeds", "0") | {"sourse": "demo"}
    with pytest.raises(ConfigError) as error:
        config.parse(params)
    assert "seeds: " in str(error.value) and "did you mean 'source'" in str(error.value)


# -- impossible combinations


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("settings.small.reader", "scriptd", "settings.small.reader: unknown name 'scriptd'; did you mean 'scripted'"),
        ("settings.small.embedder", "bge", "settings.small.embedder: unknown name 'bge'. Known: lsa"),
        ("readers.scripted.endpoint", "openai", "readers.scripted.endpoint: unknown name 'openai'"),
        ("judge.reader", "gpt", "judge.reader: unknown name 'gpt'"),
        ("judge.extract_reader", "gpt", "judge.extract_reader: unknown name 'gpt'"),
        ("datasets", ["musique", "hotpotqa"], "datasets: unknown name 'hotpotqa'. Known: musique"),
        ("datasets", [], "datasets: at least one is needed"),
        ("seeds", [], "seeds: at least one is needed"),
        ("settings", {}, "settings: at least one is needed"),
        ("runs", {}, "runs: at least one is needed"),
        ("seeds", [0, 0], "seeds: an entry is listed twice"),
        ("datasets", ["musique", "musique"], "datasets: an entry is listed twice"),
        ("runs.arag.settings", ["smal"], "runs.arag.settings: unknown name 'smal'; did you mean 'small'"),
        ("runs.arag.datasets", ["hotpotqa"], "runs.arag.datasets: unknown name 'hotpotqa'"),
        ("runs.arag.settings", [], "runs.arag.settings: at least one is needed"),
        ("runs.arag.datasets", [], "runs.arag.datasets: at least one is needed"),
        ("runs.arag.seeds", [], "runs.arag.seeds: at least one is needed"),
        ("runs.arag.seeds", [1, 1], "runs.arag.seeds: an entry is listed twice"),
        ("runs.a/b", {"method": "direct"}, "runs.a/b: a name has letters"),
        ("runs.arag.method", "agrag", "unknown method 'agrag'; did you mean 'arag'"),
        ("runs.direct.k", 3, "runs.direct: k: unknown key 'k'"),
        ("retrieval.chunk_overlap", 500, "retrieval.chunk_overlap"),
    ],
)
def test_an_impossible_combination_is_refused(place, value, message):
    assert message in error_of(place, value)


@pytest.mark.parametrize("name", ["../out", "a/b", "", "."])
@pytest.mark.parametrize("block", ["settings", "embedders"])
def test_names_that_become_folders_hold_no_path(block, name):
    entry = params_for()[block]
    with pytest.raises(ConfigError, match=f"{block}.*name"):
        config.parse(params_for(**{block: entry | {name: next(iter(entry.values()))}}))


@pytest.mark.parametrize(
    ("embedder", "message"),
    [
        ({"preset": "minlm"}, "embedders.lsa.*did you mean 'minilm'"),
        ({"preset": "lsa", "dim": 900}, "embedders.lsa.*dim"),
    ],
)
def test_an_embedder_is_checked_before_anything_runs(tmp_path, monkeypatch, embedder, message):
    from multihop import cli

    (tmp_path / "params.yaml").write_text(yaml.safe_dump(changed("embedders.lsa", embedder)))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        cli.byhand.validate()


# -- the file


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "expected a mapping"), ("- a\n- b", "found list"), ("a: [", "not YAML"), ("just text", "found str")],
)
def test_a_file_that_is_no_params(tmp_path, text, message):
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        config.load(path)


def test_a_missing_file_says_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match="no such file; run this from the project's folder"):
        config.load(tmp_path / "params.yaml")


def test_fingerprints_follow_values_not_order():
    a, b = {"x": 1, "y": [2]}, {"y": [2], "x": 1}
    assert config.fingerprint(a) == config.fingerprint(b) != config.fingerprint({"x": 1, "y": [3]})
    assert len(config.fingerprint(config.parse(params_for()))) == 16


# -- the environment


def test_environment_defaults():
    env = Environment.read({})
    assert env == Environment("auto", Path(".multihop"), Path("data/recordings"), None, 600.0, None, {})


def test_environment_values():
    env = Environment.read(
        {
            "MULTIHOP_LIVE": "never",
            "MULTIHOP_HOME": "/h",
            "MULTIHOP_RECORDINGS": "r",
            "MULTIHOP_WORKERS": "4",
            "MULTIHOP_DATA_DIR": "/d",
            "MULTIHOP_MAX_USD": "2.5",
            URL_ENV: "ignored",
        }
    )
    assert env == Environment("never", Path("/h"), Path("r"), 4, 600.0, Path("/d"), {"MULTIHOP_MAX_USD": 2.5})
    assert Environment.read({"MULTIHOP_LIVE": "", "MULTIHOP_WORKERS": ""}) == Environment.read({})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("MULTIHOP_LIVE", "sometimes", "allowed are never, auto, always"),
        ("MULTIHOP_LIVE", "Never", "allowed are never, auto, always"),
        ("MULTIHOP_WORKERS", "many", "expected a number"),
        ("MULTIHOP_WORKERS", "2.5", "expected a number"),
        ("MULTIHOP_WORKERS", "0", "above 0"),
        ("MULTIHOP_WORKERS", "-1", "above 0"),
        ("MULTIHOP_MAX_USD", "0", "above 0"),
        ("MULTIHOP_MAX_USD", "nan", "above 0"),
        ("MULTIHOP_MAX_USD", "$5", "expected a number"),
        ("MULTIHOP_MAX_CALLS", "1.5", "a number without a fraction"),
        ("MULTIHOP_TIMEOUT_S", "inf", "expected a number"),
    ],
)
def test_environment_values_that_cannot_be(name, value, message):
    with pytest.raises(ConfigError, match=message) as error:
        Environment.read({name: value})
    assert name in str(error.value) and repr(value) in str(error.value)


def test_a_misspelt_ceiling_is_an_error():
    with pytest.raises(ConfigError, match="'MULTIHOP_MAX_USDS'; did you mean 'MULTIHOP_MAX_USD'"):
        Environment.read({"MULTIHOP_MAX_USDS": "1"})


def test_workers_by_endpoint():
    from multihop.llm.endpoints import Endpoints
    from multihop.session import Session

    params = config.parse(
        params_for(
            endpoints={"scripted": {"url_env": URL_ENV}, "local": {"kind": "embedded"}},
            readers={"scripted": {"endpoint": "scripted", "model": "m"}, "small": {"endpoint": "local", "model": "m"}},
        )
    )
    for environ, expected in (({}, (64, 1)), ({"MULTIHOP_WORKERS": "3"}, (3, 3))):
        session = Session.__new__(Session)
        session.params, session.endpoints = params, Endpoints(params.endpoints, Environment.read(environ))
        assert (session.workers("scripted"), session.workers("small")) == expected
