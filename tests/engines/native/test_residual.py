"""Residual networks and their normalisation in the native engine, against PyTorch's autograd."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from fedasmu import models
from fedasmu.data.examples import Examples
from fedasmu.engines import native
from fedasmu.engines.native.graph import Kind
from fedasmu.engines.native.plan import plan
from fedasmu.vector import Layout
from helpers.gradients import check, convolution, examples, quick, sgd

pytestmark = pytest.mark.skipif(native.available() is not None, reason=str(native.available()))


class Residual(nn.Module):
    """A sum of two paths, each of which may be empty."""

    def __init__(self, residual: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.residual, self.shortcut = residual, shortcut

    def forward(self, x: Tensor) -> Tensor:
        return self.residual(x) + self.shortcut(x)  # type: ignore[no-any-return]


class Every(nn.Module):
    """Every second pixel, between channels of zeros."""

    def __init__(self, front: int, back: int) -> None:
        super().__init__()
        self.front, self.back = front, back

    def forward(self, x: Tensor) -> Tensor:
        return functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.front, self.back), "constant", 0)


def randomised(module: nn.Module) -> nn.Module:
    """With weights and statistics of normalisations that are not all ones and zeros."""
    generator = torch.Generator().manual_seed(5)
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_floating_point() and tensor.dim() == 1:
            tensor.data.copy_(torch.rand(tensor.shape, generator=generator) + (0.5 if "var" in name else -0.2))
    return module


def normalisation(kind: str, channels: int) -> nn.Module:
    if kind == "batch":
        return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.3)
    if kind == "plain":
        return nn.BatchNorm2d(channels, affine=False)
    return nn.GroupNorm(next(groups for groups in (3, 2, 1) if channels % groups == 0), channels)


@quick
@given(
    channels=st.tuples(st.integers(1, 4), st.integers(1, 20), st.integers(1, 7)),
    size=st.tuples(st.integers(2, 7), st.integers(2, 7)),
    kind=st.sampled_from(["batch", "plain", "group"]),
    relu=st.booleans(),
    count=st.integers(1, 40),
)
def test_normalisations(
    channels: tuple[int, int, int], size: tuple[int, int], kind: str, relu: bool, count: int
) -> None:
    torch.manual_seed(0)
    shape = (channels[0], *size)
    first = [nn.Conv2d(channels[0], channels[1], 3, padding=1), normalisation(kind, channels[1])]
    second = [nn.Conv2d(channels[1], channels[2], 2), normalisation(kind, channels[2])]
    between = nn.ReLU() if relu else nn.Identity()
    module = convolution(shape, *first, between, *second, nn.ReLU()) if min(size) > 2 else convolution(shape, *first)
    check(randomised(module), shape, count)


@quick
@given(
    channels=st.tuples(st.integers(1, 4), st.integers(1, 20)),
    size=st.tuples(st.integers(2, 7), st.integers(2, 7)),
    stride=st.integers(1, 2),
    norm=st.sampled_from(["batch", "group"]),
    shortcut=st.sampled_from(["identity", "projection", "pad"]),
    count=st.integers(2, 40),
)
def test_residual_blocks(
    channels: tuple[int, int], size: tuple[int, int], stride: int, norm: str, shortcut: str, count: int
) -> None:
    torch.manual_seed(0)
    width, wider = channels[1], channels[1] + 3
    path: nn.Module = nn.Identity()
    if shortcut == "identity":
        stride, wider = 1, width
    if shortcut == "projection":
        path = nn.Sequential(nn.Conv2d(width, wider, 1, stride, bias=False), normalisation(norm, wider))
    if shortcut == "pad":
        stride, path = 2, Every(1, 2)
    residual = nn.Sequential(
        nn.Conv2d(width, wider, 3, stride, 1, bias=False),
        normalisation(norm, wider),
        nn.ReLU(),
        nn.Conv2d(wider, wider, 3, padding=1, bias=False),
        normalisation(norm, wider),
    )
    shape = (channels[0], *size)
    layers = [nn.Conv2d(channels[0], width, 3, padding=1), nn.ReLU(), Residual(residual, path), nn.ReLU()]
    check(randomised(convolution(shape, *layers, nn.AdaptiveAvgPool2d(1))), shape, count)


@quick
@given(
    channels=st.integers(1, 5),
    size=st.tuples(st.integers(3, 9), st.integers(3, 9)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    count=st.integers(1, 30),
)
def test_average_pooling(
    channels: int, size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int], count: int
) -> None:
    torch.manual_seed(0)
    layers = nn.Conv2d(2, channels, 3, padding=1), nn.AvgPool2d(kernel, stride), nn.ReLU()
    check(convolution((2, *size), *layers), (2, *size), count)


class Written(nn.Module):
    """A forward of one's own, of four convolutions that keep the shape."""

    def __init__(self, body: Callable[[Written, Tensor], Tensor], classes: int = 3) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(4))
        self.norm, self.relu, self.body = nn.BatchNorm2d(4), nn.ReLU(inplace=True), body
        self.fc = nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(self, x).mean((2, 3)))  # type: ignore[no-any-return]


