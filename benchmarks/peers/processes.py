"""The memory of a process and of all that came from it, while they run."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

PAUSE = 0.5  # seconds between two looks


def parents() -> dict[int, int]:
    """Process -> its parent, for all processes of this machine."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    return found


def shared_out(process: int) -> int:
    """Bytes of its proportional set size: a page that several share is counted once in their sum."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


class Tree(threading.Thread):
    """Looks at a process and its descendants until it is stopped; knows those that were left by their parents."""

    def __init__(self, root: int) -> None:
        super().__init__(daemon=True)
        self.peak, self._seen, self._stopped = 0, {root}, threading.Event()
        self.start()

    def run(self) -> None:
        while not self._stopped.wait(PAUSE):
            self.peak = max(self.peak, sum(map(shared_out, self._members())))

    def end(self) -> None:
        """What is left of it ends now."""
        self._stopped.set()
        self.join()
        for process in self._members():
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)

    def _members(self) -> set[int]:
        known = parents()
        self._seen &= known.keys()
        while found := {process for process, parent in known.items() if parent in self._seen} - self._seen:
            self._seen |= found
        return set(self._seen)
