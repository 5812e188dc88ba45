"""The networks: parameter counts known by arithmetic, shapes, seeds, errors, and what other parts rely on."""

from __future__ import annotations

import doctest
import inspect
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn

from fedasmu.imports import load
from fedasmu.models import MODELS, architecture, build
from fedasmu.models.features import classifier, forward_with_features, with_projection
from fedasmu.vector import Layout
from helpers.repository import ROOT

CIFAR, FMNIST, TINY, TEXT = (3, 32, 32), (1, 28, 28), (3, 64, 64), (500,)

COUNTS: list[tuple[str, tuple[int, ...], int, dict[str, Any], int]] = [
    ("lenet5", CIFAR, 10, {}, 62_006),
    ("lenet5", CIFAR, 100, {}, 69_656),
    ("lenet5", FMNIST, 10, {}, 44_426),
    ("lenet5", FMNIST, 10, {"pad": 2}, 61_706),
    ("cnn", CIFAR, 10, {}, 297_066),
    ("cnn", CIFAR, 10, {"padding": "same"}, 336_746),
    ("cnn", CIFAR, 100, {}, 2_889_156),
    ("cnn", CIFAR, 100, {"padding": "same"}, 3_285_956),
    ("cnn", FMNIST, 10, {}, 224_874),
    ("cnn", FMNIST, 10, {"padding": "same"}, 259_434),
    ("cnn", TINY, 200, {}, 24_610_856),
    ("cnn", TINY, 200, {"padding": "same"}, 26_223_656),
    ("cnn_tf", CIFAR, 10, {}, 122_570),
    ("cnn_tf", CIFAR, 100, {}, 128_420),
    ("resnet20", CIFAR, 10, {}, 269_722),
    ("resnet20", CIFAR, 100, {}, 275_572),
    ("resnet20", TINY, 200, {}, 282_072),
    ("resnet20", CIFAR, 10, {"shortcut": "B"}, 272_474),
    ("resnet20", CIFAR, 100, {"shortcut": "B"}, 278_324),
    ("resnet20", TINY, 200, {"shortcut": "B"}, 284_824),
    ("resnet20", CIFAR, 10, {"norm": "group"}, 269_722),
    ("resnet20", CIFAR, 10, {"norm": "group", "shortcut": "B"}, 272_474),
    ("alexnet", CIFAR, 10, {}, 7_506_762),
    ("alexnet", CIFAR, 100, {}, 7_599_012),
    ("alexnet", CIFAR, 10, {"size": "large"}, 36_925_322),
    ("alexnet", CIFAR, 100, {"size": "large"}, 37_294_052),
    ("alexnet", CIFAR, 10, {"size": "gap"}, 2_254_154),
    ("alexnet", CIFAR, 100, {"size": "gap"}, 2_277_284),
    ("vgg11", CIFAR, 10, {}, 9_750_922),
    ("vgg11", CIFAR, 100, {}, 9_797_092),
    ("vgg11", CIFAR, 10, {"batch_norm": True}, 9_756_426),
    ("vgg11", CIFAR, 100, {"batch_norm": True}, 9_802_596),
    ("vgg11", CIFAR, 10, {"head": "linear"}, 9_225_610),
    ("vgg11", CIFAR, 100, {"head": "linear"}, 9_271_780),
    ("alexnet", CIFAR, 10, {"init": "he"}, 7_506_762),
    ("vgg11", CIFAR, 10, {"init": "he"}, 9_750_922),
    ("textcnn", TEXT, 2, {}, 1_120_902),
    ("textcnn", TEXT, 2, {"vocabulary": 5_000}, 620_902),
    ("textcnn", TEXT, 2, {"vocabulary": 20_000}, 2_120_902),
    ("textcnn", TEXT, 2, {"embedding": 128}, 1_434_502),
    ("softmax", FMNIST, 10, {}, 7_850),
    ("mlp", (561,), 6, {"hidden": 10}, 5_686),
]

