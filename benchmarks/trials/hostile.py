"""Whatever a stranger or a device with a seat may send, over real sockets, beside honest devices: nothing gets in."""

from __future__ import annotations

import json
import os
import random
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedasmu.network import wire
from fedasmu.network.folder import Folder
from fedasmu.network.keys import Key, encoded, enrol_text
from fedasmu.protocol import Report, Task
from trials.attacks import mutated
from trials.audit import audit
from trials.devices import EXAMPLES, Habits, fleet_of
from trials.peers import Insider
from trials.server import ServerProcess

INSIDERS = 30  # a device may ask 20 times a second
SPY = """
import os, sys

def watch(event, given):
    if event.startswith("pickle"):
        os.write(log, f"{event} {given}\\n".encode())

if path := os.environ.get("PICKLES"):
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sys.addaudithook(watch)
"""
ROUTES = [
    ("GET", "/v1/task?wait=0"),
    ("POST", "/v1/tasks/{task}/fresh?ask=0"),
    ("POST", "/v1/tasks/{task}/beat"),
    ("PUT", "/v1/tasks/{task}/result"),
    ("POST", "/v1/tasks/{task}/fail"),
    ("GET", "/v1/models/0"),
]
NAMES = ["../../etc/x", "..", "/tmp/x", "a/b", "a\x00b", "CON", "x" * 65, "", "Ä", "-rf", "$(touch x)", "a b", "%2e%2e"]
Sent = Iterator[tuple[str, str, int]]
"""Of each attempt: what kind it was, what it was about, and the status of the reply."""


