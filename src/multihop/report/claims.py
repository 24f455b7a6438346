"""The verdict on every claim of the papers, and what these results say about it: results/claims.json.

A claim about one reader, embedder and benchmark is never decided by another. Its **verdict** needs the paper's own
setting and is "not run", with what is missing, elsewhere; what the results at hand show stands apart, as **here**.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from multihop import jsonl
from multihop.analysis import paired
from multihop.errors import DataError
from multihop.report import own_figures, standing
from multihop.report.deciding import NO, NOT_RUN, OPEN, YES
from multihop.report.estimates import RATES, SHARES
from multihop.report.expected import PAPERS
from multihop.report.judging import Part, deciding, judged
from multihop.report.leaves import leaves
from multihop.report.ledger import FILE, Claim, Ledger, load
from multihop.report.load import Report
from multihop.report.values import run_of
from multihop.report.wording import described, interval

NOT_DECIDABLE = "not decidable from the paper"
VERDICTS = {YES: "reproduced", NO: "contradicted", OPEN: OPEN, NOT_RUN: NOT_RUN, NOT_DECIDABLE: NOT_DECIDABLE}
VARIANTS: dict[str, Mapping[str, Any]] = {
    "rule 3b off (one labelling for all systems)": {"symmetric": True},
    "the string rule as judge": {"judge": "rule"},
}
"""Ways of counting that change no answer; a claim that depends on one of them says so."""


def claims(report: Report) -> dict[str, Any]:
    """The content of results/claims.json: of each paper its claims, and how many have which verdict; what we ask beside
    them (``ours``) is among the claims and in no count but its own."""
    papers = {name: report.of(name) for name in PAPERS}
    ledger = load(report.root, {name: twin.expected for name, twin in papers.items()})
    content: dict[str, Any] = {"profile": report.params.profile, "source": FILE, "papers": {}}
    for name, twin in papers.items():
        rows = [_row(twin, ledger, c) for c in ledger.claims if c.paper == name]
        stated = [r for r in rows if "ours" not in r]
        content["papers"][name] = {
            "paper": twin.expected.paper,
            "title": twin.expected.title,
            "verdicts": _tally(VERDICTS.values(), (r["verdict"] for r in stated)),
            "here": _tally(VERDICTS, (r["here"]["answer"] for r in stated)),
            "asked_by_us": len(rows) - len(stated),
            "claims": rows,
        }
    return content


def write(report: Report) -> dict[str, Any]:
    """Write results/claims.json; returns its content. Raises DataError where nothing is scored: a file that says "not
    run" of everything would take the place of one that does not."""
    if not (report.root / "results/scores").is_dir():
        raise DataError(f"{report.root / 'results/scores'}: missing, so no claim can be tested; run `dvc repro`")
    content = claims(report)
    jsonl.write_json(report.root / "results/claims.json", content)
    return content


def _tally(names: Any, found: Iterator[str]) -> dict[str, int]:
    counts = Counter(found)
    return {name: counts[name] for name in names}


# -- one claim


def _row(report: Report, ledger: Ledger, claim: Claim) -> dict[str, Any]:
    """Everything that the page shows of a claim."""
    own = report.expected.own
    row: dict[str, Any] = {
        "id": claim.id,
        "place": claim.place,
        "claim": claim.says,
        "contradicted_by": claim.contradicted_by,
        "scope": {
            "datasets": claim.datasets,
            "settings": [own.label(role) for role in claim.settings],
            "readers": list(dict.fromkeys(own.roles[role].reader for role in claim.settings)),
            "judge": own.judge,
            "questions": [own.questions[d] for d in claim.datasets],
        },
        "runs": [run for run in (run_of(report, system) for system in claim.runs) if run],
        "printed": [report.expected.text(p) for p in report.expected.printed if p.id in claim.printed],
    }
    if claim.remark:
        row["remark"] = claim.remark
    if claim.ours:
        row["ours"] = True
    if claim.test is None:
        answer = {"answer": NOT_DECIDABLE, "why": claim.not_decidable}
        return {**row, "verdict": NOT_DECIDABLE, "why": claim.not_decidable, "missing": [], "here": answer, "notes": []}
    outcome, parts = judged(report, claim.tree, {})
    missing = unlike(report, claim, parts)
    here = _here(report, ledger, outcome, parts)
    if missing and claim.depends_on == "data":
        # No reader is asked: other data says nothing about the paper's.
        here |= {"answer": NOT_RUN, "why": f"other data than the paper's: {here['why']}", "counts": {}}
        here["parts"] = [part | {"answer": NOT_RUN} for part in here["parts"]]
    row |= {"verdict": NOT_RUN if missing else VERDICTS[outcome], "why": "" if missing else here["why"]}
    row |= {"missing": missing, "here": here, "own_figures": own_figures.check(report, ledger, claim)}
    row["other_counts"] = _other_counts(report, claim, outcome, parts)
    return {**row, "notes": notes(report, claim, row)}


