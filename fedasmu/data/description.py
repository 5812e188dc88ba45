"""What is known of a data set before it is read: names, numbers, files, upstream addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Download:
    """One upstream file: kept as it is, or unpacked when it is an archive."""

    url: str
    checksum: str  # md5 or sha256 in hexadecimal, as its length tells

    @property
    def file(self) -> str:
        return self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Upstream:
    """One way in which upstream lays out its files."""

    kind: str
    folders: tuple[str, ...]  # the usual names of the folder that holds the files; the first is used for downloads
    # What must be there; with a slash at its end, a folder, where upstream has a file an example.
    files: tuple[str, ...]
    downloads: tuple[Download, ...] = ()
    suffixes: tuple[str, ...] = ("",)  # of compressed files that the reader takes as well
    published: tuple[str, ...] = ()  # the md5 of each of the files, where upstream tells it

    def checksum(self, file: str) -> str:
        """What upstream says of this file, as it is or compressed; empty where it says nothing."""
        known = dict(zip(self.files, self.published, strict=False))
        return {download.file: download.checksum for download in self.downloads}.get(file, known.get(file, ""))


@dataclass(frozen=True)
class TextOptions:
    """How reviews become rows of word numbers. The defaults keep the end of a long review, as Keras does."""

    vocabulary: int = 10_000  # numbers, with 0 for padding and 1 for every other word
    length: int = 500
    padding: Literal["pre", "post"] = "pre"
    truncation: Literal["pre", "post"] = "pre"
    glove: str | None = None  # a local file of GloVe vectors for the words of the vocabulary


@dataclass(frozen=True)
class Description:
    """One data set. `parts` are what must be found of it, each as one of several layouts, best first."""

    name: str
    summary: str
    classes: int
    train: int  # examples, as upstream divides them
    test: int
    shape: tuple[int, ...]  # of one input
    reader: str  # the module of this package whose `read` decodes the files
    parts: tuple[tuple[Upstream, ...], ...]
    mean: tuple[float, ...] = ()  # of pixels in [0, 1], channel by channel
    std: tuple[float, ...] = ()
    first_targets: tuple[int, ...] = ()  # tells data sets apart whose files have the same names
    embedded: bool = False  # comes with the package
    cached: bool = False  # decoding is slow enough to keep its result
    text: bool = False
    natural_users: bool = False
    overlapping: bool = False  # each example has a part of its user's one before it
