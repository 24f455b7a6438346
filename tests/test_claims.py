"""The ledger of claims: every verdict, every kind of test, and that no claim is decided by another reader."""

from __future__ import annotations

import json
import shutil

import claims_fixture as made
import numpy as np
import pytest
import report_fixture
from scipy.stats import binom, binomtest, norm

from multihop import jsonl
from multihop.errors import ConfigError, DataError
from multihop.evaluation.statistics import bootstrap_mean
from multihop.report import claims, ledger
from multihop.report.claims_tables import Claims
from multihop.report.deciding import Estimate, decides, joined, less, needed, quorum, widened
from multihop.report.expected import PAPERS
from multihop.report.load import Report
from multihop.report.predicates import Range

N = 40
SAMPLES = made.SAMPLES
HIGHER = {"kind": "difference", "first": "executionrag", "second": "arag", "metric": "llm_acc", "above": 0}


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return made.project(tmp_path_factory.mktemp("own"), [made.claim(HIGHER)], N)


@pytest.fixture
def root(template, tmp_path):
    """A project in the paper's own setting with 40 questions, all answered rightly by both systems."""
    shutil.copytree(template, tmp_path / "p")
    return tmp_path / "p"


def some(count, of=N):
    return [i < count for i in range(of)]


# -- verdicts


def test_reproduced(root):
    made.cell(root, "arag", some(20))
    row = made.only(root)
    assert (row["verdict"], row["here"]["answer"], row["missing"]) == ("reproduced", "yes", [])
    assert row["here"]["value"] == 50 and row["here"]["speaking"] == 20 and row["here"]["n"] == N


def test_contradicted(root):
    made.cell(root, "executionrag", some(20))
    row = made.only(root)
    assert row["verdict"] == "contradicted" and row["here"]["answer"] == "no"
    assert row["here"]["interval"][1] < 0 and row["notes"][0].startswith("Against the paper: LLM-Acc")


def test_inconclusive_says_how_many_questions_it_takes(root):
    made.cell(root, "arag", [i % 10 != 0 for i in range(N)])
    made.cell(root, "executionrag", [i % 20 != 1 for i in range(N)])
    row = made.only(root)
    assert row["verdict"] == row["here"]["answer"] == "inconclusive"
    low, high = row["here"]["interval"]
    assert low < 0 < high and row["here"]["value"] == pytest.approx(5)
    # (z_alpha/2 + z_power)^2 x variance / difference^2, by hand: 4 gained, 2 lost of 40
    variance = (6 / 40 - 0.05**2) * 1e4
    by_hand = (norm.ppf(0.975) + norm.ppf(0.8)) ** 2 * variance / 5**2
    assert row["here"]["n_needed"] == pytest.approx(by_hand, rel=0.25)
    assert any(f"about {row['here']['n_needed']:,} would" in note for note in row["notes"])


def test_not_run_names_the_run(root):
    made.rewrite(root, made.claim({**HIGHER, "second": "lag"}))
    row = made.only(root)
    assert row["verdict"] == row["here"]["answer"] == "not run"
    assert row["missing"] == ["no run lag in params.yaml"]


def test_not_decidable(root):
    made.rewrite(root, made.claim(not_decidable="The text defines no dose."))
    row = made.only(root)
    assert row["verdict"] == row["here"]["answer"] == "not decidable from the paper"
    assert row["why"] == "The text defines no dose."


@pytest.mark.parametrize("right", [20, 40])
def test_a_claim_is_never_decided_by_another_reader(tmp_path, right):
    root = made.project(tmp_path, [made.claim(HIGHER)], N, reader="gpt-4o-mini")
    made.cell(root, "arag", some(right))
    row = made.only(root)
    assert row["verdict"] == "not run"
    assert row["missing"] == [f"reader {made.MODEL} in place of gpt-4o-mini"]
    assert row["here"]["answer"] == ("yes" if right == 20 else "inconclusive")


