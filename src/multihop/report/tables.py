"""The paper's Tables 1 to 11 with our numbers, the paper's printed ones beside them; and what ran on what data.

Tables 12 to 15 are in failure_tables.py. Every function takes a Report and returns a Table ready to display.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from multihop.evaluation import aggregate
from multihop.pricing import Prices
from multihop.report.expected import Cell, SetupFact
from multihop.report.failure_tables import failure_overview, table_12, table_13, table_14, table_15
from multihop.report.frames import Table, caption, compared, frame, note, number
from multihop.report.index_tables import card_rows
from multihop.report.load import Report
from multihop.report.values import PERCENT, run_of, score_rows
from multihop.types import Usage

__all__ = [
    "data_cards", "failure_overview", "metrics_overview", "per_category", "retrieval_recall", "settings_and_runs",
    "setup", "table_1", "table_2", "table_3", "table_4", "table_5", "table_6", "table_7", "table_8", "table_9",
    "table_10", "table_11", "table_12", "table_13", "table_14", "table_15",
]  # fmt: skip
ANSWER = ["contain", "llm_acc", "rule_acc"]
COSTS = (
    "Retrieved tokens: A-RAG's counter, seed included. USD: logical, without the provider's cache discount; a local "
    "reader costs no money, so the last column prices its tokens."
)
DIFFERENCES = ("executionrag_minus_arag", "executionrag_minus_lag")


def _label(report: Report, system: str) -> str:
    return report.with_network(report.expected.systems[system].label, run_of(report, system))


def _rows_of(report: Report, item: str) -> list[Cell]:
    """One cell per row of the item's grid (its metric is of no account), without the differences."""
    seen = {}
    for cell in report.expected.cells(item):
        if not report.expected.systems[cell.system].minus:
            seen.setdefault((cell.dataset, cell.system, cell.role, cell.group), cell)
    return list(seen.values())


# -- Tables 1 to 8


def table_1(report: Report, role: str = "main") -> Table:
    """The rows of Table 1 under either embedder (the paper has it under the first), and two paired differences."""
    cells = [c._replace(role=role) for c in _rows_of(report, "Table 1")]
    rows, left_out = {}, {}
    for dataset in dict.fromkeys(c.dataset for c in cells):
        own = [c for c in cells if c.dataset == dataset]
        for cell in [*own, *(own[0]._replace(system=s) for s in DIFFERENCES)]:
            if _says_nothing(report, cell):
                left_out.setdefault(_label(report, cell.system), []).append(report.label_dataset(dataset))
            else:
                rows[report.label_dataset(dataset), _label(report, cell.system)] = compared(report, cell, ANSWER)
    last = f"{_not_run(left_out, len(report.datasets))} {note(report)}".strip()
    return Table(caption(report, "Table 1", role), frame(rows, ["dataset", "system"]), last)


def _says_nothing(report: Report, cell: Cell) -> bool:
    """params.yaml does not ask for it there, and the paper's text prints nothing for the row."""
    system = report.expected.systems[cell.system]
    runs = [run_of(report, s) for s in system.minus or [cell.system]]
    suffix = "_delta" if system.minus else ""
    printed = any(report.expected.lookup(*cell._replace(metric=f"{m}{suffix}").key) for m in ANSWER)
    return not printed and not all(_asked(report, run, cell) for run in runs)


def _asked(report: Report, run: str | None, cell: Cell) -> bool:
    """Whether params.yaml has the run and, where it has the dataset and setting, asks for it on them."""
    setting = report.setting(cell.role)
    if run not in report.params.runs:
        return False
    known = cell.dataset in report.datasets and setting is not None
    return not known or (cell.dataset, setting) in set(report.params.cells(run))


def _not_run(left_out: dict[str, list[str]], datasets: int) -> str:
    """The rows that are not shown, in one line."""
    names = [name if len(of) == datasets else f"{name} ({', '.join(of)})" for name, of in left_out.items()]
    why = "not asked for in params.yaml under this setting; no value in the paper's text"
    return f"Not run ({why}): {', '.join(names)}." if names else ""


def table_2(report: Report) -> Table:
    """The ablation, under both embedders (the paper has it under its first)."""
    cells = [c._replace(role=role) for role in report.roles for c in _rows_of(report, "Table 2")]
    rows = {(_setting(report, c.role), _label(report, c.system)): compared(report, c, ANSWER) for c in cells}
    return Table(caption(report, "Table 2", datasets=["musique"]), frame(rows, ["embedder", "system"]), note(report))


def per_category(report: Report, dataset: str, role: str) -> Table:
    """Tables 3 to 8: ExecutionRAG by hop count or type, A-RAG under it, and both over all questions."""
    item = _CATEGORY_ITEMS[dataset, role]
    groups = [*dict.fromkeys(c.group for c in report.expected.cells(item)), "all"]
    cells = [Cell(item, dataset, s, role, "contain", g) for s in ("executionrag", "arag") for g in groups]
    rows = {(_label(report, c.system), c.group): compared(report, c, ANSWER) for c in cells}
    text = "The paper has ExecutionRAG's rows by category; A-RAG's and the totals are ours to compare."
    return Table(caption(report, item, role, text, [dataset]), frame(rows, ["system", "questions"]), note(report))


