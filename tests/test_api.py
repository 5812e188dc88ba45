"""The same from Python, and a user's own model, data and method without touching the package."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

import fedasmu
from fedasmu import Experiment, FederatedData, Result, data, events
from fedasmu.errors import UserError
from fedasmu.events import Delivered, Event, Measured
from fedasmu.report.league import leagues
from fedasmu.report.page import write_page
from fedasmu.report.summary import table
from fedasmu.report.tables import main_table
from fedasmu.run.progress import Live
from fedasmu.server.desk import Desk
from helpers.blobs import Run, blobs, settings, softmax

RECIPE = """
model = "softmax"
[data]
name = "fashion-mnist-small"
[fleet]
devices = 20
[local]
epochs = 1
[algorithm]
name = "fedavg"
[stop]
uploads = 4
[evaluate]
every = 2
"""


def test_a_recipe_from_python(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    experiment = Experiment.from_toml(tmp_path / "recipe.toml", ["stop.uploads=6", "seed=3"])
    result = experiment.run(tmp_path / "run")
    assert result.config["seed"] == 3
    assert result.curve["uploads"].tolist() == [0, 2, 4, 6]


def test_changes_may_be_numpys_numbers() -> None:
    config = Experiment("quickstart", {"stop.uploads": np.int64(3), "local.lr": np.float64(0.25)}).config
    assert (config.stop.uploads, config.local.lr) == (3, 0.25)
    with pytest.raises(UserError, match=r"tensor\(0.5000\): a recipe holds numbers, .* not a Tensor"):
        Experiment("quickstart", {"local.lr": torch.tensor(0.5)})


def test_the_default_directory_is_named_after_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = settings(name="mine", timing_only=True)
    assert Experiment(table).run().directory == Path("runs/mine")


def test_the_curve_is_arrays(run: Run) -> None:
    result = run()
    assert set(result.curve) >= {"time", "version", "uploads", "accuracy", "loss", "staleness", "bytes_up"}
    assert {array.dtype for array in result.curve.values()} == {np.dtype(np.float64)}
    assert {len(array) for array in result.curve.values()} == {13}
    assert np.isnan(result.curve["staleness"][0])  # before any upload there is none
    assert result.curve["uploads"].tolist() == list(range(0, 65, 5))
    assert result.accuracy == pytest.approx(result.curve["accuracy"][-3:].mean())  # a quarter of twelve
    assert result.last_score == result.curve["accuracy"][-1] == result.summary["last_accuracy"]
    assert result.best_score == result.curve["accuracy"].max() > 0.9


@pytest.mark.parametrize(("method", "flight", "said"), [("fedasync", 1, 1), ("fedasync", 2, 0), ("fedavg", 1, 0)])
def test_a_fleet_in_which_nothing_overlaps_says_so(method: str, flight: int, said: int, tmp_path: Path) -> None:
    heard: list[str] = []
    table = settings(algorithm={"name": method}, pacing={"max_in_flight": flight}, timing_only=True)
    Experiment(table).run(tmp_path / "run", say=heard.append)
    assert sum("nothing overlaps" in line for line in heard) == said


@pytest.mark.parametrize(
    ("method", "every", "said"), [("fedavg", 4, 1), ("fedavg", 3, 0), ("fedavg", 12, 0), ("fedasync", 4, 0)]
)
def test_rounds_that_are_measured_late_are_told_of(method: str, every: int, said: int, tmp_path: Path) -> None:
    heard: list[str] = []
    changes = {"pacing": {"max_in_flight": 6}, "evaluate": {"every": every}, "stop": {"uploads": 12}}
    table = settings(algorithm={"name": method}, timing_only=True, **changes)
    Experiment(table).run(tmp_path / "run", say=heard.append)
    assert sum(f"evaluate.every = {every}: a round is 6 uploads" in line for line in heard) == said


def test_the_first_refusal_is_told_once_and_marked_at_the_end(tmp_path: Path) -> None:
    heard: list[str] = []
    result = Experiment(settings(local={"lr": 1e38}), model=softmax, data=blobs()).run(
        tmp_path / "run", say=heard.append
    )
    assert result.summary["refused"] > 1
    (told,) = [line for line in heard if "refused" in line]
    assert re.match(r"device \d's model was refused .*: is local.lr too high\?", told)
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(table(result))
    assert "did training diverge (local.lr)?" in console.export_text()


def test_what_a_guard_may_have_refused_is_not_put_down_to_the_learning_rate(tmp_path: Path) -> None:
    heard: list[str] = []
    guard = {"refuse": 1.01, "after": 1, "window": 1}
    result = Experiment(settings(guard=guard), model=softmax, data=blobs()).run(tmp_path / "run", say=heard.append)
    assert result.summary["refused"] > 1
    (told,) = [line for line in heard if "refused" in line]
    assert told.endswith("did it go beyond guard.refuse = 1.01, or is local.lr too high?")
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(table(result))
    assert "refused: beyond guard.refuse, or diverged (local.lr)?" in console.export_text()
    (league,) = leagues([result])
    assert "uploads that went beyond guard.refuse, or that the server could not use" in main_table(league).note


def test_it_learns(run: Run) -> None:
    for method in ("fedavg", "fedasync"):
        curve = run(algorithm={"name": method}).curve
        assert curve["accuracy"][-1] > 0.95
        assert curve["loss"][-1] < curve["loss"][0] / 2


def test_the_time_to_a_target(run: Run) -> None:
    result = run(evaluate={"targets": [0.9, 1.0]})
    reached = result.time_to(0.9)
    assert reached is not None
    first = np.flatnonzero(result.curve["accuracy"] >= 0.9)[0]
    assert reached == result.curve["time"][first] == result.summary["time_to"]["0.9"]
    assert result.time_to(1.01) is None


def test_paths_may_be_strings(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    one, two = run(), run(seed=1)
    frame = fedasmu.load_runs(str(tmp_path))
    assert Result(frame.directory[0]).accuracy == one.accuracy
    assert write_page([str(one.directory), str(two.directory)], str(tmp_path / "page.html")).is_file()
    assert data.load("fashion-mnist-small", str(tmp_path)).name == "fashion-mnist-small"


def test_the_curve_as_a_frame(run: Run) -> None:
    pandas = pytest.importorskip("pandas")
    frame = run().frame()
    assert isinstance(frame, pandas.DataFrame)
    assert len(frame) == 13


class Normed(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(20, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def test_the_final_model_is_the_one_that_was_evaluated(run: Run) -> None:
    result = run(model=Normed, local={"batch": 15})
    module = Normed()
    missing = module.load_state_dict(result.state_dict, strict=False)
    assert missing.missing_keys == []
    assert missing.unexpected_keys == []
    test = blobs().test
    with torch.no_grad():
        correct = (module.eval()(test.inputs).argmax(1) == test.targets).sum()
    assert int(correct) / 100 == result.curve["accuracy"][-1]


def test_the_events(run: Run) -> None:
    events = list(run().events)
    assert events[0] == {"time": 0.0, "event": "start", "task": 0, "device": events[0]["device"], "version": 0}
    uploads = [event for event in events if event["event"] == "upload"]
    assert len(uploads) == 60
    assert {"task", "device", "base", "staleness", "verdict", "loss"} <= set(uploads[0])


def test_a_result_is_read_from_any_run_directory(run: Run, tmp_path: Path) -> None:
    result = run()
    again = Result(str(result.directory))
    assert again.summary == result.summary
    with pytest.raises(UserError, match=r"no metrics\.csv"):
        Result(tmp_path)


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_of_the_bar_is_cut_off(width: int, tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=width)
    live = Live(console, 5_000)
    with live.shown():
        Experiment(settings(), model=softmax, data=blobs()).run(tmp_path / "run", observe=live.observe)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "staleness" in text
    assert "…" not in text
    assert ("version" in text) == (width > 100)


def test_observe_sees_every_line_of_the_run(tmp_path: Path) -> None:
    seen: list[Event | Measured] = []
    received: list[int] = []

    def observe(desk: Desk, line: Event | Measured) -> None:
        seen.append(line)
        if isinstance(line, Delivered):
            received.append(desk.server.counters.received)

    result = Experiment(settings(timing_only=True)).run(tmp_path / "run", observe=observe)
    assert received == list(range(1, 61))
    assert [line for line in seen if not isinstance(line, Measured)] == [events.of_line(line) for line in result.events]
    assert [line.time for line in seen if isinstance(line, Measured)] == result.curve["time"].tolist()


def test_unknown_names_of_the_package() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Experimnet'"):
        fedasmu.Experimnet  # type: ignore[attr-defined] # noqa: B018


def test_the_number_of_workers_is_checked(tmp_path: Path) -> None:
    for workers in (0, -1, "two"):
        with pytest.raises(UserError, match="1 or more, inline, or ray"):
            Experiment(settings()).run(tmp_path / "run", workers=workers)
    assert not (tmp_path / "run").exists()


def test_the_number_of_threads_is_given_back(run: Run) -> None:
    torch.set_num_threads(2)
    try:
        run(stop={"uploads": 5})
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


# --- a user's own


def test_own_model_and_own_data(tmp_path: Path) -> None:
    """As the README shows it: tensors, one list of indices a device, and any module factory."""
    inputs = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    targets = (inputs[:, 0] > 0).long()
    data = FederatedData.of(
        train=(inputs[:40], targets[:40]),
        test=(inputs[40:], targets[40:]),
        devices=[range(0, 10), range(10, 25), [39, 38, 37]],
    )
    experiment = Experiment(
        {
            "algorithm": {"name": "fedavg"},
            "pacing": {"max_in_flight": 3},
            "local": {"lr": 0.5},
            "stop": {"uploads": 60},
        },
        model=lambda: nn.Linear(4, 2),
        data=data,
    )
    result = experiment.run(tmp_path / "run")
    assert result.config["fleet"]["devices"] == 3  # as many as there are lists
    assert result.curve["accuracy"][-1] > result.curve["accuracy"][0] + 0.1
    assert set(result.state_dict) == {"weight", "bias"}


MODULE = '''
import torch
from rich.console import Console
from torch import nn
from fedasmu import FederatedData
from fedasmu.algorithms import Aggregate, Aggregator, Algorithm, Learner
from fedasmu.protocol import Report, Train
from fedasmu.schedule import Periodic

def net(width=5):
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))

def data():
    inputs = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    targets = (inputs[:, 0] > 0).long()
    return FederatedData.of((inputs, targets), (inputs, targets), [range(0, 30), range(30, 60)])

class Newest(Aggregator):
    def aggregate(self, current, uploads):
        return Aggregate(uploads[-1].report.vector, [1.0])

class Plain(Learner):
    def __init__(self, factor):
        self.factor = factor

    def train(self, task, work, memory):
        trained = yield Train(task.model.vector, range(work.steps), self.factor * task.lr)
        return Report(trained.vector, work.examples, trained.loss, {"factor": self.factor})

class Mine(Algorithm):
    """The newest upload is the next model."""

    kind = "asynchronous"
    name: str = "mine"
    factor: float = 1.0

    def schedule(self, pace):
        return Periodic(pace.count, pace.limit)

    def aggregator(self, federation):
        return Newest()

    def learner(self):
        return Plain(self.factor)
'''


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's module beside the recipe, found because it is in the current folder."""
    (tmp_path / "own_things.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("own_things", None)


@pytest.mark.parametrize("workers", ["inline", 2])
def test_own_model_data_and_method_named_in_a_recipe(own_module: Path, workers: int) -> None:
    (own_module / "recipe.toml").write_text(
        """
        [model]
        name = "own_things:net"
        width = 7
        [data]
        name = "own_things:data"
        [pacing]
        max_in_flight = 2
        [algorithm]
        name = "own_things:Mine"
        factor = 20.0
        [stop]
        uploads = 30
        """
    )
    result = Experiment.from_toml("recipe.toml", allow_code=True).run("run", workers=workers)
    assert result.config["algorithm"] == {"name": "own_things:Mine", "factor": 20.0}
    assert result.state_dict["0.weight"].shape == (7, 4)
    assert result.curve["accuracy"][-1] > 0.8
    assert {event["factor"] for event in result.events if event["event"] == "upload"} == {20.0}


def test_own_settings_of_an_own_method_are_checked(own_module: Path) -> None:
    with pytest.raises(UserError, match=r"algorithm\.facto: unknown key; did you mean algorithm\.factor\?"):
        Experiment(settings(algorithm={"name": "own_things:Mine", "facto": 1.0}))


def test_own_model_with_the_packages_data(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE)

    def net() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))

    result = Experiment.from_toml(tmp_path / "recipe.toml", model=net).run(tmp_path / "run")
    assert result.config["model"]["name"] == "given-in-python"


