"""One command a figure, one JSON line out:

python benchmarks/network.py kill --times 20           kill -9 under load: nothing lost, nothing twice, same model
python benchmarks/network.py failpoints                the same at every named place around write, fsync and rename
python benchmarks/network.py load --devices 100 --uploads 2000
python benchmarks/network.py attack slowloris --connections 200
python benchmarks/network.py attack frames --count 100000
python benchmarks/network.py faults --uploads 100      through a proxy that delays, cuts and flips
python benchmarks/network.py disk | drain | idle --connections 1000
python benchmarks/network.py clock                     the wall clock ten years ahead and behind: the same bytes
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from synthetic import ServerProcess, SyntheticDevice, acts_of

from fedasmu.network import failpoint, wire
from fedasmu.network.folder import Folder
from fedasmu.protocol import Report

HOST = "127.0.0.1"
# Not those of devices, nor that of pruning: here every act is kept, so that all of them can be replayed.
SERVER_POINTS = [name for name in failpoint.NAMES if not name.startswith(("outbox", "memory", "ledger.pruned"))]


@contextlib.contextmanager
def load_of(server: ServerProcess, devices: int, **options: Any) -> Any:
    stopping = threading.Event()
    threads = [SyntheticDevice(server.out, number, stopping, **options) for number in range(devices)]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        stopping.set()
        for thread in threads:
            thread.join(90)
    for thread in threads:
        if thread.trouble is not None:
            raise thread.trouble


def wait_for(threads: list[SyntheticDevice], more: int) -> None:
    """Until so many more uploads were acknowledged."""
    goal, until = uploads_of(threads) + more, time.monotonic() + 120
    while uploads_of(threads) < goal and time.monotonic() < until:
        time.sleep(0.05)


def uploads_of(threads: list[SyntheticDevice]) -> int:
    return sum(len(thread.acknowledged) for thread in threads)


def audit(server: ServerProcess, threads: list[SyntheticDevice]) -> dict[str, Any]:
    """The ledger against what devices were told, and the model against a replay of the ledger."""
    acts = [act for _, act in acts_of(server.out)]
    written = Counter(act.head["task"] for act in acts if act.kind == "upload")  # type: ignore[attr-defined]
    told = [task for thread in threads for task in thread.acknowledged]
    saved = subprocess.run(
        [sys.executable, __file__, "digests", str(server.out)], capture_output=True, text=True, check=True
    )
    kept, replayed = saved.stdout.split()
    return {
        "acknowledged": len(told),
        "missing": sum(written[task] == 0 for task in told),
        "double": sum(count > 1 for count in written.values()),
        "in_ledger": sum(written.values()),
        "repeats_told_the_same": sum(thread.repeated for thread in threads),
        "model_is_replay": kept == replayed,
    }


def digests(out: Path) -> None:
    """Of the model in the newest checkpoint, and of a replay of the whole ledger into a fresh server."""
    from fedasmu import checkpoint
    from fedasmu.build import build
    from fedasmu.network.acts import Acts
    from fedasmu.network.ledger import Ledger
    from fedasmu.network.site import attach
    from fedasmu.pools import Inline, timing_only
    from fedasmu.recipe import load
    from fedasmu.record import Record

    world = build(load(str(out / "config.toml")))

    def fresh(folder: Path) -> Acts:
        folder.mkdir()
        desk, roster = attach(world, Inline(timing_only), Record(folder))
        return Acts(desk, Ledger(out / "ledger", Folder(out).table), roster, {})

    with tempfile.TemporaryDirectory() as scratch:
        kept, replayed = fresh(Path(scratch) / "kept"), fresh(Path(scratch) / "replayed")
        kept.desk.server.restore(checkpoint.load(out / "checkpoint", print)["desk"]["server"])  # type: ignore[index]
        replayed.recover(0)
        print(*(wire.digest(one.desk.server.model.vector) for one in (kept, replayed)))


def kill(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    server = ServerProcess(scratch / "run", args.devices)
    server.start()
    recovered: list[float] = []
    with load_of(server, args.devices) as threads:
        for _ in range(args.times):
            wait_for(threads, args.devices)
            time.sleep(random.uniform(0.0, args.pause))
            server.kill()
            recovered.append(server.start())
        wait_for(threads, args.devices)
        code, seconds = server.stop()
    figures = {"kills": args.times, "recovered": len(recovered), "slowest_recovery": round(max(recovered), 2)}
    return figures | {"exit": code, "drain": round(seconds, 2)} | audit(server, threads)


def failpoints(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    server = ServerProcess(scratch / "run", args.devices, settings=["checkpoint_seconds=1"])
    server.start()
    died: dict[str, bool] = {}
    with load_of(server, args.devices) as threads:
        for name in SERVER_POINTS:
            wait_for(threads, args.devices)
            server.stop()
            hits = 1 if name == "recover.applied" else random.randint(1, 4)
            settings = {"FEDASMU_FAIL": f"{name}:{hits}"}
            with contextlib.suppress(RuntimeError):
                server.start(**settings)
            assert server.process is not None
            try:
                died[name] = server.process.wait(60) == failpoint.CODE
            except subprocess.TimeoutExpired:
                died[name] = False
                server.kill()
            server.start()
        wait_for(threads, args.devices)
        server.stop()
    missed = [name for name, hit in died.items() if not hit]
    return {"failpoints": len(died), "died_there": sum(died.values()), "not_reached": missed} | audit(server, threads)


def load(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    server = ServerProcess(scratch / "run", args.devices, settings=["network.keep=needed", "checkpoint_seconds=30"])
    server.start()
    with load_of(server, args.devices) as threads:
        while uploads_of(threads) < args.devices:  # everybody is there
            time.sleep(0.1)
        began, first, before = time.monotonic(), uploads_of(threads), server.memory()
        while uploads_of(threads) < first + args.uploads:
            time.sleep(0.1)
        seconds, done = time.monotonic() - began, uploads_of(threads) - first
        after = server.memory()
        waits = sorted(wait for thread in threads for wait in thread.seconds)
        code, _ = server.stop()
    return {
        "devices": args.devices,
        "uploads": done,
        "cycles_per_second": round(done / seconds, 1),
        "upload_p50": round(waits[len(waits) // 2], 3),
        "upload_p99": round(waits[int(len(waits) * 0.99)], 3),
        "memory_mb": round(after),
        "growth_mb_per_10000": round((after - before) / done * 10_000, 1),
        "exit": code,
    }


def slowloris(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    server = ServerProcess(scratch / "run", args.devices)
    server.start()
    folder = Folder(server.out)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with load_of(server, args.devices) as threads:
        time.sleep(2.0)
        quiet = _rate(threads, args.seconds)
        held: list[float] = []
        upload = b"PUT /v1/tasks/0/result HTTP/1.1\r\ncontent-length: 200000\r\n\r\n"
        kinds = [b"", b"GET /v1/task HTTP/1.1\r\nx: ", upload]

        def hold(kind: bytes) -> None:
            began = time.monotonic()
            try:
                connection = context.wrap_socket(socket.create_connection((HOST, folder.port)))
                connection.settimeout(1.0)
                connection.sendall(kind)
                while time.monotonic() - began < 60:
                    with contextlib.suppress(TimeoutError):
                        if connection.recv(4096) == b"":
                            break
                    if kind:
                        connection.sendall(b"a")
            except OSError:
                pass
            held.append(time.monotonic() - began)

        holders = [threading.Thread(target=hold, args=(kinds[n % 3],), daemon=True) for n in range(args.connections)]
        for holder in holders:
            holder.start()
        attacked = _rate(threads, args.seconds)
        for holder in holders:
            holder.join(70)
        server.stop()
    figures = {"connections": args.connections, "closed": len(held), "longest_held": round(max(held), 1)}
    return figures | {"uploads_per_second": round(quiet, 1), "under_attack": round(attacked, 1)}


def _rate(threads: list[SyntheticDevice], seconds: float) -> float:
    before = uploads_of(threads)
    time.sleep(seconds)
    return (uploads_of(threads) - before) / seconds


def frames(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Mutated frames through the parser, in this process."""
    chance, size = random.Random(args.count), 500
    good = wire.report_frame(Report(torch.ones(size), 1, 0.5, {"beta": 0.25, "slot": 3}), {})
    outcomes: Counter[str] = Counter()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(args.count):
        data = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(60 if chance.random() < 0.8 else len(data))] = chance.randrange(256)
        if chance.random() < 0.2:
            data = data[: chance.randrange(len(data))]
        try:
            wire.read_report(data, size, {}, 1)
            outcomes["well-formed"] += 1
        except wire.Malformed:
            outcomes["malformed"] += 1
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {"frames": args.count, **outcomes, "crashes": 0, "memory_grown_mb": round(grown, 1)}


