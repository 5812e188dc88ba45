"""The command join: this machine becomes a device."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedasmu.commands import needs_network, say
from fedasmu.errors import UserError

JOIN_EXAMPLES = """
[bold]Examples[/bold]

  fedasmu join https://10.0.0.5:8443 --invite fa1.... --data my.npz

  fedasmu join https://10.0.0.5:8443 --data my.npz --stay

[bold]What leaves this device[/bold]: models, the loss, the method's few numbers and how many examples
there are. Never the data.
"""


def join(
    url: Annotated[str, typer.Argument(help="The server's address, as `fedasmu serve` prints it.")],
    data: Annotated[
        str, typer.Option(metavar="FILE|MODULE:NAME", help="inputs and targets: .npz, .safetensors, or a function.")
    ],
    invite: Annotated[str, typer.Option(metavar="fa1...", help="Needed when a device joins for the first time.")] = "",
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="What the device keeps: its key, memory and unsent upload; fedasmu-device unless given."
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="What the device is called on the server.")] = "",
    model: Annotated[str, typer.Option(metavar="MODULE:FACTORY", help="Your own model, if the recipe has one.")] = "",
    engine: Annotated[str, typer.Option(metavar="auto|native|torch", help="What trains.")] = "auto",
    seconds_per_sample: Annotated[
        float, typer.Option(min=0.0, help="Take at least so long to train on an example: play a slower device.")
    ] = 0.0,
    new_key: Annotated[
        bool, typer.Option("--new-key", help="Change this device's key: the old one signs for the new.")
    ] = False,
    stay: Annotated[
        bool, typer.Option("--stay", help="When the run is over, wait for the next one at the same address.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing while all is well.")] = False,
) -> None:
    """Be a device: train on your own data until the run is over. The data never leave this machine."""
    needs_network()
    if engine not in ("auto", "native", "torch"):
        raise UserError(f"--engine {engine}: must be auto, native or torch")
    from fedasmu.imports import load
    from fedasmu.network.device import Device
    from fedasmu.system.process import stop_request

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
            new_key=new_key,
            model=own,
            engine=engine,
            say=(lambda line: None) if quiet else say,
            stopping=stopping,
            seconds_per_sample=seconds_per_sample,
        )
        device.run(stay)
