"""Numbers in two bytes, and four of them in seven: the words by hand, what is lost, what nobody has sent."""

from __future__ import annotations

import bisect
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedasmu.encoding.rounding import CODES, TOP, Code, Float14, Float16, Precision, part
from fedasmu.vector import Layout

FLOAT14 = Float14()
ALL = 1 << 14  # words of float14
UNIT = 0.25  # the smallest number of float14 above zero: the largest of all, 2047 * 64 of these, is just below 2^TOP


def word(sent: Tensor) -> int:
    """The first one."""
    return int.from_bytes(bytes(sent.tolist()), "little") & 0x3FFF


def packed(words: list[int]) -> Tensor:
    """As the definition has it: four words of 14 bits in seven bytes, the first in the lowest bits."""
    groups = [words[first : first + 4] for first in range(0, len(words), 4)]
    sums = [sum(one << 14 * place for place, one in enumerate(group)) for group in groups]
    return torch.tensor([byte for number in sums for byte in number.to_bytes(7, "little")], dtype=torch.uint8)


def value(magnitude: int) -> float:
    """Of a word without its sign: three bits of exponent, ten of mantissa."""
    exponent, mantissa = divmod(magnitude, 1024)
    return UNIT * (mantissa if exponent == 0 else (1024 + mantissa) * 2 ** (exponent - 1))


VALUES = [value(magnitude) for magnitude in range(ALL // 2)]

WORDS = {
    0.0: 0x0000,
    0.25: 0x0001,  # one unit, of those without a leading one
    -0.25: 0x2001,
    255.75: 0x03FF,  # 1,023 units, the last of them
    256.0: 0x0400,  # 1,024: from here on a leading one is understood
    -256.25: 0x2401,
    1.0 * 2**14: 0x1C00,  # 1,024 * 64
    -1.0 * 2**14: 0x3C00,
    32752.0: 0x1FFF,  # 2,047 * 64, the largest
    -32752.0: 0x3FFF,
    # Half way between two, to the even one.
    0.125: 0x0000,
    0.375: 0x0002,
    -0.375: 0x2002,
    511.875: 0x0800,  # 2,047.5 units: the mantissa overflows into the exponent
    2**14 + 8.0: 0x1C00,
    2**14 + 24.0: 0x1C02,
    -(2**14) - 8.0: 0x3C00,
    # Nearer to one of the two.
    0.13: 0x0001,
    2**14 + 8.5: 0x1C01,
    # Beyond the largest, where the next one would be 2^15.
    32759.0: 0x1FFF,
    32767.5: 0x1FFF,
    -32767.5: 0x3FFF,
}


@pytest.mark.parametrize(("number", "expected"), WORDS.items())
def test_a_number_has_this_word(number: float, expected: int) -> None:
    assert f"{word(FLOAT14.encode(torch.tensor([number]))):#06x}" == f"{expected:#06x}"


def test_four_words_are_seven_bytes() -> None:
    """1 + 2 * 2^14 + 3 * 2^28 + 16,383 * 2^42 = 0xFFFC0030008001."""
    sent = torch.tensor([0x01, 0x80, 0x00, 0x30, 0x00, 0xFC, 0xFF], dtype=torch.uint8)
    numbers = torch.tensor([0.25, 0.5, 0.75, -32752.0])
    assert FLOAT14.encode(numbers.clone()).tolist() == sent.tolist()
    assert torch.equal(FLOAT14.decode(sent, 4), numbers)


def test_a_group_that_is_not_full_ends_in_zeros() -> None:
    """Five numbers: the fifth, 0x2001, alone in the second seven bytes."""
    sent = FLOAT14.encode(torch.tensor([0.0, 0.0, 0.0, 0.0, -0.25]))
    assert sent.tolist() == [0] * 7 + [0x01, 0x20, 0, 0, 0, 0, 0]
    assert FLOAT14.decode(sent, 5).tolist() == [0.0, 0.0, 0.0, 0.0, -0.25]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_bits_that_stand_for_no_number_must_be_zero(count: int) -> None:
    for bit in range(14 * count, 56):
        sent = torch.tensor(list((1 << bit).to_bytes(7, "little")), dtype=torch.uint8)
        with pytest.raises(ValueError, match="not zero"):
            FLOAT14.decode(sent, count)
        assert torch.isfinite(FLOAT14.decode(sent, 4)).all()


def test_every_word_is_a_finite_number_and_is_told_as_itself() -> None:
    sent = packed(list(range(ALL)))
    numbers = FLOAT14.decode(sent, ALL)
    assert numbers.tolist() == [*VALUES, *(-one for one in VALUES)]
    assert torch.equal(FLOAT14.encode(numbers), sent)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(-(2.0**TOP), 2.0**TOP, exclude_min=True, exclude_max=True, width=32), max_size=9))
def test_no_number_of_the_code_is_nearer(numbers: list[float]) -> None:
    found = FLOAT14.decode(FLOAT14.encode(torch.tensor(numbers)), len(numbers)).tolist()
    for number, one in zip(numbers, found, strict=True):
        place = bisect.bisect(VALUES, abs(number))
        nearest = min(abs(abs(number) - value) for value in VALUES[max(place - 1, 0) : place + 1])
        assert abs(number - one) == nearest <= max(2.0**-11 * abs(number), UNIT / 2)
        assert number * one >= 0


@pytest.mark.parametrize("code", CODES.values(), ids=CODES)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 1000])
def test_as_many_numbers_always_take_as_many_bytes(code: Code, count: int) -> None:
    for size in (0.0, 1.0, 2.0**14):
        sent = code.encode(torch.full((count,), size))
        assert (sent.dtype, len(sent)) == (code.dtype, code.length(count))
        arrived = code.decode(sent, count)
        assert (arrived.dtype, len(arrived)) == (torch.float32, count)


def test_every_precision_that_a_recipe_may_name_has_its_code() -> None:
    """One without a code would be taken for float32."""
    assert set(get_args(Precision)) == {"float32", *CODES}


def layout(trainable: int, statistics: int) -> Layout:
    module = nn.BatchNorm1d(1, affine=False)
    module.running_mean, module.weight = torch.zeros(statistics - 1), nn.Parameter(torch.zeros(trainable))
    return Layout.of(module)


def test_the_part_counts_every_byte() -> None:
    """Six parameters: 12 bytes, or twice seven; two statistics, eight bytes."""
    whole = layout(6, 2)
    assert whole.bytes == 32
    assert part(Float16(), whole) * 32 == 12 + 8
    assert part(FLOAT14, whole) * 32 == 14 + 8
    assert part(FLOAT14, Layout.of(nn.Linear(100, 40, bias=False))) == 0.4375