# The smallest input each network takes, and one step below it.
SMALLEST = [
    ("lenet5", (1, 16, 16), (1, 16, 15), {}),
    ("lenet5", (1, 12, 12), (1, 11, 12), {"pad": 2}),
    ("cnn", (1, 3, 3), (1, 2, 3), {}),
    ("cnn", (1, 1, 1), (1, 0, 1), {"padding": "same"}),
    ("cnn_tf", (1, 18, 18), (1, 18, 17), {}),
    ("resnet20", (1, 4, 4), (1, 3, 4), {}),
    ("alexnet", (1, 8, 8), (1, 8, 7), {}),
    ("vgg11", (3, 32, 32), (1, 28, 28), {}),
    ("textcnn", (5,), (4,), {}),
    ("softmax", (1,), (), {}),
    ("mlp", (1,), (0,), {}),
]


def weightless(name: str, shape: tuple[int, ...], classes: int, **options: Any) -> nn.Module:
    """The network on the meta device: shapes without memory or arithmetic."""
    with torch.device("meta"):
        return build(name, shape=shape, classes=classes, seed=0, **options)


def example(name: str, shape: tuple[int, ...], device: str = "cpu") -> Tensor:
    if name == "textcnn":
        return torch.arange(2 * shape[0], device=device).view(2, *shape) % 50
    return torch.linspace(-1, 1, 2 * int(np.prod(shape)), device=device).view(2, *shape)


def vector(module: nn.Module) -> Tensor:
    return Layout.of(module).read(module)


@pytest.mark.parametrize(("name", "shape", "classes", "options", "count"), COUNTS)
def test_parameter_count_and_output_shape(
    name: str, shape: tuple[int, ...], classes: int, options: dict[str, Any], count: int
) -> None:
    module = weightless(name, shape, classes, **options)
    assert sum(parameter.numel() for parameter in module.parameters()) == count
    assert module(example(name, shape, "meta")).shape == (2, classes)


def test_every_model_and_every_choice_is_counted() -> None:
    counted = {(name, option, value) for name, _, _, options, _ in COUNTS for option, value in options.items()}
    assert {name for name, *_ in COUNTS} == {entry.name for entry in MODELS}
    for entry in MODELS:
        for option in entry.options:
            for choice in option.choices:
                assert (
                    choice == option.default or option.name == "frozen" or (entry.name, option.name, choice) in counted
                )


def test_the_embedding_is_all_but_120_902() -> None:
    assert Layout.of(weightless("textcnn", TEXT, 2, frozen=True)).trainable == 120_902


@pytest.mark.parametrize(("name", "shape", "smaller", "options"), SMALLEST)
def test_smallest_input(name: str, shape: tuple[int, ...], smaller: tuple[int, ...], options: dict[str, Any]) -> None:
    module = build(name, shape=shape, classes=3, seed=0, **options)
    assert module(example(name, shape)).shape == (2, 3)
    with pytest.raises(ValueError, match=f"{name} needs .* but the data has shape"):
        build(name, shape=smaller, classes=3, seed=0, **options)


@pytest.mark.parametrize("name", ["lenet5", "cnn", "cnn_tf", "resnet20", "alexnet", "vgg11", "textcnn"])
def test_wrong_kind_of_data(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} reads .* but the data has shape"):
        build(name, shape=(5, 5), classes=2, seed=0)


@pytest.mark.parametrize("name", ["lenet5", "resnet20", "textcnn", "mlp"])
def test_rectangles_and_other_shapes(name: str) -> None:
    shape = (17,) if name == "textcnn" else (2, 23, 30)
    assert build(name, shape=shape, classes=4, seed=0)(example(name, shape)).shape == (2, 4)


@pytest.mark.parametrize("name", [entry.name for entry in MODELS if entry.name not in ("alexnet", "vgg11")])
def test_same_seed_same_bits_and_the_global_generator_is_untouched(name: str) -> None:
    shape = TEXT if name == "textcnn" else CIFAR
    before = torch.get_rng_state()
    first = vector(build(name, shape=shape, classes=10, seed=7))
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(3)
    assert torch.equal(first, vector(build(name, shape=shape, classes=10, seed=7)))
    assert not torch.equal(first, vector(build(name, shape=shape, classes=10, seed=8)))


def test_a_failing_build_restores_the_generator() -> None:
    before = torch.get_rng_state()
    with pytest.raises(ValueError):
        build("lenet5", shape=(1, 2, 2), classes=10, seed=1)
    assert torch.equal(before, torch.get_rng_state())


