"""The command line: one sub-command per DVC stage, and what a reader does by hand. No logic lives here."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

# Hubs stay closed unless the profile downloads; analytics and update checks stay off (also for child processes).
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("DVC_NO_ANALYTICS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from multihop import config, messages
from multihop.errors import ConfigError, MultihopError
from multihop.session import Session, opened

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__, rich_markup_mode=None
)
T = TypeVar("T")


def _load() -> config.Params:
    from multihop.methods import registry
    from multihop.retrieval import specs
    from multihop.structures import registry as structures

    params = config.load()
    registry.check(params)
    structures.check(params)
    for name in params.notebooks:
        if not Path(f"notebooks/{name}.ipynb").is_file():
            known = sorted(p.stem for p in Path("notebooks").glob("*.ipynb"))
            raise ConfigError(f"params.yaml: notebooks: {messages.unknown('notebook', name, known)}")
    for name, embedder in params.embedders.items():
        try:
            specs.resolve(embedder.overrides())
        except MultihopError as e:
            raise ConfigError(f"params.yaml: embedders.{name}: {e}") from e
    return params


def _run(work: Callable[[Session], Awaitable[T]]) -> T:
    """Run ``work`` in a session of ./params.yaml; hub access only where the profile downloads."""
    params = _load()
    if params.source == "hub":
        os.environ["HF_HUB_OFFLINE"] = "0"

    async def main() -> T:
        async with opened(params) as session:
            return await work(session)

    return asyncio.run(main())


@app.command()
def validate() -> None:
    """Check params.yaml: every key, type, reference and method option."""
    params = _load()
    cells = sum(len(list(params.cells(run))) for run in params.runs)
    answers = sum(len(list(params.cells(run))) * len(params.seeds_of(run)) for run in params.runs)
    print(f"params.yaml is valid: profile {params.profile}, {len(params.runs)} runs, {cells} cells", end="")
    print(f", {answers} with their seeds" if answers != cells else "")


@app.command()
def download(dataset: str) -> None:
    """Stage: fetch or generate the raw files of DATASET."""
    from multihop import stages

    async def work(session: Session) -> None:
        stages.download(session, dataset)

    _run(work)


@app.command()
def prepare(dataset: str) -> None:
    """Stage: questions, gold, passages, chunks and the data card of DATASET."""
    from multihop import stages

    async def work(session: Session) -> dict[str, Any]:
        return stages.prepare(session, dataset)

    card = _run(work)
    print(f"{dataset}: {card['evaluation']['questions']} questions, {card['corpus']['passages']} passages")


@app.command()
def index(dataset: str) -> None:
    """Stage: the search indexes of DATASET, one for each embedder and corpus variant in use."""
    from multihop import stages

    async def work(session: Session) -> list[dict[str, Any]]:
        return stages.index(session, dataset)

    for meta in _run(work):
        print(f"{dataset}: {meta['chunks']} chunks, {meta['sentences']} sentences in {meta['space']}")


@app.command()
def build(name: str) -> None:
    """Stage: build the index NAME (params.yaml: structures, graphs) for every dataset and setting that uses it."""
    from multihop import building

    async def work(session: Session) -> dict[str, building.Built]:
        return await building.build(session, name)

    for cell, built in _run(work).items():
        said = ", ".join(f"{key} {value}" for key, value in built.statistics.items() if isinstance(value, int | float))
        print(f"{name} {cell}: {said}; {built.live_calls} live calls")


@app.command()
def run(name: str) -> None:
    """Stage: answer every question of run NAME, in all its datasets and settings."""
    from multihop import running

    async def work(session: Session) -> tuple[dict[str, int], int]:
        return await running.run(session, name), session.meter.live_calls

    counts, live = _run(work)
    print(f"{name}: {', '.join(f'{n} {status}' for status, n in sorted(counts.items()))}; {live} live calls")
    if counts.get("error"):
        print(f"errors are asked again by: dvc repro --force --single-item run@{name} && dvc repro")


@app.command()
def collect() -> None:
    """Stage: trajectories of the train questions, every valid action tried at every visited state."""
    from multihop import training

    for dataset, states in _run(training.collect).items():
        print(f"{dataset}: {states} states")


@app.command()
def fit(controller: str) -> None:
    """Stage: train CONTROLLER (params.yaml: controllers) on the trajectories; models and model cards."""
    from multihop import training

    async def work(session: Session) -> list[Path]:
        return training.fit(session, controller)

    for folder in _run(work):
        print(folder / "card.json")


@app.command()
def tune() -> None:
    """Stage: train Adaptive-RAG's router and choose Fixed-K's depth on train questions."""
    from multihop import training

    for dataset, chosen in _run(training.tune).items():
        print(f"{dataset}: router labels {chosen['labels']}, K = {chosen['k']}")


@app.command()
def train(network: str) -> None:
    """Stage: train NETWORK (params.yaml: networks) on train questions, or take its checkpoint; weights and card."""
    from multihop import training_network

    async def work(session: Session) -> list[Path]:
        return await training_network.train(session, network)

    for folder in _run(work):
        print(folder / "card.json")


@app.command()
def score() -> None:
    """Stage: scores, failure analysis and metrics of all cells."""
    from multihop import stages

    _run(stages.score_all)


@app.command()
def retrieval() -> None:
    """Stage: recall@2/5/10 of every index, the question itself as query, over all prepared questions."""
    from multihop import stages

    async def work(session: Session) -> dict[str, Any]:
        return stages.retrieval(session)

    for dataset, settings in _run(work).items():
        for setting, tools in settings.items():
            for tool, groups in tools.items():
                values = "  ".join(f"@{k} {groups['all'][f'recall@{k}']['mean']:.3f}" for k in (2, 5, 10))
                print(f"{dataset:<17}{setting:<12}{tool:<17}n = {groups['all']['n']:<6}{values}")


@app.command()
def coverage() -> None:
    """Stage: which cell of which table and figure ran, and what is missing."""
    from multihop.report import coverage as report_coverage
    from multihop.report.load import Report

    report_coverage.write(Report())


@app.command()
def render(names: Annotated[list[str] | None, typer.Argument(help="default: all of params.yaml")] = None) -> None:
    """Stage: execute notebooks into results/notebooks (ipynb and HTML), their figures into figures/."""
    from multihop.report import render as report_render

    for folder in ("results/notebooks", "figures"):
        Path(folder).mkdir(parents=True, exist_ok=True)
    for name in names or _load().notebooks:
        print(report_render.render(Path("."), name))


@app.command()
def summary() -> None:
    """Print what ran and where to look."""
    from multihop import summary as what_ran

    print(what_ran.summary(Path(".")))


@app.command()
def estimate() -> None:
    """Calls, tokens, USD and hours of params.yaml, from the demo's measured tokens, before anything is paid."""
    from multihop import estimating

    print(estimating.report(_load(), Path(".")))


