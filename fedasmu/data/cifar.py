"""CIFAR-10 and CIFAR-100, in the binary layout or as Python pickles (Krizhevsky 2009, cs.toronto.edu/~kriz).

A binary record is 1 label byte (CIFAR-100: a coarse and a fine one) and 3072 pixel bytes: 1024 red, then green, then
blue, row by row. The pickles hold the same pixels and the labels as a list.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from fedasmu.data.errors import DataError
from fedasmu.data.reading import Array, Arrays, Reading, check_labels

_PIXELS = 3 * 32 * 32

# What the pickles of a numpy array refer to. Anything else in a pickle could run code, and is refused.
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0],
    ("numpy._core.multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which such a file never needs") from None


def read(reading: Reading) -> Arrays:
    found = reading.found[0]
    files = [found.file(name) for name in found.layout.files]
    counts = _counts(reading, len(files) - 1)
    decode = _binary if found.layout.kind == "binary" else _pickled
    train = reading.new_array("train_inputs", (reading.description.train, 3, 32, 32), np.uint8)
    test = reading.new_array("test_inputs", (reading.description.test, 3, 32, 32), np.uint8)
    targets, start = [], 0
    for file, count in zip(files, counts, strict=True):
        labels, pixels = decode(file, count, reading.description.classes)
        targets.append(check_labels(file, labels, reading.description.classes))
        if file is files[-1]:
            test[:] = pixels.reshape(test.shape)
        else:
            train[start : start + count] = pixels.reshape(count, 3, 32, 32)
        start += count
    return Arrays(train, np.concatenate(targets[:-1]), test, targets[-1])


def _counts(reading: Reading, batches: int) -> list[int]:
    """How many images each file must have: training batches of equal size, then the test batch."""
    return [reading.description.train // batches] * batches + [reading.description.test]


def _binary(file: Path, count: int, classes: int) -> tuple[Array, Array]:
    labels = 1 if classes == 10 else 2
    record = labels + _PIXELS
    try:
        size = file.stat().st_size
        if size != count * record:
            raise DataError(f"{file} has {size} bytes: expected {count * record}, for {count} images of {record} bytes")
        records = np.fromfile(file, dtype=np.uint8).reshape(count, record)
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error}") from None
    return records[:, labels - 1], records[:, labels:]  # the fine label is the last


def _pickled(file: Path, count: int, classes: int) -> tuple[Array, Array]:
    key = b"labels" if classes == 10 else b"fine_labels"
    try:
        with file.open("rb") as stream:
            content = _ArraysOnly(stream, encoding="bytes").load()
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise DataError(f"{file} is damaged, or not a CIFAR batch: {error}") from None
    if not isinstance(content, dict) or b"data" not in content or key not in content:
        raise DataError(f"{file} is not a CIFAR batch: it lacks data or {key.decode()}")
    pixels, labels = content[b"data"], content[key]
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape != (count, _PIXELS):
        raise DataError(f"{file}: its data is not an array of {count} x {_PIXELS} bytes")
    if not isinstance(labels, list) or len(labels) != count or not all(type(one) is int for one in labels):
        raise DataError(f"{file}: its {key.decode()} is not a list of {count} whole numbers")
    return np.array(labels), pixels