def torchvision_block(m: Written, x: Tensor) -> Tensor:
    x = m.relu(m.convolutions[0](x))
    identity = x
    out = m.relu(m.convolutions[1](x))
    out = m.norm(m.convolutions[2](out))
    out += identity
    return m.relu(out)  # type: ignore[no-any-return]


def before_and_after_relu(m: Written, x: Tensor) -> Tensor:
    x = m.convolutions[0](x)
    return x + functional.relu(x)


def twice(m: Written, x: Tensor) -> Tensor:
    x = m.convolutions[0](x)
    return torch.add(x, x)


def long_skips(m: Written, x: Tensor) -> Tensor:
    a = m.convolutions[0](x)
    b = functional.relu(m.norm(m.convolutions[1](a)))
    c = m.convolutions[2](b) + a
    return torch.add(m.convolutions[3](functional.avg_pool2d(c, 2)), functional.max_pool2d(a + b, 2))


def with_the_input(m: Written, x: Tensor) -> Tensor:
    return torch.add(x + m.norm(x).relu(), m.convolutions[0](x))


BODIES = (torchvision_block, before_and_after_relu, twice, long_skips, with_the_input)


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("count", [3, 21])
def test_a_residual_network_of_ones_own(body: Callable[[Written, Tensor], Tensor], count: int) -> None:
    torch.manual_seed(0)
    check(randomised(Written(body)), (4, 6, 6), count)


def reads_what_was_overwritten(m: Written, x: Tensor) -> Tensor:
    y = m.convolutions[0](x)
    return m.relu(y) + y  # type: ignore[no-any-return]


def reads_a_view_of_what_was_overwritten(m: Written, x: Tensor) -> Tensor:
    y: Tensor = m.convolutions[0](x)
    z = y[:, :, ::2, ::2]
    y += x
    return z


def forgets_a_layer(m: Written, x: Tensor) -> Tensor:
    m.convolutions[1](x)
    return m.convolutions[0](x)  # type: ignore[no-any-return]


def adds_shapes_that_differ(m: Written, x: Tensor) -> Tensor:
    return x + x.mean((2, 3), keepdim=True)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (reads_what_was_overwritten, "overwritten in place"),
        (reads_a_view_of_what_was_overwritten, "overwritten in place"),
        (forgets_a_layer, "is not used"),
        (adds_shapes_that_differ, "adds tensors of shapes"),
        (lambda m, x: m.convolutions[0](x) + 1, "something else than the output of another"),
        (lambda m, x: x[:, :2], r"layer 1 \(.*\) is not known"),
        (lambda m, x: functional.pad(x, (0, 0, 0, 0, 1, 1), value=2.0), r"\(pad\) is not known"),
        (lambda m, x: functional.adaptive_avg_pool2d(x, 4), "unequal windows"),
    ],
)
def test_what_is_refused(body: Callable[[Written, Tensor], Tensor], message: str) -> None:
    module = Written(body)
    with pytest.raises(native.Unsupported, match=message):
        plan(module, Layout.of(module), (4, 6, 6))


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm2d(4, momentum=None), nn.BatchNorm2d(4, track_running_stats=False)], ids=["average", "none"]
)
def test_statistics_that_are_not_in_the_vector_are_refused(norm: nn.Module) -> None:
    module = convolution((4, 6, 6), norm)
    with pytest.raises(native.Unsupported, match=r"layer 1 \(BatchNorm2d\) has no running statistics"):
        plan(module, Layout.of(module), (4, 6, 6))


def resnet(**options: str) -> nn.Module:
    return models.build("resnet20", shape=(3, 8, 8), classes=3, seed=0, **options)


