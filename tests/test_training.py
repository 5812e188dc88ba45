"""The only place that runs SGD: the same command always gives the same bits, and they are those of the formula."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedasmu.engines.goal import Goal, mse, rmse
from fedasmu.engines.native import NativeEngine
from fedasmu.protocol import Evaluate, Evaluated, Probe, Probed, Train, Trained, Workload
from fedasmu.seeding import derive
from fedasmu.training import Trainer, batches, calibration, slope
from fedasmu.vector import Layout
from helpers.blobs import blobs, softmax

DEVICE, SEED, BATCH, EPOCHS = 7, 1234, 8, 2  # device 7 holds 27 examples: three full batches and a partial one


def hidden(*extra: nn.Module) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(20, 6), *extra, nn.ReLU(), nn.Linear(6, 2))


def a_trainer(module: nn.Module | None = None) -> tuple[Trainer, Tensor]:
    module = module or softmax()
    layout = Layout.of(module)
    vector = layout.read(module)
    return Trainer(module, layout, blobs(), BATCH, EPOCHS), vector


def perform(trainer: Trainer, command: Any, seed: int = SEED) -> Any:
    return trainer.perform(command, DEVICE, seed)


def shard_batches() -> list[Tensor]:
    shard = blobs().shards[DEVICE]
    return batches(shard, Workload(len(shard), BATCH, EPOCHS), SEED, range(8))


def test_each_epoch_visits_every_example_once_in_an_order_of_its_own() -> None:
    chosen = shard_batches()
    shard = blobs().shards[DEVICE]
    assert [len(indices) for indices in chosen] == [8, 8, 8, 3] * 2
    first, second = torch.cat(chosen[:4]), torch.cat(chosen[4:])
    assert sorted(first.tolist()) == sorted(second.tolist()) == sorted(shard.tolist())
    assert first.tolist() != second.tolist()


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 40), st.integers(1, 12), st.integers(1, 4))
def test_batches_of_a_cut_training_are_those_of_one_in_a_piece(
    data: st.DataObject, examples: int, batch: int, epochs: int
) -> None:
    shard, work = torch.arange(100, 100 + examples), Workload(examples, batch, epochs)
    cut = data.draw(st.integers(0, work.steps))
    whole = batches(shard, work, 5, range(work.steps))
    pieces = batches(shard, work, 5, range(cut)) + batches(shard, work, 5, range(cut, work.steps))
    assert [piece.tolist() for piece in pieces] == [piece.tolist() for piece in whole]


@pytest.mark.parametrize("cut", [1, 4, 5])
def test_a_cut_training_gives_the_same_bits_as_one_in_a_piece(cut: int) -> None:
    trainer, start = a_trainer(hidden(nn.BatchNorm1d(6)))
    whole = perform(trainer, Train(start, range(8), 0.1))
    first = perform(trainer, Train(start, range(cut), 0.1))
    second = perform(trainer, Train(first.vector, range(cut, 8), 0.1))
    assert torch.equal(second.vector, whole.vector)
    assert (cut * first.loss + (8 - cut) * second.loss) / 8 == pytest.approx(whole.loss)


def test_sgd_is_that_of_torch_optim() -> None:
    """Same bits: both compute p + (-lr) g in one fused operation on the same gradients."""
    trainer, start = a_trainer(hidden())
    reference, data = hidden(), blobs()
    optimiser = torch.optim.SGD(reference.parameters(), lr=0.1)
    losses = []
    for count, indices in enumerate(shard_batches(), start=1):
        optimiser.zero_grad()
        loss = cross_entropy(reference(data.train.inputs[indices]), data.train.targets[indices])
        torch.autograd.backward(loss)
        optimiser.step()
        losses.append(loss.item())
        trained = perform(trainer, Train(start, range(count), 0.1))
        assert torch.equal(trained.vector, Layout.of(reference).read(reference)), f"step {count}"
    assert trained.loss == pytest.approx(sum(losses) / 8)


def test_pull_anchor_and_mask_follow_the_formula() -> None:
    trainer, start = a_trainer()
    data, mask = blobs(), (torch.arange(42) % 3 > 0).float()
    anchor = torch.linspace(-1, 1, 42)
    expected = start.clone()
    for indices in shard_batches()[:3]:
        weights = expected.clone().requires_grad_()
        logits = data.train.inputs[indices] @ weights[:40].view(2, 20).T + weights[40:]
        (gradient,) = torch.autograd.grad(cross_entropy(logits, data.train.targets[indices]), weights)
        expected -= 0.1 * mask * (gradient + 0.5 * (expected - anchor))
    trained = perform(trainer, Train(start, range(3), 0.1, pull=0.5, anchor=anchor, mask=mask))
    # Not the same bits: the sum is taken in another order.
    torch.testing.assert_close(trained.vector, expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(trained.vector[mask == 0], start[mask == 0])


def test_a_calibration_by_hand() -> None:
    expected = 2 / 3 * torch.tensor([3 / 6, 2 / 6, 1 / 6]).log()  # two of the three classes are there
    torch.testing.assert_close(calibration(torch.tensor([0, 1, 0]), 3), expected)
    torch.testing.assert_close(calibration(torch.tensor([2, 1, 0]), 3), torch.full((3,), 1 / 3).log())


def test_a_calibrated_training_follows_the_formula() -> None:
    trainer, start = a_trainer()
    data, shift = blobs(), calibration(blobs().train.targets[blobs().shards[DEVICE]], 2)
    expected = start.clone()
    for indices in shard_batches()[:3]:
        weights = expected.clone().requires_grad_()
        logits = data.train.inputs[indices] @ weights[:40].view(2, 20).T + weights[40:]
        (gradient,) = torch.autograd.grad(cross_entropy(logits + shift, data.train.targets[indices]), weights)
        expected -= 0.1 * gradient
    trained = perform(trainer, Train(start, range(3), 0.1, calibrated=True))
    torch.testing.assert_close(trained.vector, expected, rtol=1e-5, atol=1e-6)
    assert not torch.equal(trained.vector, perform(trainer, Train(start, range(3), 0.1)).vector)


def test_a_trainer_calibrates_whatever_a_method_asks_for() -> None:
    asked, start = a_trainer()
    always = Trainer(softmax(), Layout.of(softmax()), blobs(), BATCH, EPOCHS, goal=Goal(calibrated=True))
    expected = perform(asked, Train(start, range(3), 0.1, calibrated=True))
    assert torch.equal(perform(always, Train(start, range(3), 0.1)).vector, expected.vector)


@pytest.mark.parametrize("native", [True, False])
def test_a_probe_of_a_calibrated_device_is_of_what_its_steps_descend_on(native: bool) -> None:
    module, data = hidden(nn.BatchNorm1d(6), nn.Dropout(0.5)), blobs()
    layout = Layout.of(module)
    engine = NativeEngine(module, layout, (20,)) if native else None
    trainer = Trainer(module, layout, data, BATCH, EPOCHS, native=engine, goal=Goal(calibrated=True))
    start = layout.read(module)
    before, other = start.clone(), torch.randn(layout.size)
    step, size = perform(trainer, Train(start, range(2, 3), 0.5)), layout.trainable
    found: Probed = perform(trainer, Probe(start, 2, gradient=True))
    assert found.gradient is not None
    assert torch.equal(start[:size] - 0.5 * found.gradient, step.vector[:size])
    assert found.loss == step.loss == perform(trainer, Probe(start, 2)).loss
    assert perform(trainer, Probe(start, 2)).gradient is None
    assert perform(trainer, Probe(start, 2, gradient=True, between=(start, other))).slope == slope(
        found.gradient, start, other
    )
    assert torch.equal(start, before)
    plain: Probed = perform(Trainer(module, layout, data, BATCH, EPOCHS, native=engine), Probe(start, 2, gradient=True))
    assert plain.loss != found.loss


def test_an_objective_of_ones_own_is_not_calibrated() -> None:
    """An engine that has to compute it would have to reach into it: rather none does than one of the two."""
    with pytest.raises(ValueError, match="it is the cross-entropy that can be calibrated"):
        Train(torch.zeros(42), range(3), 0.1, objective=lambda module, inputs, targets: inputs.sum(), calibrated=True)


def test_how_frequent_its_classes_are_does_not_move_a_calibrated_device() -> None:
    """Nothing can be learned from inputs that are all 0: what is left of the pull is (n_c + 1) / (n + C) - n_c / n."""
    data = blobs()
    blind = replace(data, train=replace(data.train, inputs=torch.zeros_like(data.train.inputs)))
    counts = torch.bincount(data.train.targets[data.shards[DEVICE]], minlength=2)
    trainer = Trainer(softmax(), Layout.of(softmax()), blind, batch=len(data.shards[DEVICE]), epochs=1)
    moved = [perform(trainer, Train(torch.zeros(42), range(1), 1.0, calibrated=how)).vector for how in (False, True)]
    torch.testing.assert_close(moved[0][40:], counts / counts.sum() - 1 / 2)
    torch.testing.assert_close(moved[1][40:], counts / counts.sum() - (counts + 1) / (counts.sum() + 2))


def test_a_loss_without_classes_has_nothing_to_calibrate() -> None:
    module, data = nn.Linear(20, 1), blobs()
    numbers = replace(data, train=replace(data.train, targets=data.train.inputs[:, :1].clone()))
    trainer = Trainer(module, Layout.of(module), numbers, BATCH, EPOCHS, goal=Goal(loss=mse, metric=rmse))
    start = Layout.of(module).read(module)
    plain, calibrated = (perform(trainer, Train(start, range(3), 0.1, calibrated=how)) for how in (False, True))
    assert torch.equal(plain.vector, calibrated.vector)


def test_without_an_anchor_the_pull_is_towards_the_start() -> None:
    trainer, start = a_trainer()
    explicit = perform(trainer, Train(start, range(8), 0.1, pull=2.0, anchor=start.clone()))
    implicit = perform(trainer, Train(start, range(8), 0.1, pull=2.0))
    free = perform(trainer, Train(start, range(8), 0.1))
    assert torch.equal(implicit.vector, explicit.vector)
    assert (implicit.vector - start).norm() < (free.vector - start).norm()


def test_a_loss_of_its_own_replaces_cross_entropy() -> None:
    def towards_zero(module: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return 0.5 * torch.stack([parameter.square().sum() for parameter in module.parameters()]).sum()

    trainer, start = a_trainer()
    trained = perform(trainer, Train(start, range(2), 0.5, objective=towards_zero))
    torch.testing.assert_close(trained.vector, start / 4)


def test_a_command_never_writes_to_its_vector() -> None:
    trainer, start = a_trainer(hidden(nn.BatchNorm1d(6)))
    before = start.clone()
    perform(trainer, Train(start, range(8), 0.1, pull=0.1))
    perform(trainer, Probe(start, 0, gradient=True))
    perform(trainer, Evaluate(start))
    assert torch.equal(start, before)


def test_no_steps_change_nothing() -> None:
    trainer, start = a_trainer()
    trained = perform(trainer, Train(start, range(3, 3), 0.1))
    assert torch.equal(trained.vector, start)
    assert trained.loss == 0


@pytest.mark.parametrize("step", [0, 3, 6])
def test_a_probe_is_the_loss_and_gradient_of_that_step(step: int) -> None:
    trainer, start = a_trainer(hidden())
    module, data = hidden(), blobs()
    indices = shard_batches()[step]
    loss = cross_entropy(module(data.train.inputs[indices]), data.train.targets[indices])
    torch.autograd.backward(loss)
    expected = torch.cat([parameter.grad.flatten() for parameter in module.parameters() if parameter.grad is not None])
    probed = perform(trainer, Probe(start, step, gradient=True))
    assert isinstance(probed, Probed)
    assert probed.gradient is not None
    assert torch.equal(probed.gradient, expected)
    assert probed.loss == loss.item()
    plain = perform(trainer, Probe(start, step))
    assert plain.loss == pytest.approx(probed.loss)
    assert plain.gradient is None
    sloped = perform(trainer, Probe(start, step, gradient=True, between=(start, start - expected)))
    assert sloped.gradient is None  # a whole model, that nobody asked for
    assert sloped.loss == probed.loss
    assert sloped.slope == pytest.approx(-float(expected.square().sum()), rel=1e-4)


def test_a_slope_leaves_out_what_is_not_trained() -> None:
    """<(1, 2), (3 - 1, 1 - 4)> = 2 - 6; the third number is a statistic"""
    assert slope(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0, 9.0]), torch.tensor([3.0, 1.0, 5.0])) == -4.0


def test_a_gradient_outlives_the_next_command() -> None:
    trainer, start = a_trainer()
    probed = perform(trainer, Probe(start, 0, gradient=True))
    kept = probed.gradient.clone()
    perform(trainer, Train(start, range(8), 0.1))
    assert torch.equal(probed.gradient, kept)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_no_command_disturbs_a_later_one(momentum: float | None) -> None:
    """BatchNorm keeps running statistics; with momentum=None it also counts its batches, in an integer."""
    command = Train(a_trainer(hidden(nn.BatchNorm1d(6, momentum=momentum)))[1], range(8), 0.1)
    alone, _ = a_trainer(hidden(nn.BatchNorm1d(6, momentum=momentum)))
    busy, start = a_trainer(hidden(nn.BatchNorm1d(6, momentum=momentum)))
    for other in (Probe(start, 1), Probe(start + 1, 2, gradient=True), Evaluate(start), Train(start, range(5), 1.0)):
        perform(busy, other, seed=99)
    assert torch.equal(perform(busy, command).vector, perform(alone, command).vector)


def test_evaluation_is_the_mean_loss_and_accuracy_on_the_test_examples() -> None:
    trainer, start = a_trainer(hidden(nn.BatchNorm1d(6), nn.Dropout(0.5)))
    module, test = hidden(nn.BatchNorm1d(6), nn.Dropout(0.5)).eval(), blobs().test
    with torch.no_grad():
        logits = module(test.inputs)
    evaluated = perform(trainer, Evaluate(start))
    assert isinstance(evaluated, Evaluated)
    assert evaluated.score == int((logits.argmax(1) == test.targets).sum()) / 100
    assert evaluated.loss == pytest.approx(float(cross_entropy(logits, test.targets)))


@pytest.mark.parametrize(("share", "least", "most"), [(0.0, 0.0, 1e-6), (0.5, 1e-3, 1.0)])
def test_dropout_is_seeded_by_the_task(share: float, least: float, most: float) -> None:
    """A batch as large as the shard holds the same examples whatever the seed: only dropout makes a difference."""
    module = hidden(nn.Dropout(share))
    layout = Layout.of(module)
    start = layout.read(module)
    trainer = Trainer(module, layout, blobs(), 32, EPOCHS)
    losses = [perform(trainer, Probe(start, 0), seed).loss for seed in range(5)]
    assert least <= max(losses) - min(losses) <= most
    assert losses == [perform(trainer, Probe(start, 0), seed).loss for seed in range(5)]


def test_dropout_draws_what_torch_draws_from_the_seed() -> None:
    module, data = hidden(nn.Dropout(0.5)), blobs()
    trainer, start = a_trainer(module)
    probed = perform(trainer, Probe(start, 0))
    torch.manual_seed(derive(SEED, "train", 0))
    indices = shard_batches()[0]
    assert probed.loss == cross_entropy(module.train()(data.train.inputs[indices]), data.train.targets[indices]).item()


def test_the_global_generator_is_left_alone() -> None:
    trainer, start = a_trainer(hidden(nn.Dropout(0.5)))
    before = torch.get_rng_state()
    for command in (Train(start, range(8), 0.1), Probe(start, 0), Probe(start, 0, gradient=True), Evaluate(start)):
        perform(trainer, command)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_global_generator_does_not_matter() -> None:
    trainer, start = a_trainer(hidden(nn.Dropout(0.5)))
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        results.append(perform(trainer, Train(start, range(8), 0.1)))
    assert isinstance(results[0], Trained)
    assert torch.equal(results[0].vector, results[1].vector)


def test_frozen_parameters_stay_where_they_are() -> None:
    module = hidden()
    module.get_submodule("0").requires_grad_(False)
    trainer, start = a_trainer(module)
    layout = Layout.of(module)
    trained = perform(trainer, Train(start, range(8), 0.1, pull=0.1))
    assert torch.equal(trained.vector[layout.trainable :], start[layout.trainable :])
    assert not torch.equal(trained.vector[: layout.trainable], start[: layout.trainable])


def test_an_accelerator_is_not_touched_before_a_command_is_performed() -> None:
    """Workers are forked from the process that builds the trainer, and CUDA does not survive a fork."""
    module = nn.Linear(20, 2)
    Trainer(module, Layout.of(module), blobs(), batch=8, epochs=1, device="cuda")
    assert not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
