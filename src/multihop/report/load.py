"""What a report reads: params, metrics, scores, failures, records and data cards of one project folder.

Everything is read lazily and nothing is computed here. What is absent is absent: a frame lacks the
rows, and the tables say "not run".
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from multihop import config, jsonl
from multihop.evaluation.aggregate import MEANS
from multihop.report import expected, standing
from multihop.types import RunRecord

IDENTITY = (
    "dataset", "setting", "run", "qid", "seed", "type", "hops", "gold_exact", "judge", "status", "stop_reason",
    "forced", "mode", "answer", "short",
)  # fmt: skip
"""The first columns of a frame or CSV file: which row it is, what came out; then the metrics, then the rest."""
AGAIN = "run the stage that writes it again"
META = ("identity", "model", "statistics", "estimated", "actual", "bytes")
"""What the tables need of an index's facts."""
DATASET_LABELS = {"hotpotqa": "HotpotQA", "2wikimultihopqa": "2WikiMultiHopQA", "musique": "MuSiQue"}


class Report:
    """The results under ``root`` (the project's folder), as frames and records."""

    def __init__(self, root: Path | str = ".", paper: str = expected.PAPERS[0]):
        self.root = Path(root)
        self.paper = paper
        self.memo: dict[Any, Any] = {}
        """Numbers that were measured once (values.py)."""

    def of(self, paper: str) -> Report:
        """The same results as another paper's report; what was read is shared."""
        if paper == self.paper:
            return self
        twin = Report(self.root, paper)
        shared = (
            "params", "metrics", "retrieval", "cards", "trained", "networks", "structures", "index_seconds", "_files",
        )  # fmt: skip
        twin.__dict__ |= {name: getattr(self, name) for name in shared}
        return twin

    @cached_property
    def params(self) -> config.Params:
        """Raises ConfigError for a missing or wrong params.yaml."""
        return config.load(self.root / "params.yaml")

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """dataset -> setting -> run -> metrics; empty when nothing is scored yet."""
        path = self.root / "results/metrics.json"
        return jsonl.read_json(path, AGAIN) if path.is_file() else {}

    @cached_property
    def retrieval(self) -> dict[str, Any]:
        """dataset -> setting -> tool -> group -> n and recall@k with its interval; empty when not measured."""
        path = self.root / "results/retrieval.json"
        return jsonl.read_json(path, AGAIN) if path.is_file() else {}

    @cached_property
    def scores(self) -> pd.DataFrame:
        """One row per (dataset, setting, run, qid, seed); the columns of evaluation/score.py, identity first."""
        return self._frame("scores")

    @cached_property
    def failures(self) -> pd.DataFrame:
        """One row per wrong (dataset, setting, run, qid, seed, judge); the columns of analysis/failures.py."""
        return self._frame("failures")

    def score_rows(self, dataset: str, setting: str, run: str) -> list[dict[str, Any]]:
        """The score rows of one cell as they are in the file; empty when it did not run."""
        return self._rows("scores", dataset, setting, run)

    def failure_rows(self, dataset: str, setting: str, run: str) -> list[dict[str, Any]]:
        return self._rows("failures", dataset, setting, run)

    def has(self, dataset: str, setting: str | None, run: str) -> bool:
        """Whether the cell ran and is scored."""
        return setting is not None and bool(self.score_rows(dataset, setting, run))

    def records(self, run: str, dataset: str, setting: str) -> list[RunRecord]:
        """The run records of one cell, sorted by (qid, seed); empty when it did not run."""
        path = self.root / "results/runs" / run / dataset / f"{setting}.jsonl"
        return jsonl.read_records(path) if path.is_file() else []

    @cached_property
    def cards(self) -> dict[str, dict[str, Any]]:
        """dataset -> data card, for the datasets that are prepared."""
        paths = {d: self.root / "data/prepared" / d / "card.json" for d in self.datasets}
        return {dataset: jsonl.read_json(path, AGAIN) for dataset, path in paths.items() if path.is_file()}

    @cached_property
    def expected(self) -> expected.Expected:
        """What the paper prints. Raises ConfigError for a missing or wrong file."""
        return expected.load(self.root, self.paper)

    @cached_property
    def trained(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Controller or "baselines" -> train dataset -> file stem (card, router, fixed_k) -> content."""
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for path in sorted((self.root / "results/trained").glob("*/*/*.json")):
            if path.parts[-3] not in self.params.networks:
                by_dataset = found.setdefault(path.parts[-3], {}).setdefault(path.parts[-2], {})
                by_dataset[path.stem] = jsonl.read_json(path, AGAIN)
        return found

    @cached_property
    def networks(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Graph network -> train dataset -> card. Raises DataError for a card without a label."""
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for name in self.params.networks:
            for path in sorted((self.root / "results/trained" / name).glob("*/card.json")):
                found.setdefault(name, {})[path.parent.name] = jsonl.read_json(path, AGAIN, ["label"])
        return found

    @cached_property
    def structures(self) -> dict[str, dict[tuple[str, str], dict[str, Any]]]:
        """Entry of ``structures`` or ``graphs`` -> (dataset, setting) -> its facts; what is built, in params' order."""
        found: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
        for name in (*self.params.structures, *self.params.graphs):
            for dataset, setting in self.params.structure_cells(name):
                path = self.root / "results/structures" / name / dataset / f"{setting}.json"
                if path.is_file():
                    found.setdefault(name, {})[dataset, setting] = jsonl.read_json(path, AGAIN, META)
        return found

    @cached_property
    def index_seconds(self) -> dict[str, Any]:
        """``machine`` and, by entry and "dataset/setting", ``seconds`` and ``live_calls`` of the build; empty where it
        was not measured, or for another profile (recordings are copied into a profile's checkout)."""
        path = self.root / "data/recordings/index_seconds.json"
        measured = jsonl.read_json(path, AGAIN, ["profile", "machine", "seconds"]) if path.is_file() else {}
        return measured if measured.get("profile") == self.params.profile else {}

    def served_by(self, training: str, dataset: str) -> str:
        """The dataset whose training serves ``dataset``: params.yaml says it, else what is there alone."""
        if self.params.the_training:
            return self.params.the_training.datasets[dataset]
        there = list(self.trained.get(training, {}))
        return there[0] if len(there) == 1 else dataset

    # -- names

    @property
    def datasets(self) -> list[str]:
        return list(self.params.datasets)

    @property
    def runs(self) -> list[str]:
        return list(self.params.runs)

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of the paper's settings, in its order."""
        return tuple(self.expected.own.roles)

    @cached_property
    def settings(self) -> list[str]:
        """The settings that play a role, in the roles' order, then the rest."""
        return list(dict.fromkeys([*filter(None, self._cast.values()), *self.params.settings]))

    def setting(self, role: str) -> str | None:
        """The setting that plays a role ("main", "second"; "first", ...); None when params.yaml has none for it."""
        if role not in self._cast:
            raise ValueError(f"unknown role {role!r} of a setting; known: {', '.join(self._cast)}")
        return self._cast[role]

    @cached_property
    def _cast(self) -> dict[str, str | None]:
        return standing.cast(self)

    def param(self, path: str) -> list[Any]:
        """The values at a dotted path of params.yaml, ``*`` for any key; empty where it has none."""
        nodes: list[Any] = [self.params.model_dump(mode="json")]
        for part in path.split("."):
            nodes = [v for n in nodes if isinstance(n, dict) for k, v in n.items() if part in ("*", k)]
        return nodes

    def label_run(self, name: str) -> str:
        run = self.params.runs.get(name)
        return self.with_network((run.label if run else "") or name, name)

    def with_network(self, label: str, run: str | None) -> str:
        """``label``, and in brackets what the run's graph network is (trained here, or released), as its card says;
        other runs, and those whose network is not there yet, keep their label."""
        config = self.params.runs.get(run or "")
        cards = self.networks.get(config.trained or "", {}) if config else {}
        said = " / ".join(dict.fromkeys(card["label"] for card in cards.values()))
        return f"{label.partition(' (')[0]} ({said})" if said else label

    def label_setting(self, name: str) -> str:
        setting = self.params.settings.get(name)
        return (setting.label if setting else "") or name

    def label_dataset(self, name: str) -> str:
        return DATASET_LABELS.get(name, name)

    def no_scores(self, run: str, setting: str, *datasets: str) -> str:
        """What a table says of cells that params.yaml asks for and that are not scored."""
        named = ", ".join(map(self.label_dataset, datasets))
        return f"no scores of {self.label_run(run)} on {named} / {self.label_setting(setting)} yet (make repro)"

    # -- what these numbers are

    @property
    def is_demo(self) -> bool:
        """Whether the data is the generated world; if not, no passage text may be shown."""
        return self.params.source == "demo"

    @property
    def judge(self) -> str:
        """The model behind ``llm_acc``."""
        return self.params.readers[self.params.judge.reader].model

    def reader(self, setting: str) -> str:
        return self.params.readers[self.params.settings[setting].reader].model

    def questions(self, dataset: str) -> int:
        """How many questions of the dataset are scored, over all cells of the paper's systems; 0 when none is."""
        return self._counts.get(dataset, 0)

    @cached_property
    def _counts(self) -> dict[str, int]:
        own = {system.run for system in self.expected.systems.values()}
        ids: dict[str, set[str]] = {}
        for (kind, dataset, _, run), rows in self._files.items():
            if kind == "scores" and run in own:
                ids.setdefault(dataset, set()).update(row["qid"] for row in rows)
        return {dataset: len(found) for dataset, found in ids.items()}

    def differences(self, dataset: str | None = None, role: str | None = None) -> list[str]:
        """What is not the paper's own (standing.py), of all or of one cell's dataset and role."""
        return standing.differences(self, dataset, role)

    def note(self) -> str:
        """One line to print beside every table and figure: what is not the paper's own setting."""
        return standing.note(self)

    # -- files

    @cached_property
    def _files(self) -> dict[tuple[str, str, str, str], list[dict[str, Any]]]:
        """(kind, dataset, setting, run) -> rows."""
        files = {}
        for kind in ("scores", "failures"):
            for path in sorted((self.root / "results" / kind).glob("*/*/*.jsonl")):
                files[kind, path.parent.parent.name, path.parent.name, path.stem] = list(jsonl.read(path))
        return files

    def _rows(self, kind: str, dataset: str, setting: str, run: str) -> list[dict[str, Any]]:
        return self._files.get((kind, dataset, setting, run), [])

    def _frame(self, kind: str) -> pd.DataFrame:
        rows = [
            {"dataset": dataset, "setting": setting, "run": run, **row}
            for (k, dataset, setting, run), cell in self._files.items()
            if k == kind
            for row in cell
        ]
        if not rows:
            return pd.DataFrame(columns=list(IDENTITY[:5]))
        table = pd.DataFrame(rows)
        known = dict.fromkeys(c for c in (*IDENTITY, *MEANS) if c in table)
        return table[[*known, *(c for c in table if c not in known)]]
