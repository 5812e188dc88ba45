"""Wall clocks that are wrong by years, and that jump: what is decided is the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from trials.audit import audit
from trials.devices import fleet_of
from trials.server import ServerProcess

LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))  # the package libfaketime


def clock(args: Namespace, scratch: Path) -> dict[str, Any]:
    """A scripted rehearsal with the clocks of server and devices off; then a server whose clock jumps as it serves."""
    if not LIBRARIES:
        raise SystemExit("clock: install libfaketime; it changes what a process sees as the time of day")
    same = {
        off: _same_bytes(scratch / f"clock{number}", off) for number, off in enumerate(("+0", "+10y", "-10y", "+5h"))
    }
    return {"same_bytes": same, "jumps": _jumps(args, scratch)}


def faked(**settings: str) -> dict[str, str]:
    """The environment of a process that sees another time of day. Monotonic time, which timeouts need, stays."""
    return {"LD_PRELOAD": str(LIBRARIES[-1]), "FAKETIME_DONT_FAKE_MONOTONIC": "1", **settings}


def _same_bytes(out: Path, off: str) -> bool:
    command = ["rehearse", "quickstart", "--devices", "3", "--uploads", "6", "--script", "--out", str(out)]
    environment = {**os.environ, **faked(FAKETIME=off)}
    done = subprocess.run(
        [sys.executable, "-m", "fedasmu", *command], env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode == 0 and "3 files byte-identical" in done.stdout


def _jumps(args: Namespace, scratch: Path) -> dict[str, Any]:
    """The devices' clock is right, so that it differs from the server's by up to ten years either way."""
    dial = scratch / "dial"
    dial.write_text("+0\n")
    server = ServerProcess(scratch / "run", args.devices)
    server.start(**faked(FAKETIME_TIMESTAMP_FILE=str(dial), FAKETIME_NO_CACHE="1"))
    uploads: dict[str, int] = {}
    with fleet_of(server, args.devices) as fleet:
        for off in ("+0", "+10y", "-10y", "+3h"):
            dial.write_text(f"{off}\n")
            before = fleet.uploads
            fleet.wait_for(2 * args.devices)
            uploads[off] = fleet.uploads - before
        code, _ = server.stop()
    events = [json.loads(line) for line in (server.out / "events.jsonl").read_text().splitlines()]
    times = [event["time"] for event in events]
    return {
        "uploads": uploads,
        "lost": sum(event["event"] == "lost" for event in events),
        "time_goes_on": times == sorted(times) and times[-1] < 3600,
        "exit": code,
        **audit(server.out, fleet.acknowledged),
    }