def test_vgg_starts_with_he_weights_and_no_bias() -> None:
    network = build("vgg11", shape=CIFAR, classes=10, seed=1)
    last = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)][-1]
    assert last.weight.std().item() == pytest.approx((2 / (3 * 3 * 512)) ** 0.5, rel=0.01)
    assert last.bias is not None
    assert not last.bias.any()


@pytest.mark.parametrize("name", ["alexnet", "vgg11"])
def test_he_throughout_keeps_a_signal_as_strong_as_it_came(name: str) -> None:
    network = build(name, shape=CIFAR, classes=10, seed=1, init="he")
    *hidden, last = (layer for layer in network.modules() if isinstance(layer, nn.Conv2d | nn.Linear))
    for layer in hidden:
        assert layer.weight.std().item() == pytest.approx((2 / layer.weight[0].numel()) ** 0.5, rel=0.05)
        assert layer.bias is not None
        assert not layer.bias.any()
    assert last.weight.abs().max().item() <= last.weight.shape[1] ** -0.5  # torch's own
    inputs = torch.randn(8, *CIFAR, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        reached, before = (
            nn.Sequential(*list(build(name, shape=CIFAR, classes=10, seed=1, init=init).children())[:-1])(inputs)
            for init in ("he", "default")
        )
    assert 0.3 < reached.square().mean() < 10
    assert before.square().mean() < 0.03


def every_choice() -> list[Any]:
    return [
        pytest.param(entry.name, dict(zip(names, values, strict=True)), id="-".join(map(str, (entry.name, *values))))
        for entry in MODELS
        for names in [[option.name for option in entry.options if option.choices]]
        for values in product(*(option.choices for option in entry.options if option.choices))
    ]


@pytest.mark.parametrize(("name", "options"), every_choice())
def test_fx_traces_every_model_down_to_torch_layers(name: str, options: dict[str, Any]) -> None:
    module = weightless(name, TEXT if name == "textcnn" else CIFAR, 10, **options)
    for node in fx.symbolic_trace(module).graph.nodes:
        if node.op == "call_module":
            assert type(module.get_submodule(node.target)).__module__.startswith("torch.nn.")
    if name not in ("resnet20", "textcnn"):
        assert type(module) is nn.Sequential
        assert all(type(layer).__module__.startswith("torch.nn.") for layer in module)


@pytest.mark.parametrize("name", ["resnet20", "textcnn"])
def test_a_trace_computes_the_same(name: str) -> None:
    shape = (12,) if name == "textcnn" else (3, 9, 8)
    module = build(name, shape=shape, classes=4, seed=1).eval()
    inputs = example(name, shape)
    assert torch.equal(module(inputs), fx.symbolic_trace(module)(inputs))


def test_group_norm_leaves_no_statistics() -> None:
    assert not list(weightless("resnet20", CIFAR, 10, norm="group").buffers())
    assert list(weightless("resnet20", CIFAR, 10).buffers())


def test_shortcut_a_takes_every_other_pixel_and_adds_zeros() -> None:
    network = build("resnet20", shape=CIFAR, classes=10, seed=0)
    block = network.get_submodule("6")
    image = torch.arange(16 * 9, dtype=torch.float32).view(1, 16, 3, 3)
    result = block.get_submodule("shortcut")(image)
    assert result.shape == (1, 32, 2, 2)
    assert result[0, 0].tolist() == [[0, 2], [6, 8]]
    assert not result[0, 16:].any()


@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_same_padding_agrees_with_torch() -> None:
    network = build("cnn", shape=(1, 4, 4), classes=2, seed=0, padding="same")
    convolution = network.get_submodule("1")
    assert isinstance(convolution, nn.Conv2d)
    image = torch.linspace(-1, 1, 16).view(1, 1, 4, 4)
    expected = nn.functional.conv2d(image, convolution.weight, convolution.bias, padding="same")
    torch.testing.assert_close(convolution(network.get_submodule("0")(image)), expected)


# --- TextCNN ---


def test_padding_is_a_zero_vector_that_does_not_learn() -> None:
    module = build("textcnn", shape=(5,), classes=2, seed=0, vocabulary=10, embedding=4)
    words = module.get_submodule("words")
    assert isinstance(words, nn.Embedding)
    assert not words.weight[0].any()
    module(torch.tensor([[0, 0, 1, 2, 3]])).sum().backward()
    assert words.weight.grad is not None
    assert not words.weight.grad[0].any()
    assert words.weight.grad[1:4].any()


@pytest.mark.parametrize("convert", [torch.tensor, np.array])
def test_pretrained_words(convert: Callable[[Any], Any]) -> None:
    rows = [[0.0, 0.0], [1.0, -2.0], [3.0, 4.0]]
    matrix = convert(rows)
    module = build("textcnn", shape=(5,), classes=2, seed=0, vocabulary=3, embedding=2, pretrained=matrix, frozen=True)
    words = module.get_submodule("words")
    assert isinstance(words, nn.Embedding)
    assert words.weight.tolist() == rows
    assert not words.weight.requires_grad
    matrix[1] = 9  # the network has its own copy
    assert words.weight.tolist() == rows


def test_pretrained_words_of_another_size() -> None:
    with pytest.raises(ValueError, match=r"'pretrained' must be \(vocabulary, embedding\) = \(3, 2\), got \(2, 3\)"):
        build("textcnn", shape=(5,), classes=2, seed=0, vocabulary=3, embedding=2, pretrained=torch.zeros(2, 3))


# --- the catalogue ---


def test_listing_the_models_does_not_import_torch() -> None:
    program = "import sys, fedasmu.models; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("entry", MODELS, ids=lambda entry: entry.name)
def test_entries_and_factories_agree(entry: Any) -> None:
    parameters = list(inspect.signature(load(entry.factory)).parameters.values())[2:]
    assert {p.name: p.default for p in parameters} == {option.name: option.default for option in entry.options}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "lenet",
            {},
            r"unknown model: 'lenet'; did you mean lenet5\? \(allowed: lenet5, cnn, .*package.module:factory",
        ),
        ("zzz", {}, r"unknown model: 'zzz' \(allowed: lenet5"),
        ("lenet5", {"padd": 2}, r"unknown option of lenet5: 'padd'; did you mean pad\? \(allowed: pad\)"),
        ("softmax", {"hidden": 2}, r"unknown option of softmax: 'hidden' \(allowed: none\)"),
        ("lenet5", {"pad": 1}, "option 'pad' must be 0 or 2, got 1"),
        ("lenet5", {"pad": False}, "option 'pad' must be 0 or 2, got False"),
        ("resnet20", {"shortcut": "C"}, "option 'shortcut' must be 'A' or 'B', got 'C'"),
        ("mlp", {"hidden": "9"}, "option 'hidden' must be int, got '9'"),
        ("mlp", {"hidden": 0}, "option 'hidden' must be at least 1, got 0"),
        ("textcnn", {"dropout": 1}, "option 'dropout' must be at least 0 and below 1, got 1"),
        ("textcnn", {"dropout": "much"}, "option 'dropout' must be float, got 'much'"),
    ],
)
def test_mistakes(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(name, shape=TEXT if name == "textcnn" else CIFAR, classes=10, seed=0, **options)


def test_a_network_without_outputs_is_none() -> None:
    with pytest.raises(ValueError, match="at least 1 output, got classes = 0"):
        build("softmax", shape=(3,), classes=0, seed=0)


def test_architecture_by_name() -> None:
    assert architecture("cnn").options[0].choices == ("valid", "same")


def test_the_examples_in_the_documentation() -> None:
    page = ROOT / "docs/reference/models.md"
    result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted > 8
    assert result.failed == 0


# --- a user's own network ---

USER_MODULE = """
from torch import nn
number = 3
def network(*, width=4, inputs): return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, 2))
def no_network(): return 5
def anything(needed, **others): return nn.Linear(needed, 2)
"""


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users_own_models.py").write_text(USER_MODULE)
    (tmp_path / "users_broken_models.py").write_text("import a_module_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "users_own_models", raising=False)


@pytest.mark.usefixtures("user")
def test_a_users_network_is_seeded_too() -> None:
    before = torch.get_rng_state()
    first, second = (build("users_own_models:network", shape=(3,), classes=2, seed=5, inputs=3) for _ in range(2))
    assert torch.equal(vector(first), vector(second))
    assert torch.equal(before, torch.get_rng_state())
    assert vector(first).numel() == 3 * 4 + 4 + 4 * 2 + 2


@pytest.mark.usefixtures("user")
@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("users_own_models:netwrk", {}, r"has no 'netwrk'; it has: network, "),
        ("users_own_models:", {}, "not of the form package.module:name"),
        (":network", {}, "not of the form package.module:name"),
        ("no_such_module_at_all:f", {}, "cannot import 'no_such_module_at_all'"),
        ("users_broken_models:f", {}, "cannot import 'users_broken_models'.*a_module_that_is_not_there"),
        ("users_own_models:number", {}, "not callable"),
        ("users_own_models:no_network", {}, "must return a torch.nn.Module, not int"),
        ("users_own_models:network", {"inputs": 3, "widht": 4}, r"unknown option .* 'widht'; did you mean width\?"),
        ("users_own_models:network", {}, "missing a required .*'inputs'"),
        ("users_own_models:anything", {"other": 1}, "missing a required .*'needed'"),
    ],
)
def test_mistakes_in_a_users_network(path: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(path, shape=(3,), classes=2, seed=0, **options)


# --- features ---


@pytest.mark.parametrize(
    ("name", "width"), [("lenet5", 84), ("resnet20", 64), ("textcnn", 300), ("softmax", 3 * 32 * 32)]
)
def test_features_are_the_input_of_the_last_linear_layer(name: str, width: int) -> None:
    shape = (9,) if name == "textcnn" else CIFAR
    module = build(name, shape=shape, classes=10, seed=0).eval()
    inputs = example(name, shape)
    logits, features = forward_with_features(module, inputs)
    assert features.shape == (2, width)
    assert torch.equal(logits, module(inputs))
    torch.testing.assert_close(classifier(module)[1](features), logits)


def test_gradients_flow_through_features_and_no_hook_stays() -> None:
    module = build("mlp", shape=(4,), classes=3, seed=0, hidden=5)
    _, features = forward_with_features(module, example("mlp", (4,)))
    torch.autograd.backward(features.sum())
    first, last = module.get_submodule("1"), classifier(module)[1]
    assert isinstance(first, nn.Linear)
    assert first.weight.grad is not None
    assert last.weight.grad is None
    assert not last._forward_hooks


@pytest.mark.parametrize("module", [nn.Sequential(nn.Linear(4, 3), nn.ReLU()), nn.Sequential(nn.Flatten())])
def test_features_are_refused_where_the_convention_fails(module: nn.Module) -> None:
    with pytest.raises(ValueError, match=r"does not yield its output|has no nn\.Linear"):
        forward_with_features(module, torch.ones(2, 4))


def test_projection_head_of_lenet_adds_30_620() -> None:
    plain = build("lenet5", shape=CIFAR, classes=10, seed=0)
    before = vector(plain)
    state = torch.get_rng_state()
    module = with_projection(build("lenet5", shape=CIFAR, classes=10, seed=0), seed=1)
    assert torch.equal(state, torch.get_rng_state())
    assert Layout.of(module).trainable - before.numel() == 30_620
    logits, features = forward_with_features(module, example("lenet5", CIFAR))
    assert (logits.shape, features.shape) == ((2, 10), (2, 256))
    assert torch.equal(vector(module)[: before.numel() - 850], before[:-850])


@pytest.mark.parametrize("name", ["textcnn", "resnet20"])
def test_projection_fits_any_network(name: str) -> None:
    shape = (9,) if name == "textcnn" else (3, 8, 8)
    module = with_projection(build(name, shape=shape, classes=3, seed=0), dimensions=7, seed=1)
    logits, features = forward_with_features(module, example(name, shape))
    assert (logits.shape, features.shape) == ((2, 3), (2, 7))


def test_projection_of_a_bare_linear_layer() -> None:
    module = with_projection(nn.Linear(4, 3, bias=False), dimensions=5, seed=1)
    assert sum(p.numel() for p in module.parameters()) == (16 + 4) + (20 + 5) + 15
