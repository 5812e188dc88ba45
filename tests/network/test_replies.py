"""Frames as replies: in pieces, from any byte on, without a copy of the model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedasmu.network import replies, wire
from fedasmu.network.replies import Framed, pieces
from fedasmu.protocol import Model, Task

BUFFERS: wire.Buffers = [b"abc", memoryview(b"defgh"), b"", b"ij"]


@pytest.mark.parametrize("piece", [1, 2, 4, 100])
@pytest.mark.parametrize("first", range(11))
def test_the_pieces_are_the_whole_from_the_first_byte_on(
    monkeypatch: pytest.MonkeyPatch, piece: int, first: int
) -> None:
    monkeypatch.setattr(replies, "PIECE", piece)
    found = list(pieces(BUFFERS, first))
    assert b"".join(found) == b"abcdefghij"[first:]
    assert all(0 < len(one) <= piece for one in found)


def test_a_reply_says_which_bytes_it_has() -> None:
    whole, rest = Framed(BUFFERS, headers={"ETag": '"x"'}), Framed(BUFFERS, 4)
    assert (whole.status_code, whole.headers["content-length"], whole.headers["etag"]) == (200, "10", '"x"')
    assert "content-range" not in whole.headers
    assert (rest.status_code, rest.headers["content-length"]) == (206, "6")
    assert rest.headers["content-range"] == "bytes 4-9/10"
    assert whole.headers["content-type"] == rest.headers["content-type"] == "application/x-fedasmu"


def test_a_models_bytes_are_not_copied_and_a_notes_are() -> None:
    """A model is never written to. What a method keeps for itself may be, while it is on its way."""
    model, mask = Model(3, torch.arange(6.0)), torch.ones(2)
    _, vector, noted = wire.task_frame(Task(0, 0, model, 0.1, 7, {"mask": mask}))
    assert np.shares_memory(np.frombuffer(vector, np.uint8), model.vector.numpy())
    mask.zero_()
    assert np.frombuffer(noted, np.float32).tolist() == [1.0, 1.0]
