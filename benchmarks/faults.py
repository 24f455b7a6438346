"""The fault table: every kind of fault of a hostile endpoint, tried on whole chains, and what came of it.

    python benchmarks/faults.py [--seeds 2] [--questions 24] [--share 0.3] [--only KIND]

A chain is: index, three runs (vanilla RAG, A-RAG, ExecutionRAG), scoring with a model judge. Its endpoint is
tests/hostile_server.py: a share of its responses is faulty, by (seed, request, attempt). Each kind is tried alone, then
all kinds that pass together, then those and the altered answers; then all that pass on a chain of every method of the
package, with its structures, trainings, runs and scores (tests/every_method.py). A command that stops, or leaves
questions in error, is given again as a user would, on a sound endpoint where the key or the quota had ended. Compared
with a chain without faults (tests/fault_cases.py): every entry of the store, every byte that the stages wrote, and
question by question whether the record is what the faults on its calls demand. Retries wait a millisecond here, not
seconds. Writes benchmarks/results/faults.json and faults.md; exit code 1 where something was lost, doubled, or wrong.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent / "tests")]

import fault_cases as cases  # noqa: E402
import hostile_server as hostile  # noqa: E402
import rows  # noqa: E402

from multihop import jsonl  # noqa: E402

TIMEOUT_S = {"hanging": 0.5}
FATAL_SHARE = 0.01
"""Of responses that end the key or the quota: the first one stops the run."""
EVERY_METHOD = "all that pass, every method"


@dataclass
class Row:
    """One kind over all seeds."""

    kind: str
    tried: int = 0
    """Responses that were faulty."""
    hit: int = 0
    """Calls of which a response was."""
    recovered: int = 0
    """Of those, stored in the end with the answer that the model gives without faults."""
    altered: int = 0
    """Of those, stored with another answer, because that is what the endpoint answered."""
    wrong: int = 0
    """Calls stored with another answer that the endpoint did not give."""
    estimated: int = 0
    """Entries whose usage is estimated."""
    due: int = 0
    recorded: int = 0
    """Questions with exactly one record, of those due."""
    right: int = 0
    """Of those due: whose record is what the faults on their calls demand."""
    statuses: dict[str, int] = field(default_factory=dict)
    given: int = 0
    """How often a command was given again."""
    doubled: int = 0
    """Calls answered whole more than once though the first answer was stored."""
    equal: int = 0
    """Chains that wrote what the fault-free chain wrote, to the byte."""
    chains: int = 0
    stops: list[str] = field(default_factory=list)
    """The first line of what stopped a command, each once."""
    ok: bool = True

    def add(self, chain: cases.Chain, good: cases.Chain) -> None:
        server, records, answers = chain.server, chain.records(), chain.answers()
        wrong, misjudged = cases.wrongly_stored(chain), cases.wrong_records(chain, good)
        altered = {call for call in server.hit if cases.last_fault(chain, call)}
        due = len(good.records())
        self.chains += 1
        self.tried += sum(n for kind, n in server.tried.items() if kind != "none")
        self.hit += len(server.hit)
        self.recovered += len((server.hit & set(answers)) - altered - wrong)
        self.altered += len(altered & set(answers))
        self.wrong += len(wrong)
        self.estimated += sum(response["usage"].get("estimated", False) for _, response in answers.values())
        self.due += due
        self.recorded += sum(len(lines) == 1 for lines in records.values())
        self.right += due - len(misjudged)
        self.statuses = dict(sorted((Counter(self.statuses) + cases.statuses(chain)).items()))
        self.given += chain.given
        self.doubled += cases.doubled(chain)
        self.equal += chain.files == good.files
        self.stops += [s for s in chain.stops if s[:40] not in {stop[:40] for stop in self.stops}]
        self.ok &= chain.ended and not wrong and not misjudged and not cases.doubled(chain)
        self.ok &= self.recorded == self.due and self.recovered + self.altered == self.hit
        if not set(chain.kinds) & set(hostile.ALTERED):
            self.ok &= chain.files == good.files and chain.entries == good.entries
        elif all(kind.startswith("usage") for kind in chain.kinds):
            self.ok &= self.estimated == self.hit


def table(options: argparse.Namespace, found: list[Row], methods: int) -> str:
    info = rows.machine()
    about = "; ".join(f"{name} {info[name]}" for name in ("processor", "python", "openai", "aiohttp") if name in info)
    head = (
        f"# Faults\n\n`python benchmarks/faults.py --seeds {options.seeds} --questions {options.questions} --share "
        f"{options.share:g}`: {sum(row.ok for row in found)} of {len(found)} lines as they should be. {about}.\n\n"
        f"Each line: {options.seeds} chains of index, {len(cases.RUNS)} runs over {options.questions} questions, and "
        f"scoring with a model judge; the last line: of index, structures, trainings, a run of each of the {methods} "
        "methods over 6 questions, and scoring. *Tried*: faulty responses; *calls*: calls that met one; *recovered*: "
        "of those, stored in the end with the answer that the model gives without faults; *altered*: with another "
        "answer, which is what the endpoint said; *recorded*: questions with exactly one record, of those due; *status "
        "right*: whose record is what the faults on their calls demand (faults that pass: the fault-free record to the "
        "byte; usage alone: the same answer; a content filter's stop: `refused`; else `invalid_output` where the last "
        "call's text is empty, and `ok` where it is not); *again*: how often a command had to be given again; *equal*: "
        "chains that wrote what the chain without faults wrote, to the byte. Calls answered whole more than once: "
        f"{sum(row.doubled for row in found)}. Calls stored with an answer that neither the model nor the endpoint "
        f"gave: {sum(row.wrong for row in found)}.\n\n"
        "| kind | tried | calls | recovered | altered | recorded | statuses | status right | again | equal "
        "| how it ended |\n|---|---:|---:|---:|---:|---:|---|---:|---:|---:|---|\n"
    )
    lines = []
    for row in found:
        said = ", ".join(f"{n} {status}" for status, n in row.statuses.items())
        ended = "; ".join(stop.replace("|", "/") for stop in row.stops) or "no command stopped"
        ended += f"; {row.estimated} with estimated usage" if row.estimated else ""
        cells = (
            row.kind if row.ok else f"{row.kind} **(not as it should be)**",
            *(row.tried, row.hit, row.recovered, row.altered, f"{row.recorded} of {row.due}", said),
            *(f"{row.right} of {row.due}", row.given, f"{row.equal} of {row.chains}", ended),
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return head + "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--questions", type=int, default=24)
    parser.add_argument("--share", type=float, default=0.3)
    parser.add_argument("--only", default="", help="lines whose kind holds this; nothing is written then")
    options = parser.parse_args()
    plans = {kind: (kind,) for kind in hostile.KINDS}
    plans |= {"all that pass": hostile.PASSING, "all that pass, and altered": hostile.PASSING + hostile.ALTERED}
    plans |= {EVERY_METHOD: hostile.PASSING}
    chosen = {kind: number for number, kind in enumerate(plans) if options.only in kind}
    if not chosen:
        parser.error(f"--only {options.only!r}: no such line; there are: {'; '.join(plans)}")
    began, found = time.monotonic(), []
    projects = {kind: cases.three_runs(options.questions) for kind in chosen}
    projects |= {EVERY_METHOD: cases.EVERY_METHOD} if EVERY_METHOD in chosen else {}
    with tempfile.TemporaryDirectory() as name:
        sound = {
            every: cases.play(Path(name) / str(every), project, hostile.Plan(share=0.0))
            for every, project in {kind == EVERY_METHOD: project for kind, project in projects.items()}.items()
        }
        for kind, number in chosen.items():
            row = Row(kind)
            share = FATAL_SHARE if kind in hostile.FATAL else options.share
            for seed in range(options.seeds):
                with tempfile.TemporaryDirectory() as folder:
                    plan = hostile.Plan(plans[kind], 1000 * number + seed, share)
                    chain = cases.play(Path(folder), projects[kind], plan, TIMEOUT_S.get(kind, 60.0))
                    row.add(chain, sound[kind == EVERY_METHOD])
            found.append(row)
            print(jsonl.dumps(asdict(row)), flush=True)
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    if not options.only:
        result = {"options": vars(options), "machine": rows.machine(), "rows": [asdict(row) for row in found]}
        jsonl.write_json(HERE / "results/faults.json", result)
        jsonl.write_text(HERE / "results/faults.md", table(options, found, len(cases.METHODS)))
    return 0 if all(row.ok for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
