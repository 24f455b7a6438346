"""Which gold passages some query reaches, and what of a run's missing ones nobody asked for: the page reachability.

Shares and splits come from results/reachability.json, named witnesses from results/certificates; certifying.py writes
both. A share is of gold passages, its interval over questions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from multihop import jsonl
from multihop.analysis.probes import AGENT, TIERS
from multihop.analysis.reachability import ANY, deepest
from multihop.report.frames import Note, Table, frame, note
from multihop.report.load import Report

SUMMARY, FOLDER = "results/reachability.json", "results/certificates"
TIER_LABELS = {
    "T0": "T0: the question",
    "issued": "issued: a run's query",
    "T1": "T1: true sub-question",
    "T2": "T2: title",
    "T3": "T3: own first sentence",
    ANY: "any of them",
}
TOOL_LABELS = {
    "dense": "dense, passages",
    "semantic_search": "semantic search (sentences)",
    "keyword_search": "keyword search",
    "keyword_sentences": "keyword search, sentences",
    "bm25": "BM25",
    "bm25_sentences": "BM25, sentences",
}
FATE_LABELS = {
    "never_asked": "reachable, never asked %",
    "askable": "of the missing, by T0, issued or T1 %",
    "asked_not_returned": "asked, not returned %",
    "no_certificate": "no certificate %",
}
NOT_YET = f"not run: {SUMMARY} is not there yet (multihop certify)"
ONE_KIND = Note("All gold passages here are of one kind (in each dataset).")
PROVES_NOTHING = "A passage without a certificate may be reachable all the same: failing to certify proves nothing."
Group = dict[str, Any]


def summary(report: Report) -> dict[str, Any]:
    """The content of results/reachability.json; empty parts where it is not there. Raises DataError if damaged."""
    if "reachability" not in report.memo:
        path = report.root / SUMMARY
        empty = {"rules": {"ks": [], "tools": []}, "shares": {}, "runs": {}}
        report.memo["reachability"] = (
            jsonl.read_json(path, "run `multihop certify`", list(empty)) if path.is_file() else empty
        )
    return report.memo["reachability"]


def depth(report: Report) -> int:
    """The k of the tables: the largest certified one that is not above params.yaml's run_k."""
    rules = report.params.certificates
    return deepest(rules.ks, rules.run_k)


def rules(report: Report) -> Note:
    """What was tried, in one paragraph."""
    c = report.params.certificates
    indexes = ", ".join(index_label(report, name) for name in report.params.certificate_indexes()) or "none"
    return Note(
        f"What was tried. Depths k = {', '.join(map(str, c.ks))}; a keyword probe has at most {c.keywords} keywords. "
        f"Indexes: {indexes}. A run's query asks for a passage if it holds the passage's title, or "
        f"{100 * c.asked_share:g} % of the content words of a sub-question that the passage answers (HotpotQA has "
        "none: there the title alone counts). The question's own text, which the register appends to its queries, is "
        "cut out first, and only the record that misses the passage is looked at. "
        f"A run's missing passage counts as reachable at k = {c.run_k}, or at what its own searches return where that "
        "is less. The tier issued is empty where no run answered the question. "
        f"{PROVES_NOTHING}"
    )


def index_label(report: Report, name: str) -> str:
    """"all-MiniLM-L6-v2, passages": an embedder goes by the label of the first setting that has it."""
    embedder, corpus = report.params.certificate_indexes()[name]
    settings = [n for n, s in report.params.settings.items() if s.embedder == embedder]
    return f"{report.label_setting(settings[0]) if settings else embedder}, {corpus}"


def main_index(report: Report) -> str | None:
    """The first setting's index, if it is certified; else the first certified one."""
    there = list(report.params.certificate_indexes())
    own = report.params.index_name(report.settings[0])
    return own if own in there else next(iter(there), None)


# -- shares of gold passages


