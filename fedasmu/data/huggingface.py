"""A Hugging Face `datasets` folder, as `save_to_disk` writes it. Needs the package `datasets`, which is an extra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedasmu.data.description import TextOptions
from fedasmu.data.errors import DataError
from fedasmu.data.examples import Dataset, Examples, normalisation
from fedasmu.data.reading import Array, check_labels
from fedasmu.data.text import check_options, encode, glove, tokens, vocabulary


def from_disk(
    path: Path,
    *,
    inputs: str,
    targets: str = "label",
    train: str = "train",
    test: str = "test",
    user: str | None = None,
    mean: tuple[float, ...] = (),
    std: tuple[float, ...] = (),
    text: TextOptions | None = None,
) -> Dataset:
    """Read the column `inputs` (images, texts or numbers of one shape) and the column of classes `targets`.

    Images keep their bytes and are scaled to [0, 1], or by `mean` and `std`. Texts get a vocabulary from the training
    split, as `text` says. `user` is a column that tells whose each training example is.
    """
    splits = _open(path, (train, test))
    columns = {inputs, targets, *([user] if user else [])}
    for name in (train, test):
        lacking = columns - set(splits[name].column_names) - ({user} if name == test else set())
        if lacking:
            raise DataError(f"{path}: the split {name} lacks the column {', '.join(sorted(map(str, lacking)))}")
    pair = splits[train], splits[test]
    labels = [_labels(path, split, targets) for split in pair]
    classes = _classes(pair[0], targets, labels)
    words: tuple[str, ...] = ()
    kind = _kind(pair[0].features[inputs])
    if kind == "text":
        rows, words = _texts(path, pair, inputs, text or TextOptions())
    else:
        rows = [_images(path, split, inputs) if kind == "image" else _numbers(path, split, inputs) for split in pair]
    if rows[0].shape[1:] != rows[1].shape[1:]:
        raise DataError(f"{path}: inputs of {train} are {rows[0].shape[1:]}, of {test} {rows[1].shape[1:]}")
    if rows[0].dtype == np.uint8 and not mean:
        mean, std = (0.0,) * rows[0].shape[1], (1.0,) * rows[0].shape[1]
    scale, shift = normalisation(mean, std)
    examples = [
        Examples(torch.from_numpy(row), torch.from_numpy(check_labels(path, label, classes)), scale, shift)
        for row, label in zip(rows, labels, strict=True)
    ]
    users = None if user is None else torch.from_numpy(np.unique(pair[0][:][user], return_inverse=True)[1])
    vectors = torch.from_numpy(glove(Path(text.glove), words)) if words and text and text.glove else None
    return Dataset(path.name, examples[0], examples[1], classes, users, words, vectors)


def _open(path: Path, names: tuple[str, str]) -> Any:
    try:
        import datasets
    except ImportError:
        raise DataError("reading a Hugging Face folder needs the package datasets: pip install datasets") from None
    try:
        splits = datasets.load_from_disk(str(path))
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{path} is not a folder that save_to_disk wrote: {error}") from None
    for name in names:
        if not isinstance(splits, datasets.DatasetDict) or name not in splits or not len(splits[name]):
            raise DataError(f"{path} has no split {name!r}, or an empty one: expected {' and '.join(names)}")
    return splits


def _kind(feature: Any) -> str:
    import datasets

    if isinstance(feature, datasets.Image):
        return "image"
    return "text" if isinstance(feature, datasets.Value) and "string" in feature.dtype else "numbers"


def _labels(path: Path, split: Any, column: str) -> Array:
    labels = np.array(split[:][column])
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise DataError(f"{path}: the column {column} must hold one whole number an example")
    return labels


def _classes(split: Any, column: str, labels: list[Array]) -> int:
    declared = getattr(split.features[column], "num_classes", None)
    return int(declared or max(int(one.max()) for one in labels) + 1)


def _texts(path: Path, pair: Any, column: str, options: TextOptions) -> tuple[list[Array], tuple[str, ...]]:
    check_options(options)
    texts = [[tokens(text or "") for text in split[:][column]] for split in pair]
    for split in texts:
        if [] in split:
            raise DataError(f"{path}: example {split.index([])} has an empty {column}")
    words = vocabulary(texts[0], options.vocabulary)
    rows = [np.empty((len(split), options.length), np.int32) for split in texts]
    for split, row in zip(texts, rows, strict=True):
        encode(split, words, options, row)
    return rows, words


def _images(path: Path, split: Any, column: str) -> Array:
    pictures = split.select_columns([column])
    mode = "L" if pictures[0][column].mode in ("1", "L") else "RGB"
    images = []
    for at, row in enumerate(pictures):
        pixels = np.asarray(row[column].convert(mode))
        images.append(pixels[None] if mode == "L" else pixels.transpose(2, 0, 1))
        if images[-1].shape != images[0].shape:
            raise DataError(f"{path}: image {at} is {images[-1].shape[1:]}, the first is {images[0].shape[1:]}")
    return np.stack(images)


def _numbers(path: Path, split: Any, column: str) -> Array:
    try:
        numbers = np.array(split[:][column])
    except ValueError:
        raise DataError(f"{path}: the examples of the column {column} must all have the same shape") from None
    if numbers.dtype.kind not in "fiu":
        raise DataError(f"{path}: the column {column} must hold images, texts or numbers")
    return numbers.astype(np.float32 if numbers.dtype.kind == "f" else np.int64)
