"""IMDb in upstream's folders, and how words become numbers."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedasmu.data import DataError, Description, TextOptions, describe, load
from fedasmu.data.text import glove, tokens, vocabulary

REVIEWS = {
    "train/neg": ["A bad, bad film.<br /><br />Don't!", "bad plot; the end"],
    "train/pos": ["A GOOD film", "the good, the film_noir, 10/10"],
    "test/neg": ["unheard-of: bad", "a"],
    "test/pos": ["good good good", "the film"],
}
SMALL = TextOptions(vocabulary=8, length=5)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def small() -> Description:
    return replace(describe("imdb"), train=4, test=4)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, reviews in REVIEWS.items():
        (tmp_path / "aclImdb" / name).mkdir(parents=True)
        for at, review in enumerate(reviews):
            (tmp_path / "aclImdb" / name / f"{at}_{9 if 'pos' in name else 2}.txt").write_text(review, encoding="utf-8")
    (tmp_path / "aclImdb/train/unsup").mkdir()
    (tmp_path / "aclImdb/train/unsup/0_0.txt").write_text("unsup unsup unsup unsup unsup")
    return tmp_path


def test_tokens() -> None:
    assert tokens("A bad,<br />BAD film_noir: don't! Café 10/10") == [
        *("a", "bad", "bad", "film", "noir", "don", "t", "café", "10", "10"),
    ]
    assert tokens(" <br /> ... ") == []


def test_vocabulary_is_by_frequency_then_alphabet() -> None:
    assert vocabulary([["b", "a", "c"], ["c", "b"], ["d"]], 5) == ("<pad>", "<unk>", "b", "c", "a")


def test_words_and_numbers(folder: Path) -> None:
    data = load(small(), folder, text=SMALL)
    # bad, film and the: 3 times; a and good: twice; the rest once, of which 10 comes twice in one review
    assert data.words == ("<pad>", "<unk>", "bad", "film", "the", "10", "a", "good")
    assert data.train.targets.tolist() == [0, 0, 1, 1]
    assert data.train.inputs.tolist() == [
        [2, 2, 3, 1, 1],  # its first word is cut off: the end is kept
        [0, 2, 1, 4, 1],
        [0, 0, 6, 7, 3],
        [4, 3, 1, 5, 5],
    ]
    assert data.test.inputs.tolist()[0] == [0, 0, 1, 1, 2]  # the words of the test set are not in the vocabulary
    assert (data.train.inputs.dtype, data.shape, data.classes) == (torch.int32, (5,), 2)
    assert data.train.batch(slice(0, 2))[0].dtype == torch.int64  # as any network takes them
    assert data.train.batch(torch.tensor([1]))[0].tolist() == [[0, 2, 1, 4, 1]]


def test_the_memory_of_decoding_does_not_grow_by_a_string_for_every_word(tmp_path: Path) -> None:
    """200,000 words: their strings alone would be 10 MB and more."""
    for name in REVIEWS:
        (tmp_path / "aclImdb" / name).mkdir(parents=True)
        for at in range(10):
            (tmp_path / "aclImdb" / name / f"{at}_1.txt").write_text("word and another " * 1667)
    tracemalloc.start()
    try:
        load(replace(small(), train=20, test=20), tmp_path, text=SMALL)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6e6


def test_padding_and_truncation_after(folder: Path) -> None:
    data = load(small(), folder, text=replace(SMALL, padding="post", truncation="post"))
    assert data.train.inputs.tolist()[:2] == [[6, 2, 2, 3, 1], [2, 1, 4, 1, 0]]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("test/pos/1_9.txt", b"", "is an empty review"),
        ("train/neg/0_2.txt", b" <br /> ... ", "is an empty review"),
        ("train/neg/0_2.txt", b"\xff\xfe bad", "cannot be read as text"),
    ],
)
def test_a_bad_review_is_named(folder: Path, file: str, content: bytes, message: str) -> None:
    path = folder / "aclImdb" / file
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        load(small(), folder, text=SMALL)
    assert str(path) in str(error.value)


def test_a_missing_review_is_counted(folder: Path) -> None:
    (folder / "aclImdb/test/pos/0_9.txt").unlink()
    with pytest.raises(DataError, match="pos has 1 reviews: expected 2"):
        load(small(), folder, text=SMALL)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (TextOptions(vocabulary=2), "vocabulary = 2"),
        (TextOptions(length=0), "length = 0"),
        (TextOptions(padding="left"), "padding = 'left'"),  # type: ignore[arg-type]
        (TextOptions(truncation=""), "truncation = ''"),  # type: ignore[arg-type]
    ],
)
def test_bad_options(folder: Path, options: TextOptions, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(small(), folder, text=options)


def test_glove_vectors_are_in_the_order_of_the_vocabulary(folder: Path, tmp_path: Path) -> None:
    vectors = tmp_path / "glove.txt"
    vectors.write_text("good 1.5 -2 0\nnobody 9 9 9\n. . 1 1 1\nbad 0.5 0 1\n", encoding="utf-8")
    data = load(small(), folder, text=replace(SMALL, glove=str(vectors)))
    assert data.vectors is not None
    assert data.vectors.shape == (8, 3)
    assert data.vectors[data.words.index("good")].tolist() == [1.5, -2, 0]
    assert data.vectors[data.words.index("bad")].tolist() == [0.5, 0, 1]
    assert data.vectors[0].tolist() == [0, 0, 0]
    assert data.vectors[data.words.index("film")].abs().sum() > 0
    again = glove(vectors, data.words)
    assert np.array_equal(again, data.vectors.numpy())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"nobody 1 2 3\n", "none of the words"),
        (b"", "none of the words"),
        (b"the 1 2 3\nbad 1 x 3\n", "line 2: expected a word and 3 numbers"),
        (b"the 1 2 nan\n", "line 1: expected a word and 3 numbers"),
        (b"\xff\xff 1 2\n", "cannot be read"),
    ],
)
def test_bad_glove_files(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "glove.txt"
    file.write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        glove(file, ("<pad>", "<unk>", "the", "bad"))
    assert str(file) in str(error.value)


def test_a_missing_glove_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.txt cannot be read"):
        glove(tmp_path / "nowhere.txt", ("<pad>", "<unk>", "the"))