def test_initial_weights_depend_on_the_seed_alone(tmp_path: Path) -> None:
    first = []
    for global_seed in (1, 2):
        torch.manual_seed(global_seed)
        experiment = Experiment(settings(stop={"uploads": 1}), model=softmax, data=blobs())
        first.append(experiment.run(tmp_path / str(global_seed)).curve["loss"][0])
    assert first[0] == first[1]


@pytest.mark.parametrize("batch", [20, 1])  # device 1 holds 21 examples
def test_a_model_that_cannot_train_on_one_example_is_refused_before_it_starts(tmp_path: Path, batch: int) -> None:
    def normalised() -> nn.Module:
        return nn.Sequential(nn.Linear(20, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

    table = settings(local={"batch": batch})
    with pytest.raises(UserError, match=rf"local.batch = {batch}: .* single example"):
        Experiment(table, model=normalised, data=blobs()).run(tmp_path / "run")


def test_an_own_method_may_fix_its_name_as_ours_do(own_module: Path) -> None:
    (own_module / "named.py").write_text(
        "from typing import Literal\nfrom fedasmu.algorithms import FedAvg\n"
        "class Named(FedAvg):\n    name: Literal['named'] = 'named'\n"
    )
    result = Experiment(settings(algorithm={"name": "named:Named"}), model=softmax, data=blobs()).run(
        own_module / "run"
    )
    assert result.config["algorithm"]["name"] == "named:Named"
