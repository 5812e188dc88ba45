"""Follow a run in TensorBoard, Weights & Biases or MLflow, extra packages all: every line of metrics.csv as it comes.

Nothing leaves the machine, and a tracker cannot influence a run: it is shown numbers, and one that fails is left out.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fedasmu.errors import UserError, did_you_mean
from fedasmu.events import Event, Measured
from fedasmu.run.result import Result, flat


class Tracker(Protocol):
    def start(self, config: Mapping[str, Any]) -> None:
        """A run begins; the settings are flat: {"local.lr": 0.01}."""

    def log(self, row: Mapping[str, Any]) -> None:
        """A line of metrics.csv; see `fedasmu run --help` for what is in it."""

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The run is over; the summary is empty if it was interrupted."""


class TensorBoard:
    """In <run>/tensorboard: `tensorboard --logdir runs` shows all runs side by side."""

    def __init__(self, directory: Path) -> None:
        _require("tensorboard", "tensorboard")
        self.directory = directory / "tensorboard"

    def start(self, config: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        for earlier in self.directory.glob("events.out.tfevents.*"):
            earlier.unlink()  # of the run before it was resumed: all of its lines come once more
        self.writer, self.last = SummaryWriter(self.directory), 0
        self._text("config", config)
        self._session(0, {key: _plain(value) for key, value in config.items()})

    def log(self, row: Mapping[str, Any]) -> None:
        self.last = int(row["uploads"])
        for name, value in _numbers(row).items():
            self.writer.add_scalar(name, value, self.last)

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._text("summary", summary)
        if summary:
            name = str(summary["metric"])
            for key in (name, f"best_{name}"):
                self.writer.add_scalar(f"final/{key}", float(summary[key]), self.last)
            self._session(1, {})
        self.writer.close()

    def _session(self, which: int, settings: Mapping[str, Any]) -> None:
        """The beginning (0) or the end (1) of a run for the HParams tab, which compares runs by their settings.

        The first part of the three, a list of what there is to compare, is left out: TensorBoard would believe that of
        one run for all of them, and hide the settings that only others have. It makes its own, of all runs.
        """
        from torch.utils.tensorboard import summary as protocol

        parts: Any = protocol
        writer: Any = self.writer
        writer.file_writer.add_summary(parts.hparams(settings, {})[1 + which])

    def _text(self, name: str, table: Mapping[str, Any]) -> None:
        lines = "\n".join(f"    {key} = {json.dumps(value)}" for key, value in table.items())
        self.writer.add_text(name, lines)


class WeightsAndBiases:
    """Offline, in <run>/wandb; `wandb sync` sends it where you want it."""

    def __init__(self, directory: Path) -> None:
        _require("wandb", "wandb")
        self.directory = directory

    def start(self, config: Mapping[str, Any]) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        quiet = wandb.Settings(silent=True, console="off", disable_git=True, save_code=False, x_disable_stats=True)
        self.run = wandb.init(
            mode="offline",
            project="fedasmu",
            name=self.directory.name,
            dir=self.directory,
            config=dict(config),
            settings=quiet,
            reinit="create_new",
        )

    def log(self, row: Mapping[str, Any]) -> None:
        self.run.log(_numbers(row), step=int(row["uploads"]))

    def finish(self, summary: Mapping[str, Any]) -> None:
        self.run.summary.update(dict(summary))
        self.run.finish()


class MLflow:
    """In mlruns beside the run directory; docs/how-to/trackers.md says how to look at it."""

    def __init__(self, directory: Path) -> None:
        _require("mlflow", "mlflow")
        self.directory = directory

    def start(self, config: Mapping[str, Any]) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        # MLflow would rather have a database; a directory needs no further package and takes several runs at once.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow import MlflowClient

        self.client = MlflowClient((self.directory.absolute().parent / "mlruns").as_uri())
        experiment = self.client.get_experiment_by_name("fedasmu")
        number = experiment.experiment_id if experiment else self.client.create_experiment("fedasmu")
        self.run = self.client.create_run(number, run_name=self.directory.name).info.run_id
        for name, value in config.items():
            self.client.log_param(self.run, name, value)

    def log(self, row: Mapping[str, Any]) -> None:
        from mlflow.entities import Metric

        now, step = int(time.time() * 1000), int(row["uploads"])
        metrics = [Metric(name, value, now, step) for name, value in _numbers(row).items()]
        self.client.log_batch(self.run, metrics=metrics)

    def finish(self, summary: Mapping[str, Any]) -> None:
        for name, value in summary.items():
            self.client.set_tag(self.run, name, json.dumps(value))
        self.client.set_terminated(self.run, "FINISHED" if summary else "KILLED")


TRACKERS: dict[str, Callable[[Path], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}


def named(name: str, directory: Path) -> Tracker:
    if name not in TRACKERS:
        raise UserError(f"--track {name}: there is {', '.join(TRACKERS)}{did_you_mean(name, TRACKERS)}")
    return TRACKERS[name](directory)


def check_known(names: Sequence[str]) -> None:
    """Refuse a tracker that is not, or whose package is not installed, before a study begins."""
    for name in names:
        named(name, Path())


class Together:
    """Several trackers as one. One that fails is named once and left out; the run goes on."""

    def __init__(self, trackers: Sequence[str | Tracker], directory: Path, say: Callable[[str], None]) -> None:
        several = [trackers] if isinstance(trackers, str) else trackers
        self._trackers = [named(one, directory) if isinstance(one, str) else one for one in several]
        self._directory, self._say = directory, say
        self._behind = True

    def start(self) -> None:
        config = flat(Result(self._directory).config) if self._trackers else {}
        self._each(lambda tracker: tracker.start(config))

    def watch(self, line: Event | Measured) -> None:
        if isinstance(line, Measured):
            self._catch_up(written=1)
            self._log(line.row())

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Only the first time; later it does nothing."""
        self._catch_up(written=0)
        self._each(lambda tracker: tracker.finish(summary))
        self._trackers = []

    def _catch_up(self, written: int) -> None:
        """A resumed run has lines already: trackers are shown these first, all but the last `written`."""
        if not self._behind or not self._trackers:
            return
        self._behind = False
        curve = Result(self._directory).lines
        rows = [dict(zip(curve, values, strict=True)) for values in zip(*curve.values(), strict=True)]
        for row in rows[: len(rows) - written]:
            self._log(row)

    def _log(self, row: Mapping[str, Any]) -> None:
        self._each(lambda tracker: tracker.log(row))

    def _each(self, act: Callable[[Tracker], None]) -> None:
        for tracker in list(self._trackers):
            try:
                act(tracker)
            except Exception as error:  # whatever a foreign package raises, the run is worth more
                self._trackers.remove(tracker)
                self._say(f"{type(tracker).__name__} failed and is left out from here on: {error!r}")


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The columns that have a value; what is unknown, such as the staleness before any upload, is left out."""
    return {name: float(value) for name, value in row.items() if value != "" and math.isfinite(value)}


def _plain(value: Any) -> bool | int | float | str:
    """As TensorBoard takes a setting: a list is written out."""
    return value if isinstance(value, bool | int | float | str) else json.dumps(value)


def _require(module: str, extra: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise UserError(f"--track {extra}: its package is not installed; pip install 'fedasmu[{extra}]'")
