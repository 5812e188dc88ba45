"""Thousands of devices that wait for work, each with a connection of its own; now and then one of them gets a task."""

from __future__ import annotations

import asyncio
import json
import time
from argparse import Namespace
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import fedasmu
from fedasmu.network import wire
from fedasmu.network.connection import Reply
from fedasmu.network.folder import Folder
from fedasmu.network.keys import Key, content_digest, encoded, hello_text, request_text
from fedasmu.protocol import Report
from trials.devices import EXAMPLES, task_in
from trials.peers import CONTEXT, request
from trials.server import ServerProcess

NEIGHBOURS = 50  # devices behind one address
OPENING = 64  # connections that are opened at once


def idle(args: Namespace, scratch: Path) -> dict[str, Any]:
    """Five tasks a second for all of them: what does a waiting device cost, and how long does an upload take there?"""
    pace = ["pacing.period=0.2", "pacing.count=1", "pacing.max_in_flight=5", "network.per_address=256"]
    server = ServerProcess(scratch / "run", args.connections, pace)
    server.start()
    folder = Folder(server.out)
    pollers = [
        Poller(folder.port, folder.run, key, number) for number, key in enumerate(_seats(folder, args.connections))
    ]
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
        "cores": round((server.seconds() - used) / (time.monotonic() - arrived), 2),
    }
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return figures


def _seats(folder: Folder, devices: int) -> list[Key]:
    keys = [Key(Ed25519PrivateKey.generate()) for _ in range(devices)]
    invite = folder.invite(uses=devices)
    for number, key in enumerate(keys):
        folder.register.enrol(invite.id, key.public, f"idle-{number}", EXAMPLES)
    return keys


@dataclass
class Poller:
    """A device in an event loop: polls, and if it gets a task sends the model back at once."""

    port: int
    run: str
    key: Key
    number: int
    polls: int = 0
    broken: int = 0  # connections
    waits: list[float] = field(default_factory=list)
    _visit: str = ""
    _sequence: Any = field(default_factory=count)

    async def live(self, opening: asyncio.Semaphore) -> None:
        source = f"127.0.{1 + self.number // NEIGHBOURS // 250}.{1 + self.number // NEIGHBOURS % 250}"
        while True:
            try:
                async with opening:
                    self._streams = await asyncio.open_connection(
                        "127.0.0.1", self.port, ssl=CONTEXT, local_addr=(source, 0)
                    )
                    if not self._visit:
                        await self._hello()
                while True:
                    await self._poll()
            except (OSError, EOFError, ValueError):
                self.broken += 1
                await asyncio.sleep(1.0)
            finally:
                if hasattr(self, "_streams"):
                    self._streams[1].close()

    async def _hello(self) -> None:
        challenge = (await self._ask("GET", "/v1/hello", b"", {})).table["challenge"]
        signature = encoded(self.key.sign(hello_text(self.run, challenge, self.key.public)))
        table = {"key": encoded(self.key.public), "challenge": challenge, "signature": signature}
        table |= {"examples": EXAMPLES, "wire": wire.VERSION, "fedasmu": fedasmu.__version__}
        welcome = (await self._ask("POST", "/v1/hello", json.dumps(table).encode(), {})).table
        self._visit = welcome["visit"]

    async def _poll(self) -> None:
        reply = await self._signed("GET", "/v1/task?wait=25")
        self.polls += 1
        if reply.status != 200:
            await asyncio.sleep(reply.pause)
            return
        task = task_in(reply)
        body = wire.report_frame(Report(task.model.vector, EXAMPLES, 0.5), {})
        began = time.monotonic()
        if (await self._signed("PUT", f"/v1/tasks/{task.id}/result", body)).status == 200:
            self.waits.append(time.monotonic() - began)

    async def _signed(self, method: str, target: str, body: bytes = b"") -> Reply:
        digest, sequence = content_digest(body), next(self._sequence)
        text = request_text(self.run, method, target, self.number, self._visit, sequence, digest)
        headers = {
            "fedasmu-device": str(self.number),
            "fedasmu-visit": self._visit,
            "fedasmu-sequence": str(sequence),
            "fedasmu-signature": encoded(self.key.sign(text)),
            "content-digest": digest,
        }
        return await self._ask(method, target, body, headers)

    async def _ask(self, method: str, target: str, body: bytes, headers: dict[str, str]) -> Reply:
        reader, writer = self._streams
        writer.write(request(method, target, body, headers))
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        fields = dict(line.split(": ", 1) for line in head[1:] if ": " in line)
        data = await reader.readexactly(int(fields.get("content-length", "0")))
        return Reply(int(head[0].split()[1]), data, float(fields.get("retry-after", "0")))
