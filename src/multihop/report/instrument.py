"""The instrument's page: what a simulated reader did, beside what the analysis said it did.

Reads expected/instrument.json (the full-sized run, stored with its params) and results/instrument (the small run that
this pipeline made). No number here is about a paper's system, or about a real reader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from multihop import jsonl
from multihop.report.frames import Note, Table, frame
from multihop.report.load import Report

STORED, HERE = "expected/instrument.json", "results/instrument"
PARTS = ("recovery", "repetitions", "bias")
METHODS = {"arag": "A-RAG (no register)", "executionrag": "ExecutionRAG (register)"}
LABELS = {
    "no failure": "no failure",
    "judge_error": "judge error",
    "gave_up": "gave up",
    "reasoning_error": "reasoning error",
    "missing_evidence": "missing evidence",
    "unmappable": "unmappable",
    "system_error": "system error",
}
FATES = {
    "never_asked": "never asked, reachable",
    "asked_not_returned": "asked and not returned",
    "no_certificate": "not asked, unreachable",
}
"""By the reader's log, which knows what was made unreachable."""
SAID = FATES | {"no_certificate": "no certificate"}
"""By the rules, which can't prove that a passage is unreachable."""
MEASURES = {
    "correct": "right",
    "gold_unretrieved": "some gold passage unretrieved",
    "wrong_and_missing": "wrong, and a gold passage unretrieved",
    "missing_evidence": "missing evidence",
}
Row = dict[str, Any]


def measured(report: Report, part: str, stored: bool = True) -> Row | None:
    """A part of the stored run, or of this pipeline's; None where it is not there. Raises DataError for a bad file."""
    path = report.root / (STORED if stored else f"{HERE}/{part}.json")
    if not path.is_file():
        return None
    content = jsonl.read_json(path, f"run `{command(stored)}` again", [part] if stored else ())
    return content[part] if stored else content


def what_ran(report: Report) -> Note:
    """The two runs' sizes and faults."""
    said = []
    for stored, name in ((True, f"stored ({STORED})"), (False, f"made by this pipeline ({HERE})")):
        found = measured(report, "recovery", stored)
        if found is None:
            said.append(f"{name}: not there; {command(stored)} makes it")
            continue
        faults = ", ".join(f"{k.replace('_', ' ')} {v:g}" for k, v in found["faults"].items())
        size = f"{found['questions']:,} questions x 2 methods, {found['hops']:,} hops, seed {found['seed']}"
        said.append(f"{name}: {size}; set rates: {faults}")
    return Note(
        "A simulated reader and judge over a generated world; no language model and no benchmark. "
        + ". ".join(said).strip()
        + f". The stored run's command: {command(True)}."
    )


def command(stored: bool) -> str:
    return f"multihop instrument --full --out {STORED}" if stored else "multihop instrument"


def shown(
    report: Report, part: str, stored: bool, heading: str, note: str, rows_of: Callable[[Row], dict], names: list[str]
) -> Table:
    """A table of one part, or one that says what makes it."""
    found = measured(report, part, stored)
    if found is None:
        return Table(f"{heading} Not there: run `{command(stored)}`.", frame({}, names), note)
    size = f" n = {found['questions']:,} questions." if part == "recovery" else ""
    where = "Stored run." if stored else "This pipeline's small run."
    return Table(f"{heading} {where}{size}", frame(rows_of(found), names), note)


def confusion(report: Report, method: str, stored: bool = True) -> Table:
    """What happened against what the failure analysis said, for one of METHODS."""

    def rows(found: Row) -> dict:
        table = found["methods"][method]
        out = {}
        for happened, counts in table["confusion"].items():
            should = " / ".join(LABELS[c] for c in table["should"][happened])
            said = {label: str(counts.get(category, "")) for category, label in LABELS.items()}
            if sum(counts.values()):
                out[happened] = {"should be": should} | said
        out["all"] = {"should be": f"{table['agree']:,} of {found['questions']:,} as they should be"}
        return out

    note = (
        "Rows: what the reader and the judge did, by their own log; columns: the category by Appendix E's rules and "
        "the model judge. 'missing: dropped': the sub-question never was in the plan; 'swapped': another was searched; "
        "'early': taken as known; 'unreachable': no search returns the passage. Where a row should have two "
        "categories, the register was closed in some of its questions (rule 3b) and open in others."
    )
    heading = f"{METHODS[method]}: injected against recovered."
    return shown(report, "recovery", stored, heading, note, rows, ["happened"])


def rates(report: Report, stored: bool = True) -> Table:
    """Realised rates by the truth and by the analysis."""

    def rows(found: Row) -> dict:
        names = list(dict.fromkeys(r["rate"] for r in found["rates"]))
        out: dict[tuple[str, str], Row] = {}
        for r in sorted(found["rates"], key=lambda r: names.index(r["rate"])):
            low, high = 100 * r["low"], 100 * r["high"]
            name, *rule = r["rate"].split(", ")
            out[", ".join([LABELS.get(name, name), *rule]), METHODS[r["method"]]] = {
                "n": f"{r['n']:,}",
                "realised %": f"{100 * r['realised']:.2f}",
                "recovered % [95 %]": f"{100 * r['recovered']:.2f} [{low:.2f}, {high:.2f}]",
                "off, points": f"{r['points']:+.2f}" if r["exact"] else f"{r['points']:+.2f} (a lower bound)",
            }
        return out

    note = (
        "n: questions; hops (a gold passage of one question) for 'gold passage unseen, of all'; wrong answers where it "
        "says 'of the wrong'. The last rate is "
        "one that the analysis gives as a lower bound: an item that rests on another item's gold passage is not "
        "counted."
    )
    heading = "Rates as they happened, and as the analysis gives them."
    return shown(report, "recovery", stored, heading, note, rows, ["rate", "method"])


