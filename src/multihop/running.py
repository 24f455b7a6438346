"""A run: question set x method -> records, one file per (dataset, setting).

Questions are independent: each gets its own tools, trace and random generator, so that neither order nor workers
change a record. What is answered is in the store; a killed run, started again, repeats no answered call.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from multihop import config, guard
from multihop.data import splits
from multihop.errors import MultihopError
from multihop.gathering import each
from multihop.llm import batching
from multihop.llm.client import ChatClient, ContextOverflow, Refused
from multihop.methods import registry
from multihop.methods.base import Method, Tools, Trace
from multihop.opening import load_prompts, open_index, open_structure, open_trained, structure_identity
from multihop.retrieval.index import Retriever
from multihop.session import Session
from multihop.spool import Progress, Spool, Tally
from multihop.types import Answer, Question, RunRecord

FIRST_ERRORS = 5
"""A run whose first this many questions all fail is stopped: something is wrong with all of them."""
LOG_BLOCK = 1000
"""Rows of the side log that are held before they are written."""


@dataclass
class Cell:
    """One (dataset, setting) of a run, ready to answer questions."""

    run: str
    dataset: str
    setting: str
    method: Method
    client: ChatClient
    retriever: Retriever
    prompts: Mapping[str, str]
    params_hash: str
    corpus_hash: str
    trained: Callable[[int], Any] = lambda seed: None
    """What the method was trained to, by run seed; None for a method without training."""
    structure: Any = None
    """The index that the method searches beside the retriever; None for a method without one."""

    async def answer(self, question: Question, seed: int) -> RunRecord:
        """One record, whatever the model does. Errors that concern the whole run pass through."""
        trace = Trace()
        rng = random.Random(f"{seed}:{question.id}")
        tools = Tools(self.retriever, self.client, self.prompts, trace, seed, rng, self.trained(seed), self.structure)
        error = None
        mode = getattr(self.method, "mode", "short")
        try:
            answer = await self.method.answer(question, tools)
        except MultihopError:
            raise
        except Refused as e:
            answer = Answer("", "refused", "refused", mode=mode)
            trace.event(trace.loops, "refused", message=str(e))
        except ContextOverflow as e:
            # A budget used up like any other: "Gave Up" in the failure analysis (App. B).
            trace.forced = True
            answer = Answer("", "context_overflow", "budget", mode=mode)
            trace.event(trace.loops, "context_overflow", message=str(e)[:200])
        except Exception as e:
            # An error is never an answer: the record says so, and the next run asks again.
            error = guard.told(f"{type(e).__name__}: {e}")
            answer = Answer("", "error", "error", mode=mode)
        return self._record(question, seed, answer, trace, error)

    async def ask_ahead(self, jobs: Iterable[tuple[Question, int]]) -> None:
        """Where the method asks once and the endpoint takes batches: what the jobs ask, as one batch."""
        if getattr(self.method, "single_shot", False) and batching.offered(self.client):
            await batching.ahead(self.client, jobs, lambda job: self.answer(*job))

    def _record(self, question: Question, seed: int, answer: Answer, trace: Trace, error: str | None) -> RunRecord:
        return RunRecord(
            qid=question.id,
            dataset=self.dataset,
            setting=self.setting,
            run=self.run,
            seed=seed,
            params_hash=self.params_hash,
            corpus_hash=self.corpus_hash,
            question=question.text,
            answer=answer.text,
            short=answer.short,
            mode=answer.mode,
            status=answer.status,
            stop_reason=answer.stop_reason,
            retrieved=tuple(trace.retrieved.values()),
            read=tuple(trace.read),
            cited=answer.cited,
            events=tuple(trace.events),
            usage=dict(sorted(trace.usage.items())),
            retrieved_tokens=trace.retrieved_tokens,
            seed_tokens=trace.seed_tokens,
            retrieval_calls=trace.retrieval_calls,
            loops=trace.loops,
            forced=trace.forced,
            error=error,
        )


def open_train_cell(session: Session, run: str, dataset: str) -> Cell:
    """A cell over the train questions' corpus, in the training's setting, with nothing trained yet."""
    cell = open_cell(session, run, dataset, session.params.the_training.setting, train=True)
    return replace(cell, trained=lambda seed: None)


def open_cell(session: Session, run: str, dataset: str, setting: str, train: bool = False) -> Cell:
    """Raises MultihopError where params, data, index or training do not allow it. ``train``: see open_train_cell."""
    run_config = session.params.run(run)
    method = registry.create(run_config, f"params.yaml: {session.params.where(run)}")
    prompts = load_prompts(session.root, run_config.method)
    retriever = open_index(session, dataset, setting, train)
    trained, trained_hash = ((lambda seed: None), "") if train else open_trained(session, run, dataset)
    identity = _identity(session, method, prompts, setting)
    if trained_hash:
        identity["trained"] = trained_hash
    structure = None
    if run_config.structure and not train:
        structure = open_structure(session, run_config.structure, dataset, setting, retriever)
        identity["structure"] = structure_identity(session, run_config.structure, setting, retriever)
    return Cell(
        run,
        dataset,
        setting,
        method,
        session.client(session.params.settings[setting].reader),
        retriever,
        prompts,
        config.fingerprint(identity),
        splits.corpus_hash(session.prepared(dataset))[:16],
        trained,
        structure,
    )


def _identity(session: Session, method: Method, prompts: Mapping[str, str], setting: str) -> dict[str, Any]:
    """What decides a cell's records, beside its data, training and structure."""
    params = session.params
    chosen = params.settings[setting]
    return {
        "method": method.name,
        "options": method.params.model_dump(mode="json"),
        "reader": params.readers[chosen.reader].model_dump(mode="json"),
        "endpoint": params.endpoints[params.readers[chosen.reader].endpoint].model_dump(
            include={"kind", "tool_calling", "structured"}
        ),
        "embedder": params.embedders[chosen.embedder].overrides(),
        "corpus": chosen.corpus,
        "retrieval": session.retrieval_params(),
        "prompts": prompts,
    }


