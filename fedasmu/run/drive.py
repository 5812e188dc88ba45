"""Drives a run to its end: the loop that every driver shares, with its checkpoints and its summary."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

from fedasmu.errors import DeviceError, Interrupted, UserError
from fedasmu.pools import Workers
from fedasmu.run.build import World
from fedasmu.run.conclusion import conclude, early, on
from fedasmu.run.extension import check_data, check_settings
from fedasmu.run.result import Result
from fedasmu.run.wall import dated
from fedasmu.server.desk import Desk
from fedasmu.storage import checkpoint, failure
from fedasmu.storage.record import SHELVES
from fedasmu.storage.shelf import check_shelves
from fedasmu.system.memory import keep_freed_memory

SEEN = 0.5  # seconds after which whoever watches a run can read of an event


class Driver(Protocol):
    """What makes time pass in a run: a virtual clock, or a real one."""

    desk: Desk

    @property
    def now(self) -> float:
        """Seconds since the run began."""

    @property
    def ended(self) -> str | None:
        """What ended the run ("uploads" or "time" for its budgets, "fleet" if nobody comes back); None: it goes on."""

    def begin(self) -> None: ...

    def step(self) -> None:
        """Go on by one event. Raises `Interrupted`, with nothing changed, where it is stopped while it waits."""

    def finish(self) -> None:
        """Leave what is under way, and flush the desk."""

    def state(self) -> dict[str, Any]:
        """Everything a checkpoint must keep, the desk's state included."""

    def kept(self) -> None:
        """That is on the disk now."""

    def restore(self, state: dict[str, Any]) -> None: ...


@dataclass
class Drive:
    """One run, from its beginning or its last checkpoint to its end."""

    world: World
    driver: Driver
    directory: Path
    stopping: threading.Event  # set when the user asks to stop
    say: Callable[[str], None] = lambda message: None

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self.driver.desk.watchers.append(dated(self.directory))
        self._before = 0.0  # seconds that the run took until the checkpoint
        self._ended: str | None = None

    def run(self, resume: bool, extendable: bool) -> None:
        """Raises `Interrupted` when the user asks to stop; what there is then is saved."""
        keep_freed_memory()  # an upload frees and needs whole models
        whole = partial(check_shelves, directory=self.directory / SHELVES)
        state = checkpoint.load(self.directory / "checkpoint", self.say, whole) if resume else None
        under_way = False  # a half restored run is not worth saving: the checkpoint that it came from is still there
        try:
            self._enter(state)
            under_way = True
            self._go_on()
            self._ended = self.driver.ended
            if extendable:
                self._save()
            self.driver.finish()
        except Interrupted:
            self.stopping.clear()  # so that the checkpoint may wait for an evaluation under way
            if under_way:
                self._save()
            raise Interrupted(self.directory) from None
        except DeviceError as error:
            if error.job is not None and error.job.device >= 0:
                failure.save(error.job.command, error.job.device, error.job.seed, self.directory)
            if error.job is not None and under_way:  # it failed while it was waited for: no event is half done
                with suppress(DeviceError, Interrupted):  # an evaluation that failed cannot be waited for
                    self._save()
            raise

    def conclude(self, workers: Workers, extendable: bool) -> Result:
        """Write the model and the summary; a finished run needs its checkpoints only if it may be extended."""
        conclude(self.world, self.driver, self.directory, self._ended, workers, self._wall())
        for folder in () if extendable else ("checkpoint", SHELVES):
            shutil.rmtree(self.directory / folder, ignore_errors=True)
        if self._ended != "uploads":
            self.say(early(self._ended, self.world.config.stop, self.driver))
        return Result(self.directory)

    def _enter(self, state: Any) -> None:
        if state is None:
            self.driver.begin()
            return
        check_settings(self.world.config, state, self.directory)
        check_data(self._data, state, self.directory)
        try:
            self.driver.restore(state)
            self._before, before = float(state["wall"]), state["on"]
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{self.directory}: its checkpoint does not fit this run ({type(error).__name__}: {error}); "
                "start the run again (overwrite)"
            ) from error
        if before != on(self.world):
            self.say(f"begun with {before}, goes on with {on(self.world)}: the last digits of its numbers may differ")

    def _go_on(self) -> None:
        saved = seen = self._began
        driver, stopped, every = self.driver, self.stopping.is_set, self.world.config.checkpoint_seconds
        while driver.ended is None and not stopped():
            driver.step()
            now = time.monotonic()
            if now - seen > SEEN:
                driver.desk.record.flush()
                seen = now
            if now - saved > every:
                self._save()
                saved = time.monotonic()
        if self.stopping.is_set():
            raise Interrupted

    def _save(self) -> None:
        about = {"wall": self._wall(), "on": on(self.world), "config": self.world.config.toml(), "data": self._data}
        checkpoint.save({**self.driver.state(), **about}, self.directory / "checkpoint")
        self.driver.kept()

    @cached_property
    def _data(self) -> str | None:
        """By which a run that goes on knows its data; None: it only simulates times."""
        return None if self.world.data is None else self.world.data.fingerprint

    def _wall(self) -> float:
        return self._before + time.monotonic() - self._began
