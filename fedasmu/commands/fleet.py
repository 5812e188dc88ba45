"""The command that closes the circle: from a deployment's times back to a simulation of it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from fedasmu.commands import loading, say
from fedasmu.commands.hints import Hinting

fleet_app = typer.Typer(no_args_is_help=True, help="Make a simulated fleet of a real one.")


@fleet_app.command("from", epilog="[bold]Example[/bold]  fedasmu fleet from runs/fleet --out fleet", cls=Hinting)
def from_run(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The run directory of `serve` or `rehearse`.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where profiles.csv and trace.csv go.")] = Path("fleet"),
) -> None:
    """Measure the devices of a served run: how long they took, when they were there, how often they were lost."""
    loading()
    import tomli_w

    from fedasmu.run.measured import measure

    found = measure(directory)
    keys = found.write(out)
    say(tomli_w.dumps({"fleet": keys}).rstrip())
    if found.guessed:
        say(f"# devices that delivered nothing are taken for ordinary ones: {', '.join(map(str, found.guessed))}")
    least, most = min(found.examples), max(found.examples)
    had = f"{least} examples each" if least == most else f"{least} to {most} examples"
    say(f"# devices had {had}; where a simulation deals them more or fewer, their tasks take longer or shorter")
    changes = " ".join(f"--set {shlex.quote(f'fleet.{key}={value}')}" for key, value in keys.items())
    say(f"# fedasmu run {shlex.quote(str(directory / 'config.toml'))} {changes} --out runs/simulated")