def everything(args: Namespace, scratch: Path) -> dict[str, Any]:
    (scratch / "sitecustomize.py").write_text(SPY)
    pickles = scratch / "pickles"
    server = ServerProcess(
        scratch / "run", args.devices + INSIDERS, ["network.offer=600", "network.lease=600"], args.model
    )
    server.start(PICKLES=str(pickles), PYTHONPATH=os.pathsep.join([str(scratch), os.environ.get("PYTHONPATH", "")]))
    folder, chance = Folder(server.out), random.Random(args.count)
    with fleet_of(server, args.devices, Habits(rest=0.2)) as fleet:  # the disk is not to be full of honest uploads
        fleet.wait_for(args.devices)
        insiders = [Insider(folder, args.devices + number) for number in range(INSIDERS)]
        tasks = {insider: task for insider in insiders if (task := insider.task()) is not None}
        before, early = _outside(scratch), server.memory()
        outcomes = _counted(_strangers(insiders[0], args.count, chance))
        outcomes += _counted(_moved(tasks, args.count // 10, chance))
        outcomes += _counted(_names(folder, insiders[0]))
        outcomes += _counted(_frames(tasks, args.count, chance))
        outside = _outside(scratch) - before
        grown = server.memory() - early
        honest = fleet.uploads
        fleet.wait_for(1)
        server.stop()
    accepted = {name: number for name, number in outcomes.items() if name.endswith(" 200") or name.endswith(" 201")}
    return {
        "attempts": outcomes.total(),
        "accepted": sum(accepted.values()),
        "outcomes": dict(sorted(outcomes.items())),
        "files_outside": sorted(outside),
        "pickle_events": len(pickles.read_text().splitlines()) if pickles.exists() else None,
        "memory_grown_mb": round(grown, 1),
        "honest_uploads_go_on": fleet.uploads > honest,
        **audit(server.out, fleet.acknowledged),
        **fleet.counts(),
    }


def _counted(sent: Sent) -> Counter[str]:
    return Counter(f"{kind} {status}" for kind, _, status in sent)


def _strangers(insider: Insider, count: int, chance: random.Random) -> Sent:
    """Credentials that are none: missing, of another device, of another visit, with a wrong signature."""
    for number in range(count):
        method, path = chance.choice(ROUTES)
        target = path.format(task=chance.randrange(1000))
        good = insider.signature(method, target)
        yield "stranger", target, insider.send(method, target, b"", _spoilt(good, number % 7, chance))


def _spoilt(good: dict[str, str], way: int, chance: random.Random) -> dict[str, str]:
    if way == 0:
        return {}
    if way == 1:
        missing = chance.choice(list(good))
        return {name: value for name, value in good.items() if name != missing}
    changed = ["fedasmu-device", "fedasmu-visit", "fedasmu-sequence", "fedasmu-signature", "content-digest"][way - 2 :][
        0
    ]
    others = {"fedasmu-device": "0", "fedasmu-visit": "0" * 32, "fedasmu-sequence": "7"}
    return good | {changed: others.get(changed, encoded(chance.randbytes(64)))}


def _moved(tasks: dict[Insider, Task], count: int, chance: random.Random) -> Sent:
    """Good signatures on other requests than theirs, good requests a second time, other devices' tasks."""
    insiders = list(tasks)
    for number in range(count):
        insider, other = chance.sample(insiders, 2)
        own, foreign = tasks[insider].id, tasks[other].id
        target = f"/v1/tasks/{own}/beat"
        if number % 4 == 0:  # signed for another path
            yield "moved", target, insider.send("POST", target, b"", insider.signature("POST", "/v1/task"))
        elif number % 4 == 1:  # signed for another method
            yield "moved", target, insider.send("POST", target, b"", insider.signature("GET", target))
        elif number % 4 == 2:  # another device's task
            yield "foreign", target, insider.send("PUT", f"/v1/tasks/{foreign}/result")
        else:
            headers = insider.signature("POST", target)
            insider.send("POST", target, b"", headers)
            yield "replayed", target, insider.send("POST", target, b"", headers)


def _names(folder: Folder, insider: Insider) -> Sent:
    """Enrolments under names that lead elsewhere, with an invite that is good."""
    for number, name in enumerate(NAMES):
        invite, key = folder.invite(), Key.at(folder.path.parent / f"hostile-{number}")
        challenge = json.loads(insider.client.request("GET", "/v1/hello").body)["challenge"]
        text = enrol_text(folder.run, challenge, key.public, name, EXAMPLES)
        table = {"key": encoded(key.public), "challenge": challenge, "invite": invite.id, "name": name}
        table |= {"examples": EXAMPLES, "signature": encoded(invite.key.sign(text)), "proof": encoded(key.sign(text))}
        yield "name", name, insider.send("POST", "/v1/enrol", json.dumps(table).encode(), {})


def _frames(tasks: dict[Insider, Task], count: int, chance: random.Random) -> Sent:
    """Reports that are none, signed as they should be; and bodies of other lengths and in pieces."""
    order = list(tasks)
    for number in range(count):
        insider = order[number % len(order)]
        target, size = f"/v1/tasks/{tasks[insider].id}/result", len(tasks[insider].model.vector)
        good = wire.report_frame(Report(tasks[insider].model.vector, EXAMPLES, 0.5, {"path": 0.5}), {})
        if number % 50 == 0:
            headers = insider.signature("PUT", target) | {"transfer-encoding": "chunked"}
            yield "chunked", target, insider.send("PUT", target, b"0\r\n\r\n", headers)
        elif number % 50 == 1:
            yield "oversized", target, insider.send("PUT", target, good + bytes(32_768))
        elif number % 50 == 2:  # the signed body, with one bit of it another
            headers, place = insider.signature("PUT", target, good), chance.randrange(len(good))
            body = good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :]
            yield "flipped", target, insider.send("PUT", target, body, headers)
        else:
            yield "frame", target, insider.send("PUT", target, _bad(good, size, chance))


def _bad(good: bytes, size: int, chance: random.Random) -> bytes:
    """A mutated frame that is no report any more. One whose weights alone differ would be an honest upload."""
    while True:
        frame = mutated(good, chance)
        try:
            wire.read_report(frame, size, {}, EXAMPLES)
        except wire.Malformed:
            return frame


def _outside(scratch: Path) -> set[str]:
    """What stands beside the run's folder, keys of devices and its log apart."""
    return {path.name for path in scratch.iterdir() if not path.name.startswith(("key-", "hostile-", "run"))}
