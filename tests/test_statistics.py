"""Intervals and tests on cases whose answer is known."""

import warnings

import numpy as np
import pytest
from scipy.stats import norm

from multihop.errors import ConfigError, DataError
from multihop.evaluation import statistics
from multihop.evaluation.statistics import bootstrap_difference, bootstrap_mean, holm, mcnemar
from multihop.pricing import Prices
from multihop.types import Usage


def test_degenerate_columns_give_no_warning_and_no_nan():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bootstrap_mean([]) == statistics.Interval(None, None, None, 0)
        assert bootstrap_mean([0.5]) == statistics.Interval(0.5, 0.5, 0.5, 1)
        assert bootstrap_mean([1.0] * 4) == statistics.Interval(1.0, 1.0, 1.0, 4)
        assert bootstrap_difference([1, 0], [1, 0]) == statistics.Interval(0.0, 0.0, 0.0, 2)


def test_interval_agrees_with_the_normal_approximation():
    x = np.random.default_rng(3).normal(2.0, 1.0, 400)
    got = bootstrap_mean(x, seed=1)
    half = norm.ppf(0.975) * x.std() / 20
    assert got.mean == pytest.approx(x.mean())
    assert (got.low, got.high) == pytest.approx((x.mean() - half, x.mean() + half), abs=0.02)


def test_seeded():
    x = np.random.default_rng(1).normal(size=30)
    assert bootstrap_mean(x, seed=4) == bootstrap_mean(x, seed=4)
    assert bootstrap_mean(x, seed=5) != bootstrap_mean(x, seed=4)


def test_draws_are_bounded_and_complete(monkeypatch):
    monkeypatch.setattr(statistics, "_CELLS", 60)
    shapes = [d.shape for d in statistics._draws(6, 0, 25)]
    assert shapes == [(10, 6), (10, 6), (5, 6)]
    assert [d.shape for d in statistics._draws(1000, 0, 2)] == [(1, 1000), (1, 1000)]


def test_level_widens_the_interval():
    x = list(range(20))
    wide, narrow = bootstrap_mean(x, level=0.99), bootstrap_mean(x, level=0.5)
    assert wide.low < narrow.low < narrow.high < wide.high


def test_pairing_removes_what_the_questions_share():
    base = np.random.default_rng(0).normal(0, 10, 100)
    got = bootstrap_difference(base + 1, base)
    assert (got.mean, got.low, got.high) == pytest.approx((1, 1, 1))


def test_mcnemar_by_hand():
    # 5 discordant pairs, 4 of one kind: 2 * (C(5,0) + C(5,1)) / 2**5
    got = mcnemar([1, 1, 1, 1, 0, 1, 0], [0, 0, 0, 0, 1, 1, 0])
    assert (got.only_first, got.only_second, got.discordant) == (4, 1, 5)
    assert got.p == pytest.approx(2 * (1 + 5) / 32)
    assert mcnemar([1, 0], [1, 0]).p == 1.0
    assert mcnemar([], []).p == 1.0


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_wrong_input_is_refused():
    with pytest.raises(DataError):
        bootstrap_difference([1], [1, 2])
    with pytest.raises(DataError):
        bootstrap_mean([1, float("nan")])
    with pytest.raises(DataError):
        mcnemar([0.5], [1])
    with pytest.raises(DataError):
        mcnemar([1], [1, 0])
    with pytest.raises(DataError):
        holm([1.2])


def test_prices_by_exact_id(tmp_path):
    path = tmp_path / "prices.yaml"
    path.write_text("models:\n  m-mini: {input: 0.15, cached: 0.075, output: 0.6}\n")
    prices = Prices.load(path)
    use = Usage(1, 1_000_000, 500_000)
    assert prices.usd(use, "m-mini") == pytest.approx(0.15 + 0.3)
    assert prices.usd(use, "m-mini", cached_tokens=400_000) == pytest.approx(0.6 * 0.15 + 0.4 * 0.075 + 0.3)
    line = r"prices\.yaml: no price for model 'm'; add under `models:` the line `  m: \{input: …"
    with pytest.raises(ConfigError, match=line):
        prices.usd(use, "m")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "models: []",
        "models: {m: {input: 1, cached: 1}}",
        "models: {m: {input: -1}}",
        "a: [",
    ],
)
def test_bad_price_files_are_named(tmp_path, text):
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"prices\.yaml"):
        Prices.load(path)
    with pytest.raises(ConfigError, match="no such file"):
        Prices.load(tmp_path / "none.yaml")
