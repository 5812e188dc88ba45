"""Two processes in one run directory: one of them works, the other is told; the bytes are right."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from common import Score, count, experiment, half, in_a_child, outputs, place, resumed

METHOD = "ca2fl"


def attack(number: int, run: Path, expected: dict[str, bytes]) -> str:
    overwrite = number % 2

    def other() -> None:
        experiment(METHOD).run(run, overwrite=True) if overwrite else resumed(run)

    children = [in_a_child(lambda: resumed(run)), in_a_child(other)]
    codes = sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
    if codes not in ([0, 0], [0, 2]):  # both, one after the other; or one of them
        return "traceback"
    if outputs(run) != expected:
        return "DIFFERENT"
    return "one told" if codes == [0, 2] else "in turn"


def main() -> None:
    score = Score("two at once", bad=("traceback", "DIFFERENT"))
    with place() as folder:
        experiment(METHOD).run(folder / "whole")
        half(folder / "half", METHOD)
        for number in range(count(50)):
            shutil.copytree(folder / "half", folder / "run")
            outcome = attack(number, folder / "run", outputs(folder / "whole"))
            score.case(f"{('resume', 'overwrite')[number % 2]} {number}", outcome)
            shutil.rmtree(folder / "run")
    score.end()


if __name__ == "__main__":
    main()
