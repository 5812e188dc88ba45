"""The meta model's LSTM, written out: equal to torch's own and to its derivatives, in double precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from fedasmu.algorithms.fedasmu import hazard
from fedasmu.algorithms.fedasmu.hazard import HIDDEN, Weights


def drawn(seed: int, inputs: int = 4, positions: int = 7) -> tuple[Weights, hazard.Array]:
    random = np.random.default_rng(seed)
    weights = hazard.initial(inputs, seed)
    for part in weights:
        part += 0.4 * random.normal(size=part.shape)
    return weights, random.normal(size=(positions, inputs))


def by_torch(weights: Weights, inputs: hazard.Array) -> tuple[Tensor, list[nn.Parameter]]:
    """log P(slot) of every slot, through torch's LSTM, and its parameters in the order of ours."""
    lstm, output = nn.LSTM(inputs.shape[1], HIDDEN).double(), nn.Linear(HIDDEN, 1).double()
    parameters = [*lstm.parameters(), *output.parameters()]
    with torch.no_grad():
        for parameter, part in zip(parameters, weights, strict=True):
            parameter.copy_(torch.from_numpy(part).view(parameter.shape))
    hidden, _ = lstm(torch.from_numpy(inputs))
    behind = torch.arange(len(inputs) - 1, -1, -1, dtype=torch.float64)
    logits = output(hidden)[:, 0] - behind.clamp(min=1).log()
    ask = torch.cat([logsigmoid(logits[:-1]), torch.zeros(1, dtype=torch.float64)])
    passed = torch.cat([torch.zeros(1, dtype=torch.float64), logsigmoid(-logits[:-1]).cumsum(0)])
    return ask + passed, parameters


@pytest.mark.parametrize("seed", range(3))
def test_the_probabilities_are_those_of_torch(seed: int) -> None:
    weights, inputs = drawn(seed)
    ours, theirs = hazard.probabilities(weights, inputs), by_torch(weights, inputs)[0].exp()
    assert ours == pytest.approx(theirs.tolist(), rel=1e-12)
    assert ours.sum() == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("place", range(7))
def test_the_gradient_is_autograds_for_every_slot(place: int) -> None:
    weights, inputs = drawn(11)
    chances, parameters = by_torch(weights, inputs)
    truth = torch.autograd.grad(chances[place], parameters)
    for ours, theirs in zip(hazard.gradient(weights, inputs, place), truth, strict=True):
        assert np.allclose(ours, theirs.view(ours.shape).numpy(), rtol=1e-10, atol=1e-13)


def test_the_gradient_is_what_differences_show() -> None:
    weights, inputs = drawn(5)
    slopes, step = hazard.gradient(weights, inputs, 3), 1e-6
    for part, slope in zip(weights, slopes, strict=True):
        for place in range(0, part.size, 1 + part.size // 5):
            pair = []
            for change in (step, -step):
                part.flat[place] += change
                pair.append(np.log(hazard.probabilities(weights, inputs)[3]))
                part.flat[place] -= change
            assert slope.flat[place] == pytest.approx((pair[0] - pair[1]) / (2 * step), rel=1e-5, abs=1e-8)


def test_one_position_leaves_no_choice() -> None:
    weights, inputs = drawn(2, positions=1)
    assert hazard.probabilities(weights, inputs).tolist() == [1.0]
    assert not any(slope.any() for slope in hazard.gradient(weights, inputs, 0))
    assert hazard.drawn(weights, inputs, 0.99) == 0


def test_before_anything_is_learned_every_slot_is_equally_likely() -> None:
    weights, inputs = hazard.initial(4, 0), np.ones((5, 4))
    assert hazard.probabilities(weights, inputs) == pytest.approx([0.2] * 5, rel=1e-12)
    chances = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
    assert [hazard.drawn(weights, inputs, chance) for chance in chances] == [0, 0, 1, 2, 3, 4]
