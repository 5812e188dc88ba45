"""Lists of methods that belong together, and labels that can name a directory or a file."""

from __future__ import annotations

import re
from hashlib import sha256

from fedasmu.algorithms import ALGORITHMS

PAPER = ("fedasmu", "fedavg", "fedprox", "moon", "feddyn", "fedasync", "port", "asofed", "fedbuff", "fedsa")
GROUPS = {
    "all": tuple(method.names()[0] for method in ALGORITHMS),
    "paper": PAPER,
    "tables": ("fedasmu-r", *PAPER),
    "ablation": ("fedasmu", "fedasmu-da", "fedasmu-fa", "fedasmu-0", "fedavg"),
    "slots": ("fedasmu", "fedasmu-h1", "fedasmu-h2", "fedasmu-h3"),
}
LONGEST = 110  # bytes; a file name has up to 255, and may be made of two labels
ORDER = {name: place for place, name in enumerate(name for method in ALGORITHMS for name in method.names())}
ORDER_FILE = "methods.txt"  # in the directory of a comparison: its labels as they were given, one a line


def slug(text: str) -> str:
    """A label that is safe as the name of a directory, and no longer than a file system takes."""
    safe = re.sub(r"[^\w.+-]+", "-", text).strip("-.")
    return safe if len(safe.encode()) <= LONGEST else f"{safe[:24]}-{sha256(text.encode()).hexdigest()[:12]}"