def test_nor_by_fewer_questions_or_a_generated_world(root):
    made.cell(root, "arag", some(20, 38))
    made.cell(root, "executionrag", some(38, 38))
    row = made.only(root)
    assert row["verdict"] == "not run" and row["here"]["answer"] == "yes"
    assert row["missing"] == [f"n = 38 instead of 40 for {run} on MuSiQue" for run in ("ExecutionRAG", "A-RAG")]
    params = (root / "params.yaml").read_text().replace("source: local", "source: demo")
    (root / "params.yaml").write_text(params)
    assert "a generated world, not the benchmarks" in made.only(root)["missing"]


def test_a_claim_about_the_data_is_not_answered_by_other_data(root):
    test = {"kind": "level", "system": "corpus", "metric": "fingerprint_match", "at_most": 92.9}
    made.rewrite(root, made.claim(test, depends_on="data"))
    assert made.only(root)["verdict"] == "contradicted"  # the same data: a count needs no interval
    params = (root / "params.yaml").read_text().replace("source: local", "source: demo")
    (root / "params.yaml").write_text(params)
    row = made.only(root)
    assert row["verdict"] == row["here"]["answer"] == "not run" and row["notes"] == []
    assert row["here"]["counts"] == {} and {p["answer"] for p in row["here"]["parts"]} == {"not run"}


# -- few questions, no questions, no spread


def test_four_unanimous_questions_decide_nothing(root):
    for count, answer in ((4, "inconclusive"), (5, "inconclusive"), (6, "yes")):
        made.cell(root, "arag", some(0, count))
        made.cell(root, "executionrag", some(count, count))
        assert made.only(root)["here"]["answer"] == answer
    assert binomtest(5, 5).pvalue > 0.05 > binomtest(6, 6).pvalue


@pytest.mark.parametrize("count", [0, 1])
def test_no_question_and_one_question(root, count):
    for run in ("arag", "executionrag"):
        made.cell(root, run, some(count, count))
    row = made.only(root)
    assert row["here"]["answer"] == ("not run" if count == 0 else "inconclusive")
    json.dumps(row, allow_nan=False)


def test_all_alike_is_not_a_difference_of_nothing_but_what_n_can_show(root):
    tie = {**HIGHER, "above": None, "at_least": -2, "at_most": 2}
    made.rewrite(root, made.claim({k: v for k, v in tie.items() if v is not None}))
    row = made.only(root)
    assert row["here"]["answer"] == "inconclusive" and row["here"]["value"] == 0
    share = binomtest(0, N).proportion_ci(0.95, "exact").high
    assert row["here"]["interval"] == pytest.approx([-100 * share, 100 * share])
    assert row["here"]["n_needed"] > 150  # 1 - 0.025^(1/n) < 0.02


def test_all_wrong_and_all_right(root):
    share = {"kind": "difference", "first": "executionrag", "second": "arag", "metric": "missing_evidence_share"}
    made.rewrite(root, made.claim({**share, "below": 0}))
    row = made.only(root)
    assert row["here"]["answer"] == "inconclusive" and "undefined" in row["here"]["why"]
    assert row["here"]["n_needed"] is None
    for run in ("arag", "executionrag"):
        made.cell(root, run, some(0))
    assert made.only(root)["here"]["answer"] == "inconclusive"


def test_a_run_without_events(root):
    more = {"kind": "difference", "first": "arag", "second": "vanilla_k5", "metric": "guidance_tokens", "below": 0}
    made.rewrite(root, made.claim(more))
    row = made.only(root)
    assert row["here"]["answer"] == "not run" and "no 'inject' event" in row["missing"][0]
    closed = {"kind": "level", "system": "arag", "metric": "relabelled_rate", "above": 0}
    made.rewrite(root, made.claim(closed))
    made.cell(root, "arag", some(20))
    assert "keeps no register" in made.only(root)["here"]["why"]


