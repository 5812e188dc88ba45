"""Momentum, weight decay and Adam, in both engines: PyTorch's own steps, in one piece or cut in two."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedasmu.data.examples import Examples
from fedasmu.engines import native
from fedasmu.engines.contract import Engine
from fedasmu.engines.optimiser import Optimiser
from fedasmu.engines.pytorch import TorchEngine
from fedasmu.engines.rule import Rule
from fedasmu.protocol import Train
from fedasmu.training import Trainer
from fedasmu.vector import Layout
from helpers.blobs import Run, blobs, outputs, softmax
from helpers.uploads import trained

OPTIMISERS = {
    "plain": Optimiser(),
    "decay": Optimiser(weight_decay=0.1),
    "momentum": Optimiser(momentum=0.9),
    "momentum and decay": Optimiser(momentum=0.5, weight_decay=0.1),
    "adam": Optimiser(optimiser="adam"),
    "adam and decay": Optimiser(optimiser="adam", betas=(0.8, 0.95), weight_decay=0.1, eps=1e-4),
}


def pytorchs(module: nn.Module, how: Optimiser) -> torch.optim.Optimizer:
    if how.optimiser == "adam":
        return torch.optim.Adam(module.parameters(), 0.05, how.betas, how.eps, how.weight_decay)
    return torch.optim.SGD(module.parameters(), 0.05, how.momentum, weight_decay=how.weight_decay)


def torch_engine(module: nn.Module, layout: Layout) -> Engine:
    return TorchEngine(module, layout, torch.device("cpu"))


def native_engine(module: nn.Module, layout: Layout) -> Engine:
    if reason := native.available():
        pytest.skip(reason)
    return native.NativeEngine(module, layout, (6,))


@pytest.mark.parametrize("engine", [torch_engine, native_engine])
@pytest.mark.parametrize("how", OPTIMISERS.values(), ids=OPTIMISERS.keys())
def test_the_steps_are_pytorchs_and_a_cut_changes_no_bit(
    engine: Callable[[nn.Module, Layout], Engine], how: Optimiser
) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    layout = Layout.of(module)
    data = Examples(torch.randn(40, 6), torch.arange(40) % 3)
    batches, start = list(torch.split(torch.arange(40), 8)), layout.read(module)

    def trained(*cuts: list[Tensor]) -> Tensor:
        vector, state, done = start.clone(), None, 0
        for part in cuts:
            rule = Rule.of(how, layout.trainable, state, done)
            using.train(vector, data, part, 0.05, rule=rule)
            state, done = rule.state, done + len(part)
        return vector

    optimiser = pytorchs(module, how)
    for indices in batches:
        optimiser.zero_grad()
        cross_entropy(module(data.inputs[indices]), data.targets[indices]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    expected = layout.read(module)
    using = engine(module, layout)
    whole = trained(batches)
    torch.testing.assert_close(whole, expected, rtol=1e-4, atol=1e-6)
    assert torch.equal(whole, trained(batches[:2], batches[2:]))


@pytest.mark.skipif(native.available() is not None, reason=str(native.available()))
def test_a_state_of_another_size_is_refused() -> None:
    module = nn.Linear(6, 3)
    data = Examples(torch.randn(4, 6), torch.zeros(4, dtype=torch.int64))
    network, vector = native.NativeEngine(module, Layout.of(module), (6,)), torch.zeros(21)
    for state in (None, torch.zeros(21)):
        rule = Rule(Optimiser(optimiser="adam"), state)
        with pytest.raises(ValueError, match="the optimiser's state has shape"):
            network.train(vector, data, [torch.arange(4)], 0.1, rule=rule)


@pytest.mark.parametrize("how", [OPTIMISERS["momentum"], OPTIMISERS["adam"]], ids=["momentum", "adam"])
def test_a_task_carries_the_state_over_its_cut_and_begins_without_any(how: Optimiser) -> None:
    module = softmax()
    layout = Layout.of(module)
    trainer = Trainer(module, layout, blobs(), 8, 2, optimiser=how)
    start = layout.read(module)
    whole = trained(trainer.perform(Train(start, range(7), 0.1), 3, 77))
    first = trained(trainer.perform(Train(start, range(4), 0.1), 3, 77))
    second = trained(trainer.perform(Train(first.vector, range(4, 7), 0.1, state=first.state), 3, 77))
    forgetful = trained(trainer.perform(Train(first.vector, range(4, 7), 0.1), 3, 77))
    assert torch.equal(second.vector, whole.vector)
    assert second.state is not None
    assert whole.state is not None
    assert torch.equal(second.state, whole.state)
    assert not torch.equal(forgetful.vector, whole.vector)


@pytest.mark.parametrize("local", [{"momentum": 0.9}, {"optimiser": "adam", "lr": 0.01}], ids=["momentum", "adam"])
def test_a_run_has_the_same_bits_with_workers(run: Run, local: dict[str, object]) -> None:
    """PORT cuts a task at every epoch, and FedASMU at its slot."""
    for method in ("port", "fedasmu"):
        changes = {"algorithm": {"name": method}, "local": local, "stop": {"uploads": 25}}
        inline, parallel = run(**changes), run(workers=2, **changes)
        assert outputs(inline) == outputs(parallel)
    assert inline.accuracy > 0.6


def test_momentum_is_not_adams() -> None:
    with pytest.raises(ValidationError, match=r"momentum = 0\.9: is sgd's; adam has betas"):
        Optimiser(optimiser="adam", momentum=0.9)
