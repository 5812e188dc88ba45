"""What the native engine refuses: networks it does not know, and arguments that would make native code go wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedasmu.data.examples import Examples
from fedasmu.engines import native
from fedasmu.engines.native import library
from fedasmu.engines.native.graph import Kind
from fedasmu.engines.native.plan import plan
from fedasmu.vector import Layout

needs_library = pytest.mark.skipif(native.available() is not None, reason=str(native.available()))
SHAPE = (1, 8, 8)


def layers(module: nn.Module, shape: tuple[int, ...] = SHAPE) -> list[Kind]:
    return [layer.kind for layer in plan(module, Layout.of(module), shape).layers]


class Written(nn.Module):
    """A forward of one's own: `reshape` is how it flattens."""

    def __init__(self, reshape: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.fc, self.reshape = nn.Conv2d(1, 4, 3), nn.Linear(36, 3), reshape

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.conv(x)), 2)
        return self.fc(self.reshape(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "reshape",
    [
        lambda x: torch.flatten(x, 1),
        lambda x: x.flatten(1),
        lambda x: x.flatten(start_dim=1),
        lambda x: x.view(x.size(0), -1),
        lambda x: x.view(x.size()[0], -1),
        lambda x: x.reshape(x.shape[0], 36),
        lambda x: x.view(-1, 36),
        lambda x: torch.relu(x).contiguous().view((x.shape[0], -1)).relu(),
    ],
)
def test_a_forward_is_recognised_by_what_it_does(reshape: Callable[[Tensor], Tensor]) -> None:
    found = [kind for kind in layers(Written(reshape)) if kind is not Kind.MAXIMUM]
    assert found == [Kind.CONVOLUTION, Kind.FLATTEN, Kind.LINEAR]


def test_relu_moves_behind_the_pooling() -> None:
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))
    convolution, maximum, *_ = plan(module, Layout.of(module), SHAPE).layers
    assert (convolution.relu, maximum.relu) == (False, True)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.add(x, self.conv(x))


class Older(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.first(x)
        return self.second(x)  # type: ignore[no-any-return]


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) if x.sum() > 0 else self.fc(-x)  # type: ignore[no-any-return]


class Moody(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) if self.training else self.fc(x.relu())  # type: ignore[no-any-return]


class Dropping(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(x, 0.5, self.training)


def hooked() -> nn.Module:
    module = nn.Linear(5, 3)
    module.register_forward_hook(lambda *_: None)
    return module


def flat(*middle: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), *middle)