def test_once_is_proof_that_it_happens_and_never_is_not_proof_of_never(root):
    closed = {"reason": "3b", "register_closed": True}
    made.rewrite(root, made.claim({"kind": "level", "system": "executionrag", "metric": "relabelled_rate", "above": 0}))
    for wrong, answer in ((0, "inconclusive"), (1, "yes")):
        made.cell(root, "executionrag", some(3 - wrong, 3), failure=closed)
        assert made.only(root)["here"]["answer"] == answer


@pytest.mark.parametrize("bound", [{"at_least": 33.7}, {"at_most": 33.7}])
def test_a_saving_is_not_decided_by_one_question(root, bound):
    cut = {"kind": "cut", "first": "executionrag", "second": "arag", "metric": "missing_evidence_rate"}
    made.rewrite(root, made.claim({**cut, **bound}))
    for wrong in (1, 5, 9):
        made.cell(root, "arag", [i >= wrong for i in range(N)])
        here = made.only(root)["here"]
        # However many they are: where all of them are spared, the resampled saving has no width at all.
        assert here["answer"] == "inconclusive" and here["interval"] == [100, 100] and here["n_needed"] is None
    made.cell(root, "arag", [i >= 24 for i in range(N)])
    made.cell(root, "executionrag", [i >= 3 for i in range(N)])
    assert made.only(root)["here"]["answer"] == ("yes" if "at_least" in bound else "no")


def test_a_share_of_failures_is_not_decided_by_one_failure(root):
    share = {"kind": "difference", "first": "executionrag", "second": "arag", "metric": "missing_evidence_share"}
    made.rewrite(root, made.claim({**share, "at_most": -20.4}))
    for wrong, answer in ((1, "inconclusive"), (5, "inconclusive"), (30, "yes")):
        made.cell(root, "arag", [i >= wrong for i in range(N)])
        made.cell(root, "executionrag", [i >= wrong for i in range(N)], failure={"category": "gave_up"})
        here = made.only(root)["here"]
        assert (here["answer"], here["value"], here["n"], here["speaking"]) == (answer, -100, N, wrong)
    # The exact bound is of the failures: 30 of 30, not of the 40 questions.
    assert here["interval"][1] == pytest.approx(-100 + 200 * binomtest(0, 30).proportion_ci(0.95, "exact").high)


def test_no_spread_and_no_bound_decides_nothing(root):
    made.rewrite(root, made.claim({**CALLS, "at_least": 1}))
    here = made.only(root)["here"]
    assert (here["answer"], here["value"], here["interval"]) == ("inconclusive", 3, [3, 3])
    rows = [{"retrieval_calls": 2 + i % 2} for i in range(N)]
    made.cell(root, "executionrag", [True] * N, rows=rows)
    assert made.only(root)["here"]["answer"] == "yes"
    steady, varied = Estimate(3.0, 3.0, 3.0, 40, 40), Estimate(2.0, 1.8, 2.2, 40, 40)
    assert decides(less(varied, steady, 0.05), Range(below=0), 0.05) is None
    assert decides(less(varied, Estimate(3.0, 2.9, 3.1, 40, 40), 0.05), Range(below=0), 0.05) is True
    one = Estimate(3.0, 2.9, 3.1, 1, 1)
    assert decides(less(varied, one, 0.05), Range(at_least=-2, at_most=2), 0.05) is None


def test_different_judges_are_refused(root):
    made.cell(root, "arag", some(20))
    path = root / "results/metrics.json"
    metrics = json.loads(path.read_text())
    metrics["musique"]["minilm"]["arag"]["judge"] = "another-judge"
    path.write_text(json.dumps(metrics))
    row = made.only(root)
    assert row["here"]["answer"] == "not run"
    assert f"judge '{made.MODEL}' and 'another-judge'" in row["missing"][0]


