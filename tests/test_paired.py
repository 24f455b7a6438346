"""Two runs on the same questions: outcomes, moves, tests and intervals against independent computations; refusals."""

import warnings
from itertools import product

import numpy as np
import pytest
from scipy.stats import binomtest, bootstrap

from multihop.analysis import paired
from multihop.errors import ConfigError, DataError
from multihop.evaluation.statistics import (
    bootstrap_difference,
    detectable_difference,
    mcnemar,
    mcnemar_power,
    questions_needed,
    sign_flip,
)

MISSING, RELABELLED = ("missing_evidence", "missing_evidence"), ("reasoning_error", "missing_evidence")


def side(run, outcomes, *, seeds=(0,), dataset="musique", setting="s", judge="j", corpus="c", found=None, errors=()):
    """``outcomes``: question -> "right", a category, or (category, symmetric one); ``found`` of 2 gold passages."""
    scores, failures = [], []
    for (qid, outcome), seed in product(outcomes.items(), seeds):
        outcome = outcome[seeds.index(seed)] if isinstance(outcome, list) else outcome
        right = float(outcome == "right")
        category, symmetric = outcome if isinstance(outcome, tuple) else (outcome, outcome)
        key, got = {"qid": qid, "seed": seed}, (found or {}).get(qid, 2)
        support = {"support_total": 2, "support_unmapped": 0, "support_found": got}
        status = "error" if qid in errors else "ok"
        scores.append({**key, **support, "status": status, "llm_acc": right, "rule_acc": right, "f1": 0.3 + right / 2})
        if not right:
            cause = {"category": category, "category_symmetric": symmetric, "wrong_and_missing": got < 2}
            failures += [{**key, **cause, "judge": j} for j in ("llm", "rule")]
    return paired.Side(run, dataset, setting, judge, corpus, scores, failures)


FIRST = side(
    "arag",
    {"a": "right", "b": "missing_evidence", "c": "missing_evidence", "d": "missing_evidence", "e": "missing_evidence",
     "f": "right", "g": "gave_up", "h": "judge_error"},
    found={"b": 1, "c": 0, "d": 1, "e": 1},
)  # fmt: skip
SECOND = side(
    "executionrag",
    {"a": "right", "b": "right", "c": RELABELLED, "d": "reasoning_error", "e": "missing_evidence",
     "f": "missing_evidence", "g": "right", "h": "right"},
    found={"c": 1, "e": 1, "f": 1},
)  # fmt: skip
PAIR = paired.pair(FIRST, SECOND)


# -- outcomes and moves


def test_outcomes_by_both_rules():
    assert paired.outcomes(SECOND)["c", 0] == "reasoning_error"
    assert paired.outcomes(SECOND, symmetric=True)["c", 0] == "missing_evidence"
    assert paired.outcomes(FIRST)["g", 0] == "gave_up" and paired.outcomes(FIRST)["a", 0] == "right"


def test_matrix_counts_every_question_once():
    found = paired.matrix(paired.moves([PAIR]))
    assert {k: v for k, v in found.items() if v} == {
        ("right", "right"): 1, ("right", "missing_evidence"): 1, ("gave_up", "right"): 1, ("judge_error", "right"): 1,
        ("missing_evidence", "right"): 1, ("missing_evidence", "reasoning_error"): 2,
        ("missing_evidence", "missing_evidence"): 1,
    }  # fmt: skip
    symmetric = paired.matrix(paired.moves([PAIR], symmetric=True))
    assert symmetric["missing_evidence", "missing_evidence"] == 2 and sum(symmetric.values()) == 8


def test_moves_name_the_questions():
    moved = [(m.qid, m.first, m.second) for m in paired.moves([PAIR]) if m.first != m.second]
    assert ("b", "missing_evidence", "right") in moved and "a" not in {q for q, *_ in moved} and len(moved) == 6


