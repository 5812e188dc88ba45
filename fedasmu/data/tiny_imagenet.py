"""Tiny-ImageNet-200: folders of JPEG files (Stanford CS231n).

The published test images have no labels, so the validation images are the test set. Classes are numbered in the order
of wnids.txt. A folder with whole classes only, but fewer of them, is taken as what it is: its name then says so.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from fedasmu.data.errors import DataError
from fedasmu.data.reading import Array, Arrays, Reading


def read(reading: Reading) -> Arrays:
    description, root = reading.description, reading.found[0].folder
    names = [line for line in _lines(root / "wnids.txt") if line.strip()]
    if len(set(names)) != len(names) or not 2 <= len(names) <= description.classes:
        raise DataError(f"{root / 'wnids.txt'} names {len(set(names))} classes: expected 2 to {description.classes}")
    number = {name: at for at, name in enumerate(names)}
    each = description.train // description.classes
    train_files = [file for name in names for file in _class_files(root, name, each)]
    test_files, test_targets = _validation(root, number, description.test * len(names) // description.classes)

    train = reading.new_array("train_inputs", (len(train_files), *description.shape), np.uint8)
    test = reading.new_array("test_inputs", (len(test_files), *description.shape), np.uint8)
    with reading.progress.bar(f"decoding {description.name}", len(train) + len(test)) as advance:
        for files, images in ((train_files, train), (test_files, test)):
            for start in range(0, len(files), 1000):
                decode(files[start : start + 1000], images[start : start + 1000])
                advance(len(files[start : start + 1000]))
    train_targets = np.repeat(np.arange(len(names)), each)
    return Arrays(train, train_targets, test, test_targets)


def decode(files: Sequence[Path], images: Array) -> None:
    """Decode into rows of `images`. Threads help: Pillow lets others run while it decompresses."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(_decode_one, files, images):
            pass


def _decode_one(file: Path, image: Array) -> None:
    from PIL import Image

    try:
        with Image.open(file) as picture:
            size = picture.size
            pixels = np.asarray(picture.convert("RGB")).transpose(2, 0, 1)  # a few are greyscale
    except FileNotFoundError:
        raise DataError(f"{file} is missing") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{file} is not a whole image: {error}") from None
    if pixels.shape != image.shape:
        raise DataError(f"{file} is {size[0]} x {size[1]} pixels: expected {image.shape[2]} x {image.shape[1]}")
    image[:] = pixels


def _class_files(root: Path, name: str, count: int) -> list[Path]:
    folder = root / "train" / name / "images"
    files = sorted(folder.glob("*.JPEG"))
    if len(files) != count:
        raise DataError(f"{folder} has {len(files)} JPEG files: expected {count}")
    return files


def _validation(root: Path, number: dict[str, int], count: int) -> tuple[list[Path], Array]:
    """Lines of file name, class and bounding box, separated by tabs."""
    annotations = root / "val" / "val_annotations.txt"
    files, targets = [], []
    for at, line in enumerate(_lines(annotations), start=1):
        file, _, rest = line.partition("\t")
        name = rest.partition("\t")[0]
        if name not in number:
            raise DataError(f"{annotations}, line {at}: expected a file and a class of wnids.txt, found {line!r}")
        files.append(root / "val" / "images" / file)
        targets.append(number[name])
    if len(files) != count:
        raise DataError(f"{annotations} has {len(files)} lines: expected {count}")
    return files, np.array(targets)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read: {error}") from None
