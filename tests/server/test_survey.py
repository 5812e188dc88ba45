"""Devices measure on what they hold out: the same examples, the same numbers and lines, wherever they are."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedasmu import Experiment
from fedasmu.data.federated import held_count, hold_out
from fedasmu.errors import Interrupted, UserError
from fedasmu.events import Measured
from fedasmu.protocol import Evaluate, Evaluated
from fedasmu.report.summary import lines
from fedasmu.run.build import build
from fedasmu.server.survey import LARGEST, Survey, bounded, worst_tenth
from fedasmu.session import FORWARD
from fedasmu.settings.recipe import parse
from helpers.blobs import Run, blobs, outputs, settings, softmax

BY_DEVICES = {"by": "devices", "on_devices": 0.25}


def test_some_examples_are_held_out_and_some_are_left() -> None:
    assert [held_count(count, 0.1) for count in (1, 2, 4, 15, 100)] == [0, 1, 1, 2, 10]
    assert held_count(3, 0.99) == 2
    assert held_count(3, 0.0) == 0


def test_what_is_held_out_is_not_trained_on_and_depends_on_the_seed_alone() -> None:
    shard = torch.arange(100, 140)
    kept, held = hold_out(shard, 0.25, 7)
    assert len(held) == 10
    assert sorted([*kept.tolist(), *held.tolist()]) == shard.tolist()
    assert kept.tolist() == sorted(kept.tolist())
    again, other = hold_out(torch.arange(40), 0.25, 7)[1], hold_out(shard, 0.25, 8)[1]
    assert (again + 100).tolist() == held.tolist(), "a device that has only its own examples holds out the same ones"
    assert other.tolist() != held.tolist()


def test_a_mean_is_over_examples_and_the_worst_tenth_over_devices() -> None:
    survey = Survey()
    assert survey.by_device() == {"device_accuracy": None, "worst_tenth": None}
    survey.add(3, Evaluated(1.0, 0.5, 10))
    survey.add(8, Evaluated(4.0, 1.0, 30))
    assert survey.heard.reports == 2
    assert survey.take() == Evaluated((10 * 1.0 + 30 * 4.0) / 40, 35 / 40, 40)
    assert survey.take() is None
    survey.add(3, Evaluated(0.0, 0.2, 10))  # of a device its last report counts
    assert survey.by_device() == {"device_accuracy": 0.6, "worst_tenth": 0.2}
    assert worst_tenth([0.9] * 17 + [0.1, 0.3, 0.8]) == pytest.approx(0.2)


@pytest.mark.parametrize(("told", "counts"), [(math.nan, LARGEST), (1e300, LARGEST), (-math.inf, -LARGEST), (2.5, 2.5)])
def test_one_device_cannot_decide_the_mean_loss(told: float, counts: float) -> None:
    assert bounded(told) == counts


def test_a_survey_goes_on_where_it_was() -> None:
    survey, other = Survey(), Survey()
    survey.add(3, Evaluated(1.0, 0.5, 10))
    other.restore(survey.state())
    assert (other.by_device(), other.take()) == (survey.by_device(), survey.take())


def test_the_devices_measure_what_the_server_would(run: Run) -> None:
    """The blobs are easy, and the held-out examples are of the test data's kind."""
    result = run(evaluate={"on_devices": 0.25})
    curve = result.curve
    assert (curve["reports"] == 0).all(), "the server measures"
    assert np.isnan(curve["device_accuracy"][0])
    assert curve["device_accuracy"][-1] == pytest.approx(curve["accuracy"][-1], abs=0.1)
    assert (curve["worst_tenth"][1:] <= curve["device_accuracy"][1:]).all()


def test_without_test_data_the_lines_are_the_devices(run: Run) -> None:
    result = run(evaluate=BY_DEVICES)
    told = [event for event in result.events if event["event"] == "upload"]
    assert result.summary["accuracy_by"] == "devices"
    assert (result.curve["reports"] == 5).all(), "a line every five uploads, and none before the first"
    assert min(event["own_accuracy"] for event in told) >= 0
    assert result.accuracy > 0.9
    assert ("  measured by", "the devices") in lines(result)
    assert "  measured by" not in dict(lines(run(evaluate={"on_devices": 0.25})))


