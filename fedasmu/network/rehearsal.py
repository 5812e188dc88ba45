"""Server and devices on one machine, over TLS with keys: the step between simulating and deploying."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedasmu.errors import Interrupted, UserError
from fedasmu.network.folder import Folder
from fedasmu.network.listener import bound
from fedasmu.network.script import Line, Tape
from fedasmu.network.serving import Serving
from fedasmu.pools import Inline
from fedasmu.run.build import World
from fedasmu.run.conclusion import conclude
from fedasmu.run.profiles import write_profiles
from fedasmu.server.desk import Desk
from fedasmu.simulation.build import fleet_of, simulator
from fedasmu.storage.record import Record
from fedasmu.system.disk import write_whole

HOST = "127.0.0.1"


def simulated(world: World, directory: Path) -> list[Line]:
    """Run the recipe on the virtual clock, and keep the order of its events."""
    directory.mkdir(parents=True)
    write_whole(directory / "config.toml", world.config.toml())
    write_profiles(world.profiles, directory / "fleet.csv")
    record = Record(directory)
    began = time.monotonic()
    assert world.trainer is not None
    driver = simulator(world, fleet_of(world), Inline(world.trainer.perform), record)
    tape = Tape(driver.desk)
    driver.begin()
    while (ended := driver.ended) is None:
        driver.step()
    driver.finish()
    conclude(world, driver, directory, ended, "inline", time.monotonic() - began)
    return tape.lines


def write_shards(world: World, folder: Path) -> list[Path]:
    """Each device's examples in a file of its own: a device sees nothing else."""
    assert world.data is not None
    train, paths = world.data.train, []
    for device, shard in enumerate(world.data.shards):
        path = folder / f"{device:04d}" / "data.npz"
        path.parent.mkdir(parents=True)
        own = train.subset(shard)
        np.savez(path, inputs=own.inputs.numpy(), targets=own.targets.numpy())
        paths.append(path)
    return paths


class Rehearsal:
    def __init__(self, world: World, directory: Path, say: Callable[[str], None], speeds: bool = False) -> None:
        self.world, self.directory, self.say, self.speeds = world, directory, say, speeds
        self.listening = bound(HOST, 0)
        port = self.listening.getsockname()[1]
        self.folder = Folder.make(directory, len(world.examples), HOST, port)
        self.shards = write_shards(world, directory / "devices")

    def run(
        self,
        stopping: threading.Event,
        observe: Callable[[Desk, Any], None] | None = None,
        lines: Sequence[Line] | None = None,
    ) -> None:
        """From the first device to the last upload."""
        serving = Serving(self.world, self.folder, self.folder.context, stopping, self.say, observe, lines=lines)
        with ExitStack() as stack:
            stack.callback(self.listening.close)
            devices = [stack.enter_context(_Process(self._command(number))) for number in range(len(self.shards))]
            with self._watched(devices, stopping):
                serving.serve(self.listening)
            for device in devices:
                device.finish()
        if lines is not None and serving.script.differing:
            raise UserError(f"tasks with another model than in the simulation: {serving.script.differing[:10]}")

    def _command(self, number: int) -> list[str]:
        path = self.shards[number]
        invite = self.folder.invite(seat=number, name=f"device-{number:04d}")
        options = ["--invite", str(invite), "--data", str(path), "--state", str(path.parent / "state")]
        options += ["--engine", self.world.config.engine]
        if self.speeds:
            options += ["--seconds-per-sample", str(self.world.profiles[number].seconds_per_sample)]
        # -P: a comparison's folder called fedasmu, here, is not the package.
        return [sys.executable, "-P", "-m", "fedasmu", "join", self.folder.url, *options, "--quiet"]

    @contextmanager
    def _watched(self, devices: list[_Process], stopping: threading.Event) -> Iterator[None]:
        """A device that ends with an error before the run does ends the rehearsal, with what it said."""
        over, said = threading.Event(), list[str]()

        def watch() -> None:
            while not over.wait(0.5) and not stopping.is_set():
                if failed := next((device for device in devices if device.failed), None):
                    said.append(failed.error())
                    stopping.set()

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
        except Interrupted:
            if said:
                raise UserError(f"a device ended: {said[0]}") from None
            raise
        finally:
            # Before the devices are let go: one that is killed then has not failed, and its words are closed.
            over.set()
            watcher.join()


class _Process:
    """A device as its user would start it."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        assert self._process.stderr is not None
        self._process.stderr.close()

    @property
    def failed(self) -> bool:
        return self._process.poll() not in (None, 0)

    def error(self) -> str:
        assert self._process.stderr is not None
        return self._process.stderr.read().strip()

    def finish(self) -> None:
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