def test_what_became_of_the_first_runs_failures():
    by_paper = paired.conversion([PAIR])
    # b right; c relabelled with a passage missing; d a reasoning error with all found; e the same; f is new.
    assert (by_paper.had, by_paper.right, by_paper.other_found, by_paper.other_missing) == (4, 1, 1, 1)
    assert (by_paper.same, by_paper.new, by_paper.converted.mean) == (1, 1, 0.25)
    symmetric = paired.conversion([PAIR], symmetric=True)
    assert (symmetric.other_missing, symmetric.same) == (0, 2)


def test_compare_agrees_with_a_count_by_hand_and_binomtest():
    got = paired.compare([PAIR])
    assert (got.first, got.second, got.n) == (0.25, 0.5, 8)
    assert (got.test.only_first, got.test.only_second) == (1, 3)
    assert got.test.p == pytest.approx(binomtest(1, 4, 0.5).pvalue)
    assert got.difference.mean == pytest.approx(0.25)
    lacking = paired.compare([PAIR], "missing_evidence")
    assert (lacking.first, lacking.second) == (0.5, 0.25)
    assert paired.compare([PAIR], "missing_evidence", symmetric=True).second == 0.375
    assert paired.compare([PAIR], "f1").test is None


def test_the_interval_is_scipys():
    rng = np.random.default_rng(5)
    a, b = rng.random(300) < 0.4, rng.random(300) < 0.5
    options = {"paired": True, "method": "percentile", "rng": np.random.default_rng(1)}
    wanted = bootstrap((b * 1.0, a * 1.0), lambda x, y, axis=-1: (x - y).mean(axis=axis), **options)
    outcomes = [{f"q{i:03}": "right" if v else "gave_up" for i, v in enumerate(x)} for x in (a, b)]
    got = paired.compare([paired.pair(side("x", outcomes[0]), side("y", outcomes[1]))], seed=7).difference
    assert (got.low, got.high) == pytest.approx(tuple(wanted.confidence_interval), abs=0.01)


def test_gold_unretrieved_leaves_errors_and_unmapped_out():
    first = side("x", dict.fromkeys("abcd", "right"), found={"a": 1, "b": 1}, errors="b")
    second = side("y", dict.fromkeys("abcd", "right"), found={"d": 0})
    first.scores[2] |= {"support_unmapped": 2, "support_found": 0}
    got = paired.compare([paired.pair(first, second)], paired.UNRETRIEVED)
    assert (got.n, got.left_out, got.first, got.second) == (2, 2, 0.5, 0.5)
    assert (got.test.only_first, got.test.only_second) == (1, 1)


def test_pooling_keeps_equal_ids_of_two_datasets_apart():
    other = paired.pair(side("arag", {"a": "gave_up"}, dataset="hotpotqa"),
                        side("executionrag", {"a": "right"}, dataset="hotpotqa"))  # fmt: skip
    got = paired.compare([PAIR, other])
    assert (got.n, got.test.only_second) == (9, 4)
    assert {m.dataset for m in paired.moves([PAIR, other])} == {"musique", "hotpotqa"}
    with pytest.raises(DataError, match="can be pooled"):
        paired.compare([PAIR, PAIR])


# -- several seeds


def test_seeds_stay_in_their_question():
    first = side("x", {"a": ["gave_up"] * 3, "b": ["right", "gave_up", "gave_up"], "c": ["right"] * 3}, seeds=(0, 1, 2))
    second = side("y", {"a": ["right"] * 3, "b": ["right", "right", "gave_up"], "c": ["right"] * 3}, seeds=(0, 1, 2))
    pair = paired.pair(first, second)
    got = paired.compare([pair])
    assert got.n == 3 and got.difference.mean == pytest.approx((1 + 1 / 3 + 0) / 3)
    # Four discordant pairs, but two questions: sums 3 and 1, of whose 4 signings two lie as far out as 4.
    assert got.test.discordant == 4 and got.test.p == pytest.approx(0.5)
    assert got.test.p > binomtest(0, 4, 0.5).pvalue
    assert sum(paired.matrix(paired.moves([pair])).values()) == pytest.approx(3)
    assert paired.conversion([pair], category="gave_up").had == pytest.approx((3 + 2) / 3)


