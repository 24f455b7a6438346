"""What params.yaml will cost, before anything is paid: calls, tokens, USD and hours for each index and run.

Tokens per question are those measured in the demo's runs (results/metrics.json), tokens per passage those of its
indexes (results/structures/*/*/*.json), scaled by the longer passages of the target corpus; an order of magnitude,
and printed as one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multihop import jsonl
from multihop.blocks import Reader
from multihop.config import Params
from multihop.data import splits
from multihop.errors import DataError
from multihop.pricing import Prices
from multihop.types import Usage

BENCHMARK_PASSAGE_TOKENS = 110
"""Mean o200k tokens of a benchmark passage (HippoRAG corpora, 86-123), where the corpus is not prepared yet."""
DEMO_PASSAGE_TOKENS = 60
FULL_SIZES = {
    "hipporag": {"hotpotqa": 1000, "2wikimultihopqa": 1000, "musique": 1000},
    "official": {"hotpotqa": 7405, "2wikimultihopqa": 12576, "musique": 2417},
}
"""Evaluation questions of a release, where they are not prepared yet."""
PASSAGES_PER_QUESTION = {"hotpotqa": 9.811, "2wikimultihopqa": 6.119, "musique": 11.656}
"""Of the HippoRAG corpora (1,000 questions each), where the corpus is not prepared yet; the pool of a larger set of
questions shares more passages."""
API_SECONDS_PER_CALL = 1.5
EMBEDDED_PROMPT_RATE, EMBEDDED_OUTPUT_RATE = 45.0, 17.0
"""Tokens a second of the 1.5B model on two CPU cores."""
COLLECT = {"llm_calls": 11.3, "prompt_tokens": 6560.0, "completion_tokens": 470.0}
"""One train question's trajectories, as the demo's 1.5B model made them (two roll-outs, every prefix
answered): distinct calls, mean over the demo's 12 questions."""
TUNE = {"llm_calls": 7.8, "prompt_tokens": 4130.0, "completion_tokens": 290.0}
"""One train question for the router (three strategies) and the depth (three values), mean over 6 questions."""
TEXT_ALONE = ("openie", "lightrag")
"""Structures whose requests follow from the passages' texts alone: an embedder more costs nothing. What any other one
asks may rest on vectors (the tree's clusters do): it is counted for each embedder."""
JUDGE_TOKENS, JUDGE_OUTPUT = 330, 8
"""One judgement and one extraction, both with their fixed prompts."""


@dataclass(frozen=True)
class Line:
    run: str
    cells: int
    questions: int
    calls: float
    prompt: float
    completion: float
    usd: float
    hours: float


def _measured(root: Path) -> dict[str, Any]:
    for folder in (root, root / "../.."):
        path = folder / "results/metrics.json"
        if path.is_file():
            return jsonl.read_json(path)
    raise DataError("results/metrics.json is not there: estimates rest on the demo's measured tokens; run `make repro`")


def _per_question(measured: dict[str, Any], run: str, method: str, params: Params) -> dict[str, float]:
    """Mean calls and tokens of a question of this run in what was measured, else of a run of the same method."""
    names = [run] + [name for name, other in params.runs.items() if other.method == method]
    for name in names:
        found = [cells[name] for settings in measured.values() for cells in settings.values() if name in cells]
        if found:
            keys = ("llm_calls", "prompt_tokens", "completion_tokens", "loops")
            return {key: sum(f[key] or 0 for f in found) / len(found) for key in keys}
    raise DataError(f"run {run}: nothing was measured for method {method}; run it on a few questions first")


def _scale(root: Path, dataset: str, params: Params) -> float:
    prepared = root / "data/prepared" / dataset
    if (prepared / "card.json").is_file():
        return max(1.0, splits.card(prepared)["corpus"]["tokens"]["mean"] / DEMO_PASSAGE_TOKENS)
    return 1.0 if params.source == "demo" else BENCHMARK_PASSAGE_TOKENS / DEMO_PASSAGE_TOKENS


def _questions(root: Path, dataset: str, params: Params) -> int:
    prepared = root / "data/prepared" / dataset
    if (prepared / "questions.jsonl").is_file():
        return len(splits.questions(prepared))
    return params.data[dataset].questions or FULL_SIZES[params.hub_release][dataset]