def unlike(report: Report, claim: Claim, parts: list[Part]) -> list[str]:
    """What is missing for a verdict: runs that are not there, and what is not the paper's own."""
    found = [p.estimate.missing for p in parts if p.estimate.missing]
    places = {(o.dataset, o.role) for leaf in leaves(claim.tree) for o in (leaf.operand, leaf.minus) if o}
    for dataset, role in sorted(places):
        found += standing.differences(report, dataset, role, claim.depends_on == "data")
    if claim.depends_on == "answers" and not any("n = " in text for text in found):
        found += _fewer(report, claim, parts)
    return list(dict.fromkeys(found))


def _fewer(report: Report, claim: Claim, parts: list[Part]) -> Iterator[str]:
    """Runs that were not asked all of the paper's questions."""
    for p in parts:
        for o in filter(None, (p.leaf.operand, p.leaf.minus)):
            for system, _ in () if p.estimate.missing else o.of.pairs:
                rows = report.score_rows(o.dataset, report.setting(o.role) or "", run_of(report, system) or "")
                asked = len({r["qid"] for r in rows})
                if asked != (wanted := report.expected.own.questions[o.dataset]):
                    where = f"{report.label_run(run_of(report, system))} on {report.label_dataset(o.dataset)}"
                    yield f"n = {asked:,} instead of {wanted:,} for {where}"


# -- what these results show


def _here(report: Report, ledger: Ledger, outcome: str, parts: list[Part]) -> dict[str, Any]:
    """The answer, the part that decides it with its number, and every part."""
    top = deciding(outcome, parts)
    here = {"answer": outcome, "why": described(report, ledger, top), "n": top.estimate.n}
    here |= _numbers(top)
    counts = Counter(p.outcome for p in parts)
    here["counts"] = {name: counts[name] for name in (YES, NO, OPEN, NOT_RUN)}
    here["parts"] = [
        {
            "what": described(report, ledger, p, short=True),
            "dataset": p.leaf.operand.dataset,
            "setting": report.setting(p.leaf.operand.role) or p.leaf.operand.role,
            "group": p.leaf.operand.group,
            "wanted": str(p.leaf.range),
            "answer": p.outcome,
            "n": p.estimate.n,
            **_numbers(p),
        }
        for p in parts
    ]
    return here


def _numbers(part: Part) -> dict[str, Any]:
    e, found = part.estimate, {}
    if e.value is not None:
        found = {"value": _rounded(e.value), "interval": [_rounded(e.low), _rounded(e.high)], "speaking": e.speaking}
    if part.outcome == OPEN:
        found["n_needed"] = part.needed
    if reason := e.missing or e.remark:
        found["missing" if e.missing else "remark"] = reason
    return found


def _rounded(value: float) -> float:
    """Six decimals: the same text on every processor."""
    return round(value, 6) + 0.0


UNLABELLED = {"wrong_rate", "premature_rate", f"{paired.UNRETRIEVED}_rate", f"{paired.WRONG_AND_MISSING}_rate"}
"""Rates that no label of a cause has a part in, so that rule 3b changes none of them."""
JUDGED = {"llm_acc", *UNLABELLED} - {f"{paired.UNRETRIEVED}_rate"}


def _other_counts(report: Report, claim: Claim, outcome: str, parts: list[Part]) -> dict[str, dict[str, Any]]:
    """What other ways of counting answer, for claims that they touch, and their value of the part that decides."""
    metrics = {m for leaf in leaves(claim.tree) for _, m in leaf.operand.of.pairs}
    labels = bool(metrics & ({*RATES, *SHARES} - UNLABELLED))
    touched = [labels, labels or bool(metrics & JUDGED)]
    top = next(i for i, p in enumerate(parts) if p is deciding(outcome, parts))
    found = {}
    for (name, options), touches in zip(VARIANTS.items(), touched, strict=True):
        if touches:
            answer, others = judged(report, claim.tree, options)
            e, of = others[top].estimate, others[top].leaf.operand.of
            shown = e.missing or e.remark if e.value is None else interval(report, of, e)
            found[name] = {"answer": answer, "shown": shown, **_numbers(others[top])}
    return found


# -- outcomes that need a word, found by rule


def notes(report: Report, claim: Claim, row: Mapping[str, Any]) -> list[str]:
    """What a reader should know of an outcome."""
    here, found = row["here"], []
    if here["answer"] == NO:
        found.append(f"{'No' if claim.ours else 'Against the paper'}: {here['why']}.")
    if row["own_figures"]["answer"] == NO:
        said = "The paper does not state it, and by its printed figures it does not hold"
        said = said if claim.ours else "The paper's own printed figures do not bear it out"
        found.append(f"{said}: {row['own_figures']['why']}.")
    if row["own_figures"].get("too_few"):
        found.append(row["own_figures"]["too_few"])
    fewest = min(report.expected.own.questions[d] for d in claim.datasets)
    if here["answer"] == OPEN and (here.get("n_needed") or 0) > fewest:
        found.append(
            f"With the spread seen here the paper's own {fewest:,} questions would not decide it either: "
            f"about {here['n_needed']:,} would."
        )
    for name, other in row["other_counts"].items():
        if other["answer"] != here["answer"]:
            said = f"{other['answer']} with {name}, {other['shown']}"
            found.append(f"The answer hangs on how failures are counted: {said}.")
    return found
