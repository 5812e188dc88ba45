"""The keys of a served run: invite | list | revoke | rotate."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from fedasmu.commands import console, needs_network, say
from fedasmu.commands.hints import Hinting
from fedasmu.errors import UserError

keys_app = typer.Typer(no_args_is_help=True, help="Invite devices to a served run, list and revoke them.")
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The run directory of `fedasmu serve`.")]


@keys_app.command(epilog="[bold]Example[/bold]  fedasmu keys invite runs/fleet --name kitchen-pi", cls=Hinting)
def invite(
    directory: Directory,
    name: Annotated[str, typer.Option(help="What the device will be called.")] = "",
    uses: Annotated[int, typer.Option(min=1, max=1_000_000, help="How many devices may use it.")] = 1,
    hours: Annotated[float, typer.Option(min=0.01, help="How long it is good for.")] = 24.0,
) -> None:
    """Print the line with which a new device joins."""
    needs_network()
    from fedasmu.network.folder import Folder
    from fedasmu.network.register import NAME

    if name and (not NAME.fullmatch(name) or uses > 1):
        raise UserError(f"--name {name}: a-z, 0-9, - and _, at most 64 of them, and for one device only")
    folder = Folder(directory)
    say(folder.join_line(folder.invite(name=name or None, uses=uses, hours=hours)))


@keys_app.command("list", epilog="[bold]Example[/bold]  fedasmu keys list runs/fleet", cls=Hinting)
def list_keys(directory: Directory) -> None:
    """Show the devices of a run, and the invites that are open."""
    needs_network()
    from rich.table import Column, Table

    from fedasmu.network.folder import Folder

    folder = Folder(directory)
    named = Column("name", no_wrap=True)  # never broken: `keys revoke` wants it as it is
    table = Table("seat", named, "examples", "enrolled", "key", "state")
    for seat in folder.register.all():
        day = time.strftime("%Y-%m-%d %H:%M", time.localtime(seat.enrolled))
        state = "may come" if seat.revoked is None else "revoked"
        table.add_row(str(seat.seat), seat.name, str(seat.examples), day, seat.key.hex()[:16], state)
    console.print(table)
    for one in folder.register.invites():
        hours = (one.expires - time.time()) / 3600
        say(f"invite {one.id}: {one.uses} left, " + (f"good for {hours:.0f} h" if hours > 0 else "expired"))


@keys_app.command(epilog="[bold]Example[/bold]  fedasmu keys revoke runs/fleet kitchen-pi", cls=Hinting)
def revoke(
    directory: Directory, name: Annotated[str, typer.Argument(help="The device, as `fedasmu keys list` shows it.")]
) -> None:
    """Refuse a device from now on. A running server acts within a second."""
    needs_network()
    from fedasmu.network.folder import Folder

    if Folder(directory).register.revoke(name) is None:
        raise UserError(f"{name}: no such device; see fedasmu keys list {directory}")
    say(f"{name} is revoked")


@keys_app.command(epilog="[bold]Example[/bold]  fedasmu keys rotate runs/fleet", cls=Hinting)
def rotate(
    directory: Directory,
    now: Annotated[bool, typer.Option("--now", help="Switch to it; restart the server then.")] = False,
) -> None:
    """Make the server's next certificate, which devices learn of at their next hello; --now switches to it."""
    needs_network()
    from fedasmu.network import certificate
    from fedasmu.network.folder import Folder, Shown

    folder = Folder(directory)
    if folder.shown != Shown():
        raise UserError(f"{directory}: its certificate is of a public authority; renew it there, and start again")
    if now:
        certificate.switch(folder.keys)
        say(f"switched; restart the server with: fedasmu serve --resume {directory}")
        return
    announced = (folder.keys / f"{certificate.NEXT}.pem").exists()
    if not announced:  # another one would shut out who knows that one alone
        certificate.make(folder.keys, certificate.NEXT, {folder.host, "localhost"})
    told = "already" if announced else "to devices"
    say(f"the next certificate is announced {told}; when all have said hello, run it again with --now")
