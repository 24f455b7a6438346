"""What params.yaml will cost, before anything is paid: calls, tokens, USD and hours for each index and run.

Calls and tokens per answer are those that the demo's runs asked and no run before them had (expected/asked.json), or,
for a run that is not in it, all that it used (results/metrics.json); per passage those of the demo's indexes
(results/structures/*/*/*.json); prompts scaled by the longer passages of the target corpus.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from multihop import jsonl, sizes
from multihop.asked import Asked, Counting, Share
from multihop.blocks import Reader
from multihop.config import Params
from multihop.errors import DataError
from multihop.methods import registry
from multihop.pricing import Prices
from multihop.types import Usage

API_SECONDS_PER_CALL = 1.5
EMBEDDED_PROMPT_RATE, EMBEDDED_OUTPUT_RATE = 45.0, 17.0
"""Tokens a second of the 1.5B model on two CPU cores."""
COLLECTED, TUNED = "(trajectories)", "(router, depth)"
"""The trainings' lines; a network's is ``(network <name>)``."""
TEXT_ALONE = ("openie", "lightrag")
"""Structures whose requests follow from the passages' texts alone: an embedder more costs nothing. What any other one
asks may rest on vectors (the tree's clusters do): it is counted for each embedder."""
JUDGE_OUTPUT = 4
"""Tokens of a judgement, where only the sum with its prompt is known."""


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
    models: Mapping[str, Share] = field(default_factory=dict)
    """Calls and tokens by model: the reader's, the judge's."""


_KEYS = (
    "llm_calls", "prompt_tokens", "completion_tokens", "judge_calls", "judge_tokens", "extract_tokens"
)  # fmt: skip


def _measured(root: Path) -> dict[str, Any]:
    for folder in (root, root / "../.."):
        path = folder / "results/metrics.json"
        if path.is_file():
            return jsonl.read_json(path)
    raise DataError("results/metrics.json is not there: estimates rest on the demo's measured tokens; run `make repro`")


def _used(measured: dict[str, Any], names: list[str], where: str) -> tuple[Share, Share]:
    """(the run's, the judge's) mean use of an answer of the first of ``names`` that was measured: nothing shared."""
    for name in names:
        found = [cells[name] for settings in measured.values() for cells in settings.values() if name in cells]
        if found:
            mean = {key: sum(f.get(key) or 0 for f in found) / len(found) for key in _KEYS}
            n = sum(f.get("n") or 0 for f in found) / len(found) or 1.0
            calls, tokens = mean["judge_calls"] / n, mean["judge_tokens"] / n
            written = min(tokens, calls * JUDGE_OUTPUT)
            judged = Share(calls + (mean["extract_tokens"] > 0), tokens - written + mean["extract_tokens"] / n, written)
            return Share(mean["llm_calls"], mean["prompt_tokens"], mean["completion_tokens"]), judged
    raise DataError(f"{where}: nothing was measured for its method; run it on a few questions first")


def lines(params: Params, root: Path) -> list[Line]:
    """One line per index, then per run, then per training. Raises ConfigError for a model without a price, DataError
    where nothing was measured."""
    prices = Prices.load(root / "prices.yaml")
    prices.check({f"readers.{name}": params.readers[name].model for name in params.readers_in_use()})
    estimate = _Estimate(params, root, prices)
    out = [_index_line(name, params, prices, root) for name in (*params.structures, *params.graphs)]
    for name, run in params.runs.items():
        alike = [name, *(other for other, o in params.runs.items() if o.method == run.method and other != name)]
        cells = [(d, s, _asks(root, name, d, s, params)) for d, s in params.cells(name)]
        out.append(estimate.line(alike, cells, judged=True))
    if plan := params.the_training:
        used = sorted(set(plan.datasets.values()))
        for line, setting, n in [
            (COLLECTED, plan.setting, plan.questions * len(plan.collection_seeds)),
            (TUNED, plan.setting, plan.tuning_questions),
            *(
                (f"(network {name})", params.network_setting(network) or plan.setting, network.questions)
                for name, network in params.networks.items()
                if network.checkpoint is None
            ),
        ]:
            out.append(estimate.line([line], [(d, setting, n) for d in used]))
    return out


def _asks(root: Path, run: str, dataset: str, setting: str, params: Params) -> int:
    """Answers of a cell that are asked: at temperature 0 the seeds of a run share one, unless each has its own
    controller."""
    reader = params.readers[params.settings[setting].reader]
    agent = registry.find(params.run(run).method).mode == "free"
    one_draw = not reader.temperature and not (agent and reader.agent_temperature)
    trained = params.kind_of_training(params.run(run).trained) == "controller"
    most = params.run(run).questions
    questions = sizes.questions(root, dataset, params)
    return min(questions, most or questions) * (1 if one_draw and not trained else len(params.seeds_of(run)))


class _Estimate:
    """The lines of one estimate, in order: what one asks, the next has for nothing."""

    def __init__(self, params: Params, root: Path, prices: Prices):
        self.params, self.root, self.prices = params, root, prices
        asked = Asked.load(root, root / "../..")
        self.counting = Counting(asked) if asked else None
        self.measured = _measured(root)

    def line(self, names: list[str], cells: list[tuple[str, str, int]], judged: bool = False) -> Line:
        """The sum over ``cells`` (dataset, setting, answers) of the first of ``names``; the others may stand for it."""
        calls = prompt = completion = usd = hours = 0.0
        models: dict[str, Share] = defaultdict(Share)
        shares = {setting: self._shares(names, setting, judged) for setting in dict.fromkeys(s for _, s, _ in cells)}
        for dataset, setting, n in cells:
            reader = self.params.readers[self.params.settings[setting].reader]
            longer = sizes.scale(self.root, dataset, self.params)
            own, judge = shares[setting]
            for share, model, scale in ((own, reader.model, longer), (judge, self._judge, 1.0)):
                read, wrote = n * share.prompt * scale, n * share.completion
                usd += self.prices.usd(Usage(0, round(read), round(wrote)), model)
                hours += _hours(self.params, reader, n * share.calls, read, wrote)
                calls, prompt, completion = calls + n * share.calls, prompt + read, completion + wrote
                models[model] += Share(n * share.calls, read, wrote)
        answers = sum(n for *_, n in cells)
        return Line(names[0], len(cells), answers, calls, prompt, completion, usd, hours, models)

    def _shares(self, names: list[str], setting: str, judged: bool) -> tuple[Share, Share]:
        """(the run's, the judge's) of an answer."""
        params = self.params
        reader = params.settings[setting].reader
        model = params.readers[reader].model
        alike = [s for s, chosen in params.settings.items() if params.readers[chosen.reader].model == model]
        place = alike.index(setting)
        # In a small corpus two embedders often find the same; in a large one only what never searches is asked alike.
        together = params.source == "demo" or not self._searches(names[0])
        if self.counting and (own := self.counting.share(names, setting, model, place, together)):
            judge = self.counting.share(names, setting, self._judge, place, together, "judged") if judged else None
            return own, judge or Share()
        own, judge = _used(self.measured, names, names[0])
        return own, judge if judged else Share()

    def _searches(self, run: str) -> bool:
        found = [cells[run] for settings in self.measured.values() for cells in settings.values() if run in cells]
        return not found or any(f.get("retrieval_calls") for f in found)

    @property
    def _judge(self) -> str:
        return self.params.readers[self.params.judge.reader].model


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
    models: dict[str, Share] = defaultdict(Share)
    base = _per_passage(root, name, params) if cells else {}
    for dataset, setting in paid.values():
        reader = params.readers[params.settings[setting].reader]
        passages, tokens = sizes.passages(root, dataset, params)
        longer = max(1.0, tokens / base["passage"])
        asked, read, wrote = (
            passages * base["calls"],
            passages * longer * base["prompt_tokens"],
            passages * longer * base["completion_tokens"],
        )
        usd += prices.usd(Usage(0, int(read), int(wrote)), reader.model)
        hours += _hours(params, reader, asked, read, wrote)
        calls, prompt, completion = calls + asked, prompt + read, completion + wrote
        models[reader.model] += Share(asked, read, wrote)
    return Line(f"(index {name})", len(cells), 0, calls, prompt, completion, usd, hours, models)


def _asked(name: str, dataset: str, setting: str, params: Params, root: Path) -> tuple[Any, ...]:
    """What decides the requests of an index in one of its cells: the store answers a second such cell."""
    chosen = params.settings[setting]
    reader = params.readers[chosen.reader]
    text_alone = params.structure(name).structure in TEXT_ALONE
    embedder = None if text_alone else chosen.embedder
    return reader.model, reader.temperature, embedder, chosen.corpus, sizes.corpus(root, dataset, params)


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


def report(params: Params, root: Path) -> str:
    """The table that `multihop estimate` prints."""
    rows = lines(params, root)
    whole = total(rows)
    head = (
        f"{'run':<28}{'cells':>6}{'answers':>9}{'calls':>10}{'prompt tok':>13}{'output tok':>12}{'USD':>9}{'hours':>8}"
    )
    body = [
        f"{r.run:<28}{r.cells:>6}{r.questions:>9}{r.calls:>10.0f}{r.prompt:>13.0f}{r.completion:>12.0f}"
        f"{r.usd:>9.2f}{r.hours:>8.1f}"
        for r in (*rows, whole)
    ]
    note = (
        "As if nothing were stored yet; what several lines ask alike is counted in the first of them, as often as it\n"
        "was so in the demo (in another corpus: not between embedders, where there is a search), an index once for\n"
        "all datasets with one corpus and all settings that ask the same (RAPTOR's tree: for each embedder). From the\n"
        "demo's measured tokens per answer and passage, prompts scaled by passage length; hours at 1.5 s a call and\n"
        "16 calls at once for a server, at 45/17 tokens/s for the embedded model without its prefix cache. An agent\n"
        "that uses a larger loop limit costs more, and so does LightRAG with its package's prompt, longer than the\n"
        "demo's. `endpoints.<name>.batch` is not counted in."
    )
    return "\n".join([head, *body, note])


def total(rows: list[Line]) -> Line:
    names = ("cells", "questions", "calls", "prompt", "completion", "usd", "hours")
    return Line("total", *(sum(getattr(r, name) for r in rows) for name in names))
