"""The command that follows runs while they work: watch."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from fedasmu.commands import needs_network, say
from fedasmu.errors import UserError

WATCH_EXAMPLES = """
[bold]Examples[/bold]

  fedasmu watch runs/quickstart

  fedasmu watch runs/compare-quickstart --port 9000

  fedasmu watch runs/fleet --listen 0.0.0.0:9000     (with TLS and a token)
"""


def watch(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run, a study or a service, or a folder of them.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="On this machine; 0 takes any free one.")] = 8081,
    listen: Annotated[
        str, typer.Option(metavar="ADDRESS:PORT", help="For others to see, with TLS and a token in the address.")
    ] = "",
    wait: Annotated[bool, typer.Option(help="DIR may come to be later.")] = False,
) -> None:
    """Show a page that follows runs while they work. It only reads their directories, and changes nothing."""
    needs_network()
    from fedasmu.watch.serving import Serving

    if not wait and not directory.is_dir():
        raise UserError(f"{directory}: no such directory; for instance: fedasmu watch runs/quickstart")
    public = Serving.public(directory, listen, secrets.token_urlsafe()) if listen else None
    serving = public or Serving.local(directory, port)
    say(f"watch it at {serving.url}")
    say("Ctrl-C ends the page, not the runs")
    try:
        asyncio.run(serving.forever())
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


Watched = Annotated[bool, typer.Option("--watch", help="Serve a page beside the work that follows it.")]


@contextmanager
def beside(directory: Path, wanted: bool) -> Iterator[None]:
    """While the work goes on, another process serves its page: a slow browser never slows a run."""
    if not wanted:
        yield
        return
    # -P: a comparison's folder called fedasmu, here, is not the package.
    command = [sys.executable, "-P", "-m", "fedasmu", "watch", str(directory), "--port", "0", "--wait"]
    page = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert page.stdout is not None
        if not (said := page.stdout.readline()):
            raise UserError("--watch: the page could not be served")  # it has said why
        say(said.rstrip())
        yield
    finally:
        page.terminate()
        page.wait()
    say(f"see it again with: fedasmu watch {directory}")