def lines(params: Params, root: Path) -> list[Line]:
    """One line per index, then per run. Raises ConfigError for a model without a price, DataError where nothing was
    measured."""
    prices, measured = Prices.load(root / "prices.yaml"), _measured(root)
    judge = params.readers[params.judge.reader].model
    out = [_index_line(name, params, prices, root) for name in (*params.structures, *params.graphs)]
    for name, run in params.runs.items():
        base = _per_question(measured, name, run.method, params)
        cells = [(d, s, _questions(root, d, params) * len(params.seeds_of(name))) for d, s in params.cells(name)]
        out.append(_line(name, base, cells, params, prices, root, judge))
    if training := params.the_training:
        train = [(d, training.setting) for d in sorted(set(training.datasets.values()))]
        rolls = training.questions * len(training.collection_seeds)
        out.append(_line("(trajectories)", COLLECT, [(*c, rolls) for c in train], params, prices, root))
        out.append(
            _line("(router, depth)", TUNE, [(*c, training.tuning_questions) for c in train], params, prices, root)
        )
    return out


def _line(
    name: str,
    base: dict[str, float],
    cells: list[tuple[str, str, int]],
    params: Params,
    prices: Prices,
    root: Path,
    judge: str | None = None,
) -> Line:
    """The sum over ``cells`` (dataset, setting, answers); with ``judge``, each answer is judged and shortened."""
    questions, calls, prompt, completion, usd, hours = 0, 0.0, 0.0, 0.0, 0.0, 0.0
    for dataset, setting, n in cells:
        reader = params.readers[params.settings[setting].reader]
        read, wrote = n * base["prompt_tokens"] * _scale(root, dataset, params), n * base["completion_tokens"]
        asked = n * base["llm_calls"]
        usd += prices.usd(Usage(0, int(read), int(wrote)), reader.model)
        if judge:
            usd += prices.usd(Usage(0, 2 * n * JUDGE_TOKENS, 2 * n * JUDGE_OUTPUT), judge)
            read, wrote, asked = read + 2 * n * JUDGE_TOKENS, wrote + 2 * n * JUDGE_OUTPUT, asked + 2 * n
        hours += _hours(params, reader, asked, read, wrote)
        questions, calls, prompt, completion = questions + n, calls + asked, prompt + read, completion + wrote
    return Line(name, len(cells), questions, calls, prompt, completion, usd, hours)


def _hours(params: Params, reader: Reader, calls: float, prompt: float, completion: float) -> float:
    if params.endpoints[reader.endpoint].kind == "embedded":
        return (prompt / EMBEDDED_PROMPT_RATE + completion / EMBEDDED_OUTPUT_RATE) / 3600
    return calls * API_SECONDS_PER_CALL / 16 / 3600


# -- indexes


def _index_line(name: str, params: Params, prices: Prices, root: Path) -> Line:
    """The sum over the cells of an index; what several of them ask alike is answered, and paid, once."""
    cells = params.structure_cells(name)
    paid = {_asked(name, dataset, setting, params, root): (dataset, setting) for dataset, setting in reversed(cells)}
    calls, prompt, completion, usd, hours = 0.0, 0.0, 0.0, 0.0, 0.0
    base = _per_passage(root, name, params) if cells else {}
    for dataset, setting in paid.values():
        reader = params.readers[params.settings[setting].reader]
        passages, tokens = _passages(root, dataset, params)
        longer = max(1.0, tokens / base["passage"])
        asked, read, wrote = (
            passages * base["calls"],
            passages * longer * base["prompt_tokens"],
            passages * longer * base["completion_tokens"],
        )
        usd += prices.usd(Usage(0, int(read), int(wrote)), reader.model)
        hours += _hours(params, reader, asked, read, wrote)
        calls, prompt, completion = calls + asked, prompt + read, completion + wrote
    return Line(f"(index {name})", len(cells), 0, calls, prompt, completion, usd, hours)


