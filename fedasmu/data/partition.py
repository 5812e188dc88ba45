"""Splits of a training set over devices: pure functions of their arguments and a seed.

Each gives one tensor of indices a device. `dirichlet` is the class-wise scheme of Li et al., "Federated Learning on
Non-IID Data Silos: An Experimental Study", ICDE 2022; `equal_dirichlet` that of Hsu et al., "Measuring the Effects of
Non-Identical Data Distribution for Federated Visual Classification", 2019; `shards` that of McMahan et al., 2017.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from fedasmu.seeding import derive

Indices = np.ndarray[Any, np.dtype[np.int64]]

_DRAWS = 20  # of the class-wise scheme, before the sizes are repaired
_SMALLEST = 0.01  # alpha of the class-wise scheme; below, a class goes to one device whole: there is only a repair


@final
class Parts(list[Tensor]):
    """The indices of each device, and a note where the split is not exactly what its scheme gives by itself."""

    def __init__(self, parts: Iterable[Indices], note: str = "") -> None:
        self.extend(torch.from_numpy(np.array(part, dtype=np.int64)) for part in parts)
        self.note = note


def iid(targets: Tensor, devices: int, seed: int) -> Parts:
    """Every device gets an equal random share."""
    _check_devices(devices, len(targets))
    return Parts(np.array_split(_generator("iid", seed).permutation(len(targets)), devices))


def shards(targets: Tensor, devices: int, per_device: int, seed: int) -> Parts:
    """The examples are sorted by class and cut into equal shards; every device gets `per_device` random ones."""
    _check_devices(devices, len(targets))
    if per_device < 1 or devices * per_device > len(targets):
        limit = len(targets) // devices
        raise ValueError(
            f"per_device = {per_device} is not possible: {devices} devices may have 1 to {limit} shards each"
        )
    random = _generator("shards", seed)
    order = random.permutation(len(targets))
    by_class = order[np.argsort(targets.numpy()[order], kind="stable")]
    pieces = np.array_split(by_class, devices * per_device)
    dealt = random.permutation(len(pieces)).reshape(devices, per_device)
    return Parts(np.concatenate([pieces[piece] for piece in hand]) for hand in dealt)


def by_user(users: Tensor, devices: int | None = None, seed: int = 0) -> Parts:
    """One device a natural user; with fewer devices, the users are dealt over them at random, each one whole."""
    names, user = np.unique(users.numpy(), return_inverse=True)
    count = len(names) if devices is None else devices
    if not 1 <= count <= len(names):
        raise ValueError(
            f"devices = {count} is not possible: the data set has {len(names)} users, so 1 to {len(names)}"
        )
    if count == len(names):
        return Parts(_by_owner(user, count))
    place = _generator("by_user", seed).permutation(len(names)) % count
    return Parts(_by_owner(place[user], count))


def dirichlet(targets: Tensor, devices: int, alpha: float, seed: int, min_samples: int = 10) -> Parts:
    """Class by class, devices that hold less than their equal share get Dirichlet(alpha) proportions of the class.

    Drawn again, a bounded number of times, until every device has `min_samples`; then short devices are filled up from
    the largest ones, which always ends, and the note says so. (Drawing for ever, as is usual, does not end for two
    classes and a small alpha.)
    """
    _check_dirichlet(len(targets), devices, alpha, min_samples)
    if alpha < _SMALLEST:
        raise ValueError(
            f"alpha = {alpha} is so small that most devices would get no samples: "
            f"it must be at least {_SMALLEST}, or use the split equal-dirichlet"
        )
    random, labels = _generator("dirichlet", seed), targets.numpy()
    for _ in range(_DRAWS):
        owner = _class_wise(labels, devices, alpha, random)
        sizes = np.bincount(owner, minlength=devices)
        if sizes.min() >= max(min_samples, 1):
            return Parts(_shuffled(owner, devices, random))
    if min_samples == 0:
        raise ValueError(
            f"alpha = {alpha} is so small that {int((sizes == 0).sum())} of {devices} devices get no samples: "
            "use a larger alpha, fewer devices, or min_samples of at least 1"
        )
    short = int((sizes < min_samples).sum())
    parts = _repaired(_shuffled(owner, devices, random), min_samples)
    return Parts(
        parts, f"{short} of {devices} devices had fewer than {min_samples} samples and got some of the largest"
    )


def _class_wise(labels: Indices, devices: int, alpha: float, random: np.random.Generator) -> Indices:
    """The device of each example."""
    owner = np.empty(len(labels), dtype=np.int64)
    sizes = np.zeros(devices, dtype=np.int64)
    for label in np.unique(labels):
        members = random.permutation(np.flatnonzero(labels == label))
        # The scheme draws for all devices, sets the full ones to 0 and divides by the sum. That is again a Dirichlet
        # draw over the others, and this way the sum cannot be 0. Some device is always open while examples are left.
        open_devices = np.flatnonzero(sizes < len(labels) / devices)
        shares = random.dirichlet(np.full(len(open_devices), alpha))
        cuts = (np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
        counts = np.diff(cuts, prepend=0, append=len(members))
        owner[members] = np.repeat(open_devices, counts)
        sizes[open_devices] += counts
    return owner


def _repaired(parts: list[Indices], min_samples: int) -> list[Indices]:
    """Move single examples from the largest devices to the short ones. The lists are shuffled, so any end will do."""
    lists = [part.tolist() for part in parts]
    largest = [(-len(one), device) for device, one in enumerate(lists)]
    heapq.heapify(largest)
    for one in [one for one in lists if len(one) < min_samples]:
        while len(one) < min_samples:
            size, donor = largest[0]
            one.append(lists[donor].pop())
            heapq.heapreplace(largest, (size + 1, donor))
    return [np.array(one, dtype=np.int64) for one in lists]


def equal_dirichlet(targets: Tensor, devices: int, alpha: float, seed: int) -> Parts:
    """Every device gets the same number of examples, of classes in proportions that it draws from Dirichlet(alpha).

    A class that is used up is left out of the draws that follow. What an equal division leaves over is not used.
    """
    _check_dirichlet(len(targets), devices, alpha, 0)
    random, labels = _generator("equal_dirichlet", seed), targets.numpy()
    pools = [random.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    left = np.array([len(pool) for pool in pools])
    parts = []
    for _ in range(devices):
        takes = _class_counts(left, len(labels) // devices, alpha, random)
        chosen = [pool[rest - take : rest] for pool, rest, take in zip(pools, left, takes, strict=True)]
        parts.append(random.permutation(np.concatenate(chosen)))
        left -= takes
    return Parts(parts)


def _class_counts(left: Indices, size: int, alpha: float, random: np.random.Generator) -> Indices:
    """How many of each class one device takes. Each pass but the last uses up a class, so this ends."""
    wish = random.dirichlet(np.full(len(left), alpha))
    takes = np.zeros_like(left)
    while takes.sum() < size:
        available = left - takes
        weights = np.where(available > 0, wish, 0.0)
        if weights.sum() == 0:  # nothing left of what it wishes: whatever there is
            weights = available.astype(np.float64)
        drawn = random.multinomial(size - takes.sum(), weights / weights.sum())
        takes += np.minimum(drawn, available)
    return takes


def hold_out(targets: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Indices to train on and indices held out: the same fraction of every class, for tuning without the test set."""
    _check_fraction(fraction)
    random, labels = _generator("hold_out", seed), targets.numpy()
    held = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = random.permutation(np.flatnonzero(labels == label))
        held[members[: round(fraction * len(members))]] = True
    return torch.from_numpy(np.flatnonzero(~held)), torch.from_numpy(np.flatnonzero(held))


