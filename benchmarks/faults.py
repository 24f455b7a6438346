"""The fault table: every kind of fault of a hostile endpoint, tried on a whole small chain, and what came of it.

    python benchmarks/faults.py [--seeds 3] [--questions 24] [--share 0.3] [--only KIND]

A chain is: index, three runs (vanilla RAG, A-RAG, ExecutionRAG), scoring with a model judge. Its endpoint is
tests/hostile_server.py: a share of its responses is faulty, by (seed, request, attempt). Each kind is tried alone, then
all kinds that pass together, then those and the altered answers. A run that stops, or leaves questions in error, is
given again as a user would, on a sound endpoint where the key or the quota had ended. Compared with a chain without
faults: every entry of the store, and every byte of records and scores. Retries wait a millisecond here, not seconds.
Writes benchmarks/results/faults.json and faults.md; exit code 1 where something was lost, doubled, or wrongly equal.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent / "tests")]

import hostile_server as hostile  # noqa: E402
import openai._base_client  # noqa: E402
import project_fixture as fixture  # noqa: E402
import rows  # noqa: E402
from scripted_server import body_hash  # noqa: E402

from multihop import config, jsonl, stages  # noqa: E402
from multihop.errors import MultihopError  # noqa: E402
from multihop.llm.client import NoAnswer, body_of  # noqa: E402
from multihop.session import Session, opened  # noqa: E402
from multihop.store import Store, as_sent  # noqa: E402

RUNS = ("vanilla", "arag", "executionrag")
TIMEOUT_S = {"hanging": "0.5"}
FATAL_SHARE = 0.01
"""Of responses that end the key or the quota: the first one stops the run."""
TIMES = 6
"""The command is given at most so often."""


@dataclass
class Row:
    """One kind over all seeds."""

    kind: str
    tried: int = 0
    """Responses that were faulty."""
    hit: int = 0
    """Calls of which a response was."""
    recovered: int = 0
    """Of those, stored in the end with the answer of the chain without faults."""
    altered: int = 0
    """Of those, stored with another answer (the fault is the answer, or came before in the conversation)."""
    estimated: int = 0
    """Entries whose usage is estimated."""
    due: int = 0
    recorded: int = 0
    """Questions with exactly one record, of those due."""
    statuses: dict[str, int] = field(default_factory=dict)
    given: int = 0
    """How often a run or the scoring was given again."""
    doubled: int = 0
    """Calls answered whole more than once though the first answer was stored."""
    equal: int = 0
    """Chains whose records and scores are the fault-free chain's to the byte."""
    chains: int = 0
    stops: list[str] = field(default_factory=list)
    """The first line of what stopped a run, each once."""
    ok: bool = True


# -- a chain


