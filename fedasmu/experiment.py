"""An experiment: builds the objects from its settings, and runs them.

from fedasmu import Experiment
result = Experiment("quickstart").run(progress=True)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.console import Console
from torch import Tensor, nn

from fedasmu import pools
from fedasmu.data.federated import FederatedData
from fedasmu.engines.goal import Loss, Score
from fedasmu.errors import UserError
from fedasmu.events import Event, Measured
from fedasmu.imports import GO_ON, INSIDE
from fedasmu.measure import IN_PYTHON
from fedasmu.run.build import World, build
from fedasmu.run.drive import Drive
from fedasmu.run.extension import extend, is_done, longer, recipe_of
from fedasmu.run.profiles import write_profiles
from fedasmu.run.progress import Live
from fedasmu.run.result import Result
from fedasmu.run.trackers import Together, Tracker
from fedasmu.server.desk import Desk, first_refusal, observer
from fedasmu.settings.config import Config, Local, ModelSettings
from fedasmu.settings.evaluation import Evaluation
from fedasmu.settings.recipe import Changes, checked, load
from fedasmu.simulation.build import fleet_of, simulator
from fedasmu.storage import failure
from fedasmu.storage.record import Record, check_free, claimed
from fedasmu.system.disk import replaced, write_whole
from fedasmu.system.lock import check_idle
from fedasmu.system.process import one_thread, stop_request


class Experiment:
    """Settings, and optionally a model and data of your own, made ready to run.

    `weights` are what the first model starts from: a state dict, or a safetensors file. `loss` and `metric` are
    functions of (outputs, targets), or names as in a recipe.

    Settings are a recipe by its name or its file, or a table of its sections; `changes` are keys of it to change, as
    {"local.lr": 0.01}. In a table the method may be a class or an object.
    """

    def __init__(
        self,
        settings: Config | Mapping[str, Any] | str | Path,
        changes: Changes = (),
        *,
        model: Callable[[], nn.Module] | None = None,
        data: FederatedData | None = None,
        weights: Mapping[str, Tensor] | str | Path | None = None,
        loss: Loss | str | None = None,
        metric: Score | str | None = None,
        larger_is_better: bool | None = None,
        allow_code: bool = False,
    ) -> None:
        config = checked(settings, changes, allow_code)
        config = _judged(config, loss, metric, larger_is_better)
        if model is not None:
            _check_factory(model)
            _check_one_model(settings)
            kept = config.model.model_dump(include={"weights", "weights_sha256"})
            config = config.model_copy(update={"model": ModelSettings(name=IN_PYTHON, **kept)})
        if weights is not None:
            config = _starting_from(config, weights)
        if data is not None:
            _check_data(data)
            named = config.data.model_copy(update={"name": IN_PYTHON, "fallback": None})
            config = config.model_copy(update={"data": named})
        self.config, self._factory, self._given = config, model, data
        self._directory = Path("runs") / config.name
        self._weights = weights if isinstance(weights, Mapping) else None
        self._loss = None if isinstance(loss, str) else loss
        self._metric = None if isinstance(metric, str) else metric

    @classmethod
    def from_toml(
        cls, path: str | Path, overrides: Iterable[str] = (), *, allow_code: bool = False, **own: Any
    ) -> Experiment:
        """A recipe. With `allow_code` it may name a model, data or a method as "package.module:name"."""
        return cls(path, overrides, allow_code=allow_code, **own)

    @classmethod
    def of_run(
        cls,
        directory: str | Path,
        *,
        uploads: int | None = None,
        time: float | None = None,
        allow_code: bool = False,
        **own: Any,
    ) -> Experiment:
        """The experiment that a run directory belongs to, to resume it; with a larger budget, to extend it."""
        path = recipe_of(Path(directory))
        if allow_code and Path.cwd().is_relative_to(Path(directory).resolve()):
            raise UserError(f"{directory}: go to another folder first: code is not taken from a run directory")
        made = cls(longer(load(path, allow_code=allow_code), uploads, time), **own)
        made._directory = Path(directory)
        return made

    def run(
        self,
        out: str | Path | None = None,
        *,
        workers: pools.Workers = "inline",
        resume: bool = False,
        overwrite: bool = False,
        extendable: bool = False,
        trackers: Sequence[str | Tracker] = (),
        progress: bool = False,
        observe: Callable[[Desk, Event | Measured], None] | None = None,
        say: Callable[[str], None] = lambda message: None,
    ) -> Result:
        """Train to the end of the budget and leave all in `out`: runs/<name>, or what `of_run` had, unless given.

        `observe` is shown every line of events.jsonl and metrics.csv as it is written, with the desk that wrote it;
        where it raises `fedasmu.errors.Interrupted`, the run stops as by Ctrl-C.
        What is `extendable` keeps its last state: with a larger budget it goes on from there, not from the beginning.
        """
        if progress:
            live, kept = Live(Console(emoji=False), self.config.stop.uploads), {"extendable": extendable}
            with live.shown():
                told: dict[str, Any] = {"observe": live.beside(observe), "say": live.also(say), **kept}
                return self.run(out, workers=workers, resume=resume, overwrite=overwrite, trackers=trackers, **told)
        directory = self._directory if out is None else Path(out)
        pools.factory(workers)
        if INSIDE in self.config.algorithm.name:
            say(f"{self.config.algorithm.name} stands inside a function: `fedasmu resume` will not find it; {GO_ON}")
        check_idle(directory)
        if resume:
            if is_done(self.config, directory, self._given, self._weights):
                say(f"{directory} is finished already")
                return Result(directory)
        else:
            check_free(directory, overwrite)
        tracking = Together(trackers, directory, say)
        with one_thread(), stop_request() as stopping, ExitStack() as held:
            world = self._build(say)
            fleet = fleet_of(world)
            held.enter_context(claimed(directory, resume, overwrite))
            if resume:  # only now: what cannot be built, for want of its data, leaves a finished run as it is
                extend(self.config, directory, say, self._given, self._weights)
                if (directory / "summary.json").exists():  # by another process, while the data were read
                    return Result(directory)
            else:
                write_whole(directory / "config.toml", world.config.toml())
            with replaced(directory / "fleet.csv") as path:
                write_profiles(world.profiles, path)
            record = Record(directory)
            pool = world.pool(workers, stopping.is_set, say)
            try:
                driver = simulator(world, fleet, pool, record)
                driver.desk.watchers += [tracking.watch, first_refusal(say, self.config.guard.refuse)]
                if observe is not None:
                    driver.desk.watchers.append(observer(observe, driver.desk, stopping.set))
                tracking.start()  # after the pool: what a tracker keeps open is not forked into the workers
                drive = Drive(world, driver, directory, stopping, say)
                drive.run(resume, extendable)
                result = drive.conclude(workers, extendable)
                tracking.finish(result.summary)
                return result
            finally:
                tracking.finish({})
                pool.close()
                record.close()

    def repeat_failure(self, directory: str | Path) -> None:
        """Perform, in this process, the computation that failed in this run."""
        command, device, seed = failure.read(Path(directory))
        with one_thread():
            trainer = self._build(print).trainer
            assert trainer is not None, "where nothing is computed, nothing fails"
            trainer.perform(command, device, seed)

    def _build(self, say: Callable[[str], None]) -> World:
        if IN_PYTHON in (self.config.model.name, self.config.data.name):
            if self.config.model.name == IN_PYTHON and self._factory is None:
                raise UserError(
                    "this run's model was given in Python: resume it with Experiment.of_run(dir, model=...)"
                )
            if self.config.data.name == IN_PYTHON and self._given is None:
                raise UserError("this run's data were given in Python: resume it with Experiment.of_run(dir, data=...)")
        return build(self.config, self._factory, self._given, say, self._weights, self._loss, self._metric)


def _check_data(data: Any) -> None:
    if not isinstance(data, FederatedData):
        raise UserError(f"data: a {type(data).__name__}; make it with FederatedData.of(train, test, shards)")


def _check_factory(model: Any) -> None:
    if not callable(model):
        raise UserError(f"model: {model!r} makes no network; give what does, as in lambda: Net(); names are settings")
    if isinstance(model, nn.Module):
        raise UserError(
            f"model: this is a {type(model).__name__}, already made; give what makes one, as in model=lambda: Net(), "
            "so that its first weights follow from the run's seed"
        )


def _check_one_model(settings: Any) -> None:
    if isinstance(settings, Mapping) and "model" in settings:
        raise UserError(
            f"model = {settings['model']!r}: stands in the settings, and another is given as model=; keep one"
        )


def _starting_from(config: Config, weights: Mapping[str, Tensor] | str | Path) -> Config:
    """The settings with these first weights; those that a run directory vouches for must be the same."""
    named = IN_PYTHON if isinstance(weights, Mapping) else str(weights)
    table = config.model.model_dump() | {"weights": named}
    return config.model_copy(update={"model": ModelSettings(**table)})


def _judged(config: Config, loss: Any, metric: Any, larger: bool | None) -> Config:
    """The settings with this loss and metric, where they are given."""
    local = {} if loss is None else {"loss": _named(loss, "loss")}
    evaluate: dict[str, Any] = {} if metric is None else {"metric": _named(metric, "metric")}
    evaluate |= {} if larger is None else {"larger_is_better": larger}
    try:
        return config.model_copy(
            update={
                "local": Local.model_validate(config.local.model_dump() | local),
                "evaluate": Evaluation.model_validate(config.evaluate.model_dump() | evaluate),
            }
        )
    except ValidationError as error:
        told = [(*one["loc"], str(one["msg"]).removeprefix("Value error, ")) for one in error.errors()]
        raise UserError("; ".join(": ".join(map(str, one)) for one in told)) from None


def _named(given: Any, word: str) -> str:
    """What a recipe calls it. A function without a name of its own is called after what it is."""
    if isinstance(given, str):
        return given
    if not callable(given):
        raise UserError(f"{word}: a {type(given).__name__}; give a function of (outputs, targets), or a name")
    name = getattr(given, "__name__", type(given).__name__)
    return f"{IN_PYTHON}/{name if name.isidentifier() else word}"
