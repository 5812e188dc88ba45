"""Labels: as the name of a directory or a file, and in the order in which they were given."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from hashlib import sha256
from pathlib import Path

from fedasmu.errors import UserError, did_you_mean
from fedasmu.storage.record import make_folder
from fedasmu.system.disk import write_whole

DRAWN = 36  # characters of a label in a figure; all of FedASMU's variants have fewer
LONGEST = 110  # bytes; a file name has up to 255, and may be made of two labels
ORDER_FILE = "methods.txt"  # in the directory of a comparison: its labels as they were given, one a line


def slug(text: str) -> str:
    """A label that is safe as the name of a directory, and no longer than a file system takes."""
    safe = re.sub(r"[^\w.+-]+", "-", text).strip("-.")
    return safe if len(safe.encode()) <= LONGEST else f"{safe[:24]}-{sha256(text.encode()).hexdigest()[:12]}"


def shown(label: str) -> str:
    """A label as figures show it: a very long one would leave no room for the curves."""
    return label if len(label) <= DRAWN else f"{label[: DRAWN - 1]}\N{HORIZONTAL ELLIPSIS}"


def check_reference(reference: str, labels: Collection[str]) -> None:
    if reference and reference not in labels:
        meant = did_you_mean(reference, labels)
        raise UserError(f"reference = {reference}: not among the methods{meant} (allowed: {', '.join(labels)})")


def keep_order(directory: Path, labels: Sequence[str]) -> None:
    """For every table that is made from the runs there: the methods as they were given, then those of earlier times."""
    earlier = kept_order(directory)
    order = list(dict.fromkeys([*labels, *earlier]))
    if order != earlier:
        make_folder(directory)
        write_whole(directory / ORDER_FILE, "".join(f"{label}\n" for label in order))


def kept_order(directory: Path) -> list[str]:
    file = directory / ORDER_FILE
    return file.read_text(errors="replace").splitlines() if file.is_file() else []