_CATEGORY_ITEMS = {
    ("musique", "main"): "Table 3",
    ("hotpotqa", "main"): "Table 4",
    ("2wikimultihopqa", "main"): "Table 5",
    ("musique", "second"): "Table 6",
    ("hotpotqa", "second"): "Table 7",
    ("2wikimultihopqa", "second"): "Table 8",
}


def _category_table(dataset: str, role: str) -> Callable[[Report], Table]:
    return lambda report: per_category(report, dataset, role)


table_3, table_4, table_5, table_6, table_7, table_8 = (_category_table(*key) for key in _CATEGORY_ITEMS)


# -- Tables 9 to 11


def table_9(report: Report) -> Table:
    """Retrieved tokens and cost of the matched pair, with what else a question costs."""
    cells = _rows_of(report, "Table 9")
    rows = {
        (report.label_dataset(c.dataset), _label(report, c.system)): _costs(report, c, ["retrieved_tokens", "usd"])
        for c in cells
    }
    return Table(caption(report, "Table 9", "main", COSTS), frame(rows, ["dataset", "system"]), note(report))


def table_10(report: Report) -> Table:
    metrics = ["retrieved_tokens", "usd", "contain", "llm_acc", "rule_acc"]
    cells = [c._replace(role=role) for role in report.roles for c in _rows_of(report, "Table 10")]
    rows = {(_setting(report, c.role), _label(report, c.system)): _costs(report, c, metrics) for c in cells}
    title = caption(report, "Table 10", text=COSTS, datasets=["musique"])
    return Table(title, frame(rows, ["embedder", "system"]), note(report))


def table_11(report: Report) -> Table:
    rows = {
        (report.label_dataset(c.dataset), _setting(report, c.role), _label(report, c.system)): _costs(
            report, c, ["llm_acc", "rule_acc", "retrieved_tokens", "usd"]
        )
        for c in _rows_of(report, "Table 11")
    }
    names = ["dataset", "embedder", "system"]
    return Table(caption(report, "Table 11", text=COSTS), frame(rows, names), note(report))


def _costs(report: Report, cell: Cell, metrics: list[str]) -> dict[Any, str]:
    """Ours and the paper's, then means per question that the paper does not have."""
    row = compared(report, cell, metrics)
    rows = score_rows(report, cell)
    for column in ("seed_tokens", "total_tokens", "llm_calls", "retrieval_calls", "loops"):
        label = {"seed_tokens": "of these: seed", "total_tokens": "model tokens"}.get(column, column.replace("_", " "))
        row[label, ""] = number(aggregate.mean(rows, column), column)
    reader = report.expected.own.roles[cell.role].reader
    row[f"USD at {reader}'s price", ""] = number(_usd(report, rows, reader), "usd")
    return row


def _usd(report: Report, rows: list[Any], reader: str) -> float | None:
    """What these tokens would cost per question at the paper's reader; None without a price list."""
    path = Path(report.root) / "prices.yaml"
    if not rows or not path.is_file():
        return None
    prices = Prices.load(path)
    usages = [Usage(prompt_tokens=r["prompt_tokens"], completion_tokens=r["completion_tokens"]) for r in rows]
    return sum(prices.usd(u, reader) for u in usages) / len(rows)


def _setting(report: Report, role: str) -> str:
    setting = report.setting(role)
    return report.label_setting(setting) if setting else f"no {role} setting"


# -- what ran, on what


def settings_and_runs(report: Report) -> Table:
    """Every run with its method, its own params, and how many of its cells have scores."""
    rows = {}
    for name, run in report.params.runs.items():
        cells = list(report.params.cells(name))
        done = sum(report.has(dataset, setting, name) for dataset, setting in cells)
        options = ", ".join(f"{k}: {v}" for k, v in run.options.items())
        rows[name,] = {"label": report.label_run(name), "method": run.method, "options": options,
                       "cells scored": f"{done} of {len(cells)}"}  # fmt: skip
    settings = [
        f"{name} = {report.reader(name)} + {s.embedder} + {s.corpus} ({report.label_setting(name)})"
        for name, s in report.params.settings.items()
    ]
    text = f"Runs of profile {report.params.profile}. Settings: {'; '.join(settings)}. Judge: {report.judge}."
    return Table(text, frame(rows, ["run"]), note(report))


def setup(report: Report) -> Table:
    """How the paper says it ran, and what params.yaml says of ours."""
    rows = {
        (f.fact,): {"paper": f"{f.value:g}", "unit": f.unit, "ours": _param(report, f), "where in the paper": f.place}
        for f in report.expected.setup
    }
    text = "The paper's setup beside ours, read from params.yaml; where it sets nothing, the method's default holds."
    return Table(text, frame(rows, ["fact"]))