def test_what_we_ask_besides_is_in_no_count_of_the_papers(root):
    made.cell(root, "executionrag", some(20))
    made.rewrite(root, made.claim(HIGHER), made.claim(HIGHER, id="asked", ours=True))
    content = claims.claims(Report(root))["papers"]["executionrag"]
    assert content["verdicts"]["contradicted"] == content["here"]["no"] == content["asked_by_us"] == 1
    stated, asked = content["claims"]
    assert stated["notes"][0].startswith("Against the paper") and asked["notes"][0].startswith("No: LLM-Acc")
    page = Claims(Report(root))
    assert page.counts().frame["claims"].iloc[0] == page.counts().frame["asked by us besides"].iloc[0] == "1"
    says = page.ledger("executionrag").frame["the paper says"]
    assert [t.startswith("(not stated; asked by us)") for t in says] == [False, True]


def test_different_questions_are_refused(root):
    made.cell(root, "arag", some(20), first=5)
    row = made.only(root)
    assert row["here"]["answer"] == "not run" and "cannot be compared" in row["here"]["why"]
    assert "5 of 40 questions are only in" in row["here"]["why"]


# -- kinds of tests


HOPS = [{"hops": 2 + i % 3, "retrieval_calls": 2 + i % 3 + (i % 5 == 0)} for i in range(N)]
CALLS = {"kind": "level", "system": "executionrag", "metric": "retrieval_calls"}
TREND = {"kind": "trend", "of": CALLS, "groups": ["2-hop", "3-hop", "4-hop"]}
FLAT = {"kind": "flat", "of": CALLS, "groups": ["2-hop", "3-hop", "4-hop"]}
BY_TYPE = {"kind": "largest", "of": CALLS, "over": "groups", "at": "4-hop", "among": ["2-hop", "3-hop"]}
MORE = {"kind": "level", "system": "executionrag", "metric": "llm_acc"}
MISSED = {"metric": "missing_evidence_rate", "system": "arag"}
FALLS = {
    "kind": "combination",
    "terms": [{**MISSED, "weight": -1}, {**MISSED, "system": "executionrag", "weight": 1}],
}
LESS = {"kind": "cut", "first": "executionrag", "second": "arag", "metric": "total_tokens"}
PARETO = {
    "kind": "dominates", "first": "executionrag", "second": "arag", "quality": "f1", "costs": ["total_tokens"],
}  # fmt: skip
BEST = {"kind": "best", "system": "executionrag", "among": ["arag", "vanilla_k5"], "metric": "llm_acc"}


@pytest.mark.parametrize(
    ("test", "answer"),
    [
        ({**MORE, "at_least": 85}, "yes"),
        ({**MORE, "below": 60}, "no"),
        ({**MORE, "above": 98}, "inconclusive"),
        (HIGHER, "yes"),
        ({**LESS, "at_least": 20}, "yes"),
        ({**LESS, "at_least": 40}, "no"),
        ({**LESS, "at_least": 29.8}, "inconclusive"),
        ({**FALLS, "below": 0}, "yes"),
        ({**FALLS, "above": -10}, "no"),
        ({**FALLS, "below": -55}, "inconclusive"),
        ({**TREND, "direction": "rising"}, "yes"),
        ({**TREND, "direction": "falling"}, "no"),
        ({**FLAT, "within": 3}, "yes"),
        ({**FLAT, "within": 0.5}, "no"),
        ({**FLAT, "within": 2}, "inconclusive"),  # 4-hop lies 2 above 2-hop
        (BY_TYPE, "yes"),
        ({**BY_TYPE, "kind": "smallest"}, "no"),
        ({**BY_TYPE, "of": {**MORE}}, "inconclusive"),
        ({**BEST, "among": ["arag"]}, "yes"),
        (BEST, "inconclusive"),
        ({**BEST, "system": "arag", "among": ["executionrag", "vanilla_k5"]}, "no"),
        (PARETO, "yes"),
        ({**PARETO, "first": "arag", "second": "executionrag"}, "no"),
        ({**PARETO, "costs": ["total_tokens", "retrieved_tokens"]}, "inconclusive"),
        ({"kind": "all_of", "tests": [HIGHER, {**MORE, "below": 60}]}, "no"),
        ({"kind": "any_of", "tests": [HIGHER, {**MORE, "below": 60}]}, "yes"),
        ({"kind": "any_of", "tests": [{**MORE, "above": 98}, {**MORE, "below": 60}]}, "inconclusive"),
    ],
)
def test_each_kind(root, test, answer):
    tokens = [{"total_tokens": 700 + 20 * (i % 5)} for i in range(N)]
    made.cell(root, "arag", some(20), rows=tokens)
    made.cell(root, "executionrag", [True] * N, rows=HOPS)
    rows = [{**row, "total_tokens": 500 + 10 * (i % 5)} for i, row in enumerate(HOPS)]
    made.cell(root, "executionrag", [True] * N, rows=rows)
    # vanilla_k5 is right everywhere too: a tie, and a tie decides nothing.
    made.rewrite(root, made.claim(test))
    assert made.only(root)["here"]["answer"] == answer


