"""Which engine a run gets, and that PyTorch's does what it says."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedasmu import Experiment, models, native
from fedasmu.data.examples import Examples
from fedasmu.engine import native_engine
from fedasmu.errors import UserError
from fedasmu.models.contrast import Contrast
from fedasmu.native import library
from fedasmu.torch_engine import CHANNELS_LAST, TorchEngine
from fedasmu.vector import Layout
from helpers.blobs import Run, blobs, settings, softmax

needs_library = pytest.mark.skipif(native.available() is not None, reason=str(native.available()))


def chosen(setting: str, model: str, batch: int) -> tuple[native.NativeEngine | None, str]:
    shape = (3, 32, 32)
    module = models.build(model, shape=shape, classes=10, seed=0)
    return native_engine(setting, module, Layout.of(module), shape, batch, "cpu")


@needs_library
@pytest.mark.parametrize(
    ("model", "batch", "engine"),
    [
        ("resnet20", 10, "engine: native (VARIANT)"),
        ("vgg11", 32, "engine: native (VARIANT)"),
        ("vgg11", 10, "engine: PyTorch, because its 9,747,136 weights are used only 157 times each in a batch of 10"),
        ("mlp", 1, "engine: native (VARIANT)"),  # few uses of few weights
    ],
)
def test_wide_networks_are_native_where_each_weight_is_used_often(model: str, batch: int, engine: str) -> None:
    engine = engine.replace("VARIANT", library.variant())
    assert chosen("auto", model, batch)[1] == engine


@needs_library
def test_who_asks_for_the_native_engine_gets_it() -> None:
    assert chosen("native", "vgg11", 10)[1].startswith("engine: native")
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

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.idle, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(5, 5), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv(x).relu().mean((2, 3)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("count", [5, CHANNELS_LAST])
def test_pytorchs_steps_with_a_pull_and_a_mask(count: int) -> None:
    torch.manual_seed(0)
    module = HalfUsed()
    layout = Layout.of(module)
    start, anchor, mask = layout.read(module), torch.randn(layout.size), (torch.rand(layout.size) < 0.5).float()
    data = Examples(torch.randn(count, 3, 6, 6), torch.arange(count) % 3)
    expected = start.clone()
    for _ in range(2):
        layout.attach(module, expected)
        gradient = torch.autograd.grad(
            cross_entropy(module(data.inputs), data.targets),
            list(module.parameters()),
            allow_unused=True,
            materialize_grads=True,
        )
        flat = torch.cat([part.flatten() for part in gradient])
        expected = expected - 0.1 * mask * (flat + 0.3 * (expected - anchor))
    vector = start.clone()
    engine = TorchEngine(module, layout, torch.device("cpu"))
    engine.train(vector, data, [torch.arange(count)] * 2, 0.1, pull=0.3, anchor=anchor, mask=mask)
    torch.testing.assert_close(vector, expected, rtol=1e-5, atol=1e-6)
    loss, found = engine.gradient(start, data, torch.arange(count))
    assert found.shape == start.shape
    assert loss == pytest.approx(engine.loss(start, data, torch.arange(count)))


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
