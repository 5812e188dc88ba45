"""The mean of the last models: by hand, beside a training that does not know of it, resumed, and over the network."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedasmu import Experiment
from fedasmu.errors import Interrupted, UserError
from fedasmu.events import Delivered, Event, Measured
from fedasmu.network.replay import replay
from fedasmu.protocol import Model
from fedasmu.server.average import Average, kept
from fedasmu.server.desk import Desk
from fedasmu.storage.record import differing
from helpers.blobs import Run, blobs, outputs, settings, softmax
from helpers.federation import scripted


def mean_of(average: Average) -> float:
    assert average.model is not None
    return float(average.model.vector[0])


def test_by_hand() -> None:
    """With a horizon of 2, older models keep a half for each upload."""
    average = Average(2)
    average.add(Model(1, torch.tensor([4.0])), uploads=1)
    assert mean_of(average) == 4.0
    average.add(Model(2, torch.tensor([7.0])), uploads=2)
    assert mean_of(average) == pytest.approx((4.0 / 4 + 7.0 / 2) / (3 / 4))
    average.add(Model(3, torch.tensor([1.0])), uploads=4)
    assert mean_of(average) == pytest.approx((4.0 / 16 + 7.0 / 8 + 1.0 * 3 / 4) / (15 / 16))
    assert average.model is not None
    assert average.model.version == 3


def test_the_horizon_is_counted_in_uploads() -> None:
    assert kept(10, 10) == pytest.approx(kept(10, 1) ** 10)
    assert kept(1, 1) == 0.0


def test_the_mean_of_one_upload_is_the_newest_model(run: Run) -> None:
    assert outputs(run(evaluate={"average": 1})) == outputs(run())


@pytest.mark.parametrize("name", ["fedasync", "fedavg", "fedbuff"])
def test_it_changes_what_is_measured_and_nothing_that_happens(run: Run, name: str) -> None:
    mean, plain = (outputs(run(algorithm={"name": name}, evaluate=given)) for given in ({"average": 10}, {}))
    assert mean["events.jsonl"] == plain["events.jsonl"]
    assert mean["metrics.csv"] != plain["metrics.csv"]
    assert mean["model.safetensors"] != plain["model.safetensors"]


def test_the_model_that_is_kept_is_the_one_that_was_measured_last(run: Run) -> None:
    result, data = run(evaluate={"average": 10}), blobs()
    inputs, targets = data.test.batch(slice(None))
    module = result.model(softmax()).eval()
    assert float((module(inputs).argmax(1) == targets).float().mean()) == pytest.approx(result.last_score)


def test_interrupted_and_resumed_and_with_workers(tmp_path: Path) -> None:
    def stop(desk: Desk, line: Event | Measured) -> None:
        if isinstance(line, Delivered) and desk.server.counters.received == 33:
            raise Interrupted

    experiment = Experiment(settings(evaluate={"average": 10}), model=softmax, data=blobs())
    expected = outputs(experiment.run(tmp_path / "whole"))
    with pytest.raises(Interrupted):
        experiment.run(tmp_path / "run", observe=stop)
    assert outputs(experiment.run(tmp_path / "run", resume=True)) == expected
    assert outputs(experiment.run(tmp_path / "workers", workers=2)) == expected


def test_over_the_network_and_from_its_ledger(tmp_path: Path) -> None:
    federation = scripted(tmp_path, "fedasync", network={"keep": "all"}, evaluate={"average": 5})
    federation.run()
    assert differing(tmp_path / "simulated", federation.path) == []
    assert replay(federation.world, federation.folder).differing == []


def test_not_where_devices_measure(run: Run) -> None:
    with pytest.raises(UserError, match="average = 5: is for the server's measuring"):
        run(evaluate={"average": 5, "by": "devices", "on_devices": 0.2})
