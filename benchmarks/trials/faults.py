"""The network is bad, processes are stopped, devices die: the run goes on, and nothing corrupt is accepted."""

from __future__ import annotations

import json
import signal
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

from fedasmu.network.folder import Folder
from trials.audit import audit
from trials.devices import Habits, fleet_of
from trials.groups import ADDRESS, Group, cut_off, groups_of, namespace
from trials.proxy import HOST, Proxy
from trials.server import ServerProcess

BEAT = 1.0  # seconds that a task takes here


def proxy(args: Namespace, scratch: Path) -> dict[str, Any]:
    """Through a proxy that drops, doubles, delays, cuts and flips."""
    server = ServerProcess(scratch / "run", args.devices, ["network.lease=20", "network.offer=20"], args.model)
    server.start()
    between = Proxy(Folder(server.out).port, seed=4)
    between.start()
    with fleet_of(server, args.devices, Habits(url=f"https://{HOST}:{between.port}")) as fleet:
        fleet.wait_for(args.uploads, 900.0)
        server.stop()
    # A reply may be lost on the way when the server stops: what devices were not told may still be in the ledger.
    return {"uploads": fleet.uploads, **between.counts, **audit(server.out, fleet.acknowledged), **fleet.counts()}


def pause(args: Namespace, scratch: Path) -> dict[str, Any]:
    """SIGSTOP of the server, for longer than a lease: no task is lost by it. Then of half of the devices."""
    server = _server(args, scratch)
    with groups_of(server, args.devices // 2, BEAT) as (first, second):
        for group in (first, second):
            group.wait_for(args.devices)
        early = len(_lost(server))
        server.signal(signal.SIGSTOP)
        time.sleep(args.seconds)
        server.signal(signal.SIGCONT)
        back = [round(group.wait_for(args.devices // 2), 1) for group in (first, second)]
        lost_by_server = len(_lost(server)) - early
        first.signal(signal.SIGSTOP)
        before = len(second.acknowledged)
        time.sleep(args.seconds)
        went_on = len(second.acknowledged) - before
        first.signal(signal.SIGCONT)
        again = round(first.wait_for(args.devices // 2), 1)
        lost = len(_lost(server)) - early - lost_by_server
        server.stop()
    return {
        "seconds": args.seconds,
        "lease": args.lease,
        "server_stopped": {"lost": lost_by_server, "seconds_until_all_are_back": max(back)},
        "devices_stopped": {"lost": lost, "others_uploaded": went_on, "seconds_until_back": again},
        **_audited(server, first, second),
    }


def half(args: Namespace, scratch: Path) -> dict[str, Any]:
    """Half of the devices are killed: no place is held longer than its lease. They come back to where they were."""
    server = _server(args, scratch)
    with groups_of(server, args.devices // 2, BEAT) as (first, second):
        for group in (first, second):
            group.wait_for(args.devices)
        killed = _events(server)[-1]["time"]
        first.end()
        time.sleep(args.lease + 3.0)
        lost = [event for event in _lost(server) if event["device"] in first.numbers]
        open_places = len(_in_flight(server) & set(first.numbers))
        before = first.acknowledged
        again = Group(server, first.numbers, BEAT)
        back = again.wait_for(args.devices // 2)
        again.end()
        server.stop()
    return {
        "killed": len(first.numbers),
        "lease": args.lease,
        "lost": len(lost),
        "longest_held": round(max((event["time"] - killed for event in lost), default=0.0), 2),
        "still_held": open_places,
        "seconds_until_back": round(back, 1),
        "uploads_before": len(before),
        **_audited(server, again, second),
    }


def partition(args: Namespace, scratch: Path) -> dict[str, Any]:
    """Half of the devices are in another network namespace, and nothing passes between it and the server."""
    with namespace() as name:
        server = _server(args, scratch, listen=f"{ADDRESS}:0")
        with groups_of(server, args.devices // 2, BEAT, ["ip", "netns", "exec", name]) as (first, second):
            for group in (first, second):
                group.wait_for(args.devices)
            with cut_off(name):
                time.sleep(2.0)
                before = len(first.acknowledged), len(second.acknowledged)
                time.sleep(args.seconds)
                passed, went_on = len(first.acknowledged) - before[0], len(second.acknowledged) - before[1]
            back = first.wait_for(args.devices // 2)
            lost = len(_lost(server))
            server.stop()
    return {
        "seconds": args.seconds,
        "through_the_cut": passed,
        "others_uploaded": went_on,
        "lost": lost,
        "seconds_until_back": round(back, 1),
        **_audited(server, first, second),
    }


def _server(args: Namespace, scratch: Path, **options: Any) -> ServerProcess:
    times = [f"network.lease={args.lease}", f"network.offer={args.lease}"]
    server = ServerProcess(scratch / "run", args.devices, times, args.model, **options)
    server.start()
    return server


def _events(server: ServerProcess) -> list[dict[str, Any]]:
    lines = (server.out / "events.jsonl").read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _lost(server: ServerProcess) -> list[dict[str, Any]]:
    return [event for event in _events(server) if event["event"] == "lost"]


def _in_flight(server: ServerProcess) -> set[int]:
    """The devices that hold a task."""
    held: set[int] = set()
    for event in _events(server):
        if event["event"] == "start":
            held.add(event["device"])
        elif event["event"] in ("upload", "lost"):
            held.discard(event["device"])
    return held


def _audited(server: ServerProcess, *groups: Group) -> dict[str, Any]:
    return audit(server.out, {task for group in groups for task in group.acknowledged})
