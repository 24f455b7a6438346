"""params.yaml as typed models: an unknown key, a wrong type or an impossible combination is an error
that names the nearest valid key and the allowed values, before anything runs.

Everything that changes a result is a param; everything else (keys, addresses, workers, cache path) is an
environment variable, see :mod:`multihop.environment`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ValidationError, model_validator

from multihop import jsonl, messages
from multihop.blocks import (
    Certificates,
    Controller,
    DataConfig,
    Dataset,
    DemoWorld,
    Embedder,
    Endpoint,
    Instrument,
    Judge,
    Network,
    Paired,
    Reader,
    Retrieval,
    RunConfig,
    Setting,
    Share,
    Statistics,
    Strict,
    StructureConfig,
    Training,
)
from multihop.errors import ConfigError


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
    """All runs: those of the block ``runs``, then those of ``structured_runs`` and ``learned_runs``."""
    structured_runs: dict[str, RunConfig] = {}
    """Runs whose method searches an index of its own (a stage for each, which depends on that index)."""
    learned_runs: dict[str, RunConfig] = {}
    """Runs whose method was trained (a stage of its own for each, which depends on the training)."""
    training: dict[str, Training] = {}
    """At most one, by any name. Empty (`training: {}`): nothing is trained, the learned runs use what is there."""
    controllers: dict[str, Controller] = {}
    structures: dict[str, StructureConfig] = {}
    """Indexes built over the corpus (entities, triples, a tree of summaries)."""
    graphs: dict[str, StructureConfig] = {}
    """Indexes built over one of ``structures``."""
    networks: dict[str, Network] = {}
    statistics: Statistics = Statistics()
    certificates: Certificates = Certificates()
    paired: Paired = Paired()
    instrument: Instrument = Instrument()
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
        for block in ("settings", "embedders", "runs", "structures", "graphs", "controllers", "networks"):
            for name in getattr(self, block):
                if not re.fullmatch(r"\w[\w.-]*", name):
                    raise ValueError(f"{block}.{name}: a name has letters, digits, ., - and _ only")
        for name in self.certificates.embedders or ():
            _known("certificates.embedders", name, self.embedders)
        for key in ("ks", "tools", "embedders"):
            _chosen(f"certificates.{key}", getattr(self.certificates, key))
        self._check_structures()
        self._check_training()
        for name, run in self.runs.items():
            for setting in run.settings or ():
                _known(f"runs.{name}.settings", setting, self.settings)
            for dataset in run.datasets or ():
                _known(f"runs.{name}.datasets", dataset, self.datasets)
            for key, chosen in (("datasets", run.datasets), ("settings", run.settings), ("seeds", run.seeds)):
                _chosen(f"runs.{name}.{key}", chosen)
        if "paired" in self.model_fields_set:
            for name in (name for names in self.paired.pairs for name in names if "*" not in name):
                _known("paired.pairs", name, self.runs)
        return self

    def _join_runs(self) -> None:
        for block, runs in (("runs", self.runs), ("structured_runs", self.structured_runs)):
            for name, run in runs.items():
                if run.trained is not None:
                    raise ValueError(f"{block}.{name}: a run with `trained` belongs under learned_runs")
                if run.structure is not None and block == "runs":
                    raise ValueError(f"runs.{name}: a run with `structure` belongs under structured_runs")
        for name, run in self.structured_runs.items():
            if run.structure is None:
                raise ValueError(f"structured_runs.{name}.structure: needed: a name of structures or graphs")
        joined = dict(self.runs)
        for block, runs in (("structured_runs", self.structured_runs), ("learned_runs", self.learned_runs)):
            if both := sorted(set(joined) & set(runs)):
                raise ValueError(f"{block}.{both[0]}: there is a run of this name already")
            joined |= runs
        self.__dict__["runs"] = joined

    def _check_structures(self) -> None:
        if both := sorted(set(self.structures) & set(self.graphs)):
            raise ValueError(f"graphs.{both[0]}: there is a structure of this name already")
        for name, entry in self.structures.items():
            if entry.over is not None:
                raise ValueError(f"structures.{name}: an entry with `over` belongs under graphs")
        for name, entry in self.graphs.items():
            if entry.over is None:
                raise ValueError(f"graphs.{name}.over: needed: a name of structures")
            _known(f"graphs.{name}.over", entry.over, self.structures)
        both = {**self.structures, **self.graphs}
        for name, entry in both.items():
            where = self.where_structure(name)
            _chosen(f"{where}.settings", entry.settings)
            _chosen(f"{where}.datasets", entry.datasets)
            for setting in entry.settings:
                _known(f"{where}.settings", setting, self.settings)
        for name, network in self.networks.items():
            _known(f"networks.{name}.structure", network.structure, self.graphs)
            if network.setting:
                _known(f"networks.{name}.setting", network.setting, self.settings)
            if name in self.controllers or name == "baselines":
                raise ValueError(f"networks.{name}: a training of this name is there already")
        for name, run in self.runs.items():
            if run.structure is not None:
                _known(f"{self.where(name)}.structure", run.structure, both)
                self._covered(self.where(name), self.cells(name), run.structure)
        for name, entry in self.graphs.items():
            self._covered(f"graphs.{name}", self.structure_cells(name), entry.over)
        for name, network in self.networks.items():
            if (setting := self.network_setting(network)) and (training := self.the_training):
                cells = [(dataset, setting) for dataset in sorted(set(training.datasets.values()))]
                self._covered(f"networks.{name}", cells, network.structure)

    def _covered(self, where: str, cells: Iterable[tuple[str, str]], structure: str) -> None:
        """What uses a structure finds it built."""
        built = self.structure_cells(structure)
        for dataset, setting in cells:
            if (dataset, setting) not in built:
                raise ValueError(
                    f"{where}: {dataset} with setting {setting} needs {self.where_structure(structure)}, which is not "
                    f"built for it; add it to {self.where_structure(structure)}.settings (or datasets)"
                )

    def _check_training(self) -> None:
        for name, run in self.learned_runs.items():
            if run.trained is None:
                raise ValueError(f"learned_runs.{name}.trained: needed: a name of controllers, networks, or baselines")
            if self.training:
                _known(f"learned_runs.{name}.trained", run.trained, [*self.controllers, *self.networks, "baselines"])
        if "baselines" in self.controllers:
            raise ValueError("controllers.baselines: this name is taken by the tuned baselines")
        if not self.training:
            if self.controllers:
                raise ValueError("training: needed, because controllers are trained")
            for name, network in self.networks.items():
                if not network.checkpoint:
                    raise ValueError(f"networks.{name}.checkpoint: needed where training is empty: no train questions")
                if not network.setting:
                    raise ValueError(f"networks.{name}.setting: needed where training is empty")
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
            by_seed = self.kind_of_training(run.trained) == "controller"
            missing = [s for s in self.seeds_of(name) if s not in t.seeds] if by_seed else []
            if missing:
                raise ValueError(f"learned_runs.{name}: no training has seed {missing[0]}; training.seeds: {t.seeds}")

    def where(self, run_name: str) -> str:
        """Where params.yaml has a run."""
        blocks = {"learned_runs": self.learned_runs, "structured_runs": self.structured_runs}
        return f"{next((b for b, runs in blocks.items() if run_name in runs), 'runs')}.{run_name}"

    def where_structure(self, name: str) -> str:
        """Where params.yaml has a structure."""
        return f"{'graphs' if name in self.graphs else 'structures'}.{name}"

    def structure(self, name: str) -> StructureConfig:
        """An entry of ``structures`` or ``graphs``. Raises ConfigError for an unknown one."""
        both = {**self.structures, **self.graphs}
        if name not in both:
            raise ConfigError(messages.unknown("structure", name, both))
        return both[name]

    def structure_cells(self, name: str) -> list[tuple[str, str]]:
        """(dataset, setting) pairs that a structure is built for."""
        entry = self.structure(name)
        chosen = [d for d in self.datasets if entry.datasets is None or d in entry.datasets]
        return [(dataset, setting) for dataset in chosen for setting in entry.settings]

    def network_setting(self, network: Network) -> str | None:
        """Whose graph a network is trained with."""
        return network.setting or (self.the_training.setting if self.the_training else None)

    def kind_of_training(self, trained: str | None) -> str | None:
        """baselines, controller or network; None for a run without training."""
        if trained is None or trained == "baselines":
            return trained
        return "network" if trained in self.networks else "controller"

    def cells(self, run_name: str) -> Iterator[tuple[str, str]]:
        """(dataset, setting) pairs of a run. Raises ConfigError for an unknown run."""
        run = self.run(run_name)
        for dataset in self.datasets:
            if run.datasets is None or dataset in run.datasets:
                for setting in run.settings or self.settings:
                    yield dataset, setting

    def readers_of(self, cells: Iterable[tuple[str, str]]) -> list[str]:
        """The readers that (dataset, setting) pairs ask, each once."""
        return list(dict.fromkeys(self.settings[setting].reader for _, setting in cells))

    def readers_in_use(self) -> list[str]:
        """Of all runs, indexes and trainings, and of the judge, each once."""
        cells = [cell for run in self.runs for cell in self.cells(run)]
        cells += [cell for name in (*self.structures, *self.graphs) for cell in self.structure_cells(name)]
        used = [*self.readers_of(cells), *self.judging_readers()]
        if self.the_training:
            used.append(self.settings[self.the_training.setting].reader)
        return list(dict.fromkeys(used))

    def judging_readers(self) -> list[str]:
        """Who judges and who extracts short answers, each once."""
        return list(dict.fromkeys((self.judge.reader, self.judge.extract_reader or self.judge.reader)))

    def run(self, name: str) -> RunConfig:
        if name not in self.runs:
            raise ConfigError(messages.unknown("run", name, self.runs))
        return self.runs[name]

    def run_pairs(self) -> list[tuple[str, str]]:
        """The pairs of ``paired.pairs`` among the runs that there are, each once, in order."""
        found = [
            (first, second)
            for first, wanted in self.paired.pairs
            for second in self.runs
            if first in self.runs and first != second and fnmatchcase(second, wanted)
        ]
        return list(dict.fromkeys(found))

    def seeds_of(self, run_name: str) -> list[int]:
        seeds = self.run(run_name).seeds
        return self.seeds if seeds is None else seeds

    def index_name(self, setting: str) -> str:
        """The index that a setting reads: settings with the same embedder and corpus share it."""
        s = self.settings[setting]
        return f"{s.embedder}-{s.corpus}"

    def certificate_indexes(self) -> dict[str, tuple[str, str]]:
        """Index -> (embedder, corpus variant) of every one that certificates are made for; corpora vary slowest."""
        used = self.certificates.embedders or dict.fromkeys(s.embedder for s in self.settings.values())
        return {f"{e}-{corpus}": (e, corpus) for corpus in dict.fromkeys(self.certificates.corpora) for e in used}

    def train_index_name(self) -> str:
        """The index over the training questions' corpus."""
        return f"{self.settings[self.the_training.setting].embedder}-train"


def _known(where: str, name: str, valid: Any) -> None:
    if name not in valid:
        raise ValueError(f"{where}: {messages.unknown('name', name, valid)}")


def _chosen(where: str, values: list[Any] | None) -> None:
    """A list that narrows something down: left out, or with entries that differ."""
    if values is not None and not values:
        raise ValueError(f"{where}: at least one is needed; leave the key out for all")
    if values is not None and len(set(values)) != len(values):
        raise ValueError(f"{where}: an entry is listed twice")


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
