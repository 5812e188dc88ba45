"""The command that asks of a method what every method must do: check."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from fedasmu.commands import loading, say
from fedasmu.errors import DeviceError, Interrupted, Refused, UserError, is_refusal
from fedasmu.imports import blame

CHECK_EXAMPLES = """
[bold]Examples[/bold]

  fedasmu check my_module:MyMethod

  fedasmu check my_module:MyMethod --set alpha=0.3

It takes a minute: small runs on two clouds of points. The method's settings are given by their names.
"""


def check(
    method: Annotated[str, typer.Argument(help="A method of your own as package.module:Class, or one of ours.")],
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the method; repeatable.")
    ] = None,
) -> None:
    """Ask of a method what every method must do: repeat, resume, survive losses, end at any moment."""
    loading()
    from fedasmu.conformance import CHECKS, Trial
    from fedasmu.settings.recipe import override, parse

    keys = [f"algorithm.{change}" for change in changes or []]
    table = override({"algorithm": {"name": method}}, keys)
    parse(table, "check", keys)
    failed = 0
    for number, one in enumerate(CHECKS):
        with TemporaryDirectory() as folder:
            try:
                one(Trial(table["algorithm"], Path(folder) / str(number)))
                say(f"ok      {one.__doc__}")
            except Exception as error:
                if isinstance(error, Interrupted | Refused) or is_refusal(error):
                    raise
                failed += 1
                told = isinstance(error, AssertionError | UserError | DeviceError)
                say(f"failed  {one.__doc__}\n        {error if told else blame(error)}")
    say(f"{failed} of {len(CHECKS)} failed" if failed else f"all {len(CHECKS)} passed")
    if failed:
        raise typer.Exit(1)
