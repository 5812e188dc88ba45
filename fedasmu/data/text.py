"""From words to numbers: tokens, a vocabulary, rows of equal length, and GloVe vectors for the words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from fedasmu.data.description import TextOptions
from fedasmu.data.errors import DataError
from fedasmu.data.reading import Array

PADDING, UNKNOWN = 0, 1
_SPECIAL = ("<pad>", "<unk>")  # no token has angle brackets, so these cannot be words
_WORD = re.compile(r"[^\W_]+")


def tokens(text: str) -> list[str]:
    """Lower-case runs of letters and digits, without the line breaks that are HTML."""
    return _WORD.findall(text.replace("<br />", " ").lower())


def vocabulary(texts: Iterable[Sequence[str]], size: int) -> tuple[str, ...]:
    """The most frequent words, most frequent first; equally frequent ones in the order of the alphabet."""
    counts: Counter[str] = Counter()
    for words in texts:
        counts.update(words)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return (*_SPECIAL, *ranked[: size - len(_SPECIAL)])


def check_options(options: TextOptions) -> None:
    if options.vocabulary < len(_SPECIAL) + 1:
        raise DataError(f"vocabulary = {options.vocabulary} is not allowed: it must be at least {len(_SPECIAL) + 1}")
    if options.length < 1:
        raise DataError(f"length = {options.length} is not allowed: it must be at least 1")
    for name, value in (("padding", options.padding), ("truncation", options.truncation)):
        if value not in ("pre", "post"):
            raise DataError(f"{name} = {value!r} is not allowed: it may be pre or post")


def encode(texts: Iterable[Sequence[str]], words: Sequence[str], options: TextOptions, rows: Array) -> None:
    """Fill `rows`, one a text, with the numbers of its words."""
    number = {word: at for at, word in enumerate(words)}
    for row, text in zip(rows, texts, strict=True):
        kept = text[-options.length :] if options.truncation == "pre" else text[: options.length]
        numbers = [number.get(word, UNKNOWN) for word in kept]
        row[:] = PADDING
        if options.padding == "pre":
            row[len(row) - len(numbers) :] = numbers
        else:
            row[: len(numbers)] = numbers


def glove(path: Path, words: Sequence[str]) -> Array:
    """The vectors of `words` from a file of lines `word number number ...`, as (words, width) float32.

    A word that the file lacks gets random numbers of the same spread, always the same ones; padding gets zeros.
    """
    number = {word: at for at, word in enumerate(words)}
    rows: dict[int, Array] = {}
    width = 0
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            for at, line in enumerate(file, start=1):
                width = width or line.count(" ")
                word = line.rstrip("\n").rsplit(" ", width)[0]
                if word in number and number[word] not in rows:
                    rows[number[word]] = _vector(path, at, line, width)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if not rows:
        raise DataError(f"{path} has a vector for none of the words: expected lines of a word and its numbers")
    found = np.stack(list(rows.values()))
    matrix = np.random.default_rng(0).normal(0, found.std(), (len(words), width)).astype(np.float32)
    matrix[list(rows)] = found
    matrix[PADDING] = 0
    return matrix


def _vector(path: Path, at: int, line: str, width: int) -> Array:
    try:
        vector = np.array(line.split(" ")[-width:], dtype=np.float32)
    except ValueError:
        raise DataError(f"{path}, line {at}: expected a word and {width} numbers") from None
    if len(vector) != width or not np.isfinite(vector).all():
        raise DataError(f"{path}, line {at}: expected a word and {width} numbers")
    return vector
