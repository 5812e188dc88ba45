"""The command serve: a federation of real devices. And what it shares with rehearse."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedasmu.commands import AllowCode, Overrides, Recipe, Seed, console, hosts, loading, needs_network, say
from fedasmu.commands.watching import Watched, beside
from fedasmu.errors import Interrupted, UserError

if TYPE_CHECKING:
    from fedasmu.network.folder import Folder, Shown
    from fedasmu.run.build import World
    from fedasmu.settings.config import Config

LISTEN = "0.0.0.0:8443"
SERVE_EXAMPLES = """
[bold]Examples[/bold]

  fedasmu serve quickstart --listen 0.0.0.0:8443 --out runs/fleet

  fedasmu serve --resume runs/fleet

  fedasmu serve quickstart --members runs/fleet --out runs/second

  fedasmu serve quickstart --listen 0.0.0.0:8443 --name fl.example --cert fullchain.pem --key privkey.pem

  fedasmu serve quickstart --behind-proxy --name fl.example --listen 127.0.0.1:8080
"""


def serve(
    recipe: Recipe = "",
    overrides: Overrides = None,
    listen: Annotated[str, typer.Option(metavar="ADDRESS:PORT", help=f"Where devices reach it; else {LISTEN}.")] = "",
    name: Annotated[str, typer.Option(metavar="HOST", help="The host that devices are told; else the address.")] = "",
    seed: Seed = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The run directory; runs/<name> unless given.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Go on with a run that was stopped.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace what an earlier run left in the run directory.")] = False,
    cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A public authority's certificate, with its chain; PEM.")
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="The certificate's private key.")] = None,
    members: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The devices of this earlier run keep their seats and invites.")
    ] = None,
    behind_proxy: Annotated[
        bool, typer.Option(help="Speak plain HTTP on this machine, to a proxy that ends TLS and that --name names.")
    ] = False,
    watch: Watched = False,
    stay: Annotated[
        bool, typer.Option(help="When the run is over, stay until stopped, and tell whoever comes.")
    ] = False,
    allow_code: AllowCode = False,
) -> None:
    """Train a federated model on real devices: serve them over HTTPS until the run is over."""
    if bool(recipe) == (resume is not None):
        raise UserError("give either a recipe or --resume DIR; for instance: fedasmu serve quickstart")
    given = (overrides, listen, name, overwrite, cert, key, members, behind_proxy, out, seed is not None)
    if resume is not None and any(given):
        raise UserError(
            "--resume goes on with the run as it is: --set, --listen, --name, --seed, --out, --overwrite, --cert, "
            "--key, --members and --behind-proxy do not apply"
        )
    needs_network()
    from fedasmu.network.folder import Folder
    from fedasmu.network.listener import bound

    if resume is not None:
        with beside(resume, watch):
            _go_on(resume, stay, allow_code)
        return
    loading()
    host, port = hosts.address(listen or LISTEN)
    told = hosts.named(name)
    shown, host = _shown(cert, key, name if behind_proxy else None, host)
    config = loaded(recipe, overrides or [], seed, allow_code)
    config = config.model_copy(update={"guard": config.guard.for_a_service()})
    say(f"guard: {config.guard}")
    directory = out or Path("runs") / config.name
    check_free(directory, overwrite)
    earlier = None if members is None else _members(members, directory)
    with closing(bound(host, port)) as listening:
        world = built(config)
        if earlier is not None:
            earlier.check_room(len(world.examples))
        with begun(world, directory, overwrite), beside(directory, watch):
            port = listening.getsockname()[1]
            folder = Folder.make(directory, len(world.examples), told or hosts.told(host), port, host, shown, earlier)
            say(f"devices join with: {folder.join_line(folder.invite(uses=folder.seats, hours=24 * 30))}")
            _serve(world, folder, listening, stay)


def _members(earlier: Path, directory: Path) -> Folder:
    from fedasmu.network.folder import Folder

    if earlier.resolve() == directory.resolve():
        raise UserError(f"--members {earlier}: the new run needs a directory of its own; give another with --out")
    try:
        return Folder(earlier)
    except UserError as error:
        raise UserError(f"--members {error}") from None


def _go_on(directory: Path, stay: bool, allow_code: bool) -> None:
    """Listen first: devices that come while the rest is made wait in line, instead of being turned away."""
    from fedasmu.network.folder import Folder
    from fedasmu.network.listener import bound
    from fedasmu.storage.record import claimed
    from fedasmu.system.lock import check_idle

    folder = Folder(directory)
    check_idle(directory)
    finished = (directory / "summary.json").exists()
    if finished:
        say(f"{directory} is finished already" + "; devices that come are told so" * stay)
        if not stay:
            return
    with claimed(directory, resume=True, overwrite=False), closing(bound(folder.bind, folder.port)) as listening:
        loading()
        config = loaded(str(directory / "config.toml"), [], None, allow_code)
        if finished:
            _tell(config, folder, listening)
        else:
            _serve(built(config), folder, listening, stay)


def _tell(config: Config, folder: Any, listening: Any) -> None:
    from fedasmu.network.farewell import tell
    from fedasmu.system.process import stop_request

    with stop_request() as stopping:
        tell(listening, folder.context, config.network.per_address, stopping)


def _serve(world: World, folder: Any, listening: Any, stay: bool) -> None:
    from fedasmu.network.serving import LINGER, Serving
    from fedasmu.report.summary import table
    from fedasmu.run.progress import Live
    from fedasmu.run.result import Result
    from fedasmu.system.process import one_thread, stop_request

    live = Live(console, world.config.stop.uploads)
    linger = math.inf if stay else LINGER
    with one_thread(), _resumable(folder.path), stop_request() as stopping, live.shown():
        Serving(world, folder, folder.context, stopping, live.say, live.observe, linger).serve(listening)
    console.print(table(Result(folder.path)))
    say(f"run directory: {folder.path}")


@contextmanager
def _resumable(directory: Path) -> Iterator[None]:
    try:
        yield
    except Interrupted:
        say(f"stopped; everything so far is kept. Go on with: fedasmu serve --resume {directory}")
        raise typer.Exit(0) from None


def loaded(recipe: str, changes: list[str], seed: int | None, allow_code: bool) -> Config:
    from fedasmu.settings.recipe import load

    return load(recipe, [*changes, *([] if seed is None else [f"seed={seed}"])], allow_code=allow_code)


def built(config: Config) -> World:
    from fedasmu.network.serving import check_recipe
    from fedasmu.run.build import build

    check_recipe(config)
    return build(config, say=say)


def check_free(directory: Path, overwrite: bool) -> None:
    """Before anything costly: whether a run may begin here."""
    from fedasmu.storage import record
    from fedasmu.system.lock import check_idle

    check_idle(directory)
    record.check_free(directory, overwrite)


@contextmanager
def begun(world: World, directory: Path, overwrite: bool) -> Iterator[None]:
    """A run directory with its recipe, which is this process's for as long as it works there."""
    from fedasmu.run.profiles import write_profiles
    from fedasmu.storage.record import claimed
    from fedasmu.system.disk import write_whole

    with claimed(directory, resume=False, overwrite=overwrite):
        write_whole(directory / "config.toml", world.config.toml())
        write_profiles(world.profiles, directory / "fleet.csv")
        yield


def _shown(cert: Path | None, key: Path | None, proxy: str | None, host: str) -> tuple[Shown, str]:
    """What devices see of the server, and the address that it listens on."""
    from fedasmu.network.certificate import server_context
    from fedasmu.network.folder import Shown

    if (cert is None) != (key is None):
        raise UserError("--cert and --key go together: the certificate, and its private key")
    if proxy is None and cert is not None and key is not None:
        server_context(cert, key)  # wrong files show before anything is made
        return Shown([str(cert.resolve()), str(key.resolve())]), host
    if proxy is None:
        return Shown(), host
    if not proxy or cert is not None:
        raise UserError(
            "--behind-proxy: the proxy has the certificate; say with --name HOST[:PORT] where devices find it"
        )
    if host not in ("0.0.0.0", "127.0.0.1", "::1", "localhost"):
        raise UserError(f"--listen {host}: behind a proxy the server speaks plain HTTP, so on this machine only")
    return Shown(name=proxy), "127.0.0.1" if host == "0.0.0.0" else host
