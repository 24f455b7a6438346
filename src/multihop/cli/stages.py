"""A sub-command for each stage of dvc.yaml. No logic lives here."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from multihop.cli.app import app, in_session, loaded
from multihop.errors import ConfigError
from multihop.session import Session


@app.command()
def resolve() -> None:
    """Stage: check params.yaml and write what several stages read of it to results/params."""
    from multihop import stages

    for path in stages.resolve(loaded(), Path(".")):
        print(path)


@app.command()
def download(dataset: str) -> None:
    """Stage: fetch or generate the raw files of DATASET."""
    from multihop import stages

    async def work(session: Session) -> None:
        stages.download(session, dataset)

    in_session(work)


@app.command()
def prepare(dataset: str) -> None:
    """Stage: questions, gold, passages, chunks and the data card of DATASET."""
    from multihop import stages

    async def work(session: Session) -> dict[str, Any]:
        return stages.prepare(session, dataset)

    card = in_session(work)
    print(f"{dataset}: {card['evaluation']['questions']} questions, {card['corpus']['passages']} passages")


@app.command()
def index(dataset: str) -> None:
    """Stage: the search indexes of DATASET, one for each embedder and corpus variant in use."""
    from multihop import stages

    async def work(session: Session) -> list[dict[str, Any]]:
        return stages.index(session, dataset)

    for meta in in_session(work):
        print(f"{dataset}: {meta['chunks']} chunks, {meta['sentences']} sentences in {meta['space']}")


@app.command()
def build(name: str) -> None:
    """Stage: build the index NAME (params.yaml: structures, graphs) for every dataset and setting that uses it."""
    from multihop import building

    async def work(session: Session) -> dict[str, building.Built]:
        return await building.build(session, name)

    for cell, built in in_session(work).items():
        said = ", ".join(f"{key} {value}" for key, value in built.statistics.items() if isinstance(value, int | float))
        print(f"{name} {cell}: {said}; {built.live_calls} live calls")


@app.command()
def run(name: str) -> None:
    """Stage: answer every question of run NAME, in all its datasets and settings."""
    from multihop import running

    if os.environ.get("MULTIHOP_SHARD"):
        raise ConfigError("MULTIHOP_SHARD is for `multihop warm`: a run answers all its questions; unset it")

    async def work(session: Session) -> tuple[dict[str, int], int]:
        return await running.run(session, name), session.meter.live_calls

    counts, live = in_session(work)
    print(f"{name}: {', '.join(f'{n} {status}' for status, n in sorted(counts.items()))}; {live} live calls")
    if counts.get("error"):
        print(f"errors are asked again by: dvc repro --force --single-item run@{name} && dvc repro")


@app.command()
def collect() -> None:
    """Stage: trajectories of the train questions, every valid action tried at every visited state."""
    from multihop import training

    for dataset, states in in_session(training.collect).items():
        print(f"{dataset}: {states} states")


@app.command()
def fit(controller: str) -> None:
    """Stage: train CONTROLLER (params.yaml: controllers) on the trajectories; models and model cards."""
    from multihop import training

    async def work(session: Session) -> list[Path]:
        return training.fit(session, controller)

    for folder in in_session(work):
        print(folder / "card.json")


@app.command()
def tune() -> None:
    """Stage: train Adaptive-RAG's router and choose Fixed-K's depth on train questions."""
    from multihop import training

    for dataset, chosen in in_session(training.tune).items():
        print(f"{dataset}: router labels {chosen['labels']}, K = {chosen['k']}")


@app.command()
def train(network: str) -> None:
    """Stage: train NETWORK (params.yaml: networks) on train questions, or take its checkpoint; weights and card."""
    from multihop import training_network

    async def work(session: Session) -> list[Path]:
        return await training_network.train(session, network)

    for folder in in_session(work):
        print(folder / "card.json")


@app.command()
def score() -> None:
    """Stage: scores, failure analysis and metrics of all cells."""
    from multihop import stages

    in_session(stages.score_all)


@app.command()
def retrieval() -> None:
    """Stage: recall@2/5/10 of every index, the question itself as query, over all prepared questions."""
    from multihop import stages

    async def work(session: Session) -> dict[str, Any]:
        return stages.retrieval(session)

    for dataset, settings in in_session(work).items():
        for setting, tools in settings.items():
            for tool, groups in tools.items():
                values = "  ".join(f"@{k} {groups['all'][f'recall@{k}']['mean']:.3f}" for k in (2, 5, 10))
                print(f"{dataset:<17}{setting:<12}{tool:<17}n = {groups['all']['n']:<6}{values}")


@app.command()
def certify() -> None:
    """Stage: which gold passages some query reaches, and what the runs missed of those."""
    from multihop import certifying

    async def work(session: Session) -> dict[str, Any]:
        return certifying.certify_all(session)

    print(certifying.said(in_session(work)))


@app.command()
def instrument(
    questions: Annotated[int | None, typer.Option(min=20, help="of the simulated run; default: params.yaml")] = None,
    repetitions: Annotated[int | None, typer.Option(min=1, help="of intervals and tests; default: params.yaml")] = None,
    full: Annotated[bool, typer.Option(help="full sizes: 1,000 questions, 1,000 repetitions")] = False,
    out: Annotated[Path | None, typer.Option(help="one file in place of results/instrument/")] = None,
    again: Annotated[bool, typer.Option(help="only what needs no simulated run; the rest stays as in --out")] = False,
) -> None:
    """Stage: what the analysis recovers of a simulated reader's known faults; intervals, tests and rules measured."""
    from multihop.instrument import measure

    used = measure.sized(loaded().instrument, questions, repetitions, full)
    if again:
        if out is None:
            raise typer.BadParameter("--again needs --out, the file whose simulated run stays")
        measured = measure.again(Path("."), used, out)
    else:
        measured = asyncio.run(measure.measure(Path("."), used))
    measure.write(Path("."), measured, used, out)
    print(measure.said(measured))


@app.command()
def coverage() -> None:
    """Stage: which cell of which table and figure ran, and what is missing."""
    from multihop.report import coverage as report_coverage
    from multihop.report.load import Report

    report_coverage.write(Report())


@app.command()
def claims() -> None:
    """Stage: the verdict on every claim of the papers (expected/claims.yaml), and what is missing for one."""
    from multihop.report import claims as report_claims
    from multihop.report.load import Report

    for paper in report_claims.write(Report())["papers"].values():
        print(f"{paper['title']}: {len(paper['claims'])} claims; verdicts: {_counted(paper['verdicts'])}")
        print(f"  here: {_counted(paper['here'])}; asked by us besides, in neither: {paper['asked_by_us']}")


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


@app.command()
def render(names: Annotated[list[str] | None, typer.Argument(help="default: all of params.yaml")] = None) -> None:
    """Stage: execute notebooks into results/notebooks (ipynb and HTML), their figures into figures/."""
    from multihop.report import render as report_render

    for folder in ("results/notebooks", "figures"):
        Path(folder).mkdir(parents=True, exist_ok=True)
    for name in names or loaded().notebooks:
        print(report_render.render(Path("."), name))
