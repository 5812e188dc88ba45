"""Devices without a task are told when to come back."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from fedasmu.network.polls import OPEN, Polls
from fedasmu.network.replies import later


def test_who_stays_away_for_long_keeps_no_connection() -> None:
    soon, late = later(10), later(11)
    assert soon.headers["retry-after"] == "10"
    assert "connection" not in soon.headers
    assert (late.headers["retry-after"], late.headers["connection"]) == ("11", "close")


def test_a_fleet_that_fills_all_polls_is_spread_over_time() -> None:
    polls = Polls(lambda: None)
    assert polls.pause(seats=100_000, least=3.0) == 3
    polls._open = dict.fromkeys(range(OPEN))  # type: ignore[assignment]
    assert all(250 <= polls.pause(seats=100_000, least=3.0) <= 600 for _ in range(100))


def test_the_poll_that_a_device_has_replaced_knows_it() -> None:
    """It must not take the device's presence with it: the second one waits."""

    async def scene() -> tuple[bool, bool]:
        polls, request = Polls(lambda: None), SimpleNamespace(receive=asyncio.Event().wait)
        first = asyncio.ensure_future(polls.wait(request, 7, 30.0))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        second = asyncio.ensure_future(polls.wait(request, 7, 30.0))  # type: ignore[arg-type]
        last = await first
        polls.answer(7)
        return last, await second

    assert asyncio.run(scene()) == (False, True)
