"""IMDb reviews, one text file each in {train,test}/{neg,pos} (Maas et al., ACL 2011). unsup has no labels: not read."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedasmu.data.errors import DataError
from fedasmu.data.progress import Advance
from fedasmu.data.reading import Arrays, Reading
from fedasmu.data.text import check_options, encode, tokens, vocabulary


def read(reading: Reading) -> Arrays:
    description, options, root = reading.description, reading.text, reading.found[0].folder
    check_options(options)
    with reading.progress.bar("reading imdb", description.train + description.test) as advance:
        train = _reviews(root / "train", description.train, advance)
        test = _reviews(root / "test", description.test, advance)
    words = vocabulary(train, options.vocabulary)  # of the training reviews alone
    train_inputs = reading.new_array("train_inputs", (len(train), options.length), np.int32)
    test_inputs = reading.new_array("test_inputs", (len(test), options.length), np.int32)
    encode(train, words, options, train_inputs)
    encode(test, words, options, test_inputs)
    train_targets, test_targets = (np.repeat([0, 1], len(texts) // 2) for texts in (train, test))
    return Arrays(train_inputs, train_targets, test_inputs, test_targets, words=words)


def _reviews(folder: Path, count: int, advance: Advance) -> list[list[str]]:
    """The words of each review: first all those against, then all those for. The same word is one object in all."""
    texts, known = [], dict[str, str]()
    for name in ("neg", "pos"):
        files = sorted((folder / name).glob("*.txt"))
        if len(files) != count // 2:
            raise DataError(f"{folder / name} has {len(files)} reviews: expected {count // 2}")
        for file in files:
            texts.append([known.setdefault(word, word) for word in _words(file)])
            advance()
    return texts


def _words(file: Path) -> list[str]:
    try:
        words = tokens(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read as text: {error}") from None
    if not words:
        raise DataError(f"{file} is an empty review")
    return words
