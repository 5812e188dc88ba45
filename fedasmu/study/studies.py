"""The paper's studies: which recipes, environments and methods each of them is made of."""

from __future__ import annotations

import math
from dataclasses import dataclass

FEW = "fedasmu,fedasmu-r,fedavg,fedasync,fedbuff"
RATES = ("1e-5", "1e-3", "1e-2")  # the paper does not list the values it tried
SENSITIVITY = ",".join(
    [
        "fedasmu",
        *(f"fedasmu(lr_{control}={rate})" for control in ("lambda", "sigma", "iota") for rate in RATES),
        *(f"fedasmu(pacing.period={period})" for period in ("2.5", "10", "20")),
    ]
)


@dataclass(frozen=True)
class Part:
    """One environment: a recipe, and what is different there."""

    recipe: str
    name: str = ""  # of its directory, and for --only; the recipe's unless given
    changes: tuple[str, ...] = ()
    printed: str = ""  # where the claims about this part alone are found

    @property
    def title(self) -> str:
        return self.name or self.recipe


@dataclass(frozen=True)
class Study:
    about: str
    methods: str
    parts: tuple[Part, ...]
    target: float | None = None  # the highest of the recipe unless given


def _recipes(*names: str) -> tuple[Part, ...]:
    return tuple(Part(name) for name in names)


def _fleet(preset: str, printed: str = "", *changes: str) -> Part:
    """The fleet of the tables with something else about it."""
    return Part("lenet-fashion-mnist", preset, (f"fleet.preset=['paper', '{preset}']", *changes), printed)


def _heterogeneous(ratio: int) -> Part:
    """Times between the fastest and the slowest device, the middle one as fast as that of the tables' fleet."""
    return _fleet(f"het{ratio}", "", f"fleet.seconds_per_sample={0.35 / math.sqrt(ratio):.4f}")


SIGMAS = (0.0, 0.6, 1.16, 1.8)  # of the logarithm of the devices' times: equal, up to 20, 300, 8,000 times slower
FLIGHTS = (5, 10, 25)  # devices that work at once
SKEWS = (0.1, 0.5, 10.0)  # Dirichlet: a class or two on a device, the paper's recipes, nearly the same everywhere


def _places() -> tuple[Part, ...]:
    return tuple(
        Part(
            "league",
            f"sigma-{sigma}-flight-{flight}-skew-{skew}",
            (
                *("fleet.preset=paper", f"fleet.sigma={sigma}", f"pacing.max_in_flight={flight}", f"data.alpha={skew}"),
                "evaluate.every=5",  # of each cohort a whole part, so that every round is measured when it ends
            ),
        )
        for skew in SKEWS
        for flight in FLIGHTS
        for sigma in SIGMAS
    )


def place_of(part: Part) -> tuple[float, int, float]:
    """sigma, devices in flight and skew of a part of the study of asynchrony"""
    _, sigma, _, flight, _, skew = part.name.split("-")
    return float(sigma), int(flight), float(skew)


STUDIES = {
    "table1": Study(
        "accuracy and time to the target, first table",
        "tables",
        _recipes(
            "lenet-cifar-10",
            "lenet-cifar-100",
            "cnn-cifar-10",
            "cnn-cifar-100",
            "resnet-cifar-100",
            "resnet-tiny-imagenet",
        ),
    ),
    "table2": Study(
        "accuracy and time to the target, second table",
        "tables",
        _recipes(
            "alexnet-cifar-10",
            "alexnet-cifar-100",
            "vgg-cifar-10",
            "vgg-cifar-100",
            "textcnn-imdb",
            "lenet-fashion-mnist",
        ),
    ),
    "ablation": Study(
        "without the fresh model (FA), without learned weights (DA), without both (0)",
        "ablation",
        _recipes("lenet-cifar-10", "cnn-cifar-10", "lenet-fashion-mnist"),  # the last one is ours
    ),
    "slots": Study(
        "when a device asks for the fresh model: learned, or first, middle, last",
        "slots",
        _recipes("lenet-cifar-10", "lenet-fashion-mnist"),  # the paper does not say where it measured
    ),
    "baselines": Study(
        "three more asynchronous methods; SyncDrop in the paper is AsyncDrop",
        "fedasmu,fedasmu-r,feddelay,asyncdrop,asyncpart",
        _recipes("lenet-fashion-mnist"),
    ),
    "bandwidth": Study(
        "links 50 and 100 times narrower",
        FEW,
        (_fleet("bandwidth-50", "bandwidth-50"), _fleet("bandwidth-100", "bandwidth-100")),
        0.6,
    ),
    "heterogeneity": Study(
        "the slowest device 110 and 440 times slower than the fastest",
        FEW,
        (_heterogeneous(110), _heterogeneous(440)),
        0.6,
    ),
    "devices": Study("200 devices", FEW, (_fleet("devices-200"),), 0.6),
    "sensitivity": Study(
        "how fast the controls are learned, how often devices start", SENSITIVITY, _recipes("lenet-fashion-mnist")
    ),
    "asynchrony": Study(
        "where asynchrony pays: unequal devices, devices in flight, skewed data",
        "fedasmu-r,fedavg,feddyn,fedasync,fedbuff",
        _places(),
    ),
}


@dataclass(frozen=True)
class Budget:
    seeds: int
    shares: dict[str, float]  # of a recipe's uploads, by its name, its model or "*"; without one it is left out

    def share(self, recipe: str) -> float | None:
        names = (recipe, recipe.partition("-")[0], "*")
        return next((self.shares[name] for name in names if name in self.shares), None)


BUDGETS = {
    # A core takes 0.04 s for an upload of LeNet on Fashion-MNIST, 0.08 s on CIFAR, 0.3 s of TextCNN, 0.8 s of the CNN.
    "small": Budget(1, {"league": 0.2, "lenet-fashion-mnist": 0.5, "lenet": 0.06, "textcnn": 0.03, "cnn": 0.015}),
    "long": Budget(
        3,
        {"league": 1.0, "lenet": 1.0, "textcnn": 1.0, "cnn": 0.1, "resnet": 0.06, "alexnet": 0.06, "vgg": 0.03},
    ),
    "half": Budget(3, {"*": 0.5}),
    "full": Budget(3, {"*": 1.0}),
}
