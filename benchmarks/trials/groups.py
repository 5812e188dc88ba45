"""Devices in processes of their own: to be killed, stopped, or put behind a network that is cut."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from trials.devices import Fleet, Habits
from trials.server import QUIET, ServerProcess

SCRIPT = Path(__file__).parent.parent / "network.py"
ADDRESS, OTHER = "10.203.117.1", "10.203.117.2"  # of a pair of interfaces that lead nowhere else
NOBODY = "02:00:00:00:00:01"  # no interface has this address: what is sent to it is heard by none


class Group:
    """A process with some of the devices. Every acknowledgement is a line of its file."""

    def __init__(self, server: ServerProcess, numbers: range, beat: float, within: Sequence[str] = ()) -> None:
        self.numbers, self._acknowledged = numbers, server.out.parent / f"group-{numbers.start}.txt"
        given = [str(server.out), str(numbers.start), str(numbers.stop), str(beat), str(self._acknowledged)]
        command = [*within, sys.executable, str(SCRIPT), "group", " ".join(given)]
        self._process = subprocess.Popen(command, env={**os.environ, **QUIET})

    @property
    def acknowledged(self) -> list[int]:
        if not self._acknowledged.exists():
            return []
        lines = self._acknowledged.read_text().splitlines(keepends=True)
        return [int(line) for line in lines if line.endswith("\n")]

    def wait_for(self, more: int, seconds: float = 180.0) -> float:
        """Seconds until so many more uploads were acknowledged."""
        goal, began = len(self.acknowledged) + more, time.monotonic()
        while len(self.acknowledged) < goal and time.monotonic() - began < seconds:
            time.sleep(0.1)
        return time.monotonic() - began

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def run_group(text: str) -> None:
    """The process of a group, until it is ended."""
    out, first, last, beat, path = text.split()
    server = ServerProcess(Path(out), 0)
    fleet = Fleet(server, range(int(first), int(last)), Habits(beat=float(beat), log=Path(path)))
    signal.signal(signal.SIGTERM, lambda *_: fleet.stopping.set())
    while not fleet.stopping.wait(0.5):
        if os.getppid() == 1:  # whoever started this is gone
            return


@contextlib.contextmanager
def groups_of(
    server: ServerProcess, size: int, beat: float, within: Sequence[str] = ()
) -> Iterator[tuple[Group, Group]]:
    """Two groups. What becomes of the first is up to the trial; the second, in this network, goes on."""
    first, second = Group(server, range(size), beat, within), Group(server, range(size, 2 * size), beat)
    try:
        yield first, second
    finally:
        first.end()
        second.end()


@contextlib.contextmanager
def namespace() -> Iterator[str]:
    """A network namespace with a cable to this one: its name. Needs root and iproute2."""
    name = f"fedasmu{os.getpid()}"
    near, far = f"fa{os.getpid()}", f"fb{os.getpid()}"
    try:
        _ip("netns", "add", name)
        _ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", name)
        _ip("addr", "add", f"{ADDRESS}/30", "dev", near)
        _ip("link", "set", near, "up")
        _ip("-n", name, "addr", "add", f"{OTHER}/30", "dev", far)
        _ip("-n", name, "link", "set", far, "up")
        yield name
    finally:
        for words in (["link", "del", near], ["netns", "del", name]):
            subprocess.run(["ip", *words], check=False, capture_output=True)


@contextlib.contextmanager
def cut_off(name: str) -> Iterator[None]:
    """While this lasts, whatever is sent between the namespace and here is lost without a word."""
    places: list[tuple[list[str], str, str]]
    places = [(["-n", name], ADDRESS, f"fb{os.getpid()}"), ([], OTHER, f"fa{os.getpid()}")]
    for where, address, interface in places:
        _ip(*where, "neigh", "replace", address, "lladdr", NOBODY, "dev", interface, "nud", "permanent")
    try:
        yield
    finally:
        for where, address, interface in places:
            _ip(*where, "neigh", "del", address, "dev", interface)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
