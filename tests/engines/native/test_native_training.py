"""Whole trainings of the native engine against PyTorch's: steps, corrections, evaluation, repeatability."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedasmu import Experiment, models
from fedasmu.data.examples import Examples
from fedasmu.engines import native
from fedasmu.engines.pytorch import TorchEngine
from fedasmu.vector import Layout
from helpers.gradients import sgd

pytestmark = pytest.mark.skipif(native.available() is not None, reason=str(native.available()))

NETWORKS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "lenet5": ((1, 28, 28), {}),
    "lenet5 padded": ((1, 28, 28), {"pad": 2}),
    "cnn": ((3, 32, 32), {}),
    "cnn same": ((3, 20, 20), {"padding": "same"}),
    "cnn_tf": ((3, 32, 32), {}),
    "softmax": ((40,), {}),
    "mlp": ((1, 28, 28), {}),
}


def examples(shape: tuple[int, ...], count: int) -> Examples:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=generator)
    targets = torch.randint(10, (count,), generator=generator)
    return Examples(inputs, targets, torch.full((shape[0],), 1 / 128), torch.full((shape[0],), -1.0))


def lenet() -> tuple[nn.Module, Layout, native.NativeEngine, Tensor]:
    module = models.build("lenet5", shape=(1, 28, 28), classes=10, seed=0)
    layout = Layout.of(module)
    return module, layout, native.NativeEngine(module, layout, (1, 28, 28)), layout.read(module)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_small_networks_train_as_with_pytorch(name: str) -> None:
    shape, options = NETWORKS[name]
    module = models.build(name.split()[0], shape=shape, classes=10, seed=0, **options)
    layout = Layout.of(module)
    data = examples(shape, 45)
    batches = list(torch.split(torch.randperm(45, generator=torch.Generator().manual_seed(2)), 10))
    start = layout.read(module)
    ours, theirs = start.clone(), start.clone()
    loss = native.NativeEngine(module, layout, shape).train(ours, data, batches, 0.05)
    assert loss == pytest.approx(sgd(module, theirs, data, batches, 0.05), rel=1e-4)
    assert (ours - theirs).norm() <= 1e-4 * (theirs - start).norm()


@pytest.mark.parametrize("whole", [True, False], ids=["of the vector", "of its trainable part"])
@pytest.mark.parametrize("pull", [0.0, 0.3])
@pytest.mark.parametrize("masked", [True, False])
def test_the_corrections_of_fedprox_feddyn_and_asyncdrop(whole: bool, pull: float, masked: bool) -> None:
    module = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.Linear(4, 10))
    module[2].requires_grad_(False)
    layout = Layout.of(module)
    data = examples((6,), 30)
    batches = list(torch.split(torch.arange(30), 13))
    generator = torch.Generator().manual_seed(3)
    size = layout.size if whole else layout.trainable
    anchor = torch.randn(size, generator=generator)
    mask = (torch.rand(size, generator=generator) < 0.5).float() if masked else None
    start = layout.read(module)
    ours, theirs = start.clone(), start.clone()
    native.NativeEngine(module, layout, (6,)).train(ours, data, batches, 0.1, pull=pull, anchor=anchor, mask=mask)
    sgd(module, theirs, data, batches, 0.1, pull=pull, anchor=anchor, mask=mask)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert torch.equal(ours[layout.trainable :], start[layout.trainable :])


@pytest.mark.parametrize("bias", [True, False])
def test_outputs_that_are_raised_before_the_loss(variant: str, bias: bool) -> None:
    module = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 10, bias=bias))
    layout, data = Layout.of(module), examples((6,), 30)
    batches = list(torch.split(torch.arange(30), 13))
    shift = torch.linspace(-4.0, 2.0, 10)
    start = layout.read(module)
    ours, theirs = start.clone(), start.clone()
    loss = native.NativeEngine(module, layout, (6,)).train(ours, data, batches, 0.1, shift=shift)
    expected = TorchEngine(module, layout, torch.device("cpu")).train(theirs, data, batches, 0.1, shift=shift)
    assert loss == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_a_shift_for_more_than_there_are_outputs_is_refused() -> None:
    _, _, network, vector = lenet()
    with pytest.raises(ValueError, match="shift"):
        network.train(vector, examples((1, 28, 28), 4), [torch.arange(4)], 0.1, shift=torch.zeros(11))


def test_evaluation_sums_the_losses_and_counts_the_correct() -> None:
    module, _, network, vector = lenet()
    data = examples((1, 28, 28), 203)
    inputs, targets = data.batch(torch.arange(203))
    with torch.no_grad():
        logits = module(inputs)
    loss, correct = network.evaluate(vector, data)
    assert loss == pytest.approx(float(cross_entropy(logits, targets, reduction="sum")), rel=1e-5)
    assert correct == int((logits.argmax(1) == targets).sum())


def test_the_same_bits_again_in_any_network_and_thread() -> None:
    _, layout, network, vector = lenet()
    module = models.build("lenet5", shape=(1, 28, 28), classes=10, seed=0)
    data = examples((1, 28, 28), 100)
    batches = list(torch.split(torch.arange(100), 23))
    results: list[Tensor] = []

    def work(use: native.NativeEngine) -> None:
        mine = torch.empty(layout.size + 5)[1:-4].copy_(vector)  # elsewhere in memory, and not aligned
        use.train(mine, data, batches, 0.1)
        results.append(mine)

    work(network)
    network.evaluate(vector, data)
    work(network)
    threads = [threading.Thread(target=work, args=[native.NativeEngine(module, layout, (1, 28, 28))]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all(torch.equal(results[0], other) for other in results)


def test_many_networks_do_not_pile_up() -> None:
    module, layout, _, vector = lenet()
    data = examples((1, 28, 28), 3)
    losses = {native.NativeEngine(module, layout, (1, 28, 28)).loss(vector, data, torch.arange(3)) for _ in range(50)}
    assert len(losses) == 1


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_diverged_model_is_seen_and_does_not_crash(poison: float) -> None:
    _, layout, network, vector = lenet()
    data = examples((1, 28, 28), 20)
    vector[:] = poison
    loss, gradient = network.gradient(vector, data, torch.arange(20))
    assert loss != loss
    assert gradient.isnan().any()
    assert network.evaluate(vector, data)[1] <= 20
    _, _, fresh, clean = lenet()
    poisoned = Examples(torch.full((4, 1, 28, 28), poison), torch.zeros(4, dtype=torch.int64))
    loss, _ = fresh.gradient(clean, poisoned, torch.arange(4))
    assert loss != loss
    again = network.loss(
        layout.read(models.build("lenet5", shape=(1, 28, 28), classes=10, seed=0)), data, torch.arange(20)
    )
    assert again == again  # what was NaN is not remembered


def test_a_whole_run_ends_where_pytorchs_does(tmp_path: Path) -> None:
    """The same events, and models that differ by rounding alone."""
    results = {}
    for engine in ("native", "torch"):
        settings = {
            "engine": engine,
            "model": "lenet5",
            "data": {"name": "fashion-mnist-small"},
            "fleet": {"devices": 40},
            "local": {"epochs": 1, "batch": 32, "lr": 0.02},
            "algorithm": {"name": "fedasync"},
            "evaluate": {"every": 10},
            "stop": {"uploads": 20},
        }
        results[engine] = Experiment(settings).run(tmp_path / engine)
    ours, theirs = results["native"], results["torch"]
    assert ours.curve["time"].tolist() == theirs.curve["time"].tolist()
    assert np.allclose(ours.curve["loss"], theirs.curve["loss"], rtol=1e-3)
    assert np.allclose(ours.curve["accuracy"], theirs.curve["accuracy"], atol=0.01)
    for name, tensor in ours.state_dict.items():
        assert torch.allclose(tensor, theirs.state_dict[name], atol=1e-3), name
