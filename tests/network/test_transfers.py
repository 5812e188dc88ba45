"""Uploads at once: a few are read, some wait, and only who has waited for long is told to come back."""

from __future__ import annotations

import asyncio

import pytest

from fedasmu.network.door import Problem
from fedasmu.network.transfers import Transfers


def test_who_comes_while_all_places_are_taken_waits_for_one() -> None:
    order: list[str] = []

    async def upload(name: str, transfers: Transfers, reading: asyncio.Event) -> None:
        async with transfers.one():
            order.append(f"{name} begins")
            await reading.wait()
            order.append(f"{name} ends")

    async def both() -> None:
        transfers, reading = Transfers(1, 60.0), asyncio.Event()
        uploads = [asyncio.create_task(upload(name, transfers, reading)) for name in ("first", "second")]
        await asyncio.sleep(0)
        reading.set()
        await asyncio.gather(*uploads)

    asyncio.run(both())
    assert order == ["first begins", "first ends", "second begins", "second ends"]


def test_who_has_waited_for_long_is_told_to_come_back() -> None:
    async def both() -> None:
        transfers = Transfers(1, 0.01)
        async with transfers.one():
            with pytest.raises(Problem, match="too many uploads") as refused:
                async with transfers.one():
                    raise AssertionError("there was no place")
        assert (refused.value.status, refused.value.code) == (503, "busy")
        assert refused.value.pause
        async with transfers.one():  # the place is free again
            pass

    asyncio.run(both())
