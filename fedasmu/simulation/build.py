"""The simulation of a world: its fleet, and the simulator that drives it."""

from __future__ import annotations

from collections.abc import Sequence

from fedasmu.errors import UserError
from fedasmu.pools import Pool
from fedasmu.run.build import World
from fedasmu.run.profiles import Profile
from fedasmu.settings.fleets import FleetSettings
from fedasmu.simulation.fleet import Always, Availability, Cycle, Fleet, Trace
from fedasmu.simulation.memories import Memories
from fedasmu.simulation.simulator import Simulator
from fedasmu.storage.record import SHELVES, Record
from fedasmu.storage.shelf import Shelf

LONGEST = 1e12  # seconds; longer than anybody simulates
LEAST = 0.01  # of a task; what a device that is online for less than this can never deliver


def simulator(world: World, fleet: Fleet, pool: Pool, record: Record) -> Simulator:
    config, federation = world.config, world.federation(world.roster(), record)
    return Simulator(
        desk=world.desk(federation, pool, record),
        learner=config.attack.around(world.learner(), world.layout.trainable, config.seed),
        fleet=fleet,
        pool=pool,
        memories=Memories(Shelf(record.directory / SHELVES / "devices")),
        workload=federation.workload,
        period=config.pacing.period,
        max_uploads=config.stop.uploads,
        max_time=config.stop.time,
    )


def fleet_of(world: World) -> Fleet:
    """The world's devices. Refuses those of which it is certain that none ever delivers."""
    if world.config.evaluate.by == "devices" and not any(world.held):
        raise UserError("evaluate.by = 'devices': no device has two examples, one to train on and one to measure on")
    found = fleet(world.profiles, world.config.fleet, world.config.seed)
    roster = world.roster()
    fastest = min(sum(roster[device].seconds) for device in range(len(roster)))
    if fastest > LONGEST:
        raise UserError(f"fleet: a task takes {fastest:.3g} virtual seconds on the fastest device: no run would end")
    online = found.availability.longest
    if online < LEAST * fastest:  # less than all of it: a method may train a part of the model, or be told to stop
        raise UserError(
            f"fleet: devices are there for {online:.3g} s at a time, and the fastest needs {fastest:.3g} s for a task: "
            "none would ever deliver; see fleet.availability, fleet.cycle and fleet.trace"
        )
    return found


def fleet(profiles: Sequence[Profile], settings: FleetSettings, seed: int) -> Fleet:
    """The devices as they are simulated: with their own times to be there, to be slow and to die."""
    availability: Availability = Always()
    if settings.trace is not None:
        try:
            availability = Trace.read(settings.trace)
        except UserError as error:
            raise UserError(f"fleet.trace: {error}") from None
        if not any(device in availability.windows for device in range(settings.devices)):
            raise UserError(f"fleet.trace = {settings.trace}: none of the fleet's {settings.devices} devices is in it")
    elif settings.availability < 1:
        availability = Cycle(settings.availability, settings.cycle, seed)
    return Fleet(profiles, seed, settings.jitter, settings.dropout, availability)
