"""IDX files: MNIST, Fashion-MNIST, and MNIST with the writers that QMNIST found.

An IDX file is big-endian: two zero bytes, one byte for the type of its numbers, one for the number of dimensions, the
dimensions as int32, then the numbers.
"""

from __future__ import annotations

import gzip
import lzma
import math
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Literal, cast

import numpy as np

from fedasmu.data.errors import DataError
from fedasmu.data.places import Place
from fedasmu.data.reading import Array, Arrays, Reading, check_labels

_CODES = {"u1": 0x08, ">i4": 0x0C}


def read_idx(path: Path, shape: tuple[int, ...], kind: Literal["u1", ">i4"] = "u1") -> Array:
    """The array in a file that must have exactly this shape. Reads no more than that, whatever the file claims."""
    code, dtype = _CODES[kind], np.dtype(kind)
    header = bytes([0, 0, code, len(shape)]) + b"".join(size.to_bytes(4, "big") for size in shape)
    expected = math.prod(shape) * dtype.itemsize
    try:
        with _open(path) as file:
            start = file.read(len(header))
            _check_header(path, start, header, shape)
            body = file.read(expected + 1)  # one more, to see (and for gzip, to verify) the end
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path} is truncated or damaged: {error}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if len(body) != expected:
        size = "fewer" if len(body) < expected else "more"
        raise DataError(f"{path} is damaged: {size} than the {expected} bytes of data that its header promises")
    return np.frombuffer(body, dtype=dtype).reshape(shape)


def _open(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(path))
    return cast(IO[bytes], lzma.open(path)) if path.suffix == ".xz" else path.open("rb")


def _check_header(path: Path, start: bytes, header: bytes, shape: tuple[int, ...]) -> None:
    if start[:4] != header[:4]:
        wanted, got = header[:4].hex(), start[:4].hex() or "nothing"
        raise DataError(f"{path} is not the IDX file expected here: its magic number is {got}, not {wanted}")
    if len(start) < len(header):
        raise DataError(f"{path} is truncated: it ends in its header")
    if start != header:
        sizes = [int.from_bytes(start[at : at + 4], "big") for at in range(4, len(start), 4)]
        raise DataError(f"{path} holds {_times(sizes)} numbers, expected {_times(shape)}")


def _times(shape: Iterable[int]) -> str:
    return " x ".join(str(size) for size in shape)


def read(reading: Reading) -> Arrays:
    description = reading.description
    train_inputs, train_targets = _examples(reading, "train", description.train)
    test_inputs, test_targets = _examples(reading, "t10k", description.test)
    _check_identity(reading, train_targets)
    users = _writers(reading.found[1], train_targets) if description.natural_users else None
    return Arrays(train_inputs, train_targets, test_inputs, test_targets, users)


def _examples(reading: Reading, prefix: str, count: int) -> tuple[Array, Array]:
    description, found = reading.description, reading.found[0]
    pixels = read_idx(found.file(f"{prefix}-images-idx3-ubyte"), (count, *description.shape[1:]))
    labels = found.file(f"{prefix}-labels-idx1-ubyte")
    return pixels[:, None], check_labels(labels, read_idx(labels, (count,)), description.classes)


def _check_identity(reading: Reading, targets: Array) -> None:
    """MNIST, Fashion-MNIST and others give their files the same names; the first labels tell them apart."""
    expected = reading.description.first_targets
    if tuple(targets[: len(expected)].tolist()) != expected:
        file = reading.found[0].file("train-labels-idx1-ubyte")
        raise DataError(
            f"{file} is of another data set: it does not begin with the labels of {reading.description.name}"
        )


def _writers(found: Place, targets: Array) -> Array:
    """QMNIST describes each training digit of MNIST, in the same order, by 8 numbers: its label is the first of them,
    its writer the third."""
    file = found.file("qmnist-train-labels-idx2-int")
    table = read_idx(file, (len(targets), 8), ">i4")
    if (table[:, 0] != targets).any():
        raise DataError(f"{file} does not describe these images: its labels are not those of MNIST")
    return table[:, 2].astype(np.int64)
