"""params.yaml as typed models: an unknown key, a wrong type or an impossible combination is an error
that names the nearest valid key and the allowed values, before anything runs.

Everything that changes a result is a param; everything else (keys, addresses, workers, cache path) is an
environment variable, see :mod:`multihop.environment`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from multihop import jsonl, messages
from multihop.errors import ConfigError

Dataset = Literal["hotpotqa", "2wikimultihopqa", "musique"]
DATASETS: tuple[str, ...] = get_args(Dataset)
CorpusVariant = Literal["passages", "chunk1000"]
Positive = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class Strict(BaseModel):
    """A block of params.yaml: unknown keys are refused, values are not converted silently."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class DemoWorld(Strict):
    seed: int = 11
    passages: Annotated[int, Field(ge=20)] = 180


class DataConfig(Strict):
    questions: Positive | None = None
    """How many evaluation questions (the first of the file); null: all."""
    train_questions: Annotated[int, Field(ge=0)] | None = None
    pool: Literal["all", "selected"] = "all"
    """Where there is no corpus file: pool the paragraphs of all questions of the file, or of the chosen ones."""
    sample_seed: int | None = None
    """Draw the questions by a salted hash instead of taking the first of the file."""
    ids: str | None = None
    """A file of question ids, one a line: exactly these are the evaluation set."""


class Endpoint(Strict):
    """Where a model answers. The address and the key are environment variables, never params."""

    kind: Literal["embedded", "openai"] = "openai"
    url_env: str | None = None
    """Environment variable with the base address; unset: OpenAI's own."""
    key_env: str | None = None
    tool_calling: Literal["native", "json_action"] = "native"
    """native: function calling; json_action: one JSON-schema action a turn, for servers without it."""
    structured: Literal["json_schema", "json_object", "none"] = "json_schema"


class Reader(Strict):
    """A model with its sampling. ``agent_temperature`` applies to the agent's turns alone (App. B)."""

    endpoint: str
    model: str
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    agent_temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    max_tokens: Positive = 16384
    """Ceiling of one reply; a method may ask for less."""
    context: Positive = 128000
    """The model's context window in its own tokens."""


class Embedder(Strict):
    """A preset (minilm, qwen3-embedding-0.6b, bge-large-en-v1.5, lsa) or a model, with overrides."""

    preset: str | None = None
    model: str | None = None
    """A folder or a hub id."""
    revision: str | None = None
    dim: Positive | None = None
    pooling: Literal["mean", "cls", "lasttoken"] | None = None
    max_length: Positive | None = None
    padding: Literal["right", "left"] | None = None
    query_prompt: str | None = None
    passage_prompt: str | None = None
    query_instruction: bool | None = None
    seed: int | None = None

    @model_validator(mode="after")
    def _complete(self) -> Embedder:
        if not self.preset and not self.model:
            raise ValueError("give `preset` or `model`")
        return self

    def overrides(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)


class Setting(Strict):
    """A named triple of reader, embedder and corpus variant."""

    reader: str
    embedder: str
    corpus: CorpusVariant = "passages"
    label: str = ""
    """How tables name it; says where it is not the paper's own."""


class Retrieval(Strict):
    """What all methods of a project share about search."""

    splitter: Literal["arag", "simple"] = "arag"
    title_in_sentences: bool = False
    bm25_k1: float = 1.5
    """Okapi BM25's parameters, rank-bm25's defaults."""
    bm25_b: float = 0.75
    bm25_epsilon: float = 0.25
    chunk_tokens: Positive = 1000
    chunk_overlap: Annotated[int, Field(ge=0)] = 100


class Judge(Strict):
    reader: str
    """The judge's own model, never the run's by accident."""
    extract_reader: str | None = None
    """Who shortens free answers for EM/F1; null: the judge's reader."""


class Statistics(Strict):
    seed: int = 0
    resamples: Positive = 9999
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95


class Training(Strict):
    """What the learned methods are trained on: one setting's trajectories over train questions."""

    setting: str
    """Whose reader and embedder answer the train questions; every other setting is served by the same models."""
    datasets: dict[Dataset, Dataset]
    """Evaluation dataset -> the dataset whose train questions its controller is trained on."""
    questions: Positive
    """Train questions for trajectories, of each training dataset."""
    tuning_questions: Positive
    """Train questions for Adaptive-RAG's router and Fixed-K's depth."""
    sample_seed: int | None = 0
    """Which train questions: those with the smallest salted hash of their id (ids may be sorted by type); null: the
    first by id."""
    seeds: list[int] = [0]
    """Independent trainings: split and forests; a run's seed chooses one."""
    collection_seeds: list[int] = [0]
    """Roll-outs per train question are drawn anew for each; training r uses collection r, else the first."""
    run: str = "dynakrag"
    """The learned run whose options trajectories are made with."""
    router_run: str = "adaptive_rag"
    fixed_k_run: str = "fixed_k"
    fixed_k_grid: list[Positive] = [3, 5, 8, 12, 16, 20, 30]


