"""Fair tuning: what is tried for each method, and the same number of trials for all of them.

First the learning rate: the recipe's and others, the same for every method, because the luck of drawing a high one
would decide a comparison. Then, at the rate that was best for it, settings of the method's own, drawn in an order that
depends on the method alone. A method that has too few of its own tries rates between those of all: a higher one than
the others may try is an advantage as long as a short trial is stable, and a divergence in the long run.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedasmu.algorithms import Algorithm, named
from fedasmu.errors import UserError
from fedasmu.seeding import derive
from fedasmu.settings.recipe import key_of, override, parse
from fedasmu.study.variants import Variant, distinct

RATE = "local.lr"
FACTORS = (1.0, 3.2, 0.32, 10.0, 0.1)  # of the recipe's learning rate, as they are tried
MOST = 2 * len(FACTORS) - 1  # trials: half of them, rounded up, are these
SPACES: Mapping[str, Mapping[str, Sequence[float]]] = {  # a method's own settings, around their defaults
    "fedasmu": {
        "lambda0": (2.0, 8.0, 32.0),
        "iota0": (0.03, 0.1, 0.3),
        "polynomial_alpha": (0.1, 0.3, 0.6, 0.9),  # as FedAsync's
        "polynomial_a": (0.25, 0.5, 1.0),
    },
    "fedasmu-r": {"stride": (0.0, 0.5, 1.0, 2.0)},  # tasks differ in it; in lambda0 and iota0 hardly
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
NEEDS: Mapping[str, Mapping[str, tuple[str, str]]] = {  # settings that count only where another one has this value
    "fedasmu": {
        **dict.fromkeys(("lambda0", "iota0"), ("server_weights", "dynamic")),
        **dict.fromkeys(("polynomial_alpha", "polynomial_a"), ("server_weights", "polynomial")),
    },
    "fedasmu-r": {"stride": ("correction", "cached")},
    "fedasync": {"polynomial_a": ("staleness", "polynomial")},
}


def check(count: int, name: str = "trials") -> None:
    if not 1 <= count <= MOST:
        raise UserError(f"{name} = {count}: must be 1 to {MOST}, so that every method has as many to try")


def with_rates(variants: Sequence[Variant], rate: float, count: int) -> list[Variant]:
    """The first half of `count` trials: every variant as it is, and with other learning rates. `rate`: the recipe's."""
    as_it_is = [replace(variant, base=variant.label) for variant in variants]  # no trial of another one's
    factors = (*FACTORS[1 : _half(count)], FACTORS[0])  # the recipe's own rate only where a variant has another of them
    others = [[one, *_rates(one, rate, factors, _half(count) - 1)] for one in as_it_is]
    return distinct(list(itertools.chain(*others)))


def with_settings(
    variants: Sequence[Variant], best: Mapping[str, Sequence[str]], rate: float, count: int
) -> list[Variant]:
    """The second half: settings of its own at the learning rate that is among the `best` of each variant so far."""
    found = []
    for variant in variants:
        kept = [(key, value) for key, _, value in (text.partition("=") for text in best[variant.label]) if key == RATE]
        own = [variant.changed((*kept, *settings)) for settings in _drawn(variant)]
        more = count - _half(count)
        found += [*own, *_rates(variant, rate, between(FACTORS[: _half(count)], more + 1), more)][:more]
    return found


def between(factors: Sequence[float], count: int) -> list[float]:
    """So many more, each in the middle of a widest gap in proportion; of a single one, those that are tried next."""
    if len(factors) == 1:
        return list(FACTORS[1 : 1 + count])
    found: list[float] = []
    while len(found) < count:
        known = sorted([*factors, *found])
        low, high = max(itertools.pairwise(known), key=lambda gap: round(math.log(gap[1] / gap[0]), 9))
        found.append(math.sqrt(low * high))
    return found


def _half(count: int) -> int:
    return (count + 1) // 2


def _rates(variant: Variant, rate: float, factors: Sequence[float], count: int) -> list[Variant]:
    """So many of these factors of the recipe's rate; not the variant's own rate, with which it is tried as it is."""
    said = [change for change in variant.changes if key_of(change) == RATE]
    own = parse(override({}, [f"algorithm.name={variant.method}", f"{RATE}={rate}", *said])).local.lr
    shown = [f"{factor * rate:.3g}" for factor in factors]
    return [variant.changed([(RATE, one)]) for one in shown if one != f"{own:.3g}"][:count]


def _drawn(variant: Variant) -> list[tuple[tuple[str, str], ...]]:
    """All combinations of the method's own settings that change it. What the variant says itself stays as it is."""
    name, mine = named(variant.method).names()[0], _method(variant)
    fixed = {key_of(change).removeprefix("algorithm.") for change in variant.changes} | _idle(name, mine)
    own = {key: values for key, values in SPACES.get(name, {}).items() if key not in fixed}
    combinations = list(itertools.product(*own.values()))
    combinations.sort(key=lambda values: derive(0, "trial", name, *map(str, values)))
    drawn = [
        tuple((f"algorithm.{key}", f"{value:g}") for key, value in zip(own, values, strict=True))
        for values in combinations
    ]
    return [settings for settings in drawn if _method(variant.changed(settings)) != mine]


def _idle(name: str, method: Algorithm) -> set[str]:
    """The settings that do nothing, since another one has not the value that they need."""
    return {key for key, (other, value) in NEEDS.get(name, {}).items() if getattr(method, other) != value}


def _method(variant: Variant) -> Algorithm:
    """With all of its settings: one may depend on another."""
    own = [change for change in variant.changes if change.startswith("algorithm.")]
    return parse(override({}, [f"algorithm.name={variant.method}", *own])).algorithm
