"""The sub-commands that are no stage: what a reader runs by hand. No logic lives here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from multihop.cli.app import app, in_session, loaded
from multihop.session import Session


@app.command()
def validate() -> None:
    """Check params.yaml: every key, type, reference and method option, and a price for every model in use."""
    from multihop.pricing import Prices

    params = loaded()
    models = {f"readers.{name}": params.readers[name].model for name in params.readers_in_use()}
    Prices.load(Path("prices.yaml")).check(models)
    cells = sum(len(list(params.cells(run))) for run in params.runs)
    answers = sum(len(list(params.cells(run))) * len(params.seeds_of(run)) for run in params.runs)
    print(f"params.yaml is valid: profile {params.profile}, {len(params.runs)} runs, {cells} cells", end="")
    print(f", {answers} with their seeds" if answers != cells else "")


@app.command()
def summary() -> None:
    """Print what ran and where to look."""
    from multihop import summary as what_ran

    print(what_ran.summary(Path(".")))


@app.command()
def estimate() -> None:
    """Calls, tokens, USD and hours of params.yaml, from the demo's measured tokens, before anything is paid."""
    from multihop import estimating

    print(estimating.report(loaded(), Path(".")))


@app.command()
def spending(
    reset: Annotated[bool, typer.Option("--reset", help="forget what was spent; needs --yes")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="with --reset: really")] = False,
) -> None:
    """What live calls have cost in this MULTIHOP_HOME, by run and model, and the ceilings that are set.

    --reset --yes forgets it, and frees what is reserved by processes that don't run on this machine.
    """
    from multihop.environment import Environment
    from multihop.llm import ledger

    env = Environment.read()
    print(ledger.report(env.home / ledger.FILE, env.ceilings))
    if reset and not yes:
        raise typer.BadParameter("--reset forgets the sums above, and ceilings count anew: add --yes")
    if reset:
        dropped = ledger.Ledger(env.home / ledger.FILE).reset()
        print("forgotten: ceilings count from 0", end="")
        print(f"; {dropped} reservations freed, of processes that don't run on this machine" if dropped else "")


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

    in_session(work)


@app.command("show-prompt")
def show_prompt(run: str, qid: str, setting: str = "", call: int = 0) -> None:
    """The exact messages of a run's calls for question QID (all calls, or the CALL-th)."""
    from multihop import asking

    async def work(session: Session) -> None:
        await asking.show_prompts(session, run, qid, setting, call)

    in_session(work)


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
    from multihop import guard
    from multihop.report.load import Report

    frame = Report().scores
    out.parent.mkdir(parents=True, exist_ok=True)
    frame.map(guard.cell).to_csv(out, index=False)
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

    in_session(work)


@app.command("verify-recording")
def verify_recording(requests: int = 20, seed: int = 0) -> None:
    """Re-ask REQUESTS recorded requests live; report how many answers are identical, show the others."""
    from multihop import recording

    async def work(session: Session) -> None:
        await recording.verify(session, requests, seed)

    in_session(work)
