"""A small project in a temporary folder: invented world, LSA index, a reader behind the scripted server.

``make_project`` writes params, prompts, prices, prepared data and the index; ``run_project`` answers a run.
``FakeClient`` is the client without HTTP and store, for tests of methods alone.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from fake_embedder import prepare
from scripted_server import Fail, Script, completion, little_model

from multihop import config, jsonl, running, stages
from multihop.config import Endpoint, Reader
from multihop.environment import Environment
from multihop.llm.client import ChatClient, ContextOverflow, Reply, SideLog, _reply
from multihop.llm.endpoints import Endpoints
from multihop.llm.meter import Meter
from multihop.methods import registry
from multihop.methods.base import Tools, Trace
from multihop.pricing import Price, Prices
from multihop.retrieval.index import Retriever
from multihop.session import Session, opened
from multihop.store import Store
from multihop.types import Answer, Question, RunRecord

REPO = Path(__file__).resolve().parents[1]
URL_ENV = "MULTIHOP_SCRIPTED_URL"

WORLD = [
    ("The Lantern Ferry", "The Lantern Ferry is a novel by Oda Wren. It was printed in Skarholm in 1931."),
    ("Oda Wren", "Oda Wren was a novelist from Skarholm. She kept bees. Her brother was Emil Wren."),
    ("Skarholm", "Skarholm is a harbour town on the river Lisse. Its mayor is Karla Möhn."),
    ("Karla Möhn", "Karla Möhn studied geology at Tavik. She has been mayor of Skarholm since 2004."),
    ("Lisse", "The Lisse is a river that rises in the Grey Hills and ends at Skarholm."),
    ("Emil Wren", "Emil Wren was a painter. He died in Tavik in 1949 and is buried there."),
    ("Tavik", "Tavik is a university town in the Grey Hills. It has two stone bridges."),
    ("The Salt Choir", "The Salt Choir is an opera by Jon Ekeby, first sung in Tavik in 1962."),
    ("Jon Ekeby", "Jon Ekeby was a composer born in Norr. His teacher was Lene Astrup."),
    ("Norr", "Norr is a village of weavers. A fire destroyed its church in 1888."),
    ("Lene Astrup", "Lene Astrup taught music in Norr and wrote a book on bells."),
    ("Grey Hills", "The Grey Hills are a range of low hills between Tavik and Norr."),
]
QUESTIONS = {
    "0": ("Who is the mayor of the town where the author of The Lantern Ferry lived?", "Karla Möhn"),
    "q1": ("Where was the composer of The Salt Choir born?", "Norr"),
    "q2": ("On which river lies the town where The Lantern Ferry was printed?", "Lisse"),
    "q3": ("Where is the brother of Oda Wren buried?", "Tavik"),
    "q4": ("Who taught the composer of The Salt Choir?", "Lene Astrup"),
    "q5": ("What destroyed the church of the village where Jon Ekeby was born?", "a fire"),
}


def params_for(**changes: Any) -> dict[str, Any]:
    """params.yaml of the small project; ``changes`` replace whole top-level keys."""
    params: dict[str, Any] = {
        "profile": "test",
        "datasets": ["musique"],
        "data": {"musique": {}},
        "endpoints": {"scripted": {"url_env": URL_ENV}},
        "readers": {"scripted": {"endpoint": "scripted", "model": "scripted", "max_tokens": 300, "context": 8000}},
        "embedders": {"lsa": {"preset": "lsa", "dim": 6}},
        "settings": {"small": {"reader": "scripted", "embedder": "lsa"}},
        "judge": {"reader": "scripted"},
        "runs": {
            "direct": {"method": "direct"},
            "vanilla": {"method": "vanilla", "k": 3},
            "cot_rag": {"method": "cot_rag", "k": 3},
            "arag": {"method": "arag", "max_loops": 6, "k": 3},
            "executionrag": {"method": "executionrag", "max_loops": 6, "k": 3},
        },
    }
    return params | changes


def gold_row(qid: str, answer: str) -> dict[str, Any]:
    return {
        "id": qid,
        "answers": [answer],
        "supporting": ["p0", "p1"],
        "type": "2hop",
        "hops": 2,
        "decomposition": [],
        "evidences": [],
        "exact": True,
        "supporting_sentences": [],
        "answer_id": None,
    }


def make_project(root: Path, questions: int = 6, **changes: Any) -> Path:
    """A project under ``root``, indexed and ready for ``multihop run``."""
    params = params_for(**changes)
    root.mkdir(parents=True, exist_ok=True)
    for name in ("prompts", "prices.yaml"):
        if not (root / name).exists():
            (root / name).symlink_to(REPO / name)
    write_params(root, params)
    for dataset in params["datasets"]:
        folder = prepare(root / "data/prepared" / dataset, WORLD)
        chosen = dict(sorted(QUESTIONS.items())[:questions])
        jsonl.write(folder / "questions.jsonl", ({"id": q, "text": t} for q, (t, _) in chosen.items()))
        jsonl.write(folder / "gold.jsonl", (gold_row(q, a) for q, (_, a) in chosen.items()))
    session = Session(config.load(root / "params.yaml"), Environment.read({"MULTIHOP_HOME": str(root / "home")}), root)
    for dataset in params["datasets"]:
        stages.index(session, dataset)
    session.store.close()
    shutil.rmtree(root / "home")
    return root


def write_params(root: Path, params: dict[str, Any]) -> None:
    (root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False, allow_unicode=True), encoding="utf-8")


def run_project(root: Path, name: str, **options: Any) -> dict[str, Any]:
    """Answer run ``name`` as the stage does; the first error of a group is raised by itself."""

    async def work() -> dict[str, Any]:
        async with opened(config.load(root / "params.yaml"), root) as session:
            return await running.run(session, name, **options)

    try:
        return asyncio.run(work())
    except BaseExceptionGroup as group:
        raise first_of(group) from None


def first_of(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def records_file(root: Path, run: str, dataset: str = "musique", setting: str = "small") -> Path:
    return root / "results/runs" / run / dataset / f"{setting}.jsonl"


def records_of(root: Path, run: str, **where: str) -> list[RunRecord]:
    return stages.read_records(records_file(root, run, **where))


def prompts_of(method: str) -> dict[str, str]:
    return running.load_prompts(REPO, method)


# -- the client: real, and without HTTP


def make_client(
    home: Path, env: Mapping[str, str] | None = None, *, layers: tuple[Path, ...] = (), **options: Any
) -> ChatClient:
    """A real client of the endpoint in ``MULTIHOP_SCRIPTED_URL``. ``options``: ``endpoint`` and ``reader`` fields,
    ``ceilings`` (by variable), ``model`` (priced unless its name is "unpriced")."""
    model = options.get("model", "scripted")
    endpoint = Endpoint(**{"url_env": URL_ENV} | options.get("endpoint", {}))
    reader = Reader(endpoint="scripted", model=model, **{"max_tokens": 300} | options.get("reader", {}))
    environment = Environment.read({"MULTIHOP_HOME": str(home), **(env or {})})
    dear = Price(1000.0, 500.0, 1000.0)  # USD 0.001 a token
    prices = Prices({name: dear for name in {"scripted", model} - {"unpriced"}})
    return ChatClient(
        "scripted",
        reader,
        Endpoints({"scripted": endpoint}, environment),
        Store(home / "store.sqlite", layers),
        Meter(prices, options.get("ceilings"), options.get("ledger")),
        SideLog(),
    )


class FakeClient:
    """A client whose model is a script: same request bodies, no HTTP, no store. Keeps what it was asked."""

    def __init__(
        self,
        script: Script = little_model,
        tool_calling: str = "native",
        structured: str = "json_schema",
        **reader: Any,
    ):
        self.script = script
        self.endpoint = Endpoint(tool_calling=tool_calling, structured=structured)
        self.reader = Reader(endpoint="scripted", model="scripted", **{"max_tokens": 300} | reader)
        self.bodies: list[dict[str, Any]] = []
        self.roles: list[str] = []

    async def chat(
        self, messages, *, role, max_tokens=None, temperature=None, sample=0, tools=None, response_format=None
    ) -> Reply:
        body = {
            "model": self.reader.model,
            "messages": [dict(m) for m in messages],
            "temperature": self.reader.temperature if temperature is None else temperature,
            "max_tokens": min(max_tokens or self.reader.max_tokens, self.reader.max_tokens),
            "seed": sample,
        }
        body |= {"tools": tools} if tools else {}
        body |= {"response_format": response_format} if response_format else {}
        self.bodies.append(body)
        self.roles.append(role)
        outcome = self.script(body)
        if isinstance(outcome, Fail):
            raise ContextOverflow(outcome.message) if "context" in outcome.code else RuntimeError(outcome.message)
        return _reply(_stored(completion(body, outcome)))

    def asked(self, role: str) -> list[dict[str, Any]]:
        return [body for body, r in zip(self.bodies, self.roles, strict=True) if r == role]


def _stored(completed: dict[str, Any]) -> dict[str, Any]:
    choice = completed["choices"][0]
    message, usage = choice["message"], completed.get("usage", {})
    return {
        "content": message["content"],
        "refusal": message["refusal"],
        "tool_calls": [{"id": c["id"], **c["function"]} for c in message.get("tool_calls", ())],
        "finish_reason": choice["finish_reason"],
        "usage": {k: usage.get(k, 0) for k in ("prompt_tokens", "completion_tokens")},
    }


def answer(
    retriever: Retriever,
    method: str,
    client: Any,
    question: str,
    *,
    prompts: Mapping[str, str] | None = None,
    seed: int = 0,
    trained: Any = None,
    structure: Any = None,
    **options: Any,
) -> tuple[Answer | None, Trace, RunRecord]:
    """One question through one method: (what it returned, its trace, the run record of the same)."""
    made = registry.create(config.RunConfig(method=method, **options), "test")
    texts = prompts or prompts_of(method)
    kept: list[Any] = [None, Trace()]

    class Kept:
        name, mode, Params, params = made.name, getattr(made, "mode", "short"), made.Params, made.params

        async def answer(self, question: Question, tools: Tools) -> Answer:
            kept[1] = tools.trace
            kept[0] = await made.answer(question, tools)
            return kept[0]

    cell = running.Cell(
        "run", "set", "setting", Kept(), client, retriever, texts, "hash", "corpus", lambda seed: trained, structure
    )
    record = asyncio.run(cell.answer(Question("q", question), seed))
    return kept[0], kept[1], record


def events(trace: Trace | RunRecord, kind: str) -> list[dict[str, Any]]:
    return [e.data for e in trace.events if e.kind == kind]


def tools_for(retriever: Retriever, client: Any, method: str) -> Tools:
    return Tools(retriever, client, prompts_of(method), Trace(), 0, random.Random("0:q"))


Maker = Callable[..., Path]
