"""The command rehearse: a server and its devices on this machine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from fedasmu.commands import AllowCode, Overrides, Recipe, Seed, console, loading, needs_network, say
from fedasmu.commands.serving import begun, built, check_free, loaded
from fedasmu.errors import UserError

REHEARSE_EXAMPLES = """
[bold]Examples[/bold]

  fedasmu rehearse quickstart --devices 5 --uploads 20

  fedasmu rehearse quickstart --devices 10 --uploads 30 --script

  fedasmu rehearse quickstart --devices 20 --uploads 60 --speeds
"""
PERIOD = 0.2  # seconds between two triggers of a rehearsal: nobody waits for the recipe's


def rehearse(
    recipe: Recipe,
    devices: Annotated[int, typer.Option(min=1, help="Processes, each with a share of the recipe's data.")] = 10,
    uploads: Annotated[int | None, typer.Option(min=1, help="That end it; the recipe's unless given.")] = None,
    overrides: Overrides = None,
    seed: Seed = None,
    script: Annotated[
        bool, typer.Option(help="Play the order of a simulation, and show that its files come out to the byte.")
    ] = False,
    speeds: Annotated[
        bool, typer.Option(help="Every device takes as long to train as the recipe's fleet says, at the recipe's pace.")
    ] = False,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="runs/<name>-rehearsal unless given.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace what an earlier one left there.")] = False,
    allow_code: AllowCode = False,
) -> None:
    """Rehearse a deployment on this machine: a server and device processes, over TLS with keys."""
    needs_network()
    loading()
    from fedasmu.network.rehearsal import Rehearsal, simulated
    from fedasmu.report.summary import table
    from fedasmu.run.progress import Live
    from fedasmu.run.result import Result
    from fedasmu.storage.record import SAME_BYTES, SCRIPT, differing
    from fedasmu.system.process import one_thread, stop_request

    changes = [f"fleet.devices={devices}", "pacing.max_in_flight=0.5", "network.per_address=0"]
    changes += [f"stop.uploads={uploads}"] if uploads else []
    changes += [] if script or speeds else [f"pacing.period={PERIOD}"]
    config = loaded(recipe, [*changes, *(overrides or [])], seed, allow_code)
    directory = out or Path("runs") / f"{config.name}-rehearsal"
    check_free(directory, overwrite)
    world = built(config)
    live, began = Live(console, config.stop.uploads), time.monotonic()
    with begun(world, directory, overwrite), one_thread(), stop_request() as stopping, live.shown():
        lines = simulated(world, directory / SCRIPT) if script else None
        Rehearsal(world, directory, live.say, speeds).run(stopping, live.observe, lines)
    console.print(table(Result(directory)))
    say(f"{len(world.examples)} devices over TLS, {time.monotonic() - began:.0f} s; run directory: {directory}")
    if script:
        others = differing(directory / SCRIPT, directory)
        if others:
            raise UserError(f"not the same bytes as the simulation's: {', '.join(others)}")
        say(f"{len(SAME_BYTES)} files byte-identical with the simulation's: {', '.join(SAME_BYTES)}")