def hold_out_last(targets: Tensor, users: Tensor, fraction: float) -> tuple[Tensor, Tensor]:
    """The same of examples in the order of time that overlap with their neighbours: of each user and class the last.

    The one before these, which has a part of the first of them, is in neither.
    """
    _check_fraction(fraction)
    labels, owners = targets.numpy(), users.numpy()
    kept, held = np.ones(len(labels), dtype=bool), np.zeros(len(labels), dtype=bool)
    for owner in np.unique(owners):
        for label in np.unique(labels):
            members = np.flatnonzero((owners == owner) & (labels == label))
            last = int(fraction * len(members))
            held[members[len(members) - last :]] = True
            kept[members[max(0, len(members) - last - (last > 0)) :]] = False
    return torch.from_numpy(np.flatnonzero(kept)), torch.from_numpy(np.flatnonzero(held))


def _by_owner(owner: Indices, devices: int) -> list[Indices]:
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.cumsum(np.bincount(owner, minlength=devices))[:-1])


def _shuffled(owner: Indices, devices: int, random: np.random.Generator) -> list[Indices]:
    order = random.permutation(len(owner))
    return [order[part] for part in _by_owner(owner[order], devices)]


def _generator(scheme: str, seed: int) -> np.random.Generator:
    """Named, so that a hold-out and a split with the same seed are not the same numbers."""
    return np.random.default_rng(derive(seed, "split", scheme))


def _check_devices(devices: int, samples: int) -> None:
    if devices < 1:
        raise ValueError(f"devices = {devices} is not allowed: it must be at least 1")
    if devices > samples:
        raise ValueError(f"devices = {devices} is more than the {samples} samples of the training set")


def _check_fraction(fraction: float) -> None:
    if not 0 < fraction < 1:
        raise ValueError(f"fraction = {fraction} is not allowed: it must be between 0 and 1")


def _check_dirichlet(samples: int, devices: int, alpha: float, min_samples: int) -> None:
    _check_devices(devices, samples)
    if not (alpha > 0 and np.isfinite(alpha)):
        raise ValueError(f"alpha = {alpha} is not allowed: it must be greater than 0")
    if min_samples < 0:
        raise ValueError(f"min_samples = {min_samples} is not allowed: it must be at least 0")
    if min_samples * devices > samples:
        raise ValueError(
            f"min_samples = {min_samples} for {devices} devices is more than the {samples} samples of the training set"
        )
