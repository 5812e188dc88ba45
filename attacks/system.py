"""Limits of files, descriptors and processes, full disks, signals to a process or its group: a message, a resume."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from common import FILES, Score, count, place

RECIPE = """
model = "softmax"
checkpoint_seconds = 0.05
data = {name = "fashion-mnist-small"}
fleet = {devices = 20}
algorithm = "ca2fl"
stop = {uploads = 60}
"""
LIMITS = [
    *(f"ulimit -f {kilobytes}; exec" for kilobytes in (4, 16, 40, 64)),
    "ulimit -n 14; exec",
    "ulimit -n 40; exec",
]
SIGNALS = [(number, group) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) for group in (False, True)]


DISKS = (100, 300, 600)  # kilobytes
PROCESSES = (1, 2, 3)
UNPRIVILEGED = "setpriv --ruid=65534 --bounding-set=-sys_resource,-sys_admin"  # nothing limits root's processes


def command(*arguments: str, before: str = "", after: str = "") -> list[str]:
    return ["sh", "-c", f"{before} {sys.executable} -m fedasmu {' '.join(arguments)} {after}"]


class System:
    """Runs of one recipe, whose bytes are known, in a folder."""

    def __init__(self, folder: Path, score: Score) -> None:
        self.folder, self.score = folder, score
        (folder / "r.toml").write_text(RECIPE)
        self._done(command("run", "r.toml", "--out", "whole", "--workers", "1"))
        self.whole = {name: (folder / "whole" / name).read_bytes() for name in FILES}

    def limited(self, limit: str, out: str) -> None:
        done = self._done(command("run", "r.toml", "--workers", "2", "--out", out, before=limit))
        self.score.case(limit, _ended(done))
        self.score.case(f"{limit} resumed", self._resumed(out))

    def full_disk(self, kilobytes: int, out: str) -> None:
        """A file system of its own, made full by the run and given room before the resume."""
        (self.folder / out).mkdir()
        mounted = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(self.folder / out)]
        if subprocess.run(mounted, check=False, capture_output=True).returncode:
            self.score.case(f"a disk of {kilobytes} kB", "not allowed to mount")
            return
        try:
            done = self._done(command("run", "r.toml", "--workers", "2", "--out", f"{out}/run", before="exec"))
            self.score.case(f"a disk of {kilobytes} kB", _ended(done))
            subprocess.run(["mount", "-o", "remount,size=100m", str(self.folder / out)], check=True)
            self.score.case(f"a disk of {kilobytes} kB resumed", self._resumed(f"{out}/run"))
        finally:
            subprocess.run(["umount", str(self.folder / out)], check=True)

    def signalled(self, kind: signal.Signals, group: bool, out: str) -> None:
        line = command("run", "r.toml", "--workers", "2", "--out", out, before="exec")
        process = subprocess.Popen(
            line, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
        )
        while process.poll() is None and not (self.folder / out / "checkpoint").exists():
            time.sleep(0.02)
        (os.killpg if group else os.kill)(process.pid, kind)
        _, err = process.communicate()
        outcome = {130: "stopped", 0: "finished before"}.get(process.returncode, "lost")
        self.score.case(f"{kind.name} group={group}", "traceback" if "Traceback" in err else outcome)
        self.score.case(f"{kind.name} resumed", self._resumed(out))

    def full_output(self) -> None:
        done = self._done(command("list", "keys", before="exec", after="> /dev/full"))
        self.score.case("> /dev/full", "silent" if done.returncode == 0 else _ended(done))

    def _resumed(self, out: str) -> str:
        if not (self.folder / out / "config.toml").is_file():
            return "same bytes"  # nothing was begun, and nothing is in the way
        if not (self.folder / out / "summary.json").is_file():
            self._done(command("resume", out, "--workers", "inline", before="exec"))
        paths = [self.folder / out / name for name in FILES]
        same = all(path.is_file() and path.read_bytes() == self.whole[path.name] for path in paths)
        return "same bytes" if same else "DIFFERENT"

    def _done(self, line: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(line, cwd=self.folder, capture_output=True, text=True, check=False)


def _ended(done: subprocess.CompletedProcess[str]) -> str:
    return "traceback" if "Traceback" in done.stderr else "fine" if done.returncode == 0 else "refused"


def main() -> None:
    score = Score("limits and signals", bad=("traceback", "DIFFERENT", "silent", "lost"))
    limits = LIMITS + [f"exec prlimit --nproc={number} {UNPRIVILEGED}" for number in PROCESSES if os.geteuid() == 0]
    with place() as folder:
        system = System(folder, score)
        for number, limit in enumerate(limits[: count(len(limits))]):
            system.limited(limit, f"limit-{number}")
        for number, kilobytes in enumerate(DISKS[: count(len(DISKS))]):
            system.full_disk(kilobytes, f"disk-{number}")
        for number, (kind, group) in enumerate(SIGNALS[: count(len(SIGNALS))]):
            system.signalled(kind, group, f"signal-{number}")
        system.full_output()
    score.end()


if __name__ == "__main__":
    main()
