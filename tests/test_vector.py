"""A model is a vector, and the module is a view of it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedasmu.vector import Layout


def mixed() -> nn.Module:
    """Frozen and trainable parameters, and BatchNorm's float and integer buffers, in an order that is none."""
    torch.manual_seed(0)
    frozen = nn.Linear(3, 4)
    frozen.requires_grad_(False)
    return nn.Sequential(frozen, nn.BatchNorm1d(4), nn.Linear(4, 2))


def attached(module: nn.Module) -> tuple[Layout, torch.Tensor, torch.Tensor]:
    layout = Layout.of(module)
    vector, gradient = layout.read(module), torch.zeros(layout.trainable)
    layout.attach(module, vector, gradient)
    return layout, vector, gradient


def test_trainable_parameters_come_first_and_the_rest_follows_in_the_tail() -> None:
    layout = Layout.of(mixed())
    assert [entry.name for entry in layout.parameters] == ["1.weight", "1.bias", "2.weight", "2.bias"]
    assert [entry.name for entry in layout.buffers] == ["0.weight", "0.bias", "1.running_mean", "1.running_var"]
    assert layout.trainable == 4 + 4 + 8 + 2
    assert layout.size == layout.trainable + 12 + 4 + 4 + 4
    assert layout.bytes == 4 * layout.size


def test_entries_tile_the_vector_without_gaps() -> None:
    layout = Layout.of(mixed())
    place = 0
    for entry in (*layout.parameters, *layout.buffers):
        assert entry.offset == place
        place += entry.size
    assert place == layout.size


def test_reading_and_writing_back_gives_the_same_tensors() -> None:
    module = mixed()
    layout = Layout.of(module)
    state = module.state_dict()
    tensors = layout.tensors(layout.read(module))
    assert set(state) - set(tensors) == {"1.num_batches_tracked"}
    assert all(torch.equal(state[name], tensor) for name, tensor in tensors.items())


def test_tensors_are_copies() -> None:
    module = mixed()
    layout = Layout.of(module)
    vector = layout.read(module)
    layout.tensors(vector)["2.bias"].zero_()
    assert torch.equal(vector, layout.read(module))


def test_writing_the_vector_loads_the_model() -> None:
    module = mixed()
    layout, vector, _ = attached(module)
    vector.copy_(torch.arange(layout.size))
    assert torch.equal(layout.read(module), vector)
    assert module.get_parameter("0.weight")[0, 0] == layout.trainable


def test_writing_the_model_changes_the_vector() -> None:
    module = mixed()
    layout, vector, _ = attached(module)
    with torch.no_grad():
        module.get_parameter("2.bias").fill_(9)
        module.get_buffer("1.running_mean").fill_(7)
    assert vector[layout.trainable - 2 : layout.trainable].tolist() == [9, 9]
    assert (vector == 7).sum() == 4


def test_a_backward_pass_fills_the_gradient() -> None:
    module = mixed()
    reference = mixed()
    _, _, gradient = attached(module)
    inputs = torch.randn(5, 3)
    module(inputs).square().sum().backward()
    reference(inputs).square().sum().backward()
    expected = [parameter.grad.flatten() for parameter in reference.parameters() if parameter.grad is not None]
    assert torch.equal(gradient, torch.cat(expected))
    assert gradient.abs().sum() > 0


def test_batch_norm_statistics_are_part_of_the_vector() -> None:
    module = mixed()
    layout, vector, _ = attached(module)
    before = vector.clone()
    module.train()
    with torch.no_grad():
        module(torch.randn(8, 3))
    changed = (vector != before).nonzero().flatten()
    assert changed.tolist() == list(range(layout.size - 8, layout.size))


def test_integer_buffers_are_left_alone() -> None:
    module = mixed()
    counter = module.get_buffer("1.num_batches_tracked")
    attached(module)
    assert module.get_buffer("1.num_batches_tracked") is counter


def test_a_float64_model_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'0\.weight' is torch\.float64: only float32"):
        Layout.of(nn.Sequential(nn.Linear(2, 2).double()))


def test_a_model_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match="no trainable parameter"):
        Layout.of(nn.Flatten())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(3, 3, bias=False)
        self.decode = nn.Linear(3, 3, bias=False)
        self.decode.weight = self.encode.weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.decode(self.encode(inputs))
        return result


def test_tied_weights_are_one_entry_and_stay_tied() -> None:
    module = Tied()
    layout, vector, gradient = attached(module)
    assert layout.size == 9
    vector.fill_(2)
    assert module.encode.weight is module.decode.weight
    assert module.decode.weight[0, 0] == 2
    module(torch.ones(1, 3)).sum().backward()
    # d/dW of 1' W W 1 is W 1 1' + 1 1' W' = 6 + 6 at W = 2
    assert gradient.tolist() == [12.0] * 9
