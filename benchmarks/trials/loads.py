"""How much the server carries, what that costs, and whether it stays the same for an hour."""

from __future__ import annotations

import asyncio
import time
from argparse import Namespace
from pathlib import Path
from statistics import fmean
from typing import Any

from fedasmu.network.folder import Folder
from trials.devices import Habits, fleet_of
from trials.pollers import Poller, pollers_of
from trials.server import ServerProcess

WARM = 0.2  # of a soak: the allocator and the caches fill up


def load(args: Namespace, scratch: Path) -> dict[str, Any]:
    """Whole cycles (task and model, fresh model, upload) as fast as they go."""
    settings = ["network.keep=needed", "checkpoint_seconds=30"]
    server = ServerProcess(scratch / "run", args.devices, settings, args.model)
    server.start()
    pollers = pollers_of(Folder(server.out), args.devices, fetch=True)
    figures = asyncio.run(_cycles(pollers, server, args.uploads, args.limit))
    code, _ = server.stop()
    waits = sorted(wait for poller in pollers for wait in poller.waits)
    told = [task for poller in pollers for task in poller.tasks]
    return {
        "devices": args.devices,
        **figures,
        "upload_p50": round(waits[len(waits) // 2], 3),
        "upload_p99": round(waits[int(len(waits) * 0.99)], 3),
        "double": len(told) - len(set(told)),
        "told_to_wait": sum(poller.refusals for poller in pollers),
        "broken_off": sum(poller.broken for poller in pollers),
        "exit": code,
    }


async def _cycles(pollers: list[Poller], server: ServerProcess, uploads: int, limit: float) -> dict[str, Any]:
    opening = asyncio.Semaphore(64)
    tasks = [asyncio.create_task(poller.live(opening)) for poller in pollers]
    samples: list[tuple[int, float]] = []  # uploads, megabytes

    async def reached(number: int) -> int:
        until = time.monotonic() + limit
        while (done := sum(len(poller.tasks) for poller in pollers)) < number and time.monotonic() < until:
            await asyncio.wait(tasks, timeout=0.25, return_when=asyncio.FIRST_COMPLETED)
            for ended in (task for task in tasks if task.done()):
                ended.result()  # a device never ends by itself: raises what ended it
            samples.append((done, server.memory()))
        return done

    first = await reached(len(pollers))  # everybody is there
    began, used = time.monotonic(), server.seconds()
    done = await reached(first + uploads)
    seconds, used = time.monotonic() - began, server.seconds() - used
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return {
        "uploads": done - first,
        "cycles_per_second": round((done - first) / seconds, 1),
        "server_ms_per_cycle": round(used / (done - first) * 1000, 2),
        "server_cores": round(used / seconds, 2),
        "memory_mb": round(max(megabytes for _, megabytes in samples)),
        **_growth([(number, megabytes) for number, megabytes in samples if number >= first]),
    }


def _growth(samples: list[tuple[int, float]]) -> dict[str, Any]:
    """The mean of each tenth of a run, and the slope of its second half: the allocator fills up before that."""
    tenths = [samples[len(samples) * tenth // 10 : len(samples) * (tenth + 1) // 10] for tenth in range(10)]
    half = [(float(number), megabytes) for number, megabytes in samples[len(samples) // 2 :]]
    return {
        "memory_mb_by_tenths": [round(fmean(megabytes for _, megabytes in part), 1) for part in tenths if part],
        "growth_mb_per_10000": round(1e4 * slope(half), 2),
    }


def soak(args: Namespace, scratch: Path) -> dict[str, Any]:
    """A steady trickle of work for a long time: memory, descriptors and threads must not grow."""
    settings = ["network.keep=needed", "checkpoint_seconds=30"]
    server = ServerProcess(scratch / "run", args.devices, settings, args.model)
    server.start()
    samples: list[tuple[int, float, int, int]] = []  # uploads, megabytes, descriptors, threads
    with fleet_of(server, args.devices, Habits(rest=args.devices / args.rate)) as fleet:
        fleet.wait_for(args.devices)
        until = time.monotonic() + args.minutes * 60
        while time.monotonic() < until:
            time.sleep(args.seconds)
            samples.append((fleet.uploads, server.memory(), server.descriptors(), server.threads()))
        code, _ = server.stop()
    late = samples[int(len(samples) * WARM) :]
    return {
        "minutes": args.minutes,
        "uploads": samples[-1][0],
        "samples": len(samples),
        "memory_mb": [round(late[0][1], 1), round(late[-1][1], 1)],
        "growth_mb_per_10000": round(1e4 * slope([(sample[0], sample[1]) for sample in late]), 2),
        "descriptors": [min(sample[2] for sample in late), max(sample[2] for sample in late)],
        "threads": [min(sample[3] for sample in late), max(sample[3] for sample in late)],
        "exit": code,
        **fleet.counts(),
    }


def slope(points: list[tuple[float, float]]) -> float:
    """Of the straight line through these points that is nearest to them."""
    across, up = (sum(values) / len(points) for values in zip(*points, strict=True))
    spread = sum((x - across) ** 2 for x, _ in points)
    return sum((x - across) * (y - up) for x, y in points) / spread if spread else 0.0