def test_sign_flip_is_the_share_of_all_signings():
    for sizes in ([1, 2, 3], [3, 3, 1, 0, 2], [2, -1, -1, 3, 1, 1], [1] * 7):
        signings = np.array(list(product((1, -1), repeat=len(sizes))))
        assert sign_flip(sizes) == pytest.approx(np.mean(abs(signings @ sizes) >= abs(sum(sizes))))
    assert sign_flip([]) == sign_flip([0, 0]) == 1.0
    with pytest.raises(DataError, match="whole"):
        sign_flip([0.5])


def test_with_one_seed_the_clustered_test_is_mcnemars():
    rng = np.random.default_rng(2)
    a, b = (rng.random(200) < 0.4) * 1.0, (rng.random(200) < 0.55) * 1.0
    assert sign_flip((a - b).astype(int)) == pytest.approx(mcnemar(a, b).p)
    assert mcnemar(a, b, range(200)) == mcnemar(a, b)


# -- what n can show


@pytest.mark.parametrize(("n", "difference", "discordance"), [(40, 0.2, 0.3), (150, 0.1, 0.25), (12, 0.55, 0.6)])
def test_power_is_that_of_a_simulation(n, difference, discordance):
    rng = np.random.default_rng(11)
    chances = [(discordance + difference) / 2, (discordance - difference) / 2, 1 - discordance]
    drawn = rng.multinomial(n, chances, size=6000)[:, :2]
    # p depends on the two counts alone: one test for each pair of them that was drawn.
    kinds, times = np.unique(drawn, axis=0, return_counts=True)
    rejected = [binomtest(int(a), int(a + b), 0.5).pvalue <= 0.05 if a + b else False for a, b in kinds]
    assert mcnemar_power(n, difference, discordance) == pytest.approx(np.average(rejected, weights=times), abs=0.02)


def test_the_smallest_difference_is_where_the_power_reaches_the_wanted_one():
    for n, discordance in ((100, 0.2), (500, 0.3), (1000, 0.1)):
        found = detectable_difference(n, discordance)
        assert mcnemar_power(n, found, discordance) >= 0.8 > mcnemar_power(n, found - 0.001, discordance)
    assert detectable_difference(1000, 0.2) < detectable_difference(1000, 0.2, power=0.95)
    assert detectable_difference(1000, 0.2) < detectable_difference(1000, 0.2, alpha=0.01)


def test_what_few_questions_can_never_show():
    # With n pairs the smallest two-sided p is 2 / 2**n: 0.0625 with 5, 0.03125 with 6.
    assert [detectable_difference(n) for n in (1, 4, 5)] == [None] * 3
    assert detectable_difference(6) == pytest.approx(0.8 ** (1 / 6), abs=1e-5)
    assert detectable_difference(4, 0.5) is None and detectable_difference(100, 0.0) is None
    assert detectable_difference(4, alpha=0.2) == pytest.approx(0.8 ** (1 / 4), abs=1e-5)


def test_the_number_of_questions_needed():
    # Connor 1987 by hand: (1.959964 sqrt(.2) + .841621 sqrt(.2 - .053**2))**2 / .053**2 = 556.6
    assert questions_needed(0.053, 0.2) == questions_needed(-0.053, 0.2) == 557
    for difference, discordance in ((0.053, 0.2), (0.1, 0.3)):
        needed = questions_needed(difference, discordance)
        assert mcnemar_power(needed, difference, discordance) == pytest.approx(0.8, abs=0.03)
    assert questions_needed(0, 0.2) is None
    for refused in (mcnemar_power, lambda n, *both: questions_needed(*both)):
        with pytest.raises(DataError, match="discordance"):
            refused(10, 0.3, 0.2)


