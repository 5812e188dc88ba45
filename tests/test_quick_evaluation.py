"""Evaluations on a part of the test data: said in every line, and no part of any result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedasmu import Experiment
from fedasmu.errors import UserError
from fedasmu.protocol import Evaluate, Evaluated
from fedasmu.training import Trainer
from fedasmu.vector import Layout
from helpers.blobs import Run, blobs, outputs, settings, softmax

QUICK: dict[str, Any] = {"every": 5, "subset": 20, "full_every": 3}


def test_each_third_evaluation_and_the_last_are_full(run: Run) -> None:
    quick, full = run(evaluate=QUICK, stop={"uploads": 52}), run(stop={"uploads": 52})
    assert quick.lines["subset"].tolist() == [0, 20, 20, 0, 20, 20, 0, 20, 20, 0, 20, 0]
    assert quick.lines["uploads"][-2:].tolist() == [50, 52]
    assert quick.curve["uploads"].tolist() == [0, 15, 30, 45, 52]
    at = np.isin(full.curve["uploads"], quick.curve["uploads"])
    assert quick.curve["accuracy"].tolist() == full.curve["accuracy"][at].tolist()
    assert quick.summary["last_accuracy"] == full.summary["last_accuracy"]
    assert quick.summary["best_accuracy"] == quick.curve["accuracy"].max()


def test_the_last_model_is_evaluated_in_full_even_if_it_was_quickly(run: Run) -> None:
    lines = run(evaluate=QUICK, stop={"uploads": 20}).lines
    assert lines["uploads"].tolist() == [0, 5, 10, 15, 20, 20]
    assert lines["subset"].tolist() == [0, 20, 20, 0, 20, 0]
    assert lines["version"][-1] == lines["version"][-2]


def test_the_examples_are_the_same_in_every_run() -> None:
    data, layout = blobs(), Layout.of(softmax())
    vector = torch.randn(layout.size, generator=torch.Generator().manual_seed(1))

    def measured(subset: int, seed: int) -> Evaluated:
        answer = Trainer(softmax(), layout, data, 8, 1).perform(Evaluate(vector, subset), -1, seed)
        assert isinstance(answer, Evaluated)
        return answer

    assert measured(20, seed=0) == measured(20, seed=7)
    assert [measured(subset, 0).examples for subset in (20, 40, 0)] == [20, 40, len(data.test)]
    assert len({measured(subset, 0).loss for subset in (20, 40, 0)}) == 3


def test_workers_give_the_same_bytes(run: Run) -> None:
    assert outputs(run(workers=2, evaluate=QUICK)) == outputs(run(evaluate=QUICK))


def test_a_run_judged_by_some_examples_counts_what_it_measures_on_them(run: Run) -> None:
    fewer, quick, full = run(evaluate={"examples": 20}), run(evaluate={"subset": 20, "full_every": 99}), run()
    assert not fewer.lines["subset"].any()
    assert fewer.curve["accuracy"][1:-1].tolist() == quick.lines["accuracy"][1 : len(fewer.curve["time"]) - 1].tolist()
    assert {round(value * 20, 9) % 1 for value in fewer.curve["accuracy"].tolist()} == {0.0}
    assert fewer.summary["last_accuracy"] == fewer.curve["accuracy"][-1]
    assert all(torch.equal(one, full.state_dict[name]) for name, one in fewer.state_dict.items())


def test_no_more_examples_than_there_are_and_none_of_devices(run: Run) -> None:
    with pytest.raises(UserError, match=r"evaluate\.examples = 5000: there are \d+ test examples"):
        run(evaluate={"examples": 5000})
    with pytest.raises(UserError, match=r"examples = 5: is for the server's measuring"):
        run(evaluate={"examples": 5, "by": "devices", "on_devices": 0.2})


def test_a_subset_must_be_less_than_all(run: Run) -> None:
    with pytest.raises(UserError, match=r"evaluate\.subset = 5000: must be less than the"):
        run(evaluate={"subset": 5000})


def test_devices_have_no_subset() -> None:
    with pytest.raises(UserError, match="subset = 20"):
        Experiment(settings(evaluate=QUICK | {"by": "devices", "on_devices": 0.2}), model=softmax, data=blobs())
