"""One command a figure, one JSON line out. Real server processes, real TLS sockets, on this machine alone:

python benchmarks/network.py kill --times 200          kill -9 under load: nothing lost, nothing twice, same model
python benchmarks/network.py failpoints                the same at every named place around write, fsync and rename
python benchmarks/network.py load --devices 1000 --uploads 100000
python benchmarks/network.py soak --minutes 60         flat memory, descriptors and threads
python benchmarks/network.py idle --connections 5000   devices that wait for work
python benchmarks/network.py attack slowloris --connections 500 --minutes 5
python benchmarks/network.py attack flood | frames --count 1000000 | all --count 20000
python benchmarks/network.py faults proxy | pause | half | partition
python benchmarks/network.py disk | drain
python benchmarks/network.py clock                     wall clocks wrong by years (needs a C compiler)
python benchmarks/network.py clock jumps               of these only the server whose clock jumps as it serves
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from trials import attacks, clocks, crashes, faults, hostile, idle, loads
from trials.audit import print_digests
from trials.groups import run_group

DEEDS = {
    "kill": crashes.kill,
    "failpoints": crashes.failpoints,
    "disk": crashes.disk,
    "drain": crashes.drain,
    "load": loads.load,
    "soak": loads.soak,
    "idle": idle.idle,
    "attack slowloris": attacks.slowloris,
    "attack flood": attacks.flood,
    "attack frames": attacks.frames,
    "attack all": hostile.everything,
    "faults proxy": faults.proxy,
    "faults pause": faults.pause,
    "faults half": faults.half,
    "faults partition": faults.partition,
    "clock": clocks.clock,
    "clock jumps": clocks.jumps,
}
PARTS = {"digests": print_digests, "part": attacks.part, "group": run_group}  # what these start as processes


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=sorted({name.split()[0] for name in DEEDS} | set(PARTS)))
    parser.add_argument("how", nargs="?", default="")
    counts = {"devices": 20, "times": 5, "uploads": 500, "connections": 100, "count": 100_000}
    seconds = {"pause": 3.0, "seconds": 10.0, "minutes": 1.0, "rate": 10.0, "limit": 3600.0, "lease": 20.0}
    for name, default in (counts | seconds).items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--model", default="lenet5")
    return parser.parse_args()


def stamp() -> dict[str, Any]:
    """When, on what and of which commit a figure is."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "commit": commit.stdout.strip(),
        "cores": os.cpu_count(),
    }


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    if args.what in PARTS:
        PARTS[args.what](args.how)
        return
    name = f"{args.what} {args.how}".strip()
    if name not in DEEDS:
        raise SystemExit(f"{name}: there is {', '.join(DEEDS)}")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    about, before = stamp(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        try:
            figures = DEEDS[name](args, Path(scratch))
        except BaseException:
            log = Path(scratch) / "run.log"
            print(log.read_text()[-4000:] if log.exists() else "", file=sys.stderr)
            raise
    loaded = [round(one, 1) for one in (before, os.getloadavg()[0])]
    print(json.dumps({"benchmark": name, **about, "load_average": loaded, **figures}))


if __name__ == "__main__":
    main()
