"""SIGKILL at any moment, once or several times, and resume: the bytes of a run that was never stopped."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from common import METHODS, Score, chance, count, experiment, in_a_child, outputs, place, resumed


def attack(number: int, run: Path, expected: dict[str, bytes], seconds: float) -> str:
    random = chance("kill", number)
    method, workers = METHODS[number % len(METHODS)], ("inline", 1, 2)[number % 3]

    def go_on(workers: Any = "inline") -> None:
        if (run / "config.toml").is_file():
            resumed(run, workers=workers)
        else:
            experiment(method).run(run, workers=workers)

    for _ in range(1 + number % 3):
        child = in_a_child(lambda: go_on(workers))
        time.sleep(random.uniform(0, seconds))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    _, status = os.waitpid(in_a_child(go_on), 0)
    if code := os.waitstatus_to_exitcode(status):
        return "traceback" if code == 70 else "refused"
    return "same bytes" if outputs(run) == expected else "DIFFERENT"


def main() -> None:
    score = Score("kill and resume", bad=("traceback", "refused", "DIFFERENT"))
    with place() as folder:
        whole, seconds = {}, {}
        for method in METHODS:
            began = time.monotonic()
            experiment(method).run(folder / method)
            whole[method], seconds[method] = outputs(folder / method), time.monotonic() - began
        for number in range(count(200)):
            method = METHODS[number % len(METHODS)]
            run = folder / f"run-{number}"
            score.case(f"{method} {number}", attack(number, run, whole[method], 1.2 * seconds[method]))
    score.end()


if __name__ == "__main__":
    main()
