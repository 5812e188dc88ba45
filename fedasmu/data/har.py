"""UCI HAR: 30 people, 6 activities, windows of 128 readings of 9 phone sensors (Anguita et al., ESANN 2013).

Upstream divides by person: 21 to train, 9 to test. Here every person is a device, so all of them are in the training
set, and the last fifth of each person's windows of each activity is the test set. Windows overlap by half: the one
before these is left out, because the first of them has half of its readings.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch

from fedasmu.data.errors import DataError
from fedasmu.data.partition import hold_out_last
from fedasmu.data.reading import Array, Arrays, Reading

_TEST = 1 / 5  # of the windows
_LARGEST = 1e3  # readings are in g and radians a second
_PEOPLE = 30


def read(reading: Reading) -> Arrays:
    description, found = reading.description, reading.found[0]
    sensors = [name for name in found.layout.files if "Inertial Signals" in name]
    with reading.progress.bar("reading uci-har", len(sensors)) as advance:
        signals, targets, subjects = [], [], []
        for split, count in (("train", description.train), ("test", description.test)):
            targets.append(_labels(found.file(f"{split}/y_{split}.txt"), count, description.classes))
            subjects.append(_subjects(found.file(f"{split}/subject_{split}.txt"), count))
            windows = np.empty((count, *description.shape), np.float32)
            for at, sensor in enumerate(name for name in sensors if name.startswith(f"{split}/")):
                windows[:, at] = _signal(found.file(sensor), len(windows), description.shape[1])
                advance()
            signals.append(windows)
    return _divided(np.concatenate(signals), np.concatenate(targets), np.concatenate(subjects))


def _divided(windows: Array, targets: Array, subjects: Array) -> Arrays:
    train, test = (part.numpy() for part in hold_out_last(torch.from_numpy(targets), torch.from_numpy(subjects), _TEST))
    return Arrays(windows[train], targets[train], windows[test], targets[test], users=subjects[train])


def _labels(file: Path, count: int, classes: int) -> Array:
    numbers = _whole_numbers(file, count)
    if not 1 <= numbers.min() <= numbers.max() <= classes:
        raise DataError(f"{file} has an activity that is not 1 to {classes}")
    return numbers - 1


def _subjects(file: Path, count: int) -> Array:
    numbers = _whole_numbers(file, count)
    if not 1 <= numbers.min() <= numbers.max() <= _PEOPLE:
        raise DataError(f"{file} has a person who is not 1 to {_PEOPLE}")
    return numbers


def _signal(file: Path, rows: int, columns: int) -> Array:
    numbers = _numbers(file)
    if numbers.size != rows * columns:
        raise DataError(f"{file} has {numbers.size} numbers: expected {rows} x {columns}")
    if np.abs(numbers).max() > _LARGEST:
        raise DataError(f"{file} is damaged: it has {np.abs(numbers).max():g}, which no phone measures")
    return numbers.reshape(rows, columns)


def _whole_numbers(file: Path, count: int) -> Array:
    numbers = _numbers(file)
    if len(numbers) != count:
        raise DataError(f"{file} has {len(numbers)} numbers: expected {count}")
    if (numbers != np.round(numbers)).any():
        raise DataError(f"{file}: expected one whole number a line")
    return numbers.astype(np.int64)


def _numbers(file: Path) -> Array:
    try:
        text = file.read_text(encoding="ascii")
        if text and not text.endswith("\n"):
            raise DataError(f"{file} is truncated: its last line has no end")
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # numpy only warns of what is not a number
            numbers = np.fromstring(text, dtype=np.float64, sep=" ")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read: {error}") from None
    except (DeprecationWarning, ValueError):
        raise DataError(f"{file} is damaged: it has something that is not a number") from None
    if not np.isfinite(numbers).all():
        raise DataError(f"{file} is damaged: it has something that is not a number")
    return numbers