async def run(session: Session, name: str) -> dict[str, int]:
    """Answer all questions of a run's cells and write their records; returns counts by status."""
    session.begin(f"run {name}", session.params.readers_of(session.params.cells(name)))
    tally = Tally()
    for dataset, setting in session.params.cells(name):
        cell, log = open_cell(session, name, dataset, setting), f"run-{name}-{dataset}-{setting}"
        questions = splits.questions(session.prepared(dataset))[: session.params.run(name).questions]
        seeds = session.params.seeds_of(name)
        jobs = ((q, seed) for q in questions for seed in seeds)
        progress = Progress(f"{name} {dataset} {setting}", len(questions) * len(seeds))
        await cell.ask_ahead((q, seed) for q in questions for seed in seeds)
        with Spool(session.records(name, dataset, setting)) as spool:

            def keep(record: RunRecord, spool: Spool = spool, log: str = log) -> None:
                spool.add(record)
                tally.add(record)
                session.side_log(log, LOG_BLOCK)

            try:
                await _answer_all(cell, jobs, session.workers(session.params.settings[setting].reader), progress, keep)
            finally:
                session.side_log(log)
            spool.finish()
    _refuse_many_errors(session, name, tally)
    return dict(tally.counts)


def _refuse_many_errors(session: Session, name: str, tally: Tally) -> None:
    total, errors = tally.counts.total(), tally.counts["error"]
    if total and errors / total > session.params.max_error_share:
        raise MultihopError(
            f"run {name}: {errors} of {total} questions ended in an error (max_error_share is "
            f"{session.params.max_error_share}), the first: {tally.said[:300]}; every answer is stored: run the same "
            "command again to retry them"
        )


async def _answer_all(
    cell: Cell,
    jobs: Iterable[tuple[Question, int]],
    workers: int,
    progress: Progress,
    keep: Callable[[RunRecord], None],
) -> None:
    """All records to ``keep``, as they come, ``workers`` questions at a time; a fatal error cancels the rest."""

    async def one(job: tuple[Question, int]) -> None:
        record = await cell.answer(*job)
        keep(record)
        progress.step(record)
        if progress.done == progress.errors == FIRST_ERRORS:
            raise MultihopError(f"the first {FIRST_ERRORS} questions all failed: {record.error}")

    await each(jobs, one, workers)
