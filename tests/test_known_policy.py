"""The trained controller in an environment whose best policy is known (tests/known_policy.py).

State, validity, features, operations, trajectories, targets, forests, model file and control loop are the real ones.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from known_policy import BEST, KINDS, UNKNOWN, Environment, Reader, World, chosen, kind_of, price

from multihop import training
from multihop.controller import fitting, model
from multihop.controller.fitting import FitOptions
from multihop.controller.validity import valid
from multihop.evaluation.statistics import bootstrap_difference
from multihop.methods.operations import Workspace, start

# A fifth of the paper's 300 trees, so that the file takes seconds; 300 reach the same utility within 0.01.
QUICK = FitOptions(trees=60, oof_trees=2)


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    world = World((20, 25, 35), seed=1)
    return Environment(tmp_path_factory.mktemp("train"), world, Reader(world))


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """Other names, pages and answers: only the questions' patterns are the same."""
    world = World((40, 40, 40), seed=2)
    return Environment(tmp_path_factory.mktemp("fresh"), world, Reader(world))


@pytest.fixture(scope="module")
def rows(train):
    return train.trajectories()


@pytest.fixture(scope="module")
def controller(rows, tmp_path_factory):
    """Through the model file, as a run gets it."""
    folder = tmp_path_factory.mktemp("controller")
    fitting.write(folder, rows, QUICK, [0], {})
    return model.load(folder, 0)


@pytest.fixture(scope="module")
def records(fresh, controller):
    return fresh.run(controller)


def utilities(environment, records):
    return np.array([environment.utility(r) for r in records])


# -- the environment is what it says


@pytest.mark.parametrize("kind", KINDS)
def test_no_other_sequence_of_operations_is_as_good_as_the_known_one(fresh, kind):
    case = next(c for c in fresh.world.cases.values() if c.kind == kind)
    found = asyncio.run(every_sequence(fresh, case))
    (best, actions), (second, _) = sorted(found, reverse=True)[:2]
    assert actions == BEST[kind] and best > second and len(found) > 50
    (record,) = [r for r in fresh.run_best() if r.qid == case.question.id]
    assert chosen(record) == actions + "T" and fresh.utility(record) == pytest.approx(best)


async def every_sequence(environment, case):
    """(utility, actions) of every way to go through the question, wherever it stops."""
    trainer = environment.trainer()
    tools, limits = trainer.tools(case.question.id, 0), trainer.cell.method.params.limits
    work, found = Workspace(tools, limits), []

    async def visit(state):
        if state.docs:
            f1 = await training._prefix_f1(trainer, case.question, state, tools)
            found.append((f1 - price(state.tokens, state.retrievals), "".join(s.action for s in state.history)))
        if state.step < limits.steps and not state.sufficient:
            for action in valid(state, limits):
                if action != "T":
                    await visit(await work.run(action, state))

    await visit(start(case.question.text, tools))
    return found


def test_the_known_policy_answers_every_question(fresh):
    found = fresh.run_best()
    assert all(r.short == fresh.world.cases[r.question].answer for r in found)
    assert {k: {chosen(r) for r in found if kind_of(r) == k} for k in KINDS} == {k: {a + "T"} for k, a in BEST.items()}


def test_checks_err_in_both_directions(rows):
    wrong = {True: [], False: []}
    for row in rows:
        for branch in row["branches"]:
            if branch["action"] == "S":
                wrong[row["u"] == 1].append(branch["sufficient"] != (row["u"] == 1))
    assert all(0.1 < np.mean(errors) < 0.2 and len(errors) > 100 for errors in wrong.values())


# -- what the controller is worth


def test_it_reaches_the_best_policys_utility(fresh, records):
    best, trained = utilities(fresh, fresh.run_best()).mean(), utilities(fresh, records).mean()
    print(f"best {best:.4f}, trained {trained:.4f}")
    assert best > 0.95 and trained >= 0.95 * best


def test_it_beats_a_uniform_choice_among_valid_operations(fresh, controller, records):
    uniform = fresh.run(controller, ranking="uniform")
    gained = bootstrap_difference(utilities(fresh, records), utilities(fresh, uniform), resamples=999)
    print(f"above uniform {gained.mean:.3f} [{gained.low:.3f}, {gained.high:.3f}]")
    assert gained.low > 0.15


