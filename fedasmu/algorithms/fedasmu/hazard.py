"""The network of FedASMU's meta model: an LSTM reads a device's positions one by one, and gives at each the logit of
its hazard, the chance to stop there.

P(slot = l) = h_l * prod_{k<l} (1 - h_k), and the last slot takes the rest. Forward and backward are written out here,
in double precision: the server asks for one device at a time, and an engine of automatic derivatives would spend nearly
all its time on its books.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedasmu.models.initialise import seeded

Array = NDArray[np.float64]
HIDDEN = 32
# sigmoid(x) = (1 + tanh(x / 2)) / 2: so one tanh makes all four gates, of which the third is a tanh itself.
HALF = np.repeat([0.5, 0.5, 1.0, 0.5], HIDDEN)
SHIFT = np.repeat([0.5, 0.5, 0.0, 0.5], HIDDEN)


class Weights(NamedTuple):
    """As torch.nn.LSTM and torch.nn.Linear have them. A gate's rows: input, forget, cell, output."""

    of_input: Array  # 4 H x inputs
    of_hidden: Array  # 4 H x H
    bias: Array  # 4 H
    second_bias: Array  # 4 H; torch has two, and both learn
    output: Array  # H
    offset: Array  # 1


class State(NamedTuple):
    """Of the LSTM at one position."""

    gates: Array  # 4 x H: input, forget, cell, output
    cell: Array
    squashed: Array  # tanh of the cell
    hidden: Array


def initial(inputs: int, seed: int) -> Weights:
    """Drawn as torch draws them; the output layer is zero, so that all logits are."""
    with seeded(seed):
        lstm = nn.LSTM(inputs, HIDDEN)
    of_input, of_hidden, *biases = [parameter.detach().double().numpy() for parameter in lstm.parameters()]
    return Weights(of_input, of_hidden, biases[0], biases[1], np.zeros(HIDDEN), np.zeros(1))


def states(weights: Weights, inputs: Array) -> Iterator[State]:
    """The LSTM's states, one for each row of inputs."""
    driven = (inputs @ weights.of_input.T + (weights.bias + weights.second_bias)) * HALF
    recurrent = weights.of_hidden * HALF[:, None]
    hidden = cell = np.zeros(HIDDEN)
    for row in driven:
        gates = (np.tanh(row + recurrent @ hidden) * HALF + SHIFT).reshape(4, HIDDEN)
        entering, keeping, candidate, leaving = gates
        cell = keeping * cell + entering * candidate
        squashed = np.tanh(cell)
        hidden = leaving * squashed
        yield State(gates, cell, squashed, hidden)


def hazards(weights: Weights, inputs: Array) -> Iterator[float]:
    """The chance to stop at each position, given that all before it were passed. The last one is 1."""
    for place, state in enumerate(states(weights, inputs)):
        yield _hazard(weights, state, len(inputs) - 1 - place)


def _hazard(weights: Weights, state: State, behind: int) -> float:
    """Its logit is what the network says, less an offset: where it says 0, all slots are equally likely."""
    if not behind:
        return 1.0
    said = float(weights.offset[0]) + float(weights.output @ state.hidden)
    return 0.5 * (1.0 + math.tanh(0.5 * (said - math.log(behind))))


def probabilities(weights: Weights, inputs: Array) -> Array:
    """P(slot) for each position."""
    chances, left = [], 1.0
    for hazard in hazards(weights, inputs):
        chances.append(left * hazard)
        left *= 1.0 - hazard
    return np.array(chances)


def drawn(weights: Weights, inputs: Array, chance: float) -> int:
    """The position that a uniform number from [0, 1) falls on; those behind it are not looked at."""
    passed, left = 0.0, 1.0
    for place, hazard in enumerate(hazards(weights, inputs)):
        passed += left * hazard
        left *= 1.0 - hazard
        if passed >= chance:
            return place
    return len(inputs) - 1  # the sum of all is 1 but for rounding


def gradient(weights: Weights, inputs: Array, place: int) -> Weights:
    """d log P(slot = place) / d weights. What comes after the place has no part in it."""
    seen = list(states(weights, inputs[: place + 1]))
    # d log P / d logit: -h where a position was passed, 1 - h where it was taken, and 0 where there was no choice.
    slopes = np.array([(at == place) - _hazard(weights, seen[at], len(inputs) - 1 - at) for at in range(place + 1)])
    before = np.array([np.zeros(HIDDEN), *(state.hidden for state in seen[:-1])])
    by_gate = _through_time(weights, seen, slopes)
    by_bias = by_gate.sum(0)
    hidden = np.array([state.hidden for state in seen])
    output, offset = slopes @ hidden, slopes.sum(keepdims=True)
    return Weights(by_gate.T @ inputs[: place + 1], by_gate.T @ before, by_bias, by_bias, output, offset)


def _through_time(weights: Weights, seen: list[State], slopes: Array) -> Array:
    """d log P / d (what each gate squashes), for every position."""
    by_gate = np.zeros((len(seen), 4 * HIDDEN))
    by_hidden = by_cell = np.zeros(HIDDEN)
    for at in reversed(range(len(seen))):
        (entering, keeping, candidate, leaving), _, squashed, _ = seen[at]
        earlier = seen[at - 1].cell if at else np.zeros(HIDDEN)
        by_hidden = by_hidden + slopes[at] * weights.output
        by_cell = by_cell + by_hidden * leaving * (1.0 - squashed**2)
        by_gate[at] = np.concatenate(
            (
                by_cell * candidate * entering * (1.0 - entering),
                by_cell * earlier * keeping * (1.0 - keeping),
                by_cell * entering * (1.0 - candidate**2),
                by_hidden * squashed * leaving * (1.0 - leaving),
            )
        )
        by_hidden, by_cell = by_gate[at] @ weights.of_hidden, by_cell * keeping
    return by_gate
