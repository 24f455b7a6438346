"""Compiled forests are scikit-learn's forests, and fast; calibration curves rise."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

from multihop.controller import calibration
from multihop.controller.calibration import Calibrator
from multihop.controller.forest import Forest
from multihop.errors import DataError


def names(d):
    return [f"f{n}" for n in range(d)]


def drawn(seed, n, d, digits):
    """Values with many ties, in the precision in which features are stored."""
    return np.random.default_rng(seed).normal(size=(n, d)).round(digits)


def on_the_thresholds(forest, X):
    """Rows of X with one value moved onto a threshold, or just beside it in double or in single precision."""
    rows = []
    for n, tree in enumerate(forest.estimators_):
        inner = np.flatnonzero(tree.tree_.children_left >= 0)
        for node in inner[:3]:
            t = tree.tree_.threshold[node]
            for value in (t, np.nextafter(t, 9), np.nextafter(t, -9), np.nextafter(np.float32(t), np.float32(9))):
                row = X[n % len(X)].copy()
                row[tree.tree_.feature[node]] = value
                rows.append(row)
    return np.array(rows) if rows else X


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 60),
    d=st.integers(1, 6),
    digits=st.integers(0, 6),
    leaf=st.integers(1, 8),
    classes=st.booleans(),
)
def test_equal_to_scikit_learn(seed, n, d, digits, leaf, classes):
    X = drawn(seed, n, d, digits)
    y = np.random.default_rng(seed).normal(size=n) + X[:, 0]
    weights = np.random.default_rng(seed).uniform(0.1, 1, n)
    how = {"n_estimators": 7, "min_samples_leaf": leaf, "max_features": "sqrt", "random_state": seed}
    if classes:
        y = (y > 0).astype(int)
        fitted = RandomForestClassifier(class_weight="balanced", **how).fit(X, y, sample_weight=weights)
    else:
        fitted = RandomForestRegressor(**how).fit(X, y, sample_weight=weights)
    compiled = Forest.compile(fitted, names(d))
    for rows in (X, drawn(seed + 1, 20, d, 6), on_the_thresholds(fitted, X)):
        if not classes:
            expected = fitted.predict(rows)
        elif 1 in fitted.classes_:
            expected = fitted.predict_proba(rows)[:, list(fitted.classes_).index(1)]
        else:
            expected = np.zeros(len(rows))
        np.testing.assert_allclose(compiled.predict(rows), expected, rtol=0, atol=1e-9)


@pytest.fixture(scope="module")
def forest():
    X = drawn(0, 400, 10, 6)
    return RandomForestRegressor(60, min_samples_leaf=8, max_features="sqrt", random_state=0).fit(X, X[:, 0] * X[:, 1])


def test_single_precision_decides(forest):
    """A test of the test: comparing in double precision would differ on some of these rows."""
    rows = on_the_thresholds(forest, drawn(0, 400, 10, 6))
    compiled = Forest.compile(forest, names(10))
    assert np.abs(compiled._walk(rows).mean(axis=1) - forest.predict(rows)).max() > 1e-6
    assert np.abs(compiled.predict(rows) - forest.predict(rows)).max() < 1e-9


def test_many_rows_at_once_are_the_rows_one_by_one(forest, monkeypatch):
    monkeypatch.setattr("multihop.controller.forest._AT_ONCE", 7 * 60)
    compiled, X = Forest.compile(forest, names(10)), drawn(1, 30, 10, 6)
    assert compiled.predict(X).tolist() == [compiled.predict(row[None])[0] for row in X]
    assert compiled.predict(np.empty((0, 10))).shape == (0,)


def test_ten_times_the_single_row_rate(forest):
    compiled, row = Forest.compile(forest, names(10)), drawn(1, 1, 10, 6)

    def seconds(predict, n):
        start = time.perf_counter()
        for _ in range(n):
            predict(row)
        return (time.perf_counter() - start) / n

    best = max(seconds(forest.predict, 3) / seconds(compiled.predict, 30) for _ in range(3))
    assert best >= 10


def test_columns_in_use(forest):
    X = drawn(0, 100, 3, 2)
    fitted = RandomForestRegressor(5, random_state=0, max_features=None).fit(X * [1, 0, 0], X[:, 0])
    assert Forest.compile(fitted, names(3)).used() == {0}
    assert Forest.compile(forest, names(10)).used() == set(range(10))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e39])
def test_a_value_that_no_tree_can_read_is_named(forest, value):
    X = drawn(1, 3, 10, 6)
    X[2, 4] = value
    with pytest.raises(DataError, match=r"'f4'.*row 2"):
        Forest.compile(forest, names(10)).predict(X)


@pytest.mark.parametrize("shape", [(2, 9), (10,), (2, 11)])
def test_other_shapes_are_refused(forest, shape):
    with pytest.raises(DataError, match="10 features"):
        Forest.compile(forest, names(10)).predict(np.zeros(shape))


def test_as_many_names_as_features(forest):
    with pytest.raises(DataError, match="10 features"):
        Forest.compile(forest, names(9))


def test_constant_and_one_class():
    X = drawn(0, 20, 2, 2)
    assert Forest.constant(0.25, names(2)).predict(X).tolist() == [0.25] * 20
    assert Forest.constant(0.25, names(2)).used() == set()
    for only in (0, 1):
        fitted = RandomForestClassifier(3, random_state=0).fit(X, np.full(20, only))
        assert Forest.compile(fitted, names(2)).predict(X).tolist() == [float(only)] * 20


def test_arrays_there_and_back(forest):
    one = Forest.compile(forest, names(10))
    two = Forest.from_arrays(one.arrays(), names(10), one.depth)
    X = drawn(5, 50, 10, 6)
    assert (one.predict(X) == two.predict(X)).all()


# -- calibration


def scores(n, positives, seed=0):
    """Forest outputs, too high by half, and labels."""
    rng = np.random.default_rng(seed)
    y = np.zeros(n, dtype=int)
    y[:positives] = 1
    return np.clip(rng.normal(0.6 + 0.2 * y, 0.1), 0, 1), y


def test_platt_takes_the_bias_away():
    p, y = scores(300, 60)
    curve = calibration.fit(p, y)
    assert curve.kind == "platt" and len(curve.x) == 2
    assert curve(p).mean() == pytest.approx(0.2, abs=0.01)
    assert ((curve(p) - y) ** 2).mean() < ((p - y) ** 2).mean()


def test_platt_survives_separable_classes():
    curve = calibration.fit(np.array([0.1, 0.2, 0.8, 0.9]), np.array([0, 0, 1, 1]))
    assert curve.kind == "platt" and 0 < curve(np.array([0.15]))[0] < 0.5 < curve(np.array([0.85]))[0] < 1


def test_isotonic_with_enough_positives():
    p, y = scores(1000, calibration.ISOTONIC_FROM)
    curve = calibration.fit(p, y)
    assert curve.kind == "isotonic"
    assert calibration.fit(p[1:], y[1:]).kind == "platt"  # one positive less
    grid = np.linspace(0, 1, 101)
    assert (np.diff(curve(grid)) >= 0).all() and curve(grid).min() >= 0 and curve(grid).max() <= 1
    assert curve(p).mean() == pytest.approx(0.2, abs=1e-6)


def test_isotonic_is_scikit_learns():
    from sklearn.isotonic import IsotonicRegression

    p, y = scores(900, 300)
    w = np.random.default_rng(1).uniform(0.2, 1, 900)
    reference = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(p, y, sample_weight=w)
    grid = np.linspace(0, 1, 333)
    np.testing.assert_allclose(calibration.fit(p, y, w)(grid), reference.predict(grid), atol=1e-9)


@pytest.mark.parametrize(
    ("p", "y", "share"),
    [([0.2, 0.7], [0, 0], 0.25), ([0.2, 0.7], [1, 1], 0.75), ([0.1, 0.2, 0.8, 0.9], [1, 0, 0, 0], 0.333333)],
    ids=["no positive", "no negative", "upside down"],
)
def test_without_a_rising_curve_there_is_one_share_for_all(p, y, share):
    curve = calibration.fit(np.array(p), np.array(y))
    assert curve == Calibrator("constant", y=(share,))
    assert curve(np.array([0.1, 0.9])).tolist() == [share, share]


def test_without_rows_the_forest_is_left_alone():
    assert calibration.fit(np.array([]), np.array([])) == Calibrator()
    assert Calibrator()(np.array([0.3])).tolist() == [0.3]


def test_isotonic_that_does_not_rise():
    p = np.repeat([0.2, 0.8], 300)
    y = np.concatenate([np.ones(200), np.zeros(100), np.zeros(250), np.ones(50)]).astype(int)
    assert calibration.fit(p, y)(np.array([0.1, 0.5, 0.9])) == pytest.approx([250 / 600] * 3)
