"""The codec: every word comes back, each tensor is stored once, and nothing foreign is made of a text."""

from __future__ import annotations

import gc
import json
import weakref
from typing import Any

import pytest
import torch

from fedasmu.encoding import codec
from fedasmu.models.contrast import Contrast
from fedasmu.protocol import (
    Evaluate,
    Evaluated,
    Fetch,
    Model,
    Poll,
    Probe,
    Probed,
    Report,
    Task,
    Train,
    Trained,
    Upload,
)
from fedasmu.storage.failure import COMPUTATIONS

VECTOR = torch.tensor([1.0, -2.0])
MODEL = Model(3, VECTOR)
NOTE: dict[Any, Any] = {"slot": 2, 7: "seven", "gradient": VECTOR}
REPORT = Report(VECTOR, 10, float("nan"), NOTE)
WORDS = [
    MODEL,
    Task(1, 2, MODEL, 0.1, 2**63, {"mask": torch.tensor([True, False])}, 0.5),
    REPORT,
    Upload(1, 2, MODEL, None, 4, REPORT, 0.1),
    Train(VECTOR, range(2, 9), 0.1, mask=VECTOR, objective=Contrast(VECTOR, VECTOR, 1.0, 0.5)),
    Trained(VECTOR, 1.5),
    Probe(VECTOR, 3, gradient=True, between=(VECTOR, VECTOR + 1)),
    Probed(1.0, VECTOR),
    Evaluate(VECTOR),
    Evaluated(0.5, 1),
    Fetch(),
    Poll(),
]


@pytest.mark.parametrize("word", WORDS, ids=lambda word: type(word).__name__)
def test_every_word_comes_back(word: Any) -> None:
    text, tensors = codec.pack(word, COMPUTATIONS)
    again = codec.unpack(text, tensors, COMPUTATIONS)
    assert type(again) is type(word)
    assert repr(again) == repr(word)


def test_all_words_are_tried() -> None:
    assert {type(word).__name__ for word in WORDS} == set(codec.WORDS)


def test_a_tensor_is_stored_once_however_many_words_hold_it() -> None:
    _, tensors = codec.pack(WORDS[:4])
    assert len(tensors) == 2  # the vector, and the task's mask


def test_what_is_not_a_word_is_not_packed() -> None:
    for value in (object(), torch.nn.Linear(1, 1), Contrast(VECTOR, VECTOR, 1.0, 0.5)):
        with pytest.raises(TypeError):
            codec.pack({"value": value})


MALFORMED: dict[str, Any] = {
    "not one of ours": {"$word": "system", "command": "ls"},
    "a path of code": {"$word": "os:system"},
    "no name": {"$word": ["Train"]},
    "a field too few": {"$word": "Evaluated", "loss": 1.0},
    "a field too many": {"$word": "Fetch", "loss": 1.0},
    "a hidden field": {"$word": "Model", "version": 1, "vector": {"$tensor": "0"}, "_writes": 9},
    "a wrong type": {"$word": "Model", "version": "1", "vector": {"$tensor": "0"}},
    "a truth for a number": {"$word": "Model", "version": True, "vector": {"$tensor": "0"}},
    "a number for a vector": {"$word": "Model", "version": 1, "vector": 3},
    "a dict for a word": {
        "$word": "Task",
        "id": 1,
        "device": 1,
        "model": {},
        "lr": 0.1,
        "seed": 0,
        "note": {},
        "share": 1,
    },
    "a tensor that is not there": {"$tensor": "1"},
    "a tensor by a list": {"$tensor": ["0"]},
    "two marks": {"$tensor": "0", "$tuple": []},
    "a mark and a key": {"$tensor": "0", "more": 1},
    "an unknown mark": {"$set": [1]},
    "a tuple of nothing": {"$tuple": None},
    "items that are none": {"$items": 3},
    "an item of three": {"$items": [[1, 2, 3]]},
    "an item that is no pair": {"$items": ["ab"]},
    "a key that is a list": {"$items": [[[1], 2]]},
    "a range of text": {"$range": ["0", "1", "1"]},
    "a range of two": {"$range": [0, 1]},
    "a range that stands still": {"$range": [0, 1, 0]},
    "a number in words": {"$float": "one"},
}


@pytest.mark.parametrize("tree", MALFORMED.values(), ids=MALFORMED.keys())
def test_whatever_is_malformed_is_a_value_error(tree: Any) -> None:
    for wrapped in (tree, {"in": [tree]}, {"$tuple": [tree]}):
        with pytest.raises(ValueError):
            codec.unpack(json.dumps(wrapped).encode(), {"0": VECTOR})


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[" * 10**5, b'{"$tuple":[' * 10**4 + b"]}" * 10**4])
def test_text_that_is_no_tree_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError):
        codec.unpack(text, {})


def test_nothing_that_was_written_or_read_stays_behind() -> None:
    """A server saves every half minute: what a checkpoint saw goes at once, not when Python looks for circles."""
    gc.disable()
    try:
        tensor = torch.ones(4)
        gone = weakref.ref(tensor)
        text, tensors = codec.pack({"model": Model(1, tensor), "pair": (tensor, tensor), 3: tensor})
        assert torch.equal(codec.unpack(text, tensors)["pair"][0], tensor)
        del tensor, tensors
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("hint", [int, float, bool, str, int | None, float | None, torch.Tensor | None, list[int], Any])
def test_what_certainly_fits_does(hint: Any) -> None:
    values: list[Any] = [1, 1.0, True, "1", None, VECTOR, [1]]
    assert all(codec.fits(value, hint) for value in values if type(value) in codec.certain(hint))
    assert codec.certain(float | None) == {float, int, type(None)}
