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

YEARS = 31_557_600  # seconds, in one
OFFS = {"right": 0, "ten years ahead": 10 * YEARS, "ten years behind": -10 * YEARS, "five hours ahead": 18_000}


def clock(args: Namespace, scratch: Path) -> dict[str, Any]:
    """A scripted rehearsal with the clocks of server and devices off; then a server whose clock jumps as it serves."""
    environment, same = _dialled(scratch), {}
    for number, (name, off) in enumerate(OFFS.items()):
        (scratch / "dial").write_text(f"{off}\n")
        same[name] = _same_bytes(scratch / f"clock{number}", environment)
    return {"same_bytes": same, "jumps": jumps(args, scratch)}


def _dialled(scratch: Path) -> dict[str, str]:
    """What a process's environment must have for its clock to be off by the seconds in the file `dial`."""
    library, source = scratch / "dial.so", Path(__file__).with_name("dial.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "DIAL": str(scratch / "dial")}


def _same_bytes(out: Path, environment: dict[str, str]) -> bool:
    command = ["rehearse", "quickstart", "--devices", "3", "--uploads", "6", "--script", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "fedasmu", *command],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode == 0 and "3 files byte-identical" in done.stdout


def jumps(args: Namespace, scratch: Path) -> dict[str, Any]:
    """The devices' clock is right, so that it differs from the server's by up to ten years either way."""
    server = ServerProcess(scratch / "run", args.devices, model=args.model)
    (scratch / "dial").write_text("0\n")
    server.start(**_dialled(scratch))
    uploads: dict[str, int] = {}
    with fleet_of(server, args.devices) as fleet:
        for name, off in OFFS.items():
            (scratch / "dial").write_text(f"{off}\n")
            before = fleet.uploads
            fleet.wait_for(2 * args.devices)
            uploads[name] = fleet.uploads - before
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
