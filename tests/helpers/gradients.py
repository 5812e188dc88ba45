"""The native engine beside PyTorch's autograd."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedasmu.data.examples import Examples
from fedasmu.engines import native
from fedasmu.vector import Layout

quick = settings(derandomize=True, deadline=None, max_examples=60)


def examples(shape: tuple[int, ...], count: int, classes: int) -> Examples:
    generator = torch.Generator().manual_seed(count)
    inputs = torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=generator)
    scale, shift = (torch.rand(shape[0], generator=generator) - 0.3 for _ in range(2))
    return Examples(inputs, torch.randint(classes, (count,), generator=generator), scale / 100, shift)


def reference(module: nn.Module, data: Examples, indices: Tensor, dtype: torch.dtype) -> tuple[float, Tensor]:
    inputs, targets = data.batch(indices)
    inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
    loss = cross_entropy(module.to(dtype)(inputs), targets)
    parameters = [p for p in module.parameters() if p.requires_grad]
    gradient = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    module.float()
    return float(loss.detach()), torch.cat([part.flatten() for part in gradient]).double()


def check_batch(module: nn.Module, shape: tuple[int, ...], data: Examples, indices: Tensor) -> None:
    """Loss and gradient are as near to the exact ones as PyTorch's own."""
    layout = Layout.of(module)
    network = native.NativeEngine(module, layout, shape)
    vector = layout.read(module)
    loss, gradient = network.gradient(vector, data, indices)
    exact_loss, exact = reference(module, data, indices, torch.float64)
    _, rounded = reference(module, data, indices, torch.float32)
    assert loss == pytest.approx(exact_loss, rel=1e-5, abs=1e-6)
    # PyTorch's error is small but where rounding switches a ReLU, and then the engine's is as large.
    assert (gradient - exact).norm() <= 5e-6 * exact.norm() + 1e-7 + 2 * (rounded - exact).norm()
    assert network.loss(vector, data, indices) == pytest.approx(loss, rel=1e-6)


def check(module: nn.Module, shape: tuple[int, ...], count: int) -> None:
    """On a random batch with repetitions."""
    indices = torch.randint(count, (count,), generator=torch.Generator().manual_seed(1))
    check_batch(module, shape, examples(shape, count, 3), indices)


def convolution(shape: tuple[int, int, int], *middle: nn.Module) -> nn.Sequential:
    """A network of the middle layers, then a classifier of whatever size they leave."""
    body = nn.Sequential(*middle, nn.Flatten())
    features = body.eval()(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(body, nn.Linear(features, 3)).train()


def sgd(
    module: nn.Module,
    vector: Tensor,
    data: Examples,
    batches: list[Tensor],
    lr: float,
    *,
    pull: float = 0.0,
    anchor: Tensor | None = None,
    mask: Tensor | None = None,
) -> float:
    """What `NativeEngine.train` promises, written with PyTorch."""
    layout = Layout.of(module)
    n, gradient, total = layout.trainable, torch.zeros(layout.trainable), 0.0
    layout.attach(module, vector, gradient)
    for indices in batches:
        gradient.zero_()
        inputs, targets = data.batch(indices)
        loss = cross_entropy(module(inputs), targets)
        torch.autograd.backward(loss)
        with torch.no_grad():
            step = gradient if anchor is None else gradient + pull * (vector[:n] - anchor[:n])
            vector[:n] -= lr * (step if mask is None else mask[:n] * step)
        total += float(loss.detach())
    return total
