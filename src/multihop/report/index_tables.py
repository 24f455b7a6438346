"""What the indexes of structured methods cost and hold, and what a method's retrieved passages are.

Read from results/structures/<entry>/<dataset>/<setting>.json, which building.py writes; seconds from
data/recordings/index_seconds.json. An index that is not built says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from multihop.pricing import Prices
from multihop.report.frames import Table, frame, note, number
from multihop.report.load import Report
from multihop.types import Usage

__all__ = ["card_rows", "fallbacks", "graph_statistics", "index_costs", "provenance"]
NOT_MEASURED = "—"
INDEX = ["index", "dataset", "setting"]
COLUMNS = {
    "passages": ("passages", "chunks"),
    "entities": ("entities", "phrases", "linking_entities"),
    "triples": ("triples", "facts", "relations"),
    "nodes": ("nodes",),
    "edges": ("edges", "links"),
    "components": ("components",),
    "largest component": ("largest_component",),
    "isolated passages": ("isolated_passages",),
    "malformed": ("malformed",),
    "failed steps": ("failed_steps", "failed_calls", "failed"),
}
"""Column -> the statistics that may fill it, the first that an index has; all others are named in the last column."""
PASSAGE_NODES = {"passage_graph": {"isolated": "isolated_passages"}}
"""Structures all of whose nodes are passages: what they count under another name."""
PROVENANCE = {
    "kgp": (
        "the visited passages nearest to the question and the evidence looked for",
        "every passage visited, the first search included",
    ),
    "raptor": (
        "passages and summaries",
        "leaves only: passages shown whole or in part; what a summary was made of is recorded, not counted",
    ),
    "lightrag": (
        "entities, relations and passages",
        "the source passages shown beside them, best first; not those that a description was only merged from",
    ),
    "g_retriever": (
        "the facts of a subgraph as a table, and passages",
        "the passages that the selected facts come from, best first",
    ),
}
"""Method -> what its reader is shown, what is counted as retrieved, where that is not simply the passages found."""


def index_costs(report: Report) -> Table:
    """Calls, tokens, USD (before and after), bytes and seconds of each index, dataset and setting."""
    rows = {}
    for name, dataset, setting in _cells(report):
        meta = _meta(report, name, dataset, setting)
        key = (name, report.label_dataset(dataset), report.label_setting(setting))
        rows[key] = (
            _cost(report, meta, setting) | _seconds(report, name, dataset, setting)
            if meta
            else {("model", ""): _not_built(name, dataset, setting)}
        )
    text = (
        "What the indexes cost. Estimated: guessed from the corpus alone, before anything is asked. Actual: calls and "
        "tokens of the build, repairs included, the same live and replayed; bytes: the index's own files."
    )
    below = " ".join(filter(None, (_shared(report), _measured_on(report), note(report))))
    return Table(text, frame(rows, INDEX), below)


def graph_statistics(report: Report) -> Table:
    """What each index holds; datasets whose corpus and index are the same share a row."""
    same: dict[tuple[Any, ...], list[str]] = {}
    texts: dict[tuple[Any, ...], dict[str, str]] = {}
    for name, dataset, setting in _cells(report):
        meta = _meta(report, name, dataset, setting)
        row = _statistics(meta) if meta else {"passages": _not_built(name, dataset, setting)}
        key = (name, setting, meta["identity"]["corpus"] if meta else dataset, tuple(row.items()))
        same.setdefault(key, []).append(report.label_dataset(dataset))
        texts[key] = row
    rows = {(key[0], " = ".join(labels), report.label_setting(key[1])): texts[key] for key, labels in same.items()}
    text = (
        "What the indexes hold. Triples: facts or relations, where an index has those; isolated passages: linked to no "
        "other node; malformed and failed steps: what the model's output lost. Empty: the index has no such thing."
    )
    return Table(text, frame(rows, INDEX), note(report))


def card_rows(report: Report, dataset: str) -> dict[str, str]:
    """For the data card: distinct entities and triples of one dataset, by the index that found them."""
    rows: dict[str, dict[str, None]] = {}
    for name, of, setting in _cells(report):
        kind = report.params.structure(name).structure
        if of != dataset or kind not in ("openie", "entities"):
            continue
        meta = _meta(report, name, of, setting)
        s = meta["statistics"] if meta else {}
        entities = f"{s['entities']:,} ({s['mentions']:,} mentions)" if meta else _not_built(name, of, setting)
        rows.setdefault(f"entities ({name})", {})[entities] = None
        if kind == "openie":
            lost = f"{s['malformed']:,} malformed, {s['failed_steps']:,} failed steps" if meta else ""
            triples = f"{s['distinct_triples']:,} ({s['triples']:,} in all; {lost})" if meta else entities
            rows.setdefault(f"triples ({name})", {})[triples] = None
    return {row: " / ".join(values) for row, values in rows.items()}


def provenance(report: Report) -> Table:
    """What counts as a retrieved passage of the systems that answer from more than passages."""
    rows = {}
    for name, run in report.params.runs.items():
        if run.method in PROVENANCE:
            shown, counted = PROVENANCE[run.method]
            rows[report.label_run(name),] = {"its reader is shown": shown, "counted as retrieved": counted}
    rows["every other system",] = {
        "its reader is shown": "passages",
        "counted as retrieved": "the passages that its searches returned",
    }
    text = "What is counted as a retrieved passage, on which missing evidence and recall rest."
    return Table(text, frame(rows, ["system"]), note(report))


def fallbacks(report: Report) -> Table:
    """How often each structured run could not go its own way: questions with a fallback, and the reasons counted."""
    rows = {}
    for run in (name for name, config in report.params.runs.items() if config.structure):
        for dataset, setting in report.params.cells(run):
            records = report.records(run, dataset, setting)
            found = [[e.data["what"] for e in record.events if e.kind == "fallback"] for record in records]
            why = Counter(what for each in found for what in each)
            rows[report.label_run(run), report.label_dataset(dataset), report.label_setting(setting)] = {
                "questions": str(len(records)) if records else "not run",
                "with a fallback": str(sum(map(bool, found))) if records else "",
                "reasons": ", ".join(f"{what} {n}" for what, n in sorted(why.items())),
            }
    text = (
        "Where a structured system fell back on dense search, or on less than its own way: what its numbers then show "
        "is the common retriever's work, not its own."
    )
    return Table(text, frame(rows, ["system", "dataset", "setting"]), note(report))


# -- one index


def _cells(report: Report) -> Iterator[tuple[str, str, str]]:
    """(entry, dataset, setting) of every index that params.yaml asks for."""
    for name in (*report.params.structures, *report.params.graphs):
        for dataset, setting in report.params.structure_cells(name):
            yield name, dataset, setting


def _meta(report: Report, name: str, dataset: str, setting: str) -> dict[str, Any] | None:
    return report.structures.get(name, {}).get((dataset, setting))


def _not_built(name: str, dataset: str, setting: str) -> str:
    return f"not run: no index {name} of {dataset} / {setting} yet (make repro)"


def _cost(report: Report, meta: Mapping[str, Any], setting: str) -> dict[tuple[str, str], str]:
    model = meta["model"] or report.reader(setting)
    row = {("model", ""): meta["model"] or "none asked"}
    for column, key in (
        ("calls", "calls"),
        ("prompt tokens", "prompt_tokens"),
        ("completion tokens", "completion_tokens"),
    ):
        row |= {(column, when): f"{meta[when][key]:,}" for when in ("estimated", "actual")}
    row |= {("USD", when): _usd(report, meta[when], model) for when in ("estimated", "actual")}
    reader = next(iter(report.expected.own.roles.values())).reader
    row["USD", f"at {reader}'s price"] = _usd(report, meta["actual"], reader)
    row["bytes", "actual"] = f"{meta['bytes']:,}"
    return row


def _usd(report: Report, cost: Mapping[str, int], model: str) -> str:
    """Empty without a price list. Raises ConfigError for a model that it does not have."""
    if not cost["calls"]:
        return "0"
    if _is_local(report, model):
        return "0 (local)"
    path = Path(report.root) / "prices.yaml"
    if not path.is_file():
        return ""
    usage = Usage(cost["calls"], cost["prompt_tokens"], cost["completion_tokens"])
    return number(Prices.load(path).usd(usage, model), "usd")


def _is_local(report: Report, model: str) -> bool:
    """Whether the embedded server answers for it."""
    readers = [r for r in report.params.readers.values() if r.model == model]
    return any(report.params.endpoints[r.endpoint].kind == "embedded" for r in readers)


def _seconds(report: Report, name: str, dataset: str, setting: str) -> dict[tuple[str, str], str]:
    measured = report.index_seconds.get("seconds", {}).get(name, {}).get(f"{dataset}/{setting}")
    return {
        ("seconds", "actual"): f"{measured['seconds']:,.1f}" if measured else NOT_MEASURED,
        ("seconds", "calls answered live"): f"{measured['live_calls']:,}" if measured else NOT_MEASURED,
    }


def _measured_on(report: Report) -> str:
    machine = report.index_seconds.get("machine")
    if machine is None:
        return f"{NOT_MEASURED}: seconds were not measured."
    return (
        f"Seconds: measured once, while the recording was made, on {machine}; a replay asks nothing and is faster; "
        f"{NOT_MEASURED}: not timed when it was recorded, or nothing was asked live."
    )


def _shared(report: Report) -> str:
    """Which datasets are one corpus, so that one index is paid for all of them; empty where each has its own."""
    groups: dict[tuple[str, ...], None] = {}
    for built in report.structures.values():
        by_corpus: dict[tuple[str, str], list[str]] = {}
        for (dataset, setting), meta in built.items():
            by_corpus.setdefault((setting, meta["identity"]["corpus"]), []).append(report.label_dataset(dataset))
        groups |= {tuple(labels): None for labels in by_corpus.values() if len(labels) > 1}
    return " ".join(
        f"{', '.join(labels[:-1])} and {labels[-1]} share one corpus: what an index of it costs is paid once, the "
        "later ones replay the first one's answers."
        for labels in groups
    )


def _statistics(meta: Mapping[str, Any]) -> dict[str, str]:
    """Statistics under the tables' columns; those that have none are named in the last."""
    names = PASSAGE_NODES.get(meta["identity"]["structure"], {})
    left = {names.get(key, key): value for key, value in meta["statistics"].items()}
    row = {}
    for column, keys in COLUMNS.items():
        key = next((k for k in keys if k in left), None)
        row[column] = _text(left.pop(key)) if key else ""
    row["further"] = ", ".join(f"{key.replace('_', ' ')}: {_text(value)}" for key, value in left.items())
    return row


def _text(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)
