"""The world of a run, made from its settings. Whatever is wrong with these shows here, before any training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedasmu.algorithms import Federation, Learner
from fedasmu.algorithms.measuring import Measuring
from fedasmu.data.federated import FederatedData, held_count
from fedasmu.engines.contract import native_engine
from fedasmu.engines.goal import Goal, Loss, Score, check, check_method, goal_of
from fedasmu.engines.pytorch import EVALUATION_BATCH
from fedasmu.errors import UserError
from fedasmu.imports import blame
from fedasmu.pools import Inline, Pool, Site, Workers, factory, timing_only
from fedasmu.pools.connection import share
from fedasmu.protocol import Model
from fedasmu.roster import Member, Roster
from fedasmu.run.materials import check_name, check_own, expected_data, federated_data, network
from fedasmu.run.profiles import Profile, profiles
from fedasmu.run.remarks import remarks
from fedasmu.run.start import start_of, vouched
from fedasmu.seeding import derive
from fedasmu.server.average import Average
from fedasmu.server.core import Server
from fedasmu.server.desk import Desk
from fedasmu.server.meter import Quick
from fedasmu.settings.config import Config
from fedasmu.storage.record import SHELVES, Record
from fedasmu.storage.shelf import Shelf
from fedasmu.training import Trainer
from fedasmu.vector import Layout


@dataclass(frozen=True)
class World:
    """What a run is made of, whoever drives it."""

    config: Config  # as it is run: with as many devices as the data have, by the name of the data that there are
    data: FederatedData | None  # None: only the order of events is asked for
    module: nn.Module
    layout: Layout
    initial: Tensor
    examples: Sequence[int]  # that each device trains on
    held: Sequence[int]  # that it measures on
    profiles: Sequence[Profile]  # of each device: measured, drawn, or what is assumed of it until it enrols
    trainer: Trainer | None  # None without data
    words: Mapping[str, Any]  # options that a text model takes from its data

    def pool(self, workers: Workers, stopping: Callable[[], bool], say: Callable[[str], None]) -> Pool:
        if self.trainer is None:
            return Inline(partial(timing_only, trainable=self.layout.trainable))
        on_cpu = self.config.device == "cpu"
        gpus = share(self.config.per_gpu) if self.config.device.startswith("cuda") else 0.0
        return factory(workers)(Site(self.trainer.perform, self.layout.bytes, stopping, say, gpus, on_cpu))

    def learner(self) -> Learner:
        """The method's device half, which measures what it is sent where the recipe says so."""
        learner = self.config.algorithm.learner()
        return Measuring(learner) if self.config.evaluate.on_devices else learner

    def roster(self) -> Roster:
        """What is known of the devices before any of them has spoken."""
        epochs, size = self.config.local.epochs, self.config.transfer.bytes(self.layout)
        known = zip(self.examples, self.profiles, self.held, strict=True)
        return Roster(Member(count, profile.task(count * epochs, size), held) for count, profile, held in known)

    def federation(self, roster: Roster, record: Record) -> Federation:
        config = self.config
        return Federation(
            seed=config.seed,
            roster=roster,
            layout=self.layout,
            limit=config.pacing.pace(len(roster)).limit,
            budget=config.stop.uploads,
            batch=config.local.batch,
            epochs=config.local.epochs,
            shelf=Shelf(record.directory / SHELVES / "server"),
        )

    def desk(self, federation: Federation, pool: Pool, record: Record) -> Desk:
        """The server of this federation, at work."""
        config, method, metric = self.config, self.config.algorithm, self.config.evaluate.measure.name
        empty = config.timing_only and not method.looks_inside and not method.attachments(self.layout)
        server = Server(
            model=Model(0, torch.empty(0) if empty else self.initial),
            schedule=method.schedule(config.pacing.pace(federation.devices)),
            aggregator=config.guard.around(method.aggregator(federation), self.layout.trainable),
            devices=federation.devices,
            seed=config.seed,
            learning_rate=config.local.learning_rate,
            max_staleness=method.max_staleness,
            pull_beyond=method.pull_beyond,
            transfer=config.transfer.between(self.layout, federation.shelf),
        )
        judge = None if config.evaluate.by == "devices" else pool
        quick = Quick(config.evaluate.subset or 0, config.evaluate.full_every)
        mean = None if config.evaluate.average is None else Average(config.evaluate.average)
        every, shelf = config.evaluate.every, federation.shelf
        return Desk(server, record, judge, self.layout.bytes, every, shelf, metric, quick, mean)


