"""FedASMU-R formula by formula: hand-worked numbers, finite differences, what a device does, limit cases."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedasmu import Experiment
from fedasmu.algorithms.corrections import CachedUpdates, DynamicRegulariser, Slope
from fedasmu.algorithms.fedasmu import formulas as weights
from fedasmu.algorithms.fedasmu_r import FedASMUR, RefreshNote, gone, rebased, saved, within
from fedasmu.protocol import Fetch, Model, Report, Train, Trained, Upload, Workload
from helpers.blobs import Run, blobs, outputs, settings
from helpers.uploads import close, federation, model, task

WORK = Workload(examples=10, batch=5, epochs=2)  # four steps


def vector(*numbers: float) -> Tensor:
    return torch.tensor(numbers)


def test_rebasing_keeps_all_progress_and_takes_the_fresh_statistics() -> None:
    """Progress of (+1, -2) on top of (5, 5); the last number is a variance, and 3 + (0.5 - 4) would be none."""
    moved = rebased(vector(1.0, -2.0, 3.0), vector(0.0, 0.0, 4.0), vector(5.0, 5.0, 0.5), trainable=2)
    assert close(moved, 6.0, 3.0, 0.5)


def test_versions_saved_by_hand() -> None:
    assert saved(origin=10, fresh=18, done=1, steps=4) == pytest.approx(6.0)
    assert saved(origin=10, fresh=18, done=4, steps=4) == 0.0


def test_where_versions_come_evenly_the_middle_saves_most() -> None:
    """After k of n steps v k / n versions have come, of which the share 1 - k / n is saved."""
    rewards = [saved(0, 12 * k, k, 12) for k in range(1, 12)]
    assert max(rewards) == rewards[5] == pytest.approx(36.0)


def test_how_far_the_others_have_gone_is_counted_in_updates() -> None:
    assert gone(vector(3.0, 4.0), vector(6.0, 8.0)) == pytest.approx(2.0)
    assert gone(vector(3.0, 4.0), vector(4.0, -3.0)) == 0.0  # across it
    assert gone(vector(3.0, 4.0), vector(-3.0, -4.0)) == pytest.approx(-1.0)
    assert gone(vector(0.0, 0.0), vector(1.0, 0.0)) == 0.0


def test_an_update_is_worth_what_is_left_of_its_way() -> None:
    """A loss of |w - c|^2 / 2 whose device goes all the way from 0 to c: how much of it helps from where others are?"""
    goal = vector(1.0, 2.0)
    for movement in (vector(0.0, 0.0), vector(0.5, 0.2), vector(2.0, 2.0), vector(-1.0, 0.5)):

        def loss(alpha: float, moved: Tensor = movement) -> float:
            return float(((moved + alpha * goal - goal) ** 2).sum()) / 2

        best, step = 1.0 - gone(goal, movement), 1e-2
        assert (loss(best + step) - loss(best - step)) / (2 * step) == pytest.approx(0.0, abs=1e-4)


def test_the_reach_bounds_a_weight_and_does_not_raise_it() -> None:
    assert within(0.5, alpha=0.3, already=0.1) == 0.3
    assert within(0.5, alpha=0.3, already=0.4) == pytest.approx(0.1)
    assert within(0.5, alpha=0.3, already=2.0) == 0.0  # the others have gone there already
    assert within(0.5, alpha=0.3, already=-2.0) == 0.3


def test_a_slope_is_that_of_least_squares_and_forgets() -> None:
    slope = Slope(memory=1_000_000)
    pairs = [(vector(1.0, -2.0), vector(0.5, -1.5)), (vector(2.0, 0.0), vector(1.0, 3.0))]
    for x, y in pairs:
        slope.observe(x, y)
    assert slope.value == pytest.approx((0.5 + 3.0 + 2.0) / (5.0 + 4.0), rel=1e-4)

    def error(rho: float) -> float:
        return sum(float(((y - rho * x) ** 2).sum()) for x, y in pairs)

    assert error(slope.value) < min(error(slope.value + 0.01), error(slope.value - 0.01))
    quick = Slope(memory=2)
    quick.observe(vector(1.0), vector(1.0))
    quick.observe(vector(1.0), vector(0.0))
    assert quick.value == pytest.approx(0.5 / 1.5)


def test_a_slope_stays_between_0_and_1() -> None:
    slope = Slope(memory=10)
    assert slope.value == 0.0
    slope.observe(vector(1.0), vector(-3.0))
    assert slope.value == 0.0
    slope.observe(vector(1.0), vector(30.0))
    assert slope.value == 1.0


def test_cached_updates_by_hand(tmp_path: Path) -> None:
    """Devices 0 and 1 pull apart by (2, 0) and (0, 2); their mean is (1, 1), and 0 comes again with (3, 1)."""
    correction = CachedUpdates(0.5, 0.0, federation(tmp_path))
    assert close(correction.corrected(0, vector(2.0, 0.0)), 2.0, 0.0)
    assert close(correction.corrected(1, vector(0.0, 2.0)), 0.0, 2.0)
    assert close(correction.corrected(0, vector(3.0, 1.0)), 2.5, 1.5)  # (3, 1) - 0.5 ((2, 0) - (1, 1))
    assert close(correction.mean_h, 1.5, 1.5)
    assert correction.slope.value == pytest.approx(2.0 / 2.0)  # <(2, 0), (1, -1)> over |(1, -1)|^2


def test_the_stride_by_hand(tmp_path: Path) -> None:
    """The same uploads: each counts what the mean is with it in it twice more; what is remembered has none of that."""
    correction = CachedUpdates(0.5, 2.0, federation(tmp_path))
    assert close(correction.corrected(0, vector(2.0, 0.0)), 6.0, 0.0)  # it is the mean
    assert close(correction.corrected(1, vector(0.0, 2.0)), 2.0, 4.0)  # (0, 2) + 2 (1, 1)
    assert close(correction.corrected(0, vector(3.0, 1.0)), 5.5, 4.5)  # (2.5, 1.5) + 2 (1.5, 1.5)
    assert close(correction.mean_h, 1.5, 1.5)


@pytest.mark.parametrize(("given", "stride"), [({}, 1.0), ({"calibrate": False}, 0.0), ({"calibrate": "no"}, 0.0)])
def test_a_stride_is_for_devices_that_are_calibrated(given: dict[str, Any], stride: float) -> None:
    assert FedASMUR(**given).stride == stride
    assert FedASMUR(**given, stride=0.5).stride == 0.5


def test_what_devices_do_again_is_corrected_and_what_is_chance_is_not(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    own = torch.randn((4, 200), generator=generator)
    for spread, low, high in ((1.0, 0.85, 1.0), (0.0, 0.0, 0.15)):
        correction = CachedUpdates(None, 1.0, federation(tmp_path / str(spread)))
        for _ in range(30):
            for device in range(4):
                noise = torch.randn(200, generator=generator) * (0.1 if spread else 1.0)
                correction.corrected(device, spread * own[device] + noise)
        assert low <= correction.strength <= high


def test_the_dynamic_regulariser_by_hand(tmp_path: Path) -> None:
    """Four devices: each displacement adds a quarter of itself to the mean of h; few examples are pulled more."""
    correction = DynamicRegulariser(0.1, federation(tmp_path))
    assert correction.pull(0) == pytest.approx(0.1 * 25 / 10)
    assert close(correction.corrected(0, vector(4.0, 0.0)), 5.0, 0.0)
    assert close(correction.corrected(1, vector(0.0, -4.0)), 1.0, -5.0)


def arrived(device: int, base: Model, numbers: Tensor, staleness: int, fresh: Model | None = None) -> Upload:
    note = RefreshNote() if fresh is None else RefreshNote(1.0, 1)
    return Upload(0, device, base, fresh, staleness, Report(numbers, 10), lr=0.1, note=note)


def test_the_server_by_hand(tmp_path: Path) -> None:
    """A rebased upload: 8 versions stale, refreshed to 6 versions later after 1 of 4 steps, so 8 - 4.5 = 3.5 count."""
    server = FedASMUR(correction="none", reach=None).aggregator(federation(tmp_path))
    base, fresh, current = model(2, 0.0, 0.0), model(8, 1.0, 1.0), model(9, 2.0, 2.0)
    made = server.aggregate(current, [arrived(0, base, vector(1.5, 0.0), 8, fresh)])
    alpha = weights.squash(0.9, 8.0 / (math.sqrt(10) * math.sqrt(3.5)) + 0.1)
    assert made.weights == pytest.approx([alpha])
    assert close(made.vector, 2.0 + 0.5 * alpha, 2.0 - alpha)
    assert made.details["effective"] == pytest.approx(3.5)
    plain = FedASMUR(correction="none", effective_staleness=False).aggregator(federation(tmp_path))
    assert plain.aggregate(current, [arrived(0, base, vector(1.5, 0.0), 8, fresh)]).details["effective"] == 8


def test_statistics_are_mixed_not_stepped(tmp_path: Path) -> None:
    """The variance of a normalised layer falls from 4 to 0.1 on a device that is rebased on one with 0.2."""
    whole = federation(tmp_path, module=nn.BatchNorm1d(1))  # weight, bias; mean, variance
    base, fresh = model(0, 1.0, 0.0, 0.0, 4.0), model(1, 1.0, 0.0, 0.0, 0.2)
    made = FedASMUR().aggregator(whole).aggregate(fresh, [arrived(0, base, vector(1.0, 0.0, 0.0, 0.1), 2, fresh)])
    assert 0.1 < float(made.vector[3]) < 0.2


def test_the_way_that_others_have_gone_is_counted_from_where_the_device_trained(tmp_path: Path) -> None:
    """A quarter of the steps at (0, 0), the rest at (1, 1): the model has moved by (1.25, 1.25) since (0.75, 0.75)."""
    server = FedASMUR(correction="none", reach=1.0).aggregator(federation(tmp_path))
    base, fresh, current = model(2, 0.0, 0.0), model(8, 1.0, 1.0), model(9, 2.0, 2.0)
    made = server.aggregate(current, [arrived(0, base, vector(3.0, 2.0), 8, fresh)])  # (2, 1) of its own
    assert made.details["gone"] == pytest.approx(0.75)
    assert made.weights == pytest.approx([0.25])
    assert close(made.vector, 2.5, 2.25)
    unrefreshed = server.aggregate(current, [arrived(0, base, vector(2.0, 1.0), 8)])
    assert unrefreshed.details["gone"] == pytest.approx(6.0 / 5.0)
    assert unrefreshed.weights == [0.0]
    assert close(unrefreshed.vector, 2.0, 2.0)


def test_equal_devices_that_all_pull_one_way_do_not_overshoot(tmp_path: Path) -> None:
    """Ten uploads from the same model, each all the way to (1, 1): added up by their weights alone they go beyond."""
    ends = {}
    for reach in (None, 1.0):
        server = FedASMUR(correction="none", reach=reach).aggregator(federation(tmp_path))
        base, current = model(0, 0.0, 0.0), model(0, 0.0, 0.0)
        for arrival in range(10):
            made = server.aggregate(current, [arrived(arrival % 4, base, vector(1.0, 1.0), arrival + 1)])
            current = Model(arrival + 1, made.vector)
        ends[reach] = float(current.vector[0])
    assert ends[None] > 2.0
    assert ends[1.0] == pytest.approx(1.0)


def test_an_update_counts_for_no_more_than_a_usual_one_and_a_half(tmp_path: Path) -> None:
    """After five updates of length 1, one of length 8, as of a device that diverges."""
    moved = {}
    for clip in (None, 1.5):
        server = FedASMUR(correction="none", reach=None, clip=clip).aggregator(federation(tmp_path))
        base = model(3, 0.0, 0.0)
        for device in range(4):
            server.aggregate(base, [arrived(device, base, vector(0.6, 0.8), 1)])
        server.aggregate(base, [arrived(0, base, vector(0.0, 1.0), 1)])
        made = server.aggregate(base, [arrived(1, base, vector(0.0, -8.0), 1)])
        moved[clip] = float(made.vector[1]) / made.weights[0]
    assert moved == pytest.approx({None: -8.0, 1.5: -1.5})


@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_an_update_is_shortened_along_the_way_that_the_device_went(beta: float, tmp_path: Path) -> None:
    """(-3, 3) on top of a fresh model at (4, 0): nearer to the model (0, 0) that the device was sent first."""
    server = FedASMUR(correction="none", reach=None).aggregator(federation(tmp_path))
    base, fresh = model(3, 0.0, 0.0), model(4, 4.0, 0.0)
    for device in range(5):
        server.aggregate(base, [arrived(device % 4, base, vector(0.6, 0.8), 1)])
    sent = replace(arrived(1, base, vector(4.0 * beta - 3.0, 3.0), 2, fresh), note=RefreshNote(beta, 1))
    made = server.aggregate(fresh, [sent])
    assert close((made.vector - fresh.vector) / made.weights[0], -1.5 / math.sqrt(2), 1.5 / math.sqrt(2))


def session(newer: Model | None, memory: dict[str, Any], **settings: Any) -> tuple[list[Any], Report]:
    """A device at (0, 0) whose first half ends in (1, 0), and whose second half adds (0, 1)."""
    given = task(vector(0.0, 0.0), trainable=2, **({"pull": 0.2} if settings.get("correction") == "dynamic" else {}))
    running = FedASMUR(**settings).learner().train(given, WORK, memory)
    commands: list[Any] = [next(running)]
    commands.append(running.send(Trained(vector(1.0, 0.0), 0.4)))
    commands.append(running.send(newer))
    with pytest.raises(StopIteration) as end:
        running.send(Trained(commands[-1].vector + vector(0.0, 1.0), 0.2))
    return commands, end.value.value


def test_a_device_goes_on_from_the_fresh_model_with_its_progress() -> None:
    (first, ask, second), report = session(model(6, 5.0, 5.0), {})
    assert isinstance(first, Train)
    assert isinstance(ask, Fetch)
    assert isinstance(second, Train)
    assert (first.steps, second.steps) == (range(2), range(2, 4))
    assert close(second.vector, 6.0, 5.0)
    assert close(report.vector, 6.0, 6.0)
    assert report.loss == pytest.approx(0.3)
    assert report.note == {"beta": 1.0, "merged_after": 2, "slot": 2, "reward": 3.0}


def test_a_device_that_finds_nothing_newer_trains_as_if_it_had_not_asked() -> None:
    (_, _, second), report = session(None, {})
    assert close(second.vector, 1.0, 0.0)
    assert report.note == {"slot": 2, "reward": 0.0}


@pytest.mark.parametrize("calibrate", [True, False])
def test_both_halves_of_a_training_are_calibrated_or_neither(calibrate: bool) -> None:
    (first, _, second), _ = session(model(6, 5.0, 5.0), {}, calibrate=calibrate)
    assert first.calibrated is second.calibrated is calibrate


def test_mixing_gives_up_a_share_of_the_progress() -> None:
    (_, _, second), report = session(model(6, 5.0, 5.0), {}, fresh="mix", beta=0.25)
    assert close(second.vector, 2.0, 1.25)
    assert report.note["beta"] == 0.25


def test_it_calibrates_as_any_method_can(run: Run) -> None:
    bare = {"name": "fedasmu-r", "calibrate": False, "stride": 1.0}
    ours, given = outputs(run(algorithm={"name": "fedasmu-r"})), outputs(run(algorithm=bare, local={"calibrate": True}))
    assert ours["model.safetensors"] == given["model.safetensors"]
    assert ours["model.safetensors"] != outputs(run(algorithm=bare))["model.safetensors"]


def test_the_regularisers_anchor_moves_with_the_rebase() -> None:
    memory: dict[str, Any] = {"h": vector(0.5, 0.0)}
    (first, _, second), _ = session(model(6, 5.0, 5.0), memory, correction="dynamic")
    assert (first.pull, second.pull) == (0.2, 0.2)
    assert close(first.anchor, -0.5, 0.0)
    assert close(second.anchor, 4.5, 5.0)
    assert close(memory["h"], 1.5, 1.0)  # 0.5 + the device's own displacement of (1, 1)


def test_learned_slots_remember_what_they_saved() -> None:
    memory: dict[str, Any] = {}
    session(model(6, 5.0, 5.0), memory, slots="learned", epsilon=0.0)
    assert max(value for row in memory["q"].values() for value in row) > 0
    assert 1 <= memory["slot"] <= 3


def test_without_a_slot_to_ask_at_a_device_trains_in_one_piece() -> None:
    running = FedASMUR(fresh="none").learner().train(task(vector(0.0, 0.0), trainable=2), WORK, {})
    assert next(running).steps == range(4)  # type: ignore[union-attr]


def test_with_everything_off_it_is_fedasmu_d_without_a_merge(run: Run) -> None:
    plain = {
        "name": "fedasmu-r",
        "fresh": "none",
        "correction": "none",
        "reach": None,
        "calibrate": False,
        "clip": None,
    }
    fixed = {"lr_lambda": 0.0, "lr_sigma": 0.0, "lr_iota": 0.0}
    other = {"name": "fedasmu-d", "merge": False, **fixed}
    ours, theirs = outputs(run(algorithm=plain)), outputs(run(algorithm=other))
    assert ours["metrics.csv"] == theirs["metrics.csv"]


def test_a_network_may_have_more_outputs_than_there_are_classes(tmp_path: Path) -> None:
    def wide() -> nn.Module:
        torch.manual_seed(0)
        return nn.Linear(20, 5)

    found = [
        Experiment(settings(algorithm="fedasmu-r", engine=engine), model=wide, data=blobs()).run(tmp_path / engine)
        for engine in ("native", "torch")
    ]
    assert found[0].score == pytest.approx(found[1].score, abs=0.02)
    assert found[0].score > 0.8