def test_one_dataset_of_several_is_asked_at_a_stricter_level(root):
    """Alone 7 of 40 lost questions exclude a gain; as one of twelve parts they could be an accident."""
    test = {**HIGHER, "datasets": ["musique"]}
    made.cell(root, "executionrag", some(N - 6))
    made.rewrite(root, made.claim(test))
    assert made.only(root)["here"]["answer"] == "no"
    made.rewrite(root, made.claim({"kind": "all_of", "tests": [test] * 12}))
    row = made.only(root)
    assert row["here"]["answer"] == "inconclusive" and quorum(0.05 / 12) > 6 == quorum(0.05)
    assert row["here"]["interval"][1] < 0  # the 95 % interval alone would have said no


def test_joined():
    assert joined("all", ["yes", "not run", "no"]) == "no"
    assert joined("all", ["yes", "not run", "inconclusive"]) == "not run"
    assert joined("all", ["yes", "inconclusive"]) == "inconclusive"
    assert joined("all", ["yes", "yes"]) == joined("any", ["yes", "not run", "no"]) == "yes"
    assert joined("any", ["no", "no"]) == "no"


def test_reachability_is_read(root):
    test = {"kind": "reachable", "system": "arag", "share": "askable", "above": 0}
    made.rewrite(root, made.claim(test))
    row = made.only(root)
    assert row["here"]["answer"] == "not run" and "multihop certify" in row["missing"][0]
    fate = {"count": 9, "share": 0.45, "low": 0.2, "high": 0.7}
    # What only the passage itself gives away is no drift: it is not read.
    whole = {"count": 20, "share": 1.0, "low": 1.0, "high": 1.0}
    entry = {"excuse": None, "groups": {"all": {"with_missing": 15, "never_asked": whole, "askable": fate}}}

    def write():
        content = {"rules": {}, "shares": {}, "runs": {"musique": {"arag": {"minilm": entry}}}}
        jsonl.write_json(root / "results/reachability.json", content)

    write()
    row = made.only(root)
    assert (row["verdict"], row["here"]["value"], row["here"]["interval"]) == ("reproduced", 45, [20, 70])
    assert (row["here"]["n"], row["here"]["speaking"]) == (N, 15)
    made.rewrite(root, made.claim({**test, "above": 25}))
    assert made.only(root)["here"]["answer"] == "inconclusive"
    entry["groups"]["all"]["askable"] = {"count": 0, "share": None, "low": None, "high": None}
    write()
    assert made.only(root)["here"]["answer"] == "inconclusive"
    entry["excuse"] = "no search recorded"
    write()
    assert made.only(root)["missing"] == ["arag on musique / minilm: no search recorded"]


