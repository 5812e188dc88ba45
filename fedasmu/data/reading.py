"""The contract between `load` and the readers: what a reader is given, and the plain arrays it hands over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedasmu.data.description import Description, TextOptions
from fedasmu.data.errors import DataError
from fedasmu.data.places import Place
from fedasmu.data.progress import Progress

Array = np.ndarray[Any, Any]
NewArray = Callable[[str, tuple[int, ...], Any], Array]


@dataclass(frozen=True)
class Arrays:
    train_inputs: Array
    train_targets: Array
    test_inputs: Array
    test_targets: Array
    users: Array | None = None  # of the training examples
    words: tuple[str, ...] = ()  # the vocabulary of a text data set, in the order of its numbers


def in_memory(name: str, shape: tuple[int, ...], dtype: Any) -> Array:
    del name
    return np.empty(shape, dtype)


@dataclass(frozen=True)
class Reading:
    """What a reader needs. Large arrays are made by `new_array`, by the name of their field: perhaps on disk."""

    description: Description
    found: tuple[Place, ...]
    text: TextOptions
    progress: Progress
    new_array: NewArray = in_memory


def check_labels(file: Any, labels: Array, classes: int) -> Array:
    """The labels as int64, all of them in range."""
    if labels.size and not 0 <= labels.min() <= labels.max() < classes:
        wrong = labels[(labels < 0) | (labels >= classes)][0]
        raise DataError(f"{file} has the label {wrong}: expected 0 to {classes - 1}")
    return labels.astype(np.int64)
