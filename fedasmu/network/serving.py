"""A run over the network, from its folder: begun or recovered, served, checkpointed, and concluded as any other."""

from __future__ import annotations

import asyncio
import contextlib
import math
import shutil
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fedasmu.errors import Interrupted, Refused, UserError, refusal
from fedasmu.measure import CROSS_ENTROPY
from fedasmu.network import failpoint
from fedasmu.network.acts import Acts, Changed, Rebuild, is_of_the_machine
from fedasmu.network.coordinator import Coordinator, Plan
from fedasmu.network.deadline import Patience
from fedasmu.network.door import Door
from fedasmu.network.evaluator import Evaluator
from fedasmu.network.folder import Folder, keep_failure
from fedasmu.network.gauge import Gauge
from fedasmu.network.keeping import Keeping
from fedasmu.network.ledger import DiskFull, Ledger, is_full
from fedasmu.network.listener import Listener
from fedasmu.network.reception import Reception
from fedasmu.network.script import Line, Script
from fedasmu.network.service import Service
from fedasmu.network.site import attach, terms
from fedasmu.network.uptime import Uptime
from fedasmu.run.build import World
from fedasmu.run.conclusion import conclude
from fedasmu.run.wall import dated
from fedasmu.server.desk import Desk
from fedasmu.settings.config import Config
from fedasmu.storage.record import SHELVES, Record

DRAIN = 8.0  # seconds for uploads under way when the server is told to stop
FAILURES = 10  # of the method in a row, with no upload taken, before the server gives up
TICK = 0.25  # seconds, at most, between two looks at the time
ROOM = 2.0  # seconds between two looks whether a full disk has room again
AGAIN = 600.0  # seconds, before it is said again that it has none
LINGER = 90.0  # seconds after the end, for devices to hear of it
SOON = 2.0  # of these, in which those who are at work have heard of it
BODY = 1 << 14  # bytes of a request besides a model