def test_relabelling_shows(root):
    """Missing evidence falls only because rule 3b calls it a reasoning error."""
    relabelled = {"category": "reasoning_error", "reason": "3b", "register_closed": True}
    made.cell(root, "arag", some(20))
    made.cell(root, "executionrag", some(20), failure=relabelled)
    falls = {"kind": "difference", "first": "executionrag", "second": "arag", "metric": "missing_evidence_rate"}
    made.rewrite(root, made.claim({**falls, "below": 0}))
    row = made.only(root)
    assert row["verdict"] == "reproduced"
    other = row["other_counts"]["rule 3b off (one labelling for all systems)"]
    assert (other["answer"], other["value"], row["here"]["value"]) == ("inconclusive", 0, -50)
    assert any("hangs on how failures are counted" in note for note in row["notes"])
    page = Claims(Report(root)).ledger("executionrag").frame
    assert f"inconclusive, {other['shown']}; the string rule" in page.loc["invented", "counted otherwise"]
    # What was retrieved is no matter of labels: rule 3b has no part in it, nor the judge.
    made.rewrite(root, made.claim({**falls, "metric": "gold_unretrieved_rate", "below": 0}))
    assert made.only(root)["other_counts"] == {}


def test_a_local_reader_has_no_price(root):
    made.rewrite(root, made.claim({**HIGHER, "metric": "usd"}))
    for usd, answer in ((0.0, "not run"), (0.01, "inconclusive")):
        for run in ("arag", "executionrag"):
            made.cell(root, run, [True] * N, rows=[{"usd": usd}] * N)
        row = made.only(root)
        assert row["here"]["answer"] == answer
        assert row["missing"] == ([] if usd else ["a local reader has no price"])


# -- the arithmetic


def test_intervals_without_width_get_the_exact_bound():
    for n in (1, 4, 20, 500):
        e = widened(Estimate(100.0, 100.0, 100.0, n, n, (0, 100)), 0.05)
        exact = binomtest(n, n).proportion_ci(0.95, "exact").low
        assert e.low == pytest.approx(100 * exact) and e.high == 100


def test_unlike_questions_are_compared_by_newcombes_interval():
    """His example, 56 of 70 against 48 of 80, with Wilson's intervals (1998, Statistics in Medicine 17, method 10)."""
    def wilson(k, n):
        ci = binomtest(k, n).proportion_ci(0.95, "wilson")
        return Estimate(k / n, ci.low, ci.high, n, n)

    e = less(wilson(56, 70), wilson(48, 80), 0.05)
    assert (e.low, e.high) == pytest.approx((0.0524, 0.3339), abs=5e-5)


def test_two_equal_systems_are_seldom_told_apart():
    """The level is kept where it is hardest, with few questions: neither side wins in more than 2.5 %, bar chance."""
    rng = np.random.default_rng(7)
    for n, discordance in ((8, 0.5), (40, 0.2)):
        found = []
        for _ in range(600):
            x = np.where(rng.random(n) < discordance, np.where(rng.random(n) < 0.5, 100.0, -100.0), 0.0)
            i = bootstrap_mean(x, resamples=SAMPLES)
            e = widened(Estimate(i.mean, i.low, i.high, n, int((x != 0).sum()), (-100, 100)), 0.05)
            found.append(decides(e, Range(above=0), 0.05))
        for answer in (True, False):
            assert sum(f is answer for f in found) <= binom.ppf(0.999, len(found), 0.025)


def test_decides_at_the_boundary():
    e = Estimate(2.0, 0.0, 4.0, 50, 50)
    assert decides(e, Range(at_least=0), 0.05) is True and decides(e, Range(above=0), 0.05) is None
    assert decides(e, Range(below=0), 0.05) is decides(e, Range(at_most=0), 0.05) is None
    assert decides(Estimate(2.0, 0.1, 4.0, 50, 50), Range(below=0), 0.05) is False
    assert needed(Estimate(0.0, -1.0, 1.0, 50, 50), Range(above=0), 0.05) is None


