"""Randomness without state: every random number is a function of the run's seed and a path that says what it is for.

There is no generator to save, share or race for: a checkpoint needs no random state, and a training gives the same bits
in whichever process and order it runs.
"""

from __future__ import annotations

from hashlib import blake2b

BITS = 63  # what torch.Generator.manual_seed accepts without a sign


def derive(*path: int | str) -> int:
    """A 63-bit seed for this path, for instance derive(seed, "task", 17)."""
    digest = blake2b("/".join(map(str, path)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - BITS)


def uniform(*path: int | str) -> float:
    """A number in [0, 1) for this path."""
    return (derive(*path) >> (BITS - 53)) / (1 << 53)