def test_the_first_line_is_the_mean_of_the_first_reports(run: Run) -> None:
    data = blobs()
    result = run(data=data, evaluate=BY_DEVICES)
    first = [event for event in result.events if event["event"] == "upload"][:5]
    counts = [held_count(len(data.shards[event["device"]]), 0.25) for event in first]
    expected = sum(count * event["own_accuracy"] for count, event in zip(counts, first, strict=True)) / sum(counts)
    assert result.curve["accuracy"][0] == pytest.approx(expected, rel=1e-12)


def test_measuring_takes_its_time(run: Run) -> None:
    """On one device: a third of a training step's time for each example that is held out."""
    one = {"data": blobs(devices=1), "fleet": {"devices": 1}, "stop": {"uploads": 1}, "local": {"epochs": 1}}
    count = len(blobs(devices=1).shards[0])
    held = held_count(count, 0.5)
    shorter = run(**one, evaluate={"on_devices": 0.5}).summary["virtual_seconds"]
    whole = run(**one).summary["virtual_seconds"]
    rate = (whole - shorter) / (held - FORWARD * held)  # what is held out is not trained on, but measured on
    assert rate > 0
    links = whole - count * rate
    assert shorter == pytest.approx(links + rate * (count - held + FORWARD * held))


@pytest.mark.parametrize("evaluate", [BY_DEVICES, {"on_devices": 0.25}])
def test_the_same_bits_on_workers_and_after_a_stop(tmp_path: Path, run: Run, evaluate: dict[str, object]) -> None:
    wanted = outputs(run(evaluate=evaluate))
    assert outputs(run(evaluate=evaluate, workers=2)) == wanted
    stopped = Experiment(settings(evaluate=evaluate), model=softmax, data=blobs())

    def stop(desk: object, line: object) -> None:
        if isinstance(line, Measured) and line.uploads == 30:
            raise Interrupted

    with pytest.raises(Interrupted):
        stopped.run(tmp_path / "stopped", workers="inline", observe=stop)
    assert outputs(stopped.run(tmp_path / "stopped", workers="inline", resume=True)) == wanted


def test_devices_that_judge_need_something_to_judge_on() -> None:
    with pytest.raises(UserError, match=r"evaluate.*by = 'devices'.*on_devices"):
        parse(settings(evaluate={"by": "devices"}))


def test_devices_measure_the_accuracy_and_nothing_else() -> None:
    with pytest.raises(UserError, match=r"on_devices = 0.1: devices measure the accuracy, not rmse"):
        parse(settings(evaluate={"on_devices": 0.1, "metric": "rmse", "targets": []}))


def test_a_device_measures_on_its_own_examples() -> None:
    world = build(parse(settings(evaluate=BY_DEVICES)), softmax, blobs())
    assert world.trainer is not None
    assert [member + held for member, held in zip(world.examples, world.held, strict=True)] == [
        len(shard) for shard in blobs().shards
    ]
    measured = world.trainer.perform(Evaluate(world.initial), 4, 0)
    assert isinstance(measured, Evaluated)
    assert measured.examples == world.held[4]


def test_a_run_in_which_nobody_measured_says_so(run: Run, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"evaluate\.by = 'devices': of 0 uploads .* none had a measurement .* stop\.time"
    ):
        run(evaluate=BY_DEVICES, stop={"time": 0.001})
    data = blobs()
    data.train.inputs[:] = torch.nan
    with pytest.raises(UserError, match=r"of 6 uploads \(6 of them refused\)"):
        run(data=data, evaluate=BY_DEVICES, stop={"uploads": 6})


def test_devices_that_have_nothing_to_measure_on_are_refused_at_once(run: Run) -> None:
    data = blobs()
    data = replace(data, shards=[shard[:1] for shard in data.shards])
    with pytest.raises(UserError, match="no device has two examples"):
        run(data=data, evaluate=BY_DEVICES)