def project(root: Path, questions: int) -> Path:
    """The tests' small project with more questions."""
    fixture.make_project(root, runs={name: fixture.params_for()["runs"][name] for name in RUNS})
    asked = dict(fixture.QUESTIONS)
    for n, (title, text) in enumerate(fixture.WORLD * (questions // len(fixture.WORLD) + 1)):
        asked[f"w{n}"] = (f"What is said of {title} in sentence {n}?", text.split(".")[0])
    chosen = dict(list(asked.items())[:questions])
    folder = root / "data/prepared/musique"
    jsonl.write(folder / "questions.jsonl", ({"id": q, "text": text} for q, (text, _) in sorted(chosen.items())))
    jsonl.write(folder / "gold.jsonl", (fixture.gold_row(q, a) for q, (_, a) in sorted(chosen.items())))
    return root


async def _index(session: Session) -> None:
    stages.index(session, "musique")


def steps(root: Path) -> list[Any]:
    """What a user runs, one after the other."""

    def scored(what: Any) -> Any:
        async def work() -> None:
            async with opened(config.load(root / "params.yaml"), root) as session:
                await what(session)

        return lambda: asyncio.run(work())

    runs = [lambda name=name: fixture.run_project(root, name) for name in RUNS]
    return [scored(_index), *runs, scored(stages.score_all)]


def chain(root: Path, server: hostile.HostileServer, row: Row) -> None:
    """Every step until it ends well; ``row`` counts how often it had to be given again, and why."""
    for step in steps(root):
        for attempt in range(TIMES):
            try:
                step()
                break
            except (MultihopError, NoAnswer, BaseExceptionGroup) as e:
                error = fixture.first_of(e)
                row.given += 1
                said = str(error).split("; ")[0].replace(server.url, "URL")
                row.stops += [said[:200]] if said[:40] not in {s[:40] for s in row.stops} else []
                if set(server.plan.kinds) & set(hostile.FATAL):
                    server.plan = hostile.Plan(share=0.0)  # a new key, a filled account
                if attempt + 1 == TIMES:
                    row.ok = False


def outcome(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted((root / "results").rglob("*.json*"))}


def stored(home: Path) -> dict[str, dict[str, Any]]:
    """Responses by the hash of the body that was sent."""
    store = Store(home / "store.sqlite")
    try:
        kept = [row for row in store.rows() if row["kind"] == "response"]
    finally:
        store.close()
    return {body_hash(json.loads(json.dumps(body_of(as_sent(r["request"]))))): r["response"] for r in kept}


# -- one kind


Found = tuple[dict[str, bytes], dict[str, dict[str, Any]]]
"""A chain's files and its store."""


def play(folder: Path, plan: hostile.Plan, questions: int, row: Row, good: Found | None) -> Found:
    """One chain under ``plan``, compared with the ``good`` one."""
    root = project(folder / "project", questions)
    os.environ |= {"MULTIHOP_HOME": str(folder / "home"), "MULTIHOP_TIMEOUT_S": TIMEOUT_S.get(plan.kinds[0], "60")}
    with hostile.HostileServer(plan=plan, pause_s=0.01, hang_s=2.0) as server:
        os.environ[fixture.URL_ENV] = server.url
        chain(root, server, row)
    files, kept = outcome(root), stored(folder / "home")
    if good is not None:
        _compare(row, root, server, questions, (files, kept), good)
    return files, kept


def _compare(row: Row, root: Path, server: hostile.HostileServer, questions: int, found: Found, good: Found) -> None:
    (files, kept), (good_files, good_kept) = found, good
    row.chains += 1
    row.tried += sum(n for kind, n in server.tried.items() if kind != "none")
    row.hit += len(server.hit)
    row.recovered += sum(h in kept and kept[h] == good_kept.get(h) for h in server.hit)
    row.altered += sum(h in kept and kept[h] != good_kept.get(h) for h in server.hit)
    row.estimated += sum(response["usage"].get("estimated", False) for response in kept.values())
    row.doubled += sum(n > 1 for n in server.answered.values())
    statuses = Counter(row.statuses)
    for run in RUNS:
        records = fixture.records_of(root, run)
        row.due += questions
        row.recorded += sum(n == 1 for n in Counter(r.qid for r in records).values())
        statuses.update(r.status for r in records)
    row.statuses = dict(sorted(statuses.items()))
    row.equal += files == good_files
    row.ok &= row.recorded == row.due and not row.doubled and not statuses["error"]
    if not set(server.plan.kinds) & set(hostile.ALTERED):
        row.ok &= files == good_files and kept == good_kept
    elif all(kind.startswith("usage") for kind in server.plan.kinds):
        row.ok &= _answers(files) == _answers(good_files) and row.estimated == row.hit
    else:
        row.ok &= set(statuses) <= {"ok", "invalid_output", "refused"} and row.recovered + row.altered == row.hit


def _answers(files: dict[str, bytes]) -> list[tuple[str, ...]]:
    """What the records say, without what they cost."""
    lines = [line for name, content in files.items() if "/runs/" in name for line in content.splitlines()]
    return [(r["run"], r["qid"], r["status"], r["answer"], r["short"]) for r in map(json.loads, lines)]


def table(options: argparse.Namespace, found: list[Row]) -> str:
    info = rows.machine()
    about = "; ".join(f"{name} {info[name]}" for name in ("processor", "python", "openai", "aiohttp") if name in info)
    head = (
        f"# Faults\n\n`python benchmarks/faults.py --seeds {options.seeds} --questions {options.questions} --share "
        f"{options.share:g}`: {sum(row.ok for row in found)} of {len(found)} lines as they should be. {about}.\n\n"
        f"Each line: {options.seeds} chains of index, {len(RUNS)} runs over {options.questions} questions, and scoring "
        "with a model judge. *Tried*: faulty responses; *calls*: calls that met one; *recovered*: of those, stored in "
        "the end with the answer of the chain without faults; *altered*: with another answer, which is what the "
        "endpoint said; *recorded*: questions with exactly one record, of those due; *again*: how often a step had to "
        "be given again; *equal*: chains whose records and scores are those without faults to the byte. *Doubled* "
        f"(calls answered whole more than once): {sum(row.doubled for row in found)}.\n\n"
        "| kind | tried | calls | recovered | altered | recorded | statuses | again | equal | how it ended |\n"
        "|---|---:|---:|---:|---:|---:|---|---:|---:|---|\n"
    )
    lines = []
    for row in found:
        statuses = ", ".join(f"{n} {status}" for status, n in row.statuses.items())
        ended = "; ".join(stop.replace("|", "/") for stop in row.stops) or "no step stopped"
        ended += f"; {row.estimated} with estimated usage" if row.estimated else ""
        cells = (
            row.kind if row.ok else f"{row.kind} **(not as it should be)**",
            *(row.tried, row.hit, row.recovered, row.altered, f"{row.recorded} of {row.due}", statuses, row.given),
            *(f"{row.equal} of {row.chains}", ended),
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return head + "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--questions", type=int, default=24)
    parser.add_argument("--share", type=float, default=0.3)
    parser.add_argument("--only", default="", help="lines whose kind holds this; nothing is written then")
    options = parser.parse_args()
    openai._base_client.BaseClient._calculate_retry_timeout = lambda *args, **kwargs: 0.001
    plans = {kind: (kind,) for kind in hostile.KINDS}
    plans |= {"all that pass": hostile.PASSING, "all that pass, and altered": hostile.PASSING + hostile.ALTERED}
    found: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        good = play(Path(name) / "good", hostile.Plan(share=0.0), options.questions, Row(""), None)
        for number, (kind, kinds) in enumerate(plans.items()):
            if options.only not in kind:
                continue
            row = Row(kind)
            share = FATAL_SHARE if kind in hostile.FATAL else options.share
            for seed in range(options.seeds):
                with tempfile.TemporaryDirectory() as folder:
                    play(Path(folder), hostile.Plan(kinds, 1000 * number + seed, share), options.questions, row, good)
            found.append(row)
            print(jsonl.dumps(asdict(row)), flush=True)
    if not options.only:
        result = {"options": vars(options), "machine": rows.machine(), "rows": [asdict(row) for row in found]}
        jsonl.write_json(HERE / "results/faults.json", result)
        jsonl.write_text(HERE / "results/faults.md", table(options, found))
    return 0 if all(row.ok for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