# -- the file


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ({"sayz": "x"}, "invented: sayz: unknown key 'sayz'; did you mean 'says'?"),
        ({"settings": ["mian"]}, "unknown role 'mian'; did you mean 'main'?"),
        ({"groups": ["5-hop"]}, "unknown group '5-hop'"),
        ({"datasets": ["musik"]}, "datasets"),
        ({"printed": ["p1_999"]}, "unknown figure 'p1_999'"),
        ({"not_decidable": "why"}, "either a test, or not_decidable"),
        ({"test": {**HIGHER, "metric": "llm_ac"}}, "unknown metric 'llm_ac'; did you mean 'llm_acc'?"),
        ({"test": {**HIGHER, "second": "aragg"}}, "unknown system 'aragg'; did you mean 'arag'?"),
        ({"test": {**HIGHER, "second": "executionrag_minus_arag"}}, "unknown system"),
        ({"test": {**HIGHER, "above": None}}, "needs a bound"),
        ({"test": {**HIGHER, "at_least": 1}}, "exclude each other"),
        ({"test": {**HIGHER, "below": -3}}, "no value lies between"),
        ({"test": {**HIGHER, "kind": "diference"}}, "diference"),
        ({"test": {**TREND, "direction": "rising", "of": {**CALLS, "above": 1}}}, "takes no bound"),
        ({"test": {**FLAT, "within": 1, "of": {**CALLS, "above": 1}}}, "takes no bound"),
        ({"test": {**FLAT, "within": 0}}, "within"),
        ({"test": {**BY_TYPE, "among": ["6-hop"]}}, "unknown group '6-hop'"),
        ({"test": {**BY_TYPE, "over": "datasets", "at": "squad"}}, "unknown dataset 'squad'"),
    ],
)
def test_mistakes_are_named(root, patch, said):
    made.rewrite(root, {**made.claim(HIGHER), **patch})
    with pytest.raises(ConfigError) as e:
        claims.claims(Report(root))
    assert said in str(e.value) and "invented" in str(e.value)


def test_two_claims_of_one_id_and_a_missing_file(root):
    made.rewrite(root, made.claim(HIGHER), made.claim(HIGHER))
    with pytest.raises(ConfigError, match="invented: two claims of one id"):
        claims.claims(Report(root))
    (root / ledger.FILE).write_text("- nothing\n")
    with pytest.raises(ConfigError, match="expected a mapping"):
        claims.claims(Report(root))
    (root / ledger.FILE).unlink()
    with pytest.raises(ConfigError, match="no such file"):
        claims.claims(Report(root))


# -- the papers' claims


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """results/claims.json of the invented project with both papers' runs."""
    root = report_fixture.build_dynakrag(tmp_path_factory.mktemp("both"), statistics={"resamples": 99})
    return Report(root), claims.write(Report(root))


def test_every_claim_is_evaluated_and_none_decided(written):
    report, content = written
    names = [c["id"] for p in content["papers"].values() for c in p["claims"]]
    assert len(names) == len(set(names)) >= 40
    for paper in content["papers"].values():
        stated = len(paper["claims"]) - paper["asked_by_us"]
        assert sum(paper["verdicts"].values()) == sum(paper["here"].values()) == stated
        assert paper["verdicts"]["reproduced"] == paper["verdicts"]["contradicted"] == 0
        for c in paper["claims"]:
            assert c["verdict"] in ("not run", "not decidable from the paper") and (c["missing"] or c["why"])
            assert c["here"]["why"] and c["contradicted_by"] and c["place"]
            for part in c["here"].get("parts", ()):
                assert part["answer"] == "not run" or "interval" in part or "remark" in part
    json.dumps(content, allow_nan=False)
    text = (report.root / "results/claims.json").read_text()
    assert json.loads(text) == json.loads(json.dumps(content))
    claims.write(Report(report.root))
    assert (report.root / "results/claims.json").read_text() == text


def test_most_claims_ran(written):
    _, content = written
    for paper in content["papers"].values():
        ran = sum(count for answer, count in paper["here"].items() if not answer.startswith("not "))
        assert ran > len(paper["claims"]) / 3


