"""The time of a run: only what was served counts."""

from __future__ import annotations

from fedasmu.network.uptime import STALL, Uptime


def test_it_goes_on_where_the_run_was_and_leaves_out_what_nobody_lived_through() -> None:
    looks = iter([100.0, 100.25, 100.5, 160.5, 160.75, 160.75 + STALL])
    now = Uptime(40.0, lambda: next(looks))
    assert [now() for _ in range(5)] == [40.25, 40.5, 40.5, 40.75, 40.75]
