"""The checks that turn data unfit for a network into an error before anything trains."""

from __future__ import annotations


def image(model: str, shape: tuple[int, ...], minimum: int) -> tuple[int, int, int]:
    """`shape` as (channels, height, width), each side at least `minimum`."""
    if len(shape) != 3:
        raise ValueError(f"{model} reads images (channels, height, width), but the data has shape {shape}")
    channels, height, width = shape
    if channels < 1 or min(height, width) < minimum:
        raise ValueError(f"{model} needs images of at least {minimum}x{minimum}, but the data has shape {shape}")
    return channels, height, width


def tokens(model: str, shape: tuple[int, ...], minimum: int) -> int:
    """The length in `shape` (length,), at least `minimum`."""
    if len(shape) != 1:
        raise ValueError(f"{model} reads sequences of tokens (length,), but the data has shape {shape}")
    if shape[0] < minimum:
        raise ValueError(f"{model} needs sequences of at least {minimum} tokens, but the data has shape {shape}")
    return shape[0]


def positive(model: str, **options: int) -> None:
    for name, value in options.items():
        if value < 1:
            raise ValueError(f"{model}: option {name!r} must be at least 1, got {value}")