def by_tier(report: Report, groups: str = "hops") -> Table | Note:
    """Share of gold passages that a tier's probes reach at the tables' k, for the agent's two searches.

    ``groups``: "hops" (all, then by hop count), "position" (by hop position) or "gold" (labelled, matched; a note
    where all are of one kind).
    """
    if groups == "gold" and _one_kind(report):
        return ONE_KIND
    k, index = depth(report), main_index(report)
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for dataset, shares in shares_of(report, index):
        for group in chosen(shares, groups):
            for tool in AGENT:
                if tool in shares[group]:
                    key = (report.label_dataset(dataset), group, TOOL_LABELS[tool])
                    rows[key] = {"gold passages": str(shares[group]["passages"])}
                    rows[key] |= {
                        TIER_LABELS[tier]: _percent(report, shares[group], tool, tier, k) for tier in (*TIERS, ANY)
                    }
    where = index_label(report, index) if index else "no index"
    text = (
        f"Share of gold passages, in percent, that a search for k = {k} returns for at least one probe of a tier; "
        f"{where}. {PROVES_NOTHING}"
    )
    return _table(report, text, rows, ["dataset", "questions" if groups == "hops" else "passages", "tool"])


def by_depth(report: Report) -> Table:
    """Every tool at every k, by true sub-question and by title."""
    index = main_index(report)
    rows: dict[tuple[str, ...], dict[tuple[str, str], str]] = {}
    for dataset, shares in shares_of(report, index):
        for tool in report.params.certificates.tools:
            group = shares.get("all", {})
            if tool in group:
                counts = {("gold passages", ""): str(group["passages"])}
                rows[report.label_dataset(dataset), TOOL_LABELS[tool]] = counts | {
                    (TIER_LABELS[tier], f"k = {k}"): _share(report, group, tool, tier, k)
                    for tier in ("T0", "T1", "T2")
                    for k in report.params.certificates.ks
                }
    where = index_label(report, index) if index else "no index"
    text = f"Share of gold passages, in percent, reached at each depth; {where}. {_intervals(report)} {PROVES_NOTHING}"
    return _table(report, text, rows, ["dataset", "tool"])


def by_index(report: Report) -> Table:
    """Every embedder and corpus variant, at the tables' k, with the true sub-question."""
    k = depth(report)
    rows = {}
    for dataset in report.datasets:
        for index in report.params.certificate_indexes():
            groups = summary(report)["shares"].get(dataset, {}).get(index, {})
            if "all" in groups:
                counts = {"gold passages": str(groups["all"]["passages"])}
                rows[report.label_dataset(dataset), index_label(report, index)] = counts | {
                    TOOL_LABELS[tool]: _share(report, groups["all"], tool, "T1", k)
                    for tool in report.params.certificates.tools
                    if tool in groups["all"]
                }
    text = (
        f"Share of gold passages, in percent, that a search for k = {k} returns for a true sub-question (T1). A chunk "
        "of 1,000 tokens holds many passages, so that five chunks are far more text than five passages; keyword search "
        f"and BM25 read no vectors and differ between embedders in nothing. {_intervals(report)} {PROVES_NOTHING}"
    )
    return _table(report, text, rows, ["dataset", "index"])


def shares_of(report: Report, index: str | None) -> Iterator[tuple[str, dict[str, Group]]]:
    for dataset in report.datasets:
        found = summary(report)["shares"].get(dataset, {}).get(index)
        if found:
            yield dataset, found


def chosen(shares: dict[str, Group], groups: str) -> list[str]:
    if groups == "hops":
        return [g for g in shares if g == "all" or g.endswith("-hop")]
    if groups == "position":
        return [g for g in shares if g.startswith("hop ")]
    kinds = [g for g in ("labelled gold", "matched gold") if g in shares]
    return kinds if len(kinds) > 1 else []


def _one_kind(report: Report) -> bool:
    """Whether certificates are there, and no dataset has both labelled and matched gold."""
    found = [shares for _, shares in shares_of(report, main_index(report))]
    return bool(found) and not any(chosen(shares, "gold") for shares in found)


def _intervals(report: Report) -> str:
    return (
        f"Intervals, at k = {depth(report)}: those of the agents' two searches over the first index are in the main "
        f"table (by tier and hop count), all others in {SUMMARY}."
    )


def _share(report: Report, group: Group, tool: str, tier: str, k: int) -> str:
    at = list(summary(report)["rules"]["ks"]).index(k)
    return f"{100 * group[tool][tier]['found'][at] / group['passages']:.1f}"


def _percent(report: Report, group: Group, tool: str, tier: str, k: int) -> str:
    low, high = group[tool][tier]["low"], group[tool][tier]["high"]
    return f"{_share(report, group, tool, tier, k)} [{100 * low:.1f}, {100 * high:.1f}]"


# -- what runs missed