@pytest.mark.parametrize("kind", KINDS)
def test_it_finds_the_operation_that_each_kind_needs(records, kind):
    found = [chosen(r) for r in records if kind_of(r) == kind]
    assert np.mean([c.startswith(BEST[kind]) for c in found]) >= 0.95


def test_it_stops_where_going_on_has_no_value(records):
    one_hop = [r for r in records if kind_of(r) == "one_hop"]
    assert np.mean([chosen(r) == "RT" and r.stop_reason == "stop" for r in one_hop]) >= 0.95
    # Elsewhere too: one look more than it takes, at most.
    spare = [r.loops - len(BEST[kind_of(r)]) for r in records]
    assert np.mean([n <= 1 for n in spare]) >= 0.9


# -- what it never sees


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    world = World((1, 2, 1), seed=3)
    return Environment(tmp_path_factory.mktemp("few"), world, Reader(world))


def without_gold(rows):
    """Trajectories less what is made of gold."""
    made = {"u", "f1", "final_f1", "u_after", "u_follow"}
    return [
        {k: v for k, v in row.items() if k not in made | {"branches"}}
        | {"branches": [{k: v for k, v in b.items() if k not in made} for b in row["branches"]]}
        for row in rows
    ]


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(4)).filter(lambda order: order != sorted(order)))
def test_shuffled_gold_changes_no_feature_and_no_action(few, controller, order):
    own = few.world.gold
    shuffled = dict(zip(own, (list(own.values())[n] for n in order), strict=True))
    before, after = few.trajectories(few.trainer()), few.trajectories(few.trainer(shuffled))
    assert json.dumps(without_gold(before)) == json.dumps(without_gold(after))
    assert [r["u"] for r in before] != [r["u"] for r in after]  # the gold is in there, in the targets' part
    answered = [r.to_json() for r in few.run(controller)]
    few.world.gold = shuffled
    try:
        assert json.dumps(answered) == json.dumps([r.to_json() for r in few.run(controller)])
    finally:
        few.world.gold = own


# -- the target of a sufficiency check


def checks(environment, records):
    """{evidence was complete: for each decision of the scorer that could have been for S, whether it was}."""
    found = {True: [], False: []}
    for record in records:
        held, gold = set(), set(environment.world.gold[record.qid].supporting)
        for event in record.events:
            if event.kind == "operation":
                held |= set(event.data["new"])
            elif event.kind == "decision" and "S" in (event.data["scores"] or {}):
                found[held >= gold].append(event.data["chosen"] == "S")
    return found


def test_taken_literally_no_check_is_worth_its_cost(rows, fresh):
    """It adds no evidence: where all else is idle too (the gate stops there) it may be picked, elsewhere it is not."""
    (trained,), card = fitting.fit(rows, replace(QUICK, trees=40, s_target="literal"))
    found = checks(fresh, fresh.run(trained))
    print("literal", {k: f"{sum(v)} of {len(v)}" for k, v in found.items()})
    assert card["targets"]["advantage"]["S"]["max"] < 0 < card["s_target_sensitivity"]["full_only"]["mean"]
    assert sum(found[False]) == 0 and np.mean(found[True] + found[False]) <= 0.1


def test_only_stop_value_rewards_false_sufficiency(tmp_path_factory):
    """A reader that says "sufficient" four times of five where it is not. No gate, so that every state is scored."""
    train, fresh = (
        Environment(tmp_path_factory.mktemp("over"), world, Reader(world, fancies=0.8))
        for world in (World((5, 15, 15), 1), World((5, 15, 15), 2))
    )
    rows = train.trajectories()
    when_complete, when_not, believed, worth = {}, {}, {}, {}
    for target in ("full_only", "stop_value"):
        (trained,), _ = fitting.fit(rows, replace(QUICK, trees=40, s_target=target))
        records = fresh.run(trained, continuation="fixed")
        found = checks(fresh, records)
        when_complete[target], when_not[target] = np.mean(found[True]), np.mean(found[False])
        believed[target] = np.mean([r.stop_reason == "sufficient" and r.short == UNKNOWN for r in records])
        worth[target] = utilities(fresh, records).mean()
    print(f"S where complete {when_complete}, where not {when_not}; false stops {believed}; utility {worth}")
    assert when_complete["full_only"] >= 0.9 and when_not["full_only"] <= 0.15
    assert when_not["stop_value"] >= 0.4 and believed["stop_value"] >= 0.25 >= 4 * believed["full_only"]
    assert worth["stop_value"] < worth["full_only"] - 0.2