class Controller(Strict):
    """How a controller is fitted from the trajectories (paper 2, eq. 1 and its supplement)."""

    lam: Annotated[float, Field(ge=0, le=1)] = 1.0
    """λ of eq. 1: how much of the present state's value is taken off ("stop-normalised": 1)."""
    beta: Annotated[float, Field(ge=0)] = 0.02
    """β of eq. 1: what a unit of cost is worth in recall."""
    retrieval_cost: Annotated[float, Field(ge=0)] = 0.25
    """Of a retrieval call, in thousands of tokens."""
    s_target: Literal["literal", "full_only", "stop_value"] = "full_only"
    """What a sufficiency check is credited with (docs/deviations.md)."""
    trees: Positive = 300
    min_leaf: Positive = 8


class RunConfig(BaseModel):
    """A named method with overrides. Keys beside these are the method's own (checked against its Params)."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    method: str
    label: str = ""
    datasets: list[Dataset] | None = None
    settings: list[str] | None = None
    seeds: list[int] | None = None
    questions: Positive | None = None
    """Only the first so many question ids of each dataset (sorted); null: all."""
    trained: str | None = None
    """learned_runs: which training the method uses, a name of ``controllers`` or ``baselines``."""

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class Params(Strict):
    """The whole of params.yaml."""

    profile: str = "demo"
    source: Literal["demo", "local", "hub"] = "demo"
    hub_release: Literal["hipporag", "official"] = "hipporag"
    datasets: list[Dataset]
    demo: DemoWorld = DemoWorld()
    data: dict[Dataset, DataConfig]
    seeds: list[int] = [0]
    endpoints: dict[str, Endpoint]
    readers: dict[str, Reader]
    embedders: dict[str, Embedder]
    settings: dict[str, Setting]
    retrieval: Retrieval = Retrieval()
    judge: Judge
    runs: dict[str, RunConfig]
    """All runs: those of the block ``runs``, then those of ``learned_runs``."""
    learned_runs: dict[str, RunConfig] = {}
    """Runs whose method was trained (a stage of its own for each, which depends on the training)."""
    training: dict[str, Training] = {}
    """At most one, by any name. Empty (`training: {}`): nothing is trained, the learned runs use what is there."""
    controllers: dict[str, Controller] = {}
    statistics: Statistics = Statistics()
    max_error_share: Share = 0.01
    notebooks: list[str] = []

    @model_validator(mode="after")
    def _references(self) -> Params:
        self._join_runs()
        if 2 * self.retrieval.chunk_overlap >= self.retrieval.chunk_tokens:
            raise ValueError("retrieval.chunk_overlap: must be less than half of chunk_tokens")
        blocks = {
            "datasets": self.datasets,
            "seeds": self.seeds,
            "settings": self.settings,
            "runs": self.runs,
        }
        for key, values in blocks.items():
            if not values:
                raise ValueError(f"{key}: at least one is needed")
            if len(set(values)) != len(values):
                raise ValueError(f"{key}: an entry is listed twice")
        for name, reader in self.readers.items():
            _known(f"readers.{name}.endpoint", reader.endpoint, self.endpoints)
        for name, setting in self.settings.items():
            _known(f"settings.{name}.reader", setting.reader, self.readers)
            _known(f"settings.{name}.embedder", setting.embedder, self.embedders)
        _known("judge.reader", self.judge.reader, self.readers)
        if self.judge.extract_reader:
            _known("judge.extract_reader", self.judge.extract_reader, self.readers)
        for dataset in self.datasets:
            _known("datasets", dataset, self.data)
        # These names become folders.
        for block, named in (("settings", self.settings), ("embedders", self.embedders), ("runs", self.runs)):
            for name in named:
                if not re.fullmatch(r"\w[\w.-]*", name):
                    raise ValueError(f"{block}.{name}: a name has letters, digits, ., - and _ only")
        self._check_training()
        for name, run in self.runs.items():
            for setting in run.settings or ():
                _known(f"runs.{name}.settings", setting, self.settings)
            for dataset in run.datasets or ():
                _known(f"runs.{name}.datasets", dataset, self.datasets)
            for key, chosen in (("datasets", run.datasets), ("settings", run.settings), ("seeds", run.seeds)):
                if chosen is not None and not chosen:
                    raise ValueError(f"runs.{name}.{key}: at least one is needed; leave the key out for all")
                if chosen is not None and len(set(chosen)) != len(chosen):
                    raise ValueError(f"runs.{name}.{key}: an entry is listed twice")
        return self

    def _join_runs(self) -> None:
        for name, run in self.runs.items():
            if run.trained is not None:
                raise ValueError(f"runs.{name}: a run with `trained` belongs under learned_runs")
        if both := sorted(set(self.runs) & set(self.learned_runs)):
            raise ValueError(f"learned_runs.{both[0]}: there is a run of this name already")
        self.__dict__["runs"] = {**self.runs, **self.learned_runs}

    def _check_training(self) -> None:
        for name, run in self.learned_runs.items():
            if run.trained is None:
                raise ValueError(f"learned_runs.{name}.trained: needed: a name of controllers, or baselines")
            if self.training:
                _known(f"learned_runs.{name}.trained", run.trained, [*self.controllers, "baselines"])
        if "baselines" in self.controllers:
            raise ValueError("controllers.baselines: this name is taken by the tuned baselines")
        if not self.training:
            if self.controllers:
                raise ValueError("training: needed, because controllers are trained")
            return
        if len(self.training) > 1:
            raise ValueError(f"training: one is enough, found {', '.join(self.training)}")
        self._check_the_training(self.the_training)

    @property
    def the_training(self) -> Training | None:
        return next(iter(self.training.values()), None)

    def _check_the_training(self, t: Training) -> None:
        _known("training.setting", t.setting, self.settings)
        for key in ("seeds", "collection_seeds", "fixed_k_grid"):
            if not getattr(t, key):
                raise ValueError(f"training.{key}: at least one is needed")
        for dataset in self.datasets:
            if dataset not in t.datasets:
                raise ValueError(f"training.datasets.{dataset}: which dataset's training serves it?")
        for key, run_name in (("run", t.run), ("router_run", t.router_run), ("fixed_k_run", t.fixed_k_run)):
            _known(f"training.{key}", run_name, self.learned_runs)
        for dataset in t.datasets.values():
            _known("training.datasets", dataset, self.datasets)
            most, asked = self.data[dataset].train_questions, max(t.questions, t.tuning_questions)
            if most is not None and most < asked:
                raise ValueError(
                    f"training: {asked} train questions of {dataset}, but data.{dataset}.train_questions is {most}"
                )
        for name, run in self.learned_runs.items():
            missing = [] if run.trained == "baselines" else [s for s in self.seeds_of(name) if s not in t.seeds]
            if missing:
                raise ValueError(f"learned_runs.{name}: no training has seed {missing[0]}; training.seeds: {t.seeds}")

    def where(self, run_name: str) -> str:
        """Where params.yaml has a run."""
        return f"{'learned_runs' if run_name in self.learned_runs else 'runs'}.{run_name}"

    def cells(self, run_name: str) -> Iterator[tuple[str, str]]:
        """(dataset, setting) pairs of a run. Raises ConfigError for an unknown run."""
        run = self.run(run_name)
        for dataset in self.datasets:
            if run.datasets is None or dataset in run.datasets:
                for setting in run.settings or self.settings:
                    yield dataset, setting

    def run(self, name: str) -> RunConfig:
        if name not in self.runs:
            raise ConfigError(messages.unknown("run", name, self.runs))
        return self.runs[name]

    def seeds_of(self, run_name: str) -> list[int]:
        seeds = self.run(run_name).seeds
        return self.seeds if seeds is None else seeds

    def index_name(self, setting: str) -> str:
        """The index that a setting reads: settings with the same embedder and corpus share it."""
        s = self.settings[setting]
        return f"{s.embedder}-{s.corpus}"

    def train_index_name(self) -> str:
        """The index over the training questions' corpus."""
        return f"{self.settings[self.the_training.setting].embedder}-train"