class Proxy(threading.Thread):
    """Passes bytes on, but delays some, flips some, and cuts some connections."""

    def __init__(self, port: int, chance: random.Random) -> None:
        super().__init__(daemon=True)
        self._target, self._chance = port, chance
        self._listening = socket.create_server((HOST, 0), backlog=256)
        self.port = self._listening.getsockname()[1]
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        while True:
            near, _ = self._listening.accept()
            if self._chance.random() < 0.2:
                self.counts["dropped"] += 1
                near.close()
                continue
            try:
                far = socket.create_connection((HOST, self._target), 5)
            except OSError:
                near.close()
                continue
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(16_384):
                fate = self._chance.random()
                if fate < 0.002:
                    self.counts["cut"] += 1
                    break
                if fate < 0.004:
                    self.counts["flipped"] += 1
                    place = self._chance.randrange(len(data))
                    data = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
                elif fate < 0.006:
                    self.counts["doubled"] += 1
                    data += data
                elif fate < 0.05:
                    self.counts["delayed"] += 1
                    time.sleep(self._chance.random() * 0.2)
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


def faults(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    server = ServerProcess(scratch / "run", args.devices, settings=["network.lease=20", "network.offer=20"])
    server.start()
    proxy = Proxy(Folder(server.out).port, random.Random(4))
    proxy.start()
    with load_of(server, args.devices, url=f"https://{HOST}:{proxy.port}") as threads:
        began = time.monotonic()
        while uploads_of(threads) < args.uploads and time.monotonic() - began < 600:
            time.sleep(0.2)
        server.stop()
    figures = audit(server, threads)
    # A reply may be lost on the way when the server stops: what devices were not told may still be in the ledger.
    return {"uploads": uploads_of(threads), **proxy.counts, **figures}


def disk(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    server = ServerProcess(scratch / "run", args.devices)
    server.start()
    assert server.process is not None
    with load_of(server, args.devices) as threads:
        wait_for(threads, 2 * args.devices)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
        time.sleep(8.0)
        before = uploads_of(threads)
        time.sleep(3.0)
        stalled = uploads_of(threads) - before
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        time.sleep(20.0)
        after = uploads_of(threads) - before - stalled
        code, _ = server.stop()
    return {"uploads_while_full": stalled, "uploads_after": after, "exit": code} | audit(server, threads)


def drain(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    server = ServerProcess(scratch / "run", args.devices)
    server.start()
    with load_of(server, args.devices) as threads:
        wait_for(threads, 2 * args.devices)
        code, seconds = server.stop()
    return {"exit": code, "seconds": round(seconds, 2)} | audit(server, threads)


def idle(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Open connections that have shaken hands and wait, opened again when they are let go; a device beside them."""
    server = ServerProcess(scratch / "run", 4)
    server.start()
    folder = Folder(server.out)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    before, began = server.memory(), time.monotonic()
    held = []
    for _ in range(args.connections):
        held.append(context.wrap_socket(socket.create_connection((HOST, folder.port))))
    opened, memory = time.monotonic() - began, server.memory()
    with load_of(server, 4) as threads:
        time.sleep(3.0)
        waits = sorted(wait for thread in threads for wait in thread.seconds)
    server.stop()
    figures = {"connections": len(held), "seconds_to_open": round(opened, 1), "memory_mb": round(memory)}
    per_one = round((memory - before) * 1024 / max(len(held), 1), 1)
    return figures | {"kb_per_connection": per_one, "slowest_upload": round(waits[-1], 3)}


def clock(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """A scripted rehearsal with the wall clocks of server and devices ten years off."""
    (scratch / "sitecustomize.py").write_text(
        "import os, time\n_time, _off = time.time, float(os.environ.get('CLOCK_OFF', '0'))\n"
        "time.time = lambda: _time() + _off\n"
    )
    same: dict[str, bool] = {}
    for years in (0, 10, -10):
        environment = {**os.environ, "PYTHONPATH": str(scratch), "CLOCK_OFF": str(years * 365.25 * 86_400)}
        out = scratch / f"clock{years}"
        command = ["rehearse", "quickstart", "--devices", "3", "--uploads", "6", "--script", "--out", str(out)]
        done = subprocess.run(
            [sys.executable, "-m", "fedasmu", *command], env=environment, capture_output=True, text=True
        )
        same[f"{years:+d} years"] = done.returncode == 0 and "3 files byte-identical" in done.stdout
    return {"same_bytes": same}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what")
    parser.add_argument("how", nargs="?", default="")
    for name, default in (("devices", 20), ("times", 5), ("uploads", 500), ("connections", 100), ("count", 100_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--pause", type=float, default=3.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "digests":
        digests(Path(args.how))
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    deeds = {one.__name__: one for one in (kill, failpoints, load, faults, disk, drain, idle, clock)}
    deed = {"slowloris": slowloris, "frames": frames}[args.how] if args.what == "attack" else deeds[args.what]
    with tempfile.TemporaryDirectory() as scratch:
        print(json.dumps({"benchmark": f"{args.what} {args.how}".strip(), **deed(args, Path(scratch))}))


if __name__ == "__main__":
    main()
