"""The commands of a real federation: serve | join | rehearse."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedasmu.commands import AllowCode, console, loading, needs_network, say
from fedasmu.errors import Interrupted, UserError

if TYPE_CHECKING:
    from fedasmu.build import World
    from fedasmu.config import Config

Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the recipe; repeatable.")
]
Seed = Annotated[int | None, typer.Option(help="The seed that everything random is derived from.")]

SERVE_EXAMPLES = """
[bold]Examples[/bold]

  fedasmu serve quickstart --listen 0.0.0.0:8443 --out runs/fleet

  fedasmu serve --resume runs/fleet
"""
JOIN_EXAMPLES = """
[bold]Example[/bold]

  fedasmu join https://10.0.0.5:8443 --invite fa1.... --data my.npz

[bold]What leaves this device[/bold]: models, the loss, the method's few numbers and how many examples
there are. Never the data.
"""
REHEARSE_EXAMPLES = """
[bold]Examples[/bold]

  fedasmu rehearse quickstart --devices 5 --uploads 20

  fedasmu rehearse quickstart --devices 10 --uploads 30 --script
"""
PERIOD = 0.2  # seconds between two triggers of a rehearsal: nobody waits for the recipe's


def serve(
    recipe: Annotated[str, typer.Argument(help="A recipe: a TOML file, or a name from `fedasmu list recipes`.")] = "",
    overrides: Overrides = None,
    listen: Annotated[str, typer.Option(metavar="ADDRESS:PORT", help="Where devices reach it.")] = "0.0.0.0:8443",
    name: Annotated[str, typer.Option(metavar="HOST", help="The host that devices are told; else the address.")] = "",
    seed: Seed = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The run directory; runs/<name> unless given.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Go on with a run that was stopped.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace what an earlier run left in the run directory.")] = False,
    allow_code: AllowCode = False,
) -> None:
    """Train a federated model on real devices: serve them over HTTPS until the run is over."""
    if bool(recipe) == (resume is not None):
        raise UserError("give either a recipe or --resume DIR; for instance: fedasmu serve quickstart")
    needs_network()
    loading()
    from fedasmu.network.folder import Folder
    from fedasmu.network.listener import bound

    if resume is not None:
        folder = Folder(resume)
        world = _build(_loaded(str(resume / "config.toml"), [], None, allow_code))
        listening = bound(folder.bind, folder.port)
    else:
        host, port = _address(listen)
        config = _guarded(_loaded(recipe, overrides or [], seed, allow_code))
        directory = out or Path("runs") / config.name
        _check_free(directory, overwrite)
        listening = bound(host, port)
        world = _build(config)
        _make_free(world, directory, overwrite)
        folder = Folder.make(directory, len(world.examples), name or _told(host), listening.getsockname()[1], host)
        say(f"devices join with: {folder.join_line(folder.invite(uses=folder.seats, hours=24 * 30))}")
    _serve(world, folder, listening)


def join(
    url: Annotated[str, typer.Argument(help="The server's address, as `fedasmu serve` prints it.")],
    data: Annotated[
        str, typer.Option(metavar="FILE|MODULE:FUNCTION", help="inputs and targets: .npz, .safetensors, or a function.")
    ],
    invite: Annotated[str, typer.Option(metavar="fa1...", help="Needed when a device joins for the first time.")] = "",
    state: Annotated[
        Path | None, typer.Option(metavar="DIR", help="What the device keeps: its key, memory and unsent upload.")
    ] = None,
    name: Annotated[str, typer.Option(help="What the device is called on the server.")] = "",
    model: Annotated[str, typer.Option(metavar="MODULE:FACTORY", help="Your own model, if the recipe has one.")] = "",
    engine: Annotated[str, typer.Option(metavar="auto|native|torch", help="What trains.")] = "auto",
    quiet: Annotated[bool, typer.Option(help="Say nothing while all is well.")] = False,
) -> None:
    """Be a device: train on your own data until the run is over. The data never leave this machine."""
    needs_network()
    if engine not in ("auto", "native", "torch"):
        raise UserError(f"--engine {engine}: must be auto, native or torch")
    from fedasmu.imports import load
    from fedasmu.network.device import Device
    from fedasmu.process import stop_request

    own = None
    if model:
        try:
            own = load(model)
        except ValueError as error:
            raise UserError(f"--model {model}: {error}") from None
    with stop_request() as stopping:
        device = Device(
            url,
            data,
            invite=invite or None,
            state=state or Path("fedasmu-device"),
            name=name or None,
            model=own,
            engine=engine,
            say=(lambda line: None) if quiet else say,
            stopping=stopping,
        )
        device.run()


def rehearse(
    recipe: Annotated[str, typer.Argument(help="A recipe: a TOML file, or a name from `fedasmu list recipes`.")],
    devices: Annotated[int, typer.Option(min=1, help="Processes, each with a share of the recipe's data.")] = 10,
    uploads: Annotated[int | None, typer.Option(min=1, help="That end it; the recipe's unless given.")] = None,
    overrides: Overrides = None,
    seed: Seed = None,
    script: Annotated[
        bool, typer.Option(help="Play the order of a simulation, and show that its files come out to the byte.")
    ] = False,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="runs/<name>-rehearsal unless given.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace what an earlier one left there.")] = False,
    allow_code: AllowCode = False,
) -> None:
    """Rehearse a deployment on this machine: a server and device processes, over TLS with keys."""
    needs_network()
    loading()
    from fedasmu.network.rehearsal import FILES, Rehearsal, differing, simulated
    from fedasmu.process import one_thread, stop_request
    from fedasmu.progress import Live
    from fedasmu.report.summary import table
    from fedasmu.result import Result

    changes = [f"fleet.devices={devices}", "pacing.max_in_flight=0.5", "network.per_address=0"]
    changes += [f"stop.uploads={uploads}"] if uploads else []
    changes += [] if script else [f"pacing.period={PERIOD}"]
    config = _loaded(recipe, [*changes, *(overrides or [])], seed, allow_code)
    directory = out or Path("runs") / f"{config.name}-rehearsal"
    _check_free(directory, overwrite)
    world = _build(config)
    _make_free(world, directory, overwrite)
    live, began = Live(console, config.stop.uploads), time.monotonic()
    with one_thread(), stop_request() as stopping, live.shown():
        lines = simulated(world, directory / "simulated") if script else None
        Rehearsal(world, directory, live.say).run(stopping, live.observe, lines)
    console.print(table(Result(directory)))
    say(f"{len(world.examples)} devices over TLS, {time.monotonic() - began:.0f} s; run directory: {directory}")
    if script:
        others = differing(directory / "simulated", directory)
        if others:
            raise UserError(f"not the same bytes as the simulation's: {', '.join(others)}")
        say(f"{len(FILES)} files byte-identical with the simulation's: {', '.join(FILES)}")


def _guarded(config: Config) -> Config:
    """Real devices may be broken or hostile: a server is guarded unless its recipe says otherwise."""
    if config.guard.model_fields_set:
        return config
    from fedasmu.algorithms.guard import ON

    say(f"guard: uploads are shortened beyond {ON.clip:g} times the usual length, and refused beyond {ON.refuse:g}")
    return config.model_copy(update={"guard": ON})


def _serve(world: World, folder: Any, listening: Any) -> None:
    from fedasmu.network import certificate
    from fedasmu.network.serving import Serving
    from fedasmu.process import one_thread, stop_request
    from fedasmu.progress import Live
    from fedasmu.report.summary import table
    from fedasmu.result import Result

    live = Live(console, world.config.stop.uploads)
    context = certificate.server_context(folder.keys / "current.pem", folder.keys / "current.key")
    with folder.lock(), one_thread(), _resumable(folder.path), stop_request() as stopping, live.shown():
        Serving(world, folder, context, stopping, live.say, live.observe).serve(listening)
    console.print(table(Result(folder.path)))
    say(f"run directory: {folder.path}")


@contextmanager
def _resumable(directory: Path) -> Iterator[None]:
    try:
        yield
    except Interrupted:
        say(f"stopped; everything so far is kept. Go on with: fedasmu serve --resume {directory}")
        raise typer.Exit(0) from None


def _loaded(recipe: str, changes: list[str], seed: int | None, allow_code: bool) -> Config:
    from fedasmu.recipe import load

    return load(recipe, [*changes, *([] if seed is None else [f"seed={seed}"])], allow_code=allow_code)


def _build(config: Config) -> World:
    from fedasmu.build import build
    from fedasmu.network.serving import check_recipe

    check_recipe(config)
    return build(config, say=say)


def _check_free(directory: Path, overwrite: bool) -> None:
    from fedasmu.record import check_free

    check_free(directory, overwrite)


def _make_free(world: World, directory: Path, overwrite: bool) -> None:
    from fedasmu.disk import write_whole
    from fedasmu.profiles import write_profiles
    from fedasmu.record import claimed

    with claimed(directory, resume=False, overwrite=overwrite):
        write_whole(directory / "config.toml", world.config.toml())
        write_profiles(world.profiles, directory / "fleet.csv")


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise UserError(f"--listen {text}: write it as ADDRESS:PORT, for instance 0.0.0.0:8443")
    return host.strip("[]"), int(port)


def _told(host: str) -> str:
    """The address that devices are told: of all addresses of this machine, its name."""
    import socket

    return socket.gethostname() if host in ("0.0.0.0", "::") else host
