"""From files to federated data: a table in CSV, a folder of class folders with images, arrays in npz.

Where the files say whose each example is, every owner is a device; else examples are dealt over `devices` of them. A
share of every device's examples is kept to test on, unless the files bring test data.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedasmu.data import npz
from fedasmu.data.examples import normalisation
from fedasmu.data.federated import FederatedData, Pair
from fedasmu.errors import UserError, reading
from fedasmu.seeding import derive

Array = NDArray[Any]
IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp"}


def from_csv(
    path: str | Path,
    target: str,
    device: str | None = None,
    *,
    regression: bool = False,
    devices: int = 10,
    test: float = 0.2,
    seed: int = 0,
) -> FederatedData:
    """A table with a line of names. `target` is the column to predict: classes, or numbers for a regression.

    `device` is the column that says whose a row is. All others are inputs: numbers, brought to mean 0 and deviation 1
    by the rows that are trained on. A row that is not whole is refused: an empty class would be one more.
    """
    with reading(path), Path(path).open(newline="", encoding="utf-8-sig") as file:  # Excel marks its files as UTF-8
        reader = csv.DictReader(file)
        rows = [(reader.line_num, row) for row in reader]
    if not rows:
        raise UserError(f"{path}: it has no rows; need a line of names, and below it a row for each example")
    names = list(reader.fieldnames or ())
    for key, name in (("target", target), ("device", device)):
        if name is not None and name not in names:
            other = next(
                (f"; are they separated by {mark!r}? Need commas" for mark in ";\t|" if mark in "".join(names)), ""
            )
            there = ", ".join(names) or "it has no names"
            raise UserError(f"{path}: {key} = {name!r} is none of its columns: {there}{other}")
    _whole(path, names, rows)
    columns = [name for name in names if name not in (target, device)]
    if not columns:
        raise UserError(f"{path}, line 1: no column but {', '.join(names)}; need at least one of inputs")
    inputs = np.array([[_number(path, line, row, name) for name in columns] for line, row in rows])
    if regression:
        targets = np.array([_number(path, line, row, target) for line, row in rows])
    else:
        targets = _numbered([_label(path, line, row, target, "target") for line, row in rows])
    owners = None if device is None else [_label(path, line, row, device, "device") for line, row in rows]
    kept, held, shards = _divided(len(rows), owners, devices, test, seed)
    learned = inputs[kept]
    spread = np.where(np.ptp(learned, axis=0) > 0, learned.std(0), 1.0)  # of equal numbers, that is 0 but for rounding
    inputs = ((inputs - learned.mean(0)) / spread).astype(np.float32)
    return _federated(path, (inputs[kept], targets[kept]), (inputs[held], targets[held]), shards)


def from_folder(
    path: str | Path,
    device: Callable[[Path], str] | None = None,
    *,
    size: tuple[int, int] | None = None,
    grey: bool = False,
    devices: int = 10,
    test: float = 0.2,
    seed: int = 0,
) -> FederatedData:
    """Images in a folder for each class. `device` says of a file whose it is; `size` (height, width) scales them."""
    if size is not None and not _is_size(size):
        raise UserError(f"size = {size!r}: must be (height, width), two whole numbers of pixels from 1, as in (32, 32)")
    if not (device is None or callable(device)):
        raise UserError(
            f"device = {device!r}: must be a function that says of a file whose it is, as lambda file: file.stem"
        )
    classes = sorted(one for one in Path(path).glob("*") if one.is_dir())
    files = [(file, number) for number, one in enumerate(classes) for file in sorted(one.rglob("*")) if _is_image(file)]
    if not files:
        raise UserError(f"{path}: no images there; expected a folder for each class, with images in it")
    inputs = _stacked([_image(file, size, grey) for file, _ in files], [file for file, _ in files])
    targets = np.array([number for _, number in files])
    owners = None if device is None else [_owner(device, file) for file, _ in files]
    kept, held, shards = _divided(len(files), owners, devices, test, seed)
    data = _federated(path, (inputs[kept], targets[kept]), (inputs[held], targets[held]), shards, len(classes))
    scale, shift = normalisation((0.5,) * inputs.shape[1], (0.5,) * inputs.shape[1])
    train, judge = (replace(one, scale=scale, shift=shift) for one in (data.train, data.test))
    return replace(data, train=train, test=judge)


def from_npz(path: str | Path, *, devices: int = 10, test: float = 0.2, seed: int = 0) -> FederatedData:
    """Arrays `inputs` and `targets`; if there are, `devices` (whose each is), `test_inputs` and `test_targets`."""
    arrays = npz.read(path, str(path), ("devices", "test_inputs", "test_targets"))
    with reading(path):
        inputs, targets = arrays["inputs"], arrays["targets"]
        counts = len(inputs), len(targets)
        owners = [str(one) for one in arrays["devices"]] if "devices" in arrays else None
    if counts[0] != counts[1] or not counts[1]:
        raise UserError(f"{path}: {counts[0]} inputs and {counts[1]} targets; need as many of each, and some")
    if owners is not None and len(owners) != len(targets):
        raise UserError(f"{path}: {len(owners)} devices for {len(targets)} targets; need one for each")
    own_test = "test_inputs" in arrays
    if own_test != ("test_targets" in arrays):
        there, missing = ("test_inputs", "test_targets") if own_test else ("test_targets", "test_inputs")
        raise UserError(f"{path}: {there} without {missing}; need both or neither")
    kept, held, shards = _divided(len(targets), owners, devices, 0.0 if own_test else test, seed)
    judge = (arrays["test_inputs"], arrays["test_targets"]) if own_test else (inputs[held], targets[held])
    return _federated(path, (inputs[kept], targets[kept]), judge, shards)


def _divided(
    count: int, owners: Sequence[str] | None, devices: int, test: float, seed: int
) -> tuple[Array, Array, list[Tensor | Sequence[int]]]:
    """Which examples are trained on, which are kept to test on, and of the former those of each device."""
    if not 0 <= test < 1:
        raise UserError(f"test = {test}: the share to test on; at least 0 and less than 1")
    if owners is None and not (isinstance(devices, int) and 1 <= devices <= count):
        raise UserError(
            f"devices = {devices}: there are {count} examples; need a whole number of devices, and an example for each"
        )
    random = np.random.default_rng(derive(seed, "files"))
    if owners is None:
        groups = np.array_split(random.permutation(count), devices)
    else:
        numbers = _numbered(owners)
        groups = [random.permutation(np.flatnonzero(numbers == one)) for one in range(int(numbers.max()) + 1)]
    cuts = [min(round(test * len(group)), len(group) - 1) for group in groups]
    if test and not any(cuts):
        most = max(map(len, groups))
        raise UserError(
            f"test = {test}: keeps no example to test on, as no device has more than {most}; "
            "give a larger share, or fewer devices"
        )
    held = np.sort(np.concatenate([group[:cut] for group, cut in zip(groups, cuts, strict=True)]))
    kept = np.setdiff1d(np.arange(count), held)
    mine = (np.sort(group[cut:]) for group, cut in zip(groups, cuts, strict=True))
    return kept, held, [np.searchsorted(kept, one).tolist() for one in mine]


def _numbered(labels: Sequence[str]) -> Array:
    """Labels as 0, 1, ...: in the order of their numbers where they are numbers, else of the alphabet."""
    known = sorted(set(labels), key=lambda label: (0, int(label), label) if label.isdecimal() else (1, 0, label))
    places = {label: place for place, label in enumerate(known)}
    return np.array([places[label] for label in labels])


def _whole(path: str | Path, names: Sequence[str], rows: Sequence[tuple[int, dict[Any, Any]]]) -> None:
    """Refuses columns of the same name, of which one would be lost, and rows with a value too few or too many."""
    for name, many in Counter(names).items():
        if many > 1:
            raise UserError(f"{path}, line 1: {many} columns are named {name!r}; each needs its own name")
    for line, row in rows:
        if None in row:
            many = len(names) + len(row[None])
            raise UserError(f"{path}, line {line}: {many} values for {len(names)} columns; {row[None][0]!r} is in none")
        short = [name for name in names if row[name] is None]
        if short:
            many = len(names) - len(short)
            raise UserError(f"{path}, line {line}: {many} values for {len(names)} columns; none is left for {short[0]}")


def _label(path: str | Path, line: int, row: dict[str, str], name: str, what: str) -> str:
    if not row[name].strip():
        raise UserError(f"{path}, line {line}: {name} = {row[name]!r} is empty; every row needs a {what}")
    return row[name]


def _number(path: str | Path, line: int, row: dict[str, str], name: str) -> float:
    try:
        value = float(row[name])
    except (TypeError, ValueError):
        value = np.nan
    if not np.isfinite(value):
        raise UserError(f"{path}, line {line}: {name} = {row[name]!r} is not a number")
    return value


def _owner(device: Callable[[Path], str], file: Path) -> str:
    if (owner := device(file)) is None:
        raise UserError(f"device gives None for {file}: every image needs an owner")
    return str(owner)


def _is_size(size: object) -> bool:
    if not isinstance(size, tuple | list) or len(size) != 2:
        return False
    return all(isinstance(one, int | np.integer) and one >= 1 for one in size)


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in IMAGES


def _image(file: Path, size: tuple[int, int] | None, grey: bool) -> Array:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as image:
            plain = image.convert("L" if grey else "RGB")
            pixels = np.asarray(plain if size is None else plain.resize((size[1], size[0])))
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise UserError(f"{file}: not an image that can be read: {error}") from None
    return pixels[None] if grey else pixels.transpose(2, 0, 1)


def _stacked(images: Sequence[Array], files: Sequence[Path]) -> Array:
    for image, file in zip(images, files, strict=True):
        if image.shape != images[0].shape:
            raise UserError(
                f"{file}: {image.shape[2]}x{image.shape[1]} pixels, and {files[0]} has {images[0].shape[2]}x"
                f"{images[0].shape[1]}: give a size to scale all of them to"
            )
    return np.stack(images)


def _federated(
    path: str | Path, train: Pair, test: Pair, shards: Sequence[Tensor | Sequence[int]], classes: int | None = None
) -> FederatedData:
    """Under the name of their file, which a message about them begins with."""
    try:
        data = FederatedData.of(train, test, shards, classes)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return replace(data, name=Path(path).name)
