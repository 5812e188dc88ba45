"""Fair tuning: what is tried for each method, and the same number of trials for all of them.

The first trial is always the recipe as it is. The others try the same learning rates for every method, because the
luck of drawing a high one would decide a comparison; each with settings of the method's own, drawn in an order that
depends on the method alone: more trials go on where fewer ended.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from fedasmu.algorithms import named
from fedasmu.errors import UserError
from fedasmu.seeding import derive
from fedasmu.study.variants import Variant, distinct

FACTORS = (1.0, 3.2, 0.32, 10.0, 0.1, 5.6, 1.8, 0.56, 0.18)  # of the recipe's learning rate, as they are tried
SPACES: Mapping[str, Mapping[str, Sequence[float]]] = {  # a method's own settings, around their defaults
    "fedasmu": {"lambda0": (2.0, 8.0, 32.0), "iota0": (0.03, 0.1, 0.3)},
    "fedasmu-r": {"lambda0": (2.0, 8.0, 32.0), "iota0": (0.03, 0.1, 0.3)},
    "fedprox": {"mu": (0.001, 0.01, 0.1, 1.0)},
    "moon": {"mu": (0.1, 1.0, 5.0), "temperature": (0.1, 0.5, 1.0)},
    "feddyn": {"alpha": (0.001, 0.01, 0.03, 0.1)},
    "fedasync": {"alpha": (0.1, 0.3, 0.6, 0.9), "polynomial_a": (0.25, 0.5, 1.0)},
    "port": {"minimum": (2, 5, 10), "bound": (5, 10, 20)},
    "asofed": {"pull": (0.001, 0.01, 0.1), "beta": (0.1, 0.5, 0.9)},
    "fedbuff": {"buffer": (2, 5, 10), "server_lr": (0.5, 1.0, 2.0)},
    "fedsa": {"alpha": (0.3, 0.6, 0.9), "first_stage": (0.1, 0.2, 0.4)},
    "fedsa-semi": {"buffer": (2, 3, 5)},
    "feddelay": {"server_lr": (0.1, 0.3, 1.0)},
    "asyncdrop": {"alpha": (0.3, 0.5, 0.9), "keep": (0.25, 0.5)},
    "asyncpart": {"alpha": (0.3, 0.5, 0.9)},
    "ca2fl": {"buffer": (2, 5, 10), "server_lr": (0.5, 1.0, 2.0)},
    "fadas": {"buffer": (2, 5, 10), "server_lr": (0.0003, 0.001, 0.003, 0.01)},
    "area": {"buffer": (1, 3)},
}


def trials(variants: Sequence[Variant], rate: float, count: int) -> list[Variant]:
    """Every variant with `count` settings. `rate` is the recipe's learning rate."""
    if not 1 <= count <= len(FACTORS):
        raise UserError(f"trials = {count}: must be 1 to {len(FACTORS)}, so that every method has as many to try")
    found = []
    for variant in variants:
        found += [variant, *(variant.changed(keys) for keys in _drawn(variant, rate)[: count - 1])]
    return distinct(found)


def _drawn(variant: Variant, rate: float) -> list[tuple[tuple[str, str], ...]]:
    """All learning rates but the recipe's, each with a combination of the method's own settings."""
    own = SPACES.get(named(variant.method).names()[0], {})
    axes = [[(f"algorithm.{key}", f"{value:g}") for value in values] for key, values in own.items()]
    combinations = list(itertools.product(*axes))
    order = sorted(range(len(combinations)), key=lambda place: derive(0, "trial", variant.label, place))
    settings = itertools.cycle(combinations[place] for place in order)
    return [(("local.lr", f"{factor * rate:.3g}"), *next(settings)) for factor in FACTORS[1:]]
