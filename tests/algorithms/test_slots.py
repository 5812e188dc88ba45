"""The learned time slot: legal actions, the Q-table's update, and the policy's probabilities and gradient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedasmu.algorithms.fedasmu.slots import QTable, SlotPolicy, heuristic, legal, q_update, standardised
from fedasmu.seeding import uniform
from helpers.uploads import federation


def policy(units: int = 6, **changes: object) -> SlotPolicy:
    settings: dict[str, object] = {"seed": 3, "rate": 0.1, "rho": 0.1, "epsilon": 0.1, "sample": True}
    features = {0: [0.5, -1.0], 1: [2.0, 0.1]}
    return SlotPolicy(features=features.__getitem__, units=lambda device: units, **(settings | changes))  # type: ignore[arg-type]


def moved(started: SlotPolicy) -> SlotPolicy:
    """Away from the uniform start, where the output layer is zero."""
    drawn = np.random.default_rng(1)
    for part in started.weights:
        part += 0.3 * drawn.normal(size=part.shape)
    return started


def test_heuristics_are_first_middle_and_last_but_one() -> None:
    assert [heuristic(name, 9) for name in ("first", "middle", "last")] == [1, 5, 8]
    assert [heuristic(name, 2) for name in ("first", "middle", "last")] == [1, 1, 1]


def test_actions_that_would_leave_the_slots_are_illegal() -> None:
    assert legal(1, 5) == (1, 2)
    assert legal(2, 5) == (0, 1, 2)
    assert legal(4, 5) == (0, 1)
    assert legal(1, 2) == (1,)


def test_q_update_by_hand() -> None:
    # 0.5 + 0.1 (-0.2 + 0.9 * 0.3 - 0.5) = 0.5 + 0.1 * -0.43
    assert q_update(0.5, -0.2, 0.3, 0.1, 0.9) == pytest.approx(0.457)


def test_a_slot_outlives_the_data_that_it_was_learned_on() -> None:
    """A device that comes back with fewer examples has fewer units: the nearest slot takes the place of its old one."""
    memory: dict[str, object] = {"slot": 10}
    table = QTable(memory, units=4, rate=0.1, discount=0.9, epsilon=0.0)
    action, slot = table.choose(seed=1)
    assert (action in (0, 1), slot in (2, 3)) == (True, True)
    table.learn(action, slot, 1.0)
    assert memory["slot"] == slot


def test_a_sequence_of_q_updates_by_hand() -> None:
    memory: dict[str, object] = {"slot": 2}
    table = QTable(memory, units=5, rate=0.1, discount=0.9, epsilon=0.0)
    table.learn(action=2, slot=3, reward=1.0)  # add: Q[2][add] = 0 + 0.1 (1 + 0 - 0)
    assert table.row(2) == pytest.approx([0, 0, 0.1])
    assert memory["slot"] == 3
    table.learn(action=0, slot=2, reward=-0.5)  # minus: Q[3][minus] = 0.1 (-0.5 + 0.9 * 0.1)
    assert table.row(3) == pytest.approx([-0.041, 0, 0])
    table.learn(action=2, slot=3, reward=0.0)  # Q[2][add] = 0.1 + 0.1 (0 + 0.9 * 0 - 0.1)
    assert table.row(2) == pytest.approx([0, 0, 0.09])


def test_the_best_legal_action_is_taken_and_equals_are_drawn_from() -> None:
    memory: dict[str, object] = {"slot": 2, "q": {"2": [0.1, 0.7, 0.2]}}
    table = QTable(memory, units=5, rate=0.1, discount=0.9, epsilon=0.0)
    assert {table.choose(seed) for seed in range(20)} == {(1, 2)}
    memory["q"] = {"2": [0.0, 0.0, 0.0]}
    assert {slot for _, slot in (table.choose(seed) for seed in range(60))} == {1, 2, 3}
    memory["slot"] = 4
    assert {slot for _, slot in (table.choose(seed) for seed in range(60))} == {3, 4}  # never beyond the last


def test_exploration_takes_any_legal_action() -> None:
    memory: dict[str, object] = {"slot": 2, "q": {"2": [0.1, 0.7, 0.2]}}
    table = QTable(memory, units=5, rate=0.1, discount=0.9, epsilon=1.0)
    assert {slot for _, slot in (table.choose(seed) for seed in range(60))} == {1, 2, 3}


def test_what_is_the_same_for_all_devices_is_zero(tmp_path: Path) -> None:
    """Not the rounding of its mean, magnified: in float32 the batch size came out near one half."""
    examples = [10 + device % 7 for device in range(100)]
    known = standardised(federation(tmp_path, examples, batch=64))
    features = torch.tensor([known(device) for device in range(100)])
    assert features[:, 1].abs().max() < 1e-9
    assert features[:, 3].std(correction=0).item() == pytest.approx(1.0)


@pytest.mark.parametrize("units", [2, 3, 10])
def test_a_new_policy_gives_every_slot_the_same_probability(units: int) -> None:
    assert policy(units).probabilities(0) == pytest.approx([1 / (units - 1)] * (units - 1), rel=1e-12)


def test_probabilities_sum_to_one_after_learning() -> None:
    learned = policy(rho=0.0)
    for _ in range(200):
        learned.learn(0, slot=2, reward=1.0)
    probabilities = learned.probabilities(0)
    assert probabilities.sum() == pytest.approx(1.0)
    assert probabilities[1] > 0.35  # from 1 in 5


def test_the_update_is_reinforce() -> None:
    """Over all slots, weighted by their probability, the updates add up to the gradient of the expected reward."""
    rewards = np.array([0.3, -0.7, 1.1, 0.2, -0.4])
    started = moved(policy())
    state = started.state()
    total = np.zeros(len(state["vector"]))
    for slot, (probability, reward) in enumerate(zip(started.probabilities(0), rewards, strict=True), start=1):
        trial = policy(rate=1.0)
        trial.restore(state)
        trial.learn(0, slot, float(reward))
        total += probability * (trial.state()["vector"] - state["vector"]).numpy()
    for place in range(0, len(total), 97):
        assert total[place] == pytest.approx(by_difference(state, place, rewards), rel=1e-6, abs=1e-9)


def by_difference(state: dict[str, Any], place: int, rewards: np.ndarray, step: float = 1e-5) -> float:
    """d expected reward / d weight, from two of them."""
    expected = []
    for change in (step, -step):
        trial = policy()
        vector = state["vector"].clone()
        vector[place] += change
        trial.restore(state | {"vector": vector})
        expected.append(float(trial.probabilities(0) @ rewards))
    return (expected[0] - expected[1]) / (2 * step)


def test_the_advantage_uses_the_baseline_before_the_reward() -> None:
    learner = policy(rho=0.5)
    learner.baseline = 2.0
    before = learner.state()["vector"].clone()
    learner.learn(0, slot=1, reward=2.0)  # advantage 0: nothing moves but the baseline
    assert torch.equal(learner.state()["vector"], before)
    learner.learn(0, slot=1, reward=4.0)
    assert learner.baseline == pytest.approx(3.0)
    assert not torch.equal(learner.state()["vector"], before)


def test_normalised_advantages_do_not_depend_on_the_scale_of_the_rewards() -> None:
    small, large = policy(normalise=True), policy(normalise=True)
    for reward in (0.5, -1.0, 2.0):
        small.learn(0, slot=2, reward=0.001 * reward)
        large.learn(0, slot=2, reward=1000.0 * reward)
    assert torch.allclose(small.state()["vector"], large.state()["vector"], atol=1e-6)


def test_a_reward_that_is_not_finite_teaches_nothing() -> None:
    learner = policy()
    before = learner.state()["vector"].clone()
    learner.learn(0, slot=1, reward=float("nan"))
    assert torch.equal(learner.state()["vector"], before)
    assert learner.baseline == 0.0


@pytest.mark.parametrize("sample", [True, False])
def test_proposals_are_legal_and_repeatable(sample: bool) -> None:
    proposals = [policy(sample=sample, epsilon=0.5).propose(1) for _ in range(3)]
    assert len(set(proposals)) == 1
    one = policy(sample=sample, epsilon=0.5)
    drawn = {one.propose(1) for _ in range(80)}
    assert drawn <= set(range(1, 6))
    assert len(drawn) > 2


def test_state_and_restore_continue_alike() -> None:
    first, second = policy(), policy()
    first.learn(1, 3, 0.8)
    first.propose(0)
    second.restore(first.state())
    assert [first.propose(0) for _ in range(10)] == [second.propose(0) for _ in range(10)]
    assert np.array_equal(first.probabilities(1), second.probabilities(1))


@pytest.mark.parametrize("learned", [True, False])
def test_a_proposal_is_where_the_drawn_number_falls(learned: bool) -> None:
    """Position by position, as over the whole distribution."""
    proposing, draws = policy(), range(1, 200)
    if learned:
        proposing.restore(moved(policy()).state())
    borders = proposing.probabilities(0).cumsum()
    expected = [1 + int((borders < uniform(3, "slot", draw)).sum()) for draw in draws]
    assert [proposing.propose(0) for _ in draws] == expected
    assert set(expected) == set(range(1, 6))