def _known(where: str, name: str, valid: Any) -> None:
    if name not in valid:
        raise ValueError(f"{where}: {messages.unknown('name', name, valid)}")


def parse(raw: Any, source: str = "params.yaml") -> Params:
    """Raises ConfigError that names the key, the nearest valid one and the allowed values."""
    if not isinstance(raw, dict):
        raise ConfigError(f"{source}: expected a mapping of params, found {type(raw).__name__}")
    try:
        return Params.model_validate(raw)
    except ValidationError as e:
        raise messages.explain(e, Params, source) from e


def load(path: Path = Path("params.yaml")) -> Params:
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; run this from the project's folder")
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), _NoRepeats)
    except yaml.YAMLError as e:
        raise ConfigError(f"{path}: not YAML: " + " ".join(str(e).split())) from e
    return parse(raw, str(path))


class _NoRepeats(yaml.SafeLoader):
    """YAML where a key that stands twice is an error; plain YAML silently drops the first."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for number, key in enumerate(keys):
            if key in keys[:number]:
                mark = node.value[number][0].start_mark
                raise ConfigError(f"params, line {mark.line + 1}: the key {key!r} stands twice")
        return super().construct_mapping(node, deep)


def fingerprint(value: BaseModel | dict[str, Any]) -> str:
    """A short hash of a block of params (sha256 of canonical JSON, 16 hex digits)."""
    return jsonl.digest(value.model_dump(mode="json") if isinstance(value, BaseModel) else value)[:16]
