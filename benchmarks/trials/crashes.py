"""The server dies, its disk is full, or it is told to stop: nothing acknowledged is lost, and nothing counts twice."""

from __future__ import annotations

import contextlib
import random
import resource
import subprocess
import time
from argparse import Namespace
from pathlib import Path
from statistics import median
from typing import Any

from fedasmu.network import failpoint
from fedasmu.network.client import Client
from fedasmu.network.folder import Folder
from trials.audit import audit
from trials.devices import Fleet, fleet_of, greet, seated
from trials.server import ServerProcess

# Not those of devices, nor that of pruning: here every act is kept, so that all of them can be replayed.
SERVER_POINTS = [name for name in failpoint.NAMES if not name.startswith(("outbox", "memory", "ledger.pruned"))]


def kill(args: Namespace, scratch: Path) -> dict[str, Any]:
    """kill -9 at random moments under load. A server has recovered when a device's hello is answered."""
    server = ServerProcess(scratch / "run", args.devices + 1, model=args.model)
    first = server.start()
    folder = Folder(server.out)
    visitor = Client(folder.url, seated(folder, args.devices), [folder.pin()])  # has a seat, and only greets
    recovered: list[float] = []
    uploaded: list[float] = []
    processor: list[float] = []
    until = time.monotonic() + args.limit
    with fleet_of(server, args.devices) as fleet:
        while len(recovered) < args.times and time.monotonic() < until:
            fleet.wait_for(args.devices)
            time.sleep(random.uniform(0.0, args.pause))
            server.kill()
            began = time.monotonic()
            server.start()
            greet(visitor)
            recovered.append(time.monotonic() - began)
            processor.append(server.seconds())
            fleet.wait_for(1)
            uploaded.append(time.monotonic() - began)
        fleet.wait_for(args.devices)
        code, seconds = server.stop()
    figures = {
        "kills": len(recovered),
        "recovered": len(recovered),
        "within_5_seconds": sum(one <= 5.0 for one in recovered),
        "slowest_recovery": round(max(recovered), 2),
        "median_recovery": round(median(recovered), 2),
        "slowest_first_upload": round(max(uploaded), 2),
        "median_first_upload": round(median(uploaded), 2),
        "most_processor_seconds": round(max(processor), 2),
        "first_start": round(first, 2),
    }
    return figures | {"exit": code, "drain": round(seconds, 2)} | _audited(server, fleet)


def failpoints(args: Namespace, scratch: Path) -> dict[str, Any]:
    """The same at every named place around write, fsync and rename."""
    server = ServerProcess(scratch / "run", args.devices, ["checkpoint_seconds=1"], model=args.model)
    server.start()
    died: dict[str, bool] = {}
    with fleet_of(server, args.devices) as fleet:
        for name in SERVER_POINTS:
            fleet.wait_for(args.devices)
            server.stop()
            died[name] = _dies(server, name)
            server.start()
        fleet.wait_for(args.devices)
        server.stop()
    missed = [name for name, hit in died.items() if not hit]
    return {"failpoints": len(died), "died_there": sum(died.values()), "not_reached": missed} | _audited(server, fleet)


def _dies(server: ServerProcess, name: str) -> bool:
    hits = 1 if name == "recover.applied" else random.randint(1, 4)
    with contextlib.suppress(RuntimeError):
        server.start(FEDASMU_FAIL=f"{name}:{hits}")
    assert server.process is not None
    try:
        return server.process.wait(60) == failpoint.CODE
    except subprocess.TimeoutExpired:
        server.kill()
        return False


def disk(args: Namespace, scratch: Path) -> dict[str, Any]:
    """No file may grow for a while, as on a full disk: uploads wait, and go on by themselves."""
    server = ServerProcess(scratch / "run", args.devices)
    server.start()
    with fleet_of(server, args.devices) as fleet:
        fleet.wait_for(2 * args.devices)
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
        time.sleep(8.0)
        stalled = round(fleet.rate(3.0) * 3.0)
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        before = fleet.uploads
        fleet.wait_for(args.devices)
        after = fleet.uploads - before
        code, _ = server.stop()
    return {"uploads_while_full": stalled, "uploads_after": after, "exit": code} | _audited(server, fleet)


def drain(args: Namespace, scratch: Path) -> dict[str, Any]:
    """SIGTERM under load."""
    server = ServerProcess(scratch / "run", args.devices)
    server.start()
    with fleet_of(server, args.devices) as fleet:
        fleet.wait_for(2 * args.devices)
        code, seconds = server.stop()
    return {"exit": code, "seconds": round(seconds, 2)} | _audited(server, fleet)


def _audited(server: ServerProcess, fleet: Fleet) -> dict[str, Any]:
    return audit(server.out, fleet.acknowledged) | fleet.counts()