def test_a_project_without_results(tmp_path):
    root = report_fixture.build_dynakrag(tmp_path, statistics={"resamples": 99})
    shutil.rmtree(root / "results")
    with pytest.raises(DataError, match=r"results/scores: missing.*run `dvc repro`"):
        claims.write(Report(root))
    assert not (root / "results/claims.json").exists()
    for paper in claims.claims(Report(root))["papers"].values():
        assert set(filter(paper["here"].get, paper["here"])) <= {"not run", "not decidable from the paper"}


def test_the_papers_own_figures(written):
    """By hand from Tables 1 and 2 of paper 2, and from the printed counts and shares of paper 1."""
    found = {c["id"]: c for p in written[1]["papers"].values() for c in p["claims"]}
    answers = {name: c["own_figures"]["answer"] for name, c in found.items() if "own_figures" in c}
    assert answers["p2_first_f1"] == answers["p2_full_is_best"] == answers["p2_s2g_tokens"] == "yes"
    assert answers["p2_continuation_helps_alone"] == "no"  # 0.5722 after 0.5762
    ours = [name for name, c in found.items() if "ours" in c]
    assert ours == ["p2_ranking_helps_alone", "p2_continuation_helps_alone"]
    assert found["p2_continuation_helps_alone"]["notes"][0].startswith("The paper does not state it")
    assert answers["p2_against_s2g_by_hops"] == "yes"  # 0.3694 after 0.3568, 0.1798 after 0.2060
    assert {name for name, a in answers.items() if a == "no"} - {*ours} == {"p1_verification_dominates"}
    assert answers["p1_verification_dominates"] == "no"  # 25.9 + 13.1 < 43.9
    assert answers["p1_missing_falls"] == answers["p1_missing_falls_by"] == answers["p1_error_falls_less"] == "yes"
    assert answers["p1_2wiki_inference_hardest"] == "not printed"
    # 42.8 against 42.3 % of 1,000; 0.1986 against 0.1974 of 2,417 may be 9 answers of three trainings
    assert "5 of 1,000 questions" in found["p1_second_embedder_all"]["notes"][0]
    assert f"p = {binomtest(5, 5).pvalue:.2f}" in found["p1_second_embedder_all"]["notes"][0]
    few = [name for name, c in found.items() if "too_few" in c.get("own_figures", {})]
    assert few == ["p1_second_embedder_all", "p1_updates_matter_more"]  # 48.7 against 48.3: 4 questions


def test_the_page_lists_every_claim(written):
    report, content = written
    page = Claims(report)
    for name in PAPERS:
        table = page.ledger(name)
        assert list(table.frame.index) == [c["id"] for c in content["papers"][name]["claims"]]
        assert set(table.frame["verdict"]) <= set(claims.VERDICTS.values())
    assert list(page.missing().frame.index) == [str(i) for i in dict.fromkeys(page.reasons.values())]
    assert len(set(page.missing().frame["what is missing"])) == len(page.missing().frame)
    runs = {c["id"]: c["runs"] for p in content["papers"].values() for c in p["claims"]}
    assert "ircot_p1" in runs["p1_best_llm_acc"] and "ircot" in runs["p2_first_f1"]
    assert len(page.readings().frame) == sum(len(p["claims"]) for p in content["papers"].values())
    counts = page.counts().frame
    first = content["papers"][PAPERS[0]]
    assert next(iter(counts["claims"])) == str(len(first["claims"]) - first["asked_by_us"])
    assert "p1_verification_dominates" in page.notes().frame.index


def test_the_page_without_the_file_or_with_a_damaged_one(root):
    counts = Claims(Report(root)).counts().frame
    assert counts.loc[("ExecutionRAG", "verdict"), "claims"] == "1"
    (root / "results/claims.json").write_text("{")
    with pytest.raises(DataError, match="damaged"):
        Claims(Report(root))
