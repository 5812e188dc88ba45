"""Uploads at once: a few are read, some wait, and only who has waited for long is told to come back."""

from __future__ import annotations

import asyncio

import pytest

from fedasmu.network.door import Problem
from fedasmu.network.transfers import Parts, Transfers


def test_who_comes_while_all_places_are_taken_waits_for_one() -> None:
    order: list[str] = []

    async def upload(name: str, transfers: Transfers, reading: asyncio.Event) -> None:
        async with transfers.one(len(name)):
            order.append(f"{name} begins")
            await reading.wait()
            order.append(f"{name} ends")

    async def both() -> None:
        transfers, reading = Transfers(1, 60.0), asyncio.Event()
        uploads = [asyncio.create_task(upload(name, transfers, reading)) for name in ("one", "second")]
        await asyncio.sleep(0)
        reading.set()
        await asyncio.gather(*uploads)

    asyncio.run(both())
    assert order == ["one begins", "one ends", "second begins", "second ends"]


def test_who_has_waited_for_long_is_told_to_come_back() -> None:
    async def both() -> None:
        transfers = Transfers(1, 0.01)
        async with transfers.one(1):
            with pytest.raises(Problem, match="too many uploads") as refused:
                async with transfers.one(2):
                    raise AssertionError("there was no place")
        assert (refused.value.status, refused.value.code) == (503, "busy")
        assert refused.value.pause
        async with transfers.one(2):  # the place is free again
            pass

    asyncio.run(both())


def test_a_device_has_one_place_that_of_what_it_sends_last() -> None:
    """One that opened many would keep all others out; one whose connection broke is not to wait for the old one."""
    order: list[str] = []

    async def upload(transfers: Transfers, device: int, endless: bool) -> None:
        try:
            async with transfers.one(device):
                order.append(f"{device} begins")
                await asyncio.sleep(1e6 if endless else 0)
                order.append(f"{device} ends")
        except Problem as problem:
            order.append(f"{device} {problem.code}")

    async def all_of_them() -> None:
        transfers = Transfers(2, 60.0)
        slow = [asyncio.create_task(upload(transfers, 1, endless=True)) for _ in range(5)]
        await asyncio.sleep(0)
        await asyncio.wait_for(upload(transfers, 2, endless=False), 60.0)
        await asyncio.wait_for(upload(transfers, 1, endless=False), 60.0)
        await asyncio.wait_for(asyncio.gather(*slow), 60.0)
        assert not transfers._of
        assert transfers._free._value == 2

    asyncio.run(all_of_them())
    assert order.count("1 anew") == 5
    assert order.count("1 ends") == order.count("2 ends") == 1


def test_what_has_come_is_kept_where_a_device_begins_anew() -> None:
    async def both() -> None:
        transfers, parts = Transfers(), Parts(4)

        async def stuck() -> None:
            async with transfers.one(1):
                with parts.one(1, 7, "digest", 0) as data:
                    data += b"half"
                    await asyncio.sleep(1e6)

        first = asyncio.create_task(stuck())
        await asyncio.sleep(0)
        assert parts.held(1, 7, "digest") == b"half"
        async with transfers.one(1):
            with pytest.raises(Problem, match="begun to send it anew"):
                await asyncio.wait_for(first, 60.0)
            with parts.one(1, 7, "digest", 4) as data:
                assert data == b"half"

    asyncio.run(both())
