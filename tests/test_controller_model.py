"""What a trained controller answers, and when its file is refused."""

import io
import json
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from sklearn.ensemble import RandomForestRegressor

from multihop import jsonl
from multihop.controller import model as m
from multihop.controller.calibration import Calibrator
from multihop.controller.forest import Forest
from multihop.controller.model import ControllerModel, action_rows, advantage_names, load, save
from multihop.controller.targets import Cost
from multihop.errors import DataError

STATE, ACTION = ("one", "two"), ("near", "expected_cost", "far")
COLUMNS = advantage_names(STATE, ACTION)
COSTS = {a: Cost(1, 100.0 * n, 0.0, 0.1 * n) for n, a in enumerate("RGWBST")}


def regressor(column, names):
    """A forest that repeats one of its columns."""
    X = np.random.default_rng(0).uniform(size=(300, len(names)))
    fitted = RandomForestRegressor(20, random_state=0, max_features=None).fit(X, X[:, list(names).index(column)])
    return Forest.compile(fitted, names)


@pytest.fixture(scope="module")
def model():
    return ControllerModel(
        seed=3,
        state_names=STATE,
        action_names=ACTION,
        feature_hash="abc",
        advantage_forest=regressor("expected_cost", COLUMNS),
        continuation_forest=regressor("one", STATE),
        gain_forest=regressor("two", STATE),
        premature_forest=Forest.constant(0.25, STATE),
        calibrators={"continuation": Calibrator(), "premature": Calibrator("platt", (2.0, 0.5))},
        costs=COSTS,
        thresholds={"majority": (0.5, 0.5, 0.9), "any": (0.5, 0.5, 0.9), "all": (0.5, 0.5, 0.1)},
        options={"lambda": 1.0},
    )


def test_rows_of_the_advantage_forest():
    rows = action_rows(ACTION, ["G", "T"], [[0.1, 0.2], [0.3, 0.4]], COSTS)
    assert rows.tolist() == [[0, 1, 0, 0, 0, 0, 0.1, 0.1, 0.2], [0, 0, 0, 0, 0, 1, 0.3, 0.5, 0.4]]
    assert len(COLUMNS) == 2 + rows.shape[1]
    assert COLUMNS[2:8] == ("action_R", "action_G", "action_W", "action_B", "action_S", "action_T")
    first = action_rows(("expected_cost", "near"), ["S"], [[0.7]], COSTS)
    assert first.tolist() == [[0, 0, 0, 0, 1, 0, 0.4, 0.7]]


def test_the_advantage_sees_the_expected_cost(model):
    scores = model.advantage([0.5, 0.5], ["T", "R", "B"], [[0.5, 0.5]] * 3)
    assert list(scores) == ["T", "R", "B"]
    assert scores == pytest.approx({"T": 0.5, "R": 0.0, "B": 0.3}, abs=0.03)
    assert scores == {a: round(v, 9) for a, v in scores.items()}
    assert model.advantage([0.5, 0.5], ["B"], [[0.5, 0.5]])["B"] == scores["B"]
    assert model.advantage([0.5, 0.5], [], []) == {}


def test_expected_tokens(model):
    assert model.expected_tokens == {"R": 0.0, "G": 100.0, "W": 200.0, "B": 300.0, "S": 400.0, "T": 500.0}


@pytest.mark.parametrize(
    ("state", "votes", "go_on"),
    [
        # p_premature is always 0.2689 or so: above the threshold of "all", below the others'
        ((0.9, 0.9), {"majority": 2, "any": 2, "all": 3}, {"majority": True, "any": True, "all": True}),
        ((0.9, 0.1), {"majority": 1, "any": 1, "all": 2}, {"majority": False, "any": True, "all": False}),
        ((0.1, 0.1), {"majority": 0, "any": 0, "all": 1}, {"majority": False, "any": False, "all": False}),
    ],
)
def test_each_rule_counts_the_votes(model, state, votes, go_on):
    for rule in m.NEEDED:
        gate = model.gate(state, rule)
        assert (gate.votes, gate.cont) == (votes[rule], go_on[rule])
        assert gate.p_continue == pytest.approx(state[0], abs=0.03)
        assert gate.gain == pytest.approx(state[1], abs=0.03)
        odds = (1 / 3) ** 2 * np.exp(0.5)
        assert gate.p_premature == round(odds / (1 + odds), 9)
    assert model.gate(state) == model.gate(state, "majority")


