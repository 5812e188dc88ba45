"""Data of your own: the indices of each device, and training and test data that one model can take."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedasmu import FederatedData
from fedasmu.errors import UserError
from helpers.blobs import blobs


def pairs(count: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(count, 3), torch.arange(count) % 2


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ([[0], [True, False, True, False]], "devices[1] = [True, False, True, False]: must be the indices"),
        ([[True, 2]], "devices[0] = [True, 2]"),
        ([np.arange(4) > 1], "devices[0] = ndarray of bool (4,)"),
        ([torch.arange(4) > 1], "devices[0] = Tensor of torch.bool (4,)"),
        ([[0, 1.7]], "devices[0] = [0, 1.7]"),
        ([torch.tensor([0.0, 1.7])], "devices[0] = Tensor of torch.float32 (2,)"),
        ([[[0, 1], [2, 3]]], "devices[0] = [[0, 1], [2, 3]]: must be the indices that the device holds, a one-dim"),
        ([[[0, 1], [2]]], "devices[0] = [[0, 1], [2]]"),
        ([np.zeros((2, 2), dtype=int)], "devices[0] = ndarray of int64 (2, 2)"),
        ([0, 1, 2], "devices[0] = 0"),
        (torch.arange(3), "devices[0] = Tensor of torch.int64 ()"),
        (["0", "1"], "devices[0] = '0'"),
        ([["0"]], "devices[0] = ['0']"),
        ([{0: 1}], "devices[0] = {0: 1}"),
        ([[2**70]], "devices[0] = [1180591620717411303424]"),
        ({0: [0], 1: [1]}, "devices = {0: [0], 1: [1]}: must be a list with the indices that each device holds"),
        (4, "devices = 4"),
        (None, "devices = None"),
        (np.zeros((0, 4), dtype=int), "devices is empty"),
        ([np.array([])], "devices[0] holds no example"),
    ],
)
def test_indices_of_your_own_that_are_none(devices: Any, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        FederatedData.of(pairs(4), pairs(4), devices)


@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 1, 2, 2)])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_inputs_that_are_no_numbers_are_told_by_the_first(value: float, shape: tuple[int, ...]) -> None:
    """Every upload would be refused, as if the training had diverged."""
    good, bad = torch.zeros(shape), torch.zeros(shape)
    bad[2:].view(-1)[-1] = value
    bad[2:].view(-1)[0] = value
    targets = torch.arange(4) % 2
    for name, train, test in (("train", bad, good), ("test", good, bad)):
        words = f"{name}: the inputs are not all finite numbers; example 2 is the first"
        with pytest.raises(UserError, match=f"^{words}"):
            FederatedData.of((train, targets), (test, targets), [[0, 1]])


def test_it_says_what_it_is_in_a_line() -> None:
    told = "<blobs: 300 examples to train on and 100 to test on, of shape 20, on 10 devices>"
    assert repr(replace(blobs(), name="blobs")) == told


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16, torch.float64])
def test_inputs_of_another_precision_become_those_of_models(precision: torch.dtype) -> None:
    inputs, targets = pairs(4)
    data = FederatedData.of((inputs.to(precision), targets), (inputs.to(precision), targets), [[0, 1], [2, 3]])
    assert data.train.inputs.dtype == data.test.inputs.dtype == torch.float32


def test_indices_in_every_form() -> None:
    """Backwards, and in the other order of bytes, too: torch reads neither from numpy."""
    forms: list[Any] = [[1, 0], (1, 0), range(1, -1, -1), torch.tensor([1, 0], dtype=torch.uint8)]
    forms += [list(torch.tensor([1, 0])), np.arange(2)[::-1], np.array([1, 0], dtype=">i4")]
    data = FederatedData.of(pairs(4), pairs(4), forms)
    assert all(shard.dtype == torch.int64 and shard.tolist() == [1, 0] for shard in data.shards)


@pytest.mark.parametrize("swapped", [False, True])
def test_training_and_test_data_of_two_kinds(swapped: bool) -> None:
    inputs, targets = pairs(4)
    wide, points = (inputs.view(2, 6).repeat(2, 1), targets), (inputs, targets.float())
    cases = [
        (wide, ("inputs of shape (6,), and test of shape (3,)", "inputs of shape (3,), and test of shape (6,)")),
        (
            points,
            (
                "targets that are numbers with a point (torch.float32), and test classes (torch.int64)",
                "targets that are classes (torch.int64), and test numbers with a point (torch.float32)",
            ),
        ),
    ]
    for other, messages in cases:
        train, test = ((inputs, targets), other) if swapped else (other, (inputs, targets))
        with pytest.raises(UserError, match=re.escape(f"train has {messages[swapped]}; both must have the same")):
            FederatedData.of(train, test, [[0]])
