"""From a world to what a service needs: the desk with its server, and what devices are told."""

from __future__ import annotations

from typing import Any

from fedasmu import models
from fedasmu.engines.optimiser import Optimiser
from fedasmu.network.terms import Terms, Text, layout_digest, plain
from fedasmu.network.vocabulary import written
from fedasmu.pools import Pool
from fedasmu.roster import Roster
from fedasmu.run.build import World, held_seed
from fedasmu.server.desk import Desk
from fedasmu.storage.record import Record


def attach(world: World, pool: Pool, record: Record) -> tuple[Desk, Roster]:
    roster = world.roster()
    return world.desk(world.federation(roster, record), pool, record), roster


def terms(world: World) -> Terms:
    """What devices need of the recipe. How bytes become pixels is the server's data's way, so that all do the same."""
    config, data = world.config, world.data
    assert data is not None
    scale, shift = data.train.scale, data.train.shift
    return Terms(
        model=config.model.name,
        options=plain(_options(world)),
        algorithm=config.algorithm.model_dump(mode="json", exclude_none=True),
        batch=config.local.batch,
        epochs=config.local.epochs,
        optimiser=Optimiser(**config.local.model_dump(include=set(Optimiser.model_fields))),
        augment=config.data.augment,
        calibrate=config.local.calibrate,
        shape=data.shape,
        classes=data.classes,
        scale=None if scale is None else scale.tolist(),
        shift=None if shift is None else shift.tolist(),
        on_devices=config.evaluate.on_devices,
        held_seed=held_seed(config.seed) if config.evaluate.on_devices else 0,
        precision=config.transfer.precision,
        text=_text(world),
        layout=layout_digest(world.layout),
    )


def _options(world: World) -> dict[str, Any]:
    """Those of the recipe, and those that a text model takes from the server's data."""
    settings = world.config.model
    known = {one.name for one in models.MODELS}
    offered = world.words.keys() & models.option_names(settings.name) if settings.name in known else set()
    return {**{name: world.words[name] for name in offered}, **settings.options}


def _text(world: World) -> Text | None:
    data = world.config.data
    if world.data is None or not world.data.words:
        return None
    vocabulary = written(world.data.words)[0]
    return Text(vocabulary=vocabulary, length=data.length, padding=data.padding, truncation=data.truncation)
