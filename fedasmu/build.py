"""The objects of one run, made from its settings. Whatever is wrong with these shows here, before any training."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from fedasmu.algorithms import Federation
from fedasmu.config import Config
from fedasmu.data.federated import FederatedData
from fedasmu.desk import Desk
from fedasmu.engine import native_network
from fedasmu.environment import expected_data, federated_data, fleet, network
from fedasmu.errors import UserError
from fedasmu.native import Network
from fedasmu.pools import Inline, Pool, Site, Workers, factory, timing_only
from fedasmu.protocol import Model
from fedasmu.record import SHELVES, Record
from fedasmu.roster import Member, Roster
from fedasmu.server import Server
from fedasmu.shelf import Shelf
from fedasmu.simulation.fleet import Fleet
from fedasmu.simulation.memories import Memories
from fedasmu.simulation.simulator import Simulator
from fedasmu.training import Trainer
from fedasmu.vector import Layout

LONGEST = 1e12  # seconds; longer than anybody simulates
LEAST = 0.01  # of a task; what a device that is online for less than this can never deliver


class Build:
    def __init__(
        self,
        config: Config,
        factory: Callable[[], nn.Module] | None,
        data: FederatedData | None,
        say: Callable[[str], None],
    ) -> None:
        _check_device(config.device)
        self.data = None if config.timing_only else data
        shape, classes, words = expected_data(config.data)
        if self.data is None and not config.timing_only:
            self.data, words = federated_data(config, say)
        if self.data is not None and len(self.data.shards) != config.fleet.devices:
            sized = config.fleet.model_copy(update={"devices": len(self.data.shards)})
            config = config.model_copy(update={"fleet": sized})
        if self.data is not None and config.data.fallback is not None:
            # A run that fell back stays with what it has, even if the full data are there when it is resumed.
            config = config.model_copy(
                update={"data": config.data.model_copy(update={"name": self.data.name, "fallback": None})}
            )
        self.config = config
        self.fleet = fleet(config.fleet, config.seed)
        if self.data is not None:
            shape, classes = self.data.shape, self.data.classes
        self.module = network(config.model, factory, shape, classes, config.seed, words)
        try:
            self.layout = Layout.of(self.module)
        except ValueError as error:
            raise UserError(f"model.name = {config.model.name!r}: {error}") from None
        self.initial = self.layout.read(self.module)
        self.examples = (
            [len(shard) for shard in self.data.shards] if self.data else [config.data.per_device] * len(self.fleet)
        )
        _check_overlap(config, len(self.fleet), say)
        _check_times(self.fleet, self.examples, config.local.epochs, self.layout.bytes)
        self.native: Network | None = None
        if self.data is not None:
            _check_forward(self.module, self.data, config.local.batch)
            altered = "" if config.data.augment == "none" else f"; fed with images altered by {config.data.augment}"
            if altered and len(shape) != 3:
                raise UserError(f"data.augment = {config.data.augment!r}: alters images, but the data are {shape}")
            settings = config.local.batch, config.device, config.instructions
            self.native, engine = native_network(config.engine, self.module, self.layout, shape, *settings)
            say(engine + altered)

    def trainer(self) -> Trainer:
        assert self.data is not None
        local = self.config.local
        work, engines = (local.batch, local.epochs), (self.config.device, self.native)
        return Trainer(self.module, self.layout, self.data, *work, *engines, self.config.data.augment)

    def pool(self, workers: Workers, stopping: Callable[[], bool], say: Callable[[str], None]) -> Pool:
        if self.config.timing_only:
            return Inline(timing_only)
        on_cpu = self.config.device == "cpu"
        return factory(workers)(Site(self.trainer().perform, self.layout.bytes, stopping, say, computes_here=on_cpu))

    def simulator(self, pool: Pool, record: Record) -> Simulator:
        config, local = self.config, self.config.local
        pace = config.pacing.pace(len(self.fleet))
        shelves = record.directory / SHELVES
        federation = Federation(
            seed=config.seed,
            roster=self._roster(),
            layout=self.layout,
            limit=pace.limit,
            budget=config.stop.uploads,
            batch=local.batch,
            epochs=local.epochs,
            shelf=Shelf(shelves / "server"),
        )
        vector = torch.zeros(1) if config.timing_only else self.initial
        server = Server(
            model=Model(0, vector),
            schedule=config.algorithm.schedule(pace),
            aggregator=config.algorithm.aggregator(federation),
            devices=len(self.fleet),
            seed=config.seed,
            learning_rate=local.learning_rate,
            max_staleness=config.algorithm.max_staleness,
            pull_beyond=config.algorithm.pull_beyond,
        )
        return Simulator(
            desk=Desk(server, record, pool, self.layout.bytes, config.evaluate.every, federation.shelf),
            learner=config.algorithm.learner(),
            fleet=self.fleet,
            pool=pool,
            memories=Memories(Shelf(shelves / "devices")),
            workload=federation.workload,
            period=config.pacing.period,
            max_uploads=config.stop.uploads,
            max_time=config.stop.time,
        )

    def _roster(self) -> Roster:
        epochs, size = self.config.local.epochs, self.layout.bytes
        pairs = zip(self.examples, self.fleet.profiles, strict=True)
        return Roster(Member(examples, profile.task(examples * epochs, size)) for examples, profile in pairs)


def _check_overlap(config: Config, devices: int, say: Callable[[str], None]) -> None:
    if devices > 1 and config.algorithm.kind != "synchronous" and config.pacing.pace(devices).limit == 1:
        say("1 device in flight: nothing overlaps, and no upload is stale; set pacing.max_in_flight")


def _check_device(name: str) -> None:
    """Counting devices does not initialise CUDA, which a fork of worker processes would not survive."""
    kind, _, number = name.partition(":")
    there = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}[kind]
    if int(number or 0) >= there:
        raise UserError(f"device = {name!r}: PyTorch finds {there or 'none'} of that kind here; use device = 'cpu'")


def _check_times(fleet: Fleet, examples: list[int], epochs: int, size: int) -> None:
    """Refuse a fleet of which it is certain that no device ever delivers."""
    pairs = zip(examples, fleet.profiles, strict=True)
    fastest = min(sum(profile.task(count * epochs, size)) for count, profile in pairs)
    if fastest > LONGEST:
        raise UserError(f"fleet: a task takes {fastest:.3g} virtual seconds on the fastest device: no run would end")
    online = fleet.availability.longest
    if online < LEAST * fastest:  # less than all of it: a method may train a part of the model, or be told to stop
        raise UserError(
            f"fleet: devices are there for {online:.3g} s at a time, and the fastest needs {fastest:.3g} s for a task: "
            "none would ever deliver; see fleet.availability, fleet.cycle and fleet.trace"
        )


def _check_forward(module: nn.Module, data: FederatedData, batch: int) -> None:
    """A forward pass or two, so that a model that does not fit its data is refused before anything starts."""
    probe = data.test.batch(torch.arange(min(2, len(data.test))))[0]
    module.eval()
    try:
        with torch.no_grad():
            logits = module(probe)
    except Exception as error:
        raise UserError(f"the model cannot take inputs of shape {data.shape}: {error}") from error
    if logits.dim() != 2 or logits.shape[1] < data.classes:
        raise UserError(f"the model gives {tuple(logits.shape[1:])} outputs, but the data have {data.classes} classes")
    if any(len(shard) % batch == 1 for shard in data.shards):
        module.train()
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                module(probe[:1])
        except ValueError as error:  # BatchNorm has nothing to normalise by
            raise UserError(
                f"local.batch = {batch}: a device's last batch would hold a single example, "
                f"which this model cannot train on ({error}); choose another"
            ) from None