@app.command()
def ask(
    question: str,
    dataset: Annotated[str, typer.Option(help="whose corpus to search")] = "musique",
    run: Annotated[str, typer.Option(help="a run of params.yaml")] = "executionrag",
    setting: Annotated[str, typer.Option(help="a setting of params.yaml; default: the first")] = "",
) -> None:
    """Answer one QUESTION live and print searches and the register as they change."""
    from multihop import asking

    async def work(session: Session) -> None:
        await asking.ask(session, question, dataset, run, setting)

    _run(work)


@app.command("show-prompt")
def show_prompt(run: str, qid: str, setting: str = "", call: int = 0) -> None:
    """The exact messages of a run's calls for question QID (all calls, or the CALL-th)."""
    from multihop import asking

    async def work(session: Session) -> None:
        await asking.show_prompts(session, run, qid, setting, call)

    _run(work)


@app.command()
def checkout(profile: str) -> None:
    """A scratch checkout of PROFILE (profiles/*.yaml) under scratch/, for `make repro PROFILE=...`."""
    from multihop import profiles

    print(f"profile {profile} runs in {profiles.checkout(Path('.'), profile)}")


@app.command()
def export(
    out: Annotated[Path, typer.Argument(help="the CSV file to write")] = Path("scores.csv"),
) -> None:
    """Every score of every question, run, setting and seed as one CSV file."""
    from multihop.report.load import Report

    frame = Report().scores
    out.parent.mkdir(parents=True, exist_ok=True)
    frame.to_csv(out, index=False)
    print(f"{out}: {len(frame)} rows")


@app.command()
def record(
    questions: Annotated[int, typer.Option(help="the first so many questions of each dataset")] = 4,
    setting: Annotated[str, typer.Option(help="only this setting; default: all")] = "",
    out: Path = Path("data/recordings/demo.jsonl.zst"),
) -> None:
    """Ask the model whatever params.yaml needs and write the recording. Resumable: what is answered stays stored."""
    from multihop import recording

    async def work(session: Session) -> None:
        await recording.record(session, questions, setting, out)

    _run(work)


@app.command("verify-recording")
def verify_recording(requests: int = 20, seed: int = 0) -> None:
    """Re-ask REQUESTS recorded requests live; report how many answers are identical, show the others."""
    from multihop import recording

    async def work(session: Session) -> None:
        await recording.verify(session, requests, seed)

    _run(work)


@app.command()
def merge(recordings: list[Path]) -> None:
    """Take the entries of RECORDINGS into this checkout's store."""

    async def work(session: Session) -> int:
        return sum(session.store.merge(path) for path in recordings)

    print(f"{_run(work)} entries read")


def main() -> None:
    """Errors that a user can act on are one message and exit code 1; anything else is a traceback."""
    try:
        app(standalone_mode=False)
    except typer.Exit as e:
        sys.exit(e.exit_code)
    except MultihopError as e:
        sys.exit(_fail(str(e)))
    except BaseExceptionGroup as group:
        known, rest = group.split(MultihopError)
        if rest is not None or known is None:
            raise
        sys.exit(_fail(str(_first(known))))
    except KeyboardInterrupt:
        sys.exit(_fail("stopped; every answer so far is stored: the same command goes on"))
    except Exception as e:
        if type(e).__module__.startswith(("click", "typer")):
            sys.exit(_fail(e.format_message() if hasattr(e, "format_message") else str(e), 2))
        raise


def _first(group: BaseException) -> BaseException:
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group


def _fail(message: str, code: int = 1) -> int:
    print(f"multihop: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
