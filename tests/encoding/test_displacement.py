"""A model in fewer bytes: what arrives, and how far it may be from what was sent."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from fedasmu.encoding.displacement import EXPONENTS, Displacement, Reference
from fedasmu.encoding.rounding import CODES, Code, Float14, Float16
from fedasmu.vector import Layout

FLOAT16, FLOAT14 = Float16(), Float14()
CODED = pytest.mark.parametrize("code", CODES.values(), ids=CODES)


def of(trainable: int, statistics: int = 0) -> Layout:
    module = nn.Module()
    module.weight = nn.Parameter(torch.zeros(trainable))
    if statistics:
        module.register_buffer("variance", torch.zeros(statistics))
    return Layout.of(module)


def told(reference: Tensor, vector: Tensor, trainable: int, code: Code) -> Displacement:
    way = Reference(reference, of(trainable, len(reference) - trainable), code).to(vector)
    assert way is not None
    return way


def arrived(reference: Tensor, vector: Tensor, code: Code, trainable: int | None = None) -> Tensor:
    count = len(reference) if trainable is None else trainable
    return Reference(reference, of(count, len(reference) - count), code).plus(told(reference, vector, count, code))


def test_differences_are_scaled_by_a_power_of_two() -> None:
    way = told(torch.tensor([1.0, -2.0]), torch.tensor([1.5, -2.25]), 2, FLOAT16)
    assert way.exponent == 15  # 0.5 becomes 2^14
    assert way.differences.tolist() == [16384.0, -8192.0]
    assert way.differences.dtype == torch.float16
    assert arrived(torch.tensor([1.0, -2.0]), torch.tensor([1.5, -2.25]), FLOAT16).tolist() == [1.5, -2.25]


def test_two_differences_in_fourteen_bits_each() -> None:
    """The same: 2^14 is the word 0x1C00 of float14, and -2^13 the word 0x3800: 0x1C00 + 0x3800 * 2^14 = 0xE001C00."""
    way = told(torch.tensor([1.0, -2.0]), torch.tensor([1.5, -2.25]), 2, FLOAT14)
    assert way.exponent == 15
    assert way.differences.tolist() == [0x00, 0x1C, 0x00, 0x0E, 0, 0, 0]
    assert arrived(torch.tensor([1.0, -2.0]), torch.tensor([1.5, -2.25]), FLOAT14).tolist() == [1.5, -2.25]


@CODED
def test_eleven_digits_of_a_difference_are_kept(code: Code) -> None:
    """1 + 2^-10 is one of either's numbers; 1 + 2^-12 lies between two of them, and the nearer is 1."""
    origin, vector = torch.zeros(3), torch.tensor([1 + 2.0**-10, 1 + 2.0**-12, -1 - 2.0**-12])
    assert arrived(origin, vector, code).tolist() == [1 + 2.0**-10, 1, -1]


def test_small_differences_have_fewer_digits_in_float14() -> None:
    """Beside a difference of 1, 2^-16 is the smallest step there is."""
    origin, vector = torch.zeros(4), torch.tensor([1.0, 5 * 2.0**-18, 2.0**-18, -(2.0**-20)])
    assert arrived(origin, vector, FLOAT14).tolist() == [1.0, 2.0**-16, 0.0, 0.0]
    assert arrived(origin, vector, FLOAT16).tolist() == vector.tolist()


@CODED
def test_statistics_arrive_as_they_are(code: Code) -> None:
    """A variance that falls from 1 to a millionth would come out negative if its difference were rounded."""
    origin, vector = torch.tensor([0.0, 1.0]), torch.tensor([0.1, 1e-6])
    assert arrived(origin, vector, code, trainable=1)[1] == vector[1] > 0
    assert arrived(origin, vector, code, trainable=2)[1] != vector[1]