def test_a_value_on_the_threshold_passes(model):
    p = model.gate([0.9, 0.1]).p_continue
    exact = replace(model, thresholds={"any": (p, 2.0, 2.0)})
    assert exact.gate([0.9, 0.1], "any").cont
    assert not replace(model, thresholds={"any": (p + 1e-9, 2.0, 2.0)}).gate([0.9, 0.1], "any").cont


def test_a_feature_that_is_no_number_is_named(model):
    with pytest.raises(DataError, match="'two'"):
        model.gate([0.1, float("nan")])
    with pytest.raises(DataError, match="'far'"):
        model.advantage([0.1, 0.1], ["R", "B"], [[0.0, 0.0], [0.0, float("inf")]])
    with pytest.raises(DataError, match="3 features of an action, where 2"):
        model.advantage([0.1, 0.1], ["R"], [[0.0, 0.0, 0.0]])
    with pytest.raises(DataError, match="expected_cost"):
        action_rows(("near",), ["R"], [[]], COSTS)


# -- the file


def stored(model, folder):
    entry = save(model, folder)
    jsonl.write_json(folder / "card.json", {"trainings": [{"seed": 3, **entry}]})
    return folder / entry["file"]


def test_there_and_back(model, tmp_path):
    path = stored(model, tmp_path)
    assert path.name == "seed3.npz"
    again = load(tmp_path, 3, "abc")
    assert again.to_bytes() == model.to_bytes() == path.read_bytes()
    for name in (
        "seed",
        "state_names",
        "action_names",
        "feature_hash",
        "calibrators",
        "costs",
        "thresholds",
        "options",
    ):
        assert getattr(again, name) == getattr(model, name)
    assert again.gate([0.4, 0.6]) == model.gate([0.4, 0.6])
    assert again.advantage([0.4, 0.6], ["S"], [[0.1, 0.2]]) == model.advantage([0.4, 0.6], ["S"], [[0.1, 0.2]])


def test_nothing_of_the_machine_or_the_clock_is_in_the_file(model):
    with zipfile.ZipFile(io.BytesIO(model.to_bytes())) as archive:
        for info in archive.infolist():
            assert info.date_time == (1980, 1, 1, 0, 0, 0)
            assert (info.create_system, info.compress_type) == (3, zipfile.ZIP_STORED)
        assert archive.namelist() == sorted(archive.namelist())
    with np.load(io.BytesIO(model.to_bytes()), allow_pickle=False) as arrays:
        assert {arrays[name].dtype.kind for name in arrays.files} <= set("iuf")


@pytest.mark.parametrize("where", [0.0, 0.3, 0.6, 0.999])
def test_a_changed_byte_is_refused(model, tmp_path, where):
    path = stored(model, tmp_path)
    data = bytearray(path.read_bytes())
    data[int(where * len(data))] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(DataError, match=r"seed3\.npz.*sha256.*dvc repro"):
        load(tmp_path, 3, "abc")


def test_other_features_and_another_library_are_refused(model, tmp_path):
    stored(model, tmp_path)
    with pytest.raises(DataError, match=r"another list of features \(abc, here xyz\); retrain it: dvc repro"):
        load(tmp_path, 3, "xyz")
    stored(replace(model, sklearn="0.24.2"), tmp_path)
    with pytest.raises(DataError, match=r"scikit-learn 0\.24\.2.*dvc repro"):
        load(tmp_path, 3, "abc")


def test_by_default_the_features_in_use_decide(model, tmp_path):
    from multihop.controller import features

    stored(model, tmp_path)
    with pytest.raises(DataError, match=features.fingerprint()):
        load(tmp_path, 3)
    stored(replace(model, feature_hash=features.fingerprint()), tmp_path)
    assert load(tmp_path, 3).seed == 3


def test_what_is_missing_is_named(model, tmp_path):
    with pytest.raises(DataError, match=r"card\.json: no such file.*dvc repro"):
        load(tmp_path, 3, "abc")
    path = stored(model, tmp_path)
    with pytest.raises(DataError, match="no training of seed 4"):
        load(tmp_path, 4, "abc")
    path.unlink()
    with pytest.raises(DataError, match=r"seed3\.npz: no such file"):
        load(tmp_path, 3, "abc")
    for text in ("{", "[]", json.dumps({"trainings": 1}), json.dumps({"trainings": [{"seed": 3}]})):
        (tmp_path / "card.json").write_text(text)
        with pytest.raises(DataError, match=r"card\.json"):
            load(tmp_path, 3, "abc")
