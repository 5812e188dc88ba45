"""IDX files as upstream writes them: MNIST, Fashion-MNIST, and QMNIST's table of writers."""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedasmu.data import DataError, load
from helpers.idx_files import TEST, TRAIN, idx, images, labels, small, write


@pytest.mark.parametrize(("pack", "suffix"), [(bytes, ""), (gzip.compress, ".gz"), (lzma.compress, ".xz")])
@pytest.mark.parametrize("name", ["fashion-mnist", "mnist"])
def test_plain_and_compressed(
    tmp_path: Path, name: str, pack: Callable[[bytes], bytes], suffix: str, recwarn: pytest.WarningsRecorder
) -> None:
    data = load(small(name), write(tmp_path, name, pack, suffix))
    assert (data.name, data.classes, data.shape) == (name, 10, (1, 28, 28))
    assert np.array_equal(data.train.inputs[:, 0].numpy(), images(TRAIN))
    assert np.array_equal(data.test.targets.numpy(), labels(name, TEST))
    assert data.train.targets.dtype == torch.int64
    assert data.users is None
    assert not recwarn.list  # torch warns of arrays that must not be written to


def test_the_network_sees_normalised_pixels(tmp_path: Path) -> None:
    data = load(small("fashion-mnist"), write(tmp_path, "fashion-mnist"))
    seen, targets = data.train.batch(torch.tensor([3, 5]))
    by_hand = (data.train.inputs[[3, 5]].double() / 255 - 0.2860) / 0.3530
    assert torch.allclose(seen.double(), by_hand, atol=1e-5)
    assert torch.equal(targets, data.train.targets[[3, 5]])


def damaged(folder: Path, file: str, change: Callable[[bytes], bytes]) -> None:
    path = folder / file
    path.write_bytes(change(path.read_bytes()))


IMAGES, LABELS = "train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
PLAIN_DAMAGE = {
    "empty": (IMAGES, lambda _: b"", "magic number is nothing"),
    "magic": (IMAGES, lambda old: b"\x1f\x8b\x08\x00" + old[4:], "magic number is 1f8b0800, not 00000803"),
    "labels for images": (IMAGES, lambda _: idx(labels("mnist", TRAIN)), "not 00000803"),
    "in the header": (IMAGES, lambda old: old[:10], "ends in its header"),
    "truncated": (IMAGES, lambda old: old[:-1], "fewer than the 47040 bytes"),
    "too long": (IMAGES, lambda old: old + b"x", "more than the 47040 bytes"),
    "count": (IMAGES, lambda _: idx(images(TRAIN - 1)), "59 x 28 x 28 numbers, expected 60 x 28 x 28"),
    "image size": (IMAGES, lambda _: idx(np.zeros((TRAIN, 32, 32), np.uint8)), "60 x 32 x 32"),
    "a huge claim": (IMAGES, lambda old: old[:4] + b"\x7f\xff\xff\xff" + old[8:], "2147483647 x 28 x 28"),
    "label count": (LABELS, lambda _: idx(labels("mnist", TEST + 1)), "21 numbers, expected 20"),
    "label range": (LABELS, lambda old: old[:-1] + b"\x0a", "has the label 10: expected 0 to 9"),
}


@pytest.mark.parametrize("case", PLAIN_DAMAGE)
def test_a_damaged_file_is_named(tmp_path: Path, case: str) -> None:
    file, change, message = PLAIN_DAMAGE[case]
    damaged(write(tmp_path, "mnist"), file, change)
    with pytest.raises(DataError) as error:
        load(small("mnist"), tmp_path)
    assert str(tmp_path / file) in str(error.value)
    assert message in str(error.value)


@pytest.mark.parametrize(("pack", "suffix"), [(gzip.compress, ".gz"), (lzma.compress, ".xz")])
@pytest.mark.parametrize(
    "change",
    [
        lambda old: old[: len(old) // 2],
        lambda old: old[:-4],
        lambda old: b"not compressed at all",
        lambda old: old[:100] + bytes(100) + old[200:],
        lambda old: b"",
    ],
)
def test_a_damaged_compressed_file_is_named(
    tmp_path: Path, pack: Callable[[bytes], bytes], suffix: str, change: Callable[[bytes], bytes]
) -> None:
    damaged(write(tmp_path, "mnist", pack, suffix), IMAGES + suffix, change)
    with pytest.raises(DataError, match=IMAGES):
        load(small("mnist"), tmp_path)


def test_mnist_is_not_taken_for_fashion_mnist(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is of another data set"):
        load(small("fashion-mnist"), write(tmp_path, "mnist"))


def writers_table() -> np.ndarray:
    """Label, series, writer, number, class of NIST, index, and two that are not used."""
    table = np.zeros((TRAIN, 8), np.int32)
    table[:, 0] = labels("mnist", TRAIN)
    table[:, 2] = 2_000 + np.arange(TRAIN) // 7
    return table


@pytest.mark.parametrize("folder", ["", "qmnist"])
def test_writers(tmp_path: Path, folder: str) -> None:
    write(tmp_path, "mnist")
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / "qmnist-train-labels-idx2-int.gz").write_bytes(gzip.compress(idx(writers_table())))
    data = load(small("mnist-writers"), tmp_path)
    assert data.users is not None
    assert data.users.tolist() == [2_000 + at // 7 for at in range(TRAIN)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table[:, [1, 0, 2, 3, 4, 5, 6, 7]], "its labels are not those of MNIST"),
        (lambda table: table[:, :5], "60 x 5 numbers, expected 60 x 8"),
        (lambda table: table.astype(np.uint8), "magic number"),
    ],
)
def test_wrong_writers(tmp_path: Path, change: Callable[[np.ndarray], np.ndarray], message: str) -> None:
    write(tmp_path, "mnist")
    (tmp_path / "qmnist-train-labels-idx2-int").write_bytes(idx(np.ascontiguousarray(change(writers_table()))))
    with pytest.raises(DataError, match=message):
        load(small("mnist-writers"), tmp_path)
