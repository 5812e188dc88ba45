"""Attacks on a server that has honest devices too: how many get in, how long a peer is held, what honest ones lose."""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from fedasmu.network import wire
from fedasmu.network.folder import Folder
from fedasmu.protocol import Report
from trials.devices import Fleet, fleet_of
from trials.peers import Insider, hold, request, shaken
from trials.server import ServerProcess

INSIDERS = 4  # hostile devices that have a seat
SLOW = 200_000  # bytes that a slow peer announces


def slowloris(args: Namespace, scratch: Path) -> dict[str, Any]:
    """Silent, trickling and stopping peers: all of them at once, again and again."""
    server = ServerProcess(scratch / "run", args.devices + INSIDERS)
    server.start()
    with fleet_of(server, args.devices) as fleet:
        fleet.wait_for(3 * args.devices)
        before = _pace(server, fleet, args.seconds)
        attack = _elsewhere("holders", server.out, args.connections, args.minutes * 60, args.devices)
        time.sleep(2.0)
        under = _pace(server, fleet, max(args.minutes * 60 - 4, 1.0))
        found = _outcome(attack)
        after = _pace(server, fleet, args.seconds)
        server.stop()
    quiet, cost = (before[0] + after[0]) / 2, (before[1] + after[1]) / 2
    return {
        "connections": args.connections,
        "minutes": args.minutes,
        **found,
        "uploads_per_second": round(quiet, 1),
        "under_attack": round(under[0], 1),
        "lost_percent": round(100 * (1 - under[0] / quiet)),
        "server_ms_per_upload": round(cost, 2),
        "server_ms_under_attack": round(under[1], 2),  # of the processor: what others do on this machine is not in it
    }


def _pace(server: ServerProcess, fleet: Fleet, seconds: float) -> tuple[float, float]:
    """Uploads a second from now on, and milliseconds of the processor that the server needs for each."""
    used, uploads = server.seconds(), fleet.uploads
    rate = fleet.rate(seconds)
    return rate, 1000 * (server.seconds() - used) / max(fleet.uploads - uploads, 1)


