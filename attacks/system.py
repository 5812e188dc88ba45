"""Limits of files and descriptors, a full output, signals to a process and to its group: a message, and a resume."""

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
LIMITS = [*(f"ulimit -f {kilobytes};" for kilobytes in (4, 16, 40, 64)), "ulimit -n 14;", "ulimit -n 40;"]
SIGNALS = [(number, group) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) for group in (False, True)]


def command(*arguments: str, before: str = "", after: str = "") -> list[str]:
    return ["sh", "-c", f"{before} exec {sys.executable} -m fedasmu {' '.join(arguments)} {after}"]


def ended(done: subprocess.CompletedProcess[str]) -> str:
    return "traceback" if "Traceback" in done.stderr else "fine" if done.returncode == 0 else "refused"


def started(folder: Path, out: str, line: list[str]) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        line, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )
    while process.poll() is None and not (folder / out / "checkpoint").exists():
        time.sleep(0.02)
    return process


def same_after_resume(folder: Path, out: str, whole: dict[str, bytes]) -> str:
    if not (folder / out / "config.toml").is_file():
        return "same bytes"  # nothing was begun, and nothing is in the way
    done = subprocess.run(command("resume", out, "--workers", "inline"), cwd=folder, capture_output=True, text=True)
    same = done.returncode == 0 and {name: (folder / out / name).read_bytes() for name in FILES} == whole
    return "same bytes" if same else "DIFFERENT"


def main() -> None:
    score = Score("limits and signals", bad=("traceback", "DIFFERENT", "silent"))
    with place() as folder:
        (folder / "r.toml").write_text(RECIPE)
        subprocess.run(command("run", "r.toml", "--out", "whole", "--workers", "1"), cwd=folder, capture_output=True)
        whole = {name: (folder / "whole" / name).read_bytes() for name in FILES}
        for number, limit in enumerate(LIMITS[: count(len(LIMITS))]):
            line = command("run", "r.toml", "--workers", "2", "--out", f"l{number}", before=limit)
            done = subprocess.run(line, cwd=folder, capture_output=True, text=True)
            score.case(limit, ended(done))
            score.case(f"{limit} resumed", same_after_resume(folder, f"l{number}", whole))
        for number, (kind, group) in enumerate(SIGNALS[: count(len(SIGNALS))]):
            process = started(folder, f"s{number}", command("run", "r.toml", "--workers", "2", "--out", f"s{number}"))
            (os.killpg if group else os.kill)(process.pid, kind)
            _, err = process.communicate()
            told = process.returncode == 130 and "Traceback" not in err
            score.case(f"{kind.name} group={group}", "stopped" if told else f"exit {process.returncode}")
            score.case(f"{kind.name} resumed", same_after_resume(folder, f"s{number}", whole))
        done = subprocess.run(command("list", "keys", after="> /dev/full"), cwd=folder, capture_output=True, text=True)
        score.case("> /dev/full", "silent" if done.returncode == 0 else ended(done))
    score.end()


if __name__ == "__main__":
    main()
