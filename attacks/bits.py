"""One flipped bit in any file of a stopped run, and a resume: noticed, or without consequence."""

from __future__ import annotations

import shutil
from pathlib import Path

from common import Score, chance, count, experiment, half, outcome_of, outputs, place, resumed

METHODS = ("ca2fl", "fedasmu", "feddyn")


def attack(number: int, run: Path, expected: dict[str, bytes]) -> tuple[str, str]:
    random = chance("bits", number)
    kinds = sorted({path.parent.name if path.parent != run else path.name for path in run.rglob("*") if path.is_file()})
    kind = kinds[number % len(kinds)]
    among = [path for path in run.rglob("*") if path.is_file() and kind in (path.name, path.parent.name)]
    path = random.choice(sorted(among))
    data = bytearray(path.read_bytes())
    if not data:
        return path.name, "harmless"
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    path.write_bytes(data)
    said: list[str] = []
    outcome = outcome_of(lambda: resumed(run, said.append))
    if outcome != "fine":
        return path.name, outcome
    if outputs(run) != expected:
        return path.name, "DIFFERENT"
    return path.name, "fell back" if any("damaged" in line for line in said) else "harmless"


def main() -> None:
    score = Score("flipped bits", bad=("traceback", "DIFFERENT"))
    with place() as folder:
        whole = {}
        for method in METHODS:
            experiment(method).run(folder / f"{method}-whole")
            whole[method] = outputs(folder / f"{method}-whole")
            half(folder / f"{method}-half", method)
        for number in range(count(1000)):
            method, run = METHODS[number % len(METHODS)], folder / "run"
            shutil.copytree(folder / f"{method}-half", run)
            name, outcome = attack(number, run, whole[method])
            score.case(f"{method} {name} {number}", outcome)
            shutil.rmtree(run)
    score.end()


if __name__ == "__main__":
    main()
