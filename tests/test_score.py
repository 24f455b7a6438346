"""Scoring a cell end to end with a scripted client: refusals, denominators, what is counted where."""

import asyncio
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from multihop.errors import ConfigError, DataError, ReplayMiss
from multihop.evaluation import aggregate
from multihop.evaluation.judge import Prompts
from multihop.evaluation.score import Cell, Unjudged, score_cell
from multihop.evaluation.support import ChunkMap
from multihop.pricing import Price, Prices
from multihop.types import Chunk, Event, Gold, Retrieved, RunRecord, Span, Usage

PROMPTS = Prompts.load(Path(__file__).parents[1] / "prompts")
CHUNKS = ChunkMap(Chunk(f"p{i}", "x" * 9, (Span(f"p{i}", 0, 9),)) for i in range(4))


class Overflow(Exception):
    pass


class Silence(Exception):
    pass


class Client:
    """Extracts the last word; judges "correct" where the gold stands in the generated answer."""

    def __init__(self, fail=None):
        self.fail = fail
        self.roles = []

    async def chat(self, messages, *, role, max_tokens, temperature=0.0, sample=0):
        self.roles.append(role)
        if self.fail:
            raise self.fail
        fields = dict(line.split(": ", 1) for line in messages[-1]["content"].splitlines() if ": " in line)
        if role == "extract":
            text = fields["Response"].rstrip(".").split()[-1]
        else:
            text = "correct" if fields["Gold"] in fields["Generated"] else "incorrect"
        return SimpleNamespace(text=text, usage=Usage(1, 50, 2), finish_reason="stop")


def record(qid, answer, *, mode="short", short=None, status="ok", seed=0, **more):
    return RunRecord(
        qid=qid,
        dataset="musique",
        setting="s",
        run="r",
        seed=seed,
        params_hash="",
        corpus_hash="c",
        question="Where?",
        answer=answer,
        short=short,
        mode=mode,
        status=status,
        stop_reason="answered",
        usage={"reader": Usage(2, 900, 100), "register": Usage(1, 100, 0, 1)},
        retrieved=(Retrieved("p0", 1, "semantic_search"),),
        **more,
    )


def gold(qid, *answers):
    return Gold(qid, answers, ("p1", "p0"), "2hop", 2)


RECORDS = [
    record("0", "It lies in Kesta.", mode="free"),
    record("1", "Reasons.\nAnswer: Orlin", short="Orlin"),
    record("2", "", status="error", error="Timeout: none"),
    record("3", " ", mode="free"),
]
CELL = Cell(
    dataset="musique",
    setting="s",
    run="r",
    ids=("0", "1", "2", "3"),
    seeds=(0,),
    gold={q: gold(q, a) for q, a in [("0", "Kesta"), ("1", "Harlow"), ("2", "Tarn"), ("3", "Moor")]},
    chunks=CHUNKS,
    reader_model="m",
    prices=Prices({"m": Price(0.15, 0.075, 0.6)}),
)


def run(records=RECORDS, cell=CELL, client=None, **kw):
    return asyncio.run(score_cell(records, cell, client or Client(), PROMPTS, **kw))


def test_rows_of_a_cell():
    client = Client()
    rows = run(reversed(RECORDS), client=client)
    assert [r["qid"] for r in rows] == ["0", "1", "2", "3"]
    right, wrong, error, blank = rows
    assert (right["short"], right["em"], right["contain"], right["llm_acc"], right["rule_acc"]) == (
        "Kesta",
        1,
        1,
        1,
        1,
    )
    assert (wrong["short"], wrong["em"], wrong["llm_acc"], wrong["rule_acc"]) == ("Orlin", 0, 0, 0)
    assert error["status"] == "error" and error["judge_calls"] == 0 and error["em"] == error["llm_acc"] == 0
    assert blank["short"] == "" and blank["judge_calls"] == 0 and blank["extract_tokens"] == 0
    assert client.roles == ["extract", "judge", "judge"]


def test_support_in_hop_order():
    right = run()[0]
    assert (right["hop_found"], right["support_found"], right["support_total"]) == ([False, True], 1, 2)
    assert (right["support_recall"], right["support_unmapped"], right["support_read"]) == (0.5, 0, 0)


def test_the_judges_tokens_are_not_the_methods():
    right = run()[0]
    assert (right["llm_calls"], right["repairs"]) == (3, 1)
    assert (right["prompt_tokens"], right["completion_tokens"], right["total_tokens"]) == (1000, 100, 1100)
    assert right["usd"] == pytest.approx((1000 * 0.15 + 100 * 0.6) / 1e6)
    assert (right["judge_calls"], right["judge_tokens"], right["extract_tokens"]) == (1, 52, 52)


@pytest.mark.parametrize(
    ("records", "cell", "message"),
    [
        (RECORDS[:3], CELL, r"1 of 4 ids missing, such as '3' \(seed 0\)"),
        ([*RECORDS, RECORDS[0]], CELL, "1 of 4 ids duplicated, such as '0'"),
        ([*RECORDS, record("9", "x")], CELL, "1 of 4 ids foreign, such as '9'"),
        (RECORDS, replace(CELL, seeds=(0, 1)), "4 of 8 ids missing"),
        (RECORDS, replace(CELL, run="other"), "belongs to run 'r'"),
        ([*RECORDS[:3], replace(RECORDS[3], corpus_hash="d")], CELL, "more than one corpus"),
        (RECORDS, replace(CELL, gold={"0": CELL.gold["0"]}), "3 of 4 ids without gold"),
    ],
)
def test_wrong_ids_are_refused_before_any_call(records, cell, message):
    client = Client()
    with pytest.raises(DataError, match=message):
        run(records, cell, client)
    assert client.roles == []


