"""Chains of commands against the hostile endpoint, and what must hold of each question and each stored answer.

tests/test_faults.py plays the quick ones, ``python benchmarks/faults.py`` all kinds of faults.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import every_method
import openai._base_client
import project_fixture as fixture
from hostile_server import ALTERED, FATAL, HostileServer, Plan
from scripted_server import Body, Script, body_hash, completion, little_model

from multihop import config, jsonl, running, stages
from multihop.errors import MultihopError
from multihop.llm.client import NoAnswer, body_of, stored_form
from multihop.methods import registry
from multihop.session import opened
from multihop.store import Store, as_sent

RUNS = ("vanilla", "arag", "executionrag")
TIMES = 6
"""A command is given at most so often."""
SAME = ("qid", "seed", "status", "answer", "short")
"""What a record says, without what it cost."""
Line = tuple[str, str]
"""(run, question)."""


@dataclass(frozen=True)
class Project:
    """What a chain works on: how it is made in a folder, and the model behind its endpoint."""

    make: Callable[[Path], Path]
    model: Script = little_model


def three_runs(questions: int) -> Project:
    """The small project, with three runs and more questions."""

    def make(root: Path) -> Path:
        fixture.make_project(root, runs={name: fixture.params_for()["runs"][name] for name in RUNS})
        asked = dict(fixture.QUESTIONS)
        for n, (title, text) in enumerate(fixture.WORLD * (questions // len(fixture.WORLD) + 1)):
            asked[f"w{n}"] = (f"What is said of {title} in sentence {n}?", text.split(".")[0])
        chosen = dict(list(asked.items())[:questions])
        folder = root / "data/prepared/musique"
        jsonl.write(folder / "questions.jsonl", ({"id": q, "text": text} for q, (text, _) in sorted(chosen.items())))
        jsonl.write(folder / "gold.jsonl", (fixture.gold_row(q, a) for q, (_, a) in sorted(chosen.items())))
        return root

    return Project(make)


METHODS = registry.names()
EVERY_METHOD = Project(every_method.make, every_method.model)


@dataclass
class Chain:
    """One chain that has ended."""

    root: Path
    home: Path
    model: Script
    server: HostileServer
    kinds: tuple[str, ...]
    files: dict[str, bytes]
    """All that the stages wrote."""
    entries: list[dict[str, Any]]
    """Of the store."""
    given: int = 0
    """How often a command had to be given again."""
    stops: list[str] = field(default_factory=list)
    """What stopped a command, each reason once."""
    ended: bool = True
    """False: a command failed time and again."""

    def records(self) -> dict[Line, list[bytes]]:
        """The lines of all records."""
        found: dict[Line, list[bytes]] = {}
        for name, content in self.files.items():
            if name.startswith("results/runs/"):
                for line in content.splitlines():
                    found.setdefault((name.split("/")[2], json.loads(line)["qid"]), []).append(line)
        return found

    def answers(self) -> dict[str, tuple[Body, dict[str, Any]]]:
        """(request body, stored response) by the body's hash."""
        found = {}
        for row in self.entries:
            if row["kind"] == "response":
                body = json.loads(json.dumps(body_of(as_sent(row["request"]))))
                found[body_hash(body)] = (body, row["response"])
        return found


# -- playing


@contextmanager
def environment(**values: str) -> Iterator[None]:
    before = dict(os.environ)
    os.environ |= values
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= before


@contextmanager
def quick_retries() -> Iterator[None]:
    """The openai client's retries with a millisecond's wait."""
    owner = openai._base_client.BaseClient
    real = owner._calculate_retry_timeout
    owner._calculate_retry_timeout = lambda *args, **kwargs: 0.001
    try:
        yield
    finally:
        owner._calculate_retry_timeout = real


def play(folder: Path, project: Project, plan: Plan, timeout_s: float = 60.0) -> Chain:
    """Every command of the project's chain until it ends well, as a user would give it again: on a sound endpoint where
    the key or the quota had ended."""
    root, home = project.make(folder / "project"), folder / "home"
    server = HostileServer(project.model, plan=plan, pause_s=0.01, hang_s=2.0)
    chain = Chain(root, home, project.model, server, plan.kinds, {}, [])
    chosen = {"MULTIHOP_HOME": str(home), "MULTIHOP_TIMEOUT_S": f"{timeout_s:g}"}
    with server, quick_retries(), environment(**chosen, **{fixture.URL_ENV: server.url}):
        for command in every_method.commands(root):
            _until_it_ends(chain, command)
    folders = [root / name for name in ("results", "data/index", "data/trajectories", "data/structures")]
    paths = sorted(p for f in folders for p in f.rglob("*") if p.is_file())
    chain.files = {str(p.relative_to(root)): p.read_bytes() for p in paths}
    store = Store(home / "store.sqlite")
    chain.entries = list(store.rows())
    store.close()
    return chain


