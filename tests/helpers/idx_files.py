"""IDX files as upstream writes them, with few examples."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedasmu.data import describe
from fedasmu.data.description import Description

TRAIN, TEST = 60, 20


def idx(array: np.ndarray) -> bytes:
    """Big-endian: two zero bytes, the type, the number of dimensions, the dimensions, the numbers."""
    code, numbers = (0x08, array) if array.dtype == np.uint8 else (0x0C, array.astype(">i4"))
    return struct.pack(f">BBBB{array.ndim}i", 0, 0, code, array.ndim, *array.shape) + numbers.tobytes()


def small(name: str) -> Description:
    """The same data set with few examples."""
    return replace(describe(name), train=TRAIN, test=TEST)


def images(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, 28, 28), dtype=np.uint8)


def labels(name: str, count: int) -> np.ndarray:
    ours = np.arange(count, dtype=np.uint8) % 10
    first = describe(name).first_targets
    ours[: len(first)] = first
    return ours


def write(folder: Path, name: str, pack: Callable[[bytes], bytes] = bytes, suffix: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, count in (("train", TRAIN), ("t10k", TEST)):
        (folder / f"{prefix}-images-idx3-ubyte{suffix}").write_bytes(pack(idx(images(count))))
        (folder / f"{prefix}-labels-idx1-ubyte{suffix}").write_bytes(pack(idx(labels(name, count))))
    return folder
