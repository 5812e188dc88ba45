"""The data sets that can be loaded by name. Adding one is an entry here and, for a new format, a reader."""

from __future__ import annotations

from fedasmu.data.description import Description, Download, Upstream
from fedasmu.data.mnist import FASHION_MNIST, FASHION_MNIST_SMALL, MNIST, MNIST_WRITERS

_CIFAR_10_BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
_CIFAR_10_PICKLES = (
    "c99cafc152244af753f735de768cd75f",
    "d4bba439e000b95fd0a9bffe97cbabec",
    "54ebc095f3ab1f0389bbae665268c751",
    "634d18415352ddfa80567beed471001a",
    "482c414d41f54cd18b22e5b47cb7c3cb",
    "40351d587109b95175f43aff81a1287e",
)

CIFAR_10 = Description(
    name="cifar-10",
    summary="objects, 32x32 colour",
    classes=10,
    train=50_000,
    test=10_000,
    shape=(3, 32, 32),
    reader="cifar",
    parts=(
        (
            Upstream(
                kind="binary",
                folders=("cifar-10-batches-bin",),
                files=tuple(f"{batch}.bin" for batch in _CIFAR_10_BATCHES),
                downloads=(
                    Download(
                        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"
                    ),
                ),
            ),
            Upstream("python", ("cifar-10-batches-py",), _CIFAR_10_BATCHES, published=_CIFAR_10_PICKLES),
        ),
    ),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
)

_CIFAR_100_PICKLES = ("16019d7e3df5f24257cddd939b257f8d", "f0ef6b0ae62326f3e7ffdfab6717acfc")

CIFAR_100 = Description(
    name="cifar-100",
    summary="objects, 32x32 colour",
    classes=100,
    train=50_000,
    test=10_000,
    shape=(3, 32, 32),
    reader="cifar",
    parts=(
        (
            Upstream(
                kind="binary",
                folders=("cifar-100-binary",),
                files=("train.bin", "test.bin"),
                downloads=(
                    Download(
                        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"
                    ),
                ),
            ),
            Upstream("python", ("cifar-100-python",), ("train", "test"), published=_CIFAR_100_PICKLES),
        ),
    ),
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
)

TINY_IMAGENET = Description(
    name="tiny-imagenet",
    summary="objects, 64x64 colour",
    classes=200,
    train=100_000,
    test=10_000,
    shape=(3, 64, 64),
    reader="tiny_imagenet",
    parts=(
        (
            Upstream(
                kind="folders",
                folders=("tiny-imagenet-200",),
                files=("wnids.txt", "train/", "val/images/", "val/val_annotations.txt"),
                downloads=(
                    Download("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"),
                ),
            ),
        ),
    ),
    mean=(0.4802, 0.4481, 0.3975),
    std=(0.2770, 0.2691, 0.2821),
    cached=True,
)

IMDB = Description(
    name="imdb",
    summary="film reviews, for or against",
    classes=2,
    train=25_000,
    test=25_000,
    shape=(500,),
    reader="imdb",
    parts=(
        (
            Upstream(
                kind="folders",
                folders=("aclImdb",),
                files=("train/neg/", "train/pos/", "test/neg/", "test/pos/"),
                downloads=(
                    Download(
                        "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
                        "7c2ac02c03563afcf9b574c7e56c153a",
                    ),
                ),
            ),
        ),
    ),
    cached=True,
    text=True,
)

_HAR_SIGNALS = tuple(f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")

UCI_HAR = Description(
    name="uci-har",
    summary="movements of 30 people, 2.56 s of 9 phone sensors",
    classes=6,
    train=7_352,
    test=2_947,
    shape=(9, 128),
    reader="har",
    parts=(
        (
            Upstream(
                kind="text",
                folders=("UCI HAR Dataset", "uci-har"),
                files=tuple(
                    f"{split}/{file}_{split}.txt"
                    for split in ("train", "test")
                    for file in (*(f"Inertial Signals/{signal}" for signal in _HAR_SIGNALS), "y", "subject")
                ),
                downloads=(
                    Download(
                        "https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip",
                        "c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031",
                    ),
                ),
            ),
        ),
    ),
    cached=True,
    natural_users=True,
    overlapping=True,
)

DATASETS: tuple[Description, ...] = (
    FASHION_MNIST,
    FASHION_MNIST_SMALL,
    MNIST,
    MNIST_WRITERS,
    CIFAR_10,
    CIFAR_100,
    TINY_IMAGENET,
    IMDB,
    UCI_HAR,
)
