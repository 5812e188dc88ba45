"""The methods, one file each with both halves. To add one: import it and list it here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedasmu.algorithms.area import Area
from fedasmu.algorithms.asofed import AsoFed
from fedasmu.algorithms.asyncdrop import AsyncDrop
from fedasmu.algorithms.asyncpart import AsyncPart
from fedasmu.algorithms.base import Aggregate, Aggregator, Algorithm, Federation, Learner, Pace
from fedasmu.algorithms.ca2fl import CA2FL
from fedasmu.algorithms.fadas import Fadas
from fedasmu.algorithms.fedasmu import FedASMU
from fedasmu.algorithms.fedasmu_r import FedASMUR
from fedasmu.algorithms.fedasync import FedAsync
from fedasmu.algorithms.fedavg import FedAvg
from fedasmu.algorithms.fedbuff import FedBuff
from fedasmu.algorithms.feddelay import FedDelay
from fedasmu.algorithms.feddyn import FedDyn
from fedasmu.algorithms.fedfa import FedFa
from fedasmu.algorithms.fedprox import FedProx
from fedasmu.algorithms.fedsa import FedSA
from fedasmu.algorithms.fedsa_semi import FedSASemi
from fedasmu.algorithms.moon import Moon
from fedasmu.algorithms.port import Port
from fedasmu.errors import did_you_mean
from fedasmu.imports import load

ALGORITHMS: tuple[type[Algorithm], ...] = (
    FedASMU,
    FedASMUR,
    FedAvg,
    FedProx,
    Moon,
    FedDyn,
    FedAsync,
    Port,
    AsoFed,
    FedBuff,
    FedSA,
    FedSASemi,
    FedDelay,
    AsyncDrop,
    AsyncPart,
    CA2FL,
    Fadas,
    FedFa,
    Area,
)
NAMES = {name: method for method in ALGORITHMS for name in method.names()}


def named(name: str) -> type[Algorithm]:
    """The method of this name, or a user's own by its "package.module:Class"."""
    if ":" in name:
        method = load(name)
        if not (isinstance(method, type) and issubclass(method, Algorithm)):
            raise ValueError(f"{name} is not a subclass of fedasmu.algorithms.Algorithm")
        return method
    if name not in NAMES:
        raise ValueError(f"unknown method{did_you_mean(name, NAMES)} (known: {', '.join(NAMES)})")
    return NAMES[name]


def settings(table: Mapping[str, Any]) -> Algorithm:
    """A method from its table in a recipe: its name, and whatever differs from its defaults."""
    name = str(table["name"])
    method = named(name)
    own = method.names()[0] if ":" in name else name  # a user's class may allow its own name alone
    return method.model_validate({**method.presets.get(name, {}), **table, "name": own}).model_copy(
        update={"name": name}
    )


def titled(label: str) -> str:
    """A method's name as papers write it: fedasmu-h1 is FedASMU-H1. A label that is no method's stays as it is."""
    for method in ALGORITHMS:
        name = method.names()[0]
        if label == name:
            return method.title
        if label in method.presets and label.startswith(f"{name}-"):
            variant = label.removeprefix(f"{name}-")
            return f"{method.title}-{variant.upper() if len(variant) < 3 else variant}"
    return label


PAPER = ("fedasmu", "fedavg", "fedprox", "moon", "feddyn", "fedasync", "port", "asofed", "fedbuff", "fedsa")
GROUPS = {
    "all": tuple(method.names()[0] for method in ALGORITHMS),
    "paper": PAPER,
    "tables": ("fedasmu-r", *PAPER),
    "ablation": ("fedasmu", "fedasmu-da", "fedasmu-fa", "fedasmu-0", "fedavg"),
    "slots": ("fedasmu", "fedasmu-h1", "fedasmu-h2", "fedasmu-h3"),
}
ORDER = {name: place for place, name in enumerate(name for method in ALGORITHMS for name in method.names())}


__all__ = [
    "ALGORITHMS",
    "CA2FL",
    "GROUPS",
    "NAMES",
    "ORDER",
    "Aggregate",
    "Aggregator",
    "Algorithm",
    "Area",
    "AsoFed",
    "AsyncDrop",
    "AsyncPart",
    "Fadas",
    "FedASMU",
    "FedASMUR",
    "FedAsync",
    "FedAvg",
    "FedBuff",
    "FedDelay",
    "FedDyn",
    "FedFa",
    "FedProx",
    "FedSA",
    "FedSASemi",
    "Federation",
    "Learner",
    "Moon",
    "Pace",
    "Port",
    "named",
    "settings",
    "titled",
]
