"""The fleet of the paper's tables: every printed time can happen in it, and not in the others."""

from __future__ import annotations

import math

import pytest

from fedasmu.settings.packaged import RECIPES
from fedasmu.study import clock
from fedasmu.study.clock import Lengths
from fedasmu.study.paper import Printed


def test_a_printed_time_as_a_share_of_its_budget() -> None:
    length = Lengths(synchronous=1000.0, asynchronous=200.0)
    assert length.share("fedavg", 250.0) == 0.25
    assert length.share("fedbuff", 250.0) == 1.25


def test_a_row_by_hand() -> None:
    column = {
        "fedasmu": Printed(0.5, 100.0),
        "fedavg": Printed(0.5, 600.0),
        "moon": Printed(0.5, 900.0),
        "port": Printed(0.5, 300.0),
        "feddyn": Printed(0.5, math.inf),
    }
    row = clock._row("here", column, Lengths(1000.0, 200.0))
    assert row == ("here", "2", "0.0", "300", "2500", "90 % (moon)", "150 % (port)")


@pytest.mark.parametrize("seed", [0, 4])  # the seed with which uploads come fastest is 4
def test_every_printed_time_is_possible_in_the_fleet_of_the_tables(seed: int) -> None:
    """The strictest cells are those with the longest times: ASO-Fed's with VGG and PORT's with LeNet."""
    for recipe in ("vgg-cifar-100", "lenet-cifar-10"):
        length = clock.lengths(RECIPES / f"{recipe}.toml", [seed])
        printed = {method: entry.time for method, entry in clock.columns()[recipe].items() if entry.time < math.inf}
        assert max(length.share(method, time) for method, time in printed.items()) < 1


def test_fedavgs_times_are_impossible_in_the_fleet_of_the_text() -> None:
    length = clock.lengths(RECIPES / "lenet-fashion-mnist.toml", [0], ["fleet.preset=base"])
    assert length.share("fedavg", clock.columns()["lenet-fashion-mnist"]["fedavg"].time) > 1.2
