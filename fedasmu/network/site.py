"""From a build to what a service needs: the desk with its server, and what devices are told."""

from __future__ import annotations

from fedasmu.algorithms import Federation
from fedasmu.build import Build
from fedasmu.desk import Desk
from fedasmu.network.terms import Terms, layout_digest, plain
from fedasmu.pools import Pool
from fedasmu.protocol import Model
from fedasmu.record import SHELVES, Record
from fedasmu.roster import Roster
from fedasmu.server import Server
from fedasmu.shelf import Shelf


def attach(build: Build, pool: Pool, record: Record) -> tuple[Desk, Roster]:
    config, roster = build.config, build._roster()
    pace = config.pacing.pace(len(roster))
    federation = Federation(
        seed=config.seed,
        roster=roster,
        layout=build.layout,
        limit=pace.limit,
        budget=config.stop.uploads,
        batch=config.local.batch,
        epochs=config.local.epochs,
        shelf=Shelf(record.directory / SHELVES / "server"),
    )
    server = Server(
        model=Model(0, build.initial),
        schedule=config.algorithm.schedule(pace),
        aggregator=config.algorithm.aggregator(federation),
        devices=len(roster),
        seed=config.seed,
        learning_rate=config.local.learning_rate,
        max_staleness=config.algorithm.max_staleness,
        pull_beyond=config.algorithm.pull_beyond,
    )
    return Desk(server, record, pool, build.layout.bytes, config.evaluate.every, federation.shelf), roster


def terms(build: Build) -> Terms:
    """What devices need of the recipe. How bytes become pixels is the server's data's way, so that all do the same."""
    config, data = build.config, build.data
    assert data is not None
    scale, shift = data.train.scale, data.train.shift
    return Terms(
        model=config.model.name,
        options=plain(config.model.options),
        algorithm=config.algorithm.model_dump(mode="json", exclude_none=True),
        batch=config.local.batch,
        epochs=config.local.epochs,
        augment=config.data.augment,
        shape=data.shape,
        classes=data.classes,
        scale=None if scale is None else scale.tolist(),
        shift=None if shift is None else shift.tolist(),
        layout=layout_digest(build.layout),
    )