def set_rates(report: Report, stored: bool = True) -> Table:
    """What was set, and what scores, failures and certificates show of it."""

    def rows(found: Row) -> dict:
        return {
            (r["rate"], METHODS.get(r.get("method", ""), "both")): {
                "expected %": f"{100 * r['expected']:.2f}",
                "found": f"{r['count']:,} of {r['n']:,}",
                "found %": "" if r["share"] is None else f"{100 * r['share']:.2f}",
                "standard errors off": "" if r["z"] is None else f"{r['z']:+.2f}",
            }
            for r in [*found["set_rates"], *found["certificates"]["set_rates"]]
        }

    found = measured(report, "recovery", stored)
    asked = [r for r in found["certificates"]["set_rates"] if "surfaced" in r] if found else []
    note = (
        "Expected: what the set rates imply for this share, e.g. a misreading shows as a reasoning error only where "
        "the reader does not abstain and the judge rejects it. A standard error is that of a share of so many draws at "
        "the expected rate; one in 370 shares is more than three off by chance."
    )
    if found:
        distinct = next(r["n"] for r in found["certificates"]["set_rates"] if "surfaced" not in r)
        note += (
            f" A passage is made unreachable for all questions that need it: {distinct:,} are distinct passages of "
            f"{found['hops']:,} hops."
        )
    if asked:
        counts = " and ".join(f"{r['surfaced']} of {r['drawn']:,} ({METHODS[r['method']]})" for r in asked)
        note += (
            f" Of the hops drawn as not asked for, {counts} had their passage surface in another search: these are not "
            "missing, and what is expected is less by their share (by the reader's log)."
        )
    heading = "Set rates, found again without looking at the draws."
    return shown(report, "recovery", stored, heading, note, rows, ["rate", "method"])


def certificates(report: Report, stored: bool = True) -> Table:
    """Do certificates tell the unreachable from the unasked?"""

    def rows(found: Row) -> dict:
        made = found["certificates"]
        out: dict[tuple[str, str], Row] = {}
        for reachable, counts in made["passages"].items():
            out["gold passages", reachable] = {said: str(n) for said, n in counts.items()}
        for method, label in METHODS.items():
            for fate, counts in made["fates"][method]["counts"].items():
                out[f"missing, {label}", FATES[fate]] = {f"said: {SAID[s]}": str(n) for s, n in counts.items()}
        return out

    note = (
        "Above: gold passages that were made unreachable, or not, and whether a probe of T0 to T3 returns them at the "
        "runs' k. Below: each missing passage, what the reader's log says of it and what the certify stage's rules say;"
        " the log knows which passages were made unreachable, the rules can only say that there is no certificate."
        " Not tested here: this reader asks the benchmark's sub-questions word by word, so that the rule for what was "
        "asked (60 % of a sub-question's content words, or the title) agrees by construction; real queries are "
        "reworded, or carry the whole question behind them. tests/test_instrument_wording.py tries such queries on "
        "20 questions."
    )
    heading = "Certificates against the truth."
    return shown(report, "recovery", stored, heading, note, rows, ["what", "happened"])


def alike(report: Report, stored: bool = True) -> Table:
    """The paired comparison of two methods that search and answer alike."""

    def rows(found: Row) -> dict:
        out = {}
        for r in found["paired"]["rows"]:
            rule = "symmetric" if r["symmetric"] else "paper's"
            said = f", {rule} rule" if r["measure"] == "missing_evidence" else ""
            out[MEASURES[r["measure"]] + said] = {
                METHODS["arag"]: f"{r['first']:,}",
                METHODS["executionrag"]: f"{r['second']:,}",
                "difference [95 %]": f"{r['second'] - r['first']:+,} [{r['low']:+,.0f}, {r['high']:+,.0f}]",
                "McNemar p": f"{r['p']:.2g}" if r["p"] else "< 0.000001",
            }
        return out

    found = measured(report, "recovery", stored)
    became = found["paired"]["missing_evidence_became"] if found else {}
    fair = next((r for r in found["paired"]["rows"] if r["symmetric"]), None) if found else None
    note = (
        f"Of A-RAG's {became['had']} failures called missing evidence, {became['other_missing']} have another label "
        f"with the register while the passage is as absent as before; {became['right']} became right. The symmetric "
        f"rule gives {fair['first']} → {fair['second']} (p = {fair['p']:.2g}): not a difference of passages or answers "
        "either. A closed register ends the search, so that a reader that would search on runs out of its budget less "
        "often, and what was called gave up without a register is called missing evidence with one."
        if became and fair
        else ""
    )
    heading = "Two methods with the same searches and the same answers, through the whole pipeline; questions."
    return shown(report, "recovery", stored, heading, note, rows, ["measure"])
