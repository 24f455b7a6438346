"""The blocks of params.yaml as typed models; :mod:`multihop.config` joins them and checks what refers to what."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Dataset = Literal["hotpotqa", "2wikimultihopqa", "musique"]
DATASETS: tuple[str, ...] = get_args(Dataset)
CorpusVariant = Literal["passages", "chunk1000"]
SearchTool = Literal[
    "dense", "semantic_search", "keyword_search", "keyword_sentences", "bm25", "bm25_sentences"
]  # fmt: skip
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
    batch: bool = Field(False, exclude=True)
    """Send a cell's single-shot calls, judgements and extractions as one batch (OpenAI's Batch API). Changes what is
    paid and how long it takes, never a result: it is in no hash and no resolved file."""

    @model_validator(mode="after")
    def _batches(self) -> Endpoint:
        if self.batch and self.kind == "embedded":
            raise ValueError("batch: the embedded server takes none; leave it out")
        return self

    @field_validator("url_env", "key_env")
    @classmethod
    def _is_a_name(cls, value: str | None) -> str | None:
        """params.yaml is kept and shown: a key or address typed in place of the variable's name must not be quoted."""
        if value is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
            raise ValueError("the name of an environment variable is needed, not the key or address itself")
        return value


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

    @property
    def bootstrap(self) -> dict[str, Any]:
        """As the options of evaluation/statistics' intervals."""
        return {"seed": self.seed, "resamples": self.resamples, "level": self.confidence}


class Paired(Strict):
    """Which runs are compared question by question, and for what the smallest visible difference is computed."""

    pairs: list[Annotated[list[str], Field(min_length=2, max_length=2)]] = [
        ["arag", "executionrag"], ["arag", "arag_*"], ["executionrag", "executionrag_*"],
    ]  # fmt: skip
    """[first run, second run]; ``*`` in the second stands for every run whose name fits, itself left out."""
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.05
    power: Annotated[float, Field(gt=0, lt=1)] = 0.8
    discordance: Annotated[float, Field(gt=0, le=1)] = 0.2
    """Share of questions that one run alone answers rightly, assumed where it is not observed."""


class Certificates(Strict):
    """Which gold passages can be reached: with which queries, tools and indexes that is tried."""

    ks: Annotated[list[Positive], Field(min_length=1)] = [1, 3, 5, 10]
    """Depths; the largest is how deep every search goes."""
    tools: Annotated[list[SearchTool], Field(min_length=1)] = list(get_args(SearchTool))
    corpora: list[CorpusVariant] = []
    """Each needs an index for each embedder; none (where params.yaml names none): nothing is certified."""
    embedders: list[str] | None = None
    """null: those of the settings."""
    keywords: Positive = 6
    """Keywords of a probe at most: capitalised spans, then content words."""
    run_k: Positive = 5
    """A run's missing passage counts as reachable if a search for this many (or as many as the run's) returns it."""
    asked_share: Share = 0.6
    """A query that has this share of a sub-question's content words asks it."""


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


class Entry(BaseModel):
    """A named entry whose further keys belong to its plug-in, which checks them against its own Params."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class RunConfig(Entry):
    """A named method with overrides. Keys beside these are the method's own."""

    method: str
    label: str = ""
    datasets: list[Dataset] | None = None
    settings: list[str] | None = None
    seeds: list[int] | None = None
    questions: Positive | None = None
    """Only the first so many question ids of each dataset (sorted); null: all."""
    structure: str | None = None
    """structured_runs: which index the method searches, a name of ``structures`` or ``graphs``."""
    trained: str | None = None
    """learned_runs: which training the method uses, a name of ``controllers`` or ``networks``, or ``baselines``."""


class StructureConfig(Entry):
    """A named index of a structured method, with overrides. Keys beside these are the structure's own."""

    structure: str
    over: str | None = None
    """graphs: the entry of ``structures`` that it is built over."""
    settings: list[str]
    """Whose corpora, embedders and readers it is built with: every setting of the runs that use it."""
    datasets: list[Dataset] | None = None
    """null: all."""


class Network(Strict):
    """GFM-RAG's graph network: trained here on train questions, or a checkpoint that is there."""

    structure: str
    """The knowledge graph it runs on, a name of ``graphs``."""
    checkpoint: str | None = None
    """A folder with the released weights (config.json, model.pth), relative to the project; null: train one here. The
    keys below are of a training alone."""
    setting: str | None = None
    """Whose graph and embedder it is trained with; null: the training's."""
    questions: Positive = 20
    """Train questions, of each training dataset."""
    held_out: Annotated[int, Field(ge=0)] = 10
    """Further train questions that the card's recall is measured on."""
    hidden: Positive = 64
    layers: Positive = 3
    epochs: Positive = 30
    learning_rate: Annotated[float, Field(gt=0)] = 0.005
    seed: int = 0


class Faults(Strict):
    """How often the simulated reader of the instrument does what, all in 0..1."""

    drift: Share = 0.06
    """Per hop: its passage is never asked for."""
    dropped: Share = 0.5
    """Of the drifts: the sub-question is missing from the plan (and register); of the rest another one is searched."""
    early: Share = 0.04
    """Per hop: believed known, and resolved in a register, without its passage."""
    unreachable: Share = 0.04
    """Per gold passage of the world: no search returns it."""
    stall: Share = 0.05
    """Per question: searches until the budget is used up."""
    abstain: Share = 0.03
    """Per question whose evidence is complete."""
    abstain_missing: Share = 0.25
    """Per question whose evidence is not."""
    misread: Share = 0.1
    """Per question: wrong though the evidence is complete."""
    guess: Share = 0.1
    """Per question: right though the evidence is not complete."""
    judge_error: Share = 0.05
    """Per right answer: the judge rejects it."""
    judge_accept: Share = 0.03
    """Per wrong answer: the judge accepts it."""

    @model_validator(mode="after")
    def _exclusive(self) -> Faults:
        if self.drift + self.early > 1:
            raise ValueError("drift and early together: at most 1, a hop has one fate")
        return self


class Instrument(Strict):
    """The analysis tested on a simulated reader whose faults are known."""

    questions: Annotated[int, Field(ge=20)] = 60
    """Of the generated world that both methods answer."""
    seed: int = 5
    """Of the world, of every drawn fault, and of the repetitions' first draw."""
    faults: Faults = Faults()
    scales: list[Annotated[float, Field(ge=0, le=4)]] = [0.0, 0.5, 2.0]
    """All faults times this, in further simulated runs."""
    scale_questions: Annotated[int, Field(ge=20)] = 24
    """Questions of each of those."""
    repetitions: Positive = 100
    """Drawn data sets, for each n and kind, on which intervals and tests are checked."""
    sizes: Annotated[list[Positive], Field(min_length=1)] = [50, 200]
    """Questions of those data sets."""
    shares: Annotated[list[Share], Field(min_length=1)] = [0.5, 0.2, 0.05]
    """True shares of right answers in them."""
    resamples: Positive = 999
    """Of every bootstrap of the instrument."""
    grid_questions: Annotated[int, Field(ge=20)] = 300
    """At each point of the grids that measure the rules' bias."""
