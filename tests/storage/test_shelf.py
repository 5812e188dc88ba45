"""Tensors on disk, and what devices remember: a checkpoint's files are never overwritten or swept away too soon."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedasmu.algorithms import NAMES, settings
from fedasmu.encoding.codec import pack
from fedasmu.simulation.memories import Memories
from fedasmu.storage import checkpoint
from fedasmu.storage.checkpoint import KEPT
from fedasmu.storage.shelf import SMALL, Shelf, check_shelves
from fedasmu.system.disk import MANY
from helpers.uploads import federation


def large(number: int) -> torch.Tensor:
    """Too large to stay in memory."""
    return torch.full((SMALL,), number)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4),
        torch.tensor(2.5),
        torch.zeros(0),
        torch.arange(5),
        torch.tensor([True, False]),
        torch.randn(4, 3).T,
        torch.randn(30, 40),
        torch.randn(40, 30).T,
        torch.arange(500),
    ],
    ids=lambda tensor: f"{tuple(tensor.shape)} {tensor.dtype}",
)
def test_tensors_come_back_with_their_type_and_shape(tensor: torch.Tensor, tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    shelf.put(3, tensor)
    again = shelf.get(3)
    assert again is not None
    assert again.dtype == tensor.dtype
    assert torch.equal(again, tensor)


def test_a_shelf_knows_what_it_holds(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    shelf.put("a", torch.ones(1))
    shelf.put("a", torch.zeros(1))
    assert "a" in shelf
    assert "b" not in shelf
    assert len(shelf) == 1
    assert shelf.get("b") is None


def test_without_checkpoints_a_replaced_file_goes_at_once(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    for value in range(5):
        shelf.put("a", large(value))
        assert torch.equal(shelf.get("a"), large(value))  # type: ignore[arg-type]
    assert len(list(tmp_path.iterdir())) == 1
    for other in (large(4)[:-1].clone(), large(4).half(), large(4).view(2, -1)):  # another length, type or shape
        shelf.put("a", other)
        assert torch.equal(shelf.get("a"), other)  # type: ignore[arg-type]
    assert len(list(tmp_path.iterdir())) == 1
    shelf.put("a", torch.tensor([5]))  # a small one needs no file
    assert list(tmp_path.iterdir()) == []
    assert shelf.get("a") == torch.tensor([5])
    shelf.put("a", large(6))
    assert torch.equal(shelf.get("a"), large(6))  # type: ignore[arg-type]


def test_a_small_tensor_keeps_no_large_one_alive(tmp_path: Path) -> None:
    shelf, whole = Shelf(tmp_path), torch.ones(1000)
    shelf.put("a", whole[:2])
    assert shelf.get("a").untyped_storage().nbytes() == 8  # type: ignore[union-attr]


@hypothesis.settings(derandomize=True, max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("slcf"), st.integers(0, 3)), max_size=40))
def test_every_kept_checkpoint_can_be_restored(
    tmp_path_factory: pytest.TempPathFactory, moves: list[tuple[str, int]]
) -> None:
    """Small tensors and large ones, and a checkpoint now and then, of which some never get to the disk."""
    directory = tmp_path_factory.mktemp("shelf")
    shelf, now, saved = Shelf(directory), {}, []
    for number, (move, key) in enumerate(moves):
        if move == "f":
            shelf.state()
        elif move != "c":
            shelf.put(key, large(number) if move == "l" else torch.tensor([number]))
            now[key] = number
        else:
            saved.append((shelf.state(), dict(now)))
            shelf.kept()
        for state, expected in saved[-KEPT:]:
            restored = Shelf(directory)
            restored.restore(state)
            found = {key: int(restored.get(key)[0]) for key in range(4) if key in restored}  # type: ignore[index]
            assert found == expected
    assert len(list(directory.iterdir())) <= 4 * (KEPT + 2)  # and what nobody needs is swept away


def test_a_checkpoint_that_asks_twice_keeps_no_less(tmp_path: Path) -> None:
    """The desk asks for the shelf's state; a method that does so too asks within the same checkpoint."""
    shelf, states = Shelf(tmp_path), []
    for number in range(KEPT):
        shelf.put("a", large(number))
        states.append(shelf.state())
        assert shelf.state() == states[-1]
        shelf.kept()
    for number, state in enumerate(states):
        restored = Shelf(tmp_path)
        restored.restore(state)
        assert torch.equal(restored.get("a"), large(number))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_a_method_does_not_save_the_shelf_that_it_was_lent(name: str, tmp_path: Path) -> None:
    aggregator = settings({"name": name}).aggregator(federation(tmp_path))
    assert b'"files"' not in pack(aggregator.state())[0]


