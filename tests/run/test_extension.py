"""A finished run that goes on ends in the bytes of one that was that long from the start; an early end says why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedasmu import Experiment, Result
from fedasmu.data import federated
from fedasmu.errors import UserError
from helpers.blobs import blobs, outputs, settings, softmax

OWN: dict[str, Any] = {"model": softmax, "data": blobs()}


def made(directory: Path, uploads: int, method: str = "fedasync", **options: Any) -> Result:
    table = settings(stop={"uploads": uploads}, algorithm={"name": method}, fleet={"dropout": 0.1})
    return Experiment(table, **OWN).run(directory, **options)


def extended(directory: Path, uploads: int, **options: Any) -> tuple[Result, list[str]]:
    said: list[str] = []
    experiment = Experiment.of_run(directory, uploads=uploads, **OWN)
    return experiment.run(resume=True, say=said.append, **options), said


@pytest.mark.parametrize("method", ["fedasmu", "fedavg", "fedbuff", "ca2fl", "fedsa"])
@pytest.mark.parametrize("kept", [True, False])
def test_an_extended_run_is_one_that_was_longer_from_the_start(method: str, kept: bool, tmp_path: Path) -> None:
    made(tmp_path / "run", 23, method, extendable=kept)  # 23: a buffer and a round are begun and not full
    result, said = extended(tmp_path / "run", 41)
    assert outputs(result) == outputs(made(tmp_path / "long", 41, method))
    assert result.config["stop"]["uploads"] == 41
    anew = [line for line in said if "begins anew" in line]
    assert len(anew) == (not kept or method == "fedsa")
    assert all(("depends on the budget" in line) == (method == "fedsa") for line in anew)


def test_a_run_may_be_extended_more_than_once(tmp_path: Path) -> None:
    made(tmp_path / "run", 10, extendable=True)
    extended(tmp_path / "run", 20, extendable=True)
    result, _ = extended(tmp_path / "run", 30)
    assert outputs(result) == outputs(made(tmp_path / "long", 30))
    assert not (tmp_path / "run" / "checkpoint").exists()


def test_a_finished_run_stays_as_it_is_without_a_larger_budget(tmp_path: Path) -> None:
    before = made(tmp_path / "run", 10, extendable=True)
    result, said = extended(tmp_path / "run", 10)
    assert result.summary == before.summary
    assert any("is finished already" in line for line in said)
    with pytest.raises(UserError, match=r"uploads = 10\.5: must be a whole number"):
        Experiment.of_run(tmp_path / "run", uploads=10.5, **OWN)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="uploads = 9: the run has a budget of 10 already"):
        extended(tmp_path / "run", 9)
    with pytest.raises(UserError, match=r"time = 9\.0: the run is not limited by it"):
        Experiment.of_run(tmp_path / "run", time=9.0, **OWN)


def test_data_of_ones_own_on_a_recipe_with_a_stand_in_are_found_again(tmp_path: Path) -> None:
    def begun(uploads: int) -> Experiment:
        return Experiment("quickstart", {"stop.uploads": uploads}, **OWN)

    begun(6).run(tmp_path, extendable=True)
    begun(6).run(tmp_path, resume=True, extendable=True)
    begun(8).run(tmp_path, resume=True, extendable=True)
    result, _ = extended(tmp_path, 10)
    assert result.summary["uploads"] == 10


def test_numpys_numbers_are_numbers_and_texts_are_none(tmp_path: Path) -> None:
    made(tmp_path, 6)
    wanted: dict[str, Any] = {"uploads": np.int64(8), "time": np.float64("inf")}
    assert Experiment.of_run(tmp_path, **wanted, **OWN).config.stop.uploads == 8
    with pytest.raises(UserError, match="time = '5': must be a number"):
        Experiment.of_run(tmp_path, time="5", **OWN)  # type: ignore[arg-type]


def everything(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


OTHER: dict[str, tuple[int, dict[str, Any], str]] = {
    "another method": (12, {"algorithm": {"name": "fedavg"}}, r"algorithm\.name is 'fedasync', not 'fedavg'"),
    "its result alone": (8, {"algorithm": {"name": "fedavg"}}, r"algorithm\.name is 'fedasync', not 'fedavg'"),
    "another rate": (12, {"local": {"lr": 0.2}}, r"local\.lr is 0\.1, not 0\.2"),
    "a key that is not written": (8, {"evaluate": {"examples": 10}}, r"evaluate\.examples is None, not 10"),
    "fewer uploads": (6, {}, r"stop\.uploads = 6: .*run has a budget of 8 already"),
    "less time": (8, {"stop": {"uploads": 8, "time": 5.0}}, r"stop\.time = 5\.0: .*run has no such limit"),
}


@pytest.mark.parametrize("extendable", [True, False])
@pytest.mark.parametrize("case", OTHER)
def test_a_finished_run_goes_on_with_its_own_settings_alone(case: str, extendable: bool, tmp_path: Path) -> None:
    uploads, changes, words = OTHER[case]
    Experiment(settings(stop={"uploads": 8}), **OWN).run(tmp_path / "run", extendable=extendable)
    before = everything(tmp_path / "run")
    other = Experiment(settings(**{"stop": {"uploads": uploads}, **changes}), **OWN)
    with pytest.raises(UserError, match=words):
        other.run(tmp_path / "run", resume=True)
    assert everything(tmp_path / "run") == before


def test_what_is_refused_is_told_with_what_was_given(tmp_path: Path) -> None:
    """Of other data and weights, which decide a key of the settings, that is what they decide."""
    begun = settings(stop={"uploads": 8}) | {"fleet": {}}
    longer = begun | {"stop": {"uploads": 9}}
    Experiment(begun, **OWN).run(tmp_path / "run")
    other = blobs(devices=3)
    with pytest.raises(UserError, match=r"fleet\.devices is \d+, not 3: resume it with its own settings"):
        Experiment(longer, model=softmax, data=other).run(tmp_path / "run", resume=True)
    weights = softmax().state_dict()
    Experiment(begun, weights=weights, **OWN).run(tmp_path / "weights")
    others = {name: tensor + 1 for name, tensor in weights.items()}
    with pytest.raises(UserError, match=r"model\.weights_sha256 is '[0-9a-f]{64}', not '[0-9a-f]{64}'"):
        Experiment(longer, weights=others, **OWN).run(tmp_path / "weights", resume=True)


@pytest.mark.parametrize("extendable", [True, False])
def test_a_finished_run_that_cannot_be_built_stays_as_it_is(extendable: bool, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(TRACE)
    table = settings(stop={"uploads": 8}, fleet={"trace": str(trace)})
    Experiment(table, **OWN).run(tmp_path / "run", extendable=extendable)
    before = everything(tmp_path / "run")
    trace.unlink()
    with pytest.raises(UserError, match=r"fleet\.trace: .*cannot be read"):
        extended(tmp_path / "run", 12)
    with pytest.raises(UserError, match="data were given in Python"):
        Experiment.of_run(tmp_path / "run", uploads=12, model=softmax).run(resume=True)
    assert everything(tmp_path / "run") == before
    trace.write_text(TRACE)
    assert extended(tmp_path / "run", 12)[0].summary["uploads"] == 12


def test_what_the_data_and_the_weights_decide_is_no_other_setting(tmp_path: Path) -> None:
    """The experiment itself does not have the number of devices, nor the digest of the weights, which its run has."""
    table = settings(stop={"uploads": 8}) | {"fleet": {}}
    weights = softmax().state_dict()
    Experiment(table, weights=weights, **OWN).run(tmp_path / "run")
    longer = Experiment(table | {"stop": {"uploads": 12}}, weights=weights, **OWN)
    assert longer.run(tmp_path / "run", resume=True).summary["uploads"] == 12
    others = {name: tensor + 1 for name, tensor in weights.items()}
    with pytest.raises(UserError, match=r"model\.weights_sha256 is"):
        Experiment(table, weights=others, **OWN).run(tmp_path / "run", resume=True)


def test_an_interrupted_run_may_be_extended_too(tmp_path: Path) -> None:
    made(tmp_path / "run", 10, extendable=True)
    (tmp_path / "run" / "summary.json").unlink()
    result, _ = extended(tmp_path / "run", 30)
    assert outputs(result) == outputs(made(tmp_path / "long", 30))
    assert result.config["stop"]["uploads"] == 30


def test_a_run_goes_on_with_the_data_that_it_was_begun_with_alone(tmp_path: Path) -> None:
    """They may be given in Python, made by a program that draws anew, or be files that were replaced."""
    made(tmp_path / "run", 10, extendable=True)
    (tmp_path / "run" / "summary.json").unlink()
    table, data = settings(stop={"uploads": 20}, fleet={"dropout": 0.1}), blobs()
    train = replace(data.train, inputs=data.train.inputs + (torch.arange(300) == 299)[:, None])
    dealt = [data.shards[1], data.shards[0], *data.shards[2:]]
    for other in (replace(data, train=train), replace(data, shards=dealt), replace(data, test=data.train)):
        with pytest.raises(UserError, match="its data are not those that it was begun with"):
            Experiment(table, model=softmax, data=other).run(tmp_path / "run", resume=True)
    result = Experiment(table, model=softmax, data=blobs()).run(tmp_path / "run", resume=True)
    assert outputs(result) == outputs(made(tmp_path / "long", 20))


def test_large_inputs_are_known_by_some_of_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(federated, "LOOKED_AT", 20 * 4 * 60)  # of 300 rows: each sixth
    data = blobs()
    seen, unseen = (
        replace(data.train, inputs=data.train.inputs + (torch.arange(300) == row)[:, None]) for row in (6, 7)
    )
    assert replace(data, train=seen).fingerprint != data.fingerprint == replace(data, train=unseen).fingerprint


TRACE = "device,start,end\n" + "".join(f"{device},0,100\n" for device in range(10))
EARLY: dict[str, tuple[dict[str, Any], list[str]]] = {
    "time": ({"stop": {"uploads": 60, "time": 10.0}}, ["of 60 uploads", "stop.time = 10 s"]),
    "nothing": ({"stop": {"uploads": 60, "time": 0.01}}, ["0 of 60 uploads", "no device had finished its first task"]),
    "fleet": ({"fleet": {"trace": "trace.csv"}, "stop": {"uploads": 9999}}, ["no device comes back", "fleet.trace"]),
}


@pytest.mark.parametrize("end", EARLY)
def test_a_run_that_ends_early_says_why(end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace.csv").write_text(TRACE)
    changes, expected = EARLY[end]
    said: list[str] = []
    result = Experiment(settings(timing_only=True, **changes)).run("run", say=said.append)
    for text in expected:
        assert text in said[-1]
    assert result.summary["ended"] == ("fleet" if end == "fleet" else "time")


def test_a_run_that_has_its_uploads_says_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    result = Experiment(settings(timing_only=True)).run(tmp_path / "run", say=said.append)
    assert result.summary["ended"] == "uploads"
    assert said == []


@pytest.mark.parametrize("place", ["seed-0", "fedavg/seed-0", "lenet-cifar-10/fedavg/seed-0"])
def test_a_folder_of_runs_is_no_run(place: str, tmp_path: Path) -> None:
    """Of a comparison that was stopped, for one."""
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "config.toml").write_text("")
    with pytest.raises(UserError, match=rf"not a run, but a folder of them: .* as in {tmp_path / place}$"):
        Experiment(settings(), **OWN).run(tmp_path, resume=True)


def test_there_must_be_something_to_resume(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to resume there"):
        Experiment(settings(), **OWN).run(tmp_path / "nowhere", resume=True)
