"""Thousands of devices that wait for work, each with a connection of its own; now and then one of them gets a task."""

from __future__ import annotations

import asyncio
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

from fedasmu.network.folder import Folder
from trials.pollers import Poller, pollers_of
from trials.server import ServerProcess

OPENING = 64  # connections that are opened at once


def idle(args: Namespace, scratch: Path) -> dict[str, Any]:
    """Five tasks a second for all of them: what does a waiting device cost, and how long does an upload take there?"""
    pace = ["pacing.period=0.2", "pacing.count=1", "pacing.max_in_flight=5", "network.per_address=256"]
    server = ServerProcess(scratch / "run", args.connections, pace)
    server.start()
    folder = Folder(server.out)
    pollers = pollers_of(folder, args.connections)
    before = server.memory()
    figures = asyncio.run(_wait(pollers, server, args.minutes * 60))
    code, _ = server.stop()
    waits = sorted(wait for poller in pollers for wait in poller.waits)
    return {
        "devices": args.connections,
        "minutes": args.minutes,
        **figures,
        "kb_per_connection": round((figures["memory_mb"] - before) * 1024 / max(figures["connections"], 1), 1),
        "polls": sum(poller.polls for poller in pollers),
        "uploads": len(waits),
        "slowest_upload": round(waits[-1], 3) if waits else None,
        "median_upload": round(waits[len(waits) // 2], 3) if waits else None,
        "broken_off": sum(poller.broken for poller in pollers),
        "exit": code,
    }


async def _wait(pollers: list[Poller], server: ServerProcess, seconds: float) -> dict[str, Any]:
    opening = asyncio.Semaphore(OPENING)
    began = time.monotonic()
    tasks = [asyncio.create_task(poller.live(opening)) for poller in pollers]
    while any(not poller.polls for poller in pollers) and time.monotonic() - began < 900:
        await asyncio.sleep(0.2)
    arrived, used = time.monotonic(), server.seconds()
    for poller in pollers:
        poller.waits.clear()
    await asyncio.sleep(seconds)
    figures = {
        "seconds_until_all_have_polled": round(arrived - began, 1),
        "connections": server.descriptors(),
        "memory_mb": round(server.memory()),
        "server_cores": round((server.seconds() - used) / (time.monotonic() - arrived), 2),
    }
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return figures