def test_only_what_a_checkpoint_refers_to_has_its_digest(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    shelf.put("a", large(1))
    assert [path.suffix for path in tmp_path.iterdir()] == [".new"]
    (name,) = shelf.state()["files"].values()
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert len(name.rpartition(".")[2]) == 32
    assert torch.equal(shelf.get("a"), large(1))  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [1, MANY, MANY + 1])
def test_a_checkpoint_vouches_for_all_its_files_few_or_many(count: int, tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "server")
    for device in range(count):
        shelf.put(device, large(device))
    state = shelf.state()
    check_shelves(state, tmp_path)
    assert {path.name for path in (tmp_path / "server").iterdir()} == set(state["files"].values())
    restored = Shelf(tmp_path / "server")
    restored.restore(state)
    assert all(torch.equal(restored.get(device), large(device)) for device in range(count))  # type: ignore[arg-type]


def memories(tmp_path: Path) -> Memories:
    return Memories(Shelf(tmp_path))


def test_a_memory_counts_once_it_is_put_back(tmp_path: Path) -> None:
    kept = memories(tmp_path)
    kept.put(1, {"n": 1, "list": [1, {"deep": 2}], "vector": torch.ones(3), "nested": {"vector": torch.ones(2)}})
    memory = kept.get(1)
    memory["n"] = 2
    memory["list"][1]["deep"] = 3
    memory["vector"].zero_()
    memory["nested"]["vector"].zero_()
    again = kept.get(1)
    assert again["n"] == 1
    assert again["list"] == [1, {"deep": 2}]
    assert again["vector"].tolist() == [1, 1, 1]
    assert again["nested"]["vector"].tolist() == [1, 1]


def test_what_a_device_forgets_is_forgotten(tmp_path: Path) -> None:
    kept = memories(tmp_path)
    kept.put(1, {"n": 1, "vector": torch.ones(3)})
    kept.put(1, {"n": 1})
    assert kept.get(1) == {"n": 1}
    kept.put(1, {})
    assert kept.get(1) == {}
    assert kept.get(2) == {}


def test_memories_survive_a_checkpoint_exactly(tmp_path: Path) -> None:
    kept = memories(tmp_path)
    kept.put(1, {"counts": {3: 1, 4: 2}, "pair": (1, 2.0), "vector": torch.ones(3), "matrix": torch.ones(30, 30)})
    kept.put(70_000, {"n": 5})
    checkpoint.write(kept.state(), tmp_path / "checkpoint")
    restored = memories(tmp_path)
    restored.restore(checkpoint.read(tmp_path / "checkpoint"))
    memory = restored.get(1)
    assert memory.pop("vector").tolist() == [1, 1, 1]
    assert torch.equal(memory.pop("matrix"), torch.ones(30, 30))
    assert memory == {"counts": {3: 1, 4: 2}, "pair": (1, 2.0)}
    assert restored.get(70_000) == {"n": 5}


def test_devices_that_remember_nothing_take_no_room(tmp_path: Path) -> None:
    kept = memories(tmp_path)
    for device in range(100):
        kept.put(device, {})
    assert kept.state()["values"] == {}