@pytest.mark.parametrize("shortcut", ["A", "B"])
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_resnet_20_trains_as_with_pytorch(shortcut: str, norm: str) -> None:
    module = resnet(shortcut=shortcut, norm=norm)
    layout, data = Layout.of(module), examples((3, 8, 8), 50, 3)
    batches = list(torch.split(torch.randperm(50, generator=torch.Generator().manual_seed(2)), 20))
    start = layout.read(module)
    ours, theirs = start.clone(), start.clone()
    loss = native.NativeEngine(module, layout, (3, 8, 8)).train(ours, data, batches, 0.02)
    assert loss == pytest.approx(sgd(module, theirs, data, batches, 0.02), rel=1e-3)
    trained = slice(0, layout.trainable)
    assert (ours - theirs)[trained].norm() <= 0.01 * (theirs - start)[trained].norm()
    assert torch.allclose(ours[layout.trainable :], theirs[layout.trainable :], rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("count", [1, 9, 24, 40])
def test_running_statistics_are_pytorchs(variant: str, count: int) -> None:
    module = randomised(convolution((3, 5, 4), nn.BatchNorm2d(3, momentum=0.3), nn.Conv2d(3, 2, 1)))
    layout, data = Layout.of(module), examples((3, 5, 4), count, 3)
    ours, theirs = layout.read(module), layout.read(module)
    batches = [torch.arange(count)] * 3
    native.NativeEngine(module, layout, (3, 5, 4)).train(ours, data, batches, 0.0)
    sgd(module, theirs, data, batches, 0.0)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    assert not torch.equal(ours[layout.trainable :], layout.read(randomised(module))[layout.trainable :])


def test_statistics_of_numbers_far_from_zero_keep_their_digits() -> None:
    torch.manual_seed(0)
    module = convolution((1, 4, 4), nn.BatchNorm2d(1))
    data = Examples(1000 + torch.randn(40, 1, 4, 4), torch.arange(40) % 3)
    layout = Layout.of(module)
    vector = layout.read(module)
    native.NativeEngine(module, layout, (1, 4, 4)).train(vector, data, [torch.arange(40)], 0.0)
    expected = 0.9 + 0.1 * data.inputs.double().var()
    assert float(vector[-1]) == pytest.approx(float(expected), rel=1e-5)


def test_evaluation_uses_the_running_statistics_and_probes_those_of_the_batch() -> None:
    module = randomised(resnet(shortcut="B"))
    layout, data = Layout.of(module), examples((3, 8, 8), 37, 3)
    network, vector = native.NativeEngine(module, layout, (3, 8, 8)), layout.read(module)
    before = vector.clone()
    inputs, targets = data.batch(torch.arange(37))
    losses = []
    for mode in (False, True):
        with torch.no_grad():
            losses.append(float(functional.cross_entropy(module.train(mode)(inputs), targets, reduction="sum")))
    assert network.evaluate(vector, data)[0] == pytest.approx(losses[0], rel=1e-4)
    assert network.loss(vector, data, torch.arange(37)) * 37 == pytest.approx(losses[1], rel=1e-4)
    assert network.gradient(vector, data, torch.arange(37))[0] * 37 == pytest.approx(losses[1], rel=1e-4)
    assert torch.equal(vector, before)


def test_the_same_bits_whatever_ran_before_and_cut_in_two() -> None:
    module = resnet()
    layout, data = Layout.of(module), examples((3, 8, 8), 90, 3)
    batches = list(torch.split(torch.arange(90), 40))
    whole, parts = layout.read(module), layout.read(module)
    native.NativeEngine(module, layout, (3, 8, 8)).train(whole, data, batches, 0.05)
    network = native.NativeEngine(module, layout, (3, 8, 8))
    network.evaluate(parts, data)
    for batch in batches:
        network.train(parts, data, [batch], 0.05)
        network.gradient(parts, data, torch.arange(70))
    assert torch.equal(whole, parts)


def test_one_number_of_each_channel_has_no_variance() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    network = native.NativeEngine(module, Layout.of(module), (4,))
    data = Examples(torch.randn(5, 4), torch.arange(5) % 3)
    with pytest.raises(ValueError, match="batch of one example is too small"):
        network.train(Layout.of(module).read(module), data, [torch.arange(4), torch.arange(1)], 0.1)
    check(module, (4,), 5)


def test_relus_and_sums_are_part_of_other_layers() -> None:
    module = resnet()
    kinds = [layer.kind for layer in plan(module, Layout.of(module), (3, 8, 8)).layers]
    assert Kind.MAXIMUM not in kinds
    assert kinds.count(Kind.SUM) == 9
