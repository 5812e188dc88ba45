"""An experiment: builds the objects from its settings, and runs them.

from fedasmu import Experiment
result = Experiment("quickstart").run(progress=True)
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import nn

from fedasmu import checkpoint, failure, pools
from fedasmu.build import Build
from fedasmu.conclusion import conclude, early, on
from fedasmu.config import IN_PYTHON, Config, Network
from fedasmu.data.federated import FederatedData
from fedasmu.desk import Desk, first_refusal
from fedasmu.errors import DeviceError, Interrupted, UserError
from fedasmu.events import Event, Measured
from fedasmu.extension import extend, longer, recipe_of
from fedasmu.lock import check_idle
from fedasmu.process import one_thread, stop_request
from fedasmu.progress import Live
from fedasmu.recipe import Changes, checked, load
from fedasmu.record import SHELVES, Record, check_free, claimed, write_whole
from fedasmu.result import Result
from fedasmu.simulation.simulator import Simulator
from fedasmu.trackers import Together, Tracker


class Experiment:
    """Settings, and optionally a model and data of your own, made ready to run.

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
        allow_code: bool = False,
    ) -> None:
        config = checked(settings, changes, allow_code)
        if model is not None:
            _check_factory(model)
            config = config.model_copy(update={"model": Network(name=IN_PYTHON)})
        if data is not None:
            named = config.data.model_copy(update={"name": IN_PYTHON})
            config = config.model_copy(update={"data": named})
        self.config, self._factory, self._given = config, model, data

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
        return cls(longer(load(path, allow_code=allow_code), uploads, time), **own)

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
        """Train to the end of the budget and leave everything in `out` (runs/<name> unless given).

        `observe` is shown every line of events.jsonl and metrics.csv as it is written, with the desk that wrote it.
        What is `extendable` keeps its last state: with a larger budget it goes on from there, not from the beginning.
        """
        if progress:
            live, kept = Live(Console(), self.config.stop.uploads), {"overwrite": overwrite, "extendable": extendable}
            with live.shown():
                told: dict[str, Any] = {"observe": live.observe, "say": live.say, "trackers": trackers, **kept}
                return self.run(out, workers=workers, resume=resume, **told)
        directory = Path(out) if out is not None else Path("runs") / self.config.name
        pools.factory(workers)
        check_idle(directory)
        if resume:
            recipe_of(directory)
            with claimed(directory, resume, overwrite):
                extend(self.config, directory, say)
            if (directory / "summary.json").exists():
                say(f"{directory} is finished already")
                return Result(directory)
        else:
            check_free(directory, overwrite)
        tracking = Together(trackers, directory, say)
        with one_thread(), stop_request() as stopping, ExitStack() as held:
            build = self._build(say)
            held.enter_context(claimed(directory, resume, overwrite))
            if resume and (directory / "summary.json").exists():  # by another process, while the data were read
                return Result(directory)
            if not resume:
                write_whole(directory / "config.toml", build.config.toml())
            build.fleet.write(directory / "fleet.csv")
            record = Record(directory)
            pool = build.pool(workers, stopping.is_set, say)
            try:
                simulator = build.simulator(pool, record)
                simulator.desk.watchers += [tracking.watch, first_refusal(say)]
                if observe is not None:
                    simulator.desk.watchers.append(partial(observe, simulator.desk))
                tracking.start()  # after the pool: what a tracker keeps open is not forked into the workers
                result = _execute(build, simulator, directory, resume, extendable, workers, stopping, say)
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
            self._build(print).trainer().perform(command, device, seed)

    def _build(self, say: Callable[[str], None]) -> Build:
        if IN_PYTHON in (self.config.model.name, self.config.data.name):
            if self.config.model.name == IN_PYTHON and self._factory is None:
                raise UserError(
                    "this run's model was given in Python: resume it with Experiment.of_run(dir, model=...)"
                )
            if self.config.data.name == IN_PYTHON and self._given is None:
                raise UserError("this run's data were given in Python: resume it with Experiment.of_run(dir, data=...)")
        return Build(self.config, self._factory, self._given, say)


def _check_factory(model: Any) -> None:
    if isinstance(model, nn.Module):
        raise UserError(
            f"model: this is a {type(model).__name__}, already made; give what makes one, as in model=lambda: Net(), "
            "so that its first weights follow from the run's seed"
        )


def _execute(
    build: Build,
    simulator: Simulator,
    directory: Path,
    resume: bool,
    extendable: bool,
    workers: pools.Workers,
    stopping: threading.Event,
    say: Callable[[str], None],
) -> Result:
    state = checkpoint.load(directory / "checkpoint", say) if resume else None
    before = 0.0  # seconds that the run took until the checkpoint
    began = saved = time.monotonic()
    under_way = False

    def save() -> None:
        wall = before + time.monotonic() - began
        checkpoint.save({**simulator.state(), "wall": wall, "on": on(build)}, directory / "checkpoint")

    try:
        if state is None:
            simulator.begin()
        else:
            before = _restore(simulator, state, directory)
            if state.get("on", on(build)) != on(build):
                say(f"begun with {state['on']}, goes on with {on(build)}: the last digits of its numbers may differ")
        under_way = True
        while not simulator.finished and not stopping.is_set():
            simulator.step()
            if time.monotonic() - saved > build.config.checkpoint_seconds:
                save()
                saved = time.monotonic()
        if stopping.is_set():
            raise Interrupted
        ended = simulator.ended
        if extendable:
            save()
        simulator.finish()
    except Interrupted:
        stopping.clear()  # so that the checkpoint may wait for an evaluation under way
        if under_way:  # a half restored run is not worth saving: the checkpoint that it came from is still there
            save()
        raise Interrupted(directory) from None
    except DeviceError as error:
        if error.job is not None and error.job.device >= 0:
            failure.save(error.job.command, error.job.device, error.job.seed, directory)
        if error.job is not None and under_way:  # it failed while it was waited for: no event is half done
            with suppress(DeviceError, Interrupted):  # an evaluation that failed cannot be waited for
                save()
        raise
    conclude(build, simulator, directory, ended, workers, before + time.monotonic() - began)
    for folder in () if extendable else ("checkpoint", SHELVES):  # a finished run needs them no more
        shutil.rmtree(directory / folder, ignore_errors=True)
    if ended != "uploads":
        say(early(ended, build.config.stop, simulator))
    return Result(directory)


def _restore(simulator: Simulator, state: Any, directory: Path) -> float:
    """The seconds that the run had taken. What a checkpoint lacks is told in a sentence, though its digest is right."""
    try:
        simulator.restore(state)
        return float(state["wall"])
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{directory}: its checkpoint does not fit this run ({type(error).__name__}: {error}); "
            "start the run again with --overwrite"
        ) from error
