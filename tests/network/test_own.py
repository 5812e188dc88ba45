"""A device's own examples: asked for before each task, texts among them, with the server's words. Real sockets."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch

from fedasmu import Result
from fedasmu.data.description import TextOptions
from fedasmu.data.examples import Examples
from fedasmu.data.federated import FederatedData
from fedasmu.data.text import encode, tokens, vocabulary
from fedasmu.errors import UserError
from fedasmu.network.own import Own
from fedasmu.network.terms import Text
from fedasmu.network.vocabulary import read, written
from helpers.federation import Federation
from helpers.served import eventually

TEXTS = ["A good film.", "A bad film", "good, good acting", "bad<br />bad acting", "so good", "so bad"] * 5
TARGETS = torch.tensor([1, 0, 1, 0, 1, 0] * 5)
LENGTH = 6


def reviews() -> FederatedData:
    """Three devices with ten short texts each, as the server has them: as numbers of its words."""
    split = [tokens(text) for text in TEXTS]
    words = vocabulary(split, 20)
    rows = np.zeros((len(TEXTS), LENGTH), np.int64)
    encode(split, words, TextOptions(len(words), LENGTH), rows)
    examples = Examples(torch.from_numpy(rows), TARGETS)
    return FederatedData("reviews", examples, examples, [torch.arange(n, 30, 3) for n in range(3)], 2, words=words)


class Texts(Federation):
    reading = MappingProxyType({"length": LENGTH})


def text_federation(folder: Path, **changes: Any) -> Federation:
    model = {"name": "textcnn", "embedding": 4}
    return Texts(folder, reviews(), factory=None, model=model, **changes)


def test_devices_with_texts_get_the_servers_words(tmp_path: Path) -> None:
    federation = text_federation(tmp_path, stop={"uploads": 9})
    federation.start()
    for number in range(3):
        own = [TEXTS[place] for place in federation.data.shards[number]], TARGETS[federation.data.shards[number]]
        federation.device(number, data=lambda own=own: own, model=None).join()
    for device in federation.devices:
        told = device.membership.equipment.trainer.data.train.inputs
        assert torch.equal(told, federation.data.train.inputs[federation.data.shards[device.client.device]])
        federation.work(device)
    federation.wait()
    assert Result(federation.path).summary["uploads"] >= 9
    kept = list((federation.states / "0").glob("vocabulary-*.json"))
    assert [path.read_bytes() for path in kept] == [written(federation.data.words)[1]]


@pytest.mark.parametrize(
    ("words", "inputs"),
    [
        ("texts, or numbers of the run's words", torch.full((4, LENGTH), 99)),
        ("texts, or numbers of the run's words", torch.zeros(4, LENGTH)),
        ("shape", torch.zeros(4, 9, dtype=torch.int64)),
    ],
)
def test_what_is_no_text_is_said_to_be_none(tmp_path: Path, words: str, inputs: torch.Tensor) -> None:
    federation = text_federation(tmp_path)
    federation.start()
    with pytest.raises(UserError, match=words):
        federation.device(0, data=lambda: (inputs, torch.zeros(4).long()), model=None).run()
    federation.stop()


def test_texts_where_none_are_trained_on(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.start()
    with pytest.raises(UserError, match="the inputs are texts, but this run is not trained on texts"):
        federation.device(0, data=lambda: (["a", "b"], [0, 1])).run()
    federation.stop()


def test_words_are_those_that_were_promised() -> None:
    digest, data = written(["<pad>", "<unk>", "größe"])
    assert read(data, digest) == ["<pad>", "<unk>", "größe"]
    for wrong in (data[:-1], b"", b"[]", b'{"a": 1}', data + b" "):
        with pytest.raises(ValueError, match="promised"):
            read(wrong, digest)


def test_new_examples_are_announced_before_the_next_task(tmp_path: Path) -> None:
    federation = Federation(tmp_path, stop={"uploads": 6}, network={"gather": 0.0})
    federation.start()
    train, shard = federation.data.train, federation.data.shards[0]
    asked: list[int] = []

    def data() -> Any:
        """Twenty examples, and one more from the third task on."""
        asked.append(len(shard) - (len(asked) < 3))
        return train.inputs[shard[: asked[-1]]], train.targets[shard[: asked[-1]]]

    device = federation.device(0, data=data)
    device.join()
    roster = federation.serving.coordinator.acts.roster
    assert roster[0].examples == len(shard) - 1
    federation.work(device)
    assert eventually(lambda: roster[0].examples == len(shard), 60)
    federation.wait()
    (seat,) = federation.folder.register.all()
    assert seat.examples == len(shard), "what `fedasmu keys list` shows"
    assert len(asked) > 6


def test_a_file_is_read_again_only_when_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    np.savez(path, inputs=np.array(["a film", "b"]), targets=np.array([0, 1]))
    own = Own(str(path))
    assert (own.inputs, own.targets.tolist()) == (["a film", "b"], [0, 1])
    assert not own.renew()
    np.savez(path, inputs=np.array(["a film", "b", "c"]), targets=np.array([0, 1, 1]))
    assert own.renew()
    assert len(own) == 3
    text = Text(vocabulary="0" * 64, length=3, padding="pre", truncation="pre")
    assert own.tensors(text, ["<pad>", "<unk>", "film"])[0].tolist() == [[0, 1, 2], [0, 0, 1], [0, 0, 1]]


def test_a_new_key_takes_the_seat_though_the_answer_is_lost(tmp_path: Path) -> None:
    federation = Federation(tmp_path, stop={"uploads": 1000})
    federation.start()
    device = federation.device(0)
    device.join()
    old = device.drawer.key
    device.client.rekey(device.drawer.next_key())  # and then its process dies
    device.close()
    other = federation.device(1)
    other.client.key = old
    with pytest.raises(UserError, match="no seat"):
        other.client.hello(5)
    again = federation.device(0)
    again.join()
    assert again.client.device == device.client.device == 0
    assert again.drawer.key.public == device.client.key.public != old.public
    again.close()
    third = federation.device(0, new_key=True)
    third.join()
    assert third.client.device == 0
    assert len(federation.folder.register.keys(0)) == 3
    third.close()
    federation.stop()
