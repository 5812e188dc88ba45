"""fedasmu data show: how a data set is divided over the devices."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fedasmu.commands import console, say
from fedasmu.errors import UserError

if TYPE_CHECKING:
    from fedasmu.data.split_summary import Summary

PICTURES = (".png", ".pdf", ".svg")
EXAMPLE = (
    "[bold]Example[/bold]  fedasmu data show fashion-mnist --split dirichlet --alpha 0.1 --devices 100 --out split.png"
)


def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="One of `fedasmu list datasets`.")],
    split: Annotated[str, typer.Option(help="dirichlet, equal-dirichlet, iid, shards or user.")] = "dirichlet",
    alpha: Annotated[float, typer.Option(help="Of the Dirichlet splits: smaller is more skewed.")] = 0.5,
    devices: Annotated[int | None, typer.Option(help="100 unless given; with --split user, one a user.")] = None,
    seed: Annotated[int, typer.Option(help="Of the run whose split this is.")] = 0,
    out: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw it, too.")] = None,
    directory: Annotated[Path | None, typer.Option("--dir", help="Look here before all other places.")] = None,
) -> None:
    """Show how a data set is divided over the devices, just as a run with this seed divides it."""
    if out is not None and out.suffix.lower() not in PICTURES:
        raise UserError(f"--out {out}: a picture's name must end in {', '.join(PICTURES)}")
    from fedasmu.data.split_summary import draw, summary
    from fedasmu.run.materials import federated_data
    from fedasmu.settings.recipe import parse

    source: dict[str, Any] = {"name": name, "split": split, "alpha": alpha}
    if directory is not None:
        source["dir"] = str(directory)
    fleet = {} if devices is None else {"devices": devices}
    table = {"data": source, "fleet": fleet, "seed": seed, "algorithm": "fedavg"}
    data, _ = federated_data(parse(table, "data show"), say)
    found = summary(data.shards, data.train.targets, data.classes)
    console.print(sizes(data.name, found))
    held = (found.counts > 0).sum(axis=1)
    entropies = f"{min(found.entropies):.2f} to {max(found.entropies):.2f} bits, mean {found.mean_entropy:.2f}"
    say(f"label entropy:       {entropies} (all classes alike: {math.log2(data.classes):.2f})")
    say(f"classes of a device: {held.min()} to {held.max()} of {data.classes}, mean {held.mean():.1f}")
    if out is not None:
        draw(data.shards, data.train.targets, data.classes, out)
        say(f"picture:             {out}")


def sizes(name: str, found: Summary) -> Table:
    table = Table(title=f"{name}: {sum(found.sizes):,} examples on {len(found.sizes)} devices", title_justify="left")
    table.add_column("examples of a device")
    table.add_column("devices", justify="right")
    table.add_column()
    most = max(devices for _, _, devices in found.histogram)
    for first, last, devices in found.histogram:
        table.add_row(f"{first:,} to {last:,}", str(devices), "#" * math.ceil(30 * devices / most))
    return table
