"""Vectors in shared memory: written once, read where they lie, and never used for another while somebody holds them."""

from __future__ import annotations

import gc
import os

import torch

from fedasmu.pools.arena import Arena, Place
from fedasmu.pools.costs import FIRST_LOOK, Costs
from fedasmu.pools.lane import SMALL
from fedasmu.protocol import Evaluate, Train

COUNT = 2000
VECTOR = torch.arange(float(COUNT))


def arena() -> Arena:
    return Arena(4 * COUNT)


def test_a_vector_is_copied_once_however_often_it_is_sent() -> None:
    shared, model = arena(), VECTOR.clone()
    first, again = shared.place(model), shared.place(model)
    assert first is not None
    assert first == again
    assert torch.equal(shared.view(first), VECTOR)
    assert shared._slots == 1


def test_a_result_goes_on_from_where_it_lies() -> None:
    shared = arena()
    result = shared.adopt(shared.write(VECTOR, shared.take()))
    assert torch.equal(result, VECTOR)
    place, part = shared.place(result), shared.place(result[5:1500])
    assert place is not None
    assert part is not None
    assert shared._slots == 1
    assert torch.equal(shared.view(part), VECTOR[5:1500])


def test_a_slot_is_free_when_nobody_holds_any_part_of_its_memory() -> None:
    shared = arena()
    result = shared.adopt(shared.write(VECTOR, shared.take()))
    part = result[3:9]
    del result
    gc.collect()
    assert shared.take() == 1  # the first one is still held
    assert part.tolist() == [3, 4, 5, 6, 7, 8]
    del part
    gc.collect()
    assert shared.take() == 0
    assert shared.take() == 2


def test_the_slot_of_a_copy_is_free_with_its_vector() -> None:
    shared, model = arena(), VECTOR.clone()
    place = shared.place(model)
    assert place is not None
    assert shared.take() == place.slot + 1
    del model
    gc.collect()
    assert shared.take() == place.slot


def test_a_vector_that_was_written_to_is_not_what_was_copied() -> None:
    shared, model = arena(), VECTOR.clone()
    shared.place(model)
    model.add_(1)
    assert shared.place(model) is None  # it travels in the message


def test_what_is_small_or_too_large_travels_in_the_message() -> None:
    shared = arena()
    assert shared.place(torch.zeros(SMALL // 4)) is None
    assert shared.place(torch.zeros(shared.slot_bytes // 4 + 1)) is None
    assert shared._slots == 0


def test_a_transposed_matrix_is_copied_as_it_looks() -> None:
    shared = arena()
    matrix = VECTOR.view(40, 50).t()
    place = shared.place(matrix)
    assert place is not None
    assert torch.equal(shared.view(place), matrix)


def test_another_process_sees_what_is_written_after_it_was_forked() -> None:
    shared = arena()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(reader, 1)
        there = shared.view(Place(0, 0, VECTOR.dtype, VECTOR.shape))
        same = torch.equal(there, VECTOR)
        there.neg_()
        os._exit(0 if same else 1)
    written = shared.write(VECTOR, shared.take())
    os.write(writer, b"!")
    assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(shared.view(written), -VECTOR)
    os.close(reader)
    os.close(writer)


def test_what_costs_less_than_handing_it_over_is_done_here() -> None:
    costs, train = Costs(), Train(VECTOR, range(1), 0.1)
    for _ in range(100):
        costs.handed(0.001)
    for _ in range(FIRST_LOOK):
        assert not costs.cheaper_here(train)
        costs.computed(Train, 0.0001)
        costs.computed(Evaluate, 0.1)
    assert costs.cheaper_here(train)
    assert not any(costs.cheaper_here(Evaluate(VECTOR)) for _ in range(200))
    assert all(costs.cheaper_here(train) for _ in range(200))
    for _ in range(100):
        costs.computed(Train, 0.02)
    assert not any(costs.cheaper_here(train) for _ in range(200))
