"""Trackers see every line and change nothing."""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedasmu import Experiment, Result
from fedasmu.errors import Interrupted, UserError
from fedasmu.events import Event, Measured
from fedasmu.run.trackers import TRACKERS, Tracker
from fedasmu.server.desk import Desk
from helpers.blobs import blobs, outputs, settings, softmax
from helpers.repository import ROOT


class Notebook:
    """Keeps what it is shown; fails at the n-th call if told to."""

    def __init__(self, fail_at: int = -1) -> None:
        self.config: dict[str, Any] = {}
        self.rows: list[dict[str, Any]] = []
        self.summaries: list[dict[str, Any]] = []
        self.fail_at = fail_at

    def start(self, config: Mapping[str, Any]) -> None:
        self.config = dict(config)

    def log(self, row: Mapping[str, Any]) -> None:
        if len(self.rows) == self.fail_at:
            raise OSError("the disk is full")
        self.rows.append(dict(row))

    def finish(self, summary: Mapping[str, Any]) -> None:
        self.summaries.append(dict(summary))


def run(out: Path, *trackers: str | Tracker, **more: Any) -> Result:
    experiment = Experiment(settings(), model=softmax, data=blobs())
    return experiment.run(out, trackers=trackers, **more)


def stop(desk: Desk, line: Event | Measured) -> None:
    if desk.server.counters.received == 30:
        raise Interrupted


def curve(rows: list[dict[str, Any]], column: str) -> list[float]:
    return [math.nan if row[column] == "" else float(row[column]) for row in rows]


def test_a_tracker_sees_every_line_and_changes_nothing(tmp_path: Path) -> None:
    notebook = Notebook()
    plain, tracked = run(tmp_path / "plain"), run(tmp_path / "tracked", notebook)
    assert outputs(plain) == outputs(tracked)
    assert notebook.config["algorithm.name"] == "fedasync"
    assert notebook.config["local.lr"] == 0.1
    for column, values in tracked.curve.items():
        assert curve(notebook.rows, column) == pytest.approx(values.tolist(), nan_ok=True)
    assert notebook.summaries == [tracked.summary]


def test_a_tracker_that_fails_is_named_once_and_the_run_goes_on(tmp_path: Path) -> None:
    broken, sound, said = Notebook(fail_at=3), Notebook(), list[str]()
    result = run(tmp_path / "run", broken, sound, say=said.append)
    assert outputs(result) == outputs(run(tmp_path / "plain"))
    assert [line for line in said if "left out" in line] == [
        "Notebook failed and is left out from here on: OSError('the disk is full')"
    ]
    assert (len(broken.rows), broken.summaries) == (3, [])
    assert len(sound.rows) == len(result.curve["time"])


def test_after_an_interruption_a_tracker_is_closed_and_the_next_one_sees_all_lines(tmp_path: Path) -> None:
    first, second = Notebook(), Notebook()
    with pytest.raises(Interrupted):
        run(tmp_path / "run", first, observe=stop)
    assert first.summaries == [{}]
    result = run(tmp_path / "run", second, resume=True)
    assert 0 < len(first.rows) < len(second.rows)
    assert curve(second.rows, "uploads") == result.curve["uploads"].tolist()
    assert second.summaries == [result.summary]


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_package_is_named_before_anything_starts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    with pytest.raises(UserError, match=rf"pip install 'fedasmu\[{name}\]'"):
        run(tmp_path / "run", name)
    assert not (tmp_path / "run").exists()


def test_an_unknown_tracker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="tensorbord: there is tensorboard, wandb, mlflow"):
        Experiment(settings(), model=softmax, data=blobs()).run(tmp_path / "one", trackers="tensorbord")
    with pytest.raises(UserError, match="there is tensorboard, wandb, mlflow"):
        run(tmp_path / "run", "tensorbord")


def needs(package: str) -> pytest.MarkDecorator:
    found = importlib.util.find_spec(package) is not None
    return pytest.mark.skipif(not found, reason=f"the extra package {package} is not installed")


