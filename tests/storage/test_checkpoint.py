"""Checkpoints: what went in comes out, a kill leaves a readable one, and damage is noticed."""

from __future__ import annotations

import errno
import os
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedasmu.encoding import codec
from fedasmu.errors import UserError
from fedasmu.storage import checkpoint
from helpers.killing import killed_while_removing

scalars = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=5)
keys = st.text(max_size=5) | st.sampled_from(["$tensor", "$word"]) | st.integers(0, 9)
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=12,
)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(trees)
def test_plain_trees_come_back_exactly(tree: Any) -> None:
    tensors: dict[str, torch.Tensor] = {}
    again = codec.decode(codec.encode(tree, tensors), tensors)
    assert again == tree
    assert repr(again) == repr(tree)  # 1 is not 1.0, and a tuple is not a list


def test_tensors_come_back_with_their_type_and_shape(tmp_path: Path) -> None:
    tree = {
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "integers": torch.arange(6, dtype=torch.int32).view(2, 3),
        "flags": torch.tensor([True, False]),
        "nested": [{"deep": torch.tensor([float("nan"), float("inf"), -0.0])}],
        "infinity": float("inf"),
    }
    checkpoint.write(tree, tmp_path / "c")
    again = checkpoint.read(tmp_path / "c")
    for name in ("scalar", "empty", "integers", "flags"):
        assert again[name].dtype == tree[name].dtype  # type: ignore[attr-defined]
        assert torch.equal(again[name], tree[name])  # type: ignore[arg-type]
    assert str(again["nested"]) == str(tree["nested"])
    assert again["infinity"] == float("inf")


@pytest.mark.parametrize("kind", checkpoint.TYPES, ids=str)
def test_every_type_of_tensor_is_laid_out_as_safetensors_reads_it(tmp_path: Path, kind: torch.dtype) -> None:
    values = torch.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]).to(kind)
    checkpoint.write({"before": torch.ones(3, dtype=torch.uint8), "values": values}, tmp_path / "c")
    again = checkpoint.read(tmp_path / "c")["values"]
    assert again.dtype == kind
    assert again.tolist() == values.tolist()


def test_views_and_aliases_can_be_stored(tmp_path: Path) -> None:
    base = torch.arange(10.0)
    tree = {"all": base, "same": base, "alias": base.view(2, 5), "part": base[2:4], "turned": base.view(2, 5).T}
    checkpoint.write(tree, tmp_path / "c")
    again = checkpoint.read(tmp_path / "c")
    assert all(torch.equal(again[name], tensor) for name, tensor in tree.items())


def test_a_tensor_that_occurs_twice_is_stored_once(tmp_path: Path) -> None:
    large = torch.zeros(10_000)
    checkpoint.write({"a": large, "b": [large, large]}, tmp_path / "c")
    assert (tmp_path / "c" / "tensors.safetensors").stat().st_size < 50_000


def said(directory: Path) -> tuple[Any, list[str]]:
    messages: list[str] = []
    return checkpoint.load(directory, messages.append), messages


def test_the_newest_is_loaded_and_the_one_before_it_kept(tmp_path: Path) -> None:
    for number in range(5):
        checkpoint.save({"n": number}, tmp_path)
    assert said(tmp_path) == ({"n": 4}, [])
    assert len(list(tmp_path.iterdir())) == 2


def test_there_may_be_none(tmp_path: Path) -> None:
    assert said(tmp_path / "nowhere") == (None, [])


def truncate(directory: Path) -> None:
    path = directory / "tensors.safetensors"
    path.write_bytes(path.read_bytes()[:-3])


def flip(directory: Path) -> None:
    path = directory / "state.json"
    path.write_bytes(path.read_bytes().replace(b"1", b"2"))


def remove(directory: Path) -> None:
    (directory / "sha256").unlink()


def garble(directory: Path) -> None:
    (directory / "state.json").write_bytes(b"\xff\xfe{")


@pytest.mark.parametrize("damage", [truncate, flip, remove, garble])
def test_damage_falls_back_to_the_one_before_and_says_so(damage: Any, tmp_path: Path) -> None:
    checkpoint.save({"n": 10, "t": torch.ones(5)}, tmp_path)
    checkpoint.save({"n": 11, "t": torch.ones(5)}, tmp_path)
    newest = sorted(tmp_path.iterdir())[-1]
    damage(newest)
    tree, messages = said(tmp_path)
    assert tree["n"] == 10
    assert len(messages) == 1
    assert "damaged checkpoint, falling back" in messages[0]
    assert str(newest) in messages[0]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES])
