"""The native engine on texts, its dropout and its contrast, against PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from fedasmu.data.examples import Examples
from fedasmu.engines import native
from fedasmu.engines.native.plan import plan
from fedasmu.engines.pytorch import TorchEngine
from fedasmu.models import build
from fedasmu.models.contrast import Contrast
from fedasmu.models.features import forward_with_features
from fedasmu.vector import Layout
from helpers.gradients import check_batch

pytestmark = pytest.mark.skipif(native.available() is not None, reason=str(native.available()))


class Words(nn.Module):
    """Windows over words as a user would write them: `strongest` is how the largest answer is found."""

    def __init__(
        self,
        widths: list[int],
        filters: int = 4,
        strongest: Callable[[Tensor], Tensor] = lambda answers: answers.relu().amax(2),
        turn: Callable[[Tensor], Tensor] = lambda vectors: vectors.transpose(1, 2),
        join: Callable[[list[Tensor]], Tensor] = lambda features: torch.cat(features, 1),
        **embedding: Any,
    ) -> None:
        super().__init__()
        settings = {"num_embeddings": 12, "embedding_dim": 3} | embedding
        self.words = nn.Embedding(**settings)
        depth = settings["embedding_dim"]
        self.windows = nn.ModuleList(nn.Conv1d(depth, filters, width, bias=width != 2) for width in widths)
        self.strongest, self.turn, self.join = strongest, turn, join
        self.classifier = nn.Linear(filters * len(widths), 3)

    def forward(self, tokens: Tensor) -> Tensor:
        vectors = self.turn(self.words(tokens))
        features = [self.strongest(window(vectors)) for window in self.windows]
        return self.classifier(self.join(features) if len(features) > 1 else features[0])  # type: ignore[no-any-return]


def weight_norm(module: nn.Module, name: str) -> nn.Module:
    nn.utils.parametrizations.weight_norm(module.get_submodule(name))
    return module


def texts(count: int, length: int, vocabulary: int) -> Examples:
    """Random words after a padding of random length."""
    generator = torch.Generator().manual_seed(count)
    tokens = torch.randint(vocabulary, (count, length), generator=generator)
    padding = torch.randint(length, (count, 1), generator=generator)
    tokens[torch.arange(length) < padding] = 0
    return Examples(tokens, torch.randint(3, (count,), generator=generator))


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    widths=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    filters=st.integers(1, 35),
    depth=st.integers(1, 20),
    vocabulary=st.integers(2, 400),
    length=st.integers(5, 40),
    count=st.integers(1, 40),
    padding=st.sampled_from([None, 0, 1]),
)
def test_windows_over_words(
    widths: list[int], filters: int, depth: int, vocabulary: int, length: int, count: int, padding: int | None
) -> None:
    torch.manual_seed(0)
    module = Words(widths, filters, num_embeddings=vocabulary, embedding_dim=depth, padding_idx=padding)
    indices = torch.randint(count, (count,), generator=torch.Generator().manual_seed(1))
    check_batch(module, (length,), texts(count, length, vocabulary), indices)


@pytest.mark.parametrize("count", [1, 8, 9, 16, 17, 33, 130, 270])
def test_every_instruction_set(variant: str, count: int) -> None:
    torch.manual_seed(0)
    check_batch(Words([3, 1], filters=19), (9,), texts(count, 9, 12), torch.arange(count))


def test_narrow_words_give_the_bits_of_wide_ones() -> None:
    torch.manual_seed(0)
    module, wide = Words([3, 2], filters=19), texts(150, 9, 12)
    layout, narrow = Layout.of(module), Examples(wide.inputs.to(torch.int32), wide.targets)
    engine, start = native.NativeEngine(module, layout, (9,)), layout.read(module)
    (loss, gradient), (same, again) = (engine.gradient(start, one, torch.arange(150)) for one in (narrow, wide))
    assert loss == same
    assert torch.equal(gradient, again)
    assert engine.evaluate(start, narrow) == engine.evaluate(start, wide)


@pytest.mark.parametrize(
    "ways",
    [
        {"strongest": lambda answers: answers.amax(dim=-1)},
        {"strongest": lambda answers: functional.relu(answers.max(2)[0])},
        {"strongest": lambda answers: torch.max(torch.relu(answers), 2)[0]},
        {"turn": lambda vectors: vectors.permute(0, 2, 1)},
        {"turn": lambda vectors: torch.transpose(vectors, -1, -2)},
    ],
)
def test_a_forward_is_recognised_by_what_it_does(ways: dict[str, Any]) -> None:
    torch.manual_seed(0)
    check_batch(Words([2], **ways), (9,), texts(20, 9, 12), torch.arange(20))


@pytest.mark.parametrize(
    ("module", "length", "message"),
    [
        (Words([3], max_norm=1.0), 9, "max_norm"),
        (Words([3]), 2, "does not fit texts of 2 words"),
        (Words([3], turn=lambda vectors: vectors), 9, "Conv1d of a text"),
        (Words([3], strongest=lambda answers: answers.mean(2)), 9, "mean of a text"),
        (Words([3], strongest=lambda answers: answers.amax(1)), 9, "amax of a text"),
        (Words([3], filters=300, num_embeddings=100_000), 9, "300 filters over 100,000 words takes too much memory"),
        (nn.Sequential(nn.Linear(9, 9), nn.Embedding(5, 5)), 9, "Embedding"),
        (Words([3, 3], join=lambda features: torch.cat(features)), 9, "joins samples"),
        (Words([3, 3], join=lambda features: torch.cat(features, axis=1)), 9, "reads something else"),  # type: ignore[call-arg] # it does
        (Words([3, 3], turn=lambda vectors: torch.cat([vectors, vectors], 1)), 9, "joins something else"),
        (weight_norm(Words([3]), "windows.0"), 9, "ParametrizedConv1d of a text"),
    ],
)
def test_unknown_networks_say_why(module: nn.Module, length: int, message: str) -> None:
    with pytest.raises(native.Unsupported, match=message):
        plan(module, Layout.of(module), (length,))


def test_a_diverged_model_shows() -> None:
    module = Words([3])
    layout = Layout.of(module)
    vector = layout.read(module)
    vector[3 * 7 : 3 * 8] = torch.nan  # the vector of word 7
    tokens = torch.tensor([[1, 2, 3, 7, 4, 5, 6, 8, 9]])
    assert math.isnan(
        native.NativeEngine(module, layout, (9,)).evaluate(vector, Examples(tokens, torch.tensor([0])))[0]
    )


def test_words_without_a_vector_are_named() -> None:
    module = Words([3])
    layout = Layout.of(module)
    network = native.NativeEngine(module, layout, (9,))
    with pytest.raises(ValueError, match="tokens reach from 0 to 12, but the network has 12 words"):
        network.evaluate(layout.read(module), texts(40, 9, 13))
    with pytest.raises(ValueError, match="no examples"):
        network.evaluate(layout.read(module), texts(0, 9, 12))
    images = Examples(torch.zeros(4, 9), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"inputs has dtype torch\.float32"):
        network.evaluate(layout.read(module), images)


@pytest.mark.parametrize("name", ["textcnn", "mlp", "lenet5"])
def test_a_contrast_is_the_one_of_pytorch(name: str) -> None:
    module, shape, data = network_of(name)
    layout = Layout.of(module)
    start = layout.read(module)
    generator = torch.Generator().manual_seed(1)
    one, other = (start + 0.3 * start.std() * torch.randn(start.shape, generator=generator) for _ in range(2))
    contrast = Contrast(one, other, mu=2.0, temperature=0.5)
    batches = list(torch.split(torch.arange(70).flip(0), 27))
    network, engine = native.NativeEngine(module, layout, shape), TorchEngine(module, layout, torch.device("cpu"))
    plain, ours, theirs = start.clone(), start.clone(), start.clone()
    torch.manual_seed(3)
    network.train(plain, data, batches, 0.1)
    torch.manual_seed(3)
    loss = network.train(ours, data, batches, 0.1, objective=contrast)
    torch.manual_seed(3)
    assert loss == pytest.approx(engine.train(theirs, data, batches, 0.1, objective=contrast), rel=1e-5)
    assert (ours - plain).norm() > 100 * (ours - theirs).norm()
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_features_are_what_the_last_layer_reads() -> None:
    module, shape, data = network_of("textcnn")
    layout = Layout.of(module)
    with torch.no_grad():
        expected = forward_with_features(module.eval(), data.inputs)[1]
    features = native.NativeEngine(module.train(), layout, shape).features(layout.read(module), data, torch.arange(70))
    torch.testing.assert_close(features, expected, rtol=1e-5, atol=1e-6)


def test_a_network_without_features_of_its_own_has_no_contrast() -> None:
    module = nn.Linear(7, 3)
    network = native.NativeEngine(module, Layout.of(module), (7,))
    data = Examples(torch.randn(4, 7), torch.arange(4) % 3)
    assert not network.contrasts
    with pytest.raises(native.Unsupported, match="features that it learns"):
        network.features(torch.zeros(24), data, torch.arange(4))


def network_of(name: str) -> tuple[nn.Module, tuple[int, ...], Examples]:
    torch.manual_seed(0)
    if name == "textcnn":
        return build(name, shape=(30,), classes=3, seed=0, vocabulary=50, embedding=8), (30,), texts(70, 30, 50)
    if name == "lenet5":
        images = torch.randint(256, (70, 1, 28, 28), dtype=torch.uint8)
        scales = torch.full((1,), 1 / 128), torch.full((1,), -1.0)
        return (
            build(name, shape=(1, 28, 28), classes=3, seed=0),
            (1, 28, 28),
            Examples(images, torch.arange(70) % 3, *scales),
        )
    layers = nn.Linear(7, 9), nn.Dropout(0.3), nn.ReLU(), nn.Linear(9, 8), nn.ReLU(), nn.Dropout(0.6), nn.Linear(8, 3)
    return nn.Sequential(*layers), (7,), Examples(torch.randn(70, 7), torch.arange(70) % 3)


@pytest.mark.parametrize("name", ["textcnn", "mlp"])
def test_dropout_is_the_one_that_pytorch_draws(name: str) -> None:
    module, shape, data = network_of(name)
    layout = Layout.of(module)
    start = layout.read(module)
    batches = list(torch.split(torch.arange(70), 32))
    engines = native.NativeEngine(module, layout, shape), TorchEngine(module, layout, torch.device("cpu"))
    vectors, losses, probes = [], [], []
    for engine in engines:
        vector = start.clone()
        torch.manual_seed(3)
        losses.append(engine.train(vector, data, batches, 0.1))
        probes.append((engine.loss(vector, data, batches[0]), *engine.gradient(vector, data, batches[1])))
        vectors.append(vector)
    assert (vectors[0] - start).norm() > 1e-3
    torch.testing.assert_close(vectors[0], vectors[1], rtol=1e-4, atol=1e-6)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    torch.testing.assert_close(torch.tensor(probes[0][:2]), torch.tensor(probes[1][:2]), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(probes[0][2], probes[1][2], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["textcnn", "mlp"])
def test_nothing_is_dropped_in_an_evaluation(name: str) -> None:
    module, shape, data = network_of(name)
    layout = Layout.of(module)
    vector = layout.read(module)
    loss, correct = native.NativeEngine(module, layout, shape).evaluate(vector, data)
    expected, right = TorchEngine(module, layout, torch.device("cpu")).evaluate(vector, data)
    assert loss == pytest.approx(expected, rel=1e-5)
    assert correct == right