def test_errors_of_the_run_pass_and_those_of_a_request_are_recorded():
    with pytest.raises(ExceptionGroup) as stopped:
        run(client=Client(ReplayMiss("not stored")), recordable=(Overflow,), unanswered=(Silence,))
    assert stopped.group_contains(ReplayMiss, match="not stored")
    rows = run(client=Client(Overflow("too long")), recordable=(Overflow,))
    assert (rows[0]["judge_reply"], rows[0]["judge_unparsed"], rows[0]["llm_acc"]) == (
        "[Overflow: too long]",
        True,
        0,
    )
    assert rows[0]["short"] == ""
    with pytest.raises(ConfigError, match="no price for model"):
        run(cell=replace(CELL, reader_model="unlisted"))


class Unheard(Client):
    """Gives no answer to the first ``times`` calls."""

    def __init__(self, times):
        super().__init__()
        self.times = times

    async def chat(self, messages, **options):
        answer = await super().chat(messages, **options)
        if len(self.roles) <= self.times:
            raise Silence(f"call {len(self.roles)}")
        return answer


def test_after_a_call_without_answer_the_others_are_asked_and_then_the_cell_is_refused():
    client = Unheard(2)
    with pytest.raises(Unjudged, match="2 calls of the judge got no answer, the first: call 1") as error:
        run(client=client, concurrency=1, unanswered=(Silence,))
    assert error.value.count == 2 and Counter(client.roles) == {"extract": 1, "judge": 2}


def test_a_judge_that_is_down_is_not_asked_to_the_end():
    many = tuple(map(str, range(50)))
    cell = replace(CELL, ids=many, gold={q: gold(q, "Kesta") for q in many})
    client = Unheard(99)
    with pytest.raises(ExceptionGroup) as stopped:
        run([record(q, "Kesta", short="Kesta") for q in many], cell, client, concurrency=1, unanswered=(Silence,))
    assert stopped.group_contains(Unjudged, match="6 calls") and len(client.roles) == 6


def test_extraction_may_have_its_own_client():
    judge, extract = Client(), Client()
    run(client=judge, extract_client=extract)
    assert (judge.roles, extract.roles) == (["judge", "judge"], ["extract"])


def test_a_missing_marker_falls_back_to_the_last_line():
    rows = run([record("0", "First I looked.\nKesta\n"), *RECORDS[1:]])
    assert (rows[0]["short"], rows[0]["em"]) == ("Kesta", 1)


def test_metrics_count_every_question():
    rows = run()
    m = aggregate.metrics(rows, "m")
    assert (m["n"], m["n_ok"], m["em"], m["judge"], m["seeds"]) == (4, 3, 0.25, "m", [0])
    assert (m["support_recall"], m["forced"], m["judge_calls"], m["agreement"]) == (0.5, 0.0, 2, 1.0)
    assert json.dumps(m)
    with pytest.raises(DataError, match="no score rows"):
        aggregate.metrics([], "m")
    with pytest.raises(DataError, match="2 cells"):
        aggregate.metrics([rows[0], rows[1] | {"run": "other"}], "m")


def test_seeds_are_averaged_within_questions():
    two = [
        replace(r, seed=s, answer="Kesta", short="Kesta", mode="short", status="ok")
        for r in RECORDS[:2]
        for s in (0, 1)
    ]
    two[1] = replace(two[1], answer="Orlin", short="Orlin")
    rows = run(two, replace(CELL, ids=("0", "1"), seeds=(0, 1)))
    m = aggregate.metrics(rows, "m")
    assert (m["n"], m["n_ok"], m["em"], m["seeds"]) == (2, 2, 0.25, [0, 1])
    assert aggregate.per_question(rows, "em") == {"0": 0.5, "1": 0.0}
    found = aggregate.interval(rows, "em")
    assert (found.mean, found.n) == (0.25, 2)


def test_the_final_prompt_is_the_last_final_call():
    events = [Event(1, "final", {"evidence_tokens": n}) for n in (90, 40)]
    rows = run([record("0", "x", events=tuple(events)), *RECORDS[1:3], record("3", "", events=tuple(events[:1]))])
    assert [r["final_prompt_tokens"] for r in rows] == [40, None, None, 90]
    assert aggregate.metrics(rows, "m")["final_prompt_tokens"] == 65
    assert aggregate.metrics(run(), "m")["final_prompt_tokens"] is None


def test_unmapped_support_is_null_and_left_out_of_the_mean():
    lost = replace(CELL, gold={**CELL.gold, "0": Gold("0", ("Kesta",), ("p8",), "2hop", 2)})
    rows = run(cell=lost)
    assert (rows[0]["support_recall"], rows[0]["support_unmapped"], rows[0]["hop_found"]) == (None, 1, [None])
    assert aggregate.mean(rows, "support_recall") == 0.5
    assert aggregate.nest({("d", "s", "r"): {"em": 1}}) == {"d": {"s": {"r": {"em": 1}}}}
