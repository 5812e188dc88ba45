"""MNIST, with its writers too, and Fashion-MNIST, which has its form: four files of 28x28 grey images and labels."""

from __future__ import annotations

from dataclasses import replace

from fedasmu.data.description import Description, Download, Upstream

_IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_COMPRESSED = ("", ".gz", ".xz")


def _idx(folders: tuple[str, ...], address: str, compressed: tuple[str, ...], contents: tuple[str, ...]) -> Upstream:
    downloads = (Download(f"{address}/{file}.gz", one) for file, one in zip(_IDX_FILES, compressed, strict=True))
    return Upstream("idx", folders, _IDX_FILES, tuple(downloads), _COMPRESSED, contents)


FASHION_MNIST = Description(
    name="fashion-mnist",
    summary="clothing, 28x28 grey",
    classes=10,
    train=60_000,
    test=10_000,
    shape=(1, 28, 28),
    reader="idx",
    parts=(
        (
            _idx(
                ("fashion-mnist", "FashionMNIST/raw", "FashionMNIST", "fashion_mnist"),
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
                (
                    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                    "25c81989df183df01b3e8a0aad5dffbe",
                    "bef4ecab320f06d8554ea6380940ec79",
                    "bb300cfdad3c16e7a12a480ee83cd310",
                ),
                (
                    "f4a8712d7a061bf5bd6d2ca38dc4d50a",
                    "9018921c3c673c538a1fc5bad174d6f9",
                    "8181f5470baa50b63fa0f6fddb340f0a",
                    "15d484375f8d13e6eb1aabb0c3f46965",
                ),
            ),
        ),
    ),
    mean=(0.2860,),
    std=(0.3530,),
    first_targets=(9, 0, 0, 3, 0, 2, 7, 2, 5, 5),
)

FASHION_MNIST_SMALL = replace(
    FASHION_MNIST,
    name="fashion-mnist-small",
    summary="a balanced sixth of Fashion-MNIST, comes with the package",
    train=10_000,
    test=2_000,
    parts=((Upstream("idx", (), _IDX_FILES, suffixes=_COMPRESSED),),),
    embedded=True,
)

_MNIST_FILES = _idx(
    ("mnist", "MNIST/raw", "MNIST"),
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    (
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    (
        "6bbc9ace898e44ae57da46a324031adb",
        "a25bea736e30d166cdddb491f175f624",
        "2646ac647ad5339dbf082846283269ea",
        "27ae3e4e09519cfbb04c329615203637",
    ),
)

MNIST = Description(
    name="mnist",
    summary="handwritten digits, 28x28 grey",
    classes=10,
    train=60_000,
    test=10_000,
    shape=(1, 28, 28),
    reader="idx",
    parts=((_MNIST_FILES,),),
    mean=(0.1307,),
    std=(0.3081,),
    first_targets=(5, 0, 4, 1, 9, 2, 1, 3, 1, 4),
)

_QMNIST_FILES = Upstream(
    kind="idx",
    folders=("qmnist", "QMNIST/raw", "QMNIST", "mnist", "MNIST/raw", "MNIST"),
    files=("qmnist-train-labels-idx2-int",),
    downloads=(
        Download(
            "https://raw.githubusercontent.com/facebookresearch/qmnist/master/qmnist-train-labels-idx2-int.gz",
            "0058f8dd561b90ffdd0f734c6a30e5e4",
        ),
    ),
    suffixes=_COMPRESSED,
)

MNIST_WRITERS = replace(
    MNIST,
    name="mnist-writers",
    summary="MNIST with the writer of each digit, from QMNIST",
    parts=((_MNIST_FILES,), (_QMNIST_FILES,)),
    natural_users=True,
)
