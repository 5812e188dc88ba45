"""The command replay: a served run once more, from its ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedasmu.commands import AllowCode, loading, needs_network, say
from fedasmu.errors import Refused

REPLAY_EXAMPLES = """
[bold]Example[/bold]

  fedasmu replay runs/fleet

The run must have been served with network.keep = "all". Who sent what is proved by the devices' signatures, and what
the server made of it by the files, which come out to the byte.
"""


def replay(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The run directory of `fedasmu serve`.")],
    allow_code: AllowCode = False,
) -> None:
    """Play a served run's ledger into a fresh server, and compare what comes of it with what the run left."""
    needs_network()
    loading()
    from fedasmu.commands.serving import built, loaded
    from fedasmu.network.folder import Folder
    from fedasmu.network.replay import replay as play
    from fedasmu.storage.record import SAME_BYTES, claimed
    from fedasmu.system.lock import check_idle
    from fedasmu.system.process import one_thread

    folder = Folder(directory)
    check_idle(directory)
    world = built(loaded(str(directory / "config.toml"), [], None, allow_code))
    with claimed(directory, resume=True, overwrite=False), one_thread():
        found = play(world, folder)
    say(f"{found.acts} acts, {found.uploads} uploads; model {found.model}")
    if found.unsigned:
        raise Refused(f"not signed by their devices: the uploads of tasks {', '.join(map(str, found.unsigned[:10]))}")
    if found.differing:
        raise Refused(f"not what the run has left: {', '.join(found.differing)}")
    same, none = f"{', '.join(SAME_BYTES)} are the same", "the run is not over: there is nothing to compare"
    say(f"every upload is signed by its device; {same if found.finished else none}")