def build(
    config: Config,
    model: Callable[[], nn.Module] | None = None,
    data: FederatedData | None = None,
    say: Callable[[str], None] = lambda message: None,
    weights: Mapping[str, Tensor] | None = None,
    loss: Loss | None = None,
    metric: Score | None = None,
) -> World:
    """The world of a recipe, with a model, data and so on, of the user's own where they are given."""
    _check_device(config.device)
    goal = goal_of(config.local.loss, config.evaluate.metric, loss, metric, config.local.calibrate)
    check_method(goal, config.local.loss, config.algorithm.name, config.algorithm.own_objective)
    if model is None:
        check_name(config.model)
    start = start_of(config.model, weights)
    config = vouched(config, start)
    shape, classes, words = expected_data(config.data)
    if config.timing_only:
        data = None
    elif data is None:
        data, words = federated_data(config, say)
    else:
        check_own(config.data)
    if data is not None:
        if data.classifies and data.classes < 2:
            raise UserError("the data have a single class: there is nothing to tell apart")
        config, shape, classes = _sized(config, data, say), data.shape, data.classes
        words = {**({"vocabulary": len(data.words)} if data.words else {}), **words}
        data = _judged_by(config.evaluate.examples, data)
    module = network(config.model, model, shape, classes, config.seed, words)
    try:
        layout = Layout.of(module)
    except ValueError as error:
        raise UserError(f"model.name = {config.model.name!r}: {error}") from None
    if start is not None:
        start.put_into(module, layout)
    for remark in remarks(config):
        say(remark)
    everything = [len(shard) for shard in data.shards] if data else [config.data.per_device] * config.fleet.devices
    held = [held_count(count, config.evaluate.on_devices) for count in everything]
    return World(
        config=config,
        data=data,
        module=module,
        layout=layout,
        initial=layout.read(module),
        examples=[count - kept for count, kept in zip(everything, held, strict=True)],
        held=held,
        profiles=profiles(config.fleet, config.seed),
        trainer=None if data is None else _trainer(config, module, layout, data, goal, say),
        words=words,
    )


def held_seed(seed: int) -> int:
    """Of what the devices hold out: of a run's seed they are told this alone."""
    return derive(seed, "held on devices")


def _sized(config: Config, data: FederatedData, say: Callable[[str], None]) -> Config:
    """The recipe as it is run with these data."""
    if len(data.shards) != config.fleet.devices:
        if "devices" in config.fleet.model_fields_set:
            given = f"fleet.devices = {config.fleet.devices}"
            say(f"{given}: the data are on {len(data.shards)} devices, and so is the run")
        sized = config.fleet.model_copy(update={"devices": len(data.shards)})
        config = config.model_copy(update={"fleet": sized})
    return config.on(data.name)  # a run that fell back stays with what it has, even if the full data come later


def _judged_by(count: int | None, data: FederatedData) -> FederatedData:
    if count is None:
        return data
    if count > len(data.test):
        raise UserError(f"evaluate.examples = {count}: there are {len(data.test)} test examples")
    return replace(data, test=data.test.some(count))


def _trainer(
    config: Config, module: nn.Module, layout: Layout, data: FederatedData, goal: Goal, say: Callable[[str], None]
) -> Trainer:
    local, augment = config.local, config.data.augment
    if config.evaluate.on_devices:
        if not goal.is_plain:
            raise UserError(f"evaluate.on_devices = {config.evaluate.on_devices}: devices measure accuracy alone")
        data = data.holding_out(config.evaluate.on_devices, held_seed(config.seed))
    if (subset := config.evaluate.subset) is not None and subset >= len(data.test):
        raise UserError(f"evaluate.subset = {subset}: must be less than the {len(data.test)} test examples")
    _check_forward(module, data, local.batch, goal.is_plain)
    if not goal.is_plain or data.test.targets.is_floating_point():
        _check_goal(config, module, data, goal)
    if augment != "none" and len(data.shape) != 3:
        raise UserError(f"data.augment = {augment!r}: alters images, but the data are {data.shape}")
    settings = local.batch, config.device, config.instructions
    native, engine = native_engine(config.engine, module, layout, data.shape, *settings, _unknown(config, goal))
    if native is not None and not goal.is_plain:
        engine += f"; PyTorch to measure {config.evaluate.measure.name}"
    say(engine if augment == "none" else f"{engine}; fed with images altered by {augment}")
    return Trainer(module, layout, data, local.batch, local.epochs, config.device, native, augment, local, goal)


def _unknown(config: Config, goal: Goal) -> str:
    return "" if goal.classifies else f"the native engine minimises the cross-entropy, not {config.local.loss}"


def _check_goal(config: Config, module: nn.Module, data: FederatedData, goal: Goal) -> None:
    inputs, targets = data.test.batch(torch.arange(min(EVALUATION_BATCH, len(data.test))))
    check(goal, module.eval()(inputs), targets, config.local.loss, config.evaluate.metric)


def _check_device(name: str) -> None:
    """Counting devices does not initialise CUDA, which a fork of worker processes would not survive."""
    kind, _, number = name.partition(":")
    there = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}[kind]
    if int(number or 0) >= there:
        raise UserError(f"device = {name!r}: PyTorch finds {there or 'none'} of that kind here; use device = 'cpu'")


def _check_forward(module: nn.Module, data: FederatedData, batch: int, classifies: bool) -> None:
    """A forward pass or two, so that a model that does not fit its data is refused before anything starts."""
    probe = data.test.batch(torch.arange(min(2, len(data.test))))[0]
    module.eval()
    try:
        with torch.no_grad():
            logits = module(probe)
    except (Exception, SystemExit) as error:
        raise UserError(f"the model cannot take inputs of shape {data.shape}: {blame(error)}") from error
    if not isinstance(logits, torch.Tensor):
        raise UserError(f"the model gives a {type(logits).__name__}; it must give a tensor, a row for each example")
    if classifies and data.classifies and (logits.dim() != 2 or logits.shape[1] < data.classes):
        raise UserError(f"the model gives {tuple(logits.shape[1:])} outputs, but the data have {data.classes} classes")
    if batch == 1 or any(len(shard) % batch == 1 for shard in data.shards):
        module.train()
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                module(probe[:1])
        except ValueError as error:  # BatchNorm has nothing to normalise by
            raise UserError(
                f"local.batch = {batch}: a device's last batch would hold a single example, "
                f"which this model cannot train on ({error}); choose another"
            ) from None
