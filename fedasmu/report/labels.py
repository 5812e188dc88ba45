"""Lists of methods that belong together, and labels that can name a directory or a file."""

from __future__ import annotations

import re

from fedasmu.algorithms import ALGORITHMS

GROUPS = {
    "all": tuple(method.names()[0] for method in ALGORITHMS),
    "paper": ("fedasmu", "fedavg", "fedprox", "moon", "feddyn", "fedasync", "port", "asofed", "fedbuff", "fedsa"),
    "ablation": ("fedasmu", "fedasmu-da", "fedasmu-fa", "fedasmu-0", "fedavg"),
    "slots": ("fedasmu", "fedasmu-h1", "fedasmu-h2", "fedasmu-h3"),
}
ORDER = {name: place for place, name in enumerate(name for method in ALGORITHMS for name in method.names())}


def slug(text: str) -> str:
    """A label that is safe as the name of a directory."""
    return re.sub(r"[^\w.+-]+", "-", text).strip("-.")