def _asked(name: str, dataset: str, setting: str, params: Params, root: Path) -> tuple[Any, ...]:
    """What decides the requests of an index in one of its cells: the store answers a second such cell."""
    chosen = params.settings[setting]
    reader = params.readers[chosen.reader]
    text_alone = params.structure(name).structure in TEXT_ALONE
    embedder = None if text_alone else chosen.embedder
    return reader.model, reader.temperature, embedder, chosen.corpus, _corpus(root, dataset, params)


def _per_passage(root: Path, name: str, params: Params) -> dict[str, float]:
    """Calls and tokens a passage of this index where it was built, else of one of the same structure; means over
    what was built. ``passage``: tokens of the passages that it was built from."""
    structure = params.structure(name).structure
    for entry in (name, "*"):
        for folder in (root, root / "../.."):
            if found := list(_built(folder, entry, structure)):
                return {key: sum(f[key] for f in found) / len(found) for key in found[0]}
    raise DataError(
        f"{params.where_structure(name)}: no index of structure {structure} was measured; run `make repro`, or "
        f"`multihop build {name}` on a small corpus first"
    )


def _built(folder: Path, entry: str, structure: str) -> Iterator[dict[str, float]]:
    """What each index of a project's entry ("*": any) took per passage, those of the structure."""
    for path in sorted((folder / "results/structures").glob(f"{entry}/*/*.json")):
        facts = json.loads(path.read_text(encoding="utf-8"))
        if facts["identity"]["structure"] == structure:
            corpus = facts["corpus"]
            used = {key: n / corpus["passages"] for key, n in facts["actual"].items()}
            yield used | {"passage": corpus["tokens"] / corpus["passages"]}


def _passages(root: Path, dataset: str, params: Params) -> tuple[float, float]:
    """(how many, mean tokens of one) of a dataset's corpus."""
    prepared = root / "data/prepared" / dataset
    if (prepared / "card.json").is_file():
        corpus = splits.card(prepared)["corpus"]
        return corpus["passages"], corpus["tokens"]["mean"]
    if params.source == "demo":
        return params.demo.passages, DEMO_PASSAGE_TOKENS
    data = params.data[dataset]
    whole = FULL_SIZES[params.hub_release][dataset]
    questions = data.questions if data.pool == "selected" and data.questions else whole
    return questions * PASSAGES_PER_QUESTION[dataset], BENCHMARK_PASSAGE_TOKENS


def _corpus(root: Path, dataset: str, params: Params) -> str:
    """What tells one corpus from another."""
    prepared = root / "data/prepared" / dataset
    if (prepared / "card.json").is_file():
        return splits.card(prepared)["corpus_hash"]
    return "demo" if params.source == "demo" else dataset


def report(params: Params, root: Path) -> str:
    """The table that `multihop estimate` prints."""
    rows = lines(params, root)
    head = (
        f"{'run':<28}{'cells':>6}{'answers':>9}{'calls':>10}{'prompt tok':>13}{'output tok':>12}{'USD':>9}{'hours':>8}"
    )
    body = [
        f"{r.run:<28}{r.cells:>6}{r.questions:>9}{r.calls:>10.0f}{r.prompt:>13.0f}{r.completion:>12.0f}"
        f"{r.usd:>9.2f}{r.hours:>8.1f}"
        for r in rows
    ]
    total = (
        f"{'total':<28}{sum(r.cells for r in rows):>6}{sum(r.questions for r in rows):>9}"
        f"{sum(r.calls for r in rows):>10.0f}"
        f"{sum(r.prompt for r in rows):>13.0f}{sum(r.completion for r in rows):>12.0f}"
        f"{sum(r.usd for r in rows):>9.2f}{sum(r.hours for r in rows):>8.1f}"
    )
    note = (
        "As if everything were asked anew: stored and recorded answers cost nothing; an index is paid once for all\n"
        "datasets with one corpus and all settings that ask the same (RAPTOR's tree: for each embedder). From the\n"
        "demo's measured tokens per question and passage, scaled by passage length; hours at 1.5 s a call and 16\n"
        "workers for a server, at 45/17 tokens/s for the embedded model without its prefix cache. An agent that uses\n"
        "a larger loop limit costs more, and so does LightRAG with its package's prompt, longer than the demo's."
    )
    return "\n".join([head, *body, total, note])