def test_what_cannot_be_read_today_is_not_damaged(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save({"n": 10}, tmp_path)
    checkpoint.save({"n": 11}, tmp_path)
    refuse = raising(OSError(number, os.strerror(number)))
    with pytest.raises(OSError, match=os.strerror(number)):
        checkpoint.load(tmp_path, print, check=refuse)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", refuse)
        with pytest.raises(OSError, match=os.strerror(number)):
            said(tmp_path)
    assert said(tmp_path) == ({"n": 11}, [])


def raising(error: Exception) -> Any:
    def refuse(path: Any) -> None:
        raise error

    return refuse


def test_a_damaged_one_does_not_take_the_place_of_a_good_one(tmp_path: Path) -> None:
    for number in range(2):
        checkpoint.save({"n": number}, tmp_path)
    remove(sorted(tmp_path.iterdir())[-1])
    said(tmp_path)
    checkpoint.save({"n": 7}, tmp_path)
    remove(sorted(tmp_path.iterdir())[-1])
    assert said(tmp_path)[0] == {"n": 0}


def test_all_damaged_is_the_users_to_know(tmp_path: Path) -> None:
    for number in range(2):
        checkpoint.save({"n": number}, tmp_path)
    for path in tmp_path.iterdir():
        remove(path)
    with pytest.raises(UserError, match="no checkpoint can be read"):
        said(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2  # nothing is thrown away


def test_a_kill_while_writing_leaves_the_one_before(tmp_path: Path) -> None:
    checkpoint.save({"n": 1}, tmp_path)
    part = tmp_path / "000000002.part"
    part.mkdir()
    (part / "state.json").write_text("{")
    assert said(tmp_path) == ({"n": 1}, [])
    checkpoint.save({"n": 2}, tmp_path)
    assert said(tmp_path) == ({"n": 2}, [])


def test_what_found_no_room_takes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A served run goes on beside it, and its files need what there is."""
    checkpoint.save({"n": 1}, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", Mock(side_effect=[None, OSError(errno.ENOSPC, "No space left on device")]))
        with pytest.raises(OSError, match="No space"):
            checkpoint.save({"number": 2}, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["000000001"]


def test_what_a_kill_left_unfinished_takes_no_room_after_the_next_start(tmp_path: Path) -> None:
    checkpoint.save({"n": 1}, tmp_path)
    shutil.copytree(tmp_path / "000000001", tmp_path / "000000002.part")
    assert checkpoint.load(tmp_path, print) == {"n": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["000000001"]


def test_a_kill_while_they_are_removed_leaves_nothing_that_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a device removes what it has delivered: it has to start again all the same."""
    kept = tmp_path / "outbox"
    checkpoint.save({"number": 1}, kept)
    with killed_while_removing(monkeypatch, "state.json"):
        checkpoint.remove(kept)
    assert checkpoint.load(kept, print) is None
    checkpoint.save({"number": 2}, kept)
    checkpoint.remove(kept)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_pickled(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        checkpoint.write({"object": object()}, tmp_path / "c")
    assert not (tmp_path / "c").exists()


def rewritten(directory: Path, text: bytes) -> None:
    """Another text, with a digest that fits."""
    data = (directory / "tensors.safetensors").read_bytes()
    (directory / "state.json").write_bytes(text)
    (directory / "sha256").write_text(sha256(text + data).hexdigest())


def test_a_checkpoint_of_another_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    for number in range(2):
        checkpoint.save({"n": number}, tmp_path)
    newest = tmp_path / "000000002"
    for text, found in ((b'{"n": 1}', "format 1"), (b'{"format": 99, "tree": {"n": 1}}', "format 99")):
        rewritten(newest, text)
        with pytest.raises(UserError, match=rf"another version of fedasmu \({found}; this one reads \d+\)"):
            said(tmp_path)
    assert newest.is_dir()


@pytest.mark.parametrize("text", [b'{"format": 2, "tree": {"$word": "Popen"}}', b"[" * 10**5, b"\xff"])
def test_a_text_that_is_none_of_ours_is_damage(tmp_path: Path, text: bytes) -> None:
    checkpoint.save({"n": 0}, tmp_path)
    checkpoint.save({"n": 1}, tmp_path)
    rewritten(tmp_path / "000000002", text)
    tree, messages = said(tmp_path)
    assert tree == {"n": 0}
    assert "damaged checkpoint" in messages[0]
