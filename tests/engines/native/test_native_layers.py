"""The native engine's layers against PyTorch's autograd: every kind, odd sizes, partial blocks, instruction sets."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedasmu.data.examples import Examples
from fedasmu.engines import native
from fedasmu.vector import Layout
from helpers.gradients import check, check_batch, convolution, examples, quick

pytestmark = pytest.mark.skipif(native.available() is not None, reason=str(native.available()))


def seeded(make: type[nn.Module] | object, *args: object, **kwargs: object) -> nn.Module:
    torch.manual_seed(0)
    return make(*args, **kwargs)  # type: ignore[operator]


sides = st.integers(1, 3)


@quick
@given(
    channels=st.tuples(st.integers(1, 8), st.integers(1, 37), st.integers(1, 7)),
    size=st.tuples(st.integers(3, 9), st.integers(3, 9)),
    kernel=st.tuples(sides, sides),
    stride=st.tuples(sides, sides),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    bias=st.booleans(),
    count=st.integers(1, 70),
)
def test_convolutions(
    channels: tuple[int, int, int],
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    bias: bool,
    count: int,
) -> None:
    torch.manual_seed(0)
    shape = (channels[0], *size)
    first = nn.Conv2d(channels[0], channels[1], kernel, stride, padding, bias=bias)
    second = nn.Conv2d(channels[1], channels[2], 2, stride, (1, 2), bias=bias)
    check(convolution(shape, first, nn.ReLU(), second), shape, count)


@quick
@given(
    channels=st.tuples(st.integers(16, 35), st.integers(16, 35), st.integers(16, 20)),
    size=st.tuples(st.integers(3, 20), st.integers(3, 20)),
    kernel=st.integers(2, 3),
    padding=st.integers(0, 3),
    count=st.integers(1, 20),
)
def test_small_kernels_of_many_channels(
    channels: tuple[int, int, int], size: tuple[int, int], kernel: int, padding: int, count: int
) -> None:
    torch.manual_seed(0)
    shape = (channels[0], *size)
    first = nn.Conv2d(channels[0], channels[1], kernel, padding=padding)
    second = nn.Conv2d(channels[1], channels[2], 5 - kernel, padding=(1, 2))
    check(convolution(shape, first, nn.ReLU(), second), shape, count)


@pytest.mark.parametrize("side", [2, 4, 8])
@pytest.mark.parametrize("count", [3, 16])
def test_more_channels_than_are_summed_at_a_time(side: int, count: int) -> None:
    shape = (70, side, side)
    first, second = seeded(nn.Conv2d, 70, 133, 3, padding=1), seeded(nn.Conv2d, 133, 21, 3, padding=1)
    check(convolution(shape, first, nn.ReLU(), second), shape, count)


@pytest.mark.parametrize("side", [2, 4, 8])
def test_a_block_has_the_same_bits_alone_and_among_others(side: int) -> None:
    shape = (20, side, side)
    module = convolution(shape, seeded(nn.Conv2d, 20, 37, 3, padding=1), nn.ReLU(), seeded(nn.Conv2d, 37, 18, 2))
    layout = Layout.of(module)
    network, data, vector = native.NativeEngine(module, layout, shape), examples(shape, 40, 3), layout.read(module)
    together = network.features(vector, data, torch.arange(40))
    apart = [network.features(vector, data, part) for part in torch.split(torch.arange(40), [16, 16, 8])]
    assert torch.equal(together, torch.cat(apart))


@quick
@given(
    widths=st.lists(st.integers(1, 50), min_size=1, max_size=3),
    features=st.integers(1, 70),
    bias=st.booleans(),
    count=st.integers(1, 70),
)
def test_linear_layers(widths: list[int], features: int, bias: bool, count: int) -> None:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in zip([features, *widths], widths, strict=False):
        layers += [nn.Linear(inputs, outputs, bias=bias), nn.ReLU()]
    check(nn.Sequential(*layers, nn.Linear(widths[-1], 3)), (features,), count)


@quick
@given(
    channels=st.integers(1, 5),
    size=st.tuples(st.integers(3, 11), st.integers(3, 11)),
    kernel=st.tuples(sides, sides),
    stride=st.tuples(sides, sides),
    relu=st.sampled_from(["before", "after", "none"]),
    count=st.integers(1, 40),
)
def test_maximum_pooling(
    channels: int, size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int], relu: str, count: int
) -> None:
    torch.manual_seed(0)
    around = [nn.ReLU() if relu == name else nn.Identity() for name in ("before", "after")]
    first = nn.Conv2d(2, channels, 3, padding=1)
    check(convolution((2, *size), first, around[0], nn.MaxPool2d(kernel, stride), around[1]), (2, *size), count)


def test_the_first_of_equal_maxima_takes_the_gradient() -> None:
    module = convolution((1, 4, 4), nn.Conv2d(1, 2, 1), nn.MaxPool2d(2))
    inputs = torch.ones(5, 1, 4, 4)
    inputs[:, :, 0, 0] = 2.0
    check_batch(module, (1, 4, 4), Examples(inputs, torch.arange(5) % 3), torch.arange(5))


def conv_relu_pool() -> nn.Sequential:
    shrink = nn.Conv2d(3, 20, 3), nn.ReLU(), nn.MaxPool2d(2)
    return convolution(
        (3, 9, 8), *shrink, nn.Conv2d(20, 17, 2), nn.Conv2d(17, 18, 3, padding=2), nn.Conv2d(18, 5, 2, 2, 1)
    )


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 17, 24, 25, 33])
def test_every_instruction_set(variant: str, count: int) -> None:
    check(seeded(conv_relu_pool), (3, 9, 8), count)


UNUSUAL = {
    "pooling first": lambda: [nn.MaxPool2d(2), nn.Conv2d(3, 4, 3)],
    "relu first": lambda: [nn.ReLU(), nn.Conv2d(3, 4, 3)],
    "flatten, then relu": lambda: [nn.Conv2d(3, 4, 3), nn.Flatten(), nn.ReLU()],
    "two relus": lambda: [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.ReLU(), nn.MaxPool2d(2), nn.ReLU()],
    "overlapping pooling": lambda: [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(3, 2), nn.MaxPool2d(2, 1)],
    "pooling before padding": lambda: [nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, padding=2)],
    "same padding": lambda: [nn.Conv2d(3, 4, 3, padding="same"), nn.Conv2d(4, 4, (2, 4), padding="same")],
    "zeros around one corner": lambda: [nn.ZeroPad2d((0, 1, 2, 0)), nn.Conv2d(3, 4, 2, padding=1), nn.ReLU()],
    "kernel smaller than stride": lambda: [nn.Conv2d(3, 4, 1, 2), nn.Conv2d(4, 4, 2, 3, padding=1)],
    "kernel as large as the image": lambda: [nn.Conv2d(3, 4, 9), nn.ReLU(), nn.Conv2d(4, 40, 1)],
    "no dropout": lambda: [nn.Conv2d(3, 4, 3), nn.Dropout(0.0), nn.Identity()],
}


@pytest.mark.filterwarnings("ignore:Using padding='same'")  # PyTorch copies for an even kernel, and says so once
@pytest.mark.parametrize("layers", UNUSUAL.values(), ids=UNUSUAL.keys())
def test_unusual_chains(layers: object) -> None:
    torch.manual_seed(0)
    check(convolution((3, 9, 9), *layers()), (3, 9, 9), 21)  # type: ignore[operator]


def test_shared_and_frozen_parameters() -> None:
    torch.manual_seed(0)
    twice = nn.Linear(7, 7)
    frozen = nn.Linear(7, 7)
    frozen.requires_grad_(False)
    check(nn.Sequential(twice, nn.ReLU(), twice, frozen, nn.Linear(7, 3)), (7,), 19)


SCALES = {
    "none": (None, None),
    "one for all": (torch.tensor([0.5]), torch.tensor([0.1])),
    "half": (torch.ones(3), None),
}


@pytest.mark.parametrize(("scale", "shift"), SCALES.values(), ids=SCALES.keys())
def test_float_inputs(scale: Tensor | None, shift: Tensor | None) -> None:
    inputs = torch.randn(20, 3, 9, 8, generator=torch.Generator().manual_seed(0))
    check_batch(
        seeded(conv_relu_pool), (3, 9, 8), Examples(inputs, torch.arange(20) % 3, scale, shift), torch.arange(20)
    )
