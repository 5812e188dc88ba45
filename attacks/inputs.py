"""Recipes, overrides, profiles, traces, tuned settings and run directories, each spoiled: one message or a run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from common import Score, chance, count, experiment, outcome_of, place

from fedasmu.experiment import Experiment
from fedasmu.report import figures, latex, tables
from fedasmu.report.league import find, leagues
from fedasmu.report.page import write_page
from fedasmu.run.profiles import read_profiles
from fedasmu.settings.recipe import load
from fedasmu.study import sweep

NASTY = ["", "nan", "inf", "-1", "1e400", "9" * 5000, "[" * 3000, "null", '"', "{}", "\0", "\x1b[31m", "../../x", "🙂"]
NASTY += [
    "true",
    "0x" + "f" * 4000,
    "os:system",
    "=1+1",
    "$\\frac{",
    "-0.0",
    "1e-320",
    "\udcff",
    "a" * 300,
    "'''",
    "\n",
]
RECIPE = """
model = "softmax"
seed = 3
[data]
name = "fashion-mnist-small"
[fleet]
devices = 20
[local]
lr = 0.1
[algorithm]
name = "fedasync"
alpha = 0.5
[stop]
uploads = 5
"""
PROFILE = {"seconds_per_sample": 0.1, "down_mbps": 5, "up_mbps": 1, "latency": 0}
PROFILES = json.dumps([{"device": device, **PROFILE} for device in (0, 1)])
KEYS = ["seed", "local.lr", "fleet.devices", "model", "data.name", "algorithm.alpha", "x.y", "stop"]
FILES = ("summary.json", "config.toml", "metrics.csv", "events.jsonl", "fleet.csv")
TUNED = json.dumps({"best": {"fedasync": ["local.lr=0.1"], "fedavg": []}})


def spoiled(text: str, random: Random) -> str:
    """Cut short, with a piece replaced, a value exchanged, or a line repeated."""
    way, at = random.randrange(4), random.randrange(max(len(text), 1))
    if way == 0:
        return text[:at]
    if way == 1:
        return text[:at] + random.choice(NASTY) + text[at + random.randrange(12) :]
    words = text.replace(",", " , ").replace(":", " : ").replace("=", " = ").split(" ")
    if way == 2:
        words[random.randrange(len(words))] = random.choice(NASTY)
        return " ".join(words)
    lines = text.splitlines(keepends=True) or [""]
    return "".join(lines + lines[at % len(lines) :])


def written(path: Path, text: str) -> Path:
    path.write_text(text, errors="surrogatepass")
    return path


def report(runs: Path, out: Path) -> None:
    found = leagues(find([runs], lambda line: None))
    out.mkdir(exist_ok=True)
    for league in found:
        tables.main_table(league).markdown()
    tables.write_csv(found)
    latex.table(found)
    figures.draw(found, out)
    write_page([runs], out / "report.html")


def cases(folder: Path, good: Path) -> dict[str, Callable[[Random], Any]]:
    def directory(name: str) -> Callable[[Random], Any]:
        def attack(random: Random) -> None:
            run = folder / "runs" / "seed-0"
            shutil.rmtree(folder / "runs", ignore_errors=True)
            shutil.copytree(good, run)
            written(run / name, spoiled((run / name).read_text(errors="surrogateescape"), random))
            report(folder / "runs", folder / "out")

        return attack

    def tried(random: Random) -> None:
        load("quickstart", [f"{random.choice(KEYS)}={random.choice(NASTY)}"])

    return {
        "recipe": lambda random: Experiment.from_toml(written(folder / "r.toml", spoiled(RECIPE, random))),
        "--set": tried,
        "profiles": lambda random: read_profiles(written(folder / "p.json", spoiled(PROFILES, random))),
        "tuned.json": lambda random: sweep.read(written(folder / "tuned.json", spoiled(TUNED, random))),
        **{name: directory(name) for name in FILES},
    }


def main() -> None:
    score = Score("hostile inputs", bad=("traceback",))
    with place() as folder:
        experiment("fedasmu", uploads=20).run(folder / "good")
        kinds = cases(folder, folder / "good")
        for number in range(count(900)):
            kind = list(kinds)[number % len(kinds)]
            random = chance("inputs", number)
            score.case(f"{kind} {number}", outcome_of(lambda kind=kind, random=random: kinds[kind](random)))  # type: ignore[misc]
    score.end()


if __name__ == "__main__":
    main()
