"""What the demo really asked, line by line, and how near `multihop estimate` comes to it.

`python benchmarks/estimate.py --measure` replays the whole demo (run `make repro` first; minutes) and writes
expected/asked.json: which requests of the recording each run, index and training asks, as estimates need it.
Without the option it prints the estimate beside what was asked, and their ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from multihop import building, config, estimating, jsonl, stages, training, training_network
from multihop.asked import FILE, Asked, Share
from multihop.data import splits
from multihop.environment import Environment
from multihop.errors import DataError
from multihop.pricing import Prices
from multihop.session import Session
from multihop.store import read_recording, request_key

ROOT = Path(__file__).resolve().parents[1]
READ = ("params.yaml", "prices.yaml", "prompts", "data/recordings", "data/prepared", "data/index")
WRITTEN = ("data/structures", "data/trajectories", "results/structures", "results/trained")
JUDGING = ("judge", "extract")
PRICED = "gpt-4o-mini"
"""Whose price stands for every model's, since the demo's own cost nothing."""


def project(root: Path, folder: Path) -> None:
    """The demo in a folder of its own, since building and tuning write."""
    for name in READ:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(root / name)
    for name in WRITTEN:
        if (root / name).is_dir():
            shutil.copytree(root / name, folder / name)


class Measuring:
    """The lines of an estimate, each with the keys that it asks."""

    def __init__(self, session: Session):
        self.session = session
        session.side_log = lambda name: None  # type: ignore[method-assign]
        self.lines: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)

    def note(self, line: str, setting: str, answers: int) -> None:
        """What was asked since the last note is this line's in this setting."""
        cell = self.lines[line].setdefault(setting, {"answers": 0, "asked": set(), "judged": set()})
        cell["answers"] += answers
        for row in self.session.log.rows:
            cell["judged" if row["role"] in JUDGING else "asked"].add(row["key"])
        self.session.log.rows.clear()

    async def everything(self) -> None:
        """In the order of estimating.lines."""
        session, params = self.session, self.session.params
        for name in (*params.structures, *params.graphs):
            await building.build(session, name)
            self.note(f"(index {name})", params.structure(name).settings[0], 0)
        for name in params.runs:
            for dataset, setting in params.cells(name):
                count = len(splits.questions(session.prepared(dataset))[: params.run(name).questions])
                await stages.record_slice(session, name, dataset, setting, count)
                self.note(name, setting, count * len(params.seeds_of(name)))
        if plan := params.the_training:
            used = len(set(plan.datasets.values()))
            await training.collect(session)
            self.note(estimating.COLLECTED, plan.setting, used * plan.questions * len(plan.collection_seeds))
            await training.tune(session)
            self.note(estimating.TUNED, plan.setting, used * plan.tuning_questions)
            for name, network in params.networks.items():
                if network.checkpoint is None:
                    await training_network.train(session, name)
                    self.note(f"(network {name})", params.network_setting(network) or "", used * network.questions)


def replayed(root: Path) -> dict[str, Any]:
    """The content of expected/asked.json."""
    recording = root / "data/recordings/demo.jsonl.zst"
    usage = {
        request_key(row["request"]): [row["response"]["usage"][f"{kind}_tokens"] for kind in ("prompt", "completion")]
        for row in read_recording(recording)
        if row["kind"] == "response"
    }
    with tempfile.TemporaryDirectory() as folder:
        project(root, Path(folder))
        env = Environment.read({"MULTIHOP_LIVE": "never", "MULTIHOP_HOME": "home"})
        measuring = Measuring(Session(config.load(root / "params.yaml"), env, Path(folder)))
        asyncio.run(measuring.everything())
    number = {key: n for n, key in enumerate(sorted(usage))}
    lines = {
        line: {
            setting: {
                "answers": cell["answers"],
                **{kind: sorted(number[key] for key in cell[kind]) for kind in ("asked", "judged")},
            }
            for setting, cell in cells.items()
        }
        for line, cells in measuring.lines.items()
    }
    params = measuring.session.params
    return {
        "recording": jsonl.file_sha256(recording)[:16],
        "settings": [[name, params.readers[s.reader].model] for name, s in params.settings.items()],
        "requests": [usage[key] for key in sorted(usage)],
        "lines": lines,
    }


# -- beside what was really asked


def actual(params: config.Params, root: Path, recordings: Path) -> Share:
    """Calls and tokens of all distinct requests of the project's recordings to models of ``params``."""
    models = {reader.model for reader in params.readers.values()}
    rows = [row for path in sorted(recordings.glob("*.jsonl.zst")) for row in read_recording(path)]
    used = [r["response"]["usage"] for r in rows if r["kind"] == "response" and r["request"]["model"] in models]
    if not used:
        raise DataError(f"{recordings}: no recording of a model of params.yaml there: nothing to compare with")
    return Share(len(used), sum(u["prompt_tokens"] for u in used), sum(u["completion_tokens"] for u in used))


def compared(params: config.Params, root: Path, recordings: Path | None = None) -> str:
    """The table printed: each line beside what it asked first, the sum beside the
    recording; USD as if every model cost what PRICED costs."""
    asked = Asked.load(root)
    if asked is None:
        raise DataError(f"{FILE} is not there; restore it from git, or `python benchmarks/estimate.py --measure`")
    price = Prices.load(root / "prices.yaml").of(PRICED)
    rows = estimating.lines(params, root)
    seen: set[int] = set()
    pairs: list[tuple[str, Share, Share]] = []
    for row in rows:
        own: set[int] = set()
        for cell in asked.lines.get(row.run, {}).values():
            own |= {*cell["asked"], *cell["judged"]}
        pairs.append((row.run, Share(row.calls, row.prompt, row.completion), asked.cost(own - seen)))
        seen |= own
    whole = estimating.total(rows)
    recorded = actual(params, root, recordings or root / "data/recordings")
    pairs.append(("total", Share(whole.calls, whole.prompt, whole.completion), recorded))

    def usd(share: Share) -> float:
        return (share.prompt * price.input + share.completion * price.output) / 1e6

    out = [f"{'':<28}{'calls':>10}{'tokens':>12}{'USD':>9}{'actual':>10}{'tokens':>12}{'USD':>9}   estimate / actual"]
    for name, estimated, real in pairs:
        parts = [(s.calls, s.prompt + s.completion, usd(s)) for s in (estimated, real)]
        ratios = "".join(f"{a / b:>7.2f}" if b else f"{'—' if a else '':>7}" for a, b in zip(*parts, strict=True))
        out.append(f"{name:<28}" + "".join(f"{c:>10.0f}{t:>12.0f}{u:>9.4f}" for c, t, u in parts) + ratios)
    out.append(f"USD at the price of {PRICED}; ratios of calls, tokens, USD; the actual total is the recording's")
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "expected/asked.json")
    options = parser.parse_args()
    if options.measure:
        jsonl.write_wide(options.out, replayed(ROOT))
    print(compared(config.load(ROOT / "params.yaml"), ROOT))


if __name__ == "__main__":
    main()
