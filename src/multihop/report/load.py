"""What a report reads: params, metrics, scores, failures, records and data cards of one project folder.

Everything is read lazily and nothing is computed here. What is absent is absent: a frame lacks the
rows, and the tables say "not run".
"""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from multihop import config, jsonl
from multihop.errors import DataError
from multihop.report import expected
from multihop.types import RunRecord

PAPER_READER = "gpt-4o-mini"
PAPER_QUESTIONS = 1000
PAPER_LOOPS = 15
PAPER_EMBEDDERS = {"main": "all-MiniLM-L6-v2", "second": "Qwen3-Embedding-0.6B"}
"""Role of a setting -> the embedder that paper 1 has there (§4.2)."""
ROLES = tuple(PAPER_EMBEDDERS)
DATASET_LABELS = {"hotpotqa": "HotpotQA", "2wikimultihopqa": "2WikiMultiHopQA", "musique": "MuSiQue"}


class Report:
    """The results under ``root`` (the project's folder), as frames and records."""

    def __init__(self, root: Path | str = "."):
        self.root = Path(root)
        self.memo: dict[Any, Any] = {}
        """Numbers that were measured once (values.py)."""

    @cached_property
    def params(self) -> config.Params:
        """Raises ConfigError for a missing or wrong params.yaml."""
        return config.load(self.root / "params.yaml")

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """dataset -> setting -> run -> metrics; empty when nothing is scored yet."""
        path = self.root / "results/metrics.json"
        return _json(path) if path.is_file() else {}

    @cached_property
    def retrieval(self) -> dict[str, Any]:
        """dataset -> setting -> tool -> group -> n and recall@k with its interval; empty when not measured."""
        path = self.root / "results/retrieval.json"
        return _json(path) if path.is_file() else {}

    @cached_property
    def scores(self) -> pd.DataFrame:
        """One row per (dataset, setting, run, qid, seed); the columns of evaluation/score.py."""
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
        if not path.is_file():
            return []
        try:
            return [RunRecord.from_json(row) for row in jsonl.read(path)]
        except (TypeError, KeyError) as e:
            raise DataError(f"{path}: not a run record ({e}); run the stage again") from e

    @cached_property
    def cards(self) -> dict[str, dict[str, Any]]:
        """dataset -> data card, for the datasets that are prepared."""
        paths = {d: self.root / "data/prepared" / d / "card.json" for d in self.datasets}
        return {dataset: _json(path) for dataset, path in paths.items() if path.is_file()}

    @cached_property
    def expected(self) -> expected.Expected:
        """What the paper prints. Raises ConfigError for a missing or wrong file."""
        return expected.load(self.root)

    # -- names

    @property
    def datasets(self) -> list[str]:
        return list(self.params.datasets)

    @property
    def runs(self) -> list[str]:
        return list(self.params.runs)

    @cached_property
    def settings(self) -> list[str]:
        """The first setting, then the first one with another embedder, then the rest."""
        names = list(self.params.settings)
        second = self.setting("second")
        return names[:1] + ([second] if second else []) + [n for n in names[1:] if n != second]

    def setting(self, role: str) -> str | None:
        """The setting that plays "main" or "second" (embedder); None when there is only one embedder."""
        if role not in ROLES:
            raise ValueError(f"unknown role {role!r} of a setting; known: {', '.join(ROLES)}")
        names = list(self.params.settings)
        if role == "main":
            return names[0]
        first = self.params.settings[names[0]].embedder
        return next((n for n in names if self.params.settings[n].embedder != first), None)

    def label_run(self, name: str) -> str:
        run = self.params.runs.get(name)
        return (run.label if run else "") or name

    def label_setting(self, name: str) -> str:
        setting = self.params.settings.get(name)
        return (setting.label if setting else "") or name

    def label_dataset(self, name: str) -> str:
        return DATASET_LABELS.get(name, name)

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
        """How many questions of the dataset are scored, over all its cells; 0 when none is."""
        scores = self.scores
        return scores.loc[scores["dataset"] == dataset, "qid"].nunique() if len(scores) else 0

    def differences(self, dataset: str | None = None, role: str | None = None) -> list[str]:
        """What is not the paper's own, in a few words each; empty when the setting is the paper's.

        ``dataset`` and ``role`` narrow it to one cell's; None asks for all.
        """
        roles = [r for r in ([role] if role else ROLES) if self.setting(r)]
        settings = [self.params.settings[self.setting(r)] for r in roles]
        found = ["a generated world, not the benchmarks"] if self.is_demo else []
        readers = sorted({self.params.readers[s.reader].model for s in settings})
        found += [f"reader {m}" for m in readers if not _is(m, PAPER_READER)]
        found += [f"judge {self.judge}"] if not _is(self.judge, PAPER_READER) else []
        counts = sorted({self.questions(d) for d in ([dataset] if dataset else self.datasets)} - {0})
        if counts and counts != [PAPER_QUESTIONS]:
            found.append(f"n = {' / '.join(map(str, counts))} per dataset instead of {PAPER_QUESTIONS:,}")
        found += [
            f"{self.label_setting(self.setting(r))} in place of {PAPER_EMBEDDERS[r]}"
            for r in roles
            if not self._has_paper_embedder(r)
        ]
        loops = sorted({run.options["max_loops"] for run in self.params.runs.values() if "max_loops" in run.options})
        found += [f"loop limit {n} instead of {PAPER_LOOPS}" for n in loops if n != PAPER_LOOPS]
        return found

    def note(self) -> str:
        """One line to print beside every table and figure: what is not the paper's own setting."""
        variants = sorted({s.corpus for s in self.params.settings.values()})
        readers = sorted({self.reader(s) for s in self.params.settings})
        facts = f"corpus {' / '.join(variants)}, judges: {self.judge} and a string rule"
        differences = self.differences()
        if not differences:
            return f"Profile {self.params.profile}: reader {' / '.join(readers)}, {facts}."
        verdict = "not evidence on the paper's claims" if self.is_demo else "not comparable as it stands"
        return f"Not the paper's setting: {'; '.join(differences)}; {facts}: {verdict}."

    def _has_paper_embedder(self, role: str) -> bool:
        embedder = self.params.embedders[self.params.settings[self.setting(role)].embedder]
        name = f"{embedder.preset or ''} {embedder.model or ''}".lower()
        return ("minilm" if role == "main" else "qwen3-embedding-0.6b") in name

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
        return pd.DataFrame(rows) if rows else pd.DataFrame(columns=["dataset", "setting", "run", "qid", "seed"])


def _is(model: str, wanted: str) -> bool:
    """A model id is the wanted one, or a dated release of it."""
    return model == wanted or model.startswith(f"{wanted}-20")


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as e:
        raise DataError(f"{path}: not JSON ({e}); run the stage that writes it again") from e