def _param(report: Report, fact: SetupFact) -> str:
    if fact.param is None:
        return fact.ours
    values = report.param(fact.param)
    shown = dict.fromkeys("all" if v is None else f"{v:g}" if isinstance(v, int | float) else str(v) for v in values)
    return " / ".join(shown) or "the method's default"


def data_cards(report: Report) -> Table:
    """Counts, lengths, gold mapping and hashes of each dataset."""
    rows = {(report.label_dataset(d),): _card(card) | card_rows(report, d) for d, card in report.cards.items()}
    text = (
        "Data cards. Fingerprint: share of gold paragraphs whose first 40 characters are found in a chunk, literally, "
        "normalised, and normalised with fallbacks; exact: by the offsets that the corpus variants keep. Entities and "
        "triples: distinct ones, as the index named in brackets found them."
    )
    return Table(text, frame(rows, ["dataset"]).T if rows else frame({}, ["dataset"]), note(report))


def _card(card: dict[str, Any]) -> dict[str, str]:
    dev, corpus = card["evaluation"], card["corpus"]
    row = {
        "questions": f"{dev['questions']:,} ({dev['selection']})",
        "by type": ", ".join(f"{k}: {v:,}" for k, v in dev["by_type"].items()),
        "by hops": ", ".join(f"{k}: {v:,}" for k, v in dev["by_hops"].items()),
        "passages": f"{corpus['passages']:,}, {corpus['titles_shared_by_several_passages']:,} titles shared by several",
        "tokens per passage": f"{corpus['tokens']['mean']} (longest {corpus['tokens']['max']:,})",
        "gold passages": f"{dev['gold_passages']:,}; questions with labelled ones {dev['gold_exact']:,}",
    }
    for variant, groups in card["gold_mapping"].items():
        for group, mapping in groups.items():
            prints = " / ".join(f"{100 * v['found']:.1f}" for v in mapping["fingerprint"].values())
            row[f"gold mapped in {variant}, {group} (%)"] = f"exact {100 * mapping['exact']:.1f}; fingerprint {prints}"
    return row | {"ids sha256": card["ids_sha256"][:16], "corpus sha256": card["corpus_hash"][:16]}


def retrieval_recall(report: Report) -> Table:
    """results/retrieval.json as one table: the question as query, without a model. What holds the same questions as
    "all", or the same numbers under another setting (BM25 has no embedder), is named in one row."""
    rows = {}
    for dataset in report.datasets:
        measured = report.retrieval.get(dataset, {})
        settings: dict[tuple[str, str], list[str]] = {}
        for setting in [s for s in report.settings if s in measured]:
            for tool, groups in measured[setting].items():
                key = (tool, json.dumps(groups, sort_keys=True))
                settings.setdefault(key, []).append(report.label_setting(setting))
        for (tool, groups), labels in settings.items():
            for group, values in _distinct(json.loads(groups)).items():
                recalls = {k: v for k, v in values.items() if k != "n"}
                at = {k: v for k, v in sorted(recalls.items(), key=lambda kv: int(kv[0].rpartition("@")[2]))}
                key = (report.label_dataset(dataset), " = ".join(labels), tool, group)
                rows[key] = {"n": str(values["n"]), **{k: _recall(v) for k, v in at.items()}}
    text = "Share of a question's gold passages among the first k results, in percent with its 95 % interval."
    return Table(text, frame(rows, ["dataset", "setting", "search", "questions"]), note(report))


def _distinct(groups: dict[str, Any]) -> dict[str, Any]:
    """Groups with as many questions as "all" hold the same ones: one row that names them."""
    n = groups.get("all", {}).get("n")
    if n is None:
        return groups
    same = [g for g, values in groups.items() if values["n"] == n and g != "all"]
    return {" = ".join(["all", *same]): groups["all"]} | {g: groups[g] for g in groups if g not in ("all", *same)}


def _recall(value: dict[str, float | None]) -> str:
    if value["mean"] is None:
        return ""
    mean, low, high = (number(100 * value[k], "support_recall") for k in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"


def metrics_overview(report: Report) -> Table:
    """results/metrics.json as one table: every cell that is scored."""
    columns = ["em", "f1", "contain", "contain_word", "llm_acc", "rule_acc", "support_recall", "forced",
               "retrieved_tokens", "total_tokens", "final_prompt_tokens", "llm_calls", "retrieval_calls", "loops",
               "usd"]  # fmt: skip
    rows = {}
    for dataset in report.datasets:
        for setting in report.settings:
            scored = report.metrics.get(dataset, {}).get(setting, {})
            for run in [r for r in report.runs if r in scored]:
                m = scored[run]
                values = {c: _metric(m.get(c), c) for c in columns}
                key = (report.label_dataset(dataset), report.label_setting(setting), report.label_run(run))
                rows[key] = {"n_ok / n": f"{m['n_ok']:g} / {m['n']}", **values}
    text = f"Every scored cell; shares in %. llm_acc: by {report.judge}; rule_acc: gold or alias in the short answer."
    return Table(text, frame(rows, ["dataset", "setting", "run"]), note(report))


def _metric(value: float | None, column: str) -> str:
    return number(100 * value if column in PERCENT and value is not None else value, column)
