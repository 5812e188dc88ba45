"""What of a delivered task's time was its upload, and what its training: a file beside the events of a served run.

links.csv is for people and for simulations of the same fleet. It may be lost with the power: nothing of the run is read
from it, and nobody vouches for what a device says of itself.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from fedasmu.errors import UserError
from fedasmu.run.profiles import rows
from fedasmu.system.disk import append_whole

FILE = "links.csv"


@dataclass(frozen=True, slots=True)
class Way:
    """Of one task."""

    task: int
    upload: float  # seconds from the first byte of its report to the last, by the server's clock
    training: float  # seconds that its device computed, as it says
    bytes_down: int  # of the models that it was sent
    bytes_up: int

    def of(self, seconds: float) -> tuple[float, float, float]:
        """Of a whole task: the way down, the training and the way up. A device is believed as far as it fits."""
        upload = min(self.upload, seconds)
        training = min(self.training, seconds - upload)
        return seconds - upload - training, training, upload


def add(directory: Path, ways: Iterable[Way]) -> None:
    """Lines at the end of the file, which begins with the columns' names."""

    def lines(new: bool) -> str:
        text = io.StringIO()
        head = [tuple(one.name for one in fields(Way))] if new else []
        csv.writer(text, lineterminator="\n").writerows([*head, *map(astuple, ways)])
        return text.getvalue()

    append_whole(directory / FILE, lines)


def read(directory: Path) -> dict[int, Way]:
    """By task. Empty: the run has none."""
    path = directory / FILE
    if not path.is_file():
        return {}
    try:
        return {way.task: way for way in map(_way, rows(path))}
    except (KeyError, TypeError, ValueError) as error:
        names = ",".join(one.name for one in fields(Way))
        raise UserError(f"{path}: expected the columns {names} as numbers: {error}") from None


def _way(row: dict[str, str]) -> Way:
    upload, training = float(row["upload"]), float(row["training"])
    down, up = int(row["bytes_down"]), int(row["bytes_up"])
    if not (0 <= upload < math.inf and 0 <= training < math.inf and down > 0 and up > 0):
        raise ValueError(f"task {row['task']} cannot have had these")
    return Way(int(row["task"]), upload, training, down, up)