def lost(report: Report, groups: str = "") -> Table | Note:
    """Every run's missing gold passages, told apart.

    Under the first setting alone, ``groups`` splits them: "hops" or "position" those of the agents, "gold" (labelled,
    matched) those of every run, where the dataset has both kinds (a note where none has).
    """
    if groups == "gold" and _one_kind(report):
        return ONE_KIND
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    excused: dict[str, list[str]] = {}
    for dataset, run, setting, entry in _entries(report):
        if entry["excuse"]:
            excused.setdefault(entry["excuse"], []).append(report.label_run(run))
            continue
        key = (report.label_dataset(dataset), report.label_setting(setting), report.label_run(run))
        if not groups:
            rows[key] = _lost(entry, "all")
        elif setting == report.settings[0] and (groups == "gold" or set(entry["tools"]) <= set(AGENT)):
            there = chosen(summary(report)["shares"][dataset][entry["index"]], groups)
            rows |= {(*key, g): _lost(entry, g) for g in there if g != "all" and g in entry["groups"]}
    text = (
        "Gold passages that a run did not retrieve. Reachable, never asked: some probe returns the passage with a tool "
        "that the run has, at its k, and the record's own queries do not ask for it; a query counts as a witness only "
        "if the run did not ask it itself. Lowest tier: of those, what one would have had to know; T0, issued and T1 "
        f"can be asked before the passage is found. Shares of the missing passages, in percent. {PROVES_NOTHING}"
    )
    table = _table(report, text, rows, ["dataset", "setting", "run", *(["group"] if groups else [])])
    apart = [f"{why}: {', '.join(dict.fromkeys(runs))}" for why, runs in sorted(excused.items())]
    below = f"Not told apart: {'; '.join(apart)}. " if apart and not groups else ""
    return replace(table, note=below + table.note)


def _entries(report: Report) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """(dataset, run, setting, what results/reachability.json says), in the order of params.yaml."""
    for dataset in report.datasets:
        runs = summary(report)["runs"].get(dataset, {})
        for run in report.runs:
            for setting in report.settings:
                if entry := runs.get(run, {}).get(setting):
                    yield dataset, run, setting, entry


def _lost(entry: dict[str, Any], group: str) -> dict[str, str]:
    found = entry["groups"][group]
    tools = " + ".join(tool.removesuffix("_search") for tool in entry["tools"])
    line = {"tools, k": f"{tools}, {entry['k']}", "questions": str(found["questions"])}
    line["missing"] = str(found["missing"])
    for fate in FATE_LABELS:
        share, low, high = (found[fate][key] for key in ("share", "low", "high"))
        line[FATE_LABELS[fate]] = "" if share is None else f"{100 * share:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
    line["never asked, by lowest tier"] = ", ".join(f"{t} {n}" for t in TIERS if (n := found["tiers"][t]))
    return line


# -- witnesses


def witnesses(report: Report, questions: int = 2) -> Table:
    """Certificates by name: for the first questions of each dataset, each tier's best query of the agent's searches.

    T3 quotes the passage: shown for the generated world only.
    """
    index = main_index(report)
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for dataset in report.datasets:
        path = report.root / FOLDER / dataset / f"{index}.jsonl"
        found = list(jsonl.read(path)) if path.is_file() else []
        chosen = sorted({row["qid"] for row in found})[:questions]
        for row in (r for r in found if r["qid"] in chosen):
            for tool in AGENT:
                for tier, w in sorted(row["certificates"].get(tool, {}).items(), key=lambda t: TIERS.index(t[0])):
                    if tier != "T3" or report.is_demo:
                        key = (report.label_dataset(dataset), row["qid"], row["passage"], TOOL_LABELS[tool], tier)
                        query = w["query"] if isinstance(w["query"], str) else " | ".join(w["query"])
                        rows[key] = {"query": query, "rank": str(w["rank"]), "from k": str(w["k"])}
                        rows[key]["asked by"] = _some([report.label_run(r) for r in w.get("runs", ())])
    text = (
        "Witnesses: queries that return a gold passage, its rank, and the smallest k whose search returns it (a "
        "semantic search for k looks at 3k sentences, so that this can be more than the rank)."
    )
    return _table(report, text, rows, ["dataset", "question", "passage", "tool", "tier"])


def _some(names: list[str], most: int = 2) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _table(report: Report, text: str, rows: dict[tuple[str, ...], dict[Any, str]], names: list[str]) -> Table:
    if not rows:
        why = "nothing to show" if summary(report)["shares"] else NOT_YET
        rows = {("",) * len(names): {"": why}}
    return Table(text, frame(rows, names), note(report))