def real(tmp_path: Path, name: str) -> Result:
    """A run followed by the real package, which must neither change it nor fail."""
    said = list[str]()
    result = run(tmp_path / "run", name, say=said.append)
    assert not [line for line in said if "left out" in line]
    assert outputs(result) == outputs(run(tmp_path / "plain"))
    return result


def written(directory: Path) -> Any:
    """What TensorBoard reads in a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record = EventAccumulator(str(directory))
    record.Reload()
    return record


@needs("tensorboard")
def test_tensorboard(tmp_path: Path) -> None:
    result = real(tmp_path, "tensorboard")
    record = written(result.directory / "tensorboard")
    [final] = record.Scalars("final/accuracy")
    assert (final.step, final.value) == (result.summary["uploads"], pytest.approx(result.score))
    scalars = record.Scalars("accuracy")
    assert [one.step for one in scalars] == result.curve["uploads"].tolist()
    assert [one.value for one in scalars] == pytest.approx(result.curve["accuracy"].tolist())


@needs("tensorboard")
def test_tensorboard_compares_runs_by_every_setting_that_one_of_them_has(tmp_path: Path) -> None:
    """As its HParams tab does: of the runs' own settings, since no run speaks for all of them."""
    methods = {"fedasync": {"name": "fedasync", "alpha": 0.3}, "fedprox": {"name": "fedprox", "mu": 0.2}}
    for name, method in methods.items():
        config = settings(algorithm=method, fleet={"preset": ["base", "unreliable"]})
        Experiment(config, model=softmax, data=blobs()).run(tmp_path / name, trackers=["tensorboard"])
    from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from tensorboard.context import RequestContext
    from tensorboard.plugins.base_plugin import TBContext
    from tensorboard.plugins.hparams.api_pb2 import GetExperimentRequest
    from tensorboard.plugins.hparams.backend_context import Context
    from tensorboard.plugins.hparams.get_experiment import Handler

    runs = EventMultiplexer().AddRunsFromDirectory(str(tmp_path))
    runs.Reload()
    provider = MultiplexerDataProvider(runs, str(tmp_path))
    tab = Context(TBContext(data_provider=provider))
    shown = Handler(RequestContext(), tab, "", GetExperimentRequest()).run()
    columns = {info.name: info for info in shown.hparam_infos}
    assert columns["algorithm.name"].differs
    assert not columns["local.lr"].differs
    assert {"algorithm.alpha", "algorithm.mu", "seed", "fleet.preset"} <= columns.keys()
    assert "final/accuracy" in {info.name.tag for info in shown.metric_infos}


@needs("tensorboard")
def test_tensorboard_shows_every_line_of_a_resumed_run_once(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        run(tmp_path / "run", "tensorboard", observe=stop)
    assert len(written(tmp_path / "run" / "tensorboard").Scalars("accuracy")) > 1
    result = run(tmp_path / "run", "tensorboard", resume=True)
    steps = [one.step for one in written(tmp_path / "run" / "tensorboard").Scalars("accuracy")]
    assert steps == result.curve["uploads"].tolist()


@needs("wandb")
def test_weights_and_biases(tmp_path: Path) -> None:
    result = real(tmp_path, "wandb")
    [written] = (result.directory / "wandb").glob("offline-run-*/*.wandb")
    content = written.read_bytes()
    assert b"algorithm.name" in content
    assert content.count(b"accuracy") >= len(result.curve["accuracy"])


@needs("mlflow")
def test_mlflow(tmp_path: Path) -> None:
    result = real(tmp_path, "mlflow")
    from mlflow import MlflowClient

    client = MlflowClient((tmp_path / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("fedasmu")
    assert experiment is not None
    [written] = client.search_runs([experiment.experiment_id])
    assert (written.info.run_name, written.info.status) == ("run", "FINISHED")
    assert written.data.params["local.lr"] == "0.1"
    history = client.get_metric_history(written.info.run_id, "accuracy")
    assert [one.value for one in history] == pytest.approx(result.curve["accuracy"].tolist())


def test_the_example_of_ones_own_tracker_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "how-to" / "trackers.md"
    [code] = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    exec(compile(code, str(page), "exec"), {})
    assert capsys.readouterr().out.startswith("the learning rate is 0.005\n0 0.")