@dataclass
class Serving:
    """One process's part in a run. `serve` returns when the run is over; a stop raises `Interrupted`."""

    world: World
    folder: Folder
    context: ssl.SSLContext | None
    stopping: threading.Event
    say: Callable[[str], None] = lambda line: None
    observe: Callable[[Desk, Any], None] | None = None
    linger: float = LINGER
    lines: Sequence[Line] | None = None  # a script to play, instead of following the clock

    def __post_init__(self) -> None:
        self._pin = self.folder.pin()  # of the certificate that is shown, whatever is put into the folder meanwhile

    def serve(self, listening: Any) -> None:
        """Until the run is over. Where the method raised, all is built again without what it raised on."""
        told = -math.inf  # when, that the disk is full
        taken, failed = -1, 0  # uploads, and how often the method has failed since the last of them
        while True:
            try:
                self._open()
                if (received := self.coordinator.server.counters.received) > taken:
                    taken, failed = received, 0
                asyncio.run(self._main(listening))
                return
            except Changed as error:
                self._keep_failure(error)
                raise Refused(f"the method fails on what it had taken before; {self._when_mended()}") from error
            except (Rebuild, OSError, DiskFull) as error:
                if is_full(error) or is_full(error.__cause__):
                    if time.monotonic() - told > AGAIN:
                        self.say("the disk is full: waiting for room")
                        told = time.monotonic()
                    if self.stopping.wait(ROOM):
                        raise Interrupted(self.folder.path) from None  # the ledger has it all
                    continue
                if not isinstance(error, Rebuild):
                    raise
                if (cause := error.__cause__) is not None and is_of_the_machine(cause):
                    reason = str(cause) if isinstance(cause, Refused) else refusal(cause)
                    again = f"nothing is lost; go on with: fedasmu serve --resume {self.folder.path}"
                    raise Refused(f"{reason}; {again}") from error
                self._keep_failure(error)
                failed += 1
                if failed >= FAILURES:
                    raise Refused(f"the method failed {failed} times in a row; {self._when_mended()}") from error
                self.say(f"the method failed on an upload, which is left out; see {self.folder.failures}")
            finally:
                self._close()

    def _keep_failure(self, error: Exception) -> None:
        keep_failure(self.folder.failures, f"server-{self.ledger.next}", str(error).encode())

    def _when_mended(self) -> str:
        path = self.folder.path
        return f"see {self.folder.failures}, and when it is mended go on with: fedasmu serve --resume {path}"

    def _open(self) -> None:
        """Begin, or recover what the disk has."""
        self.record = Record(self.folder.path)
        self.ledger = Ledger(self.folder.path / "ledger", self.folder.table)
        assert self.world.trainer is not None
        self.pool = Evaluator(self.world.trainer.perform)
        desk, roster = attach(self.world, self.pool, self.record)
        acts = Acts(desk, self.ledger, roster, self.world.config.algorithm.attachments(self.world.layout))
        config = self.world.config
        plan = Plan(config.seed, config.pacing.period, config.stop.uploads, config.stop.time, config.network)
        self.coordinator = Coordinator(acts, plan)
        self.keeping = Keeping(self.folder.path, acts, config.checkpoint_seconds, config.network.keep == "needed")
        begun, recovered = self.keeping.recover(self.say)
        failpoint.reach("recover.applied")
        if not begun:
            self.coordinator.begin(0.0)
            self.ledger.sync()
        elif recovered:
            self.say(f"recovered: {desk.server.counters.received} uploads, {recovered} acts since the last checkpoint")
        self.coordinator.go_on()
        self.clock: Callable[[], float] = Uptime(acts.now)  # seconds of this run
        self.gauge = Gauge(self.folder.path, self.coordinator, recovered)
        desk.watchers.append(dated(self.folder.path))
        if self.observe is not None:
            desk.watchers.append(partial(self.observe, desk))

    def _close(self) -> None:
        for name in ("keeping", "pool", "ledger", "record"):
            if (thing := vars(self).pop(name, None)) is not None:
                thing.close()

    def service(self) -> Service:
        settings = self.world.config.network
        door = Door(self.folder.run, self.folder.register, time.monotonic, settings.max_examples)
        told, words = terms(self.world), self.world.data.words if self.world.data else ()
        reception = Reception(self.coordinator, door, told, self._pins, self.clock)
        return Service(reception, self.folder.path, words)

    def _pins(self) -> list[bytes]:
        """What devices are to know this server by: now, and from its next start on."""
        return list(dict.fromkeys([self._pin, *self.folder.pins()]))

    async def _main(self, listening: Any) -> None:
        service = self.running = self.service()
        if self.lines is not None:
            service.order = self.script = Script(self.lines, self.coordinator, service.polls.answer)
            service.reception.clock = self.clock = lambda: self.script.time
        patience = Patience(body=service.lengths.stop + BODY)
        per_address = self.world.config.network.per_address
        proxied = bool(self.folder.shown.name)
        app = self.gauge.around(service.app)
        listener = Listener(app, listening.dup(), self.context, patience, per_address, proxied=proxied)
        ended = self.coordinator.acts.flushed  # before its last server did: devices are still to hear of it
        if ended:
            service.finish()
        listener.start()
        if not ended:
            await (self._drive(service) if self.lines is None else self._play(service, self.script))
        await self.keeping.settled()
        if self.coordinator.acts.broken is not None:
            await listener.stop(0.5)
            raise self.coordinator.acts.broken
        if self.stopping.is_set() and not self.coordinator.finished:
            self.coordinator.draining = True
            service.polls.release()
            await listener.stop(DRAIN)
            self.keeping.save()
            raise Interrupted(self.folder.path)
        try:
            self._conclude()
        except Exception:
            await listener.stop(0.5)
            raise
        service.finish()
        self.gauge.look(service.door, self.clock(), over=True)
        await self._say_goodbye(service)
        await listener.stop(1.0)

    async def _drive(self, service: Service) -> None:
        while not (self.stopping.is_set() or self.coordinator.acts.broken or self.coordinator.finished):
            service.woken.clear()
            with contextlib.suppress(DiskFull):
                try:
                    service.advance()
                except Rebuild:
                    return
                self.coordinator.desk.settle()
                self.record.flush()
                self.gauge.look(service.door, self.clock())
                self.keeping.look()
            pause = min(TICK, max(0.005, self.coordinator.due() - self.clock()))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(service.woken.wait(), pause)

    async def _play(self, service: Service, script: Script) -> None:
        script.begin()
        while not (self.stopping.is_set() or self.coordinator.acts.broken or script.over):
            script.go_on()
            await asyncio.sleep(0.01)

    async def _say_goodbye(self, service: Service) -> None:
        """Devices that are still at work come back and are told that the run is over."""
        begun, said = time.monotonic(), False
        until = begun + self.linger  # longer than a device's longest pause between two attempts
        while (now := time.monotonic()) < until and not self.stopping.is_set():
            seats = {seat.seat for seat in service.door.seats.values() if seat.revoked is None}
            missing = seats - service.told_over
            if self.linger <= LINGER and not missing:
                return
            if now >= begun + SOON and not said:
                said = True
                wait = f"waiting for {len(missing)} of {len(seats)} devices to hear so, {self.linger:.0f} s at most"
                self.say(f"the run is over; {wait if self.linger <= LINGER else 'staying to tell so'}; Ctrl-C ends it")
            await asyncio.sleep(0.05)

    def _conclude(self) -> None:
        self.coordinator.end(self.clock())
        self.ledger.sync()
        received = self.coordinator.server.counters.received
        ended = "uploads" if received >= self.world.config.stop.uploads else "time"
        conclude(self.world, self.coordinator, self.folder.path, ended, "network", self.keeping.wall)
        for name in ("checkpoint", SHELVES):
            shutil.rmtree(self.folder.path / name, ignore_errors=True)


def check_recipe(config: Config) -> None:
    """What can be simulated but not served."""
    if config.timing_only:
        raise UserError("timing_only = true: there is nothing to train over a network")
    if config.attack.share:
        raise UserError(f"attack.share = {config.attack.share:g}: real devices lie when they want to; simulate it")
    if config.instructions != "auto":
        raise UserError(f"instructions = {config.instructions!r}: each device takes the best that it has; leave it out")
    if config.local.loss != CROSS_ENTROPY:
        raise UserError(f"local.loss = {config.local.loss!r}: over a network, devices minimise the cross-entropy alone")
