"""A finished run, read from its directory: the curve as arrays, the model as a state dict, the events."""

from __future__ import annotations

import csv
import json
import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedasmu.errors import UserError, reading
from fedasmu.events import Event, Fetched, Started, of_line
from fedasmu.measure import ACCURACY, METRICS, Metric, known
from fedasmu.storage.record import SCRIPT, SERVED

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure
    from torch import Tensor, nn

EVENTS = "events.jsonl"
SETTLED = 20  # evaluations that the final accuracy is the mean of, where there are four times as many


@dataclass(frozen=True, init=False, repr=False)
class Result:
    directory: Path

    def __init__(self, directory: str | Path) -> None:
        object.__setattr__(self, "directory", Path(directory))
        if not (self.directory / "metrics.csv").is_file():
            raise UserError(f"{self.directory}: not a run directory: it has no metrics.csv")

    @cached_property
    def config(self) -> dict[str, Any]:
        path = self.directory / "config.toml"
        with reading(path):
            return tomllib.loads(path.read_text())

    @cached_property
    def curve(self) -> dict[str, NDArray[np.float64]]:
        """The lines that are of all test examples: every number that a run is judged by comes from these."""
        lines = self.lines
        full = ~(lines["subset"] > 0) if "subset" in lines else slice(None)
        return {name: column[full] for name, column in lines.items()}

    @cached_property
    def lines(self) -> dict[str, NDArray[np.float64]]:
        """The columns of metrics.csv; what is unknown, such as the staleness before any upload, is NaN."""
        path = self.directory / "metrics.csv"
        with reading(path), path.open() as file:
            header, *rows = csv.reader(file)
            columns = list(zip(*rows, strict=True)) or [()] * len(header)
            pairs = zip(header, columns, strict=True)
            return {name: np.array([float(value or "nan") for value in column]) for name, column in pairs}

    def frame(self) -> pandas.DataFrame:
        """The curve as a DataFrame; needs pandas."""
        return _pandas().DataFrame(self.curve)

    @property
    def clock(self) -> str:
        """What its times are: of a run whose devices are real ones, those of the server's own clock."""
        served, scripted = ((self.directory / name).exists() for name in (SERVED, SCRIPT))
        return "time" if served and not scripted else "virtual time"

    @property
    def has_events(self) -> bool:
        """Whether events.jsonl is there: it is most of a long run, and may be left out where one is passed on."""
        return (self.directory / EVENTS).exists()

    @property
    def events(self) -> Iterator[dict[str, Any]]:
        """Every line of events.jsonl, in order."""
        path = self.directory / EVENTS
        with reading(path), path.open() as file:
            for number, line in enumerate(file, 1):
                with reading(f"{path}, line {number}"):
                    event = json.loads(line)
                yield event

    @property
    def typed_events(self) -> Iterator[Event]:
        """The same lines as the values of fedasmu.events."""
        for number, line in enumerate(self.events, 1):
            with reading(f"{self.directory / EVENTS}, line {number}"):
                event = of_line(line)
            yield event

    @cached_property
    def state_dict(self) -> dict[str, Tensor]:
        """The final model, for `module.load_state_dict(..., strict=False)`: integer buffers are not part of it."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = self.directory / "model.safetensors"
        with reading(path):
            try:
                return load_file(path)
            except SafetensorError as error:
                raise ValueError(error) from None

    @cached_property
    def summary(self) -> dict[str, Any]:
        path = self.directory / "summary.json"
        with reading(path):
            return dict(json.loads(path.read_text()))

    @cached_property
    def fresh_bytes(self) -> float:
        """Downloaded as fresh models in the middle of a training, out of all that was downloaded. NaN: not known."""
        if "bytes_fresh" in self.summary:  # where models do not travel whole
            return float(self.summary["bytes_fresh"])
        if not self.has_events:
            return math.nan
        started = sent = 0
        for event in self.typed_events:
            started += isinstance(event, Started)
            sent += isinstance(event, Fetched) and event.fresh is not None
        # All that went down are models of one size. Not so uploads: some are still on their way, some bring more.
        return float(self.summary["bytes_down"] * sent // max(started + sent, 1))

    @property
    def is_of_times_alone(self) -> bool:
        """Whether it simulated the order of events without any training."""
        return bool(self.summary.get("data") == "none")

    @cached_property
    def metric(self) -> Metric:
        """What the run was judged by: accuracy, unless its recipe names another."""
        path = self.directory / "config.toml"
        with reading(path):
            evaluate = self.config.get("evaluate", {})
            return Metric.of(known(str(evaluate.get("metric", ACCURACY)), METRICS), evaluate.get("larger_is_better"))

    @property
    def accuracy(self) -> float:
        """The score of a run that was judged by its accuracy."""
        if self.metric.name != ACCURACY:
            raise UserError(f"{self.directory}: this run measured {self.metric.name}: see its score")
        return self.score

    @property
    def score(self) -> float:
        """The mean of the last evaluations, `settled`: one alone swings with the devices that the server met last."""
        return self.score_at(math.inf)

    def score_at(self, time: float) -> float:
        """The same, as it stood at this virtual time; NaN before the first evaluation."""
        return float(settled.mean()) if len(settled := self.settled(time)) else math.nan

    def settled(self, time: float = math.inf) -> NDArray[np.float64]:
        """The last evaluations: 20, but no more than a quarter of them, and at least one.

        The untrained model is not among them, unless no other was evaluated.
        """
        scores, past = self.scores, self.curve["time"] <= time
        trained = scores[past & (self.curve["version"] > 0)]
        known = trained if len(trained) else scores[past]
        return known[-max(1, min(SETTLED, len(trained) // 4)) :]

    @property
    def last_score(self) -> float:
        return float(self.scores[-1])

    @property
    def scores(self) -> NDArray[np.float64]:
        """The metric's column of the curve."""
        found = self.curve.get(self.metric.name, np.array([]))
        if not len(found):
            raise UserError(f"{self.directory / 'metrics.csv'}: no evaluation")
        return found

    @property
    def best_score(self) -> float:
        return self.metric.best(self.scores)

    def time_to(self, target: float) -> float | None:
        """Virtual seconds until an evaluation was first as good as this; None if none did."""
        reached = self.metric.reached(self.scores, target)
        return float(self.curve["time"][reached[0]]) if len(reached) else None

    def plot(self) -> Figure:
        """The metric over virtual time, as a matplotlib figure: a notebook shows it."""
        from fedasmu.report.summary import curve

        return curve(self)

    def model(self, module: nn.Module | None = None) -> nn.Module:
        """The network with the final weights, ready to be used; a model of your own is given as a module to fill."""
        from fedasmu.run.materials import finished_network

        return finished_network(self.config, self.state_dict, module)

    def __repr__(self) -> str:
        if not (self.directory / "summary.json").is_file():
            return f"Result({str(self.directory)!r}, unfinished)"
        run = self.summary
        what = f"{run['method']} on {run['data']}, seed {run['seed']}"
        score = f"{self.metric.name} {self.metric.shown(run[self.metric.name])}"
        return f"Result({str(self.directory)!r}: {what}, {score} after {run['uploads']} uploads)"

    def _repr_html_(self) -> str:
        from fedasmu.report.summary import lines

        rows = lines(self) if (self.directory / "summary.json").is_file() else []
        cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
        return f"<p>{escape(repr(self))}</p><table>{cells}</table>"


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"local": {"lr": 0.1}} -> {"local.lr": 0.1}"""
    pairs: dict[str, Any] = {}
    for key, value in table.items():
        pairs |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return pairs


def load_runs(directory: str | Path = "runs") -> pandas.DataFrame:
    """All finished runs in and below a directory, one row each: the settings in which they differ, and their summary.

    The times to the targets are columns "time_to.0.7"; `fedasmu.Result(row.directory)` has the rest of a run.
    """
    results = [Result(path.parent) for path in sorted(Path(directory).rglob("summary.json"))]
    if not results:
        raise UserError(f"{directory}: no finished run there")
    settings = [flat(result.config) for result in results]
    keys = [key for key in dict.fromkeys(key for table in settings for key in table) if key != "seed"]
    differing = [key for key in keys if any(table.get(key) != settings[0].get(key) for table in settings)]
    rows = [
        {"directory": str(result.directory)} | {key: table.get(key) for key in differing} | flat(result.summary)
        for result, table in zip(results, settings, strict=True)
    ]
    return _pandas().DataFrame(rows)


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise UserError("this needs pandas: pip install pandas") from None
    return pandas
