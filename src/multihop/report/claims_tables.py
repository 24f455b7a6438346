"""The page of claims, from results/claims.json: counts, every claim with its verdict, and what needs a word."""

from __future__ import annotations

import re
from collections import Counter
from functools import cached_property
from typing import Any

from multihop import jsonl
from multihop.report.claims import VERDICTS, claims
from multihop.report.deciding import OPEN
from multihop.report.expected import PAPERS
from multihop.report.frames import NOT_PRINTED, Note, Table, frame
from multihop.report.load import AGAIN, DATASET_LABELS, Report

FILE = "results/claims.json"
_VARIES = re.compile(rf"(?<= on )({'|'.join(DATASET_LABELS.values())})(?= /|$)|(?<=per dataset instead of )(.+)$")
"""What of a reason differs from dataset to dataset."""


class Claims:
    """results/claims.json of a project, or the same made anew where it is not there. Raises DataError for a damaged
    file, ConfigError for a wrong expected/claims.yaml."""

    def __init__(self, report: Report):
        self.report = report
        path = report.root / FILE
        content = jsonl.read_json(path, AGAIN, ["papers"]) if path.is_file() else claims(report)
        self.papers = {name: content["papers"][name] for name in PAPERS}

    @cached_property
    def reasons(self) -> dict[str, int]:
        """What is missing for a verdict -> its number in the tables, in the order of the claims; reasons that differ in
        the dataset alone have one."""
        found = dict.fromkeys(m for paper in self.papers.values() for c in paper["claims"] for m in c["missing"])
        numbers: dict[str, int] = {}
        return {m: numbers.setdefault(_VARIES.sub("", m), len(numbers) + 1) for m in found}

    def counts(self) -> Table:
        """How many claims of each paper have which verdict, and what these results say about them."""
        rows: dict[tuple[str, ...], dict[Any, str]] = {}
        for paper in self.papers.values():
            title, ours = paper["title"], paper["asked_by_us"]
            total = {"claims": str(len(paper["claims"]) - ours), "asked by us besides": str(ours)}
            rows[title, "verdict"] = {_both(v, a): str(paper["verdicts"][v]) for a, v in VERDICTS.items()} | total
            rows[title, "holds for this reader?"] = {_both(v, a): str(paper["here"][a]) for a, v in VERDICTS.items()}
        text = (
            "Claims by verdict; below, of the same claims, by what the results at hand answer. What the paper does not "
            "state and we ask besides is not counted."
        )
        return Table(text, frame(rows, ["paper", ""]))

    def ledger(self, paper: str) -> Table:
        """Every claim: place, verdict and why; then what these results show, and what the paper's own figures do."""
        found = self.papers[paper]
        rows = {(c["id"],): self._row(c) for c in found["claims"]}
        readers = list(dict.fromkeys(r for c in found["claims"] for r in c["scope"]["readers"]))
        judge = next((c["scope"]["judge"] for c in found["claims"]), None)
        made = f"made with {' / '.join(readers)}" + (f", judged by {judge}" if judge else "")
        ours = f", {found['asked_by_us']} of them not the paper's but asked by us" if found["asked_by_us"] else ""
        text = f"{found['title']}: {len(rows)} claims{ours}, {made}. Numbers under what is missing are explained below."
        note = (
            "Verdict: for the paper's own reader, embedder, data and number of questions only. Brackets: 95 % interval "
            "of the part that decides. Counted otherwise: the same part, where a claim rests on labels of failures or "
            "a judge. n needed: for an 80 % chance of an answer at the value and spread seen. The paper's own figures: "
            "which side of the boundary the printed numbers lie on."
        )
        return Table(text, frame(rows, ["claim"]), note)

    def _row(self, c: dict[str, Any]) -> dict[str, str]:
        here, scope = c["here"], c["scope"]
        numbers = sorted({self.reasons[m] for m in c["missing"]})
        needed, others = here.get("n_needed"), c.get("other_counts", {})
        return {
            "the paper says": _said(c),
            "where": c["place"],
            "for": f"{' / '.join(scope['settings'])}; {' / '.join(map(self.report.label_dataset, scope['datasets']))}; "
            f"n = {' / '.join(f'{n:,}' for n in dict.fromkeys(scope['questions']))}",
            "printed": "; ".join(dict.fromkeys(c["printed"])) or NOT_PRINTED,
            "verdict": c["verdict"],
            "what is missing": _ranges(numbers) or c["why"],
            "holds for this reader?": here["answer"],
            "because": "" if here["why"] == c["why"] else _parts(here) + here["why"],
            "counted otherwise": "; ".join(f"{k}: {v['answer']}, {v['shown']}" for k, v in others.items()),
            "n": str(here.get("n", "")),
            "n needed": f"{needed:,}" if needed else "can't be told" if here["answer"] == OPEN else "",
            "the paper's own figures": c.get("own_figures", {}).get("answer", ""),
        }

    def missing(self) -> Table:
        """What the numbers stand for, and how many claims wait for it."""
        found = [c for paper in self.papers.values() for c in paper["claims"]]
        waiting = Counter(i for c in found for i in {self.reasons[m] for m in c["missing"]})
        rows = {}
        for i, count in sorted(waiting.items()):
            alike = [reason for reason, number in self.reasons.items() if number == i]
            rows[str(i),] = {"what is missing": _together(alike), "claims": str(count)}
        return Table("What is missing for a verdict.", frame(rows, ["number"]))

    def notes(self) -> Table:
        """Outcomes that need a word: claims that a rule of claims.notes picks out."""
        rows = {
            (c["id"],): {"the paper says": _said(c), "note": " ".join(c["notes"])}
            for paper in self.papers.values()
            for c in paper["claims"]
            if c["notes"]
        }
        return Table(f"{len(rows)} claims with an outcome that needs a word.", frame(rows, ["claim"]))

    def readings(self) -> Table:
        """How each claim is read: what would contradict it, the runs that it needs, and our own margins."""
        rows = {
            (c["id"],): {
                "contradicted by": c["contradicted_by"],
                "runs": ", ".join(map(self.report.label_run, c["runs"])) or NOT_PRINTED,
                "remark": c.get("remark", ""),
            }
            for paper in self.papers.values()
            for c in paper["claims"]
        }
        return Table("How each claim is read.", frame(rows, ["claim"]))

    def standing(self) -> Note:
        """What is not the papers' own setting, once for each."""
        said = [f"{p['title']}: {self.report.of(name).note()}" for name, p in self.papers.items()]
        return Note(" ".join(said))


def _said(c: dict[str, Any]) -> str:
    return f"(not stated; asked by us) {c['claim']}" if c.get("ours") else c["claim"]


def _together(reasons: list[str]) -> str:
    """Reasons that differ in the dataset alone as one."""
    varied = [match[0] for match in map(_VARIES.search, reasons) if match]
    joint = " / " if "per dataset" in reasons[0] else ", "
    return _VARIES.sub(lambda _: joint.join(varied), reasons[0]) if varied else reasons[0]


def _both(verdict: str, answer: str) -> str:
    return verdict if verdict == answer else f"{verdict} / {answer}"


def _parts(here: dict[str, Any]) -> str:
    """How the parts of a claim answered, where it has several."""
    counts = here.get("counts", {})
    if sum(counts.values()) < 2:
        return ""
    return f"{', '.join(f'{count} {name}' for name, count in counts.items() if count)}; decided by: "


def _ranges(numbers: list[int]) -> str:
    """1, 2, 3, 5 as "1-3, 5"."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ", ".join(f"{r[0]}–{r[-1]}" if len(r) > 1 else str(r[0]) for r in runs)
