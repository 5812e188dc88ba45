"""The commands about data sets: show | where | prepare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedasmu.commands import console, loading, say, split
from fedasmu.commands.hints import Hinting

data_app = typer.Typer(no_args_is_help=True, help="Find, download and look at data sets.")
data_app.command(epilog=split.EXAMPLE, cls=Hinting)(split.show)
DataSet = Annotated[str, typer.Argument(metavar="NAME", help="One of `fedasmu list datasets`.")]
Directory = Annotated[Path | None, typer.Option("--dir", help="Look here before all other places.")]


@data_app.command(epilog="[bold]Example[/bold]  fedasmu data where fashion-mnist", cls=Hinting)
def where(name: DataSet, directory: Directory = None) -> None:
    """Show where a data set is looked for, and where it was found."""
    from fedasmu import data

    looks = data.where(name, directory)
    for look in looks:
        if look.partial:
            more = f" and {len(look.missing) - 3} more" if len(look.missing) > 3 else ""
            sign, lacks = "[yellow]part [/yellow]", f", which lacks {', '.join(look.missing[:3])}{more}"
        else:
            sign, lacks = "[dim]-    [/dim]" if look.missing else "[green]found[/green]", ""
        console.print(sign, end=" ")
        say(f"{look.folder}{lacks}")
    if all(look.missing for look in looks):
        say(f"not found; fedasmu data prepare {name} gets it")


@data_app.command(epilog="[bold]Example[/bold]  fedasmu data prepare fashion-mnist", cls=Hinting)
def prepare(
    name: DataSet,
    directory: Directory = None,
    verify: Annotated[bool, typer.Option("--verify", help="Compare the files with the published checksums.")] = False,
    vocabulary: Annotated[int, typer.Option(help="Of texts: as data.vocabulary of the recipe.")] = 10_000,
    length: Annotated[int, typer.Option(help="Of texts: as data.length of the recipe.")] = 500,
) -> None:
    """Make a data set ready: find it or download it, check it and decode it."""
    loading()
    from fedasmu import data
    from fedasmu.run.materials import passed_over

    dataset = data.prepare(name, directory, text=data.TextOptions(vocabulary=vocabulary, length=length))
    if verify:
        right, unknown = data.verify(name, directory)
        compared = f"{right} files are as published; " if right else "nothing could be compared: "
        say(f"{compared}of {unknown} files and folders upstream tells no checksum")
    say(
        f"{dataset.name}: {len(dataset.train):,} training and {len(dataset.test):,} test examples of shape "
        f"{'x'.join(map(str, dataset.shape))}, {dataset.classes} classes\nfrom {dataset.folder}"
    )
    for line in passed_over(name, dataset.folder, directory):
        say(line)