@pytest.mark.parametrize(("code", "floor"), [(FLOAT16, 2.0**-39), (FLOAT14, 2.0**-17)])
@pytest.mark.parametrize("size", [1e-30, 1e-9, 1e-4, 1.0, 1e5, 1e20])
def test_the_error_is_bounded_whatever_the_size(size: float, code: Code, floor: float) -> None:
    """Also where float16 itself would give infinity (beyond 65,504) or nothing at all (below 6e-8)."""
    generator = torch.Generator().manual_seed(3)
    origin = torch.randn(5000, generator=generator) * size
    spread = torch.logspace(-12, 0, 5000)  # differences of very different sizes, in one vector
    vector = origin + size * spread * torch.randn(5000, generator=generator)
    found, difference = arrived(origin, vector, code).double(), (vector.double() - origin.double()).abs()
    rounding = 2.0**-23 * (vector.double().abs() + origin.double().abs())  # of float32
    bound = 2.0**-11 * difference + floor * difference.max() + rounding + 2.0**-149
    assert bool(((found - vector.double()).abs() <= bound).all())
    assert float((found - vector.double()).norm() / difference.norm()) < 3e-4


@CODED
def test_what_does_not_differ_arrives_to_the_bit(code: Code) -> None:
    vector = torch.tensor([3.25, -1e-8, 1e30])
    assert torch.equal(arrived(vector, vector, code), vector)


@CODED
def test_the_chain_does_not_drift(code: Code) -> None:
    """Each difference is from what the other side really has, so errors do not add up."""
    generator = torch.Generator().manual_seed(5)
    there = now = torch.randn(1000, generator=generator)
    for _ in range(200):
        step = 0.01 * torch.randn(1000, generator=generator)
        now = now + step
        there = arrived(there, now, code)
        assert float((there - now).norm()) < 1e-3 * float(step.norm())


@CODED
def test_what_was_rounded_once_is_told_again_to_the_bit(code: Code) -> None:
    """A model that was rounded when its task began is sent when the device asks for it, perhaps more than once."""
    generator = torch.Generator().manual_seed(7)
    for size in (1e-6, 1e-3, 1.0, 100.0):
        origin = torch.randn(60_000, generator=generator)
        first = arrived(origin, origin + size * torch.randn(60_000, generator=generator), code)
        assert torch.equal(arrived(origin, first, code), first)


@CODED
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_can_only_be_sent_whole(value: float, code: Code) -> None:
    reference = Reference(torch.zeros(2), of(2), code)
    assert reference.to(torch.tensor([1.0, value])) is None


@pytest.mark.parametrize("vector", [torch.zeros(3), torch.zeros(2, dtype=torch.float64), torch.zeros(1, 2)])
def test_what_is_no_such_model_can_only_be_sent_whole(vector: Tensor) -> None:
    assert Reference(torch.zeros(2), of(2), FLOAT16).to(vector) is None


def test_two_numbers_too_far_apart_for_float32_can_only_be_sent_whole() -> None:
    assert Reference(torch.tensor([-3e38]), of(1), FLOAT16).to(torch.tensor([3e38])) is None


@CODED
@pytest.mark.parametrize("largest", [1e-45, 1e-38, 1.0, 3e38])
def test_every_exponent_is_within_its_range(largest: float, code: Code) -> None:
    way = told(torch.zeros(1), torch.tensor([largest]), 1, code)
    assert way.exponent in EXPONENTS
    assert bool(torch.isfinite(way.differences).all())
    found = arrived(torch.zeros(1), torch.tensor([largest]), code).item()
    assert found == pytest.approx(largest, rel=1e-3, abs=2.0**-128)


def test_the_part_counts_two_bytes_for_a_parameter_and_four_for_a_statistic() -> None:
    assert Reference(torch.zeros(6), of(6), FLOAT16).part == 0.5
    layout = of(6, 2)
    assert Reference(torch.zeros(8), layout, FLOAT16).part * layout.bytes == 6 * 2 + 2 * 4