# -- small, perfect, hopeless


@pytest.mark.parametrize("outcome", ["right", "gave_up"])
@pytest.mark.parametrize("n", [1, 4])
def test_all_alike_gives_numbers_and_no_warning(outcome, n):
    questions = dict.fromkeys("abcd"[:n], outcome)
    pair = paired.pair(side("x", questions), side("y", questions))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = paired.compare([pair])
        became = paired.conversion([pair])
    assert (got.difference.mean, got.difference.low, got.difference.high, got.n) == (0, 0, 0, n)
    assert got.test.p == 1.0 and got.first == got.second == float(outcome == "right")
    assert (became.had, became.new, became.converted.n, became.converted.mean) == (0, 0, 0, None)


def test_one_question_that_moved():
    pair = paired.pair(side("x", {"a": "missing_evidence"}, found={"a": 0}), side("y", {"a": "right"}))
    assert paired.compare([pair]).test.p == 1.0
    assert paired.conversion([pair]).converted.mean == 1.0


def test_a_measure_that_no_question_has():
    pair = paired.pair(side("x", {"a": "gave_up"}, errors="a"), side("y", {"a": "right"}))
    got = paired.compare([pair], paired.UNRETRIEVED)
    assert (got.n, got.left_out, got.first, got.test, got.difference.mean) == (0, 1, None, None, None)


# -- refusals


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"dataset": "hotpotqa"}, "dataset 'musique' and 'hotpotqa'"),
        ({"setting": "lsa"}, "setting 's' and 'lsa'"),
        ({"corpus": "d"}, "corpus 'c' and 'd'"),
        ({"judge": "k"}, "judge 'j' and 'k'"),
        ({"seeds": (0, 1)}, r"seeds \[0\] and \[0, 1\]"),
        ({"outcomes": {"a": "right"}}, "1 of 2 questions are only in x, such as 'b'"),
        ({"outcomes": {"a": "right", "b": "right", "z": "right"}}, "1 of 3 questions are only in y, such as 'z'"),
    ],
)
def test_what_differs_is_said(changed, said):
    first = side("x", {"a": "right", "b": "right"})
    with pytest.raises(DataError, match=said):
        paired.pair(first, side("y", **{"outcomes": {"a": "right", "b": "right"}, **changed}))


def test_everything_that_differs_is_said_at_once():
    with pytest.raises(DataError, match=r"setting .* corpus .* judge "):
        paired.pair(FIRST, side("y", {"a": "right"}, setting="t", corpus="d", judge="k"))


def test_no_question_and_the_same_run_are_refused():
    with pytest.raises(DataError, match="n = 0"):
        paired.pair(side("x", {}), side("y", {}))
    with pytest.raises(DataError, match="2 of 2 questions are only in y"):
        paired.pair(side("x", {}), side("y", {"a": "right", "b": "right"}))
    with pytest.raises(ConfigError, match="with itself"):
        paired.pair(FIRST, FIRST)


def test_rows_that_do_not_fit_each_other_are_refused():
    good = side("y", {"a": "gave_up", "b": "right"})
    stale = paired.Side("x", "musique", "s", "j", "c", good.scores, good.failures[:1])
    with pytest.raises(DataError, match=r"x on musique / s: .*score the cell again"):
        paired.pair(stale, good)
    twice = paired.Side("x", "musique", "s", "j", "c", [*good.scores, good.scores[1]], good.failures)
    with pytest.raises(DataError, match="once for each seed"):
        paired.pair(twice, good)
    with pytest.raises(ConfigError, match="unknown judge 'llmm'; did you mean 'llm'"):
        paired.compare([PAIR], judge="llmm")
    with pytest.raises(ConfigError, match="unknown measure 'corect'; did you mean 'correct'"):
        paired.compare([PAIR], "corect")
    assert bootstrap_difference([1.0], [0.0]).mean == 1.0