@pytest.mark.parametrize(
    ("module", "shape", "message"),
    [
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.InstanceNorm2d(2)), SHAPE, r"layer 2 \(InstanceNorm2d\) is not known"),
        (nn.Sequential(nn.Conv2d(2, 2, 3, groups=2)), (2, 8, 8), r"layer 1 \(Conv2d\) has groups"),
        (nn.Sequential(nn.Conv2d(1, 2, 3, dilation=2)), SHAPE, "dilation"),
        (nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular")), SHAPE, "padding mode"),
        (nn.Sequential(nn.Conv2d(1, 2, 3, stride=9)), (1, 20, 20), "stride"),
        (nn.Sequential(nn.Conv2d(1, 2, 3, padding=2**31)), SHAPE, "too many activations"),
        (nn.Sequential(nn.Conv2d(1, 2, 3)), (1, 2**31, 2**31), "too many activations"),
        (nn.Sequential(nn.Conv2d(1, 2, 9)), SHAPE, r"does not fit its input of shape \(1, 8, 8\)"),
        (nn.Sequential(nn.Conv2d(3, 2, 3)), SHAPE, "does not fit its input"),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, padding=1)), SHAPE, r"layer 2 \(MaxPool2d\) has a padding"),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, ceil_mode=True)), SHAPE, "ceil_mode"),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(7)), SHAPE, "does not fit its input"),
        (nn.Sequential(nn.Conv2d(1, 2, 3)), SHAPE, "ends in images"),
        (nn.Sequential(nn.Linear(8, 3)), SHAPE, "does not fit its input"),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(0)), SHAPE, "does not flatten"),
        (nn.Sequential(nn.ZeroPad2d(1), nn.MaxPool2d(2), nn.Conv2d(1, 2, 3)), SHAPE, r"layer 2 \(MaxPool2d\)"),
        (nn.Sequential(nn.ZeroPad2d(-1), nn.Conv2d(1, 2, 3)), SHAPE, "crops its input"),
        (flat(nn.Softmax(1)), SHAPE, r"layer 3 \(Softmax\)"),
        (flat(Branching()), SHAPE, "cannot be traced"),
        (flat(Older()), SHAPE, "is not used"),
        (flat(Moody()), SHAPE, "other layers in training"),
        (flat(hooked()), SHAPE, "hooks"),
        (Residual(), SHAPE, "ends in images"),
        (Written(lambda x: x.mean((1, 2))), SHAPE, "mean over something else"),
        (Written(lambda x: functional.dropout(x).flatten(1)), SHAPE, "random"),  # also when it is evaluated
        (Written(lambda x: x.view(-1, 18)), SHAPE, "reshape"),
        (Written(lambda x: functional.log_softmax(x, 1)), SHAPE, r"\(log_softmax\)"),
        (nn.Linear(5, 3), (5, 5), r"inputs have shape \(5, 5\)"),
        (nn.Sequential(nn.PReLU()), (5,), "PReLU"),
    ],
)
def test_unknown_networks_say_why(module: nn.Module, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(native.Unsupported, match=message) as caught:
        layers(module, shape)
    assert "\n" not in str(caught.value)


def test_another_models_layout() -> None:
    with pytest.raises(ValueError, match="another model's"):
        plan(nn.Linear(5, 3), Layout.of(nn.Linear(5, 4)), (5,))


@needs_library
@pytest.mark.parametrize("dropout", [nn.Dropout(0.5), Dropping()], ids=["module", "function"])
def test_a_network_that_drops_from_images_is_only_evaluated(dropout: nn.Module) -> None:
    module = nn.Sequential(dropout, flat(nn.Linear(5, 3)))
    layout = Layout.of(module)
    network = native.NativeEngine(module, layout, SHAPE)
    data = Examples(torch.randn(4, *SHAPE), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(native.Unsupported, match="drops from images"):
        network.train(layout.read(module), data, [torch.arange(4)], 0.1)
    module.eval()
    with torch.no_grad():
        expected = functional.cross_entropy(module(data.inputs), data.targets, reduction="sum")
    assert network.evaluate(layout.read(module), data)[0] == pytest.approx(float(expected), rel=1e-5)


def test_a_missing_library_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    monkeypatch.setattr(library, "load", library.load.__wrapped__)
    assert "no C++ compiler" in str(native.available())
    module = nn.Linear(5, 3)
    with pytest.raises(native.Unsupported, match="was not built"):
        native.NativeEngine(module, Layout.of(module), (5,))


GOOD: dict[str, Any] = {
    "vector": torch.zeros(195),
    "examples": Examples(torch.zeros(4, *SHAPE), torch.zeros(4, dtype=torch.int64)),
    "batches": [torch.arange(4)],
    "lr": 0.1,
}


def but(**changes: Any) -> Examples:
    good: Examples = GOOD["examples"]
    return replace(good, **changes)


@needs_library
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vector": torch.zeros(194)}, r"the vector has shape \(194,\)"),
        ({"vector": torch.zeros(195, dtype=torch.float64)}, "the vector has dtype torch.float64"),
        ({"vector": torch.zeros(390)[::2]}, "the vector is not contiguous"),
        ({"vector": torch.zeros(195, device="meta")}, "the vector is a .* tensor on meta"),
        ({"vector": torch.zeros(195).to_sparse()}, "dense"),
        ({"vector": [0.0] * 195}, "the vector is a list"),
        ({"anchor": torch.zeros(3), "pull": 1.0}, r"the anchor has shape \(3,\)"),
        ({"mask": torch.zeros(195, dtype=torch.bool)}, "the mask has dtype"),
        ({"pull": 1.0}, "pull needs an anchor"),
        ({"batches": [torch.arange(2), torch.arange(0)]}, "empty"),
        ({"batches": [torch.tensor([0, 4])]}, "from 0 to 4, but there are 4 examples"),
        ({"batches": [torch.tensor([-1])]}, "from -1"),
        ({"batches": [torch.tensor([0], dtype=torch.int32)]}, "indices has dtype torch.int32"),
        ({"batches": [torch.zeros(2, 2, dtype=torch.int64)]}, r"indices has shape \(2, 2\)"),
        ({"batches": [torch.tensor(0)]}, "indices has shape"),
        ({"batches": [[0, 1]]}, "indices is a list"),
        ({"examples": but(inputs=torch.zeros(4, 1, 8, 7))}, r"inputs has shape \(4, 1, 8, 7\)"),
        ({"examples": but(inputs=torch.zeros(3, *SHAPE))}, "inputs has shape"),
        ({"examples": but(inputs=torch.zeros(4, *SHAPE, dtype=torch.uint8))}, "no scale"),
        ({"examples": but(inputs=torch.zeros(4, *SHAPE, dtype=torch.int64))}, "inputs has dtype"),
        ({"examples": but(inputs=torch.zeros(4, 1, 8, 16)[..., ::2])}, "inputs is not contiguous"),
        ({"examples": but(targets=torch.tensor([0, 1, 2, 3]))}, "targets reach from 0 to 3"),
        ({"examples": but(targets=torch.tensor([0, -100, 0, 0]))}, "targets reach from -100"),
        ({"examples": but(targets=torch.zeros(4))}, "targets has dtype"),
        ({"examples": but(targets=torch.zeros(4, 3, dtype=torch.int64))}, "targets has shape"),
        ({"examples": but(scale=torch.ones(2), shift=torch.ones(2))}, "scale has shape"),
        ({"examples": but(scale=torch.ones(1), shift=torch.ones(1, dtype=torch.float64))}, "shift has dtype"),
    ],
)
def test_malformed_arguments_are_named(changes: dict[str, Any], message: str) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    network = native.NativeEngine(module, Layout.of(module), SHAPE)
    with pytest.raises(ValueError, match=message):
        network.train(**{**GOOD, **changes})


@needs_library
def test_nothing_to_do() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    network = native.NativeEngine(module, Layout.of(module), SHAPE)
    assert network.train(**{**GOOD, "batches": []}) == 0.0
    none = Examples(torch.zeros(0, *SHAPE), torch.zeros(0, dtype=torch.int64))
    with pytest.raises(ValueError, match="no examples"):
        network.evaluate(torch.zeros(195), none)
    with pytest.raises(ValueError, match="empty"):
        network.loss(torch.zeros(195), none, torch.arange(0))


@needs_library
def test_a_library_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "INTERFACE", library.INTERFACE + 1)
    with pytest.raises(OSError, match="another version"):
        library.load.__wrapped__("base")