def _until_it_ends(chain: Chain, command: str) -> None:
    for attempt in range(TIMES):
        try:
            return every_method.perform(chain.root, command)
        except (MultihopError, NoAnswer, BaseExceptionGroup) as e:
            chain.given += 1
            said = str(fixture.first_of(e)).split("; ")[0].replace(chain.server.url, "URL")[:200]
            if said[:40] not in {stop[:40] for stop in chain.stops}:
                chain.stops.append(said)
            if set(chain.server.plan.kinds) & set(FATAL):
                chain.server.plan = Plan(share=0.0)  # a new key, a filled account
            chain.ended &= attempt + 1 < TIMES


# -- what must hold


def last_fault(chain: Chain, call: str) -> str:
    """What was done to the attempt whose answer was taken; "" for none or one that only passed."""
    kind = (chain.server.played.get(call) or [""])[-1]
    return kind if kind in ALTERED else ""


def wrongly_stored(chain: Chain) -> set[str]:
    """Calls whose stored answer is neither the model's nor one that the endpoint altered."""
    return {
        call
        for call, (body, response) in chain.answers().items()
        if not last_fault(chain, call) and response != stored_form(completion(body, chain.model(body)), body)
    }


def wrong_records(chain: Chain, good: Chain) -> dict[Line, str]:
    """Questions whose record is not what the faults on their calls demand: (run, question) -> what was expected.

    Faults that pass: the record of the fault-free chain, to the byte. Usage alone: the same answer. A content filter's
    stop: `refused`, and nothing else is. Else the last call decides: an empty text is `invalid_output`, any other an
    answer.
    """
    found, expected = chain.records(), good.records()
    asked = _calls(chain) if set(chain.kinds) & set(ALTERED) else {}
    wrong = {}
    for key, lines in expected.items():
        calls = asked.get(key, [])
        want = _demanded([last_fault(chain, call) for call, _ in calls], calls, found.get(key), lines)
        if want:
            wrong[key] = want
    return wrong


def _demanded(faults: list[str], calls: list[tuple[str, Any]], lines: list[bytes] | None, expected: list[bytes]) -> str:
    """What the record had to be, where it is something else; "" where it is right."""
    altered = set(faults) - {""}
    if not altered:
        return "" if lines == expected else "the fault-free record"
    if lines is None or len(lines) != 1:
        return "one record"
    [record], [whole] = map(json.loads, lines), map(json.loads, expected)
    if all(kind.startswith("usage") for kind in altered):
        return "" if all(record[name] == whole[name] for name in SAME) else "the fault-free answer"
    last = calls[-1][1]
    if "content-filter stop" in altered:
        status = "refused"
    elif not (last["content"] or "").strip():
        status = "invalid_output"
    else:
        status = "budget" if record["forced"] else "ok"
    return "" if record["status"] == status else status


def _calls(chain: Chain) -> dict[Line, list[tuple[str, Any]]]:
    """What each question asked, in order, with the stored answers: from a replay, which asks nothing."""
    found: dict[Line, list[tuple[str, Any]]] = {}

    async def replayed() -> None:
        async with opened(config.load(chain.root / "params.yaml"), chain.root) as session:
            get, now = session.store.get, []

            def noted(request: Any, key: str | None = None) -> Any:
                response = get(request, key)
                if response is not None:
                    now.append((body_hash(json.loads(json.dumps(body_of(request)))), response))
                return response

            session.store.get = noted
            for run in session.params.runs:
                for dataset, setting in session.params.cells(run):
                    cell = running.open_cell(session, run, dataset, setting)
                    for question in stages.questions_of(session, run, dataset):
                        now.clear()
                        await cell.answer(question, 0)
                        found[run, question.id] = list(now)

    with environment(MULTIHOP_HOME=str(chain.home), MULTIHOP_LIVE="never"):
        asyncio.run(replayed())
    return found


def doubled(chain: Chain) -> int:
    """Calls answered whole more than once."""
    return sum(n > 1 for n in chain.server.answered.values())


def statuses(chain: Chain) -> Counter[str]:
    return Counter(json.loads(line)["status"] for lines in chain.records().values() for line in lines)