def holders(out: Path, connections: int, seconds: float, first: int) -> dict[str, Any]:
    """Slow peers, a thread each, in a process of their own. `first` is the first seat that is theirs."""
    folder = Folder(out)
    insiders = [Insider(folder, first + number) for number in range(INSIDERS)]
    slow = b"PUT /v1/tasks/0/result HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n" % SLOW
    strangers = [(b"", b""), (b"GET /v1/task HTTP/1.1\r\nx: ", b"a"), (slow, b"a"), (slow, b"")]
    held: dict[str, list[float]] = {"strangers": [], "insiders": []}
    until = time.monotonic() + seconds

    def keep_on(number: int) -> None:
        while time.monotonic() < until:
            if number % 10:
                held["strangers"].append(hold(folder.port, *strangers[number % len(strangers)]))
            else:
                insider = insiders[number // 10 % INSIDERS]
                target = f"/v1/tasks/{random.randrange(1000)}/result"
                headers = insider.signature("PUT", target) | {"content-length": str(SLOW)}
                held["insiders"].append(hold(folder.port, request("PUT", target, b"", headers), b"a"))

    threads = [threading.Thread(target=keep_on, args=(number,), daemon=True) for number in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 90)
    longest = {f"longest_held_{who}": round(max(times), 1) for who, times in held.items() if times}
    return {"let_go": sum(map(len, held.values())), **longest}


def flood(args: Namespace, scratch: Path) -> dict[str, Any]:
    """Handshakes without end from another address, then requests without end from devices that have a seat."""
    settings = ["network.per_address=256"]
    server = ServerProcess(scratch / "run", args.devices + INSIDERS, settings=settings)
    server.start()
    figures: dict[str, Any] = {}
    with fleet_of(server, args.devices) as fleet:
        fleet.wait_for(3 * args.devices)
        figures["uploads_per_second"] = round(fleet.rate(args.seconds), 1)
        for name in ("shakers", "askers"):
            attack = _elsewhere(name, server.out, INSIDERS, args.seconds + 2, args.devices)
            time.sleep(1.0)
            figures[f"under_{name}"] = round(fleet.rate(args.seconds), 1)
            figures |= _outcome(attack)
        figures["afterwards"] = round(fleet.rate(args.seconds), 1)
        figures["memory_mb"] = round(server.memory())
        server.stop()
    return figures | fleet.counts()


def shakers(out: Path, threads: int, seconds: float, first: int) -> dict[str, Any]:
    port, until = Folder(out).port, time.monotonic() + seconds
    outcomes = _together(threads, lambda number: shaken(port, until))
    return {"handshakes": outcomes["handshakes"], "turned_away": outcomes["turned_away"]}


def askers(out: Path, threads: int, seconds: float, first: int) -> dict[str, Any]:
    """Each asks for its task and for fresh models as fast as it can: how many models it gets is bounded."""
    folder = Folder(out)
    insiders = [Insider(folder, first + number) for number in range(threads)]
    until = time.monotonic() + seconds

    def ask(number: int) -> Counter[str]:
        insider, statuses, models = insiders[number], Counter[str](), 0
        while time.monotonic() < until:
            task = insider.task()
            for _ in range(200 if task is not None else 0):
                status = insider.send("POST", f"/v1/tasks/{task.id}/fresh?ask=0") if task is not None else 0
                statuses[str(status)] += 1
                models += status == 200
                if time.monotonic() > until or status == 410:
                    break
            else:
                time.sleep(0.1)
        return statuses + Counter(models_sent=models)

    outcomes = _together(threads, ask)
    return {"asked": sum(n for name, n in outcomes.items() if name != "models_sent"), "answers": dict(outcomes)}


def frames(args: Namespace, scratch: Path) -> dict[str, Any]:
    """Mutated frames through the parser, in this process."""
    chance, size = random.Random(args.count), 500
    good = wire.report_frame(Report(torch.ones(size), 1, 0.5, {"beta": 0.25, "slot": 3}), {})
    outcomes: Counter[str] = Counter()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(args.count):
        try:
            wire.read_report(mutated(good, chance), size, {}, 1)
            outcomes["well_formed"] += 1
        except wire.Malformed:
            outcomes["malformed"] += 1
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {"frames": args.count, **outcomes, "crashes": 0, "memory_grown_mb": round(grown, 1)}


def mutated(good: bytes, chance: random.Random) -> bytes:
    """Some bytes of it are others, mostly in the head; sometimes it is cut."""
    data = bytearray(good)
    for _ in range(chance.randint(1, 4)):
        data[chance.randrange(60 if chance.random() < 0.8 else len(data))] = chance.randrange(256)
    return bytes(data[: chance.randrange(len(data))] if chance.random() < 0.2 else data)


def _together(threads: int, work: Any) -> Counter[str]:
    found: list[Counter[str]] = []
    workers = [threading.Thread(target=lambda n=n: found.append(work(n)), daemon=True) for n in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(found, Counter[str]())


def _elsewhere(name: str, *arguments: Any) -> subprocess.Popen[str]:
    """An attack in a process of its own: the honest devices are not slowed down by sharing one with it."""
    script = Path(__file__).parent.parent / "network.py"
    command = [sys.executable, str(script), "part", json.dumps([name, *map(str, arguments)])]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _outcome(attack: subprocess.Popen[str]) -> dict[str, Any]:
    said, _ = attack.communicate()
    found: dict[str, Any] = json.loads(said)
    return found


def part(text: str) -> None:
    """What `_elsewhere` has asked for."""
    name, out, number, seconds, first = json.loads(text)
    works = {one.__name__: one for one in (holders, shakers, askers)}
    print(json.dumps(works[name](Path(out), int(number), float(seconds), int(first))))
