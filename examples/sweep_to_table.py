"""From a sweep to a paper's table: tune two methods, compare them with their best settings, print the LaTeX table.

These are the commands that one would type; `python examples/sweep_to_table.py` runs them on a small problem.
"""

from __future__ import annotations

import json
import shlex
import tempfile
from pathlib import Path
from typing import Any

from fedasmu.cli import app

RECIPE = """
model = "softmax"
data.name = "fashion-mnist-small"
fleet.devices = 20
pacing.max_in_flight = 6
local.epochs = 1
algorithm = "fedasync"
evaluate = {every = 5, targets = [0.6]}
stop.uploads = 24
"""
COMMANDS = (
    # Each method with each setting, judged on training data that is held out: the test data stay unseen.
    "sweep {0}/small.toml --methods fedasync,fedavg --grid local.lr=0.003,0.1 --out {0}/sweep --workers inline",
    # Seeds that the sweep did not see, each method with what was best for it.
    "compare {0}/small.toml --methods fedasync,fedavg --tuned {0}/sweep --seeds 2 --first-seed 1 --out {0}/compare "
    "--workers inline",
    # Tables, figures and a page, from the runs alone.
    "report {0}/compare --out {0}/report",
)


def main(folder: Path) -> tuple[dict[str, Any], str]:
    """What was best for each method, and the table."""
    (folder / "small.toml").write_text(RECIPE)
    for command in COMMANDS:
        print(f"\n$ fedasmu {command.format('.')}")
        app(shlex.split(command.format(shlex.quote(str(folder)))), standalone_mode=False)
    return json.loads((folder / "sweep/tuned.json").read_text())["best"], (folder / "report/table.tex").read_text()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        best, table = main(Path(place))
        print(f"\nbest settings: {best}\n\n{table}")
