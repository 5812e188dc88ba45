"""Which engine a run gets, and that PyTorch's does what it says."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedasmu import Experiment, models
from fedasmu.data.examples import Examples
from fedasmu.engines import native
from fedasmu.engines.contract import native_engine
from fedasmu.engines.native import library
from fedasmu.engines.optimiser import PLAIN, Optimiser
from fedasmu.engines.pytorch import TorchEngine
from fedasmu.engines.rule import Rule
from fedasmu.errors import UserError
from fedasmu.models.contrast import Contrast
from fedasmu.vector import BLOCK, Layout
from helpers.blobs import Run, blobs, settings, softmax

needs_library = pytest.mark.skipif(native.available() is not None, reason=str(native.available()))


def chosen(setting: str, model: str, batch: int) -> tuple[native.NativeEngine | None, str]:
    shape = (3, 32, 32)
    if model == "wide":
        module: nn.Module = nn.Sequential(nn.Flatten(), nn.Linear(3072, 4000), nn.ReLU(), nn.Linear(4000, 10))
    else:
        module = models.build(model, shape=shape, classes=10, seed=0)
    return native_engine(setting, module, Layout.of(module), shape, batch, "cpu")


@needs_library
@pytest.mark.parametrize(
    ("model", "batch", "engine"),
    [
        ("resnet20", 10, "engine: native (VARIANT)"),
        ("vgg11", 4, "engine: native (VARIANT)"),
        (
            "vgg11",
            3,
            "engine: PyTorch, because its 9,747,136 weights are used 15.7 times each by a sample, in batches of 3",
        ),
        (
            "wide",
            64,
            "engine: PyTorch, because its 12,328,000 weights are used 1.0 times each by a sample, in batches of 64",
        ),
        ("mlp", 1, "engine: native (VARIANT)"),  # few uses of few weights
    ],
)
def test_wide_networks_are_native_where_each_weight_is_used_often(model: str, batch: int, engine: str) -> None:
    engine = engine.replace("VARIANT", library.variant())
    assert chosen("auto", model, batch)[1] == engine


@needs_library
def test_who_asks_for_the_native_engine_gets_it() -> None:
    assert chosen("native", "vgg11", 3)[1].startswith("engine: native")
    module = nn.Linear(3, 2)
    with pytest.raises(UserError, match="runs on the cpu"):
        native_engine("native", module, Layout.of(module), (3,), 10, "cuda")


@needs_library
def test_objectives_that_the_native_engine_knows() -> None:
    deep, flat = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), nn.Linear(4, 2)
    networks = [native.NativeEngine(module, Layout.of(module), (4,)) for module in (deep, flat)]
    contrast = Contrast(torch.zeros(23), torch.zeros(23), 1.0, 0.5)
    assert [network.supports(None) for network in networks] == [True, True]
    assert [network.supports(contrast) for network in networks] == [True, False]
    assert not networks[0].supports(squares)
    data = Examples(torch.randn(4, 4), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(native.Unsupported, match="does not know the objective function"):
        networks[0].train(Layout.of(deep).read(deep), data, [torch.arange(4)], 0.1, objective=squares)


def squares(module: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return torch.mean(module(inputs) ** 2)


class HalfUsed(nn.Module):
    """With a layer that no output depends on."""

    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.conv, self.idle, self.fc = nn.Conv2d(64, 128, 3), nn.Linear(width, width), nn.Linear(128, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv(x).relu().mean((2, 3)))  # type: ignore[no-any-return]


MOMENTUM = Optimiser(momentum=0.9, weight_decay=0.01)


@pytest.mark.parametrize("width", [5, 400])  # copied to train, or trained where it lies
@pytest.mark.parametrize("batch", [0, 5])  # channel by channel, or pixel by pixel
@pytest.mark.parametrize("optimiser", [PLAIN, MOMENTUM], ids=["plain", "momentum"])
def test_pytorchs_steps_with_a_pull_and_a_mask(width: int, batch: int, optimiser: Optimiser) -> None:
    torch.manual_seed(0)
    module = HalfUsed(width)
    layout = Layout.of(module)
    assert (layout.size > BLOCK) == (width > 5)
    start, anchor, mask = layout.read(module), torch.randn(layout.size), (torch.rand(layout.size) < 0.5).float()
    data, every = Examples(torch.randn(5, 64, 6, 6), torch.arange(5) % 3), torch.arange(5)
    expected, velocity, gradients = start.clone(), torch.zeros(layout.size), []
    for _ in range(3):
        layout.attach(module, expected)
        loss = cross_entropy(module(data.inputs), data.targets)
        parts = torch.autograd.grad(loss, list(module.parameters()), allow_unused=True, materialize_grads=True)
        gradients.append(torch.cat([part.flatten() for part in parts]))
        pulled = gradients[-1] + 0.3 * (expected - anchor) + optimiser.weight_decay * expected
        velocity = optimiser.momentum * velocity + mask * pulled
        expected = expected - 0.1 * velocity
    vector, engine = start.clone(), TorchEngine(module, layout, torch.device("cpu"), batch=batch)
    terms: dict[str, Any] = {"pull": 0.3, "anchor": anchor, "mask": mask}
    first = Rule.of(optimiser, layout.trainable, None, 0)
    engine.train(vector, data, [every] * 2, 0.1, rule=first, **terms)
    between = vector.clone()
    loss_then, found = engine.gradient(start, data, every)
    torch.testing.assert_close(found, gradients[0], rtol=1e-5, atol=1e-6)
    assert loss_then == pytest.approx(engine.loss(start, data, every))
    assert torch.equal(vector, between)  # what was trained is nobody's any more
    engine.train(vector, data, [every], 0.1, rule=Rule.of(optimiser, layout.trainable, first.state, 2), **terms)
    torch.testing.assert_close(vector, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("model", "shape", "by_pixel"), [("lenet5", (1, 28, 28), True), ("cnn", (3, 32, 32), False)])
def test_images_of_a_single_channel_keep_the_order_that_pays(
    model: str, shape: tuple[int, ...], by_pixel: bool
) -> None:
    module = models.build(model, shape=shape, classes=10, seed=0)
    layout, orders = Layout.of(module), set[bool]()
    data, every = Examples(torch.randn(5, *shape), torch.arange(5)), torch.arange(5)
    vector = layout.read(module)
    parts = torch.autograd.grad(cross_entropy(module(data.inputs), data.targets), list(module.parameters()))
    engine = TorchEngine(module, layout, torch.device("cpu"))
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(lambda _, __, y: orders.add(y.is_contiguous(memory_format=torch.channels_last)))
    _, found = engine.gradient(vector, data, every)
    assert orders == {by_pixel}
    torch.testing.assert_close(found, torch.cat([part.flatten() for part in parts]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shape", [(7,), (1, 4, 4), (3, 5, 2)], ids=str)
def test_a_batch_is_scaled_channel_by_channel(shape: tuple[int, ...]) -> None:
    inputs = torch.randint(0, 256, (6, *shape), dtype=torch.uint8)
    scale, shift = torch.rand(shape[0]), torch.randn(shape[0])
    data, (first, third) = Examples(inputs, torch.arange(6), scale, shift), (2, 0)
    found, targets = data.batch(torch.tensor([first, third]))
    assert targets.tolist() == [first, third]
    for row, image in zip(found, (inputs[first], inputs[third]), strict=True):
        for channel in range(shape[0]):
            exact = image[channel].double() * scale[channel].item() + shift[channel].item()
            torch.testing.assert_close(row[channel].double(), exact, rtol=1e-6, atol=1e-6)
    assert torch.equal(data.batch(slice(0, 3))[0][[2, 0]], found)


def test_a_training_that_fails_leaves_the_engine_whole() -> None:
    module = HalfUsed(400)
    layout = Layout.of(module)
    start, engine = layout.read(module), TorchEngine(module, layout, torch.device("cpu"), batch=5)
    data, every = Examples(torch.randn(5, 64, 6, 6), torch.arange(5) % 3), torch.arange(5)
    before = engine.loss(start, data, every)
    failed = start + 1

    def objective(network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        engine.train(failed, data, [every], 0.1, objective=objective)
    assert engine.loss(start, data, every) == before
    assert torch.equal(failed, start + 1)


@needs_library
def test_the_instructions_are_the_recipes_then_the_environments(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.ENVIRONMENT, "base")
    assert library.variant() == "base"
    best = library.VARIANTS[library.load("base").engine_level()]
    assert library.variant(best) == best
    monkeypatch.setenv(library.ENVIRONMENT, "mmx")
    with pytest.raises(UserError, match=r"FEDASMU_INSTRUCTIONS = 'mmx': this processor runs base"):
        library.variant()
    assert run(instructions="base", stop={"uploads": 5}).summary["engine"] == "native (base)"


@needs_library
@pytest.mark.usefixtures("no_waiting_for_the_disk")
def test_a_run_that_goes_on_with_another_engine_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def go(resume: bool, stop_after: int) -> None:
        def watch(desk: object, _: object) -> None:
            seen.append(desk)
            if len(seen) == stop_after:
                raise KeyboardInterrupt

        seen: list[object] = []
        experiment = Experiment(settings(checkpoint_seconds=1e-9), model=softmax, data=blobs())
        experiment.run(tmp_path / "run", resume=resume, observe=watch, say=said.append)

    monkeypatch.setenv(library.ENVIRONMENT, "base")
    with pytest.raises(KeyboardInterrupt):
        go(False, 40)
    monkeypatch.setattr(platform, "machine", lambda: "another")
    go(True, -1)
    assert any(line.startswith("begun with native (base) on ") and "on another, " in line for line in said)
